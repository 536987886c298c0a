"""What tells the lines of one crew from those of another in the same log."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rocketcrew.cli import main


@pytest.mark.parametrize(("words", "group"), [(["--set", "consumer.group=billing"], "billing"), ([], None)])
def test_lines_of_a_supervisor_or_loader_name_the_group(tmp_path: Path, words: list[str], group: str | None) -> None:
    segments, log = tmp_path / "segments", tmp_path / "crew.log"
    (segments / "ready").mkdir(parents=True)
    words = ["load", "--staging", str(segments), "--target", str(tmp_path / "table"), "--set", "spark.format=pyarrow",
             "--set", "log.format=json", "--set", f"log.file={log}", *words]  # fmt: skip
    assert main.run(words, {}, tmp_path) == 0
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert {(line["process"], line.get("group")) for line in lines} == {("load", group)}
