"""Addresses as RocketMQ writes them.

Pure. A name server list is one string separated by `;` (and, as users write it, by `,`); an HTTP end point keeps only
the part behind its last slash (common/utils/NameServerAddressUtils.java). Broker addresses come from routes as
`ip:port`, for IPv6 with or without brackets. All of this is checked here once, so that a connection attempt fails for
network reasons only and never for a spelling.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from ..remoting.errors import UsageError

PORT_MAX = 65_535
NAME_SERVERS_MAX = 64
_PORT = re.compile("[0-9]{1,5}")


@lru_cache(maxsize=1024)
def split_address(address: str) -> tuple[str, int]:
    """The host (without brackets) and port (1..65535) of `host:port`; UsageError says what is wrong with it."""
    host, colon, port_text = address.strip().rpartition(":")
    if not colon or not host:
        raise UsageError(f"address {address!r} is not host:port (for example 127.0.0.1:9876)")
    if not _PORT.fullmatch(port_text) or not 0 < int(port_text) <= PORT_MAX:
        raise UsageError(f"address {address!r}: port {port_text!r} is not a number from 1 to {PORT_MAX}")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if not host or not host.isprintable() or " " in host:
        raise UsageError(f"address {address!r}: the host is empty or contains blanks or control characters")
    return host, int(port_text)


def split_name_servers(text: str | Iterable[str]) -> list[str]:
    """Name server addresses of one string (`a:9876;b:9876`) or of several, in order, without doubles; each checked."""
    parts = [text] if isinstance(text, str) else list(text)
    found: list[str] = []
    for part in parts:
        for piece in part.replace(",", ";").split(";"):
            address = _without_scheme(piece.strip())
            if address and address not in found:
                split_address(address)
                found.append(address)
    if len(found) > NAME_SERVERS_MAX:
        raise UsageError(f"{len(found)} name servers given, at most {NAME_SERVERS_MAX} are supported")
    return found


def _without_scheme(address: str) -> str:
    if "://" not in address:
        return address
    return address.rstrip("/").rpartition("/")[2]
