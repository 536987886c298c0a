"""Stopping, forcing, sharing queues among members, and the second transport, with real processes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from harness import WAIT_S, Broker, Crew, duplicate_keys, say, send_numbers, wait_for_end, wait_until

from rocketcrew.supervisor.core.pauses import REPEATED_WITHIN_S

MESSAGES = 4_000
TOPIC = "numbers"
WANTED = {number for number in range(MESSAGES) if number % 1000 != 999}


def finish(crew: Crew, *others: Crew) -> None:
    """What waits for its delay has no offset of the group: so the row of every number must be there, sealed by this member
    or by one before it."""

    def numbers() -> set[int]:
        return {number for one in (crew, *others) for number in one.staged_rows().column("number").to_pylist()}

    wait_until(
        lambda: crew.lag() == 0 and crew.dead_letters() >= MESSAGES // 1000 and numbers() >= WANTED,
        what="all messages finished",
    )


def test_term_under_load_repeats_nothing(tmp_path: Path, broker: Broker) -> None:
    crew = Crew(tmp_path, broker, "numbers_handler:slow_number", TOPIC, load=False,
                **{"consumer.max_reconsume_times": 3})  # fmt: skip
    crew.start()
    send_numbers(broker, TOPIC, range(MESSAGES))
    wait_until(lambda: crew.counter("done_messages") > MESSAGES // 4, what="the first quarter")
    assert crew.stop() == 0
    assert crew.logged("stopped")[-1]["clean"] is True
    crew.start()
    finish(crew)
    assert crew.stop() == 0
    rows = crew.staged_rows()
    assert set(rows.column("number").to_pylist()) == WANTED
    assert duplicate_keys(rows) == 0, "before any loader drops what it knows: nothing ran twice"
    say(f"TERM under load: {MESSAGES} messages, 0 lost, 0 duplicated")


def test_a_second_signal_forces(tmp_path: Path, broker: Broker) -> None:
    crew = Crew(tmp_path, broker, "numbers_handler:endless_c_loop", TOPIC, load=False)
    crew.start()
    send_numbers(broker, TOPIC, range(16))
    wait_until(
        lambda: (s := crew.status()) is not None and all(w["messages"] for w in s["workers"]), what="busy workers"
    )
    os.kill(crew.child.pid, signal.SIGTERM)
    wait_until(lambda: '"stopping"' in crew.child.log.read_text(), what="the first signal")
    time.sleep(2 * REPEATED_WITHIN_S)  # else it is the same one
    assert crew.stop() == 5
    assert "will come again" in crew.child.log.read_text()


def test_a_disk_that_takes_no_facts_holds_offsets_back_and_the_stop_ends(tmp_path: Path, broker: Broker) -> None:
    """Neither a commit nor a pull sends an offset then; whoever has the queues next gets the messages again."""
    crew = Crew(tmp_path, broker, "numbers_handler:dawdle", TOPIC, load=False, **{"results.enabled": "true"})
    crew.start()
    send_numbers(broker, TOPIC, range(40))
    wait_until(lambda: crew.counter("done_messages") == 40 and crew.lag() == 0, what="the first offsets")
    folder = crew.slot / "segments" / "outcomes"
    folder.rename(tmp_path / "outcomes")
    folder.touch()
    for sent in (80, 120):  # a pull that comes after them could take the offsets of the first along
        send_numbers(broker, TOPIC, range(sent - 40, sent))
        wait_until(lambda sent=sent: crew.counter("done_messages") == sent, what="messages without rows")  # type: ignore[misc]
    wait_until(lambda: crew.counter("commit_errors") > 0, what="an offset that is held back")
    assert crew.lag() == 80
    assert crew.stop() == 0
    assert crew.lag() == 80
    said = crew.child.log.read_text()
    assert said.count('"facts_not_sealed"') == 1
    assert '"stopped"' in said
    (tmp_path / "other").mkdir()
    other = Crew(tmp_path / "other", broker, "numbers_handler:dawdle", TOPIC, load=False)
    other.start()
    wait_until(lambda: other.counter("done_messages") == 80 and other.lag() == 0, what="the same messages once more")
    assert other.stop() == 0


def test_a_signal_that_comes_twice_at_once_does_not_force(tmp_path: Path, broker: Broker) -> None:
    crew = Crew(tmp_path, broker, "numbers_handler:slow_number", TOPIC, load=False)
    crew.start()
    send_numbers(broker, TOPIC, range(400))
    wait_until(lambda: crew.counter("done_messages") > 0, what="work")
    os.kill(crew.child.pid, signal.SIGTERM)
    os.kill(crew.child.pid, signal.SIGINT)
    crew.child.wait(WAIT_S)
    assert "forced" not in crew.child.log.read_text()


HUNG_START = """
from rocketcrew.cli.interrupts import Interrupts
interrupts = Interrupts()
interrupts.install()
interrupts.note()
print("begun", flush=True)
input()
"""


def test_a_second_ctrl_c_ends_a_start_that_looks_at_nothing() -> None:
    words, pipe = [sys.executable, "-c", HUNG_START], subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as start:
        assert start.stdout is not None
        assert start.stdout.readline() == "begun\n"
        start.send_signal(signal.SIGINT)
        start.send_signal(signal.SIGINT)
        time.sleep(2 * REPEATED_WITHIN_S)
        assert start.poll() is None, "the same one twice"
        start.send_signal(signal.SIGINT)
        assert start.communicate(timeout=WAIT_S) == ("", "rocketcrew: interrupted\n")
        assert start.returncode == 130


def test_a_stop_while_starting_ends_it_at_once(tmp_path: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = tmp_path / "importing"
    monkeypatch.setenv("SLOW_IMPORT_MARK", str(mark))
    crew = Crew(tmp_path, broker, "slow_import_handler:number", TOPIC, load=False)
    child = crew.begin()
    child.wait_for(mark.exists, WAIT_S, "import the handler")
    os.kill(child.pid, signal.SIGTERM)
    child.wait(WAIT_S)  # the import takes an hour
    log = child.log.read_text()
    assert "stopped_while_starting" in log
    assert '"running"' not in log
    importing = [int(mark.read_text())]
    wait_for_end(importing, "the end of the process that imports")


@pytest.mark.parametrize("broken", ["import", "not a function", "port", "setting"])
def test_a_broken_deployment_costs_the_group_no_rebalance(tmp_path: Path, broker: Broker, broken: str) -> None:
    send_numbers(broker, TOPIC, range(8))
    good = Crew(tmp_path, broker, "numbers_handler:slow_number", TOPIC, load=False,
                **{"consumer.rebalance_interval_ms": 60_000})  # fmt: skip
    good.start()
    wait_until(lambda: bool((good.status() or {}).get("queues")), what="an assignment")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        handlers = {"import": "no_such_module:f", "not a function": "numbers_handler:MESSAGES_NOT_THERE"}
        settings = {
            "port": {"metrics.host": "127.0.0.1", "metrics.port": taken.getsockname()[1]},
            "setting": {"security.key_file": tmp_path / "no-such-file"},
        }
        bad = Crew(tmp_path, broker, handlers.get(broken, "numbers_handler:slow_number"), TOPIC, load=False, slot=1,
                   **settings.get(broken, {}))  # fmt: skip
        child = bad.begin()
        wait_until(lambda: child.poll() is not None, what="its end")
        assert child.stop(WAIT_S) not in (0, 5)
    assert good.stop() == 0
    assert {each["members"] for each in good.logged("assignment_changed")} == {1}


def test_two_members_share_the_queues_and_one_takes_over(tmp_path: Path, broker: Broker) -> None:
    settings = {"consumer.max_reconsume_times": 3}
    one = Crew(tmp_path, broker, "numbers_handler:slow_number", TOPIC, load=False, **settings)
    two = Crew(tmp_path, broker, "numbers_handler:slow_number", TOPIC, load=False, slot=1, **settings)
    one.start()
    two.start()
    send_numbers(broker, TOPIC, range(1))  # which makes the topic

    def queues(crew: Crew) -> int:
        status = crew.status()
        return sum(q["topic"] == TOPIC and q["state"] == "assigned" for q in status["queues"]) if status else 0

    wait_until(lambda: queues(one) > 0 and queues(one) == queues(two), what="an even split")
    send_numbers(broker, TOPIC, range(1, MESSAGES))
    wait_until(lambda: two.counter("done_messages") > MESSAGES // 10, what="work on the second member")
    half = queues(one)
    two.kill()
    wait_until(lambda: queues(one) == 2 * half, what="the take-over")
    finish(one, two)
    assert one.stop() == 0
    one.start()  # takes over the slot of the dead member, with what it had sealed
    assert one.stop() == 0
    rows = one.load()
    assert set(rows.column("number").to_pylist()) == WANTED
    assert duplicate_keys(rows) == 0


def test_others_have_its_queues_while_its_workers_tear_down(tmp_path: Path, broker: Broker) -> None:
    one, two = (
        Crew(tmp_path, broker, "numbers_handler:slow_to_leave", TOPIC, load=False, slot=slot) for slot in (0, 1)
    )
    one.start()
    two.start()
    send_numbers(broker, TOPIC, range(1))  # which makes the topic

    def shares(crew: Crew) -> list[tuple[int, int]]:
        """(queues that it has, of how many)."""
        return [(each["queues"], each["of"]) for each in crew.logged("assignment_changed") if each["topic"] == TOPIC]

    def has_half(crew: Crew) -> bool:
        return any(2 * has == of for has, of in shares(crew)[-1:])

    wait_until(lambda: has_half(one) and has_half(two), what="an even split")
    before = len(shares(two))
    os.kill(one.child.pid, signal.SIGTERM)
    wait_until(lambda: len(shares(two)) > before, what="the take-over")
    assert not one.logged("stopped"), "its workers still tear down"
    has, of = shares(two)[-1]
    assert has == of
    assert (one.stop(), two.stop()) == (0, 0)


def test_the_stream_transport_does_the_same(tmp_path: Path, broker: Broker) -> None:
    crew = Crew(tmp_path, broker, "numbers_handler:number", TOPIC, load=False,
                **{"workers.transport": "stream", "consumer.max_reconsume_times": 3})  # fmt: skip
    crew.start()
    send_numbers(broker, TOPIC, range(MESSAGES))
    finish(crew)
    assert crew.stop() == 0
    rows = crew.staged_rows()
    assert set(rows.column("number").to_pylist()) == WANTED
    assert duplicate_keys(rows) == 0


SCRIPT = """
import rocketcrew

factor = 2

@rocketcrew.handler(schema="number bigint, doubled bigint")
def double(message):
    return {"number": int(message.body), "doubled": factor * int(message.body)}

rocketcrew.consume(double, topics="numbers", group="crew", name_servers="NAME_SERVER", settings={
    "supervisor.data_dir": "STATE", "consumer.consume_from_where": "CONSUME_FROM_FIRST_OFFSET", "spark.load": False,
    "consumer.rebalance_interval_ms": 1000, "cluster.poll_name_server_interval_ms": 1000, "workers.count": 2})
"""


def test_a_script_consumes_with_a_function_of_its_own(tmp_path: Path, broker: Broker) -> None:
    crew = Crew(tmp_path, broker, "", TOPIC, load=False)
    script = tmp_path / "script.py"
    script.write_text(
        SCRIPT.replace("NAME_SERVER", broker.name_server).replace("STATE", str(crew.settings["supervisor.data_dir"]))
    )
    send_numbers(broker, TOPIC, range(100))
    with (tmp_path / "script.log").open("wb") as log:
        process = subprocess.Popen([sys.executable, str(script)], stderr=log, start_new_session=True)
    try:
        wait_until(lambda: crew.counter("done_messages") == 100, what="all numbers")
        process.terminate()
        assert process.wait(WAIT_S) == 0, (tmp_path / "script.log").read_text()
    finally:
        process.kill()
        process.wait()
    assert sorted(crew.staged_rows().column("doubled").to_pylist()) == list(range(0, 200, 2))
