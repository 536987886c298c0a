"""Which genuine servers the tests of this folder run against, and when they cannot."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from servers import Kind, ServerError, Servers, class_path, compiled, missing_programs, run_servers


def cannot_run(reason: str) -> None:
    """Skip; but where CI runs, what is there must work."""
    if os.environ.get("CI", "").lower() in ("true", "1"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def need_jars(version: str) -> None:
    try:
        class_path(version)
    except ServerError as error:
        cannot_run(f"RocketMQ {version} cannot be had: {error}")


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
    need_jars(kind.version)
    with run_servers(kind, tmp_path_factory.mktemp(str(kind))) as found:
        yield found


@pytest.fixture(scope="session")
def java_classes(tmp_path_factory: pytest.TempPathFactory, _programs: None) -> Callable[[str], str]:
    """The class path of a version, our Java programs among it; compiled once a session."""
    if missing_programs("javac"):
        cannot_run("no tests with genuine clients: javac missing on the PATH")
    found: dict[str, str] = {}

    def classes(version: str) -> str:
        if version not in found:
            need_jars(version)
            found[version] = compiled(version, tmp_path_factory.mktemp(f"classes-{version}"))
        return found[version]

    return classes
