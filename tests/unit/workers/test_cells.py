from __future__ import annotations

from pathlib import Path

import pytest

from rocketcrew.remoting.errors import UsageError
from rocketcrew.workers.cells import CHUNK_ID, RECORDS, STARTED_NS, STATE, Cell, CellFile, map_cell, private_cell


def test_the_supervisor_reads_what_the_worker_is_about_to_run(tmp_path: Path) -> None:
    cells = CellFile(tmp_path / "cells", 4)
    mine, other = map_cell(tmp_path / "cells", 2, 4711), map_cell(tmp_path / "cells", 3, 4712)
    assert cells.read(2) is None
    mine[CHUNK_ID], mine[STARTED_NS], mine[RECORDS] = 99, 12345, 1
    mine[STATE] = 7 + 1
    assert cells.read(2) == Cell(99, 7, 1, 12345, 4711)
    assert cells.read(3) is None
    other[STATE] = 1
    mine[STATE] = 0
    assert cells.read(2) is None
    assert cells.read(3) is not None


def test_cells_survive_until_they_are_cleared(tmp_path: Path) -> None:
    cells = CellFile(tmp_path / "cells", 1)
    map_cell(tmp_path / "cells", 0, 1)[STATE] = 5
    cells.close()
    again = CellFile(tmp_path / "cells", 8)
    assert again.slots == 8
    assert again.read(0) == Cell(0, 4, 0, 0, 1)
    again.clear(0)
    assert again.read(0) is None
    again.close()


def test_a_cell_that_is_not_there(tmp_path: Path) -> None:
    CellFile(tmp_path / "cells", 2).close()
    with pytest.raises(UsageError, match="slot 2"):
        map_cell(tmp_path / "cells", 2, 1)
    with pytest.raises(UsageError, match="at least 1"):
        CellFile(tmp_path / "none", 0)


def test_a_private_cell_has_the_same_shape() -> None:
    cell = private_cell()
    cell[STATE] = 2**64 - 1
    assert len(cell) == 8
