"""TRACES packets, worker -> supervisor: trace records on their way to the trace topic.

    TRACES  u8 kind, JSON [[text, [key, ...]], ...]

As many packets as are needed; a record that fits none alone is left out.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from ..remoting.errors import ProtocolError
from ..remoting.traces import TraceRecord
from .packets import PACKET_MAX_BYTES, Buffer

TRACES: Final = 32
_OVERHEAD_BYTES = 3  # kind and brackets


def encode_traces(records: Sequence[TraceRecord], packet_max_bytes: int = PACKET_MAX_BYTES) -> list[bytes]:
    """Packets of at most `packet_max_bytes`."""
    found: list[bytes] = []
    parts: list[bytes] = []
    size = _OVERHEAD_BYTES
    for record in records:
        part = json.dumps([record.text, record.keys], separators=(",", ":")).encode()
        if len(part) + _OVERHEAD_BYTES > packet_max_bytes:
            continue
        if parts and size + len(part) + 1 > packet_max_bytes:
            found.append(_packet(parts))
            parts, size = [], _OVERHEAD_BYTES
        parts.append(part)
        size += len(part) + 1
    if parts:
        found.append(_packet(parts))
    return found


def _packet(parts: Sequence[bytes]) -> bytes:
    return bytes((TRACES,)) + b"[" + b",".join(parts) + b"]"


def decode_traces(packet: Buffer) -> list[TraceRecord]:
    """Raises ProtocolError."""
    try:
        return [TraceRecord(str(text), tuple(map(str, keys))) for text, keys in json.loads(bytes(packet[1:]))]
    except (ValueError, TypeError) as error:
        raise ProtocolError(f"not trace records: {error}", "TRACES packet") from error
