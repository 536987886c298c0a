"""What `run` says at its end."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from rocketcrew.cli.commands.load import load as load_command
from rocketcrew.cli.running import ended_line, page_url
from rocketcrew.cli.stagings import load_line
from rocketcrew.cli.surroundings import Surroundings
from rocketcrew.conf.settings import load
from rocketcrew.supervisor.service import Summary

NAMES: list[str] = ["done_messages", "failed_messages", "sent_back_messages", "filtered_messages", "worker_deaths"]
LOAD = "a command line"
COUNTERS = dict.fromkeys(NAMES, 0)


def test_what_is_not_durable_comes_again() -> None:
    assert ended_line(Summary(0, COUNTERS, 3, 4, 0), LOAD).endswith("; to come again 7")


def test_what_is_finished_for_good_comes_again_only_at_another_member() -> None:
    said = ended_line(Summary(0, COUNTERS, 0, 0, 40), LOAD)
    assert said.endswith(
        "; to come again 0; not committed 40, which come again only if another member takes over, or if they were popped"
    )


def test_rows_that_are_not_in_the_table_yet_are_told() -> None:
    """Their messages are committed, so that nothing else shows where they are."""
    said = ended_line(Summary(0, COUNTERS, 0, 0, 0, 2), LOAD)
    assert said.endswith("; to come again 0; 2 segments not in the table yet: the next run loads, or `a command line`")
    assert "table" not in ended_line(Summary(0, COUNTERS, 0, 0, 0), LOAD)


def test_only_a_run_that_loads_is_said_to_load() -> None:
    said = ended_line(Summary(0, COUNTERS, 0, 0, 0, 2), LOAD, next_run_loads=False)
    assert said.endswith("; 2 segments not in the table yet: `a command line` loads")


@pytest.mark.parametrize(
    ("given", "target"),
    [
        ({}, "{}/billing/table"),
        ({"cluster.namespace": "ns"}, "{}/ns%billing/table"),
        ({"spark.load": False, "spark.format": "pyarrow", "spark.partition_by": "a,b"}, "{}/billing/table"),
        ({"spark.target": "/data/bills"}, "/data/bills"),
        ({"spark.format": "foreach", "spark.function": "shop:take"}, ""),
    ],
)
def test_the_printed_command_loads_what_this_member_has_left_into_the_table_of_its_group(
    tmp_path: Path, given: dict[str, Any], target: str
) -> None:
    """With a namespace it named another table; without a loader none; and the segments of every member of the host."""
    data = tmp_path / "my data"
    settings = load({"consumer.group": "billing", "supervisor.data_dir": str(data), **given}, {}, None)
    for slot in ("0", "1"):
        (data / "billing" / slot / "segments" / "ready").mkdir(parents=True)
    segments = data / "billing" / "1" / "segments"
    words = shlex.split(load_line(settings, str(segments)))
    assert [words[at + 1] for at, word in enumerate(words) if word == "--staging"] == [str(segments)]
    assert [words[at + 1] for at, word in enumerate(words) if word == "--target"] == [target.format(data)] * bool(
        target
    )
    assert not any("spark.load" in word for word in words)
    told = dict(word.split("=", 1) for word in words if word.startswith("spark."))
    again = load(told, {}, None).spark
    assert (again.format, again.partition_by) == (settings.spark.format, settings.spark.partition_by)
    assert words[:2] == ["rocketcrew", "load"]
    load_command.main([*words[2:], "--dry-run"], obj=Surroundings({}, tmp_path), standalone_mode=False)


def test_the_page_of_an_ipv6_address_can_be_opened() -> None:
    given = {"metrics.host": "::1", "metrics.port": 8080, "metrics.page": True}
    assert page_url(load(given, {}, None).metrics, 8081) == "http://[::1]:8081/"
    assert page_url(load({**given, "metrics.host": "127.0.0.1"}, {}, None).metrics, 8081) == "http://127.0.0.1:8081/"
    assert page_url(load({**given, "metrics.page": False}, {}, None).metrics, 8081) == ""
