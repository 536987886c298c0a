"""Which genuine servers the tests of this folder run against, and when they cannot."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from servers import Kind, ServerError, Servers, class_path, missing_programs, run_servers


def cannot_run(reason: str) -> None:
    """Skip; but where CI runs, what is there must work."""
    if os.environ.get("CI", "").lower() in ("true", "1"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="session", autouse=True)
def _programs() -> None:
    missing = missing_programs("java", "mvn")
    if missing:
        pytest.skip(f"no tests against genuine RocketMQ: {' and '.join(missing)} missing on the PATH")


@pytest.fixture(scope="session")
def servers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, _programs: None
) -> Iterator[Servers]:
    """One pair of servers for all tests of one kind; pytest orders the tests so that one pair runs at a time."""
    kind: Kind = request.param
    try:
        class_path(kind.version)
    except ServerError as error:
        cannot_run(f"RocketMQ {kind.version} cannot be had: {error}")
    with run_servers(kind, tmp_path_factory.mktemp(str(kind))) as found:
        yield found
