"""A table that is kept known to a metastore: by Spark's own, Hive's in Derby, and one that never answers."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "unit" / "spark"))

from delta_jars import delta_jars
from loaders import Loaders
from segment_helpers import Record
from servers import ServerError

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
CELLS = Path(__file__).parent / "metastore_cells.py"
WAIT_S = 1500.0
ODD = ["plain", "a/b=c :", "it's \\ ü", None]


def told(tmp_path: Path, catalog: str, jars: str) -> dict[str, Any]:
    process = subprocess.run(
        [sys.executable, str(CELLS), str(tmp_path), catalog, jars], capture_output=True, text=True, timeout=WAIT_S,
        env={**os.environ, "PYTHONPATH": str(CELLS.parent)}, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    answers: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    return answers


@pytest.mark.parametrize("catalog", ["hive", "in-memory"])
def test_a_metastore_knows_every_batch_and_column(tmp_path: Path, catalog: str) -> None:
    try:
        jars = delta_jars() if catalog == "hive" else ""
    except ServerError:
        jars = ""  # what is not Delta's is told all the same
    found = told(tmp_path, catalog, jars)
    table = tmp_path / "it's a table"
    assert "the metastore has no database 'shop'" in found["no database"]
    assert found["three"] == [[1, None, 1], [2, 7, 2], [3, None, 3]]
    assert found["compacted"] == [[3]]
    assert found["synced"] == ["batch_id=3", "batch_id=4"]
    assert found["four"] == [[1, None], [2, 7], [3, None], [4, None]]
    assert found["dropped"] == [[5]]
    assert f"shop.rows is the table at file:{table}" in found["elsewhere"]
    assert not (tmp_path / "other").exists()
    twice = [[seq, value] for seq, value in enumerate(ODD) for _ in range(2)]
    assert found["by value"] == {
        "before": twice, "partitions": 8, "after": [[0, "plain"], *twice], "left": 5,
    }  # fmt: skip
    assert sorted(entry.name for entry in table.iterdir()) == ["batch_id=3", "batch_id=4", "batch_id=5"]
    assert "shop.seen is a view" in found["view"]
    assert "shop.owned is a managed table" in found["managed"]
    if jars:
        assert found["delta"] == [[1, None], [2, 7]]
        assert "shop.deltas is the table at" in found["delta elsewhere"]


@pytest.fixture
def silent() -> Iterator[int]:
    """The port of a server that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_commits_stand_where_the_metastore_never_answers(tmp_path: Path, silent: int) -> None:
    loaders = Loaders(tmp_path, "spark")
    loaders.seal(Record(1, ["a", "b"]), Record(2))
    conf = {
        "spark.sql.catalogImplementation": "hive",
        "spark.hadoop.hive.metastore.uris": f"thrift://127.0.0.1:{silent}",
        "spark.hadoop.hive.metastore.client.socket.timeout": "1200s",
    }
    try:
        loaders.run(table="shop.rows", conf=conf)
    finally:
        loaders.end()
    loaders.assert_exact()
    loaders.assert_clean()
    assert "has not answered" in loaders.status()["unregistered"]
    assert "table_not_registered" in loaders.log.read_text()
