"""A power cut at any moment: with `flush = sync` nothing that was acknowledged is lost, and without syncs it would be.

A broker core on a recorded disk gets sends, delayed ones and timers too, checkpoints and new topics; between any two changes
of the disk the power may be cut. Then a start on what is left must have each acknowledged message at its offset, and nothing
damaged among them. A group pops, and acknowledges some: what it did not acknowledge is shown to it after the cut, and all
after a reset of its offsets was answered. Some of these starts are gone on with, so that starts are cut short too.
"""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest
from recorded_disk import RecordedDisk

from rocketcrew.broker.config import BrokerConfig
from rocketcrew.broker.core import BrokerCore
from rocketcrew.broker.disk import DiskStorage
from rocketcrew.broker.effects import Effect, Reply
from rocketcrew.broker.syncing import DiskCalls
from rocketcrew.remoting.admin_bodies import SubscriptionGroupConfig
from rocketcrew.remoting.check_points import check_point_of, start_offsets
from rocketcrew.remoting.codes import RequestCode
from rocketcrew.remoting.command import Command
from rocketcrew.remoting.headers import ResetOffset, SendRequestV2
from rocketcrew.remoting.pop_headers import INIT_MIN, AckRequest, PopRequest, PopResponse
from rocketcrew.remoting.properties import encode_properties
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.remoting.stored import decode_messages, walk

CASES, FULL_CASES = 300, 10_000
ACTIONS = 40  # of one broker, before its last cut
CUTS_EACH = 10  # of those that one broker's life is cut at
T0 = 1_700_000_000_000
QUEUES = 2
GROUP = "g" * 100  # so that the journal of POP has several pages
INVISIBLE_MS = 700
RESET = 1 << 30  # its opaque
SETTINGS = {"mapped_file_size_commit_log": 6_000, "message_delay_level": "200ms 500ms", "checkpoint_interval_ms": 300}


class Dead(Exception):
    """The power is gone."""


class NoDisk(DiskCalls):
    """For a start that is only looked at."""

    def fsync(self, fd: int) -> None:
        pass

    def fdatasync(self, fd: int) -> None:
        pass


@dataclass
class Kept:
    """What a power cut must leave: each acknowledged message (number -> topic, queue, offset), and the log up to
    `flushed_at`; `aside` was damaged by earlier cuts. Of `done` the group has acknowledged one at least."""

    acknowledged: dict[int, tuple[str, int, int]] = field(default_factory=dict)
    flushed_at: int = 0
    aside: frozenset[str] = frozenset()
    done: set[int] = field(default_factory=set)

    def copy(self) -> Kept:
        return Kept(dict(self.acknowledged), self.flushed_at, self.aside, set(self.done))


class Life:
    """One broker from its start to the cut."""

    def __init__(self, folder: Path, random: Random, kept: Kept, *, keeps: bool) -> None:
        self.random = random
        self.kept = kept
        self.numbers: dict[int, int] = {}
        self.done_since_reset: set[int] | None = None  # while one waits for its answer
        self.now_ms = T0 + len(kept.acknowledged) * 1_000
        self.disk = RecordedDisk(folder, keeps=keeps)
        self.end = contextlib.ExitStack()
        self.folder = folder

    def start(self) -> None:
        ahead_bytes = self.random.choice((0, 2_000, 5_000))
        self.storage = DiskStorage(self.folder, calls=self.disk, has_thread=False, ahead_bytes=ahead_bytes)
        self.end.callback(self.storage.abandon)
        self.core = BrokerCore(BrokerConfig(**SETTINGS), self.storage, Random(1), now_ms=self.now_ms)
        self.core.state.saved_timers.journal.whole_after_min = 2
        self.core.state.pops.journal.whole_after_min = self.random.choice((5, 10_000))
        self.kept.flushed_at = self.core.state.store.flushed
        self.kept.aside = frozenset(log_parts(self.storage))

    def hear(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Reply) and effect.command.opaque == RESET:
                assert effect.command.code == 0, effect.command
                assert self.done_since_reset is not None
                self.kept.done, self.done_since_reset = self.done_since_reset, None
            if isinstance(effect, Reply) and effect.command.opaque in self.numbers:
                answer = effect.command
                number = self.numbers[answer.opaque]
                assert answer.code == 0, answer
                where = "T" if number % 7 else "later", int(answer.fields["queueId"]), int(answer.fields["queueOffset"])
                self.kept.acknowledged[number] = where
        self.kept.flushed_at = self.core.state.store.flushed

    def act(self) -> None:
        chance = self.random.random()
        if chance < 0.02 and "T" in self.core.state.topics and self.done_since_reset is None:
            self.reset()
        elif chance < 0.45:
            self.send()
        elif chance < 0.6:
            self.pop()
        elif chance < 0.75:
            self.now_ms += self.random.choice((1, 250, 1_100))
            self.hear(self.core.tick(self.now_ms))
        elif chance < 0.85:
            self.core.begin_flush()
        else:
            self.core.begin_flush()
            self.storage.syncer.work()
            self.hear(self.core.flushed(self.now_ms))

    def pop(self) -> None:
        for _ in range(8):
            for number, ack in pop(self.core, self.now_ms, 1):
                if self.random.random() < 0.5:
                    self.kept.done.add(number)
                    if self.done_since_reset is not None:
                        self.done_since_reset.add(number)
                    self.core.handle(self.now_ms, 2, "127.0.0.1:5", ack)

    def reset(self) -> None:
        self.done_since_reset = set()
        header = ResetOffset("T", GROUP, 0, is_force=True)
        command = Command(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header.to_fields(), b"", RESET)
        self.hear(self.core.handle(self.now_ms, 1, "127.0.0.1:4", command))

    def send(self) -> None:
        number = max([*self.kept.acknowledged, *self.numbers.values()], default=0) + 1
        self.numbers[number] = number
        wait = {} if number % 7 else {"DELAY": "1"} if number % 14 else {"TIMER_DELAY_MS": "300"}
        properties = {"KEYS": str(number)} | wait
        header = SendRequestV2(
            producer_group="pg", topic="T" if number % 7 else "later", default_topic="TBW102",
            default_topic_queue_nums=QUEUES, queue_id=number % QUEUES, sys_flag=0, born_timestamp=self.now_ms, flag=0,
            properties=encode_properties(properties),
        )  # fmt: skip
        body = body_of(number, self.random.choice((0, 10, 300, 3_000)))
        command = Command(RequestCode.SEND_MESSAGE_V2, header.to_fields(), body, number)
        self.hear(self.core.handle(self.now_ms, 1, "127.0.0.1:4", command))


def pop(core: BrokerCore, now_ms: int, most: int) -> list[tuple[int, Command]]:
    """The numbers of what the group pops, each with its acknowledgement."""
    core.state.groups.put(SubscriptionGroupConfig(GROUP))  # as members do by their heartbeats
    header = PopRequest(GROUP, "T", -1, most, INVISIBLE_MS, 0, now_ms, INIT_MIN, "TAG", "*")
    command = Command(RequestCode.POP_MESSAGE, header.to_fields(), b"", 0)
    effects = core.handle(now_ms, 2, "127.0.0.1:5", command)
    (answer,) = [effect.command for effect in effects if isinstance(effect, Reply) and effect.channel == 2]
    if answer.code != 0:
        return []
    said = PopResponse.from_fields(answer.fields)
    starts = start_offsets(said.start_offset_info)
    found: list[tuple[int, Command]] = []
    for position, message in zip(walk(answer.body)[0], decode_messages(answer.body), strict=False):
        check = check_point_of(answer.body, position, said, starts, MessageQueue("T", "broker-a", -1), GROUP)
        topic = check.queue("T", GROUP).topic
        ack = AckRequest(GROUP, topic, check.queue_id, check.encode(), check.offset, "broker-a")
        number = int(message.body.partition(b":")[0])
        found.append((number, Command(RequestCode.ACK_MESSAGE, ack.to_fields(), b"", 0)))
    return found


def log_parts(storage: DiskStorage) -> list[str]:
    """What was set aside of the log: of the journals a cut may leave some pages and not others."""
    return [name for name in storage.aside() if not name.startswith("config/")]


def body_of(number: int, length: int) -> bytes:
    return b"%d:" % number + (b"%d" % (number % 10)) * length


def look(folder: Path, kept: Kept, *, keeps: bool) -> set[int]:
    """Start on what is left; returns the acknowledged messages that are not there, whole and at their offsets."""
    storage = DiskStorage(folder, calls=NoDisk(), has_thread=False)
    now_ms = T0 + 10_000_000
    core = BrokerCore(BrokerConfig(**SETTINGS), storage, Random(1), now_ms=now_ms)
    found: dict[int, tuple[str, int, int]] = {}
    shown: set[int] = set()
    for _ in range(20):  # deliver what was delayed, show what was popped
        now_ms += 1_000
        core.tick(now_ms)
        while popped := pop(core, now_ms, 32):
            for number, ack in popped:
                shown.add(number)
                core.handle(now_ms, 2, "127.0.0.1:5", ack)
        core.begin_flush()
        storage.syncer.work()
        core.flushed(now_ms)
    for topic, queue_id in core.state.store.queue_keys():
        if topic not in {"T", "later"}:
            continue
        at = core.state.store.min_offset(topic, queue_id)
        while (fetched := core.state.store.get(topic, queue_id, at, 32)).next_offset > at:
            for message in decode_messages(fetched.body):
                number = int(message.body.partition(b":")[0])
                assert message.body == body_of(number, len(message.body) - len(body_of(number, 0)))
                found[number] = topic, queue_id, message.queue_offset
            at = fetched.next_offset
    for name in log_parts(storage):
        assert name in kept.aside or not keeps or is_new(name, kept), f"{name} was flushed: {kept}"
    storage.abandon()
    lost = {number for number in kept.acknowledged if number not in found}
    lost |= {number for number in kept.acknowledged if number % 7 and number not in shown | kept.done}
    # A delayed message is stored twice; the answer has the offset among the delayed ones.
    lost |= {number for number, where in kept.acknowledged.items() if number % 7 and found.get(number, where) != where}
    return lost


def is_new(name: str, kept: Kept) -> bool:
    """Whether damage begins in what was not flushed, or goes on where an earlier cut's began, as a BLANK does."""
    position = int(name.partition("-")[0])
    earlier = [[int(part) for part in other.split("-")] for other in kept.aside]
    return position >= kept.flushed_at or any(begin <= position <= begin + length for begin, length in earlier)


def cut_at_random(tmp_path: Path, seed: int, cases: int, keeps: bool = True) -> int:
    """Cut the power in so many cases; returns in how many of them something was lost."""
    random = Random(seed)
    losses = done = generation = 0
    base: Path | None = None
    known = Kept()
    while done < cases:
        generation += 1
        folder = tmp_path / f"life{generation}"
        if base is None:
            folder.mkdir()
            known = Kept()
        else:
            shutil.copytree(base, folder)
        life = Life(folder, random, known.copy(), keeps=keeps)
        left: list[tuple[Path, Kept]] = []

        def cut(life: Life = life, left: list[tuple[Path, Kept]] = left, generation: int = generation) -> None:
            if random.random() < 0.06:
                place = tmp_path / f"cut{generation}-{len(left)}"
                life.disk.cut(random, place)
                left.append((place, life.kept.copy()))
                if len(left) >= CUTS_EACH:
                    raise Dead

        life.disk.on_step = cut
        with contextlib.suppress(Dead):
            life.start()
            for _ in range(ACTIONS):
                life.act()
        life.disk.on_step = lambda: None
        life.end.close()
        if base is not None:
            shutil.rmtree(base)
        base = None
        for place, kept in left:
            if random.random() < 0.2 and base is None and keeps:
                base = tmp_path / f"base{generation}"
                shutil.copytree(place, base)
                known = kept
            lost = look(place, kept, keeps=keeps)
            assert not lost or not keeps, f"seed {seed}, {place.name}: lost {sorted(lost)}"
            losses += bool(lost)
            done += 1
            shutil.rmtree(place)
        shutil.rmtree(folder)
    return losses


@pytest.mark.parametrize("seed", range(4))
def test_what_was_acknowledged_survives_any_cut(tmp_path: Path, seed: int, full_numbers: bool) -> None:
    assert cut_at_random(tmp_path, seed, (FULL_CASES if full_numbers else CASES) // 4) == 0


def test_without_syncs_it_would_be_lost(tmp_path: Path) -> None:
    """The control: else the test above would prove nothing."""
    assert cut_at_random(tmp_path, 0, 40, keeps=False) > 10
