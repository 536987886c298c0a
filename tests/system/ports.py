"""Ports for the servers of tests, which nobody else takes between the choice and the use."""

from __future__ import annotations

import itertools
import os
import random
import socket

PORTS = range(20_000, 32_000)
"""Below the kernel's ephemeral ports, so that no connection takes one between its choice and its use."""


def own_ports() -> range:
    """This process's share of PORTS: no other worker of a test run chooses what a server of ours is about to take."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    share = len(PORTS) // workers
    return PORTS[worker * share : (worker + 1) * share]


_given: set[int] = set()


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on, on any address, and that were not given before: a stopped server may come back."""
    ports = own_ports()
    found = list(itertools.islice(filter(take, random.sample(ports, len(ports))), count))
    if len(found) < count:
        raise RuntimeError(f"fewer than {count} ports of {ports} are free")
    return found


def take(port: int) -> bool:
    """This very port, where it is one of ours, free, and was not given before."""
    if port not in own_ports() or port in _given or not is_free(port):
        return False
    _given.add(port)
    return True


def is_free(port: int) -> bool:
    """Nobody listens there, on any address."""
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
        return True
