"""What the demo needs, and that its statements are understood by both who may answer them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from rocketcrew.cli.commands.demo import (
    BY_DUCKDB,
    BY_SPARK,
    COUNT_SQL,
    PACKAGES_SQL,
    TOP_SQL,
    Means,
    clean_folder,
    means,
)
from rocketcrew.remoting.errors import UsageError


@pytest.mark.parametrize(
    ("there", "found"),
    [({"pyspark": "4.2.0", "duckdb": "1.4"}, BY_SPARK), ({"pyspark": "?"}, BY_SPARK), ({"duckdb": "1.4"}, BY_DUCKDB)],
)
def test_what_is_here_writes_the_table_and_answers(there: Mapping[str, str], found: Means) -> None:
    assert means(lambda package: there.get(package, "")) == found


def test_without_anybody_to_answer_nothing_is_begun() -> None:
    """All files were sent, and then the loader, or the query, had no pyspark."""
    with pytest.raises(UsageError, match=r"pip install 'rocketcrew\[duckdb\]', or 'rocketcrew\[spark\]'"):
        means(lambda _: "")


def test_duckdb_understands_the_statements() -> None:
    """Spark does in tests/system/test_demo.py."""
    rows = [("os.path", "join", 3, 20, 1, "os"), ("os", "walk", 9, 80, 4, "os"), ("json", "dumps", 2, 9, 1, "json")]
    names = ("module", "function", "complexity", "length", "nesting", "package")
    latest = pa.table(dict(zip(names, zip(*rows, strict=True), strict=True)))
    with duckdb.connect(":memory:") as session:
        session.register("latest", latest)
        count, top, packages = (session.sql(sql).fetchall() for sql in (COUNT_SQL, TOP_SQL, PACKAGES_SQL))
    assert count == [(3,)]
    assert [row[1] for row in top] == ["walk", "join", "dumps"]
    assert packages == [("os", 2, 6.0, 9), ("json", 1, 2.0, 2)]


def test_a_demo_does_not_empty_the_folder_of_one_that_runs(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "demo"
    with clean_folder(folder):
        (folder / "state").mkdir()
        (folder / "log").touch()
        with pytest.raises(UsageError, match=f"another demo runs in --dir {folder}"), clean_folder(folder):
            pass
        assert {path.name for path in folder.iterdir()} >= {"state", "log"}
    with clean_folder(folder):
        assert [path.name for path in folder.iterdir()] == ["made-by-rocketcrew-demo"]


def test_a_demo_does_not_empty_a_folder_of_somebody_else(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    with pytest.raises(UsageError, match="is not empty and not of a demo"), clean_folder(tmp_path):
        pass
    assert (tmp_path / "mine").exists()
