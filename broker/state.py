"""BrokerState: what all request handlers of one broker share, and the few steps that several of them take.

Handlers do not return effects of their own making; they append to two lists here, which the core drains after each
request: `notices` (requests of the broker's own, written before the answer, as the genuine broker does) and `arrivals`
(queues in which something can be read anew: held pulls are looked at after the answer was decided).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import NamedTuple

from ..remoting.admin_bodies import TopicConfig
from ..remoting.codes import FLAG_ONEWAY, RequestCode, ResponseCode
from ..remoting.command import Command
from ..remoting.errors import ProtocolError, UsageError
from ..remoting.headers import ConsumerIdsChanged
from ..remoting.ids import UniqueIds
from ..remoting.names import DEFAULT_TOPIC, DLQ_PREFIX, RETRY_PREFIX, SCHEDULE_TOPIC, is_of_group
from ..remoting.properties import (
    PROPERTIES_MAX_BYTES,
    PROPERTY_FIRST_POP_TIME,
    PROPERTY_TAGS,
    PROPERTY_TIMER_DEL_UNIQKEY,
    encode_properties,
)
from ..remoting.stored import StoredMessage
from .acl import Account
from .client_table import ClientTable
from .config import BrokerConfig
from .delay import DelayLevels, delay_level, redirect_to_schedule
from .effects import CloseChannel, Effect, Push
from .group_table import GroupTable
from .held_pops import Arrival
from .held_pulls import HeldPulls
from .journal import keep_damaged, whole_lines
from .lock_table import LockTable
from .long_answers import LongAnswers
from .message_store import LOG, MessageStore, QueueRebuilding, StoreBounds
from .name_server import NameServerCore, Registration
from .offset_table import OffsetTable
from .pop_table import InFlight, Key
from .pops import POPS_JOURNAL, POPS_TABLE, Pops, pop_retry_topic
from .put_get_stats import GROUP_GET_NUMS, TOPIC_PUT_NUMS, PutGetStats
from .refusal import Refused
from .removed_topics import REMOVED_JOURNAL
from .request_modes import MODES_TABLE, RequestModes
from .retention import HOLD_MS, AgeGuard
from .storage import Storage, StorageError
from .tags import message_tags_code, tags_hash
from .timers import (
    GENUINE_CHECKPOINT,
    TIMERS_JOURNAL,
    TIMERS_TABLE,
    SavedTimers,
    Timers,
    asks_for_timer,
    is_by_wall,
    redirect_to_timer,
    timer_due_ms,
)
from .topic_room import TopicRoom, groups_max
from .topic_table import (
    MAKER_TABLE,
    TIMER_TOPIC,
    TOPICS_TABLE,
    TopicTable,
    illegal_topic,
    maker_in,
    maker_text,
    system_topics,
)
from .transactions import GROUP as TRANSACTIONS_GROUP
from .transactions import Transactions, commit_positions, half_of

TOPICS_JOURNAL = "config/topics.journal"
JOURNAL_BYTES = 1 << 20
CLOCK_AHEAD_MAX_MS = 86_400_000  # how far the clock may have been set back since the last record
CLOCK_BACK_MAX_MS = 60_000  # more than that is said
GROUPS_TABLE = "config/subscriptionGroup.json"
OFFSETS_TABLE = "config/consumerOffset.json"
DELAYS_TABLE = "config/delayOffset.json"
ROOM_INTERVAL_MS = 60_000
POP_CK_MAX_BYTES = 128  # of a check point as a property, without the broker's name: seven numbers, name and separators


class Call(NamedTuple):
    """One request as a handler sees it."""

    now_ms: int
    channel: int
    address: str
    command: Command
    account: Account | None = None  # who signed it, where the broker has accounts


Heard = Callable[[Command | None], Command | None]
"""Takes a client's answer, None = none in time; gives what the administrator is answered, None = not yet."""


class Forwarded(NamedTuple):
    """A request that was passed on to a client for an administrator, and waits for its answer."""

    channel: int
    """The administrator's."""
    asked: int
    """The client's channel: an answer counts from there only."""
    deadline_ms: int
    heard: Heard


def no_offset_room() -> Refused:
    """Of a group more, where `BrokerState.has_offset_room` says no."""
    return Refused(ResponseCode.SYSTEM_BUSY, "this broker keeps the offsets of too many groups already: remove some")


class BrokerState:
    """The tables of one broker. Everything is bounded by the config or by the number of connections."""

    def __init__(
        self, config: BrokerConfig, storage: Storage, random: Random, name_server: NameServerCore | None = None
    ) -> None:
        self.config = config
        self.storage = storage
        self.random = random
        self.name_server = name_server
        levels_ms = config.delay_levels_ms
        self.topics = TopicTable(system_topics(config.name, config.cluster, len(levels_ms), config.auto_create_topic))
        self.groups = GroupTable(config.auto_create_group, groups_max(config.topics_max))
        self.offsets = OffsetTable()
        self.clients = ClientTable(config.channel_expiry_ms)
        self.locks = LockTable(config.lock_expiry_ms)
        self.held = HeldPulls(config.held_pulls_max)
        self.delays = DelayLevels(levels_ms)
        self.timers = Timers()
        self.saved_timers = SavedTimers(storage, self.timers)
        self.pops = Pops(storage, config.held_pulls_max)
        self.modes = RequestModes()
        self.transactions = Transactions(
            config.transaction_timeout_ms,
            config.retention_ms,
            config.transaction_check_interval_ms,
            config.transaction_checks_max,
        )
        host = config.announce or config.host
        bounds = StoreBounds(
            config.pull_messages_max,
            config.pull_bytes_max,
            config.pull_scan_entries_max,
            config.mapped_file_size_commit_log,
        )
        self.waits_for_disk = config.flush == "sync" and storage.has_disk
        self.store = MessageStore(storage, bounds, host, config.port, waits_for_disk=self.waits_for_disk)
        self.store.arrived = self._arrived
        self.room = TopicRoom(
            self.topics, self.groups, self.clients, self.offsets, self.store, self.delete_topics, config.topics_max
        )
        self.age_guard = AgeGuard(storage)
        self.ids = UniqueIds(host, 0, random.getrandbits(32))
        self._journal = storage.open(TOPICS_JOURNAL, JOURNAL_BYTES, buffered=False)
        self.events: list[tuple[str, dict[str, object]]] = []  # of the start, for the log
        self.notices: list[Effect] = []
        self.arrivals: deque[Arrival] = deque()
        self.full: set[int] = set()  # channels whose peer does not read what it got
        self.faults: deque[str] = deque(maxlen=16)  # of ours, for the log
        self.forwarded: dict[int, Forwarded] = {}
        self.long_answers = LongAnswers()
        self.accounts: dict[int, Account] = {}  # with an ACL: who signed the last heartbeat of each channel
        self.started_ms = 0
        self.now_ms = 0  # of the request or tick at hand
        self.clock_ahead_ms = 0
        """How far `now_ms`, which never goes back, is ahead of the machine's clock. Ages, and times that clients gave, go by
        the latter."""
        self._clock_back_said = False
        self._overdue: tuple[int, int] | None = None  # what `_overdue_from` found, and when it did first
        self.stats = PutGetStats()
        self.put_count = 0
        self.get_count = 0
        self._opaque = 0
        self._journal_flushing = self._journal_flushed = -1  # the journal's end as the last flush took it
        self._journal_saved = -1  # what the table of topics that was written last has of the journal
        self._saved_groups = -1
        self._saved_offsets = -1
        self._next_room_ms = 0
        self._positions: tuple[int, int, int] | None = None  # what has to be flushed for them; where a start must read

    # Start and keeping

    def recover(self, now_ms: int) -> int:
        """Read the tables and the log; returns how many records had to be read. Raises UsageError on a bad folder."""
        self.started_ms = now_ms
        known = self._load(TOPICS_TABLE, self.topics.load) and not self.events  # not of the generation before
        removals, damaged_topics = self.topics.replay(whole_lines(self._journal))
        if damaged_topics:  # any topic may have been in them
            known = False
            keep_damaged(self.storage, TOPICS_JOURNAL, self._journal)
        self._load(GROUPS_TABLE, self.groups.load)
        self._load(OFFSETS_TABLE, self.offsets.load)
        self._load(DELAYS_TABLE, self.delays.load)
        self._load(TIMERS_TABLE, self.timers.load)
        self._load(POPS_TABLE, self.pops.table.load)
        self._load(MODES_TABLE, self.modes.load)
        for event, damaged in (
            ("store.topics_journal_damaged", damaged_topics),
            ("store.timers_journal_damaged", self.saved_timers.replay()),
            ("store.pops_journal_damaged", self.pops.replay()),
        ):
            if damaged:
                self.events.append((event, {"lines": damaged}))
        self._saved_groups, self._saved_offsets = self.groups.changes, self.offsets.changes
        count = self.store.recover(
            self.topics.__contains__, self._tags_code, self._revivable, topics_lost=not known, removals=removals
        )
        if self.store.removed.damaged_lines:
            self.events.append(("store.deletions_journal_damaged", {"lines": self.store.removed.damaged_lines}))
        self.store.believe_times_until(now_ms + CLOCK_AHEAD_MAX_MS)
        has_records = self.store.log_end > self.store.log_start
        self.age_guard.start(now_ms, self.store.newest_ms, has_records=has_records)
        self._revive(now_ms)
        self.offsets.forget_topics(lambda topic: topic not in self.topics)  # a kill came before they were saved without
        self._clamp()
        while True:
            try:
                self.delays.start(self.store)
                self.timers.start(self.store, now_ms, self.storage.load(GENUINE_CHECKPOINT))
                self.transactions.start(self.store, self.offsets, now_ms)
                break
            except QueueRebuilding:  # each queue once at most: what is made anew agrees with the log
                while self.store.is_rebuilding:
                    self.store.rebuild_some()
        self.saved_timers.started()
        self.pops.started(now_ms, self._end_of)
        self.save_offsets(sync=True)  # those of topics that are gone: one may get the name of another
        if maker_in(self.storage.load(MAKER_TABLE) or b"") != self.config.name:
            self.storage.replace(MAKER_TABLE, maker_text(self.config.name), sync=True)
        self.storage.replace(TOPICS_TABLE, self.topics.dump(), sync=True)
        self._journal.reset(self._journal.end)
        self.register(now_ms)
        return count

    def _load(self, table: str, load: Callable[[bytes], None]) -> bool:
        """Read a table, or the generation before where the last one is empty or damaged; False when there is neither.

        Raises UsageError for a damaged one without a whole generation before. What is damaged is set aside.
        """
        text = self.storage.load(table)
        damaged: ProtocolError | None = None
        for content in (text, self.storage.load_previous(table)):
            if content is None or not content.strip(b"\0 \t\r\n"):
                continue
            try:
                load(content)
            except ProtocolError as error:
                damaged = damaged or error
                continue
            if content is not text:
                self.events.append(("store.previous_table_used", {"table": table, "reason": str(damaged or "empty")}))
                if text is not None:
                    self.storage.move_aside(table)
            return True
        if damaged is not None:
            raise UsageError(
                f"{table} in the broker's data folder cannot be read ({damaged}): put a good copy back, or remove it"
            ) from damaged
        if text is not None:
            self.events.append(("store.empty_table", {"table": table}))
        return False

    @staticmethod
    def _revivable(topic: str) -> bool:
        return illegal_topic(topic) is None

    def _revive(self, now_ms: int) -> None:
        """Make the topics anew that the log has messages of and no table knows any more."""
        lost = sorted({topic for topic, _ in self.store.queue_keys() if topic not in self.topics})
        for topic in lost:
            queues = max(*self.store.queue_ids(topic), self._default_queues() - 1) + 1
            self.topics.put(now_ms, TopicConfig(topic, queues, queues))
        if lost:
            self.events.append(("store.topics_revived", {"topics": len(lost), "first": lost[0]}))

    def _default_queues(self) -> int:
        default = self.topics.get(DEFAULT_TOPIC)
        return min(default.write_queue_nums, self.config.default_queues_max) if default else 1

    def _clamp(self) -> None:
        """Offsets above the end of the log are those of messages that a crash of the machine took."""
        lowered = self.offsets.clamp(self._end_of)
        if lowered:
            key, queue_id, was, end = lowered[0]
            first = f"{key} queue {queue_id}: {was} became {end}"
            self.events.append(("store.offsets_clamped", {"offsets": len(lowered), "first": first}))

    def _end_of(self, topic: str, queue_id: int) -> int | None:
        return self.store.max_offset(topic, queue_id) if topic in self.topics else None

    def _tags_code(self, message: StoredMessage) -> int:
        if message.topic == SCHEDULE_TOPIC:
            return self.delays.tags_code(message)
        return message_tags_code(message)

    def topics_changed(self, now_ms: int, *names: str) -> None:
        """Save the topics of these names, before anything is stored in a new one, and tell the name server.

        A line of the journal each; `save_topics` writes the whole table once in a while.
        """
        for name in names:
            self._journal.append(self.topics.journal_line(name, self.store.log_end))
        key = self.config.cluster, self.config.address
        server = self.name_server
        if server is not None and not all(
            server.change_topic(key, name, self.topics.get(name), self.topics.version) for name in names
        ):
            self.register(now_ms)

    def save_topics(self, *, sync: bool = False) -> None:
        """Write the whole table of topics if the journal has lines; when it is on the disk, `end_journal` empties it. Not
        before the disk knows all deletions: else the next topic of a name could get the messages of the one before."""
        if self._journal.end > self._journal.start and (sync or self._journal.end != self._journal_saved):
            self.storage.replace(TOPICS_TABLE, self.topics.dump(), sync=sync)
            self._journal_saved = self._journal.end

    def end_journal(self) -> None:
        """Begin the journal anew if the table has all that it says."""
        if self._journal_saved == self._journal.end and self.storage.is_saved(TOPICS_TABLE):
            self._journal_saved = -1
            self._journal.reset(self._journal.end)

    def register(self, now_ms: int) -> None:
        if self.name_server is not None:
            config = self.config
            self.name_server.register(
                now_ms,
                Registration(
                    cluster=config.cluster,
                    broker_name=config.name,
                    broker_id=0,
                    address=config.address,
                    table=self.topics.table(),
                    timeout_ms=4 * config.registration_interval_ms,
                ),
            )

    def expire_by_age(self, now_ms: int) -> int:
        """Drop what is older than the retention time; nothing while that is held up after a jump of the clock. Returns for
        how many ms more that is, 0 = it is not. Raises StorageError, also when all is dropped."""
        guard, retention_ms = self.age_guard, self.config.retention_ms
        wall_ms = now_ms - self.clock_ahead_ms
        is_back = self.clock_ahead_ms > CLOCK_BACK_MAX_MS
        if is_back and not self._clock_back_said:
            self.store.events.append(("store.clock_was_set_back", {"by_ms": self.clock_ahead_ms}))
        self._clock_back_said = is_back
        if guard.look(wall_ms, retention_ms):
            self.store.events.append(("store.nothing_expires_after_a_jump_of_the_clock", {"hold_ms": HOLD_MS}))
        if guard.may_expire(wall_ms):
            self.store.drop_older_than(wall_ms - retention_ms, self._overdue_from(now_ms))
        guard.save()
        return max(guard.hold_until_ms - wall_ms, 0)

    def _overdue_from(self, now_ms: int) -> int:
        """Where the oldest record is that is due and was not delivered yet; the log's end when there is none, or that was
        so for HOLD_MS: what cannot be delivered must not fill the disk."""
        store = self.store
        due = [(SCHEDULE_TOPIC, *head) for head in self.delays.overdue(now_ms)]
        first = self.timers.first_overdue(now_ms, self.clock_ahead_ms)
        if first is not None:
            due.append((TIMER_TOPIC, 0, first))
        positions: list[int] = []
        for topic, queue_id, offset in due:
            queue = store.queue(topic, queue_id)
            if queue is not None and queue.min_offset <= offset < queue.max_offset:
                try:
                    positions.append(store.entry(queue, offset)[0])
                except (StorageError, QueueRebuilding):
                    positions.append(store.log_start)
        position = min(positions, default=None)
        if position is None:
            self._overdue = None
            return store.log_end
        if self._overdue is None or self._overdue[0] != position:
            self._overdue = position, now_ms
        return position if now_ms - self._overdue[1] < HOLD_MS else store.log_end

    def save_tables(self, flushed: int) -> None:
        """Save groups and offsets if they changed since they were saved; the disk has `flushed` of what was `written`."""
        self._keep_positions(flushed)
        self.store.removed.save(self.store.log_start)
        self.pops.save(self.offsets, self._end_of, lambda topic, group: self.offset_refusal(topic, group) is None)
        self.save_groups()
        self.save_offsets()

    def save_groups(self, *, sync: bool = False) -> None:
        """Save the groups if they changed since they were saved; `sync` waits for the disk. Raises StorageError."""
        if self.groups.changes != self._saved_groups:
            self.storage.replace(GROUPS_TABLE, self.groups.dump(), sync=sync)
            self._saved_groups = self.groups.changes

    def save_offsets(self, *, sync: bool = False) -> None:
        """Save the offsets if they changed since they were saved; `sync` waits for the disk. Raises StorageError."""
        if self.offsets.changes != self._saved_offsets:
            self.storage.replace(OFFSETS_TABLE, self.offsets.dump(), sync=sync)
            self._saved_offsets = self.offsets.changes

    def offset_refusal(self, topic: str, group: str) -> Refused | None:
        """Why no offset of the group may be kept, None when one may: whoever commits, pulls or pops asks this.

        A member or an administrator must have made the group. One whose retry topic is there was made: a kill may take the
        settings of a group within a second, but not that topic.
        """
        if not self._is_made(group):
            return Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {group} not exist!")
        if not self.has_offset_room(topic, group):
            return no_offset_room()
        return None

    def _is_made(self, group: str) -> bool:
        return self.groups.known(group) is not None or RETRY_PREFIX + group in self.topics

    def has_offset_room(self, topic: str, group: str) -> bool:
        """Whether there is room for an offset. Where there is none, groups that nobody made give theirs up: the store of a
        genuine broker has offsets of any name. A look that finds few of them looks at all groups, so the next one is a while
        later."""
        if self.offsets.has_room(topic, group):
            return True
        if self.now_ms < self._next_room_ms:
            return False
        if not self.offsets.make_room(lambda name: name == TRANSACTIONS_GROUP or self._is_made(name)):
            self._next_room_ms = self.now_ms + ROOM_INTERVAL_MS
        return self.offsets.has_room(topic, group)

    def take_reset(self, topic: str, group: str, queue_id: int) -> int | None:
        """The pending reset of a queue, which is over then, also after a kill: else it would be repeated, and take back what
        the group has done since. Raises StorageError, and then it is pending still."""
        if self.offsets.pending_reset(topic, group, queue_id) is None:
            return None
        before = self.offsets.kept([(topic, group)])
        reset = self.offsets.take_reset(topic, group, queue_id)
        try:
            self.save_offsets(sync=True)
        except StorageError:
            self.offsets.put_back(before)
            raise
        return reset

    def _keep_positions(self, flushed: int) -> None:
        """Say from where a start must read for transactions, once the disk has the ends that this counts on."""
        self.transactions.drop_gone(self.store)
        self._commit_positions(flushed)
        if self._positions is None:
            found = self.transactions.positions(self.store)
            self._positions = None if found is None else (self.written, *found)
            self._commit_positions(flushed)

    def _commit_positions(self, flushed: int) -> None:
        if self._positions is not None and (self._positions[0] <= flushed or not self.storage.has_disk):
            commit_positions(self.offsets, *self._positions[1:])
            self._positions = None

    # Topics

    def make_topic(
        self, now_ms: int, topic: TopicConfig, code: int = ResponseCode.SYSTEM_ERROR, *, must_fit: bool = True
    ) -> TopicConfig:
        """The topic called so, made as `topic` when there is none. Raises Refused with `code` when it cannot be made. What
        was stored before has to go somewhere: a topic for that need not fit into the room, which so is exceeded by no more
        topics than messages waited."""
        name = topic.topic_name
        known = self.topics.get(name)
        if known is not None:
            return known
        wrong = illegal_topic(name)
        if wrong is not None:
            raise Refused(code, f"{wrong} It is {name}")
        full = self.room.refusal(now_ms, name) if must_fit else None
        if full is not None:
            raise Refused(code, full)
        self.put_topic(now_ms, topic)
        return topic

    def delete_topics(self, now_ms: int, names: list[str]) -> None:
        """Delete topics with all that is theirs. Raises StorageError: asked for again, it goes on."""
        have_offsets = any(self.offsets.groups_of(name) for name in names)
        for name in names:
            self.pops.forget(topic=name)  # first: one of that name that is made again has other messages at its offsets
            self.remove_topic(now_ms, name)
            self.store.remove_topic(name)
            self.offsets.forget_topic(name)
        if have_offsets:
            self.save_offsets(sync=True)  # before one of that name can have other messages at them

    def put_topic(self, now_ms: int, topic: TopicConfig) -> None:
        """Create or replace a topic. Raises StorageError, and then it is as before: unsaved topics hold no messages."""
        before = self.topics.get(topic.topic_name)
        if not self.topics.put(now_ms, topic):
            return
        try:
            self.topics_changed(now_ms, topic.topic_name)
        except StorageError:
            if before is None:
                self.topics.remove(now_ms, topic.topic_name)
            else:
                self.topics.put(now_ms, before)
            raise

    def remove_topic(self, now_ms: int, name: str) -> None:
        """Remove a topic if it is there; its queues are not touched. Raises StorageError, and then it is as before."""
        before = self.topics.get(name)
        if before is None:
            return
        self.topics.remove(now_ms, name)
        try:
            self.topics_changed(now_ms, name)
        except StorageError:
            self.topics.put(now_ms, before)
            raise

    def retry_topic(self, now_ms: int, group: str, queues: int) -> TopicConfig:
        """%RETRY%group, made when needed (TopicConfigManager.createTopicInSendMessageBackMethod)."""
        return self.make_topic(now_ms, TopicConfig(RETRY_PREFIX + group, queues, queues))

    def dlq_topic(self, now_ms: int, group: str) -> TopicConfig:
        return self.make_topic(now_ms, TopicConfig(DLQ_PREFIX + group, 1, 1))

    # Storing

    def accept(self, now_ms: int, message: StoredMessage, properties: dict[str, str]) -> StoredMessage:
        """Store a message that a client sent or sent back: by way of the schedule topic or that of the timers when it asks
        for a delay.

        `properties` are those of `message`, which must already be encoded in it. Raises StorageError, UsageError, Refused.
        """
        if asks_for_timer(properties) and self._redirect_to_timer(now_ms, message, properties):
            self._store(now_ms, message, message_tags_code(message))
            return message
        if delay_level(properties) > 0:
            level = redirect_to_schedule(message, properties, len(self.delays.levels_ms))
            due_ms = now_ms + self.delays.delay_ms(level)
            self.store.put(now_ms, message, due_ms)
            self._count_put(now_ms, message.topic)
            return message
        tags = properties.get(PROPERTY_TAGS)
        self._store(now_ms, message, tags_hash(tags) if tags else 0)
        return message

    def _redirect_to_timer(self, now_ms: int, message: StoredMessage, properties: dict[str, str]) -> bool:
        """False for one whose time has come already. Raises Refused."""
        delay_max_ms = min(self.config.timer_max_delay_sec * 1_000, self.config.retention_ms)
        try:
            due_ms = timer_due_ms(now_ms, properties)
            wait_ms = due_ms - now_ms + (self.clock_ahead_ms if is_by_wall(properties) else 0)
            is_legal = wait_ms <= delay_max_ms and (wait_ms > 0 or PROPERTY_TIMER_DEL_UNIQKEY not in properties)
        except ValueError:
            due_ms, wait_ms, is_legal = 0, 0, False
        if not is_legal:
            raise Refused(
                ResponseCode.MESSAGE_ILLEGAL,
                "timer message illegal, the delay time should not be bigger than the max delay "
                f"{delay_max_ms}ms; or if set del msg, the delay time should be bigger than the current time",
            )
        if wait_ms <= 0:
            return False
        if len(self.timers) >= self.config.timers_max:
            remark = f"timer message is under flow control, max num limit is {self.config.timers_max}"
            raise Refused(ResponseCode.SYSTEM_ERROR, remark)
        redirect_to_timer(message, properties, due_ms)
        return True

    def accept_all(self, now_ms: int, messages: list[StoredMessage]) -> None:
        """Store the messages of a batch, all of one queue and none delayed. Raises StorageError, UsageError: then none is."""
        codes = [message_tags_code(message) for message in messages]
        self.store.put_all(now_ms, messages, codes)
        self._count_put(now_ms, messages[0].topic, len(messages))

    def accept_half(self, now_ms: int, message: StoredMessage, properties: dict[str, str]) -> StoredMessage:
        """Store the first half of a transaction. Raises StorageError, UsageError."""
        half = half_of(message, properties)
        self.store.put(now_ms, half, message_tags_code(half))
        born_ms = half.born_timestamp_ms + self.clock_ahead_ms
        self.transactions.stored(min(now_ms, born_ms), half, self.store)
        self._count_put(now_ms, half.topic)
        return half

    def store_again(self, now_ms: int, message: StoredMessage) -> None:
        """Store a delayed message whose time has come; one whose topic was deleted meanwhile is dropped with it. Not one of a
        group's topic, which makes room for others while only delayed messages are left: it is made again, even beyond the
        room. Where the topic has that queue no more, one that it has gets the message: nobody would read it in another."""
        name = message.topic
        if is_of_group(name) and illegal_topic(name) is None:
            self.make_topic(now_ms, TopicConfig(name, 1, 1), must_fit=False)
        topic = self.topics.get(name)
        if topic is None:
            return
        if message.queue_id >= topic.read_queue_nums:
            message.queue_id %= max(1, min(topic.read_queue_nums, topic.write_queue_nums))
        self._store(now_ms, message, message_tags_code(message))

    def show_again(self, now_ms: int, key: Key, popped: InFlight, message: StoredMessage) -> None:
        """Store a message that was popped and not acknowledged in the group's retry topic
        (BR/pop/PopConsumerService.reviveRetry). Raises StorageError, UsageError, Refused, ProtocolError,
        QueueRebuilding.

        Given out again, it has its check point in its properties. Where these have no room for it, it is a dead letter of
        the group, as nobody could be given it.
        """
        topic = self.make_topic(now_ms, TopicConfig(pop_retry_topic(key.topic, key.group), 1, 1), must_fit=False)
        properties = dict(message.properties)
        if message.reconsume_times == 0 or PROPERTY_FIRST_POP_TIME not in properties:
            properties[PROPERTY_FIRST_POP_TIME] = str(popped.pop_time_ms)
        raw = encode_properties(properties).encode()
        most_bytes = PROPERTIES_MAX_BYTES - POP_CK_MAX_BYTES - len(self.config.name.encode())
        if len(raw) > most_bytes:
            raw = message.raw_properties  # better without the time of its first pop than not at all
        if len(raw) > most_bytes:
            topic = self.make_topic(now_ms, TopicConfig(DLQ_PREFIX + key.group, 1, 1), must_fit=False)
            fields: dict[str, object] = {"topic": topic.topic_name, "properties_bytes": len(raw)}
            self.store.events.append(("store.popped_message_dead_letter", {"queue": str(key), **fields}))
        again = replace(
            message,
            topic=topic.topic_name,
            queue_id=0,
            raw_properties=raw,
            reconsume_times=message.reconsume_times + 1,
            magic=0,
        )
        self._store(now_ms, again, message_tags_code(again))

    def _store(self, now_ms: int, message: StoredMessage, tags_code: int) -> None:
        self.store.put(now_ms, message, tags_code)
        self._count_put(now_ms, message.topic)

    def _count_put(self, now_ms: int, topic: str, count: int = 1) -> None:
        self.put_count += count
        self.stats.add(now_ms, TOPIC_PUT_NUMS, topic, count)

    def count_got(self, topic: str, group: str, count: int) -> None:
        """A group was given messages of a topic."""
        if count:
            self.get_count += count
            self.stats.add(self.now_ms, GROUP_GET_NUMS, f"{topic}@{group}", count)

    def _arrived(self, message: StoredMessage, tags_code: int) -> None:
        """A message can be read from now on."""
        if message.topic == SCHEDULE_TOPIC:
            self.delays.stored(message.queue_id + 1, tags_code)
        elif message.topic == TIMER_TOPIC:
            self.timers.stored(message)
        waits = self.config.long_polling_enable and self.held.waits(message.topic, message.queue_id)
        if waits or self.pops.held.waits(message.topic):
            self.arrivals.append(
                Arrival(message.topic, message.queue_id, tags_code, message.properties, self.held.last_number)
            )

    # Flushing

    @property
    def written(self) -> int:
        """Grows with what senders and administrators are answered for: log, journals of topics, POP's in part."""
        return self.store.log_end + self._journal.end + self.store.removed.journal.written + self.pops.administered

    def begin_flush(self) -> int:
        """Start to bring log and journals to the disk; returns the ticket."""
        self._journal_flushing = self._journal.end
        self.store.removed.begin_flush()
        return self.storage.sync(LOG, TOPICS_JOURNAL, REMOVED_JOURNAL, TIMERS_JOURNAL, POPS_JOURNAL)

    def end_flush(self) -> None:
        """That is done."""
        self._journal_flushed = self._journal_flushing
        self.store.removed.end_flush()

    @property
    def topics_are_kept(self) -> bool:
        """Whether the disk has all topics: else their queues must not be there first."""
        journal = self._journal
        return not self.storage.has_disk or journal.end in (journal.start, self._journal_flushed)

    # Speaking first

    def push(self, channel: int, code: RequestCode, fields: dict[str, str], body: bytes = b"", flag: int = 0) -> int:
        """Send a request of our own to a client; returns its opaque."""
        self._opaque = (self._opaque + 1) & 0x7FFFFFFF
        self.notices.append(Push(channel, Command(code, fields, body, self._opaque, flag)))
        return self._opaque

    def notify_group(self, name: str) -> None:
        """Tell all members of a group, the one who caused it included, that they must rebalance."""
        group = self.clients.consumer_group(name)
        config = self.groups.known(name)
        if group is None or group.is_broadcasting or (config and not config.notify_consumer_ids_changed_enable):
            return
        fields = ConsumerIdsChanged(name).to_fields()
        for channel in group.channels:
            self.push(channel, RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, fields, flag=FLAG_ONEWAY)

    def close(self, channel: int) -> None:
        self.notices.append(CloseChannel(channel))
