"""A table whose first batch is being made, or was left half made: no table yet, and nobody else's."""

from __future__ import annotations

import json
from contextlib import nullcontext
from itertools import permutations
from pathlib import Path

import pytest
from loader_world import World
from obstore.store import LocalStore

from rocketcrew.cli.reading import dataset
from rocketcrew.remoting.errors import UsageError
from rocketcrew.spark.compaction import compact, to_merge
from rocketcrew.spark.delta_log import LOG_DIR, is_delta
from rocketcrew.spark.object_store import STATE_DIR, Bucket, ObjectPath
from rocketcrew.spark.table_columns import refuse_foreign, table_columns
from rocketcrew.spark.table_keys import table_facts
from rocketcrew.spark.targets.delta import DeltaTarget, append_by_delta_rs
from rocketcrew.spark.targets.local_folder import LocalFolder
from rocketcrew.spark.targets.parquet import ParquetTarget
from rocketcrew.spark.views import newest_state, nothing_loaded

delta = pytest.mark.parametrize("world", ["deltalake"], indirect=True)
every_format = pytest.mark.parametrize("world", ["parquet", "deltalake", "iceberg"], indirect=True)


def begun_by_spark(table: Path, files: tuple[str, ...] = ()) -> None:
    """What there is of Spark's first batch until its entry of the log is there, some seconds later."""
    (table / LOG_DIR / "_staged_commits").mkdir(parents=True)
    (table / LOG_DIR / ".00000000000000000000.json.1234.tmp").touch()
    for file in files:
        (table / file).write_bytes(b"PAR1")
    state(table, 1)


def state(table: Path, batch: int) -> None:
    """The state of a plan that wanted to be that batch."""
    (table / STATE_DIR).mkdir(exist_ok=True)
    (table / STATE_DIR / f"{batch}-0000000{batch}-0.json").write_text(json.dumps({"columns": [["value", "string"]]}))


@delta
@pytest.mark.parametrize("files", [(), ("part-0.snappy.parquet",)])
def test_a_first_batch_that_a_kill_has_left_is_loaded_anew(world: World, files: tuple[str, ...]) -> None:
    begun_by_spark(world.table, files)
    world.load(1, 2)
    world.load(3)
    world.assert_exact()
    world.assert_clean()


@delta
def test_a_table_whose_log_is_gone_is_no_first_batch(world: World) -> None:
    begun_by_spark(world.table, ("part-0.snappy.parquet",))
    state(world.table, 2)
    with pytest.raises(
        UsageError, match=r"holds 'part-0.*, which is of no Delta .* and its log .* is gone: put it back"
    ):
        world.loader()


@delta
def test_before_its_first_batch_a_table_holds_none(world: World) -> None:
    begun_by_spark(world.table, ("part-0.snappy.parquet",))
    assert not is_delta(world.table)
    assert table_columns(world.table) == (("value", "string"),)
    for look in (
        lambda: compact(world.table, 1 << 20),
        lambda: to_merge(world.table, 1 << 20),
        lambda: dataset(world.table),
        lambda: newest_state(world.table),
        lambda: table_facts(world.table, ()),
    ):
        with pytest.raises(UsageError, match="holds no batch yet"):
            look()


def test_who_asks_a_table_without_a_batch_is_told_that_it_is_begun_as_the_run_would(tmp_path: Path) -> None:
    """Only the run knows its shape: what is asked is a folder."""
    ready = tmp_path / "0" / "segments" / "ready"
    ready.mkdir(parents=True)
    (ready / "w-00000001.arrows").write_bytes(b"")
    said = str(nothing_loaded(tmp_path / "table"))
    assert said.endswith(
        f"--target {tmp_path / 'table'}`, with the spark.format and spark.partition_by of the run where it has any"
    )


def test_before_its_first_batch_a_table_in_a_bucket_holds_none(tmp_path: Path) -> None:
    bucket = Bucket("s3://bucket/table", {}, LocalStore(prefix=str(tmp_path)))
    state(tmp_path, 1)
    with pytest.raises(UsageError, match=r"s3://bucket/table holds no batch yet"):
        dataset(ObjectPath(bucket))


class OthersMakeDelta(DeltaTarget):
    """Behind the first look at the log, which there is not yet, another loader makes the table and loads its first batch."""

    def __init__(self, world: World) -> None:
        super().__init__(world.table, append_by_delta_rs, lambda: None)
        self._others: World | None = world

    def _refresh(self) -> int:
        found = super()._refresh()
        others, self._others = self._others, None
        if others is not None:
            others.drain(others.loader(at=1))
        return found


class OthersMakeFolders(LocalFolder):
    """As above, of the batches in a folder."""

    def __init__(self, world: World) -> None:
        super().__init__(world.table, world.threads)
        self._others: World | None = world

    def identity(self) -> object:
        found = super().identity()
        others, self._others = self._others, None
        if others is not None:
            others.drain(others.loader(at=1))
        return found


@pytest.mark.parametrize("world", ["parquet", "deltalake"], indirect=True)
def test_a_table_that_another_loader_makes_meanwhile_is_gone_on_with(world: World) -> None:
    world.seal([world.helpers.Record(1)])
    world.seal([world.helpers.Record(2)], at=1)
    target = (
        OthersMakeDelta(world)
        if world.format == "deltalake"
        else ParquetTarget(OthersMakeFolders(world), world.helpers.ArrowWriter())
    )
    assert target.state().batch == 1
    world.drain(world.loader(target=target))
    assert target.state().batch == 2
    world.assert_exact()


KINDS = ("parquet", "deltalake", "iceberg")


@pytest.mark.parametrize(("world", "kind"), list(permutations(KINDS, 2)), indirect=["world"])
def test_a_table_of_another_kind_that_is_made_while_the_first_batch_is_written_is_left_alone(
    world: World, kind: str, tmp_path: Path
) -> None:
    others = World(tmp_path, world.helpers, world.threads, kind)
    sealed = world.seal([world.helpers.Record(1)])
    others.seal([others.helpers.Record(2)], at=1)

    def made_by_others(point: str) -> None:
        if point == "noted":
            others.drain(others.loader(at=1))

    with pytest.raises(UsageError, match=r"holds '(batch_id=1|_delta_log|data)', which is"):
        world.drain(world.loader(on_point=made_by_others))
    assert sealed.exists()
    others.assert_exact()
    others.assert_clean(at=1)


@every_format
def test_hidden_files_are_nobodys_table(world: World) -> None:
    world.table.mkdir()
    for name in (".DS_Store", "_SUCCESS"):
        (world.table / name).touch()
    format_ = {"parquet": "pyarrow"}.get(world.format, world.format)
    refuse_foreign(world.table, format_)
    world.load(1)
    world.assert_exact()
    refuse_foreign(world.table, format_)
    for other in {"pyarrow", "deltalake", "iceberg"} - {format_}:
        with pytest.raises(
            UsageError, match=rf"another kind .* than spark\.format = {other} makes: .* to {format_} or "
        ):
            refuse_foreign(world.table, other)


@every_format
def test_what_is_found_first_is_named(world: World) -> None:
    world.table.mkdir()
    for name in ("b.csv", "a.csv", ".DS_Store"):
        (world.table / name).touch()
    with pytest.raises(UsageError, match=r"holds 'a\.csv', which is"):
        world.loader()


@pytest.mark.parametrize("world", ["parquet", "iceberg"], indirect=True)
def test_the_log_of_a_delta_table_is_no_hidden_file(world: World) -> None:
    (world.table / LOG_DIR).mkdir(parents=True)
    world.target().state()
    (world.table / LOG_DIR / f"{0:020d}.json").write_text("{}")
    with pytest.raises(UsageError, match="holds '_delta_log', which is"):
        world.loader()


@pytest.mark.parametrize("world", ["deltalake", "iceberg"], indirect=True)
def test_batches_of_a_parquet_folder_are_a_table_of_another_kind(world: World) -> None:
    (world.table / "batch_id=1").mkdir(parents=True)
    with pytest.raises(UsageError, match=r"holds 'batch_id=1', which is of no (Delta|Iceberg) table of rocketcrew"):
        world.loader()


@pytest.mark.parametrize("world", ["parquet"], indirect=True)
def test_no_parquet_table_is_made_beside_what_another_s_first_batch_has_left(world: World) -> None:
    begun_by_spark(world.table, ())
    with pytest.raises(UsageError, match=r"has the beginnings of a table of another spark\.format in _rocketcrew"):
        world.target().state()


@delta
@pytest.mark.parametrize(
    ("name", "is_own"), [("day=1", True), ("year=2026", False), ("batch_id=1", False), ("a.csv", False)]
)
def test_what_a_first_batch_may_have_left_is_files_of_rows_and_folders_of_its_partitions(
    world: World, name: str, is_own: bool
) -> None:
    begun_by_spark(world.table, ())
    (world.table / name).mkdir()
    target = DeltaTarget(world.table, append_by_delta_rs, lambda: None, ("day",))
    with nullcontext() if is_own else pytest.raises(UsageError, match=f"holds '{name}', which is of no Delta table"):
        assert target.state().batch == 0
