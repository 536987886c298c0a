"""Two supervisors with state folders of their own fill one table, each with its own loader; one is killed mid-queue.

What the killed one had sealed and not committed, the other handles again: two segments, in two folders, hold the same
records. The table takes them once, whoever loads first.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

sys.path.insert(0, str(Path(__file__).parent))

from harness import WAIT_S, Broker, Crew, duplicate_keys, send_numbers, wait_until

from rocketcrew.spark.status import read_status

MESSAGES = 10_000
TOPIC = "numbers"
ALWAYS_FAIL = MESSAGES // 1000


@pytest.fixture
def crews(tmp_path: Path, broker: Broker) -> Iterator[list[Crew]]:
    """Commits without a JVM, a batch every 200 ms: the loaders race all the time."""
    settings = {
        "consumer.max_reconsume_times": 4, "spark.format": "deltalake", "spark.target": tmp_path / "table",
        "spark.max_wait_ms": 200, "results.seal_idle_ms": 100,
    }  # fmt: skip
    found = [
        Crew(tmp_path / name, broker, "numbers_handler:slow_number", TOPIC, load=True, **settings)
        for name in ("one", "two")
    ]
    for crew in found:
        crew.folder.mkdir()
    yield found
    for crew in found:
        crew.stop()


def rows_of(table: Path) -> Any:
    return DeltaTable(str(table)).to_pyarrow_table()


def load_the_rest(crew: Crew, table: Path) -> None:
    """`rocketcrew load` over what was sealed at the end, as a stop does not wait for the loader."""
    words = [
        "load",
        "--staging",
        str(crew.slot / "segments"),
        "--target",
        str(table),
        "--set",
        "spark.format=deltalake",
    ]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ROCKETCREW_")}
    done = subprocess.run(
        [sys.executable, "-m", "rocketcrew", *words], env=environment, capture_output=True, text=True, check=False,
        timeout=WAIT_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def assert_latest_is_the_source(rows: Any) -> None:
    """Of each origin the record with the most reconsume times, as the view `latest` has it."""
    newest: dict[str, tuple[int, int]] = {}
    names = ("_origin_message_id", "_reconsume_times", "number")
    for origin, times, number in zip(*(rows.column(name).to_pylist() for name in names), strict=True):
        newest[origin] = max(newest.get(origin, (-1, -1)), (times, number))
    assert sorted(number for _, number in newest.values()) == [n for n in range(MESSAGES) if n % 1000 != 999]


def test_one_killed_in_the_middle_of_its_queues(tmp_path: Path, broker: Broker, crews: list[Crew]) -> None:
    one, two = crews
    table = tmp_path / "table"
    for crew in crews:
        crew.start()
    send_numbers(broker, TOPIC, range(MESSAGES))
    wait_until(
        lambda: all(crew.counter("done_messages") > MESSAGES // 20 for crew in crews), what="work on both members"
    )
    wait_until((table / "_delta_log").exists, what="a first batch")
    two.kill()
    done = one.counter("done_messages")
    wait_until(lambda: one.counter("done_messages") > done + MESSAGES // 20, what="the take-over")
    two.start()
    wait_until(lambda: one.lag() == 0 and one.dead_letters() >= ALWAYS_FAIL, 2 * WAIT_S, what="all messages finished")
    for crew in crews:
        status = crew.status()
        assert status is not None
        assert status["counters"]["invariant_violations"] == 0
        assert crew.stop() == 0
        load_the_rest(crew, table)
        loader = read_status(crew.slot / "segments" / "loader.json")
        assert loader is not None
        assert loader.batches_total > 0, "both loaders have filled the table"
    rows = rows_of(table)
    assert duplicate_keys(rows) == 0
    assert_latest_is_the_source(rows)
