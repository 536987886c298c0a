"""The small deciding parts of the loader process: configuration, phases, parts of a plan, status, Spark's settings."""

from __future__ import annotations

import errno
import json
import os
import re
import string
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketcrew.client.clock import wall_ms
from rocketcrew.conf.columns import Column
from rocketcrew.durable.intervals import OffsetSet
from rocketcrew.remoting.errors import UsageError
from rocketcrew.spark.arrow_writer import NoWriter
from rocketcrew.spark.config import CLUSTER_CORES, LoaderConfig
from rocketcrew.spark.convert import FILE_BYTES, SEGMENT_BYTES_A_FILE_BYTE, divide, part_count
from rocketcrew.spark.errors import remedy
from rocketcrew.spark.java import Java
from rocketcrew.spark.needs import DELTA_BUILDS
from rocketcrew.spark.plan import SegmentFacts, Take
from rocketcrew.spark.reports import Waiting
from rocketcrew.spark.session import SessionSettings, as_properties, spark_conf, why_not_started
from rocketcrew.spark.status import FAILED, STOPPED, StatusFile, read_status
from rocketcrew.spark.stopping import TRANSITIONS, Action, Happening, Phase
from rocketcrew.spark.work import Work, explained


def test_every_problem_of_a_configuration_is_named_at_once() -> None:
    with pytest.raises(UsageError) as refused:
        LoaderConfig(Path("s"), Path("t"), function="m:f", master="", driver_memory="lots", max_rows=0, crash_point="x")
    for name in ("spark.function goes with", "spark.master", "'lots'", "max_rows is 0", "crash point 'x'"):
        assert name in str(refused.value)


@pytest.mark.parametrize("target", ["stage", "stage/table", "."])
def test_table_and_staging_folder_are_apart(target: str) -> None:
    with pytest.raises(UsageError, match="one in the other"):
        LoaderConfig(Path("stage"), Path(target))


@pytest.mark.parametrize(
    ("master", "cores"),
    [("local", 1), ("local[3]", 3), ("local[4,2]", 4), ("spark://h:7077", CLUSTER_CORES), ("yarn", 8)],
)
def test_cores_of_a_master(master: str, cores: int) -> None:
    assert LoaderConfig(Path("s"), Path("t"), master=master).cores == cores
    assert LoaderConfig(Path("s"), Path("t"), master="local[*]").cores >= 1


def test_the_phases_are_complete_and_every_way_ends() -> None:
    """In each phase everything that can happen is answered; deadlines run only where one is set."""
    live = [phase for phase in Phase if phase is not Phase.ENDED]
    timed = {Phase.FINISHING, Phase.CANCELLING}
    wanted = {(p, h) for p in live for h in Happening if h is not Happening.DEADLINE or p in timed}
    assert TRANSITIONS.keys() == wanted
    for phase in live:
        assert TRANSITIONS[phase, Happening.WORK_ENDED] == (Phase.ENDED, Action.LEAVE)
        assert TRANSITIONS[phase, Happening.PARENT_GONE] == (Phase.ENDED, Action.FORCE)
        here = phase
        for _ in range(3):
            if here is not Phase.ENDED:
                here, _action = TRANSITIONS[here, Happening.SIGNAL]
        assert here is Phase.ENDED, "three signals end it from anywhere"
    assert all((action is Action.NOTHING) == (old is new) for (old, _), (new, action) in TRANSITIONS.items())


@pytest.mark.parametrize(
    ("number", "told"),
    [(errno.ENOSPC, "make room"), (errno.EACCES, "must be able to read and write"), (errno.EIO, "The segments stay")],
)
def test_failed_system_calls_are_told_with_what_to_do(number: int, told: str) -> None:
    error = OSError(number, os.strerror(number), "/data/x")
    text = explained(error, LoaderConfig(Path("stage"), Path("table")))
    assert told in text
    assert os.strerror(number) in text
    assert "/data/x" in text


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("java.io.IOException: No space left on device", "make room"),
        ("Unable to open file: Permission denied (os error 13)", "must be allowed"),
        ('IOException: Cannot run program "/u/python": error=13, Permission denied', "spark.pyspark.python"),
        ("ModuleNotFoundError: No module named 'rocketcrew'", "on every node"),
        ("IOException: Mkdirs failed to create file:/t/_tmp/1/_temporary/0", "spark.format = pyarrow"),
        ("something else", ""),
    ],
)
def test_failures_known_by_their_text_are_told_with_what_to_do(said: str, told: str) -> None:
    assert told in remedy(said)
    assert bool(remedy(said)) == bool(told)


PART_BYTES = FILE_BYTES * SEGMENT_BYTES_A_FILE_BYTE
sizes = st.lists(st.integers(1, 3 * PART_BYTES), max_size=30)


@given(sizes, st.integers(1, 8), st.booleans())
def test_parts_hold_each_segment_once_and_are_about_equal(segment_bytes: list[int], cores: int, empty: bool) -> None:
    facts = {
        f"{at}": SegmentFacts(f"{at}", size, 1, OffsetSet(), False, (Column("a", "int"),))
        for at, size in enumerate(segment_bytes)
    }
    takes = [Take(name, None) for name in facts]
    if empty:
        facts["none"] = SegmentFacts("none", 100, 0, OffsetSet(), False, ())
        facts["dropped"] = SegmentFacts("dropped", 100, 9, OffsetSet(), False, ())
        takes += [Take("none", None), Take("dropped", OffsetSet())]
    parts = divide(takes, facts, cores)
    assert [take.name for part in parts for take in part] == [str(at) for at in range(len(segment_bytes))]
    count = part_count(sum(segment_bytes), cores)
    assert len(parts) <= count
    for part in parts:
        inner = sum(facts[take.name].bytes for take in part[1:-1])
        assert inner <= sum(segment_bytes) / count, "beyond a share there is half of its first and of its last segment"


@given(st.integers(0, 1 << 40), st.integers(1, 64))
def test_every_core_gets_the_same_number_of_parts(total: int, cores: int) -> None:
    count = part_count(total, cores)
    assert count >= 1
    assert count <= cores or count % cores == 0
    assert -(-total // count) <= PART_BYTES


def test_segments_of_other_columns_are_parts_of_their_own() -> None:
    one, two = (Column("a", "int"),), (Column("b", "int"),)
    facts = {
        n: SegmentFacts(n, 10, 1, OffsetSet(), False, c) for n, c in (("1", one), ("2", one), ("3", two), ("4", one))
    }
    parts = divide([Take(name, None) for name in facts], facts, 2)
    assert [[take.name for take in part] for part in parts] == [["1", "2"], ["3"], ["4"]]


def test_status_carries_totals_over_and_counts_unclean_ends(tmp_path: Path) -> None:
    target = str(tmp_path / "table")
    first = StatusFile(tmp_path, target)
    first.status.rows_total, first.status.batch_id, first.status.state = 7, 3, STOPPED
    for seconds in (0.05, 0.051, 500.0):
        first.status.committed(seconds)
    first.write(123)
    second = StatusFile(tmp_path, target)
    second.status.committed(0.01)
    assert [count for count in second.status.commit_buckets.values() if count] == [2, 1, 1]
    assert (second.status.commit_buckets["+Inf"], second.status.commit_seconds_total) == (1, 500.111)
    assert (second.status.rows_total, second.status.batch_id, second.status.restarts) == (7, 3, 0)
    second.status.state = FAILED
    second.write(124)
    assert StatusFile(tmp_path, target).status.restarts == 1
    other = StatusFile(tmp_path, "other table")
    other.found("")
    assert (other.status.rows_total, other.status.batch_id, sum(other.status.commit_buckets.values())) == (0, 0, 0)
    status = read_status(tmp_path / "loader.json")
    assert status is not None
    assert status.updated_ms == 124


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version":2}'])
def test_a_status_that_is_not_understood_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "loader.json").write_text(text)
    assert read_status(tmp_path / "loader.json") is None
    assert read_status(tmp_path / "missing.json") is None


def test_spark_is_quiet_local_and_the_users_settings_win(tmp_path: Path) -> None:
    theirs = {"spark.ui.enabled": "true", "spark.driver.extraJavaOptions": "-Dx=y"}
    conf = spark_conf(SessionSettings(tmp_path / "a b", conf=theirs))
    assert conf["spark.ui.enabled"] == "true"
    assert conf["spark.driver.host"] == "127.0.0.1"
    assert conf["spark.driver.extraJavaOptions"].endswith("a%20b/log4j2.properties -Dx=y")
    assert "spark.driver.host" not in spark_conf(SessionSettings(tmp_path, master="spark://host:7077"))
    assert json.dumps(conf)


def test_ports_on_loopback_ask_for_a_secret_and_on_a_cluster_the_users_settings_decide(tmp_path: Path) -> None:
    def conf(master: str, **theirs: str) -> dict[str, str]:
        made = spark_conf(
            SessionSettings(tmp_path, master=master, conf={f"spark.{name}": theirs[name] for name in theirs})
        )
        return {name: value for name, value in made.items() if "authenticate" in name}

    for master in ("local", "local[2]", "local[2,4]", "local[*]"):
        assert conf(master) == {"spark.authenticate": "true"}, "Spark makes the secret itself"
    assert conf("local", authenticate="false") == {"spark.authenticate": "false"}
    for master in ("spark://h:7077", "yarn", "k8s://https://h"):
        assert conf(master) == {}
    first, second = (conf("local-cluster[2,1,1024]")["spark.authenticate.secret"] for _ in range(2))
    assert len(first) == 64
    assert first != second


WORDS = st.text(st.characters(codec="utf-8") | st.sampled_from(" =:#!\\\n\r\t\f'\"é😀"))


def read_properties(text: str) -> dict[str, str]:
    """As java.util.Properties does, of what it may hold."""
    pairs = (line.split("=", 1) for line in text.splitlines())
    numbers = re.compile(r"\\u([0-9a-f]{4})")
    return {
        name: numbers.sub(lambda found: chr(int(found[1], 16)), value)
        .encode("utf-16", "surrogatepass")
        .decode("utf-16")
        for name, value in pairs
    }


@given(st.lists(WORDS))
def test_the_file_for_the_jvm_has_every_value_as_it_is(values: list[str]) -> None:
    conf = {f"spark.hadoop.a-b_C.{number}": value for number, value in enumerate(values)}
    text = as_properties(conf)
    assert read_properties(text) == conf
    assert set(re.sub(r"\\u[0-9a-f]{4}", "", text)) <= set(string.ascii_letters + string.digits + "._/-=\n")


def test_the_name_of_a_setting_may_hold_what_separates() -> None:
    assert as_properties({"spark.a:b c=": "d"}) == "spark.a\\u003ab\\u0020c\\u003d=d\n"


def test_a_jar_that_maven_does_not_have_is_named_with_those_that_exist(tmp_path: Path) -> None:
    java, ended = Java(Path("java"), 17, True, "here"), RuntimeError("Java gateway process exited")
    settings = SessionSettings(tmp_path)
    (tmp_path / "jvm.log").write_text(
        "\t\t::          UNRESOLVED DEPENDENCIES         ::\n"
        "\t\t:: io.delta#delta-spark_4.2_2.13;4.4.1: not found\n"
        'Exception in thread "main" java.lang.RuntimeException:'
        " [unresolved dependency: io.delta#delta-spark_4.2_2.13;4.4.1: not found]\n"
    )
    said = why_not_started(settings, java, ended)
    assert "Maven has no io.delta#delta-spark_4.2_2.13;4.4.1, or can't be reached" in said
    assert all(build in said for build in DELTA_BUILDS.values())
    assert "\n" not in said
    (tmp_path / "jvm.log").write_text("Could not reserve enough space for object heap\n")
    assert "Java gateway process exited" in why_not_started(settings, java, ended)
    assert "Could not reserve enough space" in why_not_started(settings, java, ended)


def test_the_lines_that_say_something_are_not_lost_in_the_stacks_below_them(tmp_path: Path) -> None:
    stack = "\tat io.netty.channel.unix.Socket.finishConnect(Socket.java:361)\n" * 20 + "\t... 53 more\n"
    (tmp_path / "spark.log").write_text(
        f"WARN ClientEndpoint: Failed to connect to master 127.0.0.1:1\norg.apache.spark.SparkException: why\n{stack}"
        f"Caused by: java.net.ConnectException: Connection refused: /127.0.0.1:1\n{stack}"
    )
    said = why_not_started(SessionSettings(tmp_path), Java(Path("java"), 17, True, "here"), RuntimeError("ended"))
    assert said.partition(":\n")[2].splitlines() == [
        "  WARN ClientEndpoint: Failed to connect to master 127.0.0.1:1",
        "  org.apache.spark.SparkException: why",
        "  Caused by: java.net.ConnectException: Connection refused: /127.0.0.1:1",
    ]


class Steps(Work):
    """A loader of two segments: its first step drops its plan, the second loads one, and the third the other."""

    def __init__(self, folder: Path) -> None:
        config = LoaderConfig(folder / "0", folder / "table", follow=True, format="pyarrow", poll_interval_ms=1)
        super().__init__(config, NoWriter())
        self.loader: Any = SimpleNamespace(waiting=Waiting(2, 2, 2, wall_ms()))
        self.seen: list[bool] = []

    def _step(self, desk: Any, *, at_once: bool) -> bool:
        self.seen.append(at_once)
        if len(self.seen) == 3:
            self.loader.waiting = Waiting(1, 1, 1, wall_ms() + 60_000)  # sealed later
        if len(self.seen) == 5:
            self.ask_stop()
        return len(self.seen) in (2, 3)

    def _tell(self, *_: Any) -> None:
        pass


def test_what_is_to_be_loaded_now_is_not_done_with_a_plan_that_was_dropped_or_took_a_part(tmp_path: Path) -> None:
    work = Steps(tmp_path)
    work.ask_load()
    work._loop([(work.loader, None)])  # type: ignore[list-item]
    assert work.seen == [True, True, True, False, False]


class AskedMeanwhile(Steps):
    """`load now` comes in the moment in which the loop looks whether it is done."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.loader = self

    @property
    def waiting(self) -> Waiting:
        if len(self.seen) == 1:
            self.ask_load()
        return Waiting()

    def _step(self, desk: Any, *, at_once: bool) -> bool:
        self.seen.append(at_once)
        if len(self.seen) == 3:
            self.ask_stop()
        return False


def test_what_is_asked_for_between_two_steps_is_not_lost(tmp_path: Path) -> None:
    work = AskedMeanwhile(tmp_path)
    work._loop([(work.loader, None)])  # type: ignore[list-item]
    assert work.seen == [False, True, False]
