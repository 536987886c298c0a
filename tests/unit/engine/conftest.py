"""A task sets up the process that it runs in, here that of all tests: what it leaves there is taken away."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rocketcrew.workers.message import Message


@pytest.fixture(autouse=True)
def _no_clock_left() -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]
    yield
    Message.call_clock.clear()
