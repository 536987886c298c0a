"""What tests against genuine servers need, and what becomes of them without it."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from servers import ServerError, class_path


def cannot_run(reason: str) -> None:
    """Skip; but where CI runs, what is there must work."""
    if os.environ.get("CI", "").lower() in ("true", "1"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def need(what: str, fetch: Callable[[], object]) -> None:
    """What `fetch` gets is here, or can be fetched; else this test does not run."""
    try:
        fetch()
    except ServerError as error:
        cannot_run(f"{what} cannot be had: {error}")


def need_jars(version: str) -> None:
    """The same for the servers and tools of a version."""
    need(f"RocketMQ {version}", lambda: class_path(version))
