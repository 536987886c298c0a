"""What all tests share: which rocketcrew is tested."""

from __future__ import annotations

from pathlib import Path

import pytest

import rocketcrew


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--expect-package-in",
        default=None,
        metavar="FOLDER",
        help="Fail unless rocketcrew is imported from somewhere below FOLDER (the built wheel's environment).",
    )


def pytest_configure(config: pytest.Config) -> None:
    folder = config.getoption("--expect-package-in")
    if folder and not Path(rocketcrew.__file__).resolve().is_relative_to(Path(folder).resolve()):
        raise pytest.UsageError(f"rocketcrew is imported from {rocketcrew.__file__}, not from {folder}")


def pytest_report_header() -> str:
    return f"rocketcrew {rocketcrew.__version__} from {Path(rocketcrew.__file__).parent}"
