"""`run --engine spark` on `local[2]` with the embedded broker: retries, dead letters, kills, stops, poison, time limits."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow.dataset as ds
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from engines import WAIT_S, Engine, lags, processes_below, replay
from harness import HANDLERS, Broker, send_numbers, stored_messages, wait_for_end, wait_until
from terminal import ends_with_us

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]


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
    wait_for_end([jvm.pid], "the end of the JVM")
    engine.start()
    engine.wait_for_rows(999)
    wait_until(lambda: engine.dead_letters() == 1, WAIT_S, "the dead letter")
    send_numbers(broker, "numbers", range(1000, 1500))
    engine.wait_for_rows(1499)
    below = processes_below(engine.child.pid)
    assert engine.stop() == 0
    wait_for_end(below, "the end of every process")
    engine.check_exact([number for number in range(1500) if number != 999])
    assert '"waiting": 0' in engine.log.read_text(), "engine_progress tells what is left"
    rows = engine.rows()
    attempts = dict(zip(rows.column("number").to_pylist(), rows.column("attempt").to_pylist(), strict=True))
    assert {attempts[number] for number in range(7, 1500, 50)} == {2}

    # What another version of the handler would have made of the same messages: 57 differs, 999 does not fail.
    until = int(time.time() * 1000) + 1
    wait_until(lambda: time.time() * 1000 > until, what="the next millisecond")
    send_numbers(broker, "numbers", range(1500, 1510))  # behind the window
    lag = lags(broker, engine.group, "numbers")
    kept = tmp_path / "kept"
    code, found = replay(engine, "engine_handlers:changed", "--to", str(until), "--output", str(kept))
    assert ds.dataset(sorted(map(str, kept.glob("*.parquet")))).count_rows() == 1500
    assert (code, found["handled"], found["failed"], found["rows"]) == (1, 1500, 0, 1500)
    difference = found["difference"]
    assert [row["number"] for row in difference["replay_samples"]] == [999]
    ((here, there),) = difference["changed_samples"]
    assert (here["number"], there["number"], there["attempt"]) == (57, 57, 2)
    assert (difference["changed"], difference["only_replay"], difference["only_table"]) == (1, 1, 0)
    assert lags(broker, engine.group, "numbers") == lag


def test_messages_that_kill_or_never_end(broker: Broker, tmp_path: Path) -> None:
    send_numbers(broker, "deadly", range(200))
    engine = Engine(tmp_path, broker, "engine_handlers:deadly", "deadly", "spark-deadly",
                    **{"workers.max_worker_deaths": 2, "spark.format": "pyarrow"})  # fmt: skip
    engine.start()
    engine.wait_for_rows(199)
    wait_until(lambda: engine.dead_letters() == 1, WAIT_S, "the dead letter")
    assert engine.stop() == 0
    engine.check_exact([number for number in range(200) if number != 33])
    (dead,) = stored_messages(broker.name_server, "%DLQ%spark-deadly")
    assert (dead.body, dead.properties["ROCKETCREW_DEATHS"]) == (b"33", "2")
    rows = dict(zip(*(engine.rows().column(name).to_pylist() for name in ("number", "attempt")), strict=True))
    assert {number for number, attempt in rows.items() if attempt} == {44, 66}


def test_a_reader_of_the_log_that_has_stopped_holds_up_nothing(broker: Broker, tmp_path: Path) -> None:
    """Its pipe is full from the beginning: whatever is written to it waits for ever."""
    send_numbers(broker, "unread", range(10, 40))
    engine = Engine(tmp_path, broker, "numbers_handler:number", "unread", "spark-unread")
    unread, full = os.pipe()
    os.write(full, bytes(fcntl.fcntl(full, fcntl.F_SETPIPE_SZ, 4096)))
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "rocketcrew", *engine.words()], cwd=HANDLERS, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=full,
            preexec_fn=ends_with_us(),  # noqa: PLW1509  two system calls
        )  # fmt: skip
        try:
            wait_until(lambda: engine.rows().num_rows == 30, WAIT_S, "the rows")
            below = processes_below(process.pid)
            process.terminate()
            assert process.wait(WAIT_S) == 0
        finally:
            process.kill()
            process.wait()
        wait_for_end(below, "the end of every process")
    finally:
        os.close(full)
        os.close(unread)
    engine.check_exact(list(range(10, 40)))
