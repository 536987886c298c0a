"""The process that runs a user's code: what the code prints and leaves behind, and how it ends."""

from __future__ import annotations

import asyncio
import json
import os
import select
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from rocketcrew.remoting.errors import UsageError
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.supervisor.core.machine_rooms import AllocationError
from rocketcrew.supervisor.member.user_process import UserProcess, UserProcessError
from rocketcrew.supervisor.member.user_strategy import UserStrategy, strategy_process

LONG_S = 240.0
AS_JSON = {"format": "json", "level": "info", "file": "", "group": "g"}
HOOKS = """
import atexit, logging, os, subprocess, sys

import structlog

def prints(event):
    print("printed by a hook")

def logs(event):
    logging.getLogger("shop").warning("logged by a hook")
    structlog.get_logger().info("by_structlog", topic="t")

def says_farewell(event):
    atexit.register(print, "the end")

def starts_another(event):
    held = os.open(event["pipe"], os.O_WRONLY)
    subprocess.run(["sh", "-c", f"echo >&{held}; exec sleep 600"], pass_fds=[held])
"""


@pytest.fixture(autouse=True)
def in_a_folder_of_hooks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hooked.py").write_text(HOOKS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)


def hooks(function: str) -> UserProcess:
    return UserProcess("hooks", "rocketcrew.workers.lifecycle", [f"on_start=hooked:{function}"], log=AS_JSON)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, LONG_S))


QUESTION: dict[str, object] = {"hook": "on_start", "event": {}}


def test_what_a_hook_prints_is_on_stderr_when_it_is_killed(capfd: pytest.CaptureFixture[str]) -> None:
    async def ask() -> None:
        process = hooks("prints")
        try:
            assert await process.ask(QUESTION, LONG_S) == {"done": "on_start"}
        finally:
            await process.kill()

    run(ask())
    assert "printed by a hook" in capfd.readouterr().err


def test_what_a_hook_logs_is_a_line_of_the_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    process = UserProcess(
        "hooks", "rocketcrew.workers.lifecycle", ["on_start=hooked:logs"], log={**AS_JSON, "file": str(log)}
    )

    async def ask() -> None:
        try:
            assert await process.ask(QUESTION, LONG_S) == {"done": "on_start"}
        finally:
            await process.kill()

    run(ask())
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["event"] for line in lines] == ["logged by a hook", "by_structlog"]
    assert [(line["level"], line["process"], line["group"]) for line in lines] == [
        ("warning", "hooks", "g"),
        ("info", "hooks", "g"),
    ]


def test_a_process_that_is_stopped_ends_as_python_does(capfd: pytest.CaptureFixture[str]) -> None:
    async def ask() -> None:
        process = hooks("says_farewell")
        try:
            assert await process.ask(QUESTION, LONG_S) == {"done": "on_start"}
            await process.stop(LONG_S)
            assert not process.runs
        finally:
            await process.kill()

    run(ask())
    assert "the end" in capfd.readouterr().err


def test_what_a_hook_has_started_ends_with_it(tmp_path: Path) -> None:
    async def ask() -> None:
        process = hooks("starts_another")
        path = str(tmp_path / "pipe")
        os.mkfifo(path)
        pipe = os.open(path, os.O_RDONLY | os.O_NONBLOCK)

        async def read() -> bytes:
            found, _, _ = await asyncio.to_thread(select.select, [pipe], [], [], LONG_S / 2)
            assert found, "the process that the hook has started holds the pipe"
            return os.read(pipe, 1)

        try:
            asking = asyncio.ensure_future(process.ask({"hook": "on_start", "event": {"pipe": path}}, LONG_S))
            assert await read() == b"\n"
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            assert await read() == b"", "nobody writes any more"
        finally:
            await process.kill()
            os.close(pipe)

    run(ask())


def test_an_import_that_takes_too_long_is_said_with_what_was_imported(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import time\ntime.sleep(3600)\n")
    named = ["on_start=slow:begun"]
    process = UserProcess("hooks", "rocketcrew.workers.lifecycle", named, log=AS_JSON, start_timeout_s=0.5)

    async def ask() -> None:
        with pytest.raises(UserProcessError, match=r"hooks: not imported within 0.5 s \(on_start=slow:begun\)"):
            await process.start()
        assert not process.runs

    run(ask())


def test_a_process_that_cannot_be_started_is_an_error_of_the_call() -> None:
    too_long = "a" * (1 << 20)  # E2BIG: Linux takes 128 KiB for one argument
    process = UserProcess("hooks", "rocketcrew.workers.lifecycle", [too_long], log=AS_JSON)

    async def ask() -> None:
        for attempt in (process.start(), process.ask(QUESTION, LONG_S)):
            with pytest.raises(UserProcessError, match="cannot be started"):
                await attempt
        assert not process.runs

    run(ask())


def test_a_strategy_whose_process_cannot_be_started_changes_nothing_in_that_round() -> None:
    async def ask() -> None:
        path = "hooked:" + "a" * (1 << 20)
        strategy = UserStrategy(path, "g", "a", strategy_process(path, AS_JSON))
        with pytest.raises(UsageError, match="cannot be started"):
            await strategy.start()
        with pytest.raises(AllocationError, match="cannot be started"):
            await strategy.allocate([MessageQueue("t", "b", 0)], ["a"])

    run(ask())
