"""What most system tests begin with: a broker of their own, and nothing else on it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from harness import Broker
from light_jvm import light_environment


@pytest.fixture(scope="session", autouse=True)
def light_jvms() -> Iterator[None]:
    """For every JVM that a test starts."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in light_environment().items():
            patch.setenv(name, value)
        yield


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """An embedded broker for one test; modules whose tests share one make their own."""
    found = Broker(tmp_path)
    yield found
    found.stop()
