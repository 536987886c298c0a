"""A target that is no table of ours is refused before a message is pulled; a new one, an empty one and ours are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketcrew.conf.settings import load
from rocketcrew.remoting.errors import UsageError
from rocketcrew.supervisor.wiring import table_at


def look(target: Path, **more: object) -> None:
    settings = load({"consumer.group": "g", "spark.format": "pyarrow", "spark.target": target, **more}, {}, None)
    table_at(settings, target.parent / "own")


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_text("hi")
    with pytest.raises(UsageError, match=r"holds 'x\.parquet', which is no batch of rocketcrew: give the path"):
        look(tmp_path)
    look(tmp_path, **{"spark.load": False})


def test_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("hi")
    with pytest.raises(UsageError, match="file is a file: give the path of a folder"):
        look(tmp_path / "file")


def test_one_that_cannot_be_looked_at_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="can't be read: File name too long"):
        look(tmp_path / ("x" * 300) / "table")


@pytest.mark.parametrize(
    "entries",
    [(), ("_rocketcrew", ".hidden"), ("_rocketcrew", "metadata"), ("batch_id=1", "x.parquet"), ("_delta_log",)],
)
def test_a_new_folder_an_empty_one_and_a_table_are_not(tmp_path: Path, entries: tuple[str, ...]) -> None:
    look(tmp_path / "new")
    for entry in entries:
        (tmp_path / "there" / entry).mkdir(parents=True)
    look(tmp_path / "there")
