"""Rows wait for those of other messages while the supervisor says that it can send more, and never without end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rocketcrew.workers.boot import WorkerBounds
from rocketcrew.workers.packets import BLOCK_MESSAGES, encode_seal

if TYPE_CHECKING:
    from .conftest import Bench

Make = Callable[..., "Bench"]
LIMITS = WorkerBounds(flush_interval_us=5_000)


def row(message: Any) -> dict[str, int] | None:
    return None if message.body == b"none" else {"n": message.queue_offset, "m": 0}


def start(make: Make, folder: Path, **more: Any) -> Bench:
    b = make(row, schema="n bigint, m int", folder=folder, **{"bounds": LIMITS} | more)
    b.steps(1)
    return b


def rows_written(folder: Path) -> bool:
    return any((folder / "open").glob("*"))


def test_rows_wait_until_the_flush_interval_is_over(bench: Make, make_record: Any, tmp_path: Path) -> None:
    b = start(bench, tmp_path)
    b.chunk([make_record(offset=0)], window_open=True)
    b.steps(3)
    assert b.outcomes() == ([], [])
    assert not rows_written(tmp_path)
    b.clock.advance_ms(3)
    b.chunk([make_record(offset=1)], 2, window_open=True)
    b.steps(2)
    assert b.outcomes() == ([], [])
    b.clock.advance_ms(2)
    b.steps(1)
    entries, _ = b.outcomes()
    assert [(entry.chunk_id, entry.segment_seq) for entry in entries] == [(1, 1), (2, 1)]
    assert rows_written(tmp_path)


def test_a_closed_window_or_no_rows_is_reported_at_once(bench: Make, make_record: Any, tmp_path: Path) -> None:
    b = start(bench, tmp_path)
    b.chunk([make_record(b"none")], 1, window_open=True)
    b.steps(2)
    assert len(b.outcomes()[0]) == 1
    b.chunk([make_record()], 2, window_open=True)
    b.chunk([make_record(offset=1)], 3)
    b.steps(3)
    assert [entry.chunk_id for entry in b.outcomes()[0]] == [2, 3]


def test_a_full_block_is_written_at_once(bench: Make, make_record: Any, tmp_path: Path) -> None:
    b = start(bench, tmp_path)
    half = BLOCK_MESSAGES // 2
    b.chunk([make_record(offset=at) for at in range(half)], 1, window_open=True)
    b.steps(2)
    assert b.outcomes() == ([], [])
    b.chunk([make_record(offset=half + at) for at in range(half + 3)], 2, window_open=True)
    b.steps(1)
    assert [(entry.chunk_id, entry.records) for entry in b.outcomes()[0]] == [(1, half), (2, half)]
    b.clock.advance_ms(5)
    b.steps(1)
    assert [(entry.chunk_id, entry.records) for entry in b.outcomes()[0]] == [(2, 3)]


def test_a_seal_waits_for_nothing(bench: Make, make_record: Any, tmp_path: Path) -> None:
    b = start(bench, tmp_path)
    b.chunk([make_record()], 1, window_open=True)
    b.steps(2)
    b.link.send(encode_seal())
    b.steps(1)
    assert [entry.chunk_id for entry in b.outcomes()[0]] == [1]
