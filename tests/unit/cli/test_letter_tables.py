"""Dead letters as tables: what a reader finds in them, and that nothing is written over or left half."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from rocketcrew.cli.letter_tables import SCHEMA, table_of, write
from rocketcrew.cli.letters import DELTA, PARQUET, Letter
from rocketcrew.remoting.compression import Compression, compress
from rocketcrew.remoting.errors import RocketcrewError, UsageError
from rocketcrew.remoting.properties import encode_properties
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.remoting.stored import StoredMessage

pq: Any = pyarrow.parquet
MQ = MessageQueue("%DLQ%billing", "broker-a", 2)
LENGTH = 4075
"""Of a path to which a folder can be added, and no file in that: 4096 is the most."""
KINDS = pytest.mark.parametrize("kind", [PARQUET, DELTA])


def letter(offset: int, body: bytes = b"\xff\x00", sysflag: int = 0, **properties: str) -> Letter:
    given = {"UNIQ_KEY": f"id-{offset}", "RETRY_TOPIC": "orders", "KEYS": "o-1 o-2", "TAGS": "paid", **properties}
    raw = encode_properties(given).encode()
    message = StoredMessage(
        MQ.topic, body, raw, queue_id=2, queue_offset=offset, reconsume_times=16, store_timestamp_ms=1_700_000_000_123,
        born_timestamp_ms=1_600_000_000_001, sysflag=sysflag,
    )  # fmt: skip
    return Letter(MQ, message, "replayed")


@KINDS
def test_a_time_outside_of_the_calendar_is_null(tmp_path: Path, kind: str) -> None:
    failed = letter(7)
    strange = replace(failed, message=replace(failed.message, born_timestamp_ms=2**63 - 1))
    write(table_of([strange], with_body=True), tmp_path / "letters", kind)
    (row,) = read(tmp_path / "letters", kind)
    assert (row["born_at"], row["stored_at"]) == (None, datetime(2023, 11, 14, 22, 13, 20, 123_000, UTC))


def read(folder: Path, kind: str) -> list[dict[str, Any]]:
    if kind == PARQUET:
        rows: list[dict[str, Any]] = pq.read_table(folder).to_pylist()
        return rows
    deltalake = pytest.importorskip("deltalake")
    table: Any = deltalake.DeltaTable(folder).to_pyarrow_table()
    return [dict(row) for row in table.to_pylist()]


@KINDS
def test_a_table_has_all_that_is_known_of_a_letter(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "deep" / "letters"
    failed = letter(7, ROCKETCREW_ERROR="KeyError: 'price' (shop.py:8)")
    write(table_of([failed], with_body=True), folder, kind)
    (row,) = read(folder, kind)
    assert list(row) == SCHEMA.names
    properties = dict(row.pop("properties"))
    assert properties["ROCKETCREW_ERROR"] == "KeyError: 'price' (shop.py:8)"
    assert row == {
        "place": "broker-a/2/7", "message_id": "id-7", "origin_topic": "orders", "error": "KeyError: 'price' (shop.py:8)",
        "line": "shop.py:8", "done": "replayed", "broker": "broker-a", "queue_id": 2, "queue_offset": 7,
        "stored_at": datetime(2023, 11, 14, 22, 13, 20, 123_000, UTC),
        "born_at": datetime(2020, 9, 13, 12, 26, 40, 1_000, UTC), "reconsume_times": 16, "keys": "o-1 o-2", "tags": "paid",
        "body": b"\xff\x00",
    }  # fmt: skip


@KINDS
def test_no_letters_are_a_table_without_rows(tmp_path: Path, kind: str) -> None:
    write(table_of([], with_body=True), tmp_path / "letters", kind)
    assert read(tmp_path / "letters", kind) == []


def test_bodies_are_as_they_were_sent_or_stored_or_left_out() -> None:
    packed = compress(b"plain" * 100, Compression.ZLIB, 5)
    letters = [letter(1, packed, 1), letter(2, b"junk", 1)]
    assert table_of(letters, with_body=True).column("body").to_pylist() == [b"plain" * 100, b"junk"]
    assert table_of(letters, with_body=False).column("body").to_pylist() == [None, None]


@KINDS
def test_a_folder_that_exists_is_left_alone(tmp_path: Path, kind: str) -> None:
    (tmp_path / "letters").mkdir()
    with pytest.raises(UsageError, match="exists already"):
        write(table_of([letter(1)], with_body=True), tmp_path / "letters", kind)
    assert list((tmp_path / "letters").iterdir()) == []


@KINDS
def test_what_a_killed_export_left_is_no_hindrance(tmp_path: Path, kind: str) -> None:
    (tmp_path / ".letters.part").mkdir()
    (tmp_path / ".letters.part" / "part-00000.parquet").write_bytes(b"half")
    write(table_of([letter(1)], with_body=True), tmp_path / "letters", kind)
    assert [path.name for path in tmp_path.iterdir()] == ["letters"]
    assert len(read(tmp_path / "letters", kind)) == 1


@KINDS
def test_a_place_where_nothing_can_be_made_is_named(tmp_path: Path, kind: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RocketcrewError, match=r"file/letters cannot be written: Not a directory"):
        write(table_of([letter(1)], with_body=True), tmp_path / "file" / "letters", kind)


@KINDS
def test_a_write_that_fails_leaves_nothing(tmp_path: Path, kind: str) -> None:
    parent = tmp_path
    for _ in range((LENGTH - len(str(parent))) // 101 - 1):
        parent /= "d" * 100
    parent /= "d" * (LENGTH - len(str(parent)) - 1)
    parent.mkdir(parents=True)
    with pytest.raises(RocketcrewError, match=r"letters cannot be written: .*nothing was written"):
        write(table_of([letter(1)], with_body=True), parent / "letters", kind)  # the folder, but no file in it
    assert list(parent.iterdir()) == []
