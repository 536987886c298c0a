"""What `consume` takes from a process that is not ours, and gives back."""

from __future__ import annotations

import asyncio
import io
import logging
import os
import signal
import socket
import warnings
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import structlog
import uvloop

from rocketcrew import consume
from rocketcrew.conf.logging import logging_given_back, set_up
from rocketcrew.remoting.errors import UsageError
from rocketcrew.supervisor.consume import signals_given_back

OBEYED = [
    signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGTTIN, signal.SIGTTOU,
    signal.SIGTSTP, signal.SIGCONT,
]  # fmt: skip


@pytest.fixture
def own_handlers() -> Iterator[list[object]]:
    """Of half the signals; the others do what they did. All of them, in order."""
    before = {number: signal.getsignal(number) for number in OBEYED}
    for number in OBEYED[::2]:
        signal.signal(number, lambda *_: None)
    yield [signal.getsignal(number) for number in OBEYED]
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_signals_are_the_callers_again_after_a_loop_that_took_them(
    new_loop: object, own_handlers: list[object]
) -> None:
    async def take() -> None:
        for number in OBEYED:
            asyncio.get_running_loop().add_signal_handler(number, print)
        raise ZeroDivisionError

    heard, told = socket.socketpair()
    told.setblocking(False)
    before = signal.set_wakeup_fd(told.fileno())
    try:
        with (
            pytest.raises(ZeroDivisionError),
            signals_given_back(),
            asyncio.Runner(loop_factory=new_loop) as runner,  # type: ignore[arg-type]
        ):
            runner.run(take())
        assert [signal.getsignal(number) for number in OBEYED] == own_handlers
        os.kill(os.getpid(), signal.SIGTERM)
        assert heard.recv(1) == bytes([signal.SIGTERM])
    finally:
        signal.set_wakeup_fd(before)
        heard.close()
        told.close()


def state_of_logging() -> tuple[object, ...]:
    root, warned = logging.getLogger(), logging.getLogger("py.warnings")
    return (
        root.level, list(root.handlers), warned.level, list(warned.handlers), logging.lastResort, warnings.showwarning,
        structlog.is_configured(), {**structlog.get_config()},
    )  # fmt: skip


@pytest.fixture
def leave_no_trace() -> Iterator[None]:
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    yield
    root.setLevel(level)
    root.handlers[:] = handlers
    logging.captureWarnings(False)
    structlog.reset_defaults()


@pytest.mark.parametrize("configured", [False, True])
@pytest.mark.usefixtures("leave_no_trace")
def test_a_process_that_is_not_ours_has_its_logging_as_before(configured: bool) -> None:
    own, later = logging.NullHandler(), logging.NullHandler()
    logging.getLogger().addHandler(own)
    logging.getLogger().setLevel(logging.ERROR)
    if configured:
        structlog.configure(processors=[structlog.processors.KeyValueRenderer()])
        logging.captureWarnings(True)
        set_up("json", "info", io.StringIO(), "outer")
    before = state_of_logging()
    with pytest.raises(ZeroDivisionError), logging_given_back():
        set_up("json", "debug", io.StringIO(), "worker", for_imports=True)
        set_up("json", "debug", io.StringIO(), "consume")
        assert state_of_logging()[:2] != before[:2]
        raise ZeroDivisionError
    assert state_of_logging() == before
    with logging_given_back():
        logging.getLogger().addHandler(later)
    assert logging.getLogger().handlers[-1] is later


def test_an_error_of_consume_leaves_the_process_as_it_was(tmp_path: Path, own_handlers: list[object]) -> None:
    def state() -> tuple[object, ...]:
        handlers = [signal.getsignal(number) for number in OBEYED]
        return handlers, state_of_logging(), [file.path for file in psutil.Process().open_files()]

    before = state()
    with pytest.raises(UsageError, match="topics="):  # found when logging is set up: handlers may name their topics
        consume(print, group="g", name_servers="127.0.0.1:1", settings={"log.file": str(tmp_path / "log")})
    assert (tmp_path / "log").exists()
    assert state() == before
