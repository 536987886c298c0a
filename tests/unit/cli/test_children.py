"""Ports for child processes."""

from __future__ import annotations

from rocketcrew.cli.children import free_ports, listens


def test_free_ports_are_different_and_nobody_listens_there() -> None:
    ports = free_ports(200)
    assert len(set(ports)) == 200
    assert not listens(ports[0])
