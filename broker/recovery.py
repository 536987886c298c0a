"""What a start does with the commit log and the consume queues; of one queue that is built anew later see rebuilds.py.

- The *checkpoint* says up to which position of the log all queues were on the disk, and how many entries each had. Queues
  are cut back to it and the log is read from there. A queue that has another number of entries then, holes, or a last entry
  that is not its record's, is *broken*: its entries are made anew from the whole log. Without a checkpoint all are broken.
- Damage in the log is copied to `damaged/<position>-<length>`; the positions stay, and reading goes on after it. Queue
  offsets that are missing then get fillers, as long as the damage has room for so many records.
- The CRC covers a record's body and not its head, so a queue offset may be wrong. A record that does not continue its queue
  waits until two records agree (the offset of one follows that of the other), and more when nothing explains the gap before
  them. Of those that waited, the most that fit together are put into the queue; among equals, those whose gaps damage
  explains. The others are treated as damage.
- A wrong head can be as likely as a right one, as with two records that claim one offset. Then the first is believed.
  What is not put into its queue for such a reason is in `damaged/` and is counted; it is never gone without a word.
- The torn front of one record, and zeros at the end, are cut off. Nothing else is, ever. Below the checkpoint both are
  damage: the log ended there or later, and a position that was used is not used again.
- A record of a topic that does not exist (it was deleted) is skipped, and so is one of an earlier life of a topic that was
  deleted and made again. Where that is not known, offset 0 says that a new life begins.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from ..remoting.codes import SYSFLAG_TRANSACTION_MASK, SYSFLAG_TRANSACTION_PREPARED, SYSFLAG_TRANSACTION_ROLLBACK
from ..remoting.errors import UsageError
from ..remoting.stored import MAGIC_V1, MAGIC_V2, RECORD_MIN_BYTES, StoredMessage
from .consume_queue import ConsumeQueue
from .log_scan import CHUNK_BYTES, Kind, LogScan, Part
from .readable_log import ReadableLog, is_of_a_place
from .storage import Storage, StorageError, StoredFile

FOREIGN_MIN_BYTES = 64 << 20  # so much without one record is no damaged log, but something else
STORED_MIN_MS, STORED_MAX_MS = 0, 4_102_444_800_000  # the year 2100
MISSING_MAX = 1_000_000  # fillers at one place; more is no gap, but a wrong number
WAITING_MAX = 64  # records of one queue that wait for others to explain them
AGREEING_MAX = 16  # so many that agree are believed, whatever they say
SKIPPED_MAX = 20_000  # positions of skipped records that are kept
Key = tuple[str, int]


def _offset(part: Part) -> int:
    assert part.message is not None
    return part.message.queue_offset


def _is_in_no_queue(message: StoredMessage) -> bool:
    """Half messages of brokers before 4.3, and their ends, are in the log alone: no offset was counted for them. One of their
    sysFlag that has an offset was counted, and is in its queue."""
    flags = message.sysflag & SYSFLAG_TRANSACTION_MASK
    return message.queue_offset == 0 and flags in (SYSFLAG_TRANSACTION_PREPARED, SYSFLAG_TRANSACTION_ROLLBACK)


@dataclass(slots=True)
class Found:
    """What a start found; all counts are of this start alone."""

    records: int = 0
    stored_ms: int = 0
    """Newest store time among the records."""
    damaged_ranges: int = 0
    damaged_bytes: int = 0
    torn_bytes: int = 0
    missing_offsets: int = 0
    rebuilt: list[Key] = field(default_factory=list[Key])

    def events(self) -> list[tuple[str, dict[str, object]]]:
        """What the log is to say, one event for each kind of finding."""
        events: list[tuple[str, dict[str, object]]] = []
        if self.damaged_ranges:
            fields: dict[str, object] = {"ranges": self.damaged_ranges, "bytes": self.damaged_bytes}
            fields |= {"missing_offsets": self.missing_offsets, "copied_to": "damaged/"}
            events.append(("store.damaged", fields))
        if self.torn_bytes:
            events.append(("store.torn_record_cut_off", {"bytes": self.torn_bytes}))
        if self.rebuilt:
            events.append(("store.queues_rebuilt", {"queues": len(self.rebuilt), "first": self.rebuilt[0]}))
        return events


class Recovery:
    """One pass over the log that brings the queues up to it."""

    def __init__(
        self,
        storage: Storage,
        log: StoredFile,
        queue_of: Callable[[str, int], ConsumeQueue],
        wanted: Callable[[StoredMessage], bool],
        tags_code: Callable[[StoredMessage], int],
        readable: ReadableLog,
        *,
        lives_known: bool,
        is_fed: bool = False,
    ) -> None:
        """`queue_of` makes a queue that does not exist; `wanted` says whether a record's topic exists, in this life: with
        `lives_known` for certain, else offset 0 begins a new one. `readable` is how the log is read; when `is_fed`, from its
        start by somebody else, who calls `take`.
        """
        self._lives_known = lives_known
        self._storage = storage
        self._log = log
        self._queue_of = queue_of
        self._wanted = wanted
        self._tags_code = tags_code
        self._room = 0  # records that the damage seen so far may have held
        self._readable = readable
        self._whole = is_fed  # the log is read from its start, and files of queues do not count
        self._broken: set[Key] = set()
        self._taken: set[Key] = set()  # queues into which a record was put
        self._waiting: dict[Key, list[Part]] = {}  # records that do not continue their queue; no list is empty
        self._skipped: list[int] = []  # ascending positions of records for no queue; a wrong head may have made them so
        self._damage_at: list[int] = []  # ascending positions of damaged parts
        self._damage_room = [0]  # and how many records the first 0, 1, 2... of them may have held
        self.found = Found()
        self.suspects: set[Key] = set()
        """Queues whose next record was not the next one, for no reason in the log: their files are wrong."""

    def run(self, begin: int, broken: set[Key]) -> Found:
        """Bring all queues up to the log's end, the broken ones from its start. Cuts a torn tail off.

        Raises UsageError, and then nothing was changed, when the log holds no record at all although it is not empty; and
        StorageError, also when what could not be read was an outage of the disk: the next start begins as this one did.
        """
        self._broken = broken
        self._whole = begin == self._log.start
        damage: list[Part] = []
        tail: list[Part] = []
        for part in self._scanned(self._log.start if broken else begin, begin):
            if part.message is not None:
                if part.position >= begin or self._key(part.message) in broken:
                    self.take(part)
            elif part.kind is Kind.DAMAGE:
                damage.append(part)
                self.make_room(part)
            else:
                tail.append(part)
        self._readable.confirm()
        for part in tail:
            self._cut(part)
        self.end()
        if (self._whole or broken) and not self.found.records and self._is_foreign(damage):
            raise UsageError(
                "the commit log in the broker's data folder holds no record that can be read: it was written by something "
                "else, or is encrypted. Nothing was changed; use another folder"
            )
        for part in damage:
            self.set_aside(part)
        for key in broken - self._taken:  # no record of it is left
            queue = self._queue_of(*key)
            queue.restart_at(queue.next_offset)
        self.found.rebuilt = sorted(broken)
        return self.found

    def _scanned(self, scan_begin: int, begin: int) -> Iterator[Part]:
        """The parts of the log; a tail that begins below `begin` is damage up to there."""
        for part in LogScan(self._readable, scan_begin, self._believe):
            if part.kind in (Kind.TORN, Kind.UNWRITTEN) and part.position < begin:
                yield Part(Kind.DAMAGE, part.position, begin - part.position)
                yield from LogScan(self._readable, begin, self._believe)
                return
            yield part

    def _is_foreign(self, damage: list[Part]) -> bool:
        """Whether a log without a single record was written by something else: it is large, or of another version."""
        version = int.from_bytes(self._readable.read(self._log.start, 8)[4:8], "big", signed=True)
        later = version & ~0xFF == MAGIC_V1 & ~0xFF and version not in (MAGIC_V1, MAGIC_V2)
        return later or sum(part.length_bytes for part in damage) > FOREIGN_MIN_BYTES

    def _is_anew(self, key: Key) -> bool:
        """Whether the next record of the queue is its first in this pass, and what its file says does not count."""
        return (self._whole or key in self._broken) and key not in self._taken

    @staticmethod
    def _key(message: StoredMessage) -> Key:
        return message.topic, message.queue_id

    def _believe(self, message: StoredMessage) -> bool:
        """Whether the first record after damage can be one: its offset must not fall, except in a topic's new life.

        A queue that is not made anew may have its entry already.
        """
        if not self._wanted(message) or self._is_anew(self._key(message)) or self._is_new_life(message):
            return True
        queue, offset = self._queue_of(message.topic, message.queue_id), message.queue_offset
        if offset >= queue.next_offset:
            return True
        try:
            return offset >= queue.file_start and queue.entry(offset)[0] == message.physical_offset
        except StorageError as error:
            if not is_of_a_place(error):
                raise
            return True  # the queue's file says nothing

    def _is_new_life(self, message: StoredMessage) -> bool:
        """Whether a queue begins anew with it, in a store that does not say which topics were deleted."""
        return not self._lives_known and message.queue_offset == 0

    def make_room(self, part: Part) -> None:
        """A damaged part was passed: so many records may be missing now."""
        room = max(part.length_bytes // RECORD_MIN_BYTES, 1)
        self._room += room
        self._damage_at.append(part.position)
        self._damage_room.append(self._damage_room[-1] + room)

    def take(self, part: Part) -> None:
        """Put a record into its queue, or let it wait for others of the queue to say whether its offset is right."""
        message = part.message
        assert message is not None
        self.found.records += 1
        if STORED_MIN_MS < message.store_timestamp_ms < STORED_MAX_MS:  # the head has no CRC
            self.found.stored_ms = max(self.found.stored_ms, message.store_timestamp_ms)
        if not self._wanted(message) or _is_in_no_queue(message):
            self._skipped.append(message.physical_offset)
            if len(self._skipped) > SKIPPED_MAX:
                del self._skipped[: SKIPPED_MAX // 2]
            return
        key = self._key(message)
        if key in self.suspects:  # it is read again, from the log's start
            return
        queue = self._queue_of(*key)
        offset = message.queue_offset
        if self._is_anew(key) and key not in self._waiting:
            queue.restart_at(0)  # where the log was never cut, each queue begins there
        missing = offset - queue.next_offset
        if missing < 0 and self._is_new_life(message):
            for odd in self._waiting.pop(key, ()):
                self.set_aside(odd)
            queue.restart_at(0)
            self._append(queue, part)
        elif missing == 0 and key not in self._waiting and not self._begins_anywhere(key):
            self._append(queue, part)
        else:
            self._wait(queue, part)

    def _begins_anywhere(self, key: Key) -> bool:
        """Whether nothing says which offset the queue's first record has: the log's beginning was dropped."""
        return self._log.start > 0 and self._is_anew(key)

    def _wait(self, queue: ConsumeQueue, part: Part) -> None:
        key = queue.topic, queue.queue_id
        offset = _offset(part)
        waiting = self._waiting.setdefault(key, [])
        agrees = any(_offset(other) + 1 == offset for other in waiting)
        waiting.append(part)
        if agrees:
            chain, doubts, _ = self._likeliest(queue, waiting, agreed=True)
            if len(chain) >= min(2 + doubts, AGREEING_MAX):
                self._settle(queue, chain)
        elif not self._whole and key not in self._broken and offset - queue.next_offset > self._room:
            self.suspects.add(key)
            del self._waiting[key]
        if len(waiting) > WAITING_MAX:
            self.set_aside(waiting.pop(0))

    def _likeliest(self, queue: ConsumeQueue, waiting: list[Part], *, agreed: bool) -> tuple[list[Part], int, int]:
        """The waiting records that are most likely right, how doubtful they are, and how many fillers they need.

        They are the most whose offsets rise; none when no offset can be right. Their doubts, fewest among equals, are the
        missing records that neither damage nor records left out there explain, and those left out where none is missing.
        With `agreed` the newest is among them, and a queue without records may begin at any place.
        """
        key = queue.topic, queue.queue_id
        begins_anywhere = self._begins_anywhere(key)
        last = queue.next_offset > queue.file_start
        base = queue.entry(queue.next_offset - 1)[0] if last else self._log.start
        best: list[tuple[int, int, int, int]] = []  # records, -doubts, -fillers, number of the record before; by record
        for number, part in enumerate(waiting):
            found = (0, 0, 0, -1)
            for before in range(-1, number):
                records, doubts, fillers, _ = best[before] if before >= 0 else (0, 0, 0, -1)
                if before >= 0 and not records:
                    continue
                begin, position = (
                    (_offset(waiting[before]) + 1, waiting[before].position)
                    if before >= 0
                    else (queue.next_offset, base)
                )
                gap = _offset(part) - begin
                left_out = number - before - 1
                if (
                    before < 0
                    and gap >= 0
                    and (begins_anywhere or (agreed and gap > MISSING_MAX and key not in self._taken))
                ):
                    gap = left_out = 0
                if 0 <= gap <= MISSING_MAX:
                    doubt = max(gap - left_out - self._room_between(position, part.position), left_out - gap, 0)
                    found = max(found, (records + 1, doubts - doubt, fillers - gap, before))
            best.append(found)
        number = len(best) - 1 if agreed else max(range(len(best)), key=lambda at: best[at])
        doubts, fillers, chain = -best[number][1], -best[number][2], list[Part]()
        while number >= 0 and best[number][0]:
            chain.append(waiting[number])
            number = best[number][3]
        return chain[::-1], doubts, fillers

    def _room_between(self, begin: int, end: int) -> int:
        """How many records of a queue the damage and the skipped records between two positions of the log may have been."""
        first, last = bisect_left(self._damage_at, begin), bisect_left(self._damage_at, end)
        skipped = bisect_left(self._skipped, end) - bisect_left(self._skipped, begin)
        return self._damage_room[last] - self._damage_room[first] + skipped

    def _settle(self, queue: ConsumeQueue, chain: list[Part]) -> None:
        """Put `chain` into its queue; all others that wait for it are damage."""
        key = queue.topic, queue.queue_id
        for part in self._waiting.pop(key):
            if part not in chain:
                self.set_aside(part)
        for part in chain:
            missing = _offset(part) - queue.next_offset
            if key not in self._taken and (self._begins_anywhere(key) or missing > MISSING_MAX):
                queue.restart_at(_offset(part))
            elif missing:
                self._room = max(self._room - missing, 0)
                self.found.missing_offsets += missing
                queue.append_missing(part.position, missing)
            self._append(queue, part)

    def _append(self, queue: ConsumeQueue, part: Part) -> None:
        assert part.message is not None
        self._taken.add((queue.topic, queue.queue_id))
        queue.append(part.position, part.length_bytes, self._tags_code(part.message))

    def end(self) -> None:
        """No record follows: what nothing has explained is damage, the least likely offset first; it may explain others.

        Records that agree are believed without an explanation when more of them are there than are missing.
        """
        while self._waiting:
            before = len(self._waiting)
            for key, waiting in list(self._waiting.items()):
                queue = self._queue_of(*key)
                chain, doubts, fillers = self._likeliest(queue, waiting, agreed=False)
                explained = self._room + len(self._skipped) + len(waiting) - len(chain)
                agree = all(_offset(part) + 1 == _offset(following) for part, following in pairwise(chain))
                if chain and (not doubts or fillers <= explained or (agree and fillers < len(chain))):
                    self._settle(queue, chain)
            if len(self._waiting) == before:
                self._give_up_one()

    def _give_up_one(self) -> None:
        def unlikely(pair: tuple[Key, Part]) -> tuple[bool, int]:
            missing = _offset(pair[1]) - self._queue_of(*pair[0]).next_offset
            return missing < 0, missing

        key, worst = max(((key, part) for key, parts in self._waiting.items() for part in parts), key=unlikely)
        self._waiting[key].remove(worst)
        if not self._waiting[key]:
            del self._waiting[key]
        self.set_aside(worst)

    def _cut(self, part: Part) -> None:
        if part.kind is Kind.TORN:
            self.found.torn_bytes += part.length_bytes
        self._log.truncate(part.position)

    def set_aside(self, part: Part) -> None:
        """Copy what cannot be read, or belongs nowhere; once, whoever comes across it."""
        self.found.damaged_ranges += 1
        self.found.damaged_bytes += part.length_bytes
        if part.message is not None:
            self._room += 1
        self._storage.set_aside(f"{part.position}-{part.length_bytes}", self._parts(part))

    def _parts(self, part: Part) -> Iterator[bytes]:
        position, end = part.position, part.position + part.length_bytes
        while position < end:
            copied = self._readable.read(position, min(CHUNK_BYTES, end - position))
            yield copied
            position += len(copied)


__all__ = ["Found", "Key", "Recovery"]
