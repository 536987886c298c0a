"""Java's `String.hashCode`, by which brokers filter tags."""

from __future__ import annotations


def java_hash(text: str, front: int = 0) -> int:
    """`String.hashCode()` of `text`: s[0]*31^(n-1) + ... over UTF-16 units, wrapped to a signed int32.

    With `front`, the hash of a text before it, that of both together.
    """
    value = front & 0xFFFFFFFF
    if text.isascii():
        for unit in text.encode():
            value = (value * 31 + unit) & 0xFFFFFFFF
    else:
        raw = text.encode("utf-16-be", "surrogatepass")
        for high, low in zip(raw[::2], raw[1::2], strict=True):
            value = (value * 31 + (high << 8 | low)) & 0xFFFFFFFF
    return value - 0x100000000 if value & 0x80000000 else value
