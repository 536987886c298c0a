"""The body of a batch (code 320), and of a stored inner batch: small records back to back.

Per message: int32 total, int32 magic 0, int32 crc 0, int32 flag, int32 body length, body, int16 properties length, properties
(CO/message/MessageDecoder.java, encodeMessage/decodeMessage). Magic and crc are not looked at, as Java does not either.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from .errors import ProtocolError, UsageError
from .properties import PROPERTIES_MAX_BYTES

_FIXED = Struct(">iiiii")
_INT16 = Struct(">h")
_ENTRY_MIN_BYTES = _FIXED.size + _INT16.size


class BatchEntry(NamedTuple):
    """One message of a batch. `properties` is the raw property string."""

    flag: int
    body: bytes
    properties: bytes


def encode_batch(entries: Iterable[tuple[int, bytes, bytes | str]]) -> bytes:
    """The batch body of (flag, body, properties) entries. Raises UsageError when properties or flag do not fit."""
    parts: list[bytes] = []
    for flag, body, properties in entries:
        raw = properties.encode() if isinstance(properties, str) else properties
        if len(raw) > PROPERTIES_MAX_BYTES:
            raise UsageError(f"properties of {len(raw)} bytes; a message has at most {PROPERTIES_MAX_BYTES}")
        try:
            fixed = _FIXED.pack(_ENTRY_MIN_BYTES + len(body) + len(raw), 0, 0, flag, len(body))
        except StructError:
            raise UsageError(f"flag {flag} or body length {len(body)} is not an int32") from None
        parts += (fixed, body, _INT16.pack(len(raw)), raw)
    return b"".join(parts)


def decode_batch(data: bytes | bytearray | memoryview) -> list[BatchEntry]:
    """The messages of a batch body. Raises ProtocolError naming the byte where it stops making sense."""
    raw = bytes(data)
    return [BatchEntry(flag, raw[start:end], raw[end + 2 : following]) for flag, start, end, following in _places(raw)]


def count_batch(raw: bytes) -> int:
    """How many messages a batch body has; none is made. Raises as `decode_batch`."""
    return sum(1 for _ in _places(raw))


def _places(raw: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Of each message its flag, where its body starts and ends, and where the next message starts."""
    position, end = 0, len(raw)
    while position < end:
        if end - position < _ENTRY_MIN_BYTES:
            raise ProtocolError(f"{end - position} bytes are too few for a message", f"batch body, byte {position}")
        total, _magic, _crc, flag, body_len = _FIXED.unpack_from(raw, position)
        body_start = position + _FIXED.size
        body_end = body_start + body_len
        if total < _ENTRY_MIN_BYTES or position + total > end:
            raise ProtocolError(f"message size {total} does not fit", f"batch body, byte {position}")
        if body_len < 0 or body_end + 2 > position + total:
            raise ProtocolError(f"body length {body_len} does not fit", f"batch body, byte {position + 16}")
        (properties_len,) = _INT16.unpack_from(raw, body_end)
        next_position = body_end + 2 + properties_len
        if properties_len < 0 or next_position != position + total:
            raise ProtocolError(f"properties length {properties_len} does not fit", f"batch body, byte {body_end}")
        yield flag, body_start, body_end, next_position
        position = next_position
