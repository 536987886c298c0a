"""What of a crew's rows is not in the table, and why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rocketcrew.crew.results import loader_trouble, set_aside_of, waiting_for_table
from rocketcrew.spark.config import _nested


@pytest.fixture
def segments(tmp_path: Path) -> Path:
    for name in ("open", "ready", "plan", "bad"):
        (tmp_path / name).mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("files", "waiting"),
    [
        ([], 0),
        (["open/run.0-00000001.arrows", "ready/run.1-00000001.arrows"], 2),
        (["plan/lock", "plan/a.json", "plan/b.json", "plan/b.done"], 1),
        (["bad/run.0-00000001.arrows"], 0),
    ],
)
def test_what_waits_for_the_table(segments: Path, files: list[str], waiting: int) -> None:
    for name in files:
        (segments / name).touch()
    assert waiting_for_table(segments) == waiting


def test_what_was_set_aside_in_this_run(segments: Path) -> None:
    mine, twice = "run.0-00000001.arrows", "run.0-00000001.arrows.1"
    repaired = "run.1-00000001.arrows.reason.json"
    for name in (mine, f"{mine}.reason.json", twice, repaired, "other.0-00000001.arrows", "run2.0-00000001.arrows"):
        (segments / "bad" / name).touch()
    assert [path.name for path in set_aside_of(segments, "run")] == [mine, twice]


@pytest.mark.parametrize(
    ("loader", "said"),
    [
        ({"failures_in_a_row": 3, "error": "the table was taken away"}, "the table was taken away"),
        ({"failures_in_a_row": 2, "error": "the table was taken away"}, ""),
        ({"failures_in_a_row": 3, "error": ""}, ""),  # it has begun once more, or was killed without a word
        ({"failures_in_a_row": 3}, ""),
    ],
)
def test_a_loader_that_fails_again_and_again_says_why(loader: dict[str, Any], said: str) -> None:
    assert loader_trouble(loader) == said


@pytest.mark.parametrize(
    ("table", "wrong"),
    [("home/../staging/x", True), ("link/x", True), ("home", False), ("home/../table", False), ("circle", False)],
)
def test_a_table_within_the_staging_folder_is_found_behind_dots_and_links(
    tmp_path: Path, table: str, wrong: bool
) -> None:
    for name in ("home", "staging"):
        (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "staging")
    (tmp_path / "circle").symlink_to("circle")
    assert bool(_nested(tmp_path / "home/../staging", tmp_path / table)) is wrong
