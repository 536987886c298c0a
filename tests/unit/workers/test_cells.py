from __future__ import annotations

from pathlib import Path

import pytest

from rocketcrew.remoting.errors import UsageError
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.workers.cells import (
    BETWEEN,
    CANCEL,
    CELL_WORDS,
    CHUNK_ID,
    LAST,
    PID,
    RECALLED,
    RECORDS,
    RSS_PEAK,
    STARTED_NS,
    STATE,
    TAKEN,
    TEXT,
    TEXT_BYTES,
    Cell,
    CellFile,
    CellView,
    map_cell,
    private_cell,
    queue_words,
)


def name_queue(cell: CellView, topic: str, broker: str, queue_id: int) -> None:
    words, cell[TEXT_BYTES] = queue_words(topic, broker, queue_id)
    cell[TEXT : TEXT + len(words)] = words


def test_the_supervisor_reads_what_the_worker_is_about_to_run(tmp_path: Path) -> None:
    cells = CellFile(tmp_path / "cells", 4)
    mine, other = map_cell(tmp_path / "cells", 2, 4711), map_cell(tmp_path / "cells", 3, 4712)
    assert cells.read(2) is None
    mine[CHUNK_ID], mine[STARTED_NS], mine[RECORDS], mine[RSS_PEAK] = 99, 12345, 1, 5000
    mine[STATE] = 7 + 1
    assert cells.read(2) == Cell(99, 7, 7, 1, None, 12345, 4711, 5000)
    assert cells.read(3) is None
    other[STATE] = 1
    mine[STATE] = 0
    assert cells.read(2) is None
    assert cells.read(3) is not None


def test_of_a_batch_it_reads_the_range_and_the_message_taken_last(tmp_path: Path) -> None:
    cells = CellFile(tmp_path / "cells", 1)
    mine = map_cell(tmp_path / "cells", 0, 1)
    mine[RECORDS], mine[LAST], mine[STATE] = 3, 12, 10 + 1
    assert cells.read(0) == Cell(0, 10, 12, 3, None, 0, 1, 0)
    mine[TAKEN] = 11 + 1
    assert cells.read(0) == Cell(0, 10, 12, 3, 11, 0, 1, 0)


def test_of_several_calls_none_of_which_runs_it_reads_none(tmp_path: Path) -> None:
    cells = CellFile(tmp_path / "cells", 1)
    mine = map_cell(tmp_path / "cells", 0, 1)
    mine[RECORDS], mine[STATE] = 1, 10 + 1
    found = cells.read(0)
    assert found is not None
    assert not found.between
    mine[STATE] = BETWEEN
    found = cells.read(0)
    assert found is not None
    assert found.between


def test_the_queue_is_named_so_that_another_run_understands_it(tmp_path: Path) -> None:
    cells = CellFile(tmp_path / "cells", 2)
    assert cells.queue(1) is None
    mine = map_cell(tmp_path / "cells", 1, 1)
    name_queue(mine, "%RETRY%gruppe-ü", "broker-a", 3)
    assert cells.queue(1) == MessageQueue("%RETRY%gruppe-ü", "broker-a", 3)
    name_queue(mine, "t", "b", 0)
    assert cells.queue(1) == MessageQueue("t", "b", 0)
    assert cells.queue(0) is None
    name_queue(mine, "x" * 2000, "b", 0)
    assert cells.queue(1) is None, "too long for a cell"


def test_cells_survive_until_they_are_cleared(tmp_path: Path) -> None:
    cells = CellFile(tmp_path / "cells", 1)
    map_cell(tmp_path / "cells", 0, 1)[STATE] = 5
    cells.close()
    again = CellFile(tmp_path / "cells", 8)
    assert again.slots == 8
    assert again.read(0) == Cell(0, 4, 4, 0, None, 0, 1, 0)
    again.clear(0)
    assert again.read(0) is None
    again.close()


def test_a_file_of_another_layout_is_begun_anew(tmp_path: Path) -> None:
    (tmp_path / "cells").write_bytes(b"\x07" * 5000)
    cells = CellFile(tmp_path / "cells", 1)
    assert cells.slots == 1
    assert cells.read(0) is None


def test_a_cell_that_is_not_there(tmp_path: Path) -> None:
    CellFile(tmp_path / "cells", 2).close()
    with pytest.raises(UsageError, match="slot 2"):
        map_cell(tmp_path / "cells", 2, 1)
    with pytest.raises(UsageError, match="at least 1"):
        CellFile(tmp_path / "none", 0)


def test_a_private_cell_has_the_same_shape() -> None:
    cell = private_cell()
    cell[STATE] = 2**64 - 1
    assert len(cell) == CELL_WORDS


def test_a_worker_finds_nothing_of_the_one_before_it(tmp_path: Path) -> None:
    """Not even what its supervisor wanted of that: the run may have been killed as a whole. What it wants of the new one
    holds, though that has not mapped its cell yet."""
    cells = CellFile(tmp_path / "cells", 2)
    words = cells.view(1)
    for word in range(CELL_WORDS):
        words[word] = 1
    cells.clear(1)
    assert [word for word in range(CELL_WORDS) if words[word] and not TEXT <= word < RECALLED] == []
    cells.cancel(1)
    mine = map_cell(tmp_path / "cells", 1, 222)
    assert (mine[PID], mine[CANCEL]) == (222, 1)
    assert not any(cells.view(0))
