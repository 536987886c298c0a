"""A table in a bucket: exact over kills, races and lost answers, and refused where the server cannot make it so."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "unit" / "spark"))

from loaders import COLUMNS, WAIT_S, Loaders, wait_until
from s3_server import S3Server
from segment_helpers import Record, expected

from rocketcrew import read
from rocketcrew.conf.exit_codes import EXIT_FORCED
from rocketcrew.spark.loader import POINTS

STORY = [Record(1, ["a", "b"]), Record(2)]


class S3Loaders(Loaders):
    """Loaders whose table is in a bucket."""

    def __init__(self, folder: Path, server: S3Server) -> None:
        super().__init__(folder, "spark")
        self.server = server
        self.log.parent.mkdir(parents=True, exist_ok=True)

    def start(self, env: dict[str, str] | None = None, **settings: object) -> subprocess.Popen[bytes]:
        place = {"target": self.server.url(), "format": "deltalake", "options": self.server.options}
        return super().start(env=env or environment(self.server), **(place | settings))

    def rows(self) -> list[tuple[object, ...]]:
        return self.server.rows(COLUMNS)

    def assert_clean(self) -> None:
        super().assert_clean()
        assert not [key for key in self.server.objects() if "probe-" in key]


def environment(server: S3Server) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("AWS_")} | server.keys


@pytest.fixture
def server() -> Iterator[S3Server]:
    made = S3Server()
    yield made
    made.close()


@pytest.fixture
def careless() -> Iterator[S3Server]:
    made = S3Server(conditional=False)
    yield made
    made.close()


@pytest.fixture
def loaders(tmp_path: Path, server: S3Server) -> Iterator[S3Loaders]:
    made = S3Loaders(tmp_path, server)
    yield made
    made.end()


@pytest.mark.parametrize("point", POINTS)
def test_killed_at_any_point_and_once_more_in_the_next_batch(loaders: S3Loaders, point: str) -> None:
    loaders.seal(*STORY)
    loaders.run(-signal.SIGKILL, crash_point=point)
    loaders.seal(Record(2, ["again"]), Record(3))
    loaders.run(-signal.SIGKILL, crash_point=point)
    loaders.seal(Record(3, ["again"]), Record(1, ["again"]), Record(4))
    loaders.run()
    loaders.assert_exact()
    loaders.assert_clean()
    assert "a-very-secret-key" not in loaders.log.read_text()


def test_two_loaders_on_two_folders_fill_one_table(tmp_path: Path, server: S3Server) -> None:
    """Both make the table at once, and go on racing; each has some of the other's records."""
    server.hold_two("_delta_log/00000000000000000000.json")
    both = [S3Loaders(tmp_path / name, server) for name in ("a", "b")]
    for at, mine in enumerate(both):
        for first in range(0, 60, 6):
            mine.seal(*(Record(offset, [f"{at}"]) for offset in range(first + 2 * at, first + 2 * at + 4)))
    processes = [mine.start(max_rows=1, max_bytes=1) for mine in both]
    codes = [process.wait(WAIT_S) for process in processes]
    for mine in both:
        mine.end()
    assert codes == [0, 0], both[0].log.read_text() + both[1].log.read_text()
    assert [row[3] for row in both[0].rows()] == list(range(60))
    for mine in both:
        mine.assert_clean()
    log = [key for key in server.objects() if "_delta_log/0" in key and key.endswith(".json")]
    batches = max(mine.status()["batch_id"] for mine in both)
    assert len(log) == 1 + batches, "it was made once: who makes it a second time puts its columns over the first ones"


def test_another_loader_commits_before_the_maker_of_the_table_goes_on(tmp_path: Path, server: S3Server) -> None:
    """To whom has made a table delta-rs gives its newest version, which has the other's batch in it."""
    made, goes_on = server.hold_answer("_delta_log/00000000000000000000.json")
    both = [S3Loaders(tmp_path / name, server) for name in ("a", "b")]
    for mine in both:
        mine.seal(Record(1), Record(2))
    maker = both[0].start()
    assert made.wait(WAIT_S), both[0].log.read_text()
    both[1].run()
    goes_on.set()
    assert maker.wait(WAIT_S) == 0, both[0].log.read_text()
    both[0].end()
    assert [row[3] for row in both[0].rows()] == [1, 2]
    both[0].assert_clean()


@pytest.mark.parametrize("entry", ["00000000000000000001.json", "00000000000000000002.json"])
def test_the_answer_to_a_commit_is_lost(loaders: S3Loaders, entry: str) -> None:
    """It is made, and a second try of the library finds the first one there: that is no commit of another loader."""
    loaders.server.lose_answer(f"_delta_log/{entry}")
    loaders.seal(*STORY)
    loaders.run()
    loaders.seal(Record(2, ["again"]), Record(3))
    loaders.run()
    loaders.assert_exact()
    loaders.assert_clean()
    assert loaders.server.puts[f"/{loaders.server.bucket}/warehouse/table/_delta_log/{entry}"] == 2


def test_a_script_reads_the_table(loaders: S3Loaders, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in loaders.server.keys.items():
        monkeypatch.setenv(name, value)
    loaders.seal(*STORY)
    loaders.run()
    found = read(loaders.server.url(), options=loaders.server.options, latest=True)
    assert sorted(tuple(row.values()) for row in found.select(COLUMNS).to_pylist()) == sorted(loaders.rows())
    assert found.num_rows == 3


def test_a_server_that_ignores_conditions_is_refused(tmp_path: Path, careless: S3Server) -> None:
    loaders = S3Loaders(tmp_path, careless)
    loaders.seal(*STORY)
    loaders.run(2)
    loaders.end()
    assert "ignores If-None-Match" in loaders.status()["error"]
    assert careless.objects() == []
    assert len(list((loaders.staging / "ready").iterdir())) == 1


@pytest.mark.parametrize("conditional", [True, False])
def test_control_two_commits_in_the_same_moment(conditional: bool) -> None:
    """With the conditional put one of the two is refused; without it both get the answer that they have it."""
    server = S3Server(conditional=conditional)
    try:
        assert _two_commits(server) == ((1, [1]) if conditional else (2, [1]))
    finally:
        server.close()


def _two_commits(server: S3Server) -> tuple[int, list[int]]:
    """How many of two were answered that they have committed, and how many rows each row's batch then has."""
    options = {"AWS_ENDPOINT_URL": server.options["endpoint"], "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1"}
    options |= server.keys
    DeltaTable.create(server.url(), pa.schema([("a", pa.int64())]), storage_options=options)
    both = [DeltaTable(server.url(), storage_options=options) for _ in range(2)]
    server.hold_two("_delta_log/00000000000000000001.json")
    committed: list[bool] = []

    def append(table: DeltaTable) -> None:
        properties = CommitProperties(app_transactions=[Transaction("rocketcrew", 1)])
        try:
            write_deltalake(table, pa.table({"a": [1]}), mode="append", commit_properties=properties)
            committed.append(True)
        except CommitFailedError:
            pass

    threads = [threading.Thread(target=append, args=(table,)) for table in both]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(committed), [row[0] for row in server.rows(["a"])]


def test_a_server_that_is_away_is_said_and_the_segments_stay(loaders: S3Loaders) -> None:
    loaders.seal(*STORY)
    loaders.run(1, options=loaders.server.options | {"endpoint": "http://127.0.0.1:1"})
    assert "the S3 server can't be asked" in loaders.status()["error"]
    loaders.run()
    loaders.assert_exact()


def test_a_loader_that_waits_asks_nothing(loaders: S3Loaders) -> None:
    """Requests cost money: none while no batch is due, however often the loader looks."""
    loaders.seal(*STORY)
    process = loaders.start(follow=True, poll_interval_ms=1)
    first = loaders.wait_for_batch(1, process)
    asked = loaders.server.requests
    seen = first["updated_ms"]
    wait_until(lambda: process.poll() is not None or loaders.status()["updated_ms"] >= seen + 2_500)
    assert process.poll() is None, loaders.log.read_text()
    assert loaders.server.requests == asked


def test_a_loader_ends_by_its_deadline_though_the_server_is_silent(loaders: S3Loaders) -> None:
    """No thread waits for the server with Python's lock held: the signal is taken, and the deadline kept."""
    loaders.seal(*STORY)
    process = loaders.start(follow=True, stop_deadline_ms=100, max_wait_ms=0)
    loaders.wait_for_batch(1, process)
    loaders.server.fall_silent()
    loaders.seal(Record(3))
    assert loaders.server.asked_in_silence.wait(WAIT_S), loaders.log.read_text()
    process.send_signal(signal.SIGTERM)
    assert process.wait(WAIT_S) == EXIT_FORCED, loaders.log.read_text()


def command(server: S3Server, *words: str, code: int = 0) -> tuple[str, str]:
    """What it prints, and what it says of its errors."""
    settings = {"spark.target": server.url(), "spark.format": "deltalake", "spark.options": json.dumps(server.options)}
    told = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    done = subprocess.run(
        [sys.executable, "-m", "rocketcrew", *words, *told], capture_output=True, text=True, check=False, timeout=WAIT_S,
        env={name: value for name, value in environment(server).items() if not name.startswith("ROCKETCREW_")},
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert "a-very-secret-key" not in done.stdout + done.stderr
    return done.stdout, done.stderr


def test_the_commands_that_look_into_a_table(loaders: S3Loaders) -> None:
    server, ask = loaders.server, partial(command, loaders.server)
    staging = ("--staging", str(loaders.staging))
    check = ("reconcile", "-g", "g", "--no-brokers", *staging, "--json")
    query = ("query", "--engine", "duckdb", "--json", "SELECT count(*) AS n FROM latest")
    assert "holds no batch yet" in ask("compact", code=2)[1]
    loaders.seal(*STORY)
    ask("load", *staging)
    loaders.seal(Record(2, ["again"]), Record(3))
    ask("load", *staging)
    loaders.assert_exact()
    report: dict[str, Any] = json.loads(ask(*check)[0])
    assert (report["fine"], report["queues"][0]["counts"]) == (True, {"loaded": 3})
    assert json.loads(ask("compact", "--json")[0]) == {"files_before": 2, "files_after": 1, "files_apart": 0}
    loaders.assert_exact()
    assert json.loads(ask(*query)[0]) == [{"n": len(expected(loaders.records.values()))}]
    assert "ask it by DuckDB" in ask("query", "--engine", "spark", "SELECT 1", code=2)[1]
    server.delete_all(".parquet")
    report = json.loads(ask(*check, code=1)[0])
    assert report["queues"][0]["unexplained"] == {"missing": [[1, 4]]}
    assert "is gone" in report["unreadable"][0]


def test_checks_of_a_configuration_put_nothing_and_doctor_asks_the_server(server: S3Server, careless: S3Server) -> None:
    handler = "rocketcrew.examples.functions:measure"
    check = ("config", "check", "--handler", handler)
    assert "can be run" in command(careless, *check)[0]
    assert not careless.puts
    doctor = ("doctor", handler, "-t", "orders", "-g", "g", "-n", "127.0.0.1:9", "--json")
    for asked, level in ((server, "fine"), (careless, "fault")):
        checks = {each["check"]: each for each in json.loads(command(asked, *doctor, code=1)[0])["checks"]}
        assert (checks["table"]["level"], checks["handler"]["level"]) == (level, "fine"), checks
        assert asked.puts
    gone = S3Server()
    gone.close()
    assert "can't be asked" in command(gone, *check, code=2)[1]
