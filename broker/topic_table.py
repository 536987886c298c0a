"""Topics: which exist, with how many queues, and who may use them (BR/topic/TopicConfigManager.java).

The text form is `config/topics.json` as the genuine broker writes it. Every change is a line of a journal at once, before the
message that caused it is stored: a record in the log whose topic is not known belongs to a deleted topic. The table takes
the lines over each second.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from ..remoting.admin_bodies import DataVersion, TopicConfig, TopicConfigTable
from ..remoting.codes import PERM_INHERIT, PERM_READ, PERM_WRITE
from ..remoting.errors import ProtocolError
from ..remoting.fastjson import dumps, loads
from ..remoting.names import DEFAULT_TOPIC, SCHEDULE_TOPIC, is_of_group
from .table_text import TableText

TOPICS_TABLE = "config/topics.json"
MAKER_TABLE = "config/broker.json"
"""The name of the broker that made the store; a genuine broker's has none until it was served here."""
SELF_TEST_TOPIC = "SELF_TEST_TOPIC"
OFFSET_MOVED_TOPIC = "OFFSET_MOVED_EVENT"
TIMER_TOPIC = "rmq_sys_wheel_timer"
_MEMBERS_PREFIX = "rmq_sys_SYNC_BROKER_MEMBER_"
TRANSACTION_TOPICS = ("RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC")
TOPIC_MAX_CHARS = 127
RETRY_TOPIC_MAX_CHARS = 255
READ_WRITE = PERM_READ | PERM_WRITE

# Nobody may send to these (TopicValidator.NOT_ALLOWED_SEND_TOPIC_SET, and that of the timers).
CLOSED_TOPICS = frozenset({SCHEDULE_TOPIC, TIMER_TOPIC, SELF_TEST_TOPIC, OFFSET_MOVED_TOPIC, *TRANSACTION_TOPICS})
_NAME = re.compile(r"[%|a-zA-Z0-9_-]+")


def readable(topic: TopicConfig) -> bool:
    return bool(topic.perm & PERM_READ)


def writable(topic: TopicConfig) -> bool:
    return bool(topic.perm & PERM_WRITE)


def illegal_topic(name: str) -> str | None:
    """What is wrong with a topic name, None when nothing is (CO/topic/TopicValidator.java)."""
    chars_max = RETRY_TOPIC_MAX_CHARS if is_of_group(name) else TOPIC_MAX_CHARS
    if not name.strip():
        return "The specified topic is blank."
    if _NAME.fullmatch(name) is None:
        return "The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
    if len(name) > chars_max:
        return f"The specified topic is longer than topic max length {chars_max}."
    return None


def system_topics(broker: str, cluster: str, delay_levels: int, auto_create: bool) -> list[TopicConfig]:
    """The topics that a broker has from its first start (TopicConfigManager's constructor)."""
    topics = [
        TopicConfig(SELF_TEST_TOPIC, 1, 1),
        TopicConfig("BenchmarkTest", 1024, 1024),
        TopicConfig(cluster, 16, 16, PERM_INHERIT | READ_WRITE),
        TopicConfig(broker, 1, 1, PERM_INHERIT | READ_WRITE),
        TopicConfig(OFFSET_MOVED_TOPIC, 1, 1),
        TopicConfig(SCHEDULE_TOPIC, delay_levels, delay_levels),
        TopicConfig(TIMER_TOPIC, 1, 1),
        TopicConfig(f"{cluster}_REPLY_TOPIC", 1, 1),
        *(TopicConfig(name, 1, 1) for name in TRANSACTION_TOPICS),
    ]
    if auto_create:
        topics.append(TopicConfig(DEFAULT_TOPIC, 8, 8, PERM_INHERIT | READ_WRITE))
    return topics


def maker_text(broker: str) -> bytes:
    """What `MAKER_TABLE` has in the store of this broker."""
    return dumps({"brokerName": broker})


def maker_in(text: bytes) -> str:
    """The name in a `MAKER_TABLE`; empty when it has none that can be read."""
    try:
        return str(loads(text)["brokerName"])
    except (ProtocolError, ValueError, LookupError, TypeError):
        return ""


def makers_in(text: bytes) -> tuple[list[str], bool]:
    """The names that the broker may have that wrote this `TOPICS_TABLE`, and whether it is certain to have one of them: where
    5.x says it in the name of a system topic. Else these are of each topic as brokers make one of their own name, which is
    read and written unless brokerTopicEnable=false; a user's may look the same. None when the table cannot be read."""
    try:
        topics = TopicConfigTable.decode(text).topic_config_table
    except ProtocolError:
        return [], False
    told = sorted(name.removeprefix(_MEMBERS_PREFIX) for name in topics if name.startswith(_MEMBERS_PREFIX))
    looks = sorted(
        name
        for name, topic in topics.items()
        if topic.perm in (PERM_INHERIT, PERM_INHERIT | READ_WRITE)
        and topic.read_queue_nums == topic.write_queue_nums == 1
        and name != DEFAULT_TOPIC
    )
    return told or looks, bool(told)


class TopicTable:
    """All topics by name; `changes` grows with every change."""

    def __init__(self, system: list[TopicConfig]) -> None:
        self.changes = 0
        self.changed_ms = 0
        self._topics = {topic.topic_name: topic for topic in system}
        self._system = frozenset(self._topics)
        self._of_groups: dict[str, None] = {}  # the oldest first
        self._text = TableText("topicConfigTable")

    def __len__(self) -> int:
        return len(self._topics)

    def __contains__(self, name: str) -> bool:
        return name in self._topics

    def get(self, name: str) -> TopicConfig | None:
        return self._topics.get(name)

    def all(self) -> list[TopicConfig]:
        return list(self._topics.values())

    def names(self) -> list[str]:
        return sorted(self._topics)

    @property
    def of_groups_count(self) -> int:
        return len(self._of_groups)

    def of_groups(self) -> Iterator[str]:
        """Retry and dead-letter topics, the oldest first."""
        return iter(self._of_groups)

    def is_system(self, name: str) -> bool:
        return name in self._system

    def put(self, now_ms: int, topic: TopicConfig) -> bool:
        """Create or replace a topic; False when it was exactly so already."""
        if self._topics.get(topic.topic_name) == topic:
            return False
        self._topics[topic.topic_name] = topic
        if is_of_group(topic.topic_name):
            self._of_groups[topic.topic_name] = None
        self._changed(now_ms)
        return True

    def remove(self, now_ms: int, name: str) -> bool:
        if name not in self._topics:
            return False
        del self._topics[name]
        self._of_groups.pop(name, None)
        self._changed(now_ms)
        return True

    def _changed(self, now_ms: int) -> None:
        self.changes += 1
        self.changed_ms = now_ms

    @property
    def version(self) -> DataVersion:
        return DataVersion(0, self.changed_ms, self.changes)

    def table(self) -> TopicConfigTable:
        """All topics with the version of this table."""
        return TopicConfigTable(dict(self._topics), self.version)

    def dump(self) -> bytes:
        """The text of `table`, as topics.json and admin tools (request 21) have it."""
        return self._text.encode(self.version, self._topics)

    def journal_line(self, name: str, log_end: int) -> bytes:
        """What the journal says after a change of the topic `name`: what it is now, or that it is gone, and where the log
        ended then."""
        topic = self._topics.get(name)
        table = TopicConfigTable({} if topic is None else {name: topic}, self.version)
        return b"%s\t%s\t%020d\n" % (name.encode(), table.encode(), log_end)

    def replay(self, lines: Iterable[tuple[bytes, bool]]) -> tuple[dict[str, int], int]:
        """Take over the `whole_lines` of a journal; a damaged one does not count.

        Returns the topics that were deleted, and where the log ended then; and how many lines are damaged.
        """
        removals: dict[str, int] = {}
        damaged = 0
        for line, is_after_line in lines:
            written, tab, text = line.partition(b"\t")
            name = written.decode(errors="replace")
            text, _, log_end = text.partition(b"\t")
            try:
                table = TopicConfigTable.decode(text)
            except ProtocolError:
                damaged += 1
                continue
            damaged += not is_after_line
            if not tab or not log_end.isdigit() or table.topic_config_table.keys() - {name}:
                damaged += 1
                continue
            if name in self._system:
                continue
            if not table.topic_config_table:
                removals[name] = int(log_end)
            self.changes = max(self.changes, table.data_version.counter)
            self.changed_ms = max(self.changed_ms, table.data_version.timestamp)
            self._topics.pop(name, None)
            self._topics.update(table.topic_config_table)
        self._of_groups = dict.fromkeys(filter(is_of_group, self._topics))
        return removals, damaged

    def load(self, text: bytes) -> None:
        """Take over what `dump` wrote, system topics on top. Raises ProtocolError when it is something else."""
        loaded = TopicConfigTable.decode(text)
        self.changes = loaded.data_version.counter
        self.changed_ms = loaded.data_version.timestamp
        self._topics |= {name: topic for name, topic in loaded.topic_config_table.items() if name not in self._system}
        self._of_groups = dict.fromkeys(filter(is_of_group, self._topics))
