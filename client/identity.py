"""Who this client is: IP, instance name, client id.

The broker sorts and compares client ids to split queues among the members of a group, and Java members do the same, so
the id has Java's form `ip@instance[@unit]` (client/ClientConfig.java buildMQClientId) and the instance name of a
clustering member becomes `pid#nanos` (changeInstanceNameToPID): two processes of one host must never share an id.

Which IP is a choice among facts; the choice is pure (`choose_ip`), the facts are collected in one place (`local_ips`).
"""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Iterable

import psutil

DEFAULT_INSTANCE_NAME = "DEFAULT"


def choose_ip(addresses: Iterable[str]) -> str:
    """The address a Java client would announce (common/utils/NetworkUtil.java getLocalAddress).

    The first public IPv4, else the last private one that is not loopback, else the first usable IPv6 in brackets, else
    127.0.0.1. `addresses` are texts as interfaces list them; what is no address is passed over.
    """
    private: str | None = None
    six: str | None = None
    for text in addresses:
        try:
            address = ipaddress.ip_address(text.partition("%")[0])
        except ValueError:
            continue
        if address.is_loopback or address.is_unspecified or address.is_multicast:
            continue
        if isinstance(address, ipaddress.IPv4Address):
            if not _internal(address):
                return str(address)
            private = str(address)
        elif not address.is_link_local and six is None:
            six = f"[{address}]"
    return private or six or "127.0.0.1"


def _internal(address: ipaddress.IPv4Address) -> bool:
    # Java's UtilAll.isInternalIP: 10/8, 172.16/12, 192.168/16 and loopback. Python's is_private knows more networks
    # (documentation, shared, benchmark nets), which Java announces like public ones.
    first, second = address.packed[0], address.packed[1]
    return first == 10 or (first == 172 and 16 <= second <= 31) or (first == 192 and second == 168)


def local_ips() -> list[str]:
    """Addresses of this machine's interfaces that are up and neither loopback, bridge, alias nor point to point."""
    states = psutil.net_if_stats()
    found: list[str] = []
    for name, addresses in psutil.net_if_addrs().items():
        state = states.get(name)
        flags = state.flags.split(",") if state is not None else []
        if (state is not None and not state.isup) or "loopback" in flags or "pointopoint" in flags:
            continue
        if ":" in name or os.path.isdir(f"/sys/class/net/{name}/bridge"):
            continue
        found += [entry.address for entry in addresses if entry.family in (socket.AF_INET, socket.AF_INET6)]
    return found


def client_ip(configured: str = "") -> str:
    """The configured client IP, or the one Java would choose on this machine."""
    return configured.strip() or choose_ip(local_ips())


def ip_for_ids(ip: str) -> str:
    """The address to put into message ids: `ip` without brackets, 127.0.0.1 when a name was configured.

    Only the uniqueness of ids matters there, and the pid and random bits beside it see to that.
    """
    text = ip.strip("[]").partition("%")[0]
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        return "127.0.0.1"


def instance_name(configured: str, *, pid: int, nanos: int, keep_default: bool = False) -> str:
    """`pid#nanos` for the default name, else the configured name as it is (ClientConfig.changeInstanceNameToPID).

    `keep_default` is for a broadcasting consumer, whose offsets are found again by its id: it stays DEFAULT.
    """
    name = configured.strip() or DEFAULT_INSTANCE_NAME
    return f"{pid}#{nanos}" if name == DEFAULT_INSTANCE_NAME and not keep_default else name


def client_id(ip: str, instance: str, unit_name: str = "") -> str:
    """`ip@instance[@unit]` (ClientConfig.buildMQClientId)."""
    return f"{ip}@{instance}@{unit_name}" if unit_name.strip() else f"{ip}@{instance}"
