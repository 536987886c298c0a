"""An embedded broker in a thread of the test's process: real sockets on free ports of 127.0.0.1, everything in memory.

So producers, consumers and other processes reach it as any broker, while the test plants faults in it and looks into it.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Final, Self, TypeVar

from ..broker.config import BrokerConfig
from ..broker.edge import WallClock
from ..broker.refusal import Refused
from ..broker.server import EmbeddedBroker
from ..broker.topic_table import illegal_topic
from ..client.loop_thread import LoopThread
from ..client.validation import check_group, check_topic
from ..conf.settings import way_to_own_broker
from ..remoting.admin_bodies import TopicConfig
from ..remoting.arguments import FILLED, NONE, TEXT, check, instance, near, plain, whole
from ..remoting.errors import UsageError
from ..remoting.names import DLQ_PREFIX, RETRY_PREFIX
from ..remoting.stored import encode_message
from ..workers.message import Message
from ..workers.packets import QueueInfo
from .faults import Faults

T = TypeVar("T")

QUEUES_MAX: Final = 1024
"""Of a topic of a test: a mistyped number of queues takes the broker's memory and minutes."""


class LocalBroker:
    """A name server and a broker; a context manager. `delay_levels` as message_delay_level, such as "100ms 1s 5s"."""

    def __init__(self, *, delay_levels: str | None = None, config: BrokerConfig | None = None) -> None:
        rules = {"delay_levels": TEXT | NONE, "config": instance(BrokerConfig, "a BrokerConfig") | NONE}
        check("LocalBroker", {"delay_levels": delay_levels, "config": config}, rules)
        self._clock = WallClock()
        self._broker = EmbeddedBroker(delay_levels=delay_levels, config=config, clock_ms=self._clock)
        self._thread = LoopThread("rocketcrew-broker")
        self._closed = False
        self._names = itertools.count(1)
        self._groups: set[str] = set()
        """Names that `group` has given out: of these nobody need have heard."""
        self.faults = Faults(self._broker.intercepts, self._broker.name_server_intercepts)
        try:
            self._run(self._broker.start)
        except BaseException:
            self._thread.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def name_server(self) -> str:
        """ "host:port" of the name server, for -n and name_servers=."""
        return self._broker.name_server

    @property
    def address(self) -> str:
        """ "host:port" of the broker."""
        return self._broker.address

    @property
    def settings(self) -> dict[str, object]:
        """For settings= beside name_servers=: in place of what a configuration says of the way into a cluster (TLS, an
        account, the VIP port), which does not lead to this broker."""
        config = self._broker.config
        return way_to_own_broker(tls=bool(config.tls_cert_path), account=bool(config.acl_file))

    # --- topics and messages ------------------------------------------------------------------------------------

    def topic(self, name: str = "topic", *, queues: int = 4) -> str:
        """A new topic with a name that no other test has: `name` with a number behind it."""
        rules = {"name": FILLED, "queues": whole(1, QUEUES_MAX)}
        taken = check("topic", {"name": name, "queues": queues}, rules)
        topic = f"{taken['name']}-{next(self._names)}"
        self._call(lambda: self._create(topic, taken["queues"]))
        return topic

    def group(self, name: str = "group") -> str:
        """The name of a group that no other test has."""
        taken = check("group", {"name": name}, {"name": FILLED})
        group = f"{taken['name']}-{next(self._names)}"
        check_group(group)
        self._groups.add(group)
        return group

    def _create(self, topic: str, queues: int) -> None:
        if illegal_topic(topic) is not None:
            raise UsageError(
                f"topic {topic!r} cannot be made: letters, digits, %, |, - and _ are possible, 127 at most"
            )
        try:
            self._broker.core.state.make_topic(self._clock(), TopicConfig(topic, queues, queues))
        except Refused as refused:
            raise UsageError(refused.remark) from None

    def messages(self, topic: str) -> list[Message]:
        """All messages that the topic has now, queue by queue. Raises UsageError for a topic that is not there."""
        check_topic(topic)
        return self._call(lambda: self._read(plain(topic)))

    def dead_letters(self, group: str) -> list[Message]:
        """All messages in the dead-letter topic of the group. Raises UsageError for a group that nobody has heard of."""
        check_group(group)
        return self.messages(DLQ_PREFIX + plain(group))

    def _read(self, topic: str) -> list[Message]:
        self._check_exists(topic)
        store, found = self._broker.core.state.store, list[Message]()
        for queue_id in store.queue_ids(topic):
            queue = QueueInfo(topic.removeprefix(RETRY_PREFIX), topic, self._broker.config.name, queue_id)
            for offset in range(store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)):
                record = store.message_in(topic, queue_id, offset)
                if record is not None:
                    found.append(Message(encode_message(record), 0, queue))
        return found

    def _check_exists(self, topic: str) -> None:
        """Of a mistyped name nothing is there, and a test that wants nothing to be there would pass for it."""
        state = self._broker.core.state
        if topic in state.topics:
            return
        for prefix in (DLQ_PREFIX, RETRY_PREFIX):  # made when something is put there
            if topic.startswith(prefix):
                self._check_known(topic.removeprefix(prefix))
                return
        names = [name for name in state.topics.names() if not (name.startswith("%") or state.topics.is_system(name))]
        raise UsageError(
            f"this broker has no topic {topic} (one is made by topic(), or by the first message to it){near(topic, names)}"
        )

    def _check_known(self, group: str) -> None:
        state = self._broker.core.state
        known = self._groups.union(state.groups.names())
        if group not in known and not state.offsets.has_group(group):
            raise UsageError(
                f"this broker knows no group {group} (one is known by group(), or by its first member){near(group, known)}"
            )

    # --- life ---------------------------------------------------------------------------------------------------

    def kill(self) -> None:
        """End as a killed process does: connections are cut, what was not saved is gone. `start` brings it back."""
        self._run(self._broker.crash)

    def start(self) -> None:
        """Start again after `kill`, on the same ports, with what it had saved; does nothing while it runs."""
        if not self._broker.is_running:
            self._run(self._broker.start)

    def restart(self) -> None:
        """Kill it and start it again."""
        self.kill()
        self.start()

    def close(self) -> None:
        """Stop it and its thread. Idempotent; in a fork of its process, nothing."""
        if self._closed or self._thread.process.is_elsewhere:
            return
        self._closed = True
        try:
            self._run(self._broker.stop)
        finally:
            self._thread.close()

    def _run(self, make: Callable[[], Awaitable[T]]) -> T:
        return self._thread.run(_awaited(make))

    def _call(self, function: Callable[[], T]) -> T:
        """In the broker's thread: it alone touches its state. Raises UsageError while there is none."""
        if self._closed or not self._broker.is_running:
            remedy = "make a new one" if self._closed else "start() it first"
            raise UsageError(f"the broker is not running: {remedy}")

        async def call() -> T:
            return function()

        return self._thread.run(call())


async def _awaited(make: Callable[[], Awaitable[T]]) -> T:
    return await make()
