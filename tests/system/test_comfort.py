"""What a handler finds in its worker: set up once, placed as the settings say (also new ones, by HUP), and the end."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from comfortable import NOTES
from harness import Broker, Crew, duplicate_keys, send_numbers, wait_until

TOPIC = "numbers"
HALF = 200
PLACED = '[workers]\ncpu_affinity = "spread"\nnice = {nice}\n'
NICE_MAX = 19


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system does not bind processes to cores")
def test_workers_are_placed_set_up_and_told_of_the_end(
    tmp_path: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes, config, ours = tmp_path / "notes", tmp_path / "crew.toml", os.nice(0)
    monkeypatch.setenv(NOTES, str(notes))
    config.write_text(PLACED.format(nice=1))
    crew = Crew(tmp_path, broker, "comfortable:tells", TOPIC, load=False)
    crew.flags = ["-c", str(config)]
    crew.start()
    send_numbers(broker, TOPIC, range(1, HALF))
    wait_until(lambda: crew.counter("done_messages") == HALF - 1, what="the first half")
    config.write_text(PLACED.format(nice=3))
    os.kill(crew.child.pid, signal.SIGHUP)
    wait_until(lambda: crew.staff()["counts"].get("reloaded") == 1, what="the reload")
    wait_until(lambda: len(crew.workers()) == 2, what="the new workers alone")
    send_numbers(broker, TOPIC, range(HALF, 2 * HALF))
    wait_until(lambda: crew.counter("done_messages") == 2 * HALF - 1, what="the second half")
    send_numbers(broker, TOPIC, range(1))
    wait_until(
        lambda: any(worker["running"] for worker in (crew.status() or {"workers": []})["workers"]), what="number 0"
    )
    assert crew.stop() == 0
    rows = crew.staged_rows()
    assert duplicate_keys(rows) == 0
    found = rows.to_pylist()
    assert sorted(row["number"] for row in found) == list(range(2 * HALF)), "number 0 too: it was told of the end"
    assert all(row["set_up"] == f"[{row['pid']}]" for row in found), "each worker once, before its first message"
    assert {row["worker"] for row in found} <= {0, 1}
    early = {row["nice"] for row in found if 0 < row["number"] < HALF}
    late = {row["nice"] for row in found if row["number"] >= HALF}
    assert (early, late) == ({min(NICE_MAX, ours + 1)}, {min(NICE_MAX, ours + 3)})
    cores = sorted(os.sched_getaffinity(0))
    assert {(row["worker"], row["cores"]) for row in found} <= {(0, str(cores[0])), (1, str(cores[1 % len(cores)]))}
    assert {row["pid"] for row in found} <= {int(line) for line in notes.read_text().split()}
