"""A peer that speaks frames, driven step by step by the test, and async tests run with a deadline."""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import queue
import socket
import threading

import pytest

from rocketcrew.broker.server import EmbeddedBroker
from rocketcrew.remoting.frame import FrameReader, encode

DEADLINE_S = 120
PATIENT_MS = 60_000
"""Of sends that are no test of time: the machine may stand still for seconds, in the middle of one."""


def pytest_pyfunc_call(pyfuncitem):
    """Run `async def` tests in a loop of their own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    arguments = {name: pyfuncitem.funcargs[name] for name in names}

    async def with_deadline():
        async with asyncio.timeout(DEADLINE_S):
            await pyfuncitem.obj(**arguments)

    asyncio.run(with_deadline())
    return True


class Wire:
    """One accepted connection, seen from the peer."""

    def __init__(self, reader, writer):
        self._reader, self.writer = reader, writer
        self._frames = FrameReader()

    async def next(self):
        """The next command the client sent; None when it closed."""
        while (command := self._frames.next()) is None:
            data = await self._reader.read(65536)
            if not data:
                return None
            self._frames.feed(data)
        return command

    def raw(self, data):
        self.writer.write(data)

    def send(self, command):
        self.writer.write(encode(command))

    def answer(self, command, code=0, fields=None, body=b"", remark=None):
        self.send(command.response(code, fields, body, remark))

    async def closed_by_client(self):
        """Wait for the end of the stream; what came before it is thrown away."""
        while await self._reader.read(65536):
            pass

    def close(self):
        self.writer.close()

    def cut(self):
        self.writer.transport.abort()


class Peer:
    """A listening socket on 127.0.0.1; `handler(command) -> Command | None` answers, or the test does by `accept`."""

    def __init__(self, handler=None):
        self._handler = handler
        self._accepted = asyncio.Queue()
        self.wires = []
        self.requests = []

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        return self

    async def __aexit__(self, *_):
        await self.stop()

    async def stop(self):
        """Close the port and every connection."""
        self._server.close()
        for wire in self.wires:
            wire.cut()
        await self._server.wait_closed()

    async def accept(self):
        return await self._accepted.get()

    async def _serve(self, reader, writer):
        wire = Wire(reader, writer)
        self.wires.append(wire)
        self._accepted.put_nowait(wire)
        if self._handler is None:
            return
        try:
            while (command := await wire.next()) is not None:
                self.requests.append(command)
                answer = self._handler(command)
                if answer is not None:
                    wire.send(answer)
        except ConnectionError:
            pass


@pytest.fixture
def make_peer():
    """The Peer class, as test modules cannot import each other's helpers."""
    return Peer


@pytest.fixture
def closed_port():
    """An address of 127.0.0.1 that nobody listens on, nor can meanwhile: it is taken."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture
def silent_port():
    """An address of 127.0.0.1 that accepts nobody: its queue of connections is full."""
    with socket.socket() as listener, socket.socket() as first:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        first.connect(listener.getsockname())
        yield f"127.0.0.1:{listener.getsockname()[1]}"


class NoThreads(concurrent.futures.ThreadPoolExecutor):
    """As where a limit of processes is reached."""

    def submit(self, *args, **options):
        raise RuntimeError("can't start new thread")


@pytest.fixture
def no_threads():
    """An executor for a loop."""
    return NoThreads()


class Served:
    """An embedded broker in a thread; `do` runs something in its loop."""

    def __init__(self, config=None):
        self._config = config
        ready = queue.Queue()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run(ready)), daemon=True)
        self._thread.start()
        self.loop, self._stop, self.broker = ready.get(timeout=DEADLINE_S)

    async def _run(self, ready):
        async with EmbeddedBroker(config=self._config) as broker:
            stop = asyncio.Event()
            ready.put((asyncio.get_running_loop(), stop, broker))
            await stop.wait()

    def do(self, function):
        async def run():
            return function()

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(DEADLINE_S)

    def close(self):
        self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(DEADLINE_S)


@pytest.fixture
def served():
    server = Served()
    yield server
    server.close()


@pytest.fixture
def broker_thread():
    """A maker of brokers in threads of their own: their name server's address."""
    made = []

    def make(config=None):
        made.append(Served(config))
        return made[-1].broker.name_server

    yield make
    for server in made:
        server.close()
