"""The loader at a Spark Connect server: by path, over the connection, without a server, and when the server dies."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "unit" / "spark"))

pytest.importorskip("grpc")

from connect_server import ConnectServer
from deliveries import rows as delivered_rows
from loaders import Loaders
from segment_helpers import Record, expected
from test_disk_full import new_disks

pytestmark = pytest.mark.slow
PATHS = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parent.parent / "unit" / "spark")])


@pytest.fixture(scope="module")
def hidden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the server sees empty."""
    return tmp_path_factory.mktemp("hidden")


@pytest.fixture(scope="module")
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, hidden: Path
) -> Iterator[ConnectServer]:
    if not request.config.getoption("--full-numbers"):
        pytest.skip("one JVM more: with --full-numbers, as bench/soak.py runs it")
    made = ConnectServer(tmp_path_factory.mktemp("connect"), hidden, new_disks())
    made.start()
    yield made
    made.kill()


@pytest.fixture
def loaders(tmp_path: Path) -> Iterator[Loaders]:
    made = Loaders(tmp_path, "spark")
    yield made
    made.end()


def test_by_path_and_through_the_death_of_the_server(server: ConnectServer, loaders: Loaders) -> None:
    loaders.seal(*(Record(offset, ["a", "b"]) for offset in range(10)))
    process = loaders.start(master=server.url, follow=True, jvm_timeout_ms=5000)
    loaders.wait_for_batch(1, process)
    server.kill()
    loaders.seal(Record(3, ["again"]), *(Record(offset) for offset in range(10, 20)))
    assert process.wait(240) == 1, loaders.log.read_text()
    assert "the Spark Connect server sc://127.0.0.1:" in loaders.status()["error"]
    assert "the segments stay" in loaders.status()["error"]
    loaders.run(6, master=server.url)
    assert "there is no Spark Connect server at 127.0.0.1:" in loaders.status()["error"]
    server.start()
    loaders.run(master=server.url)
    loaders.assert_exact()
    loaders.assert_clean()
    assert loaders.status()["jvm_pid"] == 0


def test_over_the_connection(server: ConnectServer, hidden: Path, tmp_path: Path) -> None:
    output = tmp_path / "output"
    loaders = Loaders(hidden, "spark")
    try:
        loaders.seal(*(Record(offset, [f"{offset}", "x"]) for offset in range(10)))
        loaders.seal(*(Record(offset, [], queue_id=1) for offset in range(10)), Record(11, queue_id=1))
        env = {**os.environ, "DELIVERIES": str(output), "PYTHONPATH": PATHS}
        process = loaders.start(env=env, master=server.url, format="foreach", function="deliveries:keep")
        assert process.wait(240) == 0, loaders.log.read_text()
        assert delivered_rows(output) == expected(loaders.records.values())
        # A table there has two places, and is none.
        loaders.seal(Record(30))
        loaders.run(1, master=server.url)
        assert (
            "the table's folder must be on a disk that the Spark Connect server and the loader share"
            in (loaders.status()["error"])
        )
        assert len(list((loaders.staging / "ready").iterdir())) == 1
    finally:
        loaders.end()


def test_a_query(server: ConnectServer, loaders: Loaders) -> None:
    loaders.seal(*(Record(offset) for offset in range(7)))
    loaders.run(master=server.url)
    words = [sys.executable, "-m", "rocketcrew", "query", "--target", str(loaders.table), "--master", server.url]
    done = subprocess.run(
        [*words, "--json", "SELECT count(*) n FROM latest"], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == '[{"n": 7}]', done.stderr


def test_no_server(tmp_path: Path) -> None:
    """Said at once, and nothing is lost; no JVM is needed for that."""
    loaders = Loaders(tmp_path, "spark")
    try:
        loaders.seal(Record(1))
        loaders.run(6, master="sc://127.0.0.1:1/;token=very-secret")
        assert "there is no Spark Connect server at 127.0.0.1:1" in loaders.status()["error"]
        assert loaders.status()["master"] == "sc://127.0.0.1:1"
        assert "very-secret" not in loaders.log.read_text()
        assert len(list((loaders.staging / "ready").iterdir())) == 1
    finally:
        loaders.end()
