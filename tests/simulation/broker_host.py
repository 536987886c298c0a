"""The embedded broker's core, with a name server, in the simulated world: it stalls, refuses, is killed and comes back.

What it holds after a kill is what its storage says (the commit log whole, perhaps with a torn record behind it; offsets as
they were saved last). After each request the committed offsets are given to the invariants.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING

from rocketcrew.broker.core import BrokerCore
from rocketcrew.broker.effects import CloseChannel, Effect
from rocketcrew.broker.name_server import NameServerCore
from rocketcrew.broker.storage import MemoryStorage
from rocketcrew.remoting.bodies import ResetOffsetBody
from rocketcrew.remoting.codes import RequestCode, ResponseCode
from rocketcrew.remoting.command import Command
from rocketcrew.remoting.headers import ResetOffset, SendRequestV2
from rocketcrew.remoting.properties import encode_properties, find_property
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.remoting.stored import decode_messages, record_info, walk
from rocketcrew.remoting.subscription import parse_subscription

from .network import Link, Request
from .script import (
    BROKER,
    DLQ_TOPIC,
    GROUP,
    RETRY_TOPIC,
    TOPIC,
    Script,
    body_of,
    broker_config,
    has_deadly_key,
    number_of,
)
from .truth import QueueKey, Truth
from .world import World

if TYPE_CHECKING:
    from .member import SimMember

NAME_SERVER_CODES = frozenset({RequestCode.GET_ROUTEINFO_BY_TOPIC})


@dataclass(frozen=True)
class SentAsNew:
    """Of which record a message to the retry topic is the retry."""

    key: QueueKey
    offset: int


class BrokerHost:
    """One broker process. `core` is None while it is down."""

    def __init__(self, world: World, script: Script, truth: Truth) -> None:
        self.world = world
        self.script = script
        self.truth = truth
        self.storage = MemoryStorage()
        self.name_server = NameServerCore()
        self.channels: dict[int, Link] = {}
        self.core: BrokerCore | None = None
        self.stalled_until_ms = 0.0
        self.refusing: dict[int, tuple[int, int]] = {}
        """Request code -> (response code, how many more)."""
        self._made = 0
        self._tick_at = float("inf")
        self._offset_changes = -1
        self._tags = parse_subscription(script.subscription)[1]
        self._unwanted: list[list[bool]] = [[] for _ in range(script.queues)]
        """Per queue of the topic and offset: its tag is not subscribed."""
        self.sent: dict[int, str] = {}
        """Number of each acknowledged message -> its tag."""
        self._number = 0
        self._keys: dict[QueueKey, list[bytes | None]] = {}
        self.start()
        self.store = self._core().state.store
        for number in range(script.queues):  # the topic, and one message in each queue
            self.produce(number)

    # --- life ---------------------------------------------------------------------------------------------------

    def _core(self) -> BrokerCore:
        assert self.core is not None
        return self.core

    def start(self) -> None:
        """Start, or come back after a kill."""
        now_ms = int(self.world.now_ms)
        self.core = BrokerCore(
            broker_config(self.script), self.storage, Random(self.world.random.random()), self.name_server, now_ms
        )
        self.core.intercepts.append(self._refuse)
        self.store = self.core.state.store
        self._check_offsets(None)
        self._tick_at = float("inf")
        self._set_tick()

    def kill(self, away_ms: float = 0.0) -> None:
        """Kill -9: what was not saved is gone; every connection too. It comes back, after `away_ms` at least."""
        if self.core is None:
            return
        for key in self.queues():
            self._learn_keys(key)  # what is asked while it is down
        torn = b""
        if self.world.chance(0.3):
            torn = self.world.random.randbytes(self.world.random.randrange(1, 120))
            self.world.note("the broker's log was torn")
        self.core = None
        self.storage.crash(torn)
        self.truth.broker_killed()
        for link in list(self.channels.values()):
            link.cut(delivers=False)
        self.channels.clear()
        self.world.after(away_ms + 20 + self.world.random.random() * 1500, self.start)

    def connect(self, member: SimMember) -> Link | None:
        """A new connection, None while the broker is down."""
        if self.core is None:
            return None
        self._made += 1
        link = self.channels[self._made] = Link(self.world, member, self, self._made)
        return link

    def closed(self, link: Link) -> None:
        """The broker notices that a connection is gone."""
        if self.channels.pop(link.channel, None) is not None and self.core is not None:
            self._do(self.core.channel_closed(int(self.world.now_ms), link.channel))

    # --- requests -----------------------------------------------------------------------------------------------

    def receive(self, link: Link, request: Request) -> None:
        if self.core is None or link.channel not in self.channels:
            return
        if self.world.now_ms < self.stalled_until_ms:
            self.world.at(self.stalled_until_ms, self.receive, link, request)
            return
        command = request.command
        now_ms = int(self.world.now_ms)
        if command.code in NAME_SERVER_CODES:
            self._do(self.name_server.handle(now_ms, link.channel, link.address, command))
            return
        letters = self.letters()
        effects = self.core.handle(now_ms, link.channel, link.address, command)
        dead = self.letters() > letters
        if command.code == RequestCode.CONSUMER_SEND_MSG_BACK and _succeeded(effects, link.channel, command):
            self._sent_back(command, dead=dead)
        if command.code == RequestCode.SEND_MESSAGE_V2 and _succeeded(effects, link.channel, command):
            assert isinstance(request.asker, SentAsNew)
            self.truth.sent_back(request.asker.key, request.asker.offset, dead=dead)
        if self.core.state.offsets.changes != self._offset_changes:
            self._check_offsets(request.asker)
        self._do(effects)
        self._set_tick()

    def _sent_back(self, command: Command, *, dead: bool) -> None:
        record = self.store.record_at(int(command.fields["offset"]))
        assert record is not None
        info = record_info(record)
        topic = record[info.topic_start : info.topic_start + info.topic_len].decode()
        self.truth.sent_back((topic, info.queue_id), info.queue_offset, dead=dead)

    def _do(self, effects: list[Effect]) -> None:
        for effect in effects:
            link = self.channels.get(effect.channel)
            if link is None:
                continue
            if isinstance(effect, CloseChannel):
                link.cut(delivers=True)
            else:
                link.respond(effect.command)

    def _refuse(self, command: Command) -> Command | None:
        found = self.refusing.get(command.code)
        if found is None:
            return None
        code, left = found
        if left <= 1:
            del self.refusing[command.code]
        else:
            self.refusing[command.code] = (code, left - 1)
        self.world.note(f"the broker refused {RequestCode(command.code).name}")
        return command.response(code, remark="refused by the script")

    def _set_tick(self) -> None:
        due = max(self._core().next_deadline_ms(), self.stalled_until_ms, self.world.now_ms)
        if due < self._tick_at:
            self._tick_at = due
            self.world.at(due, self._tick, self.core, due)

    def _tick(self, core: BrokerCore, due: float) -> None:
        if core is not self.core or due != self._tick_at:
            self.world.steps -= 1  # nothing happened
            return
        self._tick_at = float("inf")
        if self.world.now_ms < self.stalled_until_ms:
            self._set_tick()
            return
        self._do(core.tick(int(self.world.now_ms) + 1))
        self._set_tick()

    # --- what the invariants ask --------------------------------------------------------------------------------

    def _check_offsets(self, asker: object) -> None:
        state = self._core().state
        self._offset_changes = state.offsets.changes
        for key in self.queues():
            self.truth.broker_offset(key, state.offsets.query(key[0], GROUP, key[1]), asker)

    def queues(self) -> list[QueueKey]:
        return [(TOPIC, number) for number in range(self.script.queues)] + [(RETRY_TOPIC, 0)]

    def max_offset(self, key: QueueKey) -> int:
        return self.store.max_offset(*key)

    def is_filtered(self, key: QueueKey, offset: int) -> bool:
        """Nobody gets this message: its tag is not subscribed."""
        return key[0] == TOPIC and self._unwanted[key[1]][offset]

    def committed(self, key: QueueKey) -> int | None:
        return self._core().state.offsets.query(key[0], GROUP, key[1])

    def numbers_in(self, key: QueueKey) -> list[int]:
        """The number of the message at each offset of a queue, from 0."""
        numbers: list[int] = []
        while len(numbers) < self.max_offset(key):
            fetched = self.store.get(*key, len(numbers), 32)
            numbers += [number_of(message.body) for message in decode_messages(fetched.body)]
        return numbers

    def letters(self) -> int:
        """How many dead letters there are, also of the same message."""
        return self.max_offset((DLQ_TOPIC, 0))

    def dead_letters(self) -> set[int]:
        return set(self.numbers_in((DLQ_TOPIC, 0)))

    # --- producers and operators --------------------------------------------------------------------------------

    def produce(self, queue_id: int) -> bool:
        """One numbered message by a producer of no interest here (it has no network); False when it was not taken."""
        if self.core is None:
            return False
        random = self.world.random
        size = random.randrange(4_000, 60_000) if random.random() < self.script.body_large else random.randrange(200)
        tag = random.choice("AAABBC")
        header = SendRequestV2(
            producer_group="p",
            topic=TOPIC,
            default_topic="TBW102",
            default_topic_queue_nums=self.script.queues,
            queue_id=queue_id,
            sys_flag=0,
            born_timestamp=int(self.world.now_ms),
            flag=0,
            properties=encode_properties({"TAGS": tag} | self._key_property()),
        )
        body = body_of(self._number, size)
        command = Command(RequestCode.SEND_MESSAGE_V2, header.to_fields(), body)
        effects = self.core.handle(int(self.world.now_ms), 0, "10.9.9.9:1", command)
        if _succeeded(effects, 0, command):
            self.sent[self._number] = tag
            self._unwanted[queue_id].append(bool(self._tags) and tag not in self._tags)
        self._number += 1
        self._do(effects)
        self._set_tick()
        return True

    def _key_property(self) -> dict[str, str]:
        random = self.world.random
        if self.script.order != "key" or random.random() < 0.1:
            return {}
        return {"KEYS": f"k{random.randrange(self.script.keys)}"}

    def key_in(self, record: bytes) -> bytes | None:
        """The key property of a stored record; None when it has none, or none that can be found out."""
        info = record_info(record)
        if has_deadly_key(number_of(record[info.body_start : info.body_start + 8]), self.script):
            return None
        return find_property(record[info.properties_start : info.end], b"KEYS")

    def lane(self, key: QueueKey, offset: int) -> Hashable | None:
        """Which lane the message at that offset belongs to, None = it is in no order."""
        if self.script.order == "queue":
            return key
        self._learn_keys(key)
        found = self._keys[key][offset]
        return None if found is None else (*key, found)

    def _learn_keys(self, key: QueueKey) -> None:
        known = self._keys.setdefault(key, [])
        while self.core is not None and len(known) < self.max_offset(key):
            body = self.store.get(*key, len(known), 32).body
            positions, _ = walk(body)
            known += [self.key_in(body[at:end]) for at, end in pairwise(positions)]

    def reset(self, key: QueueKey, offset: int) -> bool:
        """An operator moves the group's offset of one queue; it is answered to the next pull, or the members are told."""
        if self.core is None:
            return False
        if self.script.pushes_resets:
            return self._push_reset(key, offset)
        header = ResetOffset(topic=key[0], group=GROUP, timestamp=-1, is_force=True, queue_id=key[1], offset=offset)
        command = Command(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header.to_fields())
        effects = self.core.handle(int(self.world.now_ms), 0, "10.9.9.9:2", command)
        if not _succeeded(effects, 0, command):
            return False
        self.truth.reset(key, offset)
        self._check_offsets(None)
        return True

    def _push_reset(self, key: QueueKey, offset: int) -> bool:
        """All members that are connected are told to begin there; False when nobody is."""
        mq = MessageQueue(key[0], BROKER, key[1])
        header = ResetOffset(topic=key[0], group=GROUP, timestamp=-1, is_force=True)
        command = Command(
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET, header.to_fields(), ResetOffsetBody({mq: offset}).encode()
        )
        for link in self.channels.values():
            link.respond(command)
        return bool(self.channels)


def _succeeded(effects: list[Effect], channel: int, command: Command) -> bool:
    return any(
        effect.channel == channel
        and not isinstance(effect, CloseChannel)
        and effect.command.is_response
        and effect.command.opaque == command.opaque
        and effect.command.code == ResponseCode.SUCCESS
        for effect in effects
    )
