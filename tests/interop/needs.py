"""What tests against genuine servers need, and what becomes of them without it."""

from __future__ import annotations

import os

import pytest
from servers import ServerError, class_path


def cannot_run(reason: str) -> None:
    """Skip; but where CI runs, what is there must work."""
    if os.environ.get("CI", "").lower() in ("true", "1"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def need_jars(version: str) -> None:
    """The servers and tools of a version are here, or can be fetched; else this test does not run."""
    try:
        class_path(version)
    except ServerError as error:
        cannot_run(f"RocketMQ {version} cannot be had: {error}")
