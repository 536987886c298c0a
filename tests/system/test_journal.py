"""What the journal is for: what was done after a stuck message does not run again after kill -9; a reset runs it again."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from harness import WAIT_S, Broker, Crew, one_queue, patient_producer, send_numbers, wait_for_end, wait_until
from pressure_handlers import RELEASE, is_in_hand

from rocketcrew.client.opening import open_cluster
from rocketcrew.client.operations import Operations
from rocketcrew.client.outgoing import OutgoingMessage
from rocketcrew.workers.prefix import complete_prefix
from rocketcrew.workers.salvage import salvage
from rocketcrew.workers.sealing import open_segments

TOPIC = "journalled"
BEFORE, BEHIND = 100, 10_000
ALL = BEFORE + 1 + BEHIND
PIECES, PIECE = 4, 50


def reset(crew: Crew, offset: int) -> None:
    """Set the group's committed offset at the broker."""

    async def ask() -> None:
        async with open_cluster(crew.broker.name_server) as cluster:
            (mq,) = await cluster.queues_to_read(TOPIC)
            await Operations(cluster).update_consumer_offset(crew.group, mq, offset)

    asyncio.run(ask())


def committed(crew: Crew) -> int:
    async def ask() -> int:
        async with open_cluster(crew.broker.name_server) as cluster:
            (mq,) = await cluster.queues_to_read(TOPIC)
            return await Operations(cluster).query_consumer_offset(crew.group, mq) or 0

    return asyncio.run(ask())


def kill(crew: Crew) -> None:
    workers = crew.workers()
    crew.kill()
    wait_for_end(workers, "the workers' end")


def test_what_was_done_behind_a_stuck_message_does_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = tmp_path / "release"
    monkeypatch.setenv(RELEASE, str(release))  # for the processes that are started from here
    broker = Broker(tmp_path)
    crew = Crew(tmp_path, broker, "pressure_handlers:stuck_or_done", TOPIC, load=False, **{
        "consumer.consume_concurrently_max_span": 65_535, "consumer.pull_threshold_for_queue": 20_000,
        "results.seal_idle_ms": 200, "workers.chunks_in_flight": 1,  # nothing waits in the hands of the stuck worker
    })  # fmt: skip
    try:
        one_queue(broker, TOPIC)
        crew.start()
        with patient_producer(broker) as producer:
            for start in range(0, BEFORE, 50):
                producer.send_batch([OutgoingMessage(TOPIC, str(n).encode()) for n in range(start, start + 50)])
            wait_until(lambda: committed(crew) == BEFORE, what="the first messages to be committed")
            producer.send(OutgoingMessage(TOPIC, f"{BEFORE} stuck".encode()))
            # Not by the count of what was dispatched: a message that a slow worker has not begun is dispatched again.
            wait_until(lambda: is_in_hand(crew), what="the stuck message to run")
            for start in range(BEFORE + 1, ALL, 500):
                producer.send_batch([OutgoingMessage(TOPIC, str(n).encode()) for n in range(start, start + 500)])
        wait_until(lambda: crew.counter("done_messages") == ALL - 1, WAIT_S, "all but the stuck message")
        assert committed(crew) == BEFORE
        kill(crew)

        crew.start()
        wait_until(lambda: crew.counter("skipped_messages") == BEHIND, what="all that was done to be left out")
        wait_until(lambda: is_in_hand(crew), what="the stuck message to run again")
        assert crew.counter("done_messages") == 0
        assert sorted(crew.staged_rows().column("number").to_pylist()) == [n for n in range(ALL) if n != BEFORE]
        kill(crew)

        reset(crew, BEFORE // 2)
        release.touch()
        crew.start()
        wait_until(lambda: crew.lag() == 0, what="everything to be committed")
        assert crew.counter("skipped_messages") == 0
        assert crew.counter("done_messages") == ALL - BEFORE // 2, "all that the reset asks for ran again"
        assert set(crew.staged_rows().column("number").to_pylist()) == set(range(ALL))
        assert crew.stop() == 0
        assert "offset_was_reset" in crew.child.log.read_text()
    finally:
        crew.child.stop(WAIT_S)
        broker.stop()


def test_a_segment_that_was_torn_and_salvaged_by_a_start_that_failed_counts_with_what_it_holds(tmp_path: Path) -> None:
    """The journal knows more as reported than the file has after a loss of power. A start that salvages it and then fails (a
    handler that cannot be set up, a metastore that is not there yet) leaves it in ready/, like one that was sealed whole."""
    broker = Broker(tmp_path)
    crew = Crew(
        tmp_path, broker, "pressure_handlers:stuck_or_done", TOPIC, load=False,
        **{"results.seal_idle_ms": 600_000, "workers.count": 1},
    )  # fmt: skip
    try:
        crew.start()
        for start in range(0, PIECES * PIECE, PIECE):
            send_numbers(broker, TOPIC, range(start, start + PIECE))
            wait_until(lambda end=start + PIECE: crew.counter("done_messages") == end, what="a piece to be reported")
        kill(crew)
        (path,) = open_segments(crew.slot / "segments")
        whole = complete_prefix(path)
        assert whole.rows == PIECES * PIECE
        os.truncate(path, path.stat().st_size - 1)  # in the last batch
        assert 0 < salvage(path).rows < whole.rows, "nothing is torn: nothing is tested"

        crew.settings["results.seal_idle_ms"] = 200
        crew.start()
        wait_until(lambda: crew.lag() == 0, what="everything to be committed")
        assert crew.counter("skipped_messages") > 0, "what the file holds does not run again"
        assert crew.stop() == 0
        assert sorted(crew.staged_rows().column("number").to_pylist()) == list(range(PIECES * PIECE))
    finally:
        crew.child.stop(WAIT_S)
        broker.stop()
