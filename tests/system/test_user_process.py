"""The process that runs a user's code: what the code prints and leaves behind, and how it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from rocketcrew.supervisor.member.user_process import UserProcess

LONG_S = 60.0
HOOKS = """
import atexit, subprocess, sys

def prints(event):
    print("printed by a hook")

def says_farewell(event):
    atexit.register(print, "the end")
"""


@pytest.fixture(autouse=True)
def in_a_folder_of_hooks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hooked.py").write_text(HOOKS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)


def hooks(function: str) -> UserProcess:
    return UserProcess("hooks", "rocketcrew.workers.lifecycle", [f"on_start=hooked:{function}"])


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, LONG_S))


QUESTION = {"hook": "on_start", "event": {}}


def test_what_a_hook_prints_is_on_stderr_when_it_is_killed(capfd: pytest.CaptureFixture[str]) -> None:
    async def ask() -> None:
        process = hooks("prints")
        try:
            assert await process.ask(QUESTION, LONG_S) == {"done": "on_start"}
        finally:
            await process.kill()

    run(ask())
    assert "printed by a hook" in capfd.readouterr().err


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
