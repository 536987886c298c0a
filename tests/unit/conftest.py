"""What all unit tests share: none leaves many descriptors open, else later tests of the same process would run out."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest

OPEN_FOLDER = "/proc/self/fd"
LEFT_MAX = 48
"""So many may stay: libraries open some at their first use and keep them (thread pools, an event loop of their own)."""


@pytest.fixture(autouse=True)
def descriptors_are_given_back() -> Iterator[None]:
    before = len(os.listdir(OPEN_FOLDER))
    yield
    left = len(os.listdir(OPEN_FOLDER)) - before
    if left > LEFT_MAX:
        gc.collect()  # what libraries keep in cycles goes with the next collection, which may be far
        left = len(os.listdir(OPEN_FOLDER)) - before
    assert left <= LEFT_MAX, f"the test left {left} descriptors open"


@pytest.fixture
def no_collection() -> Iterator[None]:
    """For tests that count steps: a collection in between runs what others have registered for it, and that is counted."""
    gc.disable()
    yield
    gc.enable()
