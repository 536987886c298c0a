"""A loopback proxy between a client and genuine servers, which can cut connections in the middle of a frame.

Clients learn the brokers' addresses from the name server, so the name server is behind the proxy too, and each broker's
address in its answers is replaced by the address of a port here. Ports have five digits on both sides, so nothing else of
an answer changes. One thread with its own loop; tests talk to it by plain numbers.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from ports import free_ports

READ_BYTES = 64 * 1024
START_S = 120.0


class Proxy:
    """`with Proxy(name_server, brokers) as proxy`; give clients `proxy.name_server`."""

    def __init__(self, name_server: str, brokers: Sequence[str]) -> None:
        ports = free_ports(1 + len(brokers))
        self.name_server = f"127.0.0.1:{ports[0]}"
        self._servers = {ports[0]: name_server, **dict(zip(ports[1:], brokers, strict=True))}
        self._names = {
            address.encode(): f"127.0.0.1:{port}".encode() for port, address in zip(ports[1:], brokers, strict=True)
        }
        assert all(len(real) == len(shown) for real, shown in self._names.items())
        self._name_server_port = ports[0]
        self.cuts = 0
        """How many connections were cut."""
        self.answers_to_cut = 0
        """So many of the next larger pieces from a broker go out by half, and then the connection is cut."""
        self.requests_to_cut = 0
        """The same for pieces to a broker."""
        self._started = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: asyncio.Event | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._started.wait(START_S), "the proxy did not start"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._loop is not None and self._end is not None:
            self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(START_S)

    async def _run(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        listeners = [
            await asyncio.start_server(lambda r, w, p=port: self._serve(r, w, p), "127.0.0.1", port)
            for port in self._servers
        ]
        self._started.set()
        await self._end.wait()
        for listener in listeners:
            listener.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
        host, _, real = self._servers[port].partition(":")
        try:
            up_reader, up_writer = await asyncio.open_connection(host, int(real))
        except OSError:
            writer.transport.abort()
            return
        is_broker = port != self._name_server_port
        back = self._brokers_answers(up_reader, writer) if is_broker else self._routes(up_reader, writer)
        forth = self._requests(reader, up_writer, cut=is_broker)
        tasks = [asyncio.create_task(work) for work in (back, forth)]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            writer.close()
            up_writer.close()

    async def _requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, cut: bool) -> None:
        while data := await reader.read(READ_BYTES):
            if cut and self.requests_to_cut > 0:
                self.requests_to_cut -= 1
                await self._cut(data, writer)
                return
            writer.write(data)
            await writer.drain()

    async def _brokers_answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(READ_BYTES):
            # A piece this large has messages in it: heartbeats and offsets are answered by less.
            if len(data) > 500 and self.answers_to_cut > 0:
                self.answers_to_cut -= 1
                await self._cut(data, writer)
                return
            writer.write(data)
            await writer.drain()

    async def _cut(self, data: bytes, writer: asyncio.StreamWriter) -> None:
        self.cuts += 1  # at once: it is one too when the other side has just left
        writer.write(data[: len(data) // 2])
        await writer.drain()

    async def _routes(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Whole frames, so that no address is cut in two."""
        try:
            while True:
                length = await reader.readexactly(4)
                frame = await reader.readexactly(int.from_bytes(length, "big"))
                writer.write(length + replaced(frame, self._names))
                await writer.drain()
        except asyncio.IncompleteReadError:
            return


def replaced(data: bytes, names: Mapping[bytes, bytes]) -> bytes:
    for real, shown in names.items():
        data = data.replace(real, shown)
    return data
