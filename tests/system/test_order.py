"""Order through kill -9 of workers: by queue, by key, and by the handler's own function."""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from harness import Broker, Crew, duplicate_keys, patient_producer, send_numbers, wait_until
from ordered_trace import Lane, by_key, by_queue, check_order, lines_of, traced

from rocketcrew.client.outgoing import OutgoingMessage

TOPIC = "ordered"
KEYS = 40


@contextmanager
def crew_of(folder: Path, handler: str, **settings: object) -> Iterator[tuple[Broker, Crew]]:
    """An embedded broker, and a crew that is not started."""
    broker = Broker(folder)
    crew = Crew(folder, broker, f"ordered_handlers:{handler}", TOPIC, load=False, **settings)
    try:
        yield broker, crew
    finally:
        if crew.status() is not None:
            crew.kill()
        broker.stop()


def send_keyed(broker: Broker, numbers: range) -> None:
    """Numbered messages; those of a key go to one queue."""
    with patient_producer(broker) as producer:
        producer.send_many(OutgoingMessage(TOPIC, str(number).encode(), keys=f"k{number % KEYS}") for number in numbers)


@pytest.mark.parametrize("handler", ["by_queue", "by_key"])
def test_a_killed_supervisors_locks_are_given_up_by_the_next_start(tmp_path: Path, handler: str) -> None:
    """The broker would keep them for a minute."""
    numbers = range(1500)
    with traced(tmp_path / "trace") as trace, crew_of(tmp_path, handler) as (broker, crew):
        send_keyed(broker, numbers)
        crew.start()
        wait_until(lambda: crew.counter("done_messages") >= len(numbers) // 3, what="messages done")
        killed = set(crew.workers())
        crew.kill()
        crew.start()
        wait_until(lambda: "left_locks_given_up" in crew.child.log.read_text(), what="the dead one's locks given up")
        wait_until(lambda: crew.lag() == 0, what="all committed")
        assert crew.stop() == 0
        check_order(lines_of(trace), LANES[handler], killed)
        assert set(crew.staged_rows().column("number").to_pylist()) == set(numbers)
        crew.start()
        assert crew.stop() == 0
        assert "left_locks_given_up" not in crew.child.log.read_text(), "a clean stop leaves none"


@pytest.mark.parametrize("handler", ["by_queue", "by_commit"])
def test_order_through_a_reload(tmp_path: Path, handler: str) -> None:
    """Commits by the handler too: what is staged in a worker that leaves runs again in its successor."""
    numbers = range(1500)
    with traced(tmp_path / "trace") as trace, crew_of(tmp_path, handler) as (broker, crew):
        send_numbers(broker, TOPIC, numbers)
        crew.start()
        wait_until(lambda: crew.counter("done_messages") >= len(numbers) // 10, what="the first tenth")
        os.kill(crew.child.pid, signal.SIGHUP)
        wait_until(lambda: crew.staff()["counts"].get("reloaded") == 1, what="the reload")
        left = set(crew.workers())
        wait_until(lambda: numbers_in(trace) == set(numbers), what="all handled")
        assert left <= set(crew.workers()), "nobody died of it"
        assert crew.counter("invariant_violations") == 0
        assert crew.stop() == 0
        if handler == "by_queue":
            check_order(lines_of(trace), by_queue)


SPAN = 1234
"""Offsets, more than a queue has."""
KEYS_OF = {"by_key": "KEYS", "by_function": "function"}


def check_bound_is_told(crew: Crew, handler: str) -> None:
    """Who keeps keys in order says at the start how far the others go on after one that is held."""
    if handler in KEYS_OF:
        wait_until(lambda: bool(crew.logged("order_by_key")), what="the bound in the log")
    told = crew.logged("order_by_key")
    assert [each["order_key"] for each in told] == ([KEYS_OF[handler]] if handler in KEYS_OF else [])
    for each in told:
        assert (each["others_wait_after_offsets"], each["others_wait_after_messages"]) == (SPAN, 1000)
        assert each["on_failure"] == "hold"


def numbers_in(trace: Path) -> set[int]:
    return {line.number for line in lines_of(trace) if line.what == "END"}


LANES: dict[str, Lane] = {"by_queue": by_queue, "by_key": by_key, "by_function": by_key}


@pytest.mark.parametrize(
    ("handler", "transport"),
    [
        ("by_queue", "slab"),
        ("by_key", "slab"),
        ("by_function", "slab"),
        ("by_queue", "stream"),
        ("by_function", "stream"),
    ],
)
def test_order_through_kills_of_workers(tmp_path: Path, handler: str, transport: str) -> None:
    lane = LANES[handler]
    numbers, kills = range(1500), 5
    killed: set[int] = set()
    settings = {"workers.transport": transport, "consumer.consume_concurrently_max_span": SPAN}
    with traced(tmp_path / "trace") as trace, crew_of(tmp_path, handler, **settings) as (broker, crew):
        send_keyed(broker, numbers)
        crew.start()
        check_bound_is_told(crew, handler)
        for kill in range(1, kills + 1):
            due = kill * len(numbers) // (kills + 1)
            wait_until(lambda due=due: crew.counter("done_messages") >= due, what="messages done")
            wait_until(lambda: len(crew.workers()) == 2, what="both workers")
            victim = random.Random(kill).choice(crew.workers())
            killed.add(victim)
            os.kill(victim, signal.SIGKILL)
        wait_until(lambda: crew.lag() == 0, what="all committed")
        assert crew.stop() == 0
        check_order(lines_of(trace), lane, killed)
        rows = crew.staged_rows()
        assert sorted(rows.column("number").to_pylist()) == list(numbers)
        assert duplicate_keys(rows) == 0
        assert {
            n: a for n, a in zip(*(rows.column(c).to_pylist() for c in ("number", "attempt")), strict=True) if a
        } == {number: 2 for number in numbers if number % 50 == 7}
