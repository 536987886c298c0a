"""What travels between the supervisor and one worker: pure packing and unpacking, no I/O.

One packet is one datagram of the SEQPACKET pair (or one frame of the stream pair, see link.py). Its first byte is the
kind. Numbers are little-endian and unpadded: both ends are the same machine and the same build.

supervisor -> worker
    QUEUE     u8 kind, u32 handle, JSON {group, topic, broker_name, queue_id, tags}
    CHUNK     u8 kind, u64 chunk_id, u32 handle, u64 slab_offset, u32 length, u16 records, bool window_open, bool journalled
              [, payload inline on a stream]
    FORGET    u8 kind, u32 handle for each queue whose assignment has ended
    SEAL      u8 kind
    STOP      u8 kind, u64 ns: the process is killed when the monotonic clock says so; 0 = that is not known
    DIRECT    u8 kind, u32 request, u64 slab_offset, u32 length, u16 length of what follows, a QUEUE packet (its handle means
              nothing) [, the record inline on a stream]: a message that an administrator wants consumed
worker -> supervisor
    READY        u8 kind, u32 pid, JSON {schema, handler, batch, order, key, key_function, auto_commit}
    BOOT_FAILED  u8 kind, JSON {error, traceback}
    REPORTS     u8 kind, u16 entries, u16 failures, then entries of 28 bytes, then failures
                   entry    u64 chunk_id, u16 start, u16 records, u32 segment_seq, u32 busy_us, u32 slowest_us,
                            u16 filtered, u16 failed
                   failure  u16 entry number, u16 position, u8 cause, u8 level, u16 length, UTF-8 text
    SEALED       u8 kind, u32 seq, u64 rows, u64 bytes, UTF-8 name
    SALVAGED     u8 kind, JSON {file, worker, seq, sealed_name, rows, bytes, messages, last}
    SALVAGE_DONE u8 kind: everything that it was to salvage is reported; the handler is not imported yet
    DIRECTED     u8 kind, u32 request, u32 spent_ms, u8 length of the result, result, UTF-8 remark
    NOTICE       u8 kind, JSON {"about": ..., ...}, small and rare, where "about" is one of
                   "wants out": replace me, `reason`; I go on until my successor is ready
                   "leaves": I end now, between two messages, for `reason`; what I have not reported goes to others
                   "progress": how far the message in hand is: `done`, `total` or null, `text`
                   "window": calls of so many `chunks` can be under way at me side by side
    TRACES       u8 kind, JSON [[text, [key, ...]], ...]: trace records on their way to the trace topic, in as many packets as
                 are needed; a record that fits none alone is left out

Fixed entries come first and the failures after them, so that a packet without failures, which is nearly every one, is
unpacked by one call. JSON is for what happens once per queue, worker or segment. Ordered modes: ordered_packets.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from json import dumps, loads  # bound here: a handler's module may put a function of its own into `json`
from struct import Struct
from struct import error as StructError
from typing import Any, Final, NamedTuple, cast

from ..remoting.errors import ProtocolError
from ..remoting.traces import TraceRecord
from .failures import Cause, Failure

Buffer = bytes | bytearray | memoryview

QUEUE: Final = 1
CHUNK: Final = 2
SEAL: Final = 3
STOP: Final = 4
DIRECT: Final = 5
FORGET: Final = 6
READY: Final = 16
BOOT_FAILED: Final = 17
REPORTS: Final = 18
SEALED: Final = 19
SALVAGED: Final = 20
DIRECTED: Final = 21
SALVAGE_DONE: Final = 22
NOTICE: Final = 31
TRACES: Final = 32

WANTS_OUT: Final = "wants out"
LEAVES: Final = "leaves"
PROGRESS: Final = "progress"
WINDOW: Final = "window"
SETS_UP: Final = "sets up"
STARTS_LARGE: Final = "starts large"
"""What a NOTICE is about."""

PACKET_MAX_BYTES: Final = 60_000
"""Bound of every packet without inline payload: under 64 KiB, so that one receive buffer and the default SO_SNDBUF fit."""
ERROR_MAX_BYTES: Final = 500
"""Bound of one failure's text."""

U32_MAX: Final = 0xFFFF_FFFF

_HANDLE = Struct("<BI")
BLOCK_MESSAGES: Final = 512
"""Messages with rows of which a worker makes one block, while its window is open. Beyond that a block makes rows hardly
cheaper."""

CHUNK_STRUCT: Final = Struct("<BQIQIH??")
"""kind, chunk_id, handle, slab_offset, length, records, window_open, journalled."""
CHUNK_HEAD_BYTES: Final = CHUNK_STRUCT.size
_STOP = Struct("<BQ")
_REPORTS_HEAD = Struct("<BHH")
_ENTRY = Struct("<QHHIIIHH")
_FAILURE = Struct("<HHBBH")
_SEALED = Struct("<BIQQ")
_DIRECT = Struct("<BIQIH")
_DIRECTED = Struct("<BIIB")
_TRACES_OVERHEAD_BYTES = 3  # kind and brackets


class QueueInfo(NamedTuple):
    """The queue that records are pulled or `popped` from, as the worker needs it. `tags` None = every message is wanted.

    `group` and `topic` are as brokers know them; with a `namespace` messages show the plain topic.
    """

    group: str
    topic: str
    broker_name: str
    queue_id: int
    tags: tuple[str, ...] | None = None
    namespace: str = ""
    popped: bool = False


class ChunkDescriptor(NamedTuple):
    """`records` records (an inner batch counts as one) in `length` bytes at `slab_offset` of the slab."""

    chunk_id: int
    handle: int
    slab_offset: int
    length: int
    records: int
    window_open: bool = False
    journalled: bool = False


class Report(NamedTuple):
    """Records `start .. start+records-1` of the chunk are finished; `failed` of them are in the packet's failures.

    `segment_seq` is the segment that holds rows of this run, 0 when there are none: the run is durable once SEALED with
    this or a higher seq has come. `busy_us` sums the handler's time, `slowest_us` is the longest single call (both
    saturate at 2**32-1), `filtered` counts messages that the handler did not get because of their tag.
    """

    chunk_id: int
    start: int
    records: int
    segment_seq: int
    busy_us: int
    slowest_us: int
    filtered: int
    failed: int


class QueueRanges(NamedTuple):
    """Queue offsets [from, to) of one queue that was pulled from."""

    topic: str
    broker_name: str
    queue_id: int
    ranges: tuple[tuple[int, int], ...]


class Ready(NamedTuple):
    """The worker has its handler and waits. `schema` is DDL text, None without result columns; `order` "" = none."""

    pid: int
    handler: str
    schema: str | None
    batch: bool
    order: str = ""
    key: str = ""
    key_function: bool = False
    auto_commit: bool = True


class BootFailed(NamedTuple):
    """The handler cannot be used; the worker exits with EXIT_HANDLER. `traceback` has the user's frames only."""

    error: str
    traceback: str


class Sealed(NamedTuple):
    """Segment `seq` is durable as `ready/<name>`."""

    seq: int
    rows: int
    bytes: int
    name: str


class Salvaged(NamedTuple):
    """What was found in the open segment of a dead worker.

    `sealed_name` is its name in `ready/` (None: it held no complete batch and was removed). `messages` are the pulled
    records that are finished by it. As a packet the list may come in several parts; `last` marks the final one.
    """

    file: str
    worker: str
    seq: int
    sealed_name: str | None
    rows: int
    bytes: int
    messages: tuple[QueueRanges, ...]
    last: bool = True


def encode_queue(handle: int, queue: QueueInfo) -> bytes:
    """Describe a queue before its first chunk; the same handle again replaces it. Raises ProtocolError when too long."""
    return _bounded(_HANDLE.pack(QUEUE, handle) + _to_json(queue._asdict()), "QUEUE packet")


def encode_forget(handles: Sequence[int]) -> Iterable[bytes]:
    """These handles are not used any more: as many packets as it takes."""
    most = (PACKET_MAX_BYTES - 1) // 4
    for at in range(0, len(handles), most):
        part = handles[at : at + most]
        yield Struct(f"<B{len(part)}I").pack(FORGET, *part)


def decode_forget(packet: Buffer) -> tuple[int, ...]:
    """The handles of a FORGET packet. Raises ProtocolError."""
    handles, odd = divmod(len(packet) - 1, 4)
    if odd:
        raise ProtocolError(f"{len(packet)} bytes long", "FORGET packet")
    return _unpack(Struct(f"<B{handles}I"), packet, "FORGET packet")[1:]


def decode_queue(packet: Buffer) -> tuple[int, QueueInfo]:
    """Handle and queue of a QUEUE packet. Raises ProtocolError."""
    handle: int = _unpack(_HANDLE, packet, "QUEUE packet")[1]
    data = _from_json(packet, _HANDLE.size, "QUEUE packet")
    try:
        tags = data["tags"]
        wanted = None if tags is None else tuple(str(tag) for tag in tags)
        namespace = str(data["namespace"])
        return handle, QueueInfo(
            data["group"],
            data["topic"],
            data["broker_name"],
            int(data["queue_id"]),
            wanted,
            namespace,
            bool(data["popped"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"unusable field {error}", "QUEUE packet") from error


def encode_chunk(
    chunk_id: int, handle: int, slab_offset: int, length: int, records: int, *, window_open: bool = False,
    journalled: bool = False,
) -> bytes:  # fmt: skip
    """The descriptor; on a stream pair the payload follows it in the same frame. chunk_id u64 >= 1, records 1..65535.

    `window_open`: the worker can be given more before it has reported this chunk, so rows may wait for those of others.
    `journalled`: what ends of it is told to the journal, also by a start that finds it in the worker's cell."""
    return CHUNK_STRUCT.pack(CHUNK, chunk_id, handle, slab_offset, length, records, window_open, journalled)


def decode_chunk(packet: Buffer) -> ChunkDescriptor:
    """Descriptor of a CHUNK packet; an inline payload starts at CHUNK_HEAD_BYTES. Raises ProtocolError."""
    return ChunkDescriptor._make(_unpack(CHUNK_STRUCT, packet, "CHUNK packet")[1:])


def encode_seal() -> bytes:
    """Ask for the open segment to be sealed now."""
    return bytes((SEAL,))


def encode_stop(by_ns: int = 0) -> bytes:
    """Ask the worker to finish what came before this, seal and exit with code 0. It is killed when the monotonic clock, which
    is one for all processes, says `by_ns`; 0 = that is not known."""
    return _STOP.pack(STOP, by_ns)


def decode_stop(packet: Buffer) -> int:
    """`by_ns` of a STOP packet. Raises ProtocolError."""
    by_ns: int = _unpack(_STOP, packet, "STOP packet")[1]
    return by_ns


def encode_ready(ready: Ready) -> bytes:
    """READY packet."""
    data = {name: value for name, value in ready._asdict().items() if name != "pid"}
    return _bounded(_HANDLE.pack(READY, ready.pid) + _to_json(data), "READY packet")


def decode_ready(packet: Buffer) -> Ready:
    """Raises ProtocolError."""
    pid: int = _unpack(_HANDLE, packet, "READY packet")[1]
    data = _from_json(packet, _HANDLE.size, "READY packet")
    try:
        return Ready(pid, **data)
    except TypeError as error:
        raise ProtocolError(f"unusable field: {error}", "READY packet") from error


def encode_boot_failed(failed: BootFailed) -> bytes:
    """BOOT_FAILED packet; both texts are cut (the error at its end, the traceback at its beginning) to fit."""
    error = clip(failed.error, 4_000)
    traceback = failed.traceback.encode("utf-8", "replace")[-20_000:].decode("utf-8", "ignore")
    return bytes((BOOT_FAILED,)) + _to_json({"error": error, "traceback": traceback})


def decode_boot_failed(packet: Buffer) -> BootFailed:
    """Raises ProtocolError."""
    data = _from_json(packet, 1, "BOOT_FAILED packet")
    return BootFailed(str(data.get("error", "")), str(data.get("traceback", "")))


def encode_reports(entries: Sequence[Report], failures: Sequence[tuple[int, Failure]]) -> list[bytes]:
    """REPORTS packets, each <= PACKET_MAX_BYTES, for entries and their failures: (position in the chunk, why), in the
    order of the entries.

    Entry k owns the next `entries[k].failed` failures. One entry and its failures always share a packet, so the caller
    keeps the failures of one entry under about 100 (the worker closes a run early).
    """
    if not failures and len(entries) * _ENTRY.size + _REPORTS_HEAD.size <= PACKET_MAX_BYTES:
        head = _REPORTS_HEAD.pack(REPORTS, len(entries), 0)
        return [head + b"".join([_ENTRY.pack(*entry) for entry in entries])]
    return list(_split_reports(entries, failures))


def _split_reports(entries: Sequence[Report], failures: Sequence[tuple[int, Failure]]) -> Iterable[bytes]:
    heads: list[bytes] = []
    tails: list[bytes] = []
    size = _REPORTS_HEAD.size
    at = 0
    for entry in entries:
        own = [(place, failure, _text(failure)) for place, failure in failures[at : at + entry.failed]]
        at += entry.failed
        grown = _ENTRY.size + sum(len(text) + _FAILURE.size for _, _, text in own)
        if heads and size + grown > PACKET_MAX_BYTES:
            yield b"".join([_REPORTS_HEAD.pack(REPORTS, len(heads), len(tails)), *heads, *tails])
            heads, tails, size = [], [], _REPORTS_HEAD.size
        tails.extend(
            _FAILURE.pack(len(heads), place, failure.cause, failure.level, len(text)) + text
            for place, failure, text in own
        )
        heads.append(_ENTRY.pack(*entry))
        size += grown
    if heads:
        yield b"".join([_REPORTS_HEAD.pack(REPORTS, len(heads), len(tails)), *heads, *tails])


def _text(failure: Failure) -> bytes:
    return failure.error.encode("utf-8", "replace")[:ERROR_MAX_BYTES]


def decode_reports(packet: Buffer) -> tuple[list[Report], list[tuple[int, Failure]]]:
    """Entries and failures of an REPORTS packet (an empty list on the success path), as `encode_reports` has them. Raises
    ProtocolError."""
    try:
        _, count, failed = _REPORTS_HEAD.unpack_from(packet)
        end = _REPORTS_HEAD.size + count * _ENTRY.size
        if len(packet) < end:
            raise ProtocolError(f"{len(packet)} bytes are too few for {count} entries", "REPORTS packet")
        view = memoryview(packet)
        entries: list[Report] = list(map(Report._make, _ENTRY.iter_unpack(view[_REPORTS_HEAD.size : end])))
        return entries, _decode_failures(view[end:], failed, count) if failed else []
    except (StructError, ValueError) as error:
        raise ProtocolError(str(error), "REPORTS packet") from error


def _decode_failures(view: memoryview, count: int, entries: int) -> list[tuple[int, Failure]]:
    failures: list[tuple[int, Failure]] = []
    at = 0
    for _ in range(count):
        number, position, cause, level, length = _FAILURE.unpack_from(view, at)
        if number >= entries:
            raise ValueError(f"a failure of entry {number} of {entries}")
        at += _FAILURE.size
        text = bytes(view[at : at + length]).decode("utf-8", "ignore")
        at += length
        failures.append((position, Failure(Cause(cause), text, level)))
    return failures


def encode_sealed(sealed: Sealed) -> bytes:
    """SEALED packet."""
    return _SEALED.pack(SEALED, sealed.seq, sealed.rows, sealed.bytes) + sealed.name.encode()


def decode_sealed(packet: Buffer) -> Sealed:
    """Raises ProtocolError."""
    _, seq, rows, size = _unpack(_SEALED, packet, "SEALED packet")
    return Sealed(seq, rows, size, bytes(packet[_SEALED.size :]).decode("utf-8", "replace"))


def encode_salvaged(salvaged: Salvaged, packet_max_bytes: int = PACKET_MAX_BYTES) -> list[bytes]:
    """SALVAGED packets of one file: as many as its offset ranges need, the last one marked."""
    parts = _split_ranges(salvaged.messages, packet_max_bytes - 1_000)
    return [
        bytes((SALVAGED,)) + _to_json(salvaged._asdict() | {"messages": part, "last": number == len(parts) - 1})
        for number, part in enumerate(parts)
    ]


def _split_ranges(queues: Sequence[QueueRanges], room_bytes: int) -> list[list[QueueRanges]]:
    """Cut the ranges into lists whose JSON stays within `room_bytes` each; always at least one list."""
    parts: list[list[QueueRanges]] = [[]]
    left = room_bytes
    for queue in queues:
        head = len(_to_json(queue._replace(ranges=()))) + 1
        taken: list[tuple[int, int]] = []
        left -= head
        for pair in queue.ranges:
            size = len(_to_json(pair)) + 1
            if left < size and (taken or parts[-1]):
                if taken:
                    parts[-1].append(queue._replace(ranges=tuple(taken)))
                parts.append([])
                taken, left = [], room_bytes - head
            taken.append(pair)
            left -= size
        parts[-1].append(queue._replace(ranges=tuple(taken)))
    return parts


def decode_salvaged(packet: Buffer) -> Salvaged:
    """One part. Raises ProtocolError."""
    data = _from_json(packet, 1, "SALVAGED packet")
    try:
        messages = tuple(
            QueueRanges(topic, broker, queue_id, tuple((start, end) for start, end in ranges))
            for topic, broker, queue_id, ranges in data["messages"]
        )
        name = None if data["sealed_name"] is None else str(data["sealed_name"])
        file, worker, seq = str(data["file"]), str(data["worker"]), int(data["seq"])
        return Salvaged(file, worker, seq, name, int(data["rows"]), int(data["bytes"]), messages, bool(data["last"]))
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"unusable field {error}", "SALVAGED packet") from error


def clip(text: str, max_bytes: int = ERROR_MAX_BYTES) -> str:
    """`text` cut to `max_bytes` of UTF-8, never inside a character, with `…` where something is missing."""
    raw = text.encode("utf-8", "replace")
    if len(raw) <= max_bytes:
        return raw.decode()
    return raw[: max_bytes - 3].decode("utf-8", "ignore") + "…"


# A message that an administrator wants consumed.


class Refused(Exception):
    """The message cannot be consumed directly now; the text has the reason."""


class Direct(NamedTuple):
    """One record, `length` bytes at `slab_offset`, for a single call of the handler; on a stream it is at
    `payload_at` of the packet."""

    request: int
    slab_offset: int
    length: int
    queue: QueueInfo
    payload_at: int


SUCCESS: Final = "CR_SUCCESS"
LATER: Final = "CR_LATER"
THROW_EXCEPTION: Final = "CR_THROW_EXCEPTION"
"""Names of CMResult.java: what the handler made of a message that an administrator had it consume."""


class DirectResult(NamedTuple):
    """What the handler made of it: `result` is one of these names, `remark` the error's text."""

    request: int
    result: str
    spent_ms: int
    remark: str


def encode_direct(request: int, slab_offset: int, length: int, queue: QueueInfo) -> bytes:
    """DIRECT packet; on a stream pair the record follows it in the same frame. Raises ProtocolError when too long."""
    described = encode_queue(0, queue)
    return _DIRECT.pack(DIRECT, request, slab_offset, length, len(described)) + described


def decode_direct(packet: Buffer) -> Direct:
    """Raises ProtocolError."""
    try:
        _, request, slab_offset, length, size = _DIRECT.unpack_from(packet)
    except StructError as error:
        raise ProtocolError(str(error), "DIRECT packet") from error
    end = _DIRECT.size + size
    return Direct(request, slab_offset, length, decode_queue(packet[_DIRECT.size : end])[1], end)


def encode_directed(result: DirectResult) -> bytes:
    """DIRECTED packet; the caller bounds the remark."""
    name = result.result.encode()
    head = _DIRECTED.pack(DIRECTED, result.request, min(result.spent_ms, U32_MAX), len(name))
    return head + name + result.remark.encode("utf-8", "replace")


def decode_directed(packet: Buffer) -> DirectResult:
    """Raises ProtocolError."""
    try:
        _, request, spent_ms, size = _DIRECTED.unpack_from(packet)
        text = bytes(packet[_DIRECTED.size :])
        return DirectResult(request, text[:size].decode(), spent_ms, text[size:].decode("utf-8", "replace"))
    except (StructError, UnicodeDecodeError) as error:
        raise ProtocolError(str(error), "DIRECTED packet") from error


# Notices and traces.


def encode_notice(about: str, **facts: object) -> bytes:
    """NOTICE packet."""
    return bytes((NOTICE,)) + dumps({"about": about, **facts}).encode()


def decode_notice(packet: Buffer) -> dict[str, Any]:
    """Raises ProtocolError."""
    try:
        found: Any = loads(bytes(packet[1:]))
        return {"about": str(found["about"]), **found}
    except (ValueError, KeyError, TypeError) as error:
        raise ProtocolError(f"unusable: {error!r}", "NOTICE packet") from error


def progress_text(notice: dict[str, Any]) -> str:
    """How far a handler is, for people, as in "3/10 pages"."""
    total = "" if notice.get("total") is None else f"/{notice['total']}"
    return f"{notice.get('done')}{total} {notice.get('text', '')}".rstrip()


def encode_traces(records: Sequence[TraceRecord], packet_max_bytes: int = PACKET_MAX_BYTES) -> list[bytes]:
    """Packets of at most `packet_max_bytes`."""
    found: list[bytes] = []
    parts: list[bytes] = []
    size = _TRACES_OVERHEAD_BYTES
    for record in records:
        part = dumps([record.text, record.keys], separators=(",", ":")).encode()
        if len(part) + _TRACES_OVERHEAD_BYTES > packet_max_bytes:
            continue
        if parts and size + len(part) + 1 > packet_max_bytes:
            found.append(_traces_packet(parts))
            parts, size = [], _TRACES_OVERHEAD_BYTES
        parts.append(part)
        size += len(part) + 1
    if parts:
        found.append(_traces_packet(parts))
    return found


def _traces_packet(parts: Sequence[bytes]) -> bytes:
    return bytes((TRACES,)) + b"[" + b",".join(parts) + b"]"


def decode_traces(packet: Buffer) -> list[TraceRecord]:
    """Raises ProtocolError."""
    try:
        return [TraceRecord(str(text), tuple(map(str, keys))) for text, keys in loads(bytes(packet[1:]))]
    except (ValueError, TypeError) as error:
        raise ProtocolError(f"not trace records: {error}", "TRACES packet") from error


# Parts of packets.


def _bounded(packet: bytes, where: str) -> bytes:
    if len(packet) > PACKET_MAX_BYTES:
        raise ProtocolError(f"{len(packet)} bytes, more than {PACKET_MAX_BYTES}", where)
    return packet


def _unpack(layout: Struct, packet: Buffer, where: str) -> tuple[Any, ...]:
    try:
        return layout.unpack_from(packet)
    except StructError as error:
        raise ProtocolError(str(error), where) from error


def _to_json(data: object) -> bytes:
    return dumps(data, separators=(",", ":")).encode()


def _from_json(packet: Buffer, start: int, where: str) -> dict[str, Any]:
    try:
        data: Any = loads(bytes(packet[start:]))
    except ValueError as error:
        raise ProtocolError(f"not JSON: {error}", where) from error
    if not isinstance(data, dict):
        raise ProtocolError("not a JSON object", where)
    return cast("dict[str, Any]", data)
