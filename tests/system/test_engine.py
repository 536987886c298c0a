"""`run --engine spark` on `local[2]` with the embedded broker: retries, dead letters, kills, stops, poison, time limits."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from engines import WAIT_S, Engine, processes_below
from harness import Broker, alive, send_numbers, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    started = Broker(tmp_path_factory.mktemp("broker"))
    yield started
    started.stop()


def test_retries_dead_letters_a_kill_and_a_stop(broker: Broker, tmp_path: Path) -> None:
    send_numbers(broker, "numbers", range(1000))
    engine = Engine(tmp_path, broker, "numbers_handler:number", "numbers", "spark-numbers",
                    **{"consumer.max_reconsume_times": 2, "engine.max_offsets_per_trigger": 400})  # fmt: skip
    engine.start()
    engine.wait_for("batch_done")
    jvm = engine.jvm()
    engine.kill()
    wait_until(lambda: not list(alive([jvm.pid])), WAIT_S, "the end of the JVM")
    engine.start()
    engine.wait_for_rows(999)
    wait_until(lambda: engine.dead_letters() == 1, WAIT_S, "the dead letter")
    send_numbers(broker, "numbers", range(1000, 1500))
    engine.wait_for_rows(1499)
    below = processes_below(engine.child.pid)
    assert engine.stop() == 0
    wait_until(lambda: not list(alive(below)), WAIT_S, "the end of every process")
    engine.check_exact([number for number in range(1500) if number != 999])
    rows = engine.rows()
    attempts = dict(zip(rows.column("number").to_pylist(), rows.column("attempt").to_pylist(), strict=True))
    assert {attempts[number] for number in range(7, 1500, 50)} == {2}
