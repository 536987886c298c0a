"""A driver for the pure core: requests in, answers out, a clock moved by hand, restarts on the same storage."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from rocketcrew.broker.config import BrokerConfig
from rocketcrew.broker.core import BrokerCore
from rocketcrew.broker.effects import CloseChannel, Effect, Push, Reply
from rocketcrew.broker.name_server import NameServerCore
from rocketcrew.broker.storage import MemoryStorage, Storage
from rocketcrew.remoting.bodies import ConsumerData, HeartbeatData, ProducerData, SubscriptionData
from rocketcrew.remoting.codes import FLAG_ONEWAY, PULL_SUBSCRIPTION, PULL_SUSPEND, RequestCode
from rocketcrew.remoting.command import Command
from rocketcrew.remoting.fields import Header
from rocketcrew.remoting.headers import PullRequest, ResetOffset, SendBack, SendRequestV2
from rocketcrew.remoting.properties import encode_properties
from rocketcrew.remoting.stored import StoredMessage, decode_messages

sys.path.insert(0, str(Path(__file__).parent))  # recorded_disk.py, refusing_disk.py

START_MS = 1_700_000_000_000


class Driver:
    """One broker core and its name server core, driven by hand."""

    def __init__(self, config: BrokerConfig, storage: Storage) -> None:
        self.config = config
        self.storage = storage
        self.now_ms = START_MS
        self.opaque = 0
        self.effects: list[Effect] = []
        self.in_one_turn = False  # else each request has a turn of the loop of its own
        self.start()

    def start(self) -> None:
        self.name_server = NameServerCore()
        self.core = BrokerCore(self.config, self.storage, Random(7), self.name_server, self.now_ms)

    def crash(self, torn_log: bytes = b"") -> None:
        """Lose what a kill loses, then start again on the rest."""
        assert isinstance(self.storage, MemoryStorage)
        self.storage.crash(torn_log)
        self.start()

    def request(
        self,
        code: int,
        header: Header | None = None,
        body: bytes = b"",
        channel: int = 1,
        flag: int = 0,
        version: int = 475,
    ) -> list[Effect]:
        if not self.in_one_turn:
            self.core.begin_turn()
        self.opaque += 1
        command = Command(code, header.to_fields() if header else {}, body, self.opaque, flag, version=version)
        self.effects = self.core.handle(self.now_ms, channel, f"127.0.0.1:{40000 + channel}", command)
        return self.effects

    def call(self, code: int, header: Header | None = None, body: bytes = b"", **more: Any) -> Command:
        """The one answer to a request; other effects are in `effects`."""
        self.request(code, header, body, **more)
        answers = [
            effect.command
            for effect in self.effects
            if isinstance(effect, Reply) and effect.command.opaque == self.opaque
        ]
        assert len(answers) == 1, self.effects
        assert answers[0].is_response
        return answers[0]

    def ask_name_server(
        self, code: int, header: Header | None = None, body: bytes = b"", version: int = 475
    ) -> Command:
        command = Command(code, header.to_fields() if header else {}, body, 99, version=version)
        (effect,) = self.name_server.handle(self.now_ms, 1, "127.0.0.1:40001", command)
        assert isinstance(effect, Reply)
        assert effect.command.opaque == 99
        return effect.command

    def later(self, ms: int) -> list[Effect]:
        self.now_ms += ms
        self.effects = self.core.tick(self.now_ms)
        return self.effects

    def give_room(self, channel: int) -> list[Effect]:
        """A turn of the loop in which a connection has room."""
        self.core.begin_turn()
        return self.core.channel_room(channel)

    # What clients do

    def send(
        self, topic: str = "T", body: bytes = b"x", tag: str | None = None, queue_id: int = 0, **more: Any
    ) -> Command:
        properties = more.pop("properties", {}) | ({"TAGS": tag} if tag else {})
        code = more.pop("code", RequestCode.SEND_MESSAGE_V2)
        fields: dict[str, Any] = {
            "producer_group": "pg",
            "topic": topic,
            "default_topic": "TBW102",
            "default_topic_queue_nums": 4,
            "queue_id": queue_id,
            "sys_flag": 0,
            "born_timestamp": self.now_ms - 1,
            "flag": 0,
            "properties": encode_properties(properties),
        }
        version = more.pop("version", 475)
        return self.call(code, SendRequestV2(**(fields | more)), body, version=version)

    def heartbeat(self, group: str = "g", subscriptions: dict[str, str] | None = None, **more: Any) -> Command:
        wanted = {"T": "*"} if subscriptions is None else subscriptions
        version = more.pop("sub_version", 1)
        model = more.pop("model", "CLUSTERING")
        consumer = ConsumerData(
            group,
            message_model=model,
            subscription_data_set=tuple(SubscriptionData.of(topic, tags, version) for topic, tags in wanted.items()),
        )
        data = HeartbeatData(more.pop("client_id", "c1"), (ProducerData("pg"),), (consumer,))
        return self.call(RequestCode.HEART_BEAT, body=data.encode(), **more)

    def pull_header(
        self, offset: int = 0, topic: str = "T", queue_id: int = 0, group: str = "g", **more: Any
    ) -> PullRequest:
        subscription = more.pop("tags", "*")
        suspend = PULL_SUSPEND if more.pop("hold_ms", None) is not None else 0
        header = PullRequest(
            group, topic, queue_id, offset, 32, PULL_SUBSCRIPTION | suspend, 0, 15_000, 0, subscription
        )
        return replace(header, **more)

    def pull(self, offset: int = 0, **more: Any) -> Command:
        return self.call(RequestCode.PULL_MESSAGE, self.pull_header(offset, **more))

    def hold(self, offset: int = 0, channel: int = 1, **more: Any) -> int:
        """A pull that must not be answered now; returns its opaque."""
        header = self.pull_header(offset, hold_ms=15_000, **more)
        assert self.request(RequestCode.PULL_MESSAGE, header, channel=channel) == []
        return self.opaque

    def read(self, topic: str = "T", queue_id: int = 0, group: str = "reader") -> list[StoredMessage]:
        """All messages of a queue."""
        messages: list[StoredMessage] = []
        while (answer := self.pull(len(messages), topic=topic, queue_id=queue_id, group=group)).code == 0:
            messages += decode_messages(answer.body)
        return messages

    def send_back(self, message: StoredMessage, group: str = "g", delay_level: int = 1, **more: Any) -> Command:
        header = SendBack(message.physical_offset, group, delay_level, max_reconsume_times=more.pop("limit", 16))
        return self.call(RequestCode.CONSUMER_SEND_MSG_BACK, header, **more)

    def reset(self, **more: Any) -> Command:
        """An administrator's reset, of all queues of T for g to their beginnings unless said otherwise."""
        values: dict[str, Any] = {"topic": "T", "group": "g", "timestamp": 0, "is_force": True}
        return self.call(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ResetOffset(**(values | more)))

    def oneway(self, code: int, header: Header) -> list[Effect]:
        return self.request(code, header, flag=FLAG_ONEWAY)


def pushes(effects: list[Effect]) -> list[tuple[int, Command]]:
    return [(effect.channel, effect.command) for effect in effects if isinstance(effect, Push)]


def replies(effects: list[Effect]) -> list[tuple[int, Command]]:
    return [(effect.channel, effect.command) for effect in effects if isinstance(effect, Reply)]


def closed(effects: list[Effect]) -> list[int]:
    return [effect.channel for effect in effects if isinstance(effect, CloseChannel)]


class Tools:
    """The functions above, for tests (a conftest cannot be imported)."""

    pushes = staticmethod(pushes)
    replies = staticmethod(replies)
    closed = staticmethod(closed)


@pytest.fixture
def tools() -> type[Tools]:
    return Tools


@pytest.fixture
def make() -> Callable[..., Driver]:
    def make_driver(storage: Storage | None = None, **settings: Any) -> Driver:
        settings.setdefault("message_delay_level", "200ms 500ms 1s")
        return Driver(BrokerConfig(**settings), storage if storage is not None else MemoryStorage())

    return make_driver


@pytest.fixture
def broker(make: Callable[..., Driver]) -> Driver:
    return make()
