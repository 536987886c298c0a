"""A slow look at all records, round after round: whether their queues' entries have the codes of their tags.

A pull by tag passes over an entry by its tags code, without a look at the record; that is what the code is for. So a wrong
code hides its message, and a read notices only what no code can be: it has 32 bits in a place of 64. The rest is noticed
here. The log is read beside all else, STEP_BYTES a second, and a queue whose entry has another code than its record is built
anew. A round takes some five hours for each GiB of the log. Readers that passed the message before do not get it any more.

So is a queue that has a filler for a record that is there: an outage of the disk, or a kill while a queue was built anew,
took the record for damage. But that record may be one that belongs nowhere, and each time refuses the queue's senders and
reads all of the log. So a filler counts once a round at most, whether that rebuild is done, fails or is not begun; and when
one was done, for whatever reason, only if the record lies where the disk could not read then: all others had their chance.

After a round that found nothing, the next one starts when the log has grown, or after REST_STEPS. So an idle broker reads
nothing.

A place that the disk cannot read is logged once, and the round goes on behind it (readable_log.py); so it does when a queue's
file cannot be read. Damage is searched one window a step, so that no step is long.

Checksums over the queues would need less reading, but a file of our own beside RocketMQ's, written at each checkpoint, and
wrong whenever a genuine broker has written to the store since. The log says the same, and is there.

Not looked at:

- codes of the delay levels, whose entries have times instead: delivery looks at the record too;
- the index by keys: a wrong one hides messages from queries by key alone, and is made anew when its folder is removed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..remoting.stored import StoredMessage
from .consume_queue import ENTRY_BYTES, ConsumeQueue
from .log_scan import LogScan, Part
from .readable_log import PIECE_BYTES, ReadableLog, UnreadablePlaces, pieces_of
from .recovery import Key
from .storage import StorageError, StoredFile

STEP_BYTES = 64 << 10  # some 3 ms for small messages
INTERVAL_MS = 1_000
REST_STEPS = 6 * 3_600  # six hours


class QueueCheck:
    """Where the round has come to."""

    def __init__(
        self,
        log: StoredFile,
        queues: Mapping[Key, ConsumeQueue],
        wanted: Callable[[StoredMessage], bool],
        tags_code: Callable[[StoredMessage], int],
        places: UnreadablePlaces,
    ) -> None:
        """`wanted`: whether a record is of this life of its topic; `places`: where what cannot be read is said."""
        self._log = log
        self._queues = queues
        self._wanted = wanted
        self._tags_code = tags_code
        self._places = places
        self._rest_steps = 0  # before the next round
        self._found = False  # in this round
        self._filled: set[Key] = set()  # queues that differed by a filler in this round
        self._unread: dict[Key, frozenset[int]] = {}  # pieces that could not be read when these queues were built anew
        self._begin()

    def rebuilt(self, key: Key, unread: frozenset[int], missing_offsets: int) -> None:
        """A queue was built anew, and has so many fillers; `unread` are the pieces of the log that could not be read."""
        self._unread.pop(key, None)
        if missing_offsets:  # of queues that are built one after the other they are the same
            self._unread[key] = next((known for known in self._unread.values() if known == unread), unread)

    def _begin(self) -> None:
        self._filled.clear()
        self._unread = {key: unread for key, unread in self._unread.items() if key in self._queues}
        self._end = self._log.end
        self._scan = LogScan(ReadableLog(self._log, self._places), self._log.start, lambda _: True)
        self._parts = self._scan.steps()

    def step(self) -> list[ConsumeQueue]:
        """Read a little further, or begin the next round when that is due; returns the queues that differ. Raises
        StorageError when the disk fails as a whole, and then the next round starts as after one that found nothing."""
        if self._rests():
            return []
        if self._scan.position < self._log.start:  # retention was faster
            self._begin()
        wrong: dict[Key, ConsumeQueue] = {}
        try:
            is_all = self._read(wrong)
        except StorageError:
            self._found, self._rest_steps = False, REST_STEPS
            raise
        self._found = self._found or bool(wrong)
        if is_all:
            self._end_round()
        return list(wrong.values())

    def _read(self, wrong: dict[Key, ConsumeQueue]) -> bool:
        """Put the queues that differ into `wrong`; True at the end of the log. Raises StorageError."""
        until = self._scan.position + STEP_BYTES
        for part in self._parts:
            if part is None:
                return False
            if part.message is not None and (queue := self._differing(part, part.message)) is not None:
                wrong[queue.topic, queue.queue_id] = queue
            if self._scan.position >= until:
                return False
        return True

    def _end_round(self) -> None:
        if self._found or self._log.end > self._end:
            self._begin()
        else:
            self._rest_steps = REST_STEPS
        self._found = False

    def _rests(self) -> bool:
        """Whether the next round is not due."""
        if not self._rest_steps:
            return False
        self._rest_steps = self._rest_steps - 1 if self._log.end == self._end else 0
        if not self._rest_steps:
            self._begin()
        return self._rest_steps > 0

    def _differing(self, part: Part, message: StoredMessage) -> ConsumeQueue | None:
        """The record's queue, when its entry has another code, or is a filler."""
        key = message.topic, message.queue_id
        queue = self._queues.get(key)
        if queue is None or not queue.min_offset <= message.queue_offset < queue.max_offset:
            return None
        try:
            position, size, tags_code = queue.entry(message.queue_offset)
        except StorageError as error:
            page = message.queue_offset * ENTRY_BYTES // PIECE_BYTES * PIECE_BYTES
            self._places.say(page, error, topic=queue.topic, queue_id=queue.queue_id)
            return None
        if size == 0:
            return queue if self._may_be_healed(key, part, message) else None
        is_its_own = position == message.physical_offset  # else it is of a topic's earlier life, or reads notice it
        differs = is_its_own and not queue.has_times and tags_code != self._tags_code(message)
        return queue if differs else None

    def _may_be_healed(self, key: Key, part: Part, message: StoredMessage) -> bool:
        """Whether the record may get its entry, when its queue is built anew; asked once a round of each queue."""
        unread = self._unread.get(key)
        had_its_chance = unread is not None and unread.isdisjoint(pieces_of(part.position, part.length_bytes))
        if key in self._filled or had_its_chance or not self._wanted(message):
            return False
        self._filled.add(key)
        return True


__all__ = ["INTERVAL_MS", "REST_STEPS", "QueueCheck"]
