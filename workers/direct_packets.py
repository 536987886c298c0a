"""Packets for a message that is consumed directly, on an administrator's request; see packets.py for the others.

supervisor -> worker
    DIRECT    u8 kind, u32 request, u64 slab_offset, u32 length, u16 length of what follows, a QUEUE packet (its handle means
              nothing) [, the record inline on a stream]
worker -> supervisor
    DIRECTED  u8 kind, u32 request, u32 spent_ms, u8 length of the result, result, UTF-8 remark
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from ..remoting.errors import ProtocolError
from .packets import DIRECT, DIRECTED, U32_MAX, Buffer, QueueInfo, decode_queue, encode_queue

_DIRECT = Struct("<BIQIH")
_DIRECTED = Struct("<BIIB")


class Refused(Exception):
    """The message cannot be consumed directly now; the text says why."""


class Direct(NamedTuple):
    """One record, `length` bytes at `slab_offset`, for a single call of the handler; on a stream it stands at
    `payload_at` of the packet."""

    request: int
    slab_offset: int
    length: int
    queue: QueueInfo
    payload_at: int


class DirectResult(NamedTuple):
    """What the handler made of it: `result` is a name of CMResult.java, `remark` the error's text."""

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
