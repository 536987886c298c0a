"""Messages that end their worker, or never end: only they are charged, and they end where RocketMQ users look for them.

Each test sends numbers, one of which is poison (poison_handlers.py), and ends with one verdict: every other number is in the
table exactly once, the poison is where it belongs, and no other message was charged with a death.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from control_groups import born_in, memory_group
from harness import (
    WAIT_S,
    Broker,
    Crew,
    duplicate_keys,
    log_entries,
    say,
    send_numbers,
    stored_messages,
    wait_for_end,
    wait_until,
)
from poison_handlers import GATES, POISON, gate

from rocketcrew.remoting.errors import UsageError
from rocketcrew.supervisor.control import ask
from rocketcrew.workers.sealing import open_segments

MESSAGES = 2_000
KILLS = 10
GROUP_BYTES = 1 << 30
"""Several times what a crew of two workers takes."""
CrewMaker = Callable[..., Crew]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    found = Broker(tmp_path_factory.mktemp("broker"))
    yield found
    found.stop()


@pytest.fixture
def start(tmp_path: Path, broker: Broker, request: pytest.FixtureRequest) -> Iterator[CrewMaker]:
    """Starts a crew with a topic and group of its own."""
    crews: list[Crew] = []

    def make(handler: str, **settings: Any) -> Crew:
        name = f"{handler}-{abs(hash(request.node.name)) % 10**6}"
        crew = Crew(tmp_path, broker, f"poison_handlers:{handler}", f"T-{name}", load=False, group=f"g-{name}",
                    **{"log.format": "json", **settings})  # fmt: skip
        crews.append(crew)
        crew.start()
        return crew

    yield make
    for crew in crews:
        crew.stop()


def events(crew: Crew, name: str) -> list[dict[str, Any]]:
    """Log events of that name of all runs of the crew."""
    found: list[dict[str, Any]] = []
    for path in sorted(crew.folder.glob(f"supervisor-{crew.slot.name}-*.log")):
        found += log_entries(path, name)
    return found


def verdict(crew: Crew, *, dead: bool) -> None:
    """Everything is finished; all numbers are in the table once, the poison too unless it is a dead letter."""
    wait_until(
        lambda: crew.sent_back_lag() == 0 and crew.dead_letters() == int(dead), 2 * WAIT_S, "all messages finished"
    )
    verdict_after_its_stop(crew, dead=dead)


def verdict_after_its_stop(crew: Crew, *, dead: bool) -> None:
    """The same where all handlers have ended: what waits for its segment is sealed and committed by the stop."""
    status = crew.status()
    assert status is not None
    assert status["counters"]["invariant_violations"] == 0
    assert crew.stop() == 0
    assert crew.lag() == 0
    rows = crew.load()
    numbers = sorted(cast("list[int]", rows.column("number").to_pylist()))
    assert numbers == [number for number in range(MESSAGES) if not dead or number != POISON]
    assert duplicate_keys(rows) == 0
    assert len(events(crew, "message_dead_lettered")) == int(dead)
    say(
        f"{crew.handler}: {MESSAGES} messages, 0 lost, {int(dead)} dead letters, {len(events(crew, 'worker_died'))} deaths"
    )


def dead_letter(broker: Broker, crew: Crew) -> dict[str, str]:
    """The properties of the group's only dead letter."""
    [message] = stored_messages(broker.name_server, f"%DLQ%{crew.group}")
    assert int(message.body) == POISON
    return dict(message.properties)


@pytest.mark.parametrize(
    ("handler", "cause"),
    [("exits", "exit code 7"), ("segfaults", "SIGSEGV"), ("segfaults_in_a_batch", "SIGSEGV"),
     ("exits_in_a_batch_one_by_one", "exit code 8"), ("exits_in_a_coroutine", "exit code 9"),
     ("exits_in_the_filter_of_a_batch", "exit code 10"), ("exits_in_the_filter_in_order", "exit code 10")],
)  # fmt: skip
def test_a_message_that_ends_its_worker_is_a_dead_letter(
    handler: str, cause: str, start: CrewMaker, broker: Broker
) -> None:
    batch = {"consumer.consume_message_batch_max_size": 16} if "batch" in handler else {}
    crew = start(handler, **batch)
    send_numbers(broker, crew.topic, range(MESSAGES))
    verdict(crew, dead=True)
    deaths = events(crew, "worker_died")
    charged = [death["charged_to"] for death in deaths if "charged_to" in death]
    assert len(charged) == 3, "three deaths are charged"
    assert len(set(charged)) == 1, "all of them to the poison"
    if "coroutine" in handler or "filter" in handler:
        assert len(deaths) == 3, "one record was in hand: it is charged at once"
    assert len(deaths) <= 3 + 5, "a batch of 16 is halved at most four times"
    assert all(death["cause"] == cause for death in deaths)
    properties = dead_letter(broker, crew)
    assert properties["ROCKETCREW_DEATHS"] == "3"
    assert properties["ROCKETCREW_CAUSE"] == cause
    assert properties["ROCKETCREW_EXIT_CODE"] == (
        f"-{signal.SIGSEGV:d}" if cause == "SIGSEGV" else cause.removeprefix("exit code ")
    )
    assert 0 <= int(properties["ROCKETCREW_RUN_MS"]) < 1000 * WAIT_S
    assert properties["RETRY_TOPIC"] == crew.topic
    assert int(properties["ROCKETCREW_RSS_PEAK_BYTES"]) > 1 << 20
    if cause == "SIGSEGV":
        assert "follow_a_wild_pointer" in properties["ROCKETCREW_STACK"]
        assert "follow_a_wild_pointer" in deaths[-1]["stack"]


@pytest.mark.parametrize("handler", ["endless_c_loop", "endless_c_loop_in_a_coroutine"])
def test_an_endless_c_loop_is_stopped_at_its_hard_limit(handler: str, start: CrewMaker) -> None:
    """It holds the interpreter's lock: nothing in the process could stop it. One failed attempt, then it succeeds."""
    crew = start(handler)
    send_numbers(crew.broker, crew.topic, range(MESSAGES))
    verdict(crew, dead=False)
    [death] = events(crew, "worker_died")
    assert death["end"] == "hard time limit"
    assert death["verdict"] == "timed out"
    assert "endless_c_loop" in death["stack"]
    assert death["run_ms"] >= 1000
    assert "-" not in death["running"].rpartition("@")[2], "one record"
    assert "charged_to" not in death


def test_a_key_function_that_does_not_end_costs_its_message_the_key(start: CrewMaker) -> None:
    """Each worker that asks for it is over the time limit. In the end the message is handled, in no order."""
    crew = start("has_a_key_that_is_not_found_out")
    send_numbers(crew.broker, crew.topic, range(MESSAGES))
    verdict(crew, dead=False)
    [given_up] = events(crew, "key_not_found_out")
    assert given_up["worker_deaths"] == 3
    deaths = events(crew, "worker_died")
    assert 3 <= len(deaths) <= 4, "once over all of a pull"
    assert {death["end"] for death in deaths} == {"hard time limit"}
    assert not any("charged_to" in death for death in deaths)


def test_a_soft_limit_is_raised_in_the_handler(start: CrewMaker) -> None:
    crew = start("sleeps")
    send_numbers(crew.broker, crew.topic, range(MESSAGES))
    verdict(crew, dead=False)
    assert not events(crew, "worker_died"), "a soft limit costs no worker"
    assert len(events(crew, "message_failed")) == 1
    assert "soft time limit" in events(crew, "message_failed")[0]["error"]
    assert len(events(crew, "message_retry")) == 1


def test_a_message_that_takes_all_memory_fails_by_itself(start: CrewMaker) -> None:
    crew = start("allocates")
    send_numbers(crew.broker, crew.topic, range(MESSAGES))
    verdict(crew, dead=False)
    failed = events(crew, "message_failed")
    assert failed or events(crew, "worker_died"), "one or the other: Python can say MemoryError mostly, not always"
    assert {event["keys"] for event in failed} <= {f"n{POISON}"}, "no other message fails for it"


def test_a_message_that_takes_more_than_its_control_group_has(
    start: CrewMaker, broker: Broker, full_numbers: bool
) -> None:
    """The kernel kills the worker, as in a container; a message alone in hand is a dead letter that says so."""
    if not full_numbers:
        pytest.skip("takes seconds, and most machines have no such group to give: only with --full-numbers")
    with memory_group(GROUP_BYTES) as group:
        with born_in(group):
            crew = start("takes_all_memory")
        try:
            send_numbers(broker, crew.topic, range(MESSAGES))
            verdict(crew, dead=True)
        finally:
            crew.stop()
    deaths = events(crew, "worker_died")
    assert len(deaths) == 3
    assert len({death["charged_to"] for death in deaths}) == 1, "nobody but the poison"
    assert all(death["cause"] == "SIGKILL" and death["oom_kills"] >= 1 for death in deaths)
    properties = dead_letter(broker, crew)
    assert properties["ROCKETCREW_CAUSE"] == "SIGKILL"
    assert int(properties["ROCKETCREW_OOM_KILLS"]) >= 1
    assert int(properties["ROCKETCREW_EXIT_CODE"]) == -signal.SIGKILL


def test_a_count_outlives_the_death_of_everything(start: CrewMaker, broker: Broker) -> None:
    """kill -9 of the whole group, as a container's end, each time with the poison in hand: the third is the last. One that
    came while it stopped, as when the grace period of a container runs out, does not count."""
    crew = start("sleeps_for_ever_at_the_poison", **{"workers.max_worker_deaths": 3})
    send_numbers(broker, crew.topic, range(MESSAGES))
    wait_until(lambda: has_all(crew), what="all pulled: between two pulls the other worker looks as idle as at the end")
    for stops in (False, True, False, False):
        wait_until(lambda: poison_in_hand(crew), what="the poison in hand")
        if stops:
            os.kill(crew.child.pid, signal.SIGTERM)
            wait_until(lambda: '"stopping"' in crew.child.log.read_text(), what="the stop")
        kill_everything(crew)
        crew.start()
    verdict(crew, dead=True)
    properties = dead_letter(broker, crew)
    assert properties["ROCKETCREW_DEATHS"] == "3"
    assert properties["ROCKETCREW_END"] == "whole run died"
    assert int(properties["ROCKETCREW_RSS_PEAK_BYTES"]) > 1 << 20


def test_three_kills_of_everything_during_two_long_messages_make_no_dead_letter(
    start: CrewMaker, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator kills the run again and again; neither of the messages in hand was alone to blame."""
    monkeypatch.setenv(GATES, str(tmp_path))
    crew = start("waits_at_gates", **{"workers.max_worker_deaths": 3})
    send_numbers(broker, crew.topic, range(MESSAGES))
    for _ in range(3):
        wait_until(lambda: at_gates(crew) == 2, what="both of the long ones in hand")
        victims = [*crew.workers(), crew.forkserver(), crew.child.pid]
        os.kill(crew.child.pid, signal.SIGKILL)  # the others die with it
        crew.child.stop(WAIT_S)
        wait_for_end(victims, "the end of all")
        crew.start()
    # In hand at three deaths of the whole run: from now on they are handled one at a time.
    wait_until(lambda: at_gates(crew) == 1, what="one of them in hand")
    gate("run").touch()
    verdict(crew, dead=False)
    assert not any("charged_to" in death for death in events(crew, "worker_died"))
    assert {left["reason"] for left in events(crew, "left_in_hand")} == {
        "other messages were in hand too: nobody is charged"
    }


def at_gates(crew: Crew) -> int:
    """Workers that have a long one in hand, by their stacks."""
    try:
        answer = asyncio.run(ask(crew.slot, "stacks"))
    except UsageError:
        return 0
    return sum("wait_at_the_gate" in each["stack"] for each in answer["processes"])


def poison_in_hand(crew: Crew) -> bool:
    """One worker is at the poison, and no other has anything in hand: a death of the run is charged to what is alone."""
    try:
        status, answer = (asyncio.run(ask(crew.slot, command)) for command in ("status", "stacks"))
    except UsageError:
        return False
    busy = [worker for worker in status["workers"] if worker["chunks"]]
    at_it = any("sleeps_for_ever_at_the_poison" in each["stack"] for each in answer["processes"])
    return at_it and len(busy) == 1 and not status["waiting_messages"]


def has_all(crew: Crew) -> bool:
    """Each message is done or with a worker, where a few may wait behind the poison."""
    status = crew.status()
    if status is None:
        return False
    done: int = status["counters"]["done_messages"]
    return done + sum(worker["messages"] for worker in status["workers"]) == MESSAGES


def kill_everything(crew: Crew) -> None:
    """As a container's end does it: nobody lives to see another one die."""
    assert crew.child is not None
    victims = [crew.child.pid, *crew.workers(), crew.forkserver()]
    os.kill(crew.child.pid, signal.SIGSTOP)
    for victim in reversed(victims):
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
    crew.child.stop(WAIT_S)
    wait_for_end(victims, "the end of all")


def open_segments_of(crew: Crew) -> int:
    return len(open_segments(crew.slot / "segments"))


def workers_of(crew: Crew) -> list[dict[str, Any]]:
    """Those that are ready, by the status."""
    status = crew.status()
    assert status is not None
    return [worker for worker in status["workers"] if worker["state"] == "ready"]


def test_deaths_that_are_nobodys_fault_charge_nobody(start: CrewMaker) -> None:
    """A killed forkserver takes all workers along, each with a message in hand."""
    crew = start("naps")
    send_numbers(crew.broker, crew.topic, range(MESSAGES))
    for _ in range(4):
        wait_until(lambda: len(crew.workers()) == 2, what="two workers")
        victims = crew.workers()
        os.kill(crew.forkserver(), signal.SIGKILL)
        wait_until(lambda pids=victims: not set(pids) & set(crew.workers()), what="other workers")
    verdict(crew, dead=False)
    deaths = events(crew, "worker_died")
    assert len(deaths) >= 4
    assert {death["end"] for death in deaths} == {"forkserver died"}
    assert not any("charged_to" in death for death in deaths)


def test_neighbours_do_not_wait_for_a_successor_that_boots_long(
    start: CrewMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both workers have an open segment and a full window; one is killed, and the other ends up with everything."""
    monkeypatch.setenv(GATES, str(tmp_path))
    crew = start("waits_at_gates", **{"results.seal_idle_ms": 60_000})
    send_numbers(crew.broker, crew.topic, range(2, 200))
    wait_until(lambda: crew.counter("done_messages") == 198 and open_segments_of(crew) == 2, what="rows of both")
    send_numbers(crew.broker, crew.topic, range(2))
    wait_until(lambda: all(w["running"] for w in workers_of(crew)), what="both workers in a long call")
    send_numbers(crew.broker, crew.topic, range(200, MESSAGES))
    wait_until(lambda: min(w["messages"] for w in workers_of(crew)) > 1, what="messages behind both calls")
    (tmp_path / "killed").touch()
    os.kill(crew.workers()[0], signal.SIGKILL)
    wait_until(lambda: len(crew.workers()) == 1, what="the death")
    (tmp_path / "run").touch()
    wait_until(lambda: crew.counter("done_messages") == MESSAGES, what="everything, by the other worker")
    assert len(crew.workers()) == 1, "the successor still boots"
    (tmp_path / "boot").touch()
    wait_until(lambda: len(crew.workers()) == 2, what="the successor")
    verdict_after_its_stop(crew, dead=False)  # without a stop the open segments wait for their idle minute


def test_random_kills_are_charged_to_what_was_in_hand(start: CrewMaker) -> None:
    """kill -9 of workers at random instants: nothing is lost, and each death is charged to at most one message."""
    crew = start("naps", **{"workers.max_worker_deaths": 100})
    send_numbers(crew.broker, crew.topic, range(MESSAGES))
    kills = 0
    while crew.lag() and kills < KILLS:
        for pid in crew.workers()[:1]:
            os.kill(pid, signal.SIGKILL)
            kills += 1
            wait_until(lambda victim=pid: victim not in crew.workers() and len(crew.workers()) == 2, what="the next")
    verdict(crew, dead=False)
    deaths = events(crew, "worker_died")
    assert len(deaths) == kills
    assert all(death["cause"] == "SIGKILL" for death in deaths)
    for death in deaths:
        assert death.get("charged_to") == death.get("running"), "who is charged is who was in hand"
