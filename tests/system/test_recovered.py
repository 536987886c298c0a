"""A kill -9 of the supervisor between a send-back and the fact that says so: `reconcile` asks the brokers.

What it says is compared with the list of what was sent, never with a ledger of ours.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from harness import Broker, Crew, send_numbers, wait_for_end, wait_until
from test_reconcile import counted, reconcile

TOPIC = "ended"
NUMBERS = range(400)
FATES = {0: "loaded", 1: "no_rows", 2: "sent_back", 3: "dead_letter"}
"""By the remainder of the number, see `ends_as_it_says` in failing_handlers.py."""


def test_what_was_finished_before_a_kill_is_said_as_the_brokers_know_it(tmp_path: Path, broker: Broker) -> None:
    crew = Crew(
        tmp_path, broker, "failing_handlers:ends_as_it_says", TOPIC, load=False,
        **{"consumer.persist_consumer_offset_interval_ms": 600_000, "results.seal_idle_ms": 200},
    )  # fmt: skip
    send_numbers(broker, TOPIC, NUMBERS)
    wanted = Counter(FATES[number % 4] for number in NUMBERS)
    crew.start()
    wait_until(lambda: crew.counter("sent_back_messages") == len(NUMBERS) // 2, what="all that fails to go back")
    wait_until(lambda: crew.retries() == wanted["sent_back"], what="the retries to be there")
    wait_until(lambda: crew.counter("done_messages") == len(NUMBERS) // 2 + wanted["sent_back"], what="all to be done")
    wait_until(lambda: crew.staged_rows().num_rows == 200, what="all rows to be sealed")
    workers = crew.workers()
    crew.kill()
    wait_for_end(workers, "the workers' end")

    crew.settings["consumer.persist_consumer_offset_interval_ms"] = 1000
    crew.start()
    wait_until(lambda: crew.lag() == 0, what="the end")
    assert crew.stop() == 0
    crew.load()

    report = reconcile(crew, code=0)
    found = {fate: counted(report, fate) for fate in (*FATES.values(), "recovered")}
    by_topic = {queue["topic"]: Counter[str]() for queue in report["queues"]}
    for queue in report["queues"]:
        by_topic[queue["topic"]].update(queue["counts"])
    assert by_topic[TOPIC] == wanted, found
    assert by_topic[f"%RETRY%{crew.group}"] == {"loaded": wanted["sent_back"]}, "their second attempts have rows"

    blind = reconcile(crew, "--no-brokers", code=0)
    assert counted(blind, "recovered") > 0, "the kill took no notes along: nothing is tested"
