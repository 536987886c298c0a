"""The journal of settled offsets: what lets a restart after kill -9 run only messages whose outcome was not yet written.
It has also which offsets were sent to the broker: one that is beyond them others have sent, and what was finished here above
may be from before a reset.

Pure: bytes in, state out, and back. The file is a header and *blocks*, one for each turn of the supervisor's loop:

    u32 length of the payload | u32 CRC-32 of it | payload: records, each u8 kind and a fixed or counted rest

What is too long for one block, as a whole state may be, is cut into several.

A torn or damaged block ends the replay: everything before it counts, nothing after it (the file is append-only, so what
follows a damaged block cannot be trusted to be complete). Rows count as durable only when their segment is known to be
sealed: by a record here, or because its file is found (the caller's affair).
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, cast

from ...durable.intervals import Intervals, IntervalSet
from ...durable.versions import later_version
from ...remoting.errors import RocketcrewError
from ...remoting.queues import MessageQueue
from .actions import Action, Commit, JournalCommitted, JournalDone, JournalGoesOn, JournalLost, JournalSealed, Pull
from .chunks import Token

Records = Sequence[tuple[MessageQueue, Sequence[tuple[int, int]]]]
"""Per queue: intervals of records."""

MAGIC = b"RCJ1"
BLOCK_BYTES = 1024 * 1024
"""A block that has so many takes no more records. One turn of the loop writes kilobytes."""
BLOCK_BYTES_MAX = 64 * 1024 * 1024
"""A longer block is damage, not data."""

_BLOCK = struct.Struct("<II")
_NAME = struct.Struct("<BIH")
_DONE = struct.Struct("<BIqqII")
_SEALED = struct.Struct("<BII")
_COMMITTED = struct.Struct("<BIqq")
_SENT = struct.Struct("<BIq")
_OPENED = struct.Struct("<BIqqq")
_RUN = struct.Struct("<BII")
_GOES_ON = struct.Struct("<BIq")
_TAKEN_BACK = "-"
"""In the place of a run: the offset went back since that opened it, and a segment does not say what is from before."""
_K_QUEUE, _K_WORKER, _K_DONE, _K_SEALED, _K_COMMITTED, _K_SENT, _K_OPENED, _K_GOES_ON, _K_RUN = range(1, 10)


@dataclass(slots=True, eq=False)
class JournalSent:
    """The offset of what is finished is on its way to the broker, which may have it though its answer never comes."""

    mq: MessageQueue
    offset: int


@dataclass(slots=True, eq=False)
class JournalRun:
    """`QueueLog.run`; without a queue: the run writes the journal from here on."""

    mq: MessageQueue | None
    run: str


Entry = JournalDone | JournalSealed | JournalLost | JournalCommitted | JournalGoesOn | JournalSent | JournalRun
JOURNALLED: Final = frozenset((JournalDone, JournalSealed, JournalLost, JournalCommitted, JournalGoesOn))
"""Actions that are entries, and nothing else."""
_NOTED: Final = JOURNALLED | {Commit, Pull}


def entries_of(todo: Iterable[Action]) -> list[Entry]:
    """What is written as one block before anything else of a step is done."""
    entries: list[Entry] = []
    for action in todo:
        if action.__class__ not in _NOTED:
            continue
        if isinstance(action, Pull):
            if action.commit_offset > 0:
                entries.append(JournalSent(action.mq, action.commit_offset))
        elif not isinstance(action, Commit):
            entries.append(cast("Entry", action))
        elif not action.moves:  # else nothing is finished up to there
            entries.append(JournalSent(action.mq, action.offset))
    return entries


class JournalError(RocketcrewError):
    """The file is not a journal of this program; the message says what to do."""


@dataclass(slots=True)
class QueueLog:
    """What is known of one message queue."""

    opened_ms: int = 0
    """The time of day at which it was last opened, or went on after a doubt; 0 = not known."""
    start: int = -1
    """Where the assignment that committed began; -1 = nothing committed yet."""
    committed: int = -1
    sent: int = -1
    """The highest offset that was sent, as far as that is noted: it is not where all up to there is known to be finished."""
    durable: Intervals = field(default_factory=Intervals)
    """Finished and durable above `committed`."""
    run: str = ""
    """The run that has opened it: of that run's segments also counts what was not reported. Empty = none has, since all that
    was found was joined."""

    @property
    def sent_to(self) -> int:
        """The highest offset that the broker may have from us."""
        return self.durable.next_gap(max(self.sent, 0))  # below `sent` all is finished

    @property
    def age(self) -> tuple[int, int]:
        """The higher, the later: of what another journal knows of the queue nothing counts where that is lower."""
        return self.opened_ms, self.committed

    def opened_at(self, ms: int) -> None:
        """0 = not known."""
        if ms:
            self.opened_ms = max(ms, self.opened_ms + 1)  # the clock may have gone back


@dataclass(slots=True)
class JournalState:
    """The sum of all records; also what a compaction writes anew."""

    queues: dict[MessageQueue, QueueLog] = field(default_factory=dict[MessageQueue, QueueLog])
    pending: dict[Token, dict[MessageQueue, Intervals]] = field(
        default_factory=dict[Token, dict[MessageQueue, Intervals]]
    )
    """Finished, but their rows' segment is not sealed yet. With `results.commit_after = loaded` a segment waits until the
    table has it: what it holds must not grow with each report of it."""
    run: str = ""
    """Whose journal it is: ids of workers begin with it."""

    def apply(self, entry: Entry) -> bool:
        """Add an entry. True where an offset went back and that took something back: it must be on the disk before anything
        is done upon it, or a loss of power would bring back what was finished before the reset."""
        if isinstance(entry, JournalDone):
            log = self._log(entry.mq)
            if entry.seq:
                held = self.pending.setdefault((entry.worker_id, entry.seq), {})
                offsets = held.get(entry.mq)
                if offsets is None:
                    offsets = held[entry.mq] = Intervals()
                offsets.add(entry.start, entry.end)
            else:
                log.durable.add(entry.start, entry.end)
        elif isinstance(entry, JournalSealed):
            self.sealed((entry.worker_id, entry.seq))
        elif isinstance(entry, JournalLost):
            self.pending.pop((entry.worker_id, entry.seq), None)
        elif isinstance(entry, JournalSent):
            log = self._log(entry.mq)
            log.sent = max(log.sent, entry.offset)
        elif isinstance(entry, JournalGoesOn):
            self._log(entry.mq).opened_at(entry.at_ms)
        elif not isinstance(entry, JournalRun):
            return self._committed(entry)
        elif entry.mq is None:
            self.run = entry.run
        else:
            self._log(entry.mq).run = entry.run
        return False

    def _committed(self, entry: JournalCommitted) -> bool:
        log = self._log(entry.mq)
        opened, went_back, takes_back = entry.start == entry.offset, entry.offset < max(log.committed, 0), False
        if went_back:
            # The offset went back, a reset: everything that was finished is to run again, sealed or not, reported or not.
            takes_back = self._drop_pending(entry.mq) or bool(log.durable or log.run)
            log.durable, log.run = Intervals(), log.run and _TAKEN_BACK
        if opened:
            log.run = log.run or self.run
        log.opened_at(entry.opened_ms)
        log.start, log.committed = entry.start, entry.offset
        log.sent = entry.offset if opened or went_back else max(log.sent, entry.offset)
        log.durable.discard_below(entry.offset)
        return takes_back

    def is_known(self, entry: Entry) -> bool:
        """It is an offset that was sent, and says nothing new: as most pulls, which carry one."""
        if not isinstance(entry, JournalSent):
            return False
        log = self.queues.get(entry.mq)
        return log is not None and entry.offset <= log.sent_to

    def _drop_pending(self, mq: MessageQueue) -> bool:
        """Whether anything of the queue was pending."""
        dropped = False
        for token, held in list(self.pending.items()):
            dropped |= held.pop(mq, None) is not None
            if not held:
                del self.pending[token]
        return dropped

    def _log(self, mq: MessageQueue) -> QueueLog:
        log = self.queues.get(mq)
        if log is None:
            log = self.queues[mq] = QueueLog()
        return log

    def sealed(self, token: Token) -> None:
        """The token's segment exists in whole: what waited for it is durable."""
        for mq, offsets in self.pending.pop(token, {}).items():
            self._durable(mq, offsets.pairs())

    def _durable(self, mq: MessageQueue, pairs: Iterable[tuple[int, int]]) -> None:
        log = self._log(mq)
        for start, end in pairs:
            log.durable.add(max(start, log.committed), end)

    def _is_begun(self, mq: MessageQueue) -> bool:
        """Something is committed of the queue. Else what was finished was forgotten."""
        return mq in self.queues and self.queues[mq].committed >= 0

    def shown(self, mq: MessageQueue, start: int, end: int) -> bool:
        """Records that a cell shows (workers/unreported.py) have ended and left no rows. Whether any of them counts."""
        if not self._is_begun(mq) or end <= max(start, self.queues[mq].committed):
            return False
        self._durable(mq, [(start, end)])
        return True

    def join(self, salvaged: Iterable[tuple[str, int, Records]], sealed: Container[Token]) -> None:
        """What was found on disk: the records of segments (worker id, number, records). `sealed` = were in ready/ before.

        Only the records found in a segment are durable: after a loss of power its file may hold less than was reported. What
        was not reported counts only where the journal says that the segment's run has opened the queue, and no reset since:
        a journal may be gone (slot.py, `take_sealed`), or torn, or another one counts for the queue (`merge`). One in ready/
        may be a file too that a start has salvaged which failed or was killed before it wrote a journal: of it nothing counts
        that was not reported. One without any records is gone.
        """
        for worker_id, seq, records in salvaged:
            if not records:
                continue
            reported = self.pending.pop((worker_id, seq), {})
            for mq, pairs in records:
                found = IntervalSet.of(pairs)
                if (worker_id, seq) in sealed or not self._has_opened(worker_id, mq):
                    found &= reported.get(mq, Intervals()).frozen()
                self._durable(mq, found.pieces)

    def _has_opened(self, worker_id: str, mq: MessageQueue) -> bool:
        """Whether the worker's run has, says the journal that counts for the queue."""
        return self._is_begun(mq) and worker_id.rpartition(".")[0] == self.queues[mq].run != ""

    def begin_run(self, run: str) -> int:
        """All segments that were found have been joined; what waits for another one runs again. How many segments these are.
        `run` writes the journal from here on."""
        lost = len(self.pending)
        self.pending.clear()
        self.run = run
        for log in self.queues.values():
            log.run = ""
        return lost

    def recovered(self) -> dict[MessageQueue, tuple[int, Intervals]]:
        """What the core takes over: per queue the committed offset, and what is finished above it."""
        return {
            mq: (max(log.committed, 0), Intervals(log.durable.pairs()))
            for mq, log in self.queues.items()
            if log.durable
        }

    def sent(self) -> dict[MessageQueue, int]:
        """Of these queues, the highest offset that the broker may have from us."""
        return {mq: log.sent_to for mq, log in self.queues.items() if log.durable}

    def merge(self, other: JournalState) -> None:
        """Add what a slot of a dead run knew.

        Of a queue that both know, one journal counts, and the other one not at all: the one that opened it later, whatever is
        committed (its first message may be slow, or a reset was met), else the one with the higher committed offset, ours
        where these are equal too. What the other calls finished may be from before a reset. So it makes no difference in
        which order slots are merged, nor whether one is merged twice.

        **The limit:** where the clock went back between two members of a host, the older journal may count. It is forgotten
        when the queue is opened where the group's offset is below what it has as committed, or above what it has as sent
        (Core.recover); in between, what it calls finished does not run again, though a reset may have asked for it.
        """
        taken: set[MessageQueue] = set()
        for mq, log in other.queues.items():
            mine = self.queues.get(mq)
            if mine is None or log.age > mine.age:
                self._drop_pending(mq)
                self.queues[mq] = replace(log, durable=Intervals(log.durable.pairs()))
                taken.add(mq)
        for token, held in other.pending.items():
            for mq in held.keys() & taken:
                self.pending.setdefault(token, {})[mq] = Intervals(held[mq].pairs())


class JournalEncoder:
    """Turns entries into blocks; names of queues and workers are written once and then by number."""

    def __init__(self) -> None:
        self._queues: dict[MessageQueue, int] = {}
        self._workers: dict[str, int] = {"": 0}

    def blocks(self, entries: Iterable[Entry]) -> bytes:
        """These entries in as few blocks as hold them; empty bytes for none."""
        blocks: list[bytes] = []
        payload = bytearray()
        for entry in entries:
            self._add(entry, payload)
            if len(payload) >= BLOCK_BYTES:
                blocks.append(_block(payload))
                payload.clear()
        if payload:
            blocks.append(_block(payload))
        return b"".join(blocks)

    def _add(self, entry: Entry, out: bytearray) -> None:
        if isinstance(entry, JournalDone):
            queue, worker = self._queue(entry.mq, out), self._worker(entry.worker_id, out)
            out += _DONE.pack(_K_DONE, queue, entry.start, entry.end, worker, entry.seq)
        elif isinstance(entry, JournalSealed):
            out += _SEALED.pack(_K_SEALED, self._worker(entry.worker_id, out), entry.seq)
        elif isinstance(entry, JournalCommitted):
            queue, at = self._queue(entry.mq, out), (entry.start, entry.offset)
            if entry.opened_ms:
                out += _OPENED.pack(_K_OPENED, queue, *at, entry.opened_ms)
            else:
                out += _COMMITTED.pack(_K_COMMITTED, queue, *at)
        elif isinstance(entry, JournalGoesOn):
            out += _GOES_ON.pack(_K_GOES_ON, self._queue(entry.mq, out), entry.at_ms)
        elif isinstance(entry, JournalSent):
            out += _SENT.pack(_K_SENT, self._queue(entry.mq, out), entry.offset)
        elif isinstance(entry, JournalRun):
            queue = 0 if entry.mq is None else self._queue(entry.mq, out)
            out += _RUN.pack(_K_RUN, queue, self._worker(entry.run, out))

    def _queue(self, mq: MessageQueue, out: bytearray) -> int:
        number = self._queues.get(mq)
        if number is None:
            number = self._queues[mq] = len(self._queues) + 1
            out += _name(_K_QUEUE, number, json.dumps(mq))
        return number

    def _worker(self, worker_id: str, out: bytearray) -> int:
        number = self._workers.get(worker_id)
        if number is None:
            number = self._workers[worker_id] = len(self._workers)
            out += _name(_K_WORKER, number, worker_id)
        return number


def _block(payload: bytearray) -> bytes:
    return _BLOCK.pack(len(payload), zlib.crc32(payload)) + payload


def _name(kind: int, number: int, text: str) -> bytes:
    raw = text.encode()
    return _NAME.pack(kind, number, len(raw)) + raw


def snapshot(state: JournalState) -> tuple[bytes, JournalEncoder]:
    """The whole state as the bytes of a new journal, and the encoder that continues it."""
    encoder = JournalEncoder()
    entries: list[Entry] = []
    for mq, log in state.queues.items():
        if log.committed >= 0 or log.opened_ms:
            entries.append(JournalCommitted(mq, log.start, log.committed, log.opened_ms))
        if log.sent > log.committed:
            entries.append(JournalSent(mq, log.sent))
        entries.extend(JournalDone(mq, start, end, "", 0) for start, end in log.durable.pairs())
        if log.run:
            entries.append(JournalRun(mq, log.run))
    for (worker_id, seq), held in state.pending.items():
        for mq, offsets in held.items():
            entries.extend(JournalDone(mq, start, end, worker_id, seq) for start, end in offsets.pairs())
    if state.run:
        entries.append(JournalRun(None, state.run))  # the last: with it an opening that is read is one of this run
    return MAGIC + encoder.blocks(entries), encoder


def replay(data: bytes, where: str) -> tuple[JournalState, int]:
    """The state that the bytes hold, and how many bytes of them are whole.

    Raises LaterVersionError when a later version has written `data`, JournalError when it is no journal of this one (`where`
    names the file in the message). An empty file is an empty journal: a process may die between making it and writing the
    header.
    """
    state = JournalState()
    if len(data) < len(MAGIC):
        return state, 0
    magic = data[: len(MAGIC)]
    if magic[:-1] == MAGIC[:-1] and magic[-1:].isdigit() and magic > MAGIC:
        raise later_version(where, f"format {magic[-1:].decode()}", int(MAGIC[-1:]))
    if magic != MAGIC:
        raise JournalError(
            f"{where} is not a rocketcrew journal of this version (it begins with {data[:4]!r}): move it away to start"
            " without it, messages that were finished but not committed will run again"
        )
    at = len(MAGIC)
    names = _Names()
    while at + _BLOCK.size <= len(data):
        length, crc = _BLOCK.unpack_from(data, at)
        end = at + _BLOCK.size + length
        payload = data[at + _BLOCK.size : end]
        # Zeros are no block: a loss of power may leave a page of them, and the checksum of nothing is zero.
        if not 0 < length <= BLOCK_BYTES_MAX or end > len(data) or zlib.crc32(payload) != crc:
            break
        try:
            for entry in _records(payload, names, where):
                state.apply(entry)
        except (struct.error, LookupError, ValueError, TypeError) as error:
            raise JournalError(
                f"{where} is damaged at byte {at} ({error!r}): move it away to start without it, messages that were finished"
                " but not committed will run again"
            ) from error
        at = end
    return state, at


@dataclass(slots=True)
class _Names:
    queues: dict[int, MessageQueue] = field(default_factory=dict[int, MessageQueue])
    workers: dict[int, str] = field(default_factory=lambda: {0: ""})


def _records(payload: bytes, names: _Names, where: str) -> Iterator[Entry]:
    at = 0
    while at < len(payload):
        kind = payload[at]
        if kind == _K_DONE:
            _, queue, start, end, worker, seq = _DONE.unpack_from(payload, at)
            at += _DONE.size
            yield JournalDone(names.queues[queue], start, end, names.workers[worker], seq)
        elif kind == _K_SEALED:
            _, worker, seq = _SEALED.unpack_from(payload, at)
            at += _SEALED.size
            yield JournalSealed(names.workers[worker], seq)
        elif kind == _K_COMMITTED:
            _, queue, start, offset = _COMMITTED.unpack_from(payload, at)
            at += _COMMITTED.size
            yield JournalCommitted(names.queues[queue], start, offset)
        elif kind == _K_SENT:
            _, queue, offset = _SENT.unpack_from(payload, at)
            at += _SENT.size
            yield JournalSent(names.queues[queue], offset)
        elif kind == _K_OPENED:
            _, queue, start, offset, opened_ms = _OPENED.unpack_from(payload, at)
            at += _OPENED.size
            yield JournalCommitted(names.queues[queue], start, offset, opened_ms)
        elif kind == _K_GOES_ON:
            _, queue, at_ms = _GOES_ON.unpack_from(payload, at)
            at += _GOES_ON.size
            yield JournalGoesOn(names.queues[queue], at_ms)
        elif kind == _K_RUN:
            _, queue, run = _RUN.unpack_from(payload, at)
            at += _RUN.size
            yield JournalRun(names.queues[queue] if queue else None, names.workers[run])
        elif kind in (_K_QUEUE, _K_WORKER):
            _, number, length = _NAME.unpack_from(payload, at)
            at += _NAME.size
            text = payload[at : at + length].decode()
            at += length
            if kind == _K_QUEUE:
                topic, broker_name, queue_id = json.loads(text)
                names.queues[number] = MessageQueue(topic, broker_name, queue_id)
            else:
                names.workers[number] = text
        else:
            raise (
                later_version(where, f"records of kind {kind}", _K_RUN) if kind > _K_RUN else ValueError(f"kind {kind}")
            )
