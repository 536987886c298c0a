"""Namespaces, first version: a part of every topic's and group's name (protocol/NamespaceUtil.java).

`topic` becomes `namespace%topic`. The prefixes of retry and dead-letter topics stay outermost
(`%RETRY%namespace%group`), names of the system have no namespace, and a name that has it already is left alone. So wrapping
twice does no harm, and both directions can be called wherever a user's name goes in or out.

Namespaces of the second version are two header fields of every request; see client/request_rules.py.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from .names import DLQ_PREFIX, RETRY_PREFIX, SYSTEM_TOPICS

SEPARATOR = "%"
SYSTEM_PREFIXES = ("rmq_sys_", "CID_RMQ_SYS_")


def wrap(namespace: str, name: str) -> str:
    """The name of a topic or group as brokers know it; `name` itself without a namespace."""
    if not namespace or not name or _of_the_system(name):
        return name
    prefix, rest = _split(name)
    return name if rest.startswith(namespace + SEPARATOR) else f"{prefix}{namespace}{SEPARATOR}{rest}"


def unwrap(namespace: str, name: str) -> str:
    """The name as a user wrote it; a name of another namespace is left as it is."""
    if not namespace or not name:
        return name
    prefix, rest = _split(name)
    inside = rest.removeprefix(namespace + SEPARATOR)
    return prefix + inside if len(inside) < len(rest) else name


def namespace_of_endpoint(addresses: Sequence[str]) -> str:
    """The namespace in the name of the only name server, where that is a cloud instance's end point,
    `MQ_INST_<owner>_<id>.<domain>`; empty for others, and for several.

    common/utils/NameServerAddressUtils.java parseInstanceIdFromEndpoint, ClientConfig.java getNamespace.
    """
    if len(addresses) != 1:
        return ""
    (address,) = addresses
    host = address.rpartition("/")[2].partition(".")[0]
    return host if re.fullmatch(r"MQ_INST_\w+_\w+", host, re.ASCII) and "." in address else ""


def _split(name: str) -> tuple[str, str]:
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if name.startswith(prefix):
            return prefix, name[len(prefix) :]
    return "", name


def _of_the_system(name: str) -> bool:
    return name in SYSTEM_TOPICS or name.startswith(SYSTEM_PREFIXES)
