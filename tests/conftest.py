"""What all tests share: which rocketcrew is tested, and that a failure is reported when it happens."""

from __future__ import annotations

import gc
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import HealthCheck, settings

import rocketcrew

# No test asserts a time: the machine may be busy with other things.
settings.register_profile("rocketcrew", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("rocketcrew")

REASON_MAX = 300
LONGEST_FIRST = Path(__file__).parent / "longest_first.txt"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--expect-package-in",
        default=None,
        metavar="FOLDER",
        help="Fail unless rocketcrew is imported from somewhere below FOLDER (the built wheel's environment).",
    )
    parser.addoption(
        "--full-numbers", action="store_true", help="Long forms of fault tests, as bench/soak.py runs them."
    )


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """A command that ran in this process has set the level; the next test wants to see every line."""
    yield
    structlog.reset_defaults()


@pytest.fixture
def full_numbers(request: pytest.FixtureRequest) -> bool:
    """Whether a fault test is to run in its long form."""
    return bool(request.config.getoption("--full-numbers"))


def pytest_configure(config: pytest.Config) -> None:
    # A shell lets what it starts by `&` ignore Ctrl-C, and so would all that tests start and interrupt.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)
    folder = config.getoption("--expect-package-in")
    if folder and not Path(rocketcrew.__file__).resolve().is_relative_to(Path(folder).resolve()):
        raise pytest.UsageError(f"rocketcrew is imported from {rocketcrew.__file__}, not from {folder}")
    config.pluginmanager.register(FailuresAtOnce(config))


class FailuresAtOnce:
    """One line for each failure when it happens: pytest reports them after the last test, which may be an hour later."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        reporter: Any = self._config.pluginmanager.get_plugin("terminalreporter")  # None in the workers of pytest-xdist
        if report.failed and reporter is not None:
            where = f"{report.nodeid} ({report.when}, {report.duration:.0f} s)"
            reporter.write_line(f"\nfailed: {where}: {reason_of(report)}")  # a line of its own, not after pytest's dots
            reporter.flush()


def reason_of(report: pytest.TestReport) -> str:
    """The first line of what a failed test raised."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else str(report.longrepr)
    return next((line for line in text.splitlines() if line.strip()), "")[:REASON_MAX]


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """What is collected stays until the end: hundreds of thousands of objects that no garbage collection need look at, in
    between or afterwards; many tests ask for one. What pytest makes of the files' assertions is kept for the next run."""
    writes_nothing, sys.dont_write_bytecode = sys.dont_write_bytecode, False
    gc.disable()
    try:
        return (yield)
    finally:
        sys.dont_write_bytecode = writes_nothing
        gc.enable()
        gc.collect()
        gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # else libraries report at the end of the process what nobody has taken from them


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where pytest-xdist spreads files: the longest first, so that none is begun when the other worker has nothing left.

    Without it the order stays pytest's, which starts the servers of one kind once.
    """
    if hasattr(config, "workerinput"):
        order = {name: number for number, name in enumerate(LONGEST_FIRST.read_text().split())}
        items.sort(key=lambda item: order.get(f"{item.path.parent.name}/{item.path.name}", len(order)))


def pytest_report_header() -> str:
    return f"rocketcrew {rocketcrew.__version__} from {Path(rocketcrew.__file__).parent}"
