"""SIGSTOP: a worker that never goes on, and a supervisor that is stopped until its brokers have forgotten it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from harness import WAIT_S, Broker, Crew, duplicate_keys, say, send_numbers, wait_until

from rocketcrew.client.opening import open_cluster
from rocketcrew.client.operations import Operations
from rocketcrew.remoting.errors import RocketcrewError

MESSAGES = 4_000
TOPIC = "still"
EXPIRY_MAX_S = 300.0
"""Brokers forget a member 120 s after its last heartbeat, and look every now and then."""


def forgotten(broker: Broker, group: str) -> bool:
    """The broker answers, and knows no member of the group."""

    async def ask() -> list[str]:
        async with open_cluster(broker.name_server) as cluster:
            return await Operations(cluster).consumer_ids(group, TOPIC)

    try:
        return not asyncio.run(ask())
    except RocketcrewError:  # it is busy
        return False


def finish(crew: Crew) -> None:
    """Wait for the rest and stop; every message has one row. What was in hand at a time limit comes back after a delay."""
    wait_until(lambda: crew.sent_back_lag() == 0, 2 * WAIT_S, "all messages")
    assert crew.counter("invariant_violations") == 0
    assert crew.stop() == 0
    rows = crew.staged_rows()
    assert sorted(rows.column("number").to_pylist()) == list(range(MESSAGES))
    assert duplicate_keys(rows) == 0


def test_a_worker_that_is_stopped_for_good_is_replaced(tmp_path: Path, broker: Broker) -> None:
    """In a call it is over its hard limit, between two calls it is idle: both end it, and its messages go to others."""
    crew = Crew(tmp_path, broker, "poison_handlers:naps", TOPIC, load=False,
                **{"log.format": "json", "workers.hard_time_limit_ms": 5_000, "workers.stall_timeout_ms": 5_000})  # fmt: skip
    crew.start()
    try:
        send_numbers(broker, TOPIC, range(MESSAGES // 2))
        wait_until(lambda: crew.counter("done_messages") > MESSAGES // 10, what="the first tenth")
        victim = crew.workers()[0]
        os.kill(victim, signal.SIGSTOP)
        # Only now: an idle worker that stands still is missed by nobody, and all the others may be done already.
        send_numbers(broker, TOPIC, range(MESSAGES // 2, MESSAGES))
        wait_until(lambda: victim not in crew.workers() and len(crew.workers()) == 2, what="its replacement")
        finish(crew)
    finally:
        crew.child.stop(WAIT_S)
    # On a machine that stands still for so long the other worker is over its limits too.
    [death] = [each for each in crew.logged("worker_died") if each["pid"] == victim]
    assert death["end"] in ("hard time limit", "held up by the machine")
    assert "charged_to" not in death
    say(f"a worker stopped for good ({death['end']}): {MESSAGES} messages, 0 lost, 0 duplicated")


def test_a_supervisor_that_stands_still_until_it_is_forgotten(
    tmp_path: Path, broker: Broker, full_numbers: bool
) -> None:
    """At length the broker's own expiry is waited for; in short the broker is killed, and its next start knows no member."""
    crew = Crew(tmp_path, broker, "poison_handlers:naps", TOPIC, load=False)
    crew.start()
    try:
        send_numbers(broker, TOPIC, range(MESSAGES))
        wait_until(lambda: crew.counter("done_messages") > MESSAGES // 10, what="the first tenth")
        os.kill(crew.child.pid, signal.SIGSTOP)
        try:
            if not full_numbers:
                broker.kill()
                broker.start()
            wait_until(lambda: forgotten(broker, crew.group), EXPIRY_MAX_S, "the broker to forget the member")
        finally:
            os.kill(crew.child.pid, signal.SIGCONT)
        finish(crew)
    finally:
        crew.child.stop(WAIT_S)
    say(f"a supervisor stopped until it was forgotten: {MESSAGES} messages, 0 lost, 0 duplicated")
