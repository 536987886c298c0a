"""The notebook of examples/, run cell by cell in a kernel of Jupyter, whose event loop runs."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest
from harness import patient
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).resolve().parents[2] / "examples/crew.ipynb"
CELL_MAX_S = 600
COUNT = 200


def largest_factor(number: int) -> int:
    return max(p for p in range(2, number + 1) if number % p == 0 and all(p % d for d in range(2, p)))


@pytest.fixture
def notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """It, to be run in an empty folder; what Jupyter keeps is below that folder too."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "jupyter"))
    patient(monkeypatch)
    found = nbformat.read(NOTEBOOK, as_version=4)
    found.cells.append(nbformat.v4.new_code_cell("print(repr((rows, finished, lag, primes, str(crew.log))))"))
    return found


def test_every_row_is_there_and_no_process_is_left(notebook: Any, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    client = NotebookClient(
        notebook, timeout=CELL_MAX_S, startup_timeout=CELL_MAX_S, resources={"metadata": {"path": str(work)}},
        iopub_timeout=CELL_MAX_S,  # else what a cell shows is left out where the kernel takes 4 s to say it
    )  # fmt: skip
    with client.setup_kernel():
        kernel = psutil.Process(client.km.provisioner.pid)
        for index, cell in enumerate(notebook.cells):
            client.execute_cell(cell, index)
        beside = kernel.children(recursive=True)
        _gone, alive = psutil.wait_procs(beside, timeout=CELL_MAX_S)
        assert alive == [], "what the crew started ends with it"
    assert psutil.wait_procs([kernel], timeout=CELL_MAX_S)[1] == []

    *_, last = notebook.cells
    rows, finished, lag, primes, log = ast.literal_eval(last.outputs[0].text)
    assert rows == [(number, largest_factor(number)) for number in range(2, COUNT + 2)]
    assert primes == [number for number, largest in rows if number == largest]
    assert len(primes) == 46
    assert finished == sorted(finished)
    assert finished[-1] == COUNT
    assert lag == [COUNT - done for done in finished]
    assert Path(log).is_relative_to(work)
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert any("200 rows, 46 primes, workers ready: 2" in str(output.get("text", "")) for output in outputs)
    assert [output.ename for output in outputs if output.output_type == "error"] == []
    assert any("image/png" in output.get("data", {}) for output in outputs)
