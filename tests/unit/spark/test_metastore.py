"""What a metastore is told of a table, and by whom: nothing that it knows, nothing of somebody else's, and nobody waits."""

from __future__ import annotations

import fcntl
import re
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from loader_world import World
from structlog.testing import capture_logs

from rocketcrew.conf.columns import Column
from rocketcrew.conf.formats import metastore_name
from rocketcrew.conf.settings import load
from rocketcrew.remoting.errors import UsageError
from rocketcrew.spark.compaction import compact
from rocketcrew.spark.config import LoaderConfig
from rocketcrew.spark.errors import LoaderError
from rocketcrew.spark.metastore import (
    PARTITIONS_MAX,
    Known,
    Wanted,
    known_of,
    literal,
    same_place,
    to_add,
    to_create,
    to_drop,
    to_widen,
    values_of,
    why_not_ours,
)
from rocketcrew.spark.registration import LOOK_EVERY_S, SAY_EVERY_S, STOP_WAIT_S, Metastore, Registrar
from rocketcrew.spark.table_lock import locked_table

COLUMNS = (Column("value", "string"), Column("day", "date"))
FOLDER = Wanted("shop", "rows", "parquet", "file:///data/rows", COLUMNS)
BY_DAY = Wanted("shop", "rows", "parquet", "file:///data/rows", COLUMNS, ("day",))
DELTA = Wanted("shop", "rows", "delta", "file:///data/rows")
ENTRY = Known("EXTERNAL", "parquet", "file:/data/rows", ("value", "day", "batch_id"), ("batch_id",), tracked=True)
WAIT_S = 60.0


def test_the_entry_of_each_kind_of_table() -> None:
    assert to_create(DELTA) == "CREATE TABLE `shop`.`rows` USING delta LOCATION 'file:///data/rows'"
    assert to_create(BY_DAY) == (
        "CREATE TABLE `shop`.`rows` (`value` string, `day` date, `batch_id` bigint) USING parquet"
        " PARTITIONED BY (`batch_id`, `day`) LOCATION 'file:///data/rows'"
    )


def test_texts_are_quoted() -> None:
    assert literal(r"/it's a \n") == r"'/it\'s a \\n'"


def test_only_new_columns_are_added() -> None:
    assert list(to_widen(FOLDER, ENTRY)) == []
    found = list(to_widen(FOLDER, Known("EXTERNAL", "parquet", "", ("VALUE", "batch_id"), (), tracked=True)))
    assert found == ["ALTER TABLE `shop`.`rows` ADD COLUMNS (`day` date)"]
    assert list(to_widen(DELTA, ENTRY)) == []


def test_only_what_differs_is_told() -> None:
    parts = {("2",): "file:///data/rows/batch_id=2", ("3",): "file:///data/rows/batch_id=3"}
    assert list(to_add(FOLDER, parts, {("1",), ("2",)})) == [
        "ALTER TABLE `shop`.`rows` ADD IF NOT EXISTS PARTITION (`batch_id` = '3') LOCATION 'file:///data/rows/batch_id=3'"
    ]
    assert list(to_drop(FOLDER, parts, {("1",), ("2",)})) == [
        "ALTER TABLE `shop`.`rows` DROP IF EXISTS PARTITION (`batch_id` = '1')"
    ]
    assert [*to_add(FOLDER, parts, set(parts)), *to_drop(FOLDER, parts, set(parts))] == []
    assert list(to_drop(BY_DAY, {}, {("1", None)})) == [
        "ALTER TABLE `shop`.`rows` DROP IF EXISTS PARTITION (`batch_id` = '1', `day` = null)"
    ]


def test_many_partitions_are_several_statements() -> None:
    parts = {(str(batch),): "x" for batch in range(2 * PARTITIONS_MAX + 1)}
    assert [one.count("PARTITION (") for one in to_add(FOLDER, parts, ())] == [PARTITIONS_MAX, PARTITIONS_MAX, 1]


def test_partitions_are_one_however_their_folders_are_written() -> None:
    """Arrow writes other characters as %XX than Spark does, and SHOW PARTITIONS has Spark's."""
    assert values_of("batch_id=1/day=a%2Fb%3Dc %3A") == values_of("batch_id=1/day=a%2Fb%3Dc%20%3A") == ("1", "a/b=c :")
    assert values_of("batch_id=1/day=__HIVE_DEFAULT_PARTITION__") == ("1", None)


def test_what_describe_says() -> None:
    told = [
        ("value", "string"), ("batch_id", "bigint"), ("# Partition Information", ""), ("# col_name", "data_type"),
        ("batch_id", "bigint"), ("", ""), ("# Detailed Table Information", ""), ("Type", "EXTERNAL"),
        ("Provider", "PARQUET"), ("Location", "file:/data/rows"), ("Partition Provider", "Catalog"),
    ]  # fmt: skip
    assert known_of(told) == Known(
        "EXTERNAL", "parquet", "file:/data/rows", ("value", "batch_id"), ("batch_id",), tracked=True
    )
    assert known_of([("Location", "string"), ("# Detailed Table Information", ""), ("Type", "VIEW")]).location == ""


def test_a_column_may_be_named_like_a_heading() -> None:
    """A heading has no type, or the word for it."""
    columns = ("#x", "# col_name", "# Partition Information", "# Detailed Table Information")
    told = [*((name, "string") for name in columns), *told_of_a_folder("Thu Jan 01 00:00:00 UTC 1970", "/data/rows")]
    known = known_of(told)
    assert known.columns == (*columns, "value", "batch_id")
    assert known.partition_columns == ("batch_id",)
    assert known.kind == "EXTERNAL"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("file:/a b/t", "file:///a b/t/", True), ("/a/t", "file:///a/t", True), ("file:/a/t", "file:/a/u", False),
        ("hdfs://n:1/a", "hdfs://n:1/a/", True), ("hdfs://n:1/a", "hdfs://m:1/a", False), ("hdfs://n/a", "/n/a", False),
    ],
)  # fmt: skip
def test_places(one: str, other: str, same: bool) -> None:
    assert same_place(one, other) is same


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        (ENTRY, ""),
        (Known("VIEW", "", "", (), (), tracked=False), "is a view"),
        (Known("MANAGED", "parquet", "file:/data/rows", (), ("batch_id",), tracked=True), "is a managed table"),
        (Known("EXTERNAL", "parquet", "file:/other", (), ("batch_id",), tracked=True), "is the table at file:/other"),
        (Known("EXTERNAL", "csv", "file:/data/rows", (), ("batch_id",), tracked=True), "a table of csv, and not of"),
        (Known("EXTERNAL", "parquet", "file:/data/rows", (), (), tracked=False), "the partition columns none, and the"),
    ],
)
def test_what_is_something_else(entry: Known, why: str) -> None:
    said = why_not_ours(FOLDER, entry)
    assert why in said
    assert bool(said) == bool(why)


@pytest.mark.parametrize(
    "name", ["rows", "a.b.c", "shop.", "sh op.rows", "shop.`rows`", "shop.r'", "delta.rows", "ü.t"]
)
def test_names(name: str) -> None:
    assert metastore_name("shop.rows_2") == "shop.rows_2"
    with pytest.raises(UsageError, match=r"spark\.table"):
        load({"spark.table": name}, {}, None)
    with pytest.raises(UsageError, match=r"spark\.table"):
        LoaderConfig(Path("s"), Path("t"), table=name)


@pytest.mark.parametrize(
    ("format_", "why"),
    [
        ("iceberg", "known to its catalog already"), ("iceberg-spark", "known to its catalog already"),
        ("pyarrow", "set spark.format = parquet"), ("deltalake", "set spark.format = delta"), ("jdbc", "only tables"),
    ],
)  # fmt: skip
def test_formats_that_are_not_registered(format_: str, why: str) -> None:
    load({"spark.table": "shop.rows", "spark.format": "delta"}, {}, None)
    with pytest.raises(UsageError, match=rf"spark.table.*{why}"):
        load({"spark.table": "shop.rows", "spark.format": format_}, {}, None)
    with pytest.raises(UsageError, match=rf"spark.table = shop.rows: .*{why}"):
        LoaderConfig(Path("s"), Path("t"), format=format_, table="shop.rows")


def told_of_a_folder(created: str, location: str) -> list[tuple[str, str]]:
    """DESCRIBE TABLE EXTENDED of a folder of batches with one column."""
    return [
        ("value", "string"), ("batch_id", "bigint"), ("# Partition Information", ""), ("# col_name", "data_type"),
        ("batch_id", "bigint"), ("", ""), ("# Detailed Table Information", ""), ("Created Time", created),
        ("Type", "EXTERNAL"), ("Provider", "parquet"), ("Location", location), ("Partition Provider", "Catalog"),
    ]  # fmt: skip


class Entry:
    """A session whose metastore has the entry of a folder: what it was told, and whether the folder could be exchanged."""

    def __init__(self, table: Path) -> None:
        self.table = table
        self.partitions: list[str] = []
        self.said: list[str] = []
        self.exchangeable: list[bool] = []
        self.refuses = False
        self.created = "Thu Jan 01 00:00:01 UTC 1970"

    def sql(self, statement: str) -> Any:
        verb = " ".join(statement.split()[:2])
        self.said.append(verb)
        if verb == "DESCRIBE TABLE":
            told = told_of_a_folder(self.created, str(self.table))
            return rows(*({"col_name": name, "data_type": value} for name, value in told))
        if verb == "SHOW PARTITIONS":
            return rows(*({"partition": one} for one in self.partitions))
        if self.refuses:
            raise OSError("refused")
        try:
            with locked_table(self.table, fcntl.LOCK_EX, 0):
                self.exchangeable.append(True)
        except LoaderError:
            self.exchangeable.append(False)
        numbers = [f"batch_id={one}" for one in re.findall(r"PARTITION \(`batch_id` = '(\d+)'\)", statement)]
        kept = [one for one in self.partitions if one not in numbers]
        self.partitions = [*kept, *numbers] if " ADD IF " in statement else kept
        return rows()


def rows(*found: dict[str, str]) -> Any:
    return SimpleNamespace(collect=lambda: list(found))


def test_a_folder_is_told_batch_by_batch_and_looked_at_when_it_was_exchanged(world: World) -> None:
    """And never while a compaction may exchange it: a metastore makes the folder of a partition that it does not find."""
    spark = Entry(world.table)
    wanted = Wanted("shop", "rows", "parquet", str(world.table))
    metastore = Metastore(spark, wanted, world.table)
    metastore.register()
    assert spark.said == []  # there is no table yet
    world.load(1)
    metastore.register()
    world.load(2)
    metastore.register()
    assert spark.partitions == ["batch_id=1", "batch_id=2"]
    look, add = "DESCRIBE TABLE", "ALTER TABLE"
    columns = add  # the entry has one column of the table's, and never gets the others
    assert spark.said == [look, columns, "SHOW PARTITIONS", add, look, columns, add]
    compact(world.table, 1 << 27)
    world.load(3)
    metastore.register()
    assert spark.partitions == ["batch_id=2", "batch_id=3"]
    spark.refuses = True
    world.load(4)
    with pytest.raises(OSError, match="refused"):
        metastore.register()
    spark.refuses, spark.partitions = False, ["batch_id=9"]
    metastore.register()
    assert spark.partitions == ["batch_id=2", "batch_id=3", "batch_id=4"]
    assert not any(spark.exchangeable)


def test_an_entry_that_others_made_anew_gets_the_older_batches_too(world: World) -> None:
    spark = Entry(world.table)
    metastore = Metastore(spark, Wanted("shop", "rows", "parquet", str(world.table)), world.table)
    for batch in (1, 2):
        world.load(batch)
        metastore.register()
    spark.partitions, spark.created = [], "Thu Jan 01 00:00:02 UTC 1970"
    world.load(3)
    metastore.register()
    assert spark.partitions == ["batch_id=1", "batch_id=2", "batch_id=3"]
    world.load(4)
    metastore.register()
    assert spark.said.count("SHOW PARTITIONS") == 2  # at first, and of the other entry


def test_partitions_that_others_took_out_are_told_again(world: World) -> None:
    """As a restored metastore lacks them, whose entry has the same time."""
    spark, now = Entry(world.table), [0.0]
    wanted = Wanted("shop", "rows", "parquet", str(world.table))
    metastore = Metastore(spark, wanted, world.table, now_s=lambda: now[0])
    for batch in (1, 2):
        world.load(batch)
        metastore.register()
    spark.partitions = ["batch_id=2"]
    now[0] = LOOK_EVERY_S - 1
    world.load(3)
    metastore.register()
    assert spark.partitions == ["batch_id=2", "batch_id=3"]
    now[0] += 1
    world.load(4)
    metastore.register()
    assert sorted(spark.partitions) == ["batch_id=1", "batch_id=2", "batch_id=3", "batch_id=4"]
    assert spark.said.count("SHOW PARTITIONS") == 2


class Asked:
    """What a metastore answers, one after the other: nothing, or an error. Then it tells who waits."""

    def __init__(self, *answers: Exception | None) -> None:
        self._answers = list(answers)
        self.calls = 0
        self._changed = threading.Condition()

    def __call__(self) -> None:
        with self._changed:
            self.calls += 1
            self._changed.notify_all()
            answer = self._answers.pop(0) if self._answers else None
        if answer is not None:
            raise answer

    def wait_for(self, calls: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.calls >= calls, WAIT_S)


def nothing() -> None:
    """A name that is free."""


def ended(registrar: Registrar) -> None:
    registrar.end(WAIT_S)


def test_told_at_the_start_and_after_each_commit() -> None:
    register = Asked()
    registrar = Registrar(nothing, register)
    registrar.start(WAIT_S)
    register.wait_for(1)
    registrar.committed()
    register.wait_for(2)
    ended(registrar)
    assert (register.calls, registrar.problem) == (2, "")


def test_what_failed_is_tried_with_the_next_commit_and_said_once_a_minute() -> None:
    register = Asked(OSError("away"), OSError("still away"))
    registrar = Registrar(nothing, register)
    with capture_logs() as logs:
        registrar.start(WAIT_S)
        register.wait_for(1)
        registrar.committed()
        register.wait_for(2)
        registrar.committed()
        ended(registrar)
    assert [(one["event"], one["reason"]) for one in logs] == [("table_not_registered", "away")]
    assert (register.calls, registrar.problem) == (3, "")


def test_a_problem_stays_to_be_seen() -> None:
    register = Asked(UsageError("is a view"))
    registrar = Registrar(nothing, register)
    registrar.start(WAIT_S)
    ended(registrar)
    assert registrar.problem == "is a view"


def test_a_name_of_something_else_is_refused_and_never_told() -> None:
    register = Asked()
    registrar = Registrar(Asked(UsageError("is a view")), register)
    with pytest.raises(UsageError, match="is a view"):
        registrar.start(WAIT_S)
    assert register.calls == 0


def test_a_metastore_that_does_not_answer_is_not_waited_for() -> None:
    release = threading.Event()
    register = Asked()
    registrar = Registrar(release_of(release), register)
    with capture_logs() as logs:
        registrar.start(0)
        registrar.committed()
        registrar.end(0)
    assert [one["event"] for one in logs] == ["table_not_registered"]
    assert "has not answered" in registrar.problem
    assert register.calls == 0
    release.set()


def refused_late(*refusals: UsageError) -> tuple[Registrar, Asked, Asked]:
    """Who looks at a name until the start has given up, with a commit since; then come `refusals`, one after the other."""
    begun, release, answers, register = Asked(), threading.Event(), Asked(*refusals), Asked()

    def check() -> None:
        begun()
        assert release.wait(WAIT_S)
        answers()

    registrar = Registrar(check, register)
    registrar.start(0)
    begun.wait_for(1)
    registrar.committed()
    release.set()
    return registrar, answers, register


def test_a_name_that_is_refused_after_the_start_is_looked_at_again() -> None:
    registrar, answers, register = refused_late(UsageError("is a view"))
    register.wait_for(1)
    ended(registrar)
    assert (registrar.problem, answers.calls, register.calls) == ("", 2, 1)


def test_a_refusal_after_the_start_stays_to_be_seen() -> None:
    """Also where there is no batch yet, so nothing to register."""
    registrar, answers, register = refused_late(UsageError("is a view"), UsageError("is still a view"))
    answers.wait_for(2)
    ended(registrar)
    assert (registrar.problem, register.calls) == ("is still a view", 0)


def test_an_end_that_comes_before_all_is_told_is_said() -> None:
    release = threading.Event()
    registrar = Registrar(nothing, release_of(release))
    with capture_logs() as logs:
        registrar.start(WAIT_S)
        registrar.end(0)
    assert [one["event"] for one in logs] == ["table_not_registered"]
    assert "not told all" in registrar.problem
    release.set()


def test_a_metastore_that_hangs_later_is_said_once_a_minute() -> None:
    """While commits come, and while none comes and the status is written."""
    now, release, register = [0.0], threading.Event(), Asked()

    def hang() -> None:
        register()
        assert release.wait(WAIT_S)

    registrar = Registrar(nothing, hang, now_s=lambda: now[0])
    with capture_logs() as logs:
        registrar.start(WAIT_S)
        register.wait_for(1)
        now[0] = SAY_EVERY_S - 1
        registrar.committed()
        assert registrar.look() == ""
        now[0] += 1
        registrar.committed()
        assert "has not answered for 60 s" in registrar.problem
        now[0] += SAY_EVERY_S - 1
        assert "has not answered for 119 s" in registrar.look()
        assert len(logs) == 1
        now[0] += 1
        registrar.look()
        release.set()
        ended(registrar)
    assert [one["event"] for one in logs] == ["table_not_registered"] * 2
    assert (registrar.look(), register.calls) == ("", 2)


class Stop:
    """A stop that is asked for while somebody waits, by a clock that stands still until then."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.release = threading.Event()
        self._asked = False
        self._looked = Asked()

    def seen(self) -> bool:
        self._looked()
        return self._asked

    def ends(self, wait: Callable[[], None], after_s: float) -> None:
        waiting = threading.Thread(target=wait, daemon=True)
        waiting.start()
        self._looked.wait_for(self._looked.calls + 1)
        self.now_s += after_s
        self._asked = True
        waiting.join(WAIT_S)
        assert not waiting.is_alive()


def test_a_stop_ends_the_wait_of_a_start() -> None:
    stop = Stop()
    registrar = Registrar(release_of(stop.release), Asked(), stop.seen, lambda: stop.now_s)
    stop.ends(registrar.start, 0)
    assert registrar.problem == ""
    registrar.end()
    assert "not told all" in registrar.problem
    stop.release.set()


def test_a_stop_shortens_the_wait_of_an_end() -> None:
    stop = Stop()
    registrar = Registrar(nothing, release_of(stop.release), stop.seen, lambda: stop.now_s)
    registrar.start()
    stop.ends(registrar.end, STOP_WAIT_S)
    assert "not told all" in registrar.problem
    stop.release.set()


def release_of(event: threading.Event) -> Callable[[], None]:
    def wait() -> None:
        assert event.wait(WAIT_S)

    return wait
