"""`run --engine spark` where executors are processes of their own: a local cluster, and a standalone one with two workers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from engines import WAIT_S, Engine, Standalone, processes_below, replay
from harness import Broker, patient_producer, send_numbers, wait_for_end, wait_until

from rocketcrew import OutgoingMessage

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    started = Broker(tmp_path_factory.mktemp("broker"))
    yield started
    started.stop()


def test_an_executor_and_the_driver_are_killed(broker: Broker, tmp_path: Path) -> None:
    mark = tmp_path / "felled"
    with patient_producer(broker) as producer:
        producer.send_many(
            OutgoingMessage("felled", str(number).encode(), properties={"mark": str(mark)}) for number in range(1200)
        )
    engine = Engine(tmp_path, broker, "engine_handlers:felled", "felled", "spark-felled",
                    **{"spark.master": "local-cluster[2,1,1024]", "engine.max_offsets_per_trigger": 500})  # fmt: skip
    engine.start()
    wait_until(mark.exists, WAIT_S, "the end of an executor")
    engine.wait_for("batch_done")
    below = processes_below(engine.child.pid)
    engine.kill()
    wait_for_end(below, "the end of every process")
    engine.start()
    engine.wait_for_rows(1200)
    below = processes_below(engine.child.pid)
    assert engine.stop() == 0
    wait_for_end(below, "the end of every process")
    engine.check_exact(list(range(1200)))
    assert engine.dead_letters() == 0


def test_a_standalone_cluster(broker: Broker, tmp_path: Path) -> None:
    cluster = Standalone(tmp_path)
    try:
        send_numbers(broker, "standalone", range(300))
        engine = Engine(tmp_path, broker, "numbers_handler:number_retried_once", "standalone", "spark%standalone",
                        **{"spark.master": cluster.url, "spark.conf": cluster.conf(), "engine.partitions": 4})  # fmt: skip
        engine.start()
        engine.wait_for_rows(300)
        assert engine.stop() == 0
        engine.check_exact(list(range(300)))
        words = ["--master", cluster.url, "--set", f"spark.conf={cluster.conf()}"]
        code, found = replay(engine, "engine_handlers:as_in_the_end", *words)
        assert (code, found["handled"], found["difference"]["only_replay"], found["fine"]) == (0, 300, 0, True)
    finally:
        cluster.stop()
