"""Rows that take long to convert are no stand-still of their worker, as long as one block or message follows the other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rocketcrew.workers.cells import BEATS
from rocketcrew.workers.ddl import parse_ddl
from rocketcrew.workers.message import Message, make_message
from rocketcrew.workers.rows import RowBuffer


@pytest.mark.parametrize(("values", "converted"), [((1, 2, 3), 1), ((1, "x", 3), 3 + 1)])
def test_each_block_that_is_converted_is_progress_and_in_a_bad_one_each_message(
    values: tuple[object, ...], converted: int
) -> None:
    rows: RowBuffer[int] = RowBuffer(parse_ddl("a int"), "group")
    calls: list[None] = []
    rows.on_converted = lambda: calls.append(None)
    for number, value in enumerate(values):
        prepared = rows.prepare(make_message(b"", queue_offset=number), {"a": value})
        assert prepared is not None
        rows.keep(number, prepared)
    rows.take()
    assert len(calls) == converted


def test_rows_that_are_converted_and_written_are_progress_of_the_loop(
    bench: Callable[..., Any], make_record: Callable[..., bytes], tmp_path: Path
) -> None:
    def row(message: Message) -> dict[str, int]:
        return {"n": message.queue_offset}

    b = bench(row, schema="n int", folder=tmp_path)
    b.chunk([make_record(offset=n) for n in range(3)])
    b.steps(3)
    assert b.outcomes()[0]
    assert b.cell[BEATS] == 3 + 2, "a turn each, the block, and its place in the segment"
