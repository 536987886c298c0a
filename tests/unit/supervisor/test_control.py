"""The control socket and the metrics page over real sockets in one process."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path
from typing import Any

import pytest

from rocketcrew.remoting.errors import UsageError
from rocketcrew.supervisor.control import SOCKET_NAME, ControlServer, ask
from rocketcrew.supervisor.core.allocation import average
from rocketcrew.supervisor.core.decisions import Core
from rocketcrew.supervisor.core.slab import SLAB_BYTES_MIN, Slab
from rocketcrew.supervisor.core.state import CoreConfig
from rocketcrew.supervisor.core.states import Service
from rocketcrew.supervisor.metrics import MetricsServer
from rocketcrew.supervisor.status import picture


def test_commands_are_answered_and_unknown_ones_named(tmp_path: Path) -> None:
    async def story() -> None:
        server = ControlServer(tmp_path, {"status": lambda request: {"fine": request.get("n", 0)}})
        await server.bind()
        await server.serve()
        path = tmp_path / SOCKET_NAME
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert await ask(tmp_path, "status", n=7) == {"fine": 7}
        assert "one of status" in (await ask(tmp_path, "explode"))["error"]
        reader, writer = await asyncio.open_unix_connection(str(path))
        writer.write(b"no json\n")
        assert b"not understood" in await reader.readline()
        writer.close()
        await server.stop()
        assert not path.exists()
        with pytest.raises(UsageError, match="no supervisor answers"):
            await ask(tmp_path, "status")

    asyncio.run(story())


def test_a_path_that_is_too_long_for_a_socket_works(tmp_path: Path) -> None:
    folder = tmp_path / ("d" * 60) / ("e" * 60)
    folder.mkdir(parents=True)

    async def story() -> None:
        server = ControlServer(folder, {"status": lambda _: {"fine": True}})
        await server.bind()
        await server.serve()
        assert await ask(folder, "status") == {"fine": True}
        await server.stop()

    asyncio.run(story())


def test_the_metrics_page() -> None:
    slab = Slab(SLAB_BYTES_MIN)
    core = Core(CoreConfig("me", "crew", ("orders",), average), slab, bytearray(16))
    core.state.counters.done_messages = 42

    def status() -> dict[str, Any]:
        return picture(core, Service.RUNNING, {}, {"staff": {"workers": 2, "counts": {"started": 3}}})

    async def get(port: int, request: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        answer = await reader.read()
        writer.close()
        return answer

    async def story() -> None:
        server = MetricsServer("127.0.0.1", 0, status)
        await server.start()
        page = await get(server.port, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        assert page.startswith(b"HTTP/1.0 200 OK")
        assert b'rocketcrew_done_messages_total{group="crew"} 42.0' in page
        assert b"rocketcrew_slab_bytes" in page
        assert b"started" in page
        assert (await get(server.port, b"GET /else HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.0 404")
        with pytest.raises(UsageError, match=r"metrics\.port"):
            await MetricsServer("127.0.0.1", server.port, status).start()
        await server.stop()

    asyncio.run(story())
