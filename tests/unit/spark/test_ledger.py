"""Targets that cannot say what they hold: what a user's function is given, and what `df.write` is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyspark
import pytest
from loader_world import World

from rocketcrew.durable.intervals import QueueKey
from rocketcrew.remoting.errors import UsageError
from rocketcrew.spark.epochs import EpochRequest
from rocketcrew.spark.session import delta_conf
from rocketcrew.spark.targets.ledger import LedgerTarget, Range, deliver_by_format, deliver_to

QUEUE = QueueKey("g", "orders", "broker-a", 0)


class Frame:
    """Stands for a DataFrame and its writer: it notes what is called."""

    def __init__(self) -> None:
        self.called: list[tuple[object, ...]] = []

    @property
    def write(self) -> Frame:
        return self

    def __getattr__(self, name: str) -> Any:
        def call(*words: object, **options: object) -> Frame:
            self.called.append((name, *words, *sorted(options.items())))
            return self

        return call


class Writer:
    """Stands for Spark."""

    def start(self) -> None:
        pass

    def run(self, _files: object, _columns: object, _what: str, action: Any) -> None:
        action(Frame())


def ledger(folder: Path, calls: list[tuple[int, list[Range]]]) -> LedgerTarget:
    """Deliveries are noted in `calls`."""
    writer: Any = Writer()
    return LedgerTarget(folder, str(folder), writer, lambda _, batch, ranges, _id: calls.append((batch, ranges)))


def test_the_ranges_of_two_epochs_of_a_queue_are_told_apart(world: World, segments: Any, tmp_path: Path) -> None:
    calls: list[tuple[int, list[Range]]] = []
    loader = world.loader(target=ledger(tmp_path / "ledger", calls))
    world.seal([segments.Record(offset) for offset in (1, 2, 4)])
    world.drain(loader)
    request = EpochRequest((QUEUE.in_epoch(1),), frozenset())
    (world.roots[0] / "epochs.json").write_text(request.to_json())
    world.seal([segments.Record(offset, ["again"]) for offset in (1, 2, 4)])
    world.drain(loader)
    assert calls == [(1, [Range(*QUEUE[:4], 1, 5)]), (2, [Range(*QUEUE[:4], 1, 5, epoch=1)])]
    assert calls[0][1] != calls[1][1]


def test_a_late_record_in_a_hole_that_was_passed_is_in_the_ranges(world: World, segments: Any, tmp_path: Path) -> None:
    calls: list[tuple[int, list[Range]]] = []
    loader = world.loader(target=ledger(tmp_path / "ledger", calls), pieces_max=2)
    for offsets in ((0, 10, 20, 30), (13,), (7, 40), (16,)):
        world.seal([segments.Record(offset, [] if offset == 16 else ["x"]) for offset in offsets])
        world.drain(loader)
    pieces = [(one.start, one.end) for _, ranges in calls for one in ranges]
    assert pieces[:3] == [(0, 31), (13, 14), (7, 41)]


def takes_two(df: object, batch_id: object) -> None:
    given.append((df, batch_id))


def takes_three(df: object, batch_id: object, ranges: object, own: str = "own") -> None:
    given.append((df, batch_id, ranges, own))


def takes_four(df: object, batch_id: object, ranges: object, ledger_id: str = "") -> None:
    given.append((df, batch_id, ranges, ledger_id))


def takes_all(*every: object) -> None:
    given.append(every)


given: list[tuple[object, ...]] = []


@pytest.mark.parametrize(
    ("function", "gets"),
    [(takes_two, ("df", 7)), (takes_three, ("df", 7, [], "own")), (takes_four, ("df", 7, [], "id")),
     (takes_all, ("df", 7, [], "id"))],
)  # fmt: skip
def test_a_function_gets_what_it_takes(function: Any, gets: tuple[object, ...]) -> None:
    frame: Any = "df"
    deliver_to(function, "app:function")(frame, 7, [], "id")
    assert given.pop() == gets


def test_a_function_that_takes_no_number_is_refused() -> None:
    with pytest.raises(UsageError, match=r"app:one must take \(df, batch_id\)"):
        deliver_to(lambda df: df, "app:one")


NUMBERED = ("selectExpr", "*", "cast(7 as bigint) as batch_id")


def delivered(format_: str, target: str, options: dict[str, str], partition_by: tuple[str, ...] = ()) -> Frame:
    frame: Any = Frame()
    deliver_by_format(format_, target, options, partition_by)(frame, 7, [], "ledger")
    found: Frame = frame
    return found


def test_other_formats_are_appended_to_with_the_batchs_number() -> None:
    options = {"url": "jdbc:x", "dbtable": "rows"}
    assert delivered("jdbc", "", options).called == [
        NUMBERED, ("format", "jdbc"), ("mode", "append"), ("options", ("dbtable", "rows"), ("url", "jdbc:x")), ("save",),
    ]  # fmt: skip


def test_a_target_is_a_path_or_a_table_of_the_catalog() -> None:
    head = [NUMBERED, ("format", "orc"), ("mode", "append"), ("options",)]
    assert delivered("orc", "/data/rows", {}).called == [*head, ("save", "/data/rows")]
    assert delivered("orc", "table:lake.rows", {}).called == [*head, ("saveAsTable", "lake.rows")]
    by = ("partitionBy", "day", "region")
    assert delivered("orc", "/data/rows", {}, ("day", "region")).called == [*head, by, ("save", "/data/rows")]
    assert delivered("orc", "table:rows", {}, ("day", "region")).called == [*head, by, ("saveAsTable", "rows")]


def test_the_jars_of_delta_come_from_a_folder_a_list_or_the_network(tmp_path: Path) -> None:
    for name in ("delta-spark_4.2_2.13-4.4.0.jar", "delta-storage-4.4.0.jar", "notes.txt"):
        (tmp_path / name).touch()
    files = [str(tmp_path / "delta-spark_4.2_2.13-4.4.0.jar"), str(tmp_path / "delta-storage-4.4.0.jar")]
    assert delta_conf(str(tmp_path))["spark.jars"] == ",".join(files)
    assert delta_conf(", ".join(files))["spark.jars"] == ",".join(files)
    fetched = delta_conf("")
    version = ".".join(pyspark.__version__.split(".")[:2])
    assert fetched["spark.jars.packages"].startswith(f"io.delta:delta-spark_{version}_2.13:")
    assert "spark.jars" not in fetched
    for conf in (fetched, delta_conf(str(tmp_path))):
        assert "DeltaSparkSessionExtension" in conf["spark.sql.extensions"]
        assert "DeltaCatalog" in conf["spark.sql.catalog.spark_catalog"]


@pytest.mark.parametrize("jars", ["", "/jars/other.jar,/jars/delta-storage.jar"])
def test_jars_without_delta_are_refused(tmp_path: Path, jars: str) -> None:
    with pytest.raises(UsageError, match="holds no delta-spark jar"):
        delta_conf(jars or str(tmp_path))
