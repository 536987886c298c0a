"""What tells the lines of one crew from those of another in the same log."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
import structlog

from rocketcrew.cli import main
from rocketcrew.cli.options import DEV_GROUP, set_up_logging
from rocketcrew.conf.settings import load


@pytest.mark.parametrize(("words", "group"), [(["--set", "consumer.group=billing"], "billing"), ([], None)])
def test_lines_of_a_supervisor_or_loader_name_the_group(tmp_path: Path, words: list[str], group: str | None) -> None:
    segments, log = tmp_path / "segments", tmp_path / "crew.log"
    (segments / "ready").mkdir(parents=True)
    words = ["load", "--staging", str(segments), "--target", str(tmp_path / "table"), "--set", "spark.format=pyarrow",
             "--set", "log.format=json", "--set", f"log.file={log}", *words]  # fmt: skip
    assert main.run(words, {}, tmp_path) == 0
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert {(line["process"], line.get("group")) for line in lines} == {("load", group)}


@pytest.mark.parametrize("group", ["billing", ""])
def test_lines_of_dev_name_the_group_that_it_takes_where_none_was_chosen(tmp_path: Path, group: str) -> None:
    log = tmp_path / "dev.log"
    settings = load({"consumer.group": group, "log.format": "json", "log.file": str(log)}, {}, None)
    with click.Context(click.Command("dev")):
        set_up_logging(settings, {}, "dev")
    structlog.get_logger().warning("running")
    assert json.loads(log.read_text())["group"] == (group or DEV_GROUP)
