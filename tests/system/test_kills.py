"""A few kills of the loader on tables that need no JVM or promise less; bench/loader_kills.py does many on all kinds."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "unit" / "spark"))

from kill_story import KillStory, kills_in_turn

SEED = 1

Tell = Callable[[str], KillStory]


@pytest.fixture
def story(tmp_path: Path) -> Iterator[Tell]:
    told: list[KillStory] = []

    def tell(target: str) -> KillStory:
        told.append(KillStory(tmp_path, target, SEED))
        return told[-1]

    yield tell
    for one in told:
        one.loaders.end()


def test_the_control_that_remembers_nothing_has_rows_twice(story: Tell) -> None:
    """Else the others would prove nothing."""
    verdict = story("naive").run(["renamed", "random"])
    assert verdict.repeated, verdict.line
    assert not verdict.missing, verdict.line


@pytest.mark.parametrize("target", ["pyarrow", "deltalake"])
def test_tables_are_exact_after_kills_anywhere(story: Tell, target: str) -> None:
    verdict = story(target).run(kills_in_turn(4, SEED))
    assert verdict.exact, verdict.line


@pytest.mark.slow
def test_a_format_of_spark_gets_everything_at_least_once(story: Tell) -> None:
    """What comes again comes with the number of its batch."""
    verdict = story("json").run(["job_done", "random"])
    assert verdict.good, verdict.line
