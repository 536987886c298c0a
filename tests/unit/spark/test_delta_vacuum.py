"""With spark.vacuum, files of a Delta table that nobody needs go late, under its readers, and nothing else with them."""

from __future__ import annotations

import json
import os
import struct
import time
import uuid
import zlib
from base64 import b85encode
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from deltalake import DeltaTable
from loader_world import World

from rocketcrew.spark.compaction import compact
from rocketcrew.spark.delta_vacuum import deletable, why_not
from rocketcrew.spark.outcome_levels import FAN
from rocketcrew.spark.targets.delta import DeltaTarget, append_by_delta_rs

DAY_S = 86_400
WEEK_S = 7 * DAY_S
OF_NOBODY = "part-00000-6cf52306-8a7a-466f-af80-4b33718d6e5e-c000.snappy.parquet"
worlds = pytest.mark.parametrize("world", ["deltalake"], indirect=True)


def loaded(world: World, batches: int, *, vacuum: bool = True) -> None:
    loader = world.loader(target=DeltaTarget(world.table, append_by_delta_rs, lambda: None, vacuum=vacuum))
    for _ in range(batches):
        world.seal([world.helpers.Record(len(world.written))])
        world.drain(loader)


def aged(path: Path, seconds: int = WEEK_S + 3600) -> Path:
    then = time.time() - seconds
    os.utime(path, (then, then))
    return path


def written(path: Path, content: bytes = b"whatever") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


@worlds
def test_what_no_version_names_goes_a_week_later_and_what_readers_may_have_open_stays(world: World) -> None:
    table = Path(str(world.table))
    loaded(world, FAN - 2)
    reader = DeltaTable(str(table)).to_pyarrow_dataset()  # it has listed the files, and is slow to open them
    for path in table.glob("*.parquet"):
        aged(path)
    compact(table, 1 << 20)
    orphan, young = table / OF_NOBODY, table / OF_NOBODY.replace("6cf5", "6cf6")
    orphan.write_bytes(b"of a loader that died before its commit")
    young.write_bytes(b"of a loader that is about to commit")
    aged(orphan)
    mine = [aged(path) for path in (table / "_rocketcrew").rglob("*") if path.is_file()]
    loaded(world, 1)
    assert orphan.exists(), "not before the batch whose number is due"
    kept = [path for path in mine if path.exists()]
    loaded(world, 1)
    assert not orphan.exists()
    assert young.exists()
    assert reader.count_rows() == FAN - 2
    assert kept
    world.assert_exact()
    state = world.target().state()
    assert (state.batch, state.loaded.count()) == (FAN, FAN)
    assert len(list(world.target().outcomes())) > 0


@worlds
def test_nothing_goes_where_nobody_has_asked_for_it(world: World) -> None:
    table = Path(str(world.table))
    loaded(world, FAN - 1, vacuum=False)
    orphan = aged(written(table / OF_NOBODY))
    loaded(world, 1, vacuum=False)
    assert orphan.exists()


@worlds
def test_what_is_no_file_of_rows_stays_however_old(world: World) -> None:
    table = Path(str(world.table))
    loaded(world, FAN - 1)
    notes = (
        "metadata/v1.metadata.json",
        "notes/readme.txt",
        "_change_data/x.parquet",
        "mine.parquet",
        f"old/{OF_NOBODY}",
    )
    foreign = [aged(written(table / name), 99 * DAY_S) for name in notes]
    loaded(world, 1)
    assert [path for path in foreign if not path.exists()] == []


@worlds
@pytest.mark.parametrize(
    ("said", "day", "stays"), [("0 seconds", 6, True), ("0 seconds", 8, False), ("30 days", 8, True)]
)
def test_the_longer_of_a_week_and_the_tables_own_time_counts(world: World, said: str, day: int, *, stays: bool) -> None:
    table = Path(str(world.table))
    loaded(world, FAN - 1)
    DeltaTable(str(table)).alter.set_table_properties({"delta.deletedFileRetentionDuration": f"interval {said}"})
    orphan = aged(written(table / OF_NOBODY), day * DAY_S)
    loaded(world, 1)
    assert orphan.exists() is stays
    world.assert_exact()


@worlds
def test_a_deletion_vector_that_the_table_needs_stays(world: World) -> None:
    table = Path(str(world.table))
    loaded(world, FAN - 1)
    vector = with_deletion_vector(table)
    assert DeltaTable(str(table)).deletion_vectors().read_all().num_rows == 1
    orphan = aged(written(table / OF_NOBODY))
    aged(vector)
    loaded(world, 1)
    assert vector.exists()
    assert orphan.exists(), "nothing of such a table is ours to delete"
    assert DeltaTable(str(table)).deletion_vectors().read_all().num_rows == 1


def with_deletion_vector(table: Path) -> Path:
    """A version whose first file has lost its only row by a deletion vector, as Spark's DELETE writes it."""
    log = DeltaTable(str(table))
    add: dict[str, Any] = {}
    for entry in sorted((table / "_delta_log").glob("*.json")):
        for line in entry.read_text().splitlines():
            add = add or json.loads(line).get("add") or {}
    # Delta's portable bitmap: magic, one 32-bit bitmap with key 0, in Roaring's format with one array of one value, 0.
    bitmap = struct.pack("<IQI", 1681511377, 1, 0) + struct.pack("<IIHHIH", 12346, 1, 0, 0, 16, 0)
    name = uuid.uuid4()
    vector = table / f"deletion_vector_{name}.bin"
    vector.write_bytes(b"\x01" + struct.pack(">I", len(bitmap)) + bitmap + struct.pack(">I", zlib.crc32(bitmap)))
    digits = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
    python = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
    named = b85encode(name.bytes).decode().translate(str.maketrans(python, digits))
    of = {"storageType": "u", "pathOrInlineDv": named, "offset": 1, "sizeInBytes": len(bitmap), "cardinality": 1}
    features = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}
    removed = {"path": add["path"], "deletionTimestamp": int(time.time() * 1000), "dataChange": True}
    commit = (
        {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}},
        {"remove": removed},
        {"add": {**add, "deletionVector": of}},
    )
    entry = table / "_delta_log" / f"{log.version() + 1:020d}.json"
    entry.write_text("".join(json.dumps(action) + "\n" for action in commit))
    return vector


def protocol(version: int = 1, reader: list[str] | None = None, writer: list[str] | None = None) -> Any:
    return SimpleNamespace(min_reader_version=version, reader_features=reader, writer_features=writer)


def test_a_table_whose_files_are_not_all_known_here_is_left_alone() -> None:
    assert why_not(protocol(), {}) == ""
    assert why_not(protocol(3, reader=["timestampNtz"], writer=["timestampNtz", "appendOnly"]), {}) == ""
    assert why_not(protocol(), {"delta.enableDeletionVectors": "False"}) == ""
    for wrong in (
        why_not(protocol(2), {}),
        why_not(protocol(3, reader=["catalogManaged"]), {}),
        why_not(protocol(3, writer=["icebergCompatV2"]), {}),
        why_not(protocol(), {"delta.universalFormat.enabledFormats": "iceberg"}),
        why_not(protocol(), {"delta.enableDeletionVectors": "TRUE"}),
    ):
        assert "Delta's own VACUUM" in wrong


def test_files_of_rows_are_known_by_name_and_place() -> None:
    rows = "part-00001-6cf52306-8a7a-466f-af80-4b33718d6e5e.c000.zstd.parquet"
    assert deletable([rows, OF_NOBODY, "part-0.parquet", f"a=1/{rows}", f"_delta_log/{rows}"], []) == [OF_NOBODY, rows]
    names = [f"_a=1/b=x%20y/{rows}", f"_a=1/{rows}", f"b=1/_a=1/{rows}", rows, f"_a=1/b=2/x/{rows}"]
    assert deletable(names, ["_a", "b"]) == [f"_a=1/b=x%20y/{rows}"]
