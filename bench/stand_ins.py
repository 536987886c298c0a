"""`rocketcrew run` with workers that one process stands in for, so that hundreds of them need no cores.

The supervisor is the real one, from the pull to the commit; only what makes worker processes is replaced. The stand-ins
answer every chunk at once: all its messages are done, and each is said to have taken STAND_IN_US (default 0). So the
supervisor hands chunks out as it would: cheap messages to the workers that are awake, dearer ones to all in turn.

    STAND_IN_US=100 python bench/stand_ins.py run handlers:no_op ... --set workers.count=256
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import socket
from collections.abc import Callable
from typing import cast

from rocketcrew.__main__ import main
from rocketcrew.supervisor.pool import worker_pool
from rocketcrew.supervisor.pool.child import BootMaker, NewWorker
from rocketcrew.supervisor.pool.launching import Launched, Launcher
from rocketcrew.supervisor.pool.stacks import Helper
from rocketcrew.workers.link import LinkClosedError, Transport, WorkerLink, choose_transport
from rocketcrew.workers.packets import (
    CHUNK,
    CHUNK_STRUCT,
    STOP,
    Ready,
    Report,
    encode_ready,
    encode_reports,
)
from rocketcrew.workers.spawn import Forkserver, WorkerProcess

NAME_BYTES_MAX = 200


class Crowd:
    """The process that stands in: all workers' ends of their links in one loop."""

    def __init__(self, orders: socket.socket, transport: Transport, us: int) -> None:
        self._orders = orders
        self._transport = transport
        self._us = us
        self._links: dict[int, tuple[WorkerLink, int]] = {}
        """By descriptor: the link, and the descriptor whose end says that the worker is dead."""
        self._by_name: dict[str, int] = {}
        self._poll = select.epoll()

    def run(self) -> None:
        """Until the supervisor is gone."""
        self._poll.register(self._orders, select.EPOLLIN)
        while True:
            for descriptor, _ in self._poll.poll():
                if descriptor != self._orders.fileno():
                    self._answer(descriptor)
                elif not self._take_order():
                    return

    def _take_order(self) -> bool:
        data, descriptors, _, _ = socket.recv_fds(self._orders, NAME_BYTES_MAX, 2)
        if not data:
            return False
        name = data.decode()
        if not descriptors:
            self._end(self._by_name.get(name, -1))
            return True
        link = WorkerLink(socket.socket(fileno=descriptors[0]), self._transport)
        self._links[link.fileno()] = link, descriptors[1]
        self._by_name[name] = link.fileno()
        self._poll.register(link.fileno(), select.EPOLLIN)
        link.send(encode_ready(Ready(os.getpid(), "stand-in", "n bigint", batch=False)))
        return True

    def _answer(self, descriptor: int) -> None:
        link, _ = self._links[descriptor]
        done: list[Report] = []
        try:
            while (packet := link.receive()) is not None:
                if packet[0] == CHUNK:
                    _, chunk_id, _, _, _, records, _, _ = CHUNK_STRUCT.unpack_from(packet)
                    done.append(Report(chunk_id, 0, records, 0, records * self._us, self._us, 0, 0))
                elif packet[0] == STOP:
                    self._end(descriptor)
                    return
            for report in encode_reports(done, ()) if done else ():
                link.send(report)
        except LinkClosedError:
            self._end(descriptor)

    def _end(self, descriptor: int) -> None:
        link, alive = self._links.pop(descriptor, (None, -1))
        if link is not None:
            self._poll.unregister(descriptor)
            socket.close(descriptor)
            os.close(alive)


class StandIn:
    """What the pool holds of a process."""

    unattended = False

    def __init__(self, worker_id: str, pid: int, sentinel: int, kill: Callable[[str], None]) -> None:
        self.worker_id = worker_id
        self.pid = pid
        self.sentinel = sentinel
        self._kill = kill

    @property
    def exitcode(self) -> int | None:
        return 0 if select.select([self.sentinel], [], [], 0)[0] else None

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Of the signals only those that end it mean anything."""
        if number in (signal.SIGKILL, signal.SIGABRT):
            self._kill(self.worker_id)

    def close(self) -> None:
        os.close(self.sentinel)


class StandInLauncher(Launcher):
    """In place of the forkservers. A launcher by type, so that the type checker knows what it has to take."""

    orders: socket.socket
    pid: int

    def add(self, generation: int, forkserver: Forkserver, make_boot: BootMaker) -> None:
        """There is nothing to start."""

    def launch(self, generation: int, new: NewWorker, launched: Launched, wanted: Callable[[], bool]) -> None:
        alive, end = os.pipe()
        socket.send_fds(self.orders, [new.worker_id.encode()], [new.link.fileno(), end])
        os.close(end)
        new.link.close()
        process = StandIn(new.worker_id, self.pid, alive, self._kill)
        asyncio.get_running_loop().call_soon(launched, cast("WorkerProcess", process))

    def _kill(self, worker_id: str) -> None:
        with contextlib.suppress(OSError):
            self.orders.send(worker_id.encode())

    def helpers(self) -> list[Helper]:
        return []

    def interrupt(self, generation: int) -> None:
        """Nobody hangs."""

    def drop(self, generation: int) -> None:
        """Nothing was started."""

    async def stop(self) -> None:
        """The crowd ends with the supervisor."""


def stand_in() -> None:
    """Fork the crowd, and have the pool use it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if not pid:
        ours.close()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        try:
            Crowd(theirs, choose_transport("auto"), int(os.environ.get("STAND_IN_US", "0"))).run()
        finally:
            os._exit(0)
    theirs.close()
    StandInLauncher.orders, StandInLauncher.pid = ours, pid
    worker_pool.Launcher = StandInLauncher  # type: ignore[attr-defined]


if __name__ == "__main__":
    stand_in()
    main()
