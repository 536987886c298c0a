"""Compressed message bodies (CO/compression/*.java, CO/sysflag/MessageSysFlag.java).

ZLIB is zlib-wrapped deflate, LZ4 and ZSTD are one or more frames of their *frame* formats, skippable ones among them. What a
body may grow to is bounded, since a few bytes can claim gigabytes; a body that ends in the middle of its stream is an error,
never a short result.

The blocks of an LZ4 frame that we write do not refer to each other: lz4-java can't read those that do, and Java's client
drops the whole pull with them.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from enum import IntEnum
from typing import Any

import lz4.frame
import zstandard

from .codes import SYSFLAG_COMPRESSED, SYSFLAG_COMPRESSION_MASK, SYSFLAG_COMPRESSION_SHIFT
from .errors import ProtocolError, UsageError

DECOMPRESSED_MAX_BYTES = 64 * 1024 * 1024
LEVEL_DEFAULT = 5
# Frames are read by steps of so many bytes: what follows one is looked at again, so that more would make many small frames
# cost the square of their number. And zstandard's streaming call has no output limit of its own: 1 KiB of input holds at most
# 256 blocks of 128 KiB, which overshoots the limit by 32 MiB at the worst. LZ4 grows 255-fold at most.
_ZSTD_STEP_BYTES = 1024
_LZ4_STEP_BYTES = 4096
FRAMES_MAX = 1024
"""Of one body; producers write one. 4 MB of frames without content would take a second."""
_ZSTD_WINDOW_MAX_BYTES = 1 << 27


class Compression(IntEnum):
    """The kind in bits 8-10 of a message's sysFlag. Older producers leave it 0, which means ZLIB as well."""

    LZ4 = 1
    ZSTD = 2
    ZLIB = 3


def compression_sysflag(kind: Compression) -> int:
    """The sysFlag bits of a body compressed in this way."""
    return SYSFLAG_COMPRESSED | kind << SYSFLAG_COMPRESSION_SHIFT


def compress(
    body: bytes | bytearray | memoryview, kind: Compression = Compression.ZLIB, level: int = LEVEL_DEFAULT
) -> bytes:
    """Compress a body as a producer does. `level` is 1..9 (LZ4 ignores it). Raises UsageError on another level."""
    if not 1 <= level <= 9:
        raise UsageError(f"compression level {level} is outside 1..9")
    if kind == Compression.ZLIB:
        return zlib.compress(body, level)
    if kind == Compression.LZ4:
        return lz4.frame.compress(body, block_linked=False)
    return zstandard.ZstdCompressor(level=level).compress(body)


def decompress(
    body: bytes | bytearray | memoryview, sysflag: int, output_max_bytes: int = DECOMPRESSED_MAX_BYTES
) -> bytes:
    """The body as it was sent by the user: inflated when sysFlag bit 0 says so, else as it is.

    Raises ProtocolError when the kind is unknown, the stream is damaged, cut off or followed by junk, has more than
    `FRAMES_MAX` frames, or grows beyond `output_max_bytes`.
    """
    if not sysflag & SYSFLAG_COMPRESSED:
        return bytes(body)
    kind = (sysflag & SYSFLAG_COMPRESSION_MASK) >> SYSFLAG_COMPRESSION_SHIFT
    name, inflate = _INFLATERS.get(kind, (None, None))
    if name is None or inflate is None:
        raise ProtocolError(f"compression kind {kind} is none of 0, 1, 2, 3", "message sysFlag")
    where = f"{name} body of {len(body)} bytes"
    try:
        result, rest = inflate(bytes(body), output_max_bytes)
    except (zlib.error, zstandard.ZstdError, RuntimeError, EOFError) as error:
        raise ProtocolError(f"damaged: {error}", where) from None
    if len(result) > output_max_bytes:
        raise ProtocolError(f"grows beyond {output_max_bytes} bytes", where)
    if rest is None:
        raise ProtocolError("ends in the middle of the stream", where)
    if rest:
        raise ProtocolError(f"{rest} bytes follow the end of the stream", where)
    return result


def _inflate_zlib(body: bytes, limit: int) -> tuple[bytes, int | None]:
    stream = zlib.decompressobj()
    result = stream.decompress(body, limit + 1)
    return result, len(stream.unused_data) if stream.eof else None


def _inflate_lz4(body: bytes, limit: int) -> tuple[bytes, int | None]:
    return _inflate_frames(body, limit, _LZ4_STEP_BYTES, lz4.frame.LZ4FrameDecompressor)


def _inflate_zstd(body: bytes, limit: int) -> tuple[bytes, int | None]:
    context = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_MAX_BYTES)
    return _inflate_frames(body, limit, _ZSTD_STEP_BYTES, context.decompressobj)


def _inflate_frames(body: bytes, limit: int, step_bytes: int, begin: Callable[[], Any]) -> tuple[bytes, int | None]:
    """`begin` makes what reads one frame."""
    parts: list[bytes] = []
    total = frames = 0
    stream = None
    position = 0
    while position < len(body) and total <= limit:
        if stream is None:
            frames += 1
            if frames > FRAMES_MAX:
                raise EOFError(f"more than {FRAMES_MAX} frames")
            stream = begin()
        step = body[position : position + step_bytes]
        part = stream.decompress(step)
        total += len(part)
        parts.append(part)
        position += len(step)
        if stream.eof:
            position -= len(stream.unused_data or b"")
            stream = None
    return b"".join(parts), 0 if body and stream is None else None


_INFLATERS: dict[int, tuple[str, Callable[[bytes, int], tuple[bytes, int | None]]]] = {
    0: ("zlib", _inflate_zlib),
    Compression.LZ4: ("lz4", _inflate_lz4),
    Compression.ZSTD: ("zstd", _inflate_zstd),
    Compression.ZLIB: ("zlib", _inflate_zlib),
}
