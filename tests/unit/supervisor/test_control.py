"""The control socket over real sockets in one process."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path

import pytest

from rocketcrew.remoting.errors import UsageError
from rocketcrew.supervisor.control import SOCKET_NAME, ControlServer, ask


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
        for line in (b"no json", b"[]", b'"command"', b'{"command": []}', b"\xff", b"[" * 60_000):
            writer.write(line + b"\n")
            assert b"not understood" in await reader.readline()
        writer.close()
        await server.stop()
        assert not path.exists()
        with pytest.raises(UsageError, match="no supervisor answers"):
            await ask(tmp_path, "status")

    asyncio.run(story())


def test_one_that_answers_nothing_is_waited_for_as_long_as_is_said(tmp_path: Path) -> None:
    async def story() -> None:
        never = asyncio.Event()
        server = ControlServer(tmp_path, {"status": lambda _: never.wait()})  # type: ignore[dict-item, return-value]
        await server.bind()
        await server.serve()
        with pytest.raises(UsageError, match="did not answer within 0 s: it may be busy or stopped"):
            await ask(tmp_path, "status", timeout_s=0.001)
        never.set()
        await server.stop()

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


def test_the_end_of_the_loop_with_a_connection_open_is_no_fault(tmp_path: Path) -> None:
    said: list[dict[str, object]] = []

    async def story() -> asyncio.StreamWriter:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: said.append(context))
        asked = asyncio.Event()
        server = ControlServer(tmp_path, {"status": lambda _: asked.set() or {}})
        await server.bind()
        await server.serve()
        _, writer = await asyncio.open_unix_connection(str(tmp_path / SOCKET_NAME))
        writer.write(b'{"command": "status"}\n')
        await asked.wait()
        await server.stop()
        return writer  # open: the server waits for its next question

    asyncio.run(story())
    assert said == []
