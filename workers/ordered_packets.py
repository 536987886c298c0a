"""Packets of the ordered modes, beside those of packets.py: dispatches, questions for keys, and what is given back.

supervisor -> worker
    ORDERED   u8 kind, u16 chunks, u64 start_before_ns (monotonic, 0 = no limit), then one entry of 30 bytes a chunk:
                u64 chunk_id, u32 handle, u64 slab_offset, u32 length, u16 records, u16 lane, u16 tried;
              then for each chunk u32 x tried: how often its first records were tried before
              [, on a stream the payloads of all chunks, back to back]
    CLASSIFY  u8 kind, u32 handle, u64 slab_offset, u32 length, u16 records [, payload inline on a stream]
worker -> supervisor
    RETURNED  u8 kind, u64 chunk_id, u16 start, u16 failed, u8 cause, u8 level, i32 suspend_ms, UTF-8 text
    CONSUMED  u8 kind, u64 chunk_id
    KEYS      u8 kind, u32 handle, u16 count, then 16 bytes a record: a digest of its key, zeros = none

A report never has a failure in these modes: what failed is given back, with everything after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from struct import error as StructError
from typing import Final, NamedTuple

from ..remoting.errors import ProtocolError
from .failures import Cause, Failure
from .packets import ERROR_MAX_BYTES, Buffer, clip

ORDERED: Final = 8
CLASSIFY: Final = 9
RETURNED: Final = 48
CONSUMED: Final = 49
KEYS: Final = 50

KEY_BYTES: Final = 16
NO_KEY: Final = bytes(KEY_BYTES)

NO_FAILURE: Final = Failure(Cause.FAILED)

_HEAD = Struct("<BHQ")
_CHUNK = Struct("<QIQIHHH")
_CLASSIFY = Struct("<BIQIH")
_RETURNED = Struct("<BQHHBBi")
_CONSUMED = Struct("<BQ")
_KEYS = Struct("<BIH")


class OrderedDescriptor(NamedTuple):
    """One chunk of a dispatch: `records` records in `length` bytes at `slab_offset`, or at that place of the payload."""

    chunk_id: int
    handle: int
    slab_offset: int
    length: int
    records: int
    lane: int
    tried: tuple[int, ...]


class Returned(NamedTuple):
    """Records from `start` on are not finished; the first `failed` of them were tried, and the first one ended with `failure`
    (None when none was tried). `suspend_ms` -1 = as configured, 0 = nothing is to be waited for."""

    chunk_id: int
    start: int
    failed: int = 0
    failure: Failure | None = None
    suspend_ms: int = 0


class Classify(NamedTuple):
    """A question for the keys of `records` records."""

    handle: int
    slab_offset: int
    length: int
    records: int


def encode_ordered(chunks: Sequence[OrderedDescriptor], start_before_ns: int) -> bytes:
    """The dispatch; `slab_offset` is not used on a stream, where the payloads follow."""
    entries = [_CHUNK.pack(*chunk[:6], len(chunk.tried)) for chunk in chunks]
    tried = [count for chunk in chunks for count in chunk.tried]
    return b"".join(
        (_HEAD.pack(ORDERED, len(chunks), start_before_ns), *entries, Struct(f"<{len(tried)}I").pack(*tried))
    )


def decode_ordered(packet: Buffer) -> tuple[list[OrderedDescriptor], int, int]:
    """The chunks, start_before_ns, and where an inline payload starts. Raises ProtocolError."""
    try:
        _, count, start_before_ns = _HEAD.unpack_from(packet)
        entries = [_CHUNK.unpack_from(packet, _HEAD.size + number * _CHUNK.size) for number in range(count)]
        at = _HEAD.size + count * _CHUNK.size
        chunks: list[OrderedDescriptor] = []
        for entry in entries:
            layout = Struct(f"<{entry[6]}I")
            chunks.append(OrderedDescriptor._make((*entry[:6], layout.unpack_from(packet, at))))
            at += layout.size
        return chunks, start_before_ns, at
    except StructError as error:
        raise ProtocolError(str(error), "ORDERED packet") from error


def encode_returned(returned: Returned) -> bytes:
    """RETURNED packet; the text is cut to ERROR_MAX_BYTES."""
    failure = returned.failure or NO_FAILURE
    head = _RETURNED.pack(
        RETURNED, returned.chunk_id, returned.start, returned.failed, failure.cause, failure.level, returned.suspend_ms
    )
    return head + clip(failure.error, ERROR_MAX_BYTES).encode()


def decode_returned(packet: Buffer) -> Returned:
    """Raises ProtocolError."""
    try:
        _, chunk_id, start, failed, cause, level, suspend_ms = _RETURNED.unpack_from(packet)
        failure = Failure(Cause(cause), bytes(packet[_RETURNED.size :]).decode("utf-8", "replace"), level)
    except (StructError, ValueError) as error:
        raise ProtocolError(str(error), "RETURNED packet") from error
    return Returned(chunk_id, start, failed, failure if failed else None, suspend_ms)


def encode_consumed(chunk_id: int) -> bytes:
    """All of the chunk ran and is not committed."""
    return _CONSUMED.pack(CONSUMED, chunk_id)


def decode_consumed(packet: Buffer) -> int:
    """The chunk's id. Raises ProtocolError."""
    try:
        chunk_id: int = _CONSUMED.unpack_from(packet)[1]
        return chunk_id
    except StructError as error:
        raise ProtocolError(str(error), "CONSUMED packet") from error


def encode_classify(question: Classify) -> bytes:
    """CLASSIFY packet."""
    return _CLASSIFY.pack(CLASSIFY, *question)


def decode_classify(packet: Buffer) -> tuple[Classify, int]:
    """The question, and where an inline payload starts. Raises ProtocolError."""
    try:
        return Classify._make(_CLASSIFY.unpack_from(packet)[1:]), _CLASSIFY.size
    except StructError as error:
        raise ProtocolError(str(error), "CLASSIFY packet") from error


def encode_keys(handle: int, digests: Sequence[bytes]) -> bytes:
    """KEYS packet: one digest of KEY_BYTES a record, NO_KEY = in no order."""
    return _KEYS.pack(KEYS, handle, len(digests)) + b"".join(digests)


def decode_keys(packet: Buffer) -> tuple[int, list[bytes | None]]:
    """Queue handle, and a digest or None for each record. Raises ProtocolError."""
    try:
        _, handle, count = _KEYS.unpack_from(packet)
    except StructError as error:
        raise ProtocolError(str(error), "KEYS packet") from error
    body = bytes(packet[_KEYS.size :])
    if len(body) != count * KEY_BYTES:
        raise ProtocolError(f"{len(body)} bytes for {count} keys", "KEYS packet")
    found = [body[at : at + KEY_BYTES] for at in range(0, len(body), KEY_BYTES)]
    return handle, [None if digest == NO_KEY else digest for digest in found]
