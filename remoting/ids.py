"""Message ids: offset ids, and the client's unique ids (UNIQ_KEY).

Sources: CO/message/{MessageDecoder,MessageClientIDSetter}.java, CO/UtilAll.java. Pure: address, pid, random number and clock
are handed in.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from ipaddress import AddressValueError, IPv6Address, ip_address
from typing import NamedTuple

from .errors import ProtocolError, UsageError
from .properties import PROPERTY_UNIQ_KEY


@lru_cache(maxsize=1024)
def host_text(packed: bytes) -> str:
    """An address of 4 or 16 bytes as text. Raises ProtocolError on any other length."""
    if len(packed) == 4:
        return ".".join(map(str, packed))
    try:
        return IPv6Address(packed).compressed
    except AddressValueError:
        raise ProtocolError(f"{len(packed)} bytes are neither IPv4 nor IPv6", "host address") from None


@lru_cache(maxsize=1024)
def host_bytes(host: str) -> bytes:
    """An address as 4 or 16 bytes; IPv6 may stand in brackets. Raises UsageError when it is a name or nonsense."""
    try:
        return ip_address(host.strip("[]")).packed
    except ValueError:
        raise UsageError(f"{host!r} is not an IP address; hosts in messages and ids are addresses, not names") from None


class OffsetId(NamedTuple):
    """What an offset message id says: the broker that stored the record, and where in its commit log."""

    host: str
    port: int
    physical_offset: int


def offset_message_id(host: str, port: int, physical_offset: int) -> str:
    """Upper-case hex of address, int32 port and int64 commit log offset: 32 characters for IPv4, 56 for IPv6."""
    number = (port & 0xFFFFFFFF) << 64 | (physical_offset & 0xFFFFFFFFFFFFFFFF)
    return host_bytes(host).hex().upper() + f"{number:024X}"


def parse_offset_message_id(text: str) -> OffsetId:
    """The parts of an offset message id. Raises ProtocolError when it is none (a unique id may look like one)."""
    try:
        raw = bytes.fromhex(text) if len(text) in (32, 56) else b""
    except ValueError:
        raw = b""
    if len(raw) not in (16, 28) or len(raw) * 2 != len(text):
        raise ProtocolError(f"{text!r:.80} is not 32 or 56 hexadecimal digits", "offset message id")
    split = len(raw) - 12
    port = int.from_bytes(raw[split : split + 4], "big", signed=True)
    offset = int.from_bytes(raw[split + 4 :], "big", signed=True)
    return OffsetId(host_text(raw[:split]), port, offset)


def message_id(properties: Mapping[str, str], store_host: str, store_port: int, physical_offset: int) -> str:
    """The id that clients show: the producer's unique key, else the offset id."""
    unique = properties.get(PROPERTY_UNIQ_KEY)
    return unique or offset_message_id(store_host, store_port, physical_offset)


class UniqueIds:
    """Makes UNIQ_KEYs of one process: address, int16 pid, int32 random, int32 ms since the month began, int16 counter.

    The month is that of the local time zone, as in Java, and is looked at again where the clock is outside of it, also when
    it was set back. The counter wraps; 65536 ids in one millisecond repeat none.
    """

    def __init__(self, host: str, pid: int, random_bits: int) -> None:
        prefix = host_bytes(host) + (pid & 0xFFFF).to_bytes(2, "big") + (random_bits & 0xFFFFFFFF).to_bytes(4, "big")
        self._prefix = prefix.hex().upper()
        self._counter = 0
        self._month_start_ms = 0
        self._month_end_ms = 0

    def next(self, now_ms: int) -> str:
        """A new id: 32 characters with an IPv4 address, 56 with IPv6. `now_ms` is the wall clock since 1970."""
        if not self._month_start_ms <= now_ms < self._month_end_ms:
            self._month_start_ms, self._month_end_ms = _month_of(now_ms)
        since_ms = now_ms - self._month_start_ms & 0xFFFFFFFF
        counter = self._counter
        self._counter = (counter + 1) & 0xFFFF
        return f"{self._prefix}{since_ms:08X}{counter:04X}"


def _month_of(now_ms: int) -> tuple[int, int]:
    """First instant of the local month of `now_ms`, and of the next one, in milliseconds since 1970."""
    # Naive on purpose: naive datetimes are local time, by whose months Java counts.
    now = datetime.fromtimestamp(now_ms / 1000)  # noqa: DTZ006
    start = datetime(now.year, now.month, 1)  # noqa: DTZ001
    following = datetime(now.year + now.month // 12, now.month % 12 + 1, 1)  # noqa: DTZ001
    return int(start.timestamp() * 1000), int(following.timestamp() * 1000)
