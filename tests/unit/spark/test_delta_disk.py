"""Notes of commits to a Delta table on a disk: whose are taken back, and whose are let be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rocketcrew.spark.targets.delta_disk import announce, entry_of, is_made, settle, versions, went_down


@pytest.mark.parametrize(
    ("noted", "now", "down"),
    [
        ("a 1", "a 2", True),
        ("a 1", "a 1", False),
        ("b 1", "a 2", False),
        ("a ", "a 2", False),
        ("a 1", "a ", False),
    ],
)
def test_only_the_host_s_own_notes_of_before_its_start_are_of_commits_that_went_down(
    noted: str, now: str, down: bool
) -> None:
    assert went_down(noted, now) is down


def commit(table: Path, version: int, plan_id: str) -> None:
    entry = entry_of(table, version)
    entry.parent.mkdir(parents=True, exist_ok=True)
    (table / f"{version}.parquet").write_bytes(b"rows")
    lines = ({"commitInfo": {"plan": plan_id}}, {"add": {"path": f"{version}.parquet", "size": 4}})
    entry.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")


@pytest.mark.parametrize(
    ("boot", "on_top", "left"),
    [("a 1", False, [3, 4]), ("b 2", False, [3, 4]), ("a 2", False, [3]), ("a 2", True, [3, 4, 5])],
    ids=["the process died", "of another host", "the machine went down", "another commit is on top of it"],
)
def test_a_commit_that_was_not_said_to_be_made(tmp_path: Path, boot: str, on_top: bool, left: list[int]) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    commit(tmp_path, 3, "p3")
    announce(tmp_path, notes, 4, "p4", "a 1")
    commit(tmp_path, 4, "p4")
    if on_top:
        is_made(tmp_path, announce(tmp_path, notes, 5, "p5", "a 1"))
        commit(tmp_path, 5, "p5")
    settle(tmp_path, notes, boot)
    assert versions(tmp_path, 3) == left
