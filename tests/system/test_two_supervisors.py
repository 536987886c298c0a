"""Two supervisors with state folders of their own fill one table, each with its own loader or both with one; one is killed
mid-queue.

What the killed one had sealed and not committed, the other handles again: two segments, in two folders, hold the same
records. The table takes them once, whoever loads first.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable

sys.path.insert(0, str(Path(__file__).parent))

from harness import WAIT_S, Broker, Child, Crew, duplicate_keys, send_numbers, stored_messages, wait_until

from rocketcrew.conf.exit_codes import EXIT_USAGE
from rocketcrew.spark.status import read_status

TOPIC = "numbers"
RETRIES_MAX = 4


@dataclass(frozen=True)
class Way:
    """How the table is filled: its format, and whether one loader has the folders of both supervisors."""

    format: str
    shared: bool
    messages: int

    @property
    def always_fail(self) -> int:
        return self.messages // 1000

    @property
    def in_table(self) -> list[int]:
        """The numbers that do not always fail."""
        return [number for number in range(self.messages) if number % 1000 != 999]


WAYS = [Way("deltalake", False, 10_000), Way("pyarrow", True, 2_000)]


@pytest.fixture(params=WAYS, ids=lambda way: f"{way.format}-{'one-loader' if way.shared else 'a-loader-each'}")
def way(request: pytest.FixtureRequest, full_numbers: bool) -> Way:
    found: Way = request.param
    if found.shared and not full_numbers:
        pytest.skip("--full-numbers: as long as the other one; tests/unit/spark/test_shared_loader.py has it in small")
    return found


@pytest.fixture
def crews(tmp_path: Path, broker: Broker, way: Way) -> Iterator[list[Crew]]:
    """Commits without a JVM, a batch every 200 ms: the loaders race all the time."""
    settings = {
        "consumer.max_reconsume_times": RETRIES_MAX, "spark.format": way.format, "spark.target": tmp_path / "table",
        "spark.max_wait_ms": 200, "results.seal_idle_ms": 100,
    }  # fmt: skip
    found = [
        Crew(tmp_path / name, broker, "numbers_handler:slow_number", TOPIC, load=not way.shared, **settings)
        for name in ("one", "two")
    ]
    for crew in found:
        crew.folder.mkdir()
    yield found
    for crew in found:
        crew.stop()


def rows_of(way: Way, table: Path) -> Any:
    if way.format == "deltalake":
        return DeltaTable(str(table)).to_pyarrow_table()
    return ds.dataset(sorted(map(str, table.glob("batch_id=*/*.parquet")))).to_table()


def load_words(way: Way, crews: list[Crew], table: Path) -> list[str]:
    stagings = [word for crew in crews for word in ("--staging", str(crew.slot / "segments"))]
    return ["load", *stagings, "--target", str(table), "--set", f"spark.format={way.format}"]


def load_the_rest(way: Way, crews: list[Crew], table: Path) -> None:
    """`rocketcrew load` over what was sealed at the end, as a stop does not wait for the loader."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ROCKETCREW_")}
    done = subprocess.run(
        [sys.executable, "-m", "rocketcrew", *load_words(way, crews, table)], env=environment, capture_output=True,
        text=True, check=False, timeout=WAIT_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.fixture
def shared_loader(tmp_path: Path, way: Way, crews: list[Crew]) -> Iterator[Child | None]:
    """One loader for both; none where each supervisor has its own."""
    loader = None
    if way.shared:
        words = [*load_words(way, crews, tmp_path / "table"), "--follow", "--set", "spark.max_wait_ms=200"]
        loader = Child("loader", words, log=tmp_path / "loader.log")
    yield loader
    if loader is not None:
        loader.stop(WAIT_S)


def assert_latest_is_the_source(way: Way, rows: Any) -> None:
    """Of each origin the record with the most reconsume times, as the view `latest` has it."""
    newest: dict[str, tuple[int, int]] = {}
    names = ("_origin_message_id", "_reconsume_times", "number")
    for origin, times, number in zip(*(rows.column(name).to_pylist() for name in names), strict=True):
        newest[origin] = max(newest.get(origin, (-1, -1)), (times, number))
    assert sorted(number for _, number in newest.values()) == way.in_table


def test_one_killed_in_the_middle_of_its_queues(
    tmp_path: Path, broker: Broker, way: Way, crews: list[Crew], shared_loader: Child | None
) -> None:
    one, two = crews
    table = tmp_path / "table"
    for crew in crews:
        crew.start()
    send_numbers(broker, TOPIC, range(way.messages // 2))
    some = way.messages // 20
    wait_until(lambda: all(crew.counter("done_messages") > some for crew in crews), what="work on both members")
    first = table / ("_delta_log" if way.format == "deltalake" else "batch_id=1")
    wait_until(first.exists, what="a first batch")
    done = one.counter("done_messages")
    send_numbers(broker, TOPIC, range(way.messages // 2, way.messages))  # only now: all else may be done already
    two.kill()
    wait_until(lambda: one.counter("done_messages") > done + some, what="the take-over")
    two.start()

    def letters_of() -> set[int]:
        """A kill may have made one of a message twice: their number says nothing."""
        return {int(letter.body) for letter in stored_messages(broker.name_server, f"%DLQ%{one.group}")}

    # Not by the number of retries: what was sent back by the one that is killed, and by the other again, is counted twice.
    wait_until(
        lambda: one.lag() == 0 and one.dead_letters() >= way.always_fail and len(letters_of()) >= way.always_fail
        and set(way.in_table) <= set(rows_of(way, table).column("number").to_pylist()),
        2 * WAIT_S,
        what="all messages finished",
    )  # fmt: skip
    letters = letters_of()
    assert letters == {number for number in range(way.messages) if number % 1000 == 999}, "by number"
    for crew in crews:
        status = crew.status()
        assert status is not None
        assert status["counters"]["invariant_violations"] == 0
        assert crew.stop() == 0
    if shared_loader is not None:
        assert shared_loader.stop(WAIT_S) == 0
    for together in [crews] if way.shared else [[crew] for crew in crews]:
        load_the_rest(way, together, table)
    for crew in crews:
        loader = read_status(crew.slot / "segments" / "loader.json")
        assert loader is not None
        assert loader.batches_total > 0, "what both have sealed is in the table"
    rows = rows_of(way, table)
    assert duplicate_keys(rows) == 0
    assert_latest_is_the_source(way, rows)


def test_rows_of_a_killed_member_are_loaded_by_the_other_that_runs(tmp_path: Path, broker: Broker) -> None:
    """Two members of one host: what the killed one has sealed is committed, so nobody brings these rows again."""
    settings: dict[str, Any] = {"spark.format": "pyarrow", "spark.max_wait_ms": 200, "results.seal_idle_ms": 100}
    one, two = (
        Crew(tmp_path, broker, "numbers_handler:number", TOPIC, load=True, slot=slot, **settings) for slot in (0, 1)
    )
    one.start()
    two.start()
    send_numbers(broker, TOPIC, range(1))  # which makes the topic
    wait_until(lambda: all((crew.status() or {}).get("queues") for crew in (one, two)), what="queues for both")
    wait_until(lambda: two.loader() > 0 and (two.slot / "segments" / "loader.json").exists(), what="a loader")
    os.kill(two.loader(), signal.SIGSTOP)
    send_numbers(broker, TOPIC, range(1, 500))
    wait_until(lambda: one.lag() == 0 and two.staged_rows().num_rows > 0, what="all committed")
    two.kill()
    wait_until(
        lambda: set(one.loaded_rows().column("number").to_pylist()) == set(range(500)),
        what="the rows of both in the table",
    )
    wait_until(lambda: bool(one.logged("slots_taken_over")), what="a line that says so")
    assert one.logged("slots_taken_over")[-1]["segments"] > 0
    assert one.stop() == 0
    assert duplicate_keys(one.loaded_rows()) == 0


def test_a_broadcaster_with_another_address_says_what_the_one_before_it_has_left(
    tmp_path: Path, broker: Broker
) -> None:
    """As a container on the same volume: neither its offsets nor its rows are found by the new client id."""
    settings: dict[str, Any] = {
        "spark.format": "pyarrow", "results.seal_idle_ms": 100, "workers.count": 1,
        "consumer.message_model": "BROADCASTING", "consumer.local_offset_store_dir": tmp_path / "offsets",
        "cluster.client_ip": "10.0.0.1", "spark.max_wait_ms": 200,
    }  # fmt: skip
    one = Crew(tmp_path, broker, "numbers_handler:number", TOPIC, load=True, **settings)
    send_numbers(broker, TOPIC, range(1))  # which makes the topic
    one.start()
    wait_until(lambda: one.loader() > 0 and (one.slot / "segments" / "loader.json").exists(), what="a loader")
    os.kill(one.loader(), signal.SIGSTOP)
    send_numbers(broker, TOPIC, range(1, 200))
    wait_until(lambda: one.staged_rows().num_rows > 0, what="sealed rows")
    left = set(one.staged_rows().column("number").to_pylist())
    one.kill()
    settings["cluster.client_ip"] = "10.0.0.2"
    two = Crew(tmp_path, broker, "numbers_handler:number", TOPIC, load=False, slot=1, **settings)
    two.start()
    (line,) = two.logged("broadcasting_as_another_member")
    assert (line["client_id"], line["before"]) == ("10.0.0.2@DEFAULT", "10.0.0.1@DEFAULT")
    wait_until(lambda: bool(two.logged("slot_of_another_member")), what="the second look, without a loader, too")
    (line,) = two.logged("slot_of_another_member")
    assert (line["slot"], line["client_id"]) == ("0", "10.0.0.1@DEFAULT")
    status = two.status()
    assert status is not None
    assert status["backlog"]["segments"] >= line["segments"] > 0
    assert two.stop() == 0
    one.start()
    wait_until(lambda: left <= set(one.loaded_rows().column("number").to_pylist()), what="its rows in the table")
    assert not one.logged("broadcasting_as_another_member")
    assert one.stop() == 0
    assert duplicate_keys(one.loaded_rows()) == 0
    one.settings["consumer.local_offset_store_dir"] = Path(__file__) / "no folder"
    refused = one.begin()
    wait_until(lambda: refused.poll() == EXIT_USAGE, what="a refusal")
