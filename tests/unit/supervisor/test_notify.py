"""What is sent to systemd: the datagrams, where they go, and when the watchdog is fed."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from rocketcrew.supervisor.notify import Notify, address_of, watchdog_s

PID = 42


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    """systemd's end."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as found:
        found.bind(str(tmp_path / "notify"))
        found.setblocking(False)
        yield found


def told(manager: socket.socket) -> list[list[str]]:
    found: list[list[str]] = []
    while True:
        try:
            found.append(manager.recv(4096).decode().splitlines())
        except BlockingIOError:
            return found


def test_each_step_is_one_datagram(manager: socket.socket) -> None:
    notify = Notify({"NOTIFY_SOCKET": manager.getsockname()}, PID)
    notify.reloading()
    notify.ready("reloaded")
    notify.stopping()
    reloading, ready, stopping = told(manager)
    assert reloading[0] == "RELOADING=1"
    assert reloading[1].startswith("MONOTONIC_USEC=")
    assert ready == ["READY=1", "STATUS=reloaded"]
    assert stopping[0] == "STOPPING=1"


def test_the_watchdog_is_fed_from_ready_on_by_the_loop_until_the_end(manager: socket.socket) -> None:
    async def run() -> None:
        notify = Notify({"NOTIFY_SOCKET": manager.getsockname(), "WATCHDOG_USEC": "3000"}, PID)
        notify.stopping()
        assert ["WATCHDOG=1"] not in told(manager)
        notify.ready("runs")
        notify.ready("reloaded")  # no second timer
        assert told(manager).count(["WATCHDOG=1"]) == 1
        fed = 0
        while fed < 3:
            await asyncio.sleep(0)
            fed += told(manager).count(["WATCHDOG=1"])
        notify.end()
        told(manager)
        await asyncio.sleep(0)
        assert told(manager) == []

    asyncio.run(run())


def test_without_systemd_nothing_happens_and_a_socket_that_is_gone_is_no_error(tmp_path: Path) -> None:
    for env in ({}, {"NOTIFY_SOCKET": "relative"}, {"NOTIFY_SOCKET": str(tmp_path / "gone")}):
        notify = Notify(env, PID)
        notify.ready("runs")
        notify.stopping()
        notify.end()


def test_addresses() -> None:
    assert address_of("/run/systemd/notify") == "/run/systemd/notify"
    assert address_of("@abstract") == "\0abstract"
    assert address_of("vsock:2:1234") == ""


@pytest.mark.parametrize(("env", "seconds"), [
    ({}, 0.0),
    ({"WATCHDOG_USEC": "60000000"}, 60.0),
    ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": str(PID)}, 60.0),
    ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "43"}, 0.0),
    ({"WATCHDOG_USEC": "soon"}, 0.0),
])  # fmt: skip
def test_the_watchdog_is_that_of_this_process(env: dict[str, str], seconds: float) -> None:
    assert watchdog_s(env, PID) == seconds
