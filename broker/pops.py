"""POP at the store: the table of what is in flight, its journal, who waits, and what is shown again.

A kill at any moment loses nothing: a message is given out after the line that says so is written, and what is shown again is
stored in the log before its line; that one waits for the disk besides, as else a power cut could take the message and leave
the line. So a kill between the two shows it twice: at least once, as everything here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from ..remoting.errors import ProtocolError, UsageError
from ..remoting.names import RETRY_PREFIX
from ..remoting.stored import StoredMessage
from .held_pops import HeldPops
from .journal import Journal
from .message_store import MessageStore, QueueRebuilding
from .offset_table import OffsetTable
from .pop_table import InFlight, Key, PopTable, begun, forgotten, revived
from .refusal import Refused
from .storage import Storage

POPS_TABLE = "config/pops.json"
POPS_JOURNAL = "config/pops.journal"
FAILURE_PAUSE_MS = 1_000
REFUSED_PAUSE_MS = 60_000  # a message that cannot be stored as things are: until somebody changes them, or it is gone

StoreAgain = Callable[[Key, InFlight, StoredMessage], None]
"""Stores a message in its retry topic. Raises StorageError, QueueRebuilding: later; UsageError, ProtocolError, Refused: much
later."""


def pop_retry_topic(topic: str, group: str) -> str:
    """Where what a group popped from `topic` is shown again, once and more often (KeyBuilder.buildPopRetryTopicV1)."""
    return topic if topic.startswith(RETRY_PREFIX) else f"{RETRY_PREFIX}{group}_{topic}"


class Pops:
    """Owns all of it; single owner."""

    def __init__(self, storage: Storage, held_max: int) -> None:
        self._storage = storage
        self.table = PopTable()
        self.journal = Journal(storage, POPS_JOURNAL, POPS_TABLE)
        self.held = HeldPops(held_max)
        self.administered = 0
        """Grows with what administrators are answered for: the disk must have it first."""
        self._stored_again: deque[tuple[int, Key, int]] = deque()  # what must be flushed for the line to be written

    def replay(self) -> int:
        """Read the journal, after the table; returns how many of its lines are damaged."""
        texts, damaged = self.journal.texts()
        for text in texts:
            try:
                self.table.apply(text)
            except ProtocolError:
                damaged += 1
        if damaged:
            self.journal.set_aside()
        return damaged

    def started(self, now_ms: int, end_of: Callable[[str, int], int | None]) -> None:
        """After the log was recovered; `end_of` a queue is its max offset, None when there is no such topic.

        What was popped above the end of the log was lost with it: later messages get these offsets.
        """
        changes: list[bytes] = []
        for key in self.table.all_keys():
            end = end_of(key.topic, key.queue_id)
            if end is None:
                changes.append(forgotten(key.topic, ""))
            elif (self.table.next_offset(key) or 0) > end:
                changes.append(begun(key, min(end, self.table.floor(key) or 0)))
        for text in changes:
            self.table.apply(text)
        is_nearer = self.table.bring_near(now_ms)
        self.journal.begin_anew(self.table.dump(), changed=bool(changes) or is_nearer)

    def write(self, texts: Sequence[bytes], entries: int = 1) -> None:
        """Write what changes, and do it. Raises StorageError, and then nothing is changed."""
        if texts:
            self.journal.append(texts, entries)
            for text in texts:
                self.table.apply(text)
            if any(text[:1] in (b"s", b"f") for text in texts):  # else what is popped there next would be taken for it
                waiting = [each for each in self._stored_again if self.table.is_reviving(*each[1:])]
                self._stored_again = deque(waiting)

    def begin_at(self, key: Key, offset: int) -> None:
        """An administrator reset the group's offset: what is in flight ends with that. Raises StorageError."""
        if self.table.next_offset(key) is not None:
            self.write([begun(key, offset)])
            self.administered += 1

    def forget(self, topic: str = "", group: str = "") -> None:
        """One of the two was deleted. Raises StorageError."""
        if self.table.keys_of(topic, group):
            self.write([forgotten(topic, group)])
            self.administered += 1

    def revive_due(
        self, now_ms: int, store: MessageStore, store_again: StoreAgain, written: Callable[[], int], count_max: int
    ) -> None:
        """Store again what was not acknowledged in time; `written` says what has to be flushed after each.

        Raises StorageError, after which the message at hand waits a little. One that is gone is passed over. One that cannot
        be stored again stays in flight and is tried again after a while. Of both an event says where.
        """
        for key, offset, entry in self.table.take_due(now_ms, count_max):
            try:
                message = store.message_in(key.topic, key.queue_id, offset)
                if message is None:
                    store.events.append(("store.popped_message_gone", {"queue": str(key), "queue_offset": offset}))
                else:
                    store_again(key, entry, message)
            except (UsageError, ProtocolError, Refused) as error:
                reason = error.remark if isinstance(error, Refused) else str(error)
                fields: dict[str, object] = {"queue": str(key), "queue_offset": offset, "reason": reason}
                store.events.append(("store.popped_message_not_shown_again", fields))
                self.table.put_off(key, offset, now_ms + REFUSED_PAUSE_MS)
                continue
            except QueueRebuilding:
                self.table.put_off(key, offset, now_ms + FAILURE_PAUSE_MS)
                continue
            except BaseException:
                self.table.put_off(key, offset, now_ms + FAILURE_PAUSE_MS)
                raise
            self._stored_again.append((written(), key, offset))

    def end_revivals(self, flushed: int) -> None:
        """Write which messages need not be shown again any more. Raises StorageError, and then they wait."""
        done: dict[Key, list[int]] = {}
        waiting, count = self._stored_again, 0
        while count < len(waiting) and (not self._storage.has_disk or waiting[count][0] <= flushed):
            done.setdefault(waiting[count][1], []).append(waiting[count][2])
            count += 1
        self.write([revived(key, offsets) for key, offsets in done.items()], count)
        for _ in range(count):
            waiting.popleft()

    def save(
        self, offsets: OffsetTable, end_of: Callable[[str, int], int | None], may_keep: Callable[[str, str], bool]
    ) -> None:
        """Once a second: commit how far groups are done, for whoever asks for their lag; the whole table when it is due.

        What was committed by pulls or asked for by a reset is not set back, unless it is above the end of the queue.
        `may_keep` says whether an offset of a topic and group may be kept.
        """
        for key in self.table.touched:
            floor = self.table.floor(key)
            if floor is None or not may_keep(key.topic, key.group):
                continue
            committed = offsets.query(key.topic, key.group, key.queue_id)
            end = end_of(key.topic, key.queue_id)
            if committed is None or committed < floor or (end is not None and committed > end):
                offsets.commit(key.topic, key.group, key.queue_id, floor)
        self.table.touched.clear()
        if self.journal.is_long(len(self.table)):
            self.journal.write_table(self.table.dump())
