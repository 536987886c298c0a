"""Delta tables with what delta-rs does not know: files tell their rows, or it is said who can read them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from deltalake import DeltaTable
from loader_world import World
from test_delta_vacuum import with_deletion_vector
from test_reading_filters import with_feature

from rocketcrew.cli.reading import dataset
from rocketcrew.remoting.errors import UsageError
from rocketcrew.spark.compaction import compact, to_merge
from rocketcrew.spark.delta_files import is_elsewhere
from rocketcrew.spark.delta_log import LOG_DIR
from rocketcrew.spark.errors import LoaderError
from rocketcrew.spark.object_store import STATE_DIR
from rocketcrew.spark.reconciling import reconcile
from rocketcrew.spark.table_keys import table_facts

pq: Any = pyarrow.parquet
TABLES = ("deltalake",)
UNKNOWN = "vacuumProtocolCheck"
"""With it delta-rs (1.6) does not say which files have deletion vectors."""


def looked_at(table: Path) -> list[int]:
    """The offsets by `query`, where `reconcile` finds them too."""
    facts, broken = table_facts(table, ())
    assert (broken, reconcile(facts, None).fine) == ([], True)
    rows: Any = dataset(table).to_table()
    return sorted(rows.column("_offset").to_pylist())


def test_a_feature_of_the_log_alone(world: World) -> None:
    world.load(1)
    with_feature(world.table, UNKNOWN, "v2Checkpoint")
    assert looked_at(world.table) == [1]


def as_checkpoint(table: Path) -> None:
    """The log with its first entries in a checkpoint alone, and no feature that keeps delta-rs from making one."""
    log = DeltaTable(str(table))
    log.create_checkpoint()
    for version in range(log.version()):
        (table / LOG_DIR / f"{version:020d}.json").unlink()


def as_sidecar(table: Path) -> None:
    """The same with a checkpoint that has its files apart, as Delta's second kind may."""
    entries = sorted((table / LOG_DIR).glob("*.json"))
    actions = [json.loads(line) for entry in entries for line in entry.read_text().splitlines()]
    rest = {name: action for action in actions for name in action if name in ("protocol", "metaData", "txn")}
    as_checkpoint(table)
    (whole,) = (table / LOG_DIR).glob("*.checkpoint.parquet")
    apart = table / LOG_DIR / "_sidecars" / "1.parquet"
    apart.parent.mkdir()
    pq.write_table(pq.read_table(whole, columns=["add", "remove"]), apart)
    checkpoint = [
        *rest.values(),
        {"checkpointMetadata": {"version": len(entries) - 1}},
        {"sidecar": {"path": apart.name, "sizeInBytes": apart.stat().st_size, "modificationTime": 1}},
    ]
    name = f"{len(entries) - 1:020d}.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.json"
    (table / LOG_DIR / name).write_text("".join(json.dumps(action) + "\n" for action in checkpoint))
    (table / LOG_DIR / "_last_checkpoint").unlink()
    whole.unlink()
    assert len(DeltaTable(str(table)).file_uris()) == 2


@pytest.mark.parametrize("folded", [None, as_checkpoint, as_sidecar])
def test_deletion_vectors_are_found_in_the_log(world: World, folded: Any) -> None:
    world.load(1)
    world.load(2)
    with_deletion_vector(world.table)
    if folded is not None:
        folded(world.table)
    with_feature(world.table, "deletionVectors", UNKNOWN)
    with pytest.raises(UsageError, match=r"has deletion vectors.*REORG TABLE"):
        table_facts(world.table, ())
    with pytest.raises(LoaderError, match=r"has deletion vectors.*--engine spark"):
        dataset(world.table)


@pytest.mark.parametrize("folded", [None, as_checkpoint])
def test_a_table_that_may_have_deletion_vectors_and_has_none(world: World, folded: Any) -> None:
    world.load(1)
    world.load(2)
    if folded is not None:
        folded(world.table)
    with_feature(world.table, "deletionVectors", UNKNOWN)
    assert looked_at(world.table) == [1, 2]


def test_a_log_that_does_not_say_it_is_refused(world: World) -> None:
    world.load(1)
    as_checkpoint(world.table)
    with_feature(world.table, "deletionVectors", UNKNOWN)
    (world.table / LOG_DIR / f"{0:020d}.json").write_text("{torn\n")
    for look in (dataset, lambda table: table_facts(table, ())):
        with pytest.raises(LoaderError, match=r"the log of .*table can't be read to its beginning"):
            look(world.table)


def test_what_delta_rs_does_not_write_spark_may(world: World) -> None:
    world.load(1)
    with_feature(world.table, UNKNOWN)
    with pytest.raises(LoaderError, match=r"\[VacuumProtocolCheck\].*spark\.format = delta.*The segments stay"):
        world.load(2)


@pytest.mark.parametrize("prefix", ["{0}/", "file://{0}/", "file:{0}/", "s3a://bucket/"])
def test_a_shallow_clone_is_refused(world: World, prefix: str) -> None:
    world.load(1)
    world.load(2)
    original = world.table.with_name("original")
    world.table.rename(original)
    world.table.mkdir()
    for part in (LOG_DIR, STATE_DIR):
        (original / part).rename(world.table / part)
    for entry in (world.table / LOG_DIR).glob("*.json"):
        actions: list[dict[str, Any]] = [json.loads(line) for line in entry.read_text().splitlines()]
        for action in actions:
            if "add" in action:
                action["add"]["path"] = prefix.format(original) + action["add"]["path"]
        entry.write_text("".join(json.dumps(action) + "\n" for action in actions))
    looks: list[Any] = [
        dataset, lambda table: table_facts(table, ()), lambda table: compact(table, 1 << 20),
        lambda table: to_merge(table, 1 << 20),
    ]  # fmt: skip
    for look in looks:
        with pytest.raises(UsageError, match=r"files of another table \(a shallow clone\): read it with Spark"):
            look(world.table)


def test_names_with_a_colon_are_of_the_table() -> None:
    """Delta-rs and Spark escape it in the value of a partition; others need not."""
    assert not any(
        map(is_elsewhere, ["part-0.parquet", "at=12:00/part-0.parquet", "at=s3:/part-0", "a:b.parquet", "ü:/x"])
    )
    assert all(map(is_elsewhere, ["/x", "s3a://b/x", "hdfs://n/x", "abfss://c@a.dfs.core.windows.net/x", "file:/x"]))
