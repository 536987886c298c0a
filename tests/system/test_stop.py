"""Stopping, forcing, sharing queues among members, and the second transport, with real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from harness import WAIT_S, Broker, Crew, duplicate_keys, say, send_numbers, wait_until

MESSAGES = 4_000
TOPIC = "numbers"
WANTED = {number for number in range(MESSAGES) if number % 1000 != 999}


def finish(crew: Crew) -> None:
    wait_until(lambda: crew.lag() == 0 and crew.dead_letters() >= MESSAGES // 1000, WAIT_S, "all messages finished")


def test_term_under_load_repeats_nothing(tmp_path: Path, broker: Broker) -> None:
    crew = Crew(tmp_path, broker, "numbers_handler:slow_number", TOPIC, load=False,
                **{"consumer.max_reconsume_times": 3})  # fmt: skip
    crew.start()
    send_numbers(broker, TOPIC, range(MESSAGES))
    wait_until(lambda: crew.counter("done_messages") > MESSAGES // 4, what="the first quarter")
    assert crew.stop() == 0
    last = [json.loads(line) for line in crew.child.log.read_text().splitlines() if '"stopped"' in line]
    assert last[-1]["clean"] is True
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
    assert crew.stop() == 5
    assert "will come again" in crew.child.log.read_text()


def test_two_members_share_the_queues_and_one_takes_over(tmp_path: Path, broker: Broker) -> None:
    settings = {"consumer.max_reconsume_times": 3}
    one = Crew(tmp_path, broker, "numbers_handler:slow_number", TOPIC, load=False, **settings)
    two = Crew(tmp_path, broker, "numbers_handler:slow_number", TOPIC, load=False, slot=1, **settings)
    one.start()
    two.start()
    send_numbers(broker, TOPIC, range(MESSAGES))

    def queues(crew: Crew) -> int:
        status = crew.status()
        return sum(q["topic"] == TOPIC and q["state"] == "assigned" for q in status["queues"]) if status else 0

    wait_until(lambda: queues(one) > 0 and queues(one) == queues(two), what="an even split")
    wait_until(lambda: two.counter("done_messages") > MESSAGES // 10, what="work on the second member")
    half = queues(one)
    two.kill()
    wait_until(lambda: queues(one) == 2 * half, what="the take-over")
    finish(one)
    assert one.stop() == 0
    one.start()  # takes over the slot of the dead member, with what it had sealed
    assert one.stop() == 0
    rows = one.load()
    assert set(rows.column("number").to_pylist()) == WANTED
    assert duplicate_keys(rows) == 0


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
