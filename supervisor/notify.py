"""What the supervisor reports to systemd (sd_notify): READY, RELOADING, STOPPING, and WATCHDOG while its loop turns.

One datagram a report, to the Unix socket that NOTIFY_SOCKET names; without one nothing happens. A report that cannot be
delivered is logged once and changes nothing: systemd has its own time limits. The watchdog's report is a timer of the loop,
so a loop that hangs is silent, and systemd restarts the service.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Mapping
from typing import Final

import structlog

WATCHDOG_SHARE: Final = 3
"""Reports within one WatchdogSec: systemd asks for two at least."""

log = structlog.get_logger("rocketcrew.supervisor")


class Notify:
    """Made of the environment that systemd gives; `pid` is this process."""

    def __init__(self, env: Mapping[str, str], pid: int) -> None:
        self._address = address_of(env.get("NOTIFY_SOCKET", ""))
        self._every_s = watchdog_s(env, pid) / WATCHDOG_SHARE
        self._timer: asyncio.TimerHandle | None = None
        self._unheard = False

    def ready(self, status: str) -> None:
        """It runs, or runs again after a reload; from the first time on the watchdog is fed by the running loop."""
        self._say("READY=1", f"STATUS={status}")
        if self._timer is None and self._address and self._every_s:
            self._feed(asyncio.get_running_loop())

    def reloading(self) -> None:
        """A reload begins; `ready` ends it."""
        self._say("RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def stopping(self) -> None:
        """It drains. The watchdog goes on: a drain that hangs is found too."""
        self._say("STOPPING=1", "STATUS=stopping: what was begun is finished")

    def end(self) -> None:
        """Feed the watchdog no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _feed(self, loop: asyncio.AbstractEventLoop) -> None:
        self._say("WATCHDOG=1")
        self._timer = loop.call_later(self._every_s, self._feed, loop)

    def _say(self, *lines: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.setblocking(False)
                sender.sendto("\n".join(lines).encode(), self._address)
        except OSError as error:
            if not self._unheard:
                self._unheard = True
                log.warning("service_manager_not_told", address=self._address.replace("\0", "@"), error=str(error))


def address_of(text: str) -> str:
    """The socket's address, "" for none: a path, or with @ in front a name in Linux's abstract namespace."""
    if text.startswith("@"):
        return "\0" + text[1:]
    return text if text.startswith("/") else ""


def watchdog_s(env: Mapping[str, str], pid: int) -> float:
    """WatchdogSec as systemd passes it on; 0 for none, or when it is meant for another process."""
    if env.get("WATCHDOG_PID", str(pid)) != str(pid):
        return 0.0
    text = env.get("WATCHDOG_USEC", "")
    return int(text) / 1_000_000 if text.isascii() and text.isdigit() else 0.0
