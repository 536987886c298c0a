"""What all tests share: which rocketcrew is tested."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from hypothesis import HealthCheck, settings

import rocketcrew

# No test asserts a time: the machine may be busy with other things.
settings.register_profile("rocketcrew", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("rocketcrew")


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
    folder = config.getoption("--expect-package-in")
    if folder and not Path(rocketcrew.__file__).resolve().is_relative_to(Path(folder).resolve()):
        raise pytest.UsageError(f"rocketcrew is imported from {rocketcrew.__file__}, not from {folder}")


def pytest_report_header() -> str:
    return f"rocketcrew {rocketcrew.__version__} from {Path(rocketcrew.__file__).parent}"
