"""A supervisor as systemd runs it: it reports READY, feeds the watchdog, reports a reload and the stop."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest
from harness import WAIT_S, Broker, Crew


def hear(manager: socket.socket, wanted: str) -> list[str]:
    """Everything until that report; a socket's time limit is the bound."""
    heard: list[str] = []
    while not any(line.startswith(wanted) for line in heard):
        heard += manager.recv(4096).decode().splitlines()
    return heard


def test_each_step_of_a_life_is_reported(broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"rocketcrew-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0" + name)
        manager.settimeout(WAIT_S)
        monkeypatch.setenv("NOTIFY_SOCKET", "@" + name)
        monkeypatch.setenv("WATCHDOG_USEC", "6000000")
        crew = Crew(tmp_path, broker, "numbers_handler:number", "numbers", load=False)
        child = crew.begin()
        try:
            assert "STATUS=consuming numbers as crew" in hear(manager, "READY=1")
            hear(manager, "WATCHDOG=1")
            os.kill(child.pid, signal.SIGHUP)
            hear(manager, "RELOADING=1")
            assert "STATUS=reloaded" in hear(manager, "READY=1")
            os.kill(child.pid, signal.SIGTERM)
            hear(manager, "STOPPING=1")
        finally:
            assert crew.stop() == 0
