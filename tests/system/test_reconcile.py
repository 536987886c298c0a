"""`rocketcrew reconcile` on a real consumer's table: explained, then a file is taken out, named, and brought back."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import pyarrow.parquet as pq
from harness import HANDLERS, WAIT_S, Broker, Crew, duplicate_keys, send_numbers, wait_until

from rocketcrew.client.admin import Admin
from rocketcrew.client.cluster import Cluster
from rocketcrew.client.operations import Operations
from rocketcrew.client.sync import run_with_cluster
from rocketcrew.remoting.admin_bodies import TopicConfig
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.spark.segments import read_facts

NUMBERS = range(400)


def command(crew: Crew, name: str, *more: str, code: int) -> bytes:
    words = [name, "-g", crew.group, "-n", crew.broker.name_server]
    words += ["--set", f"supervisor.data_dir={crew.folder / 'state'}", *more]
    done = subprocess.run(
        [sys.executable, "-m", "rocketcrew", *words], cwd=HANDLERS, capture_output=True, check=False, timeout=WAIT_S,
        env={name: value for name, value in os.environ.items() if not name.startswith(("ROCKETCREW_", "NAMESRV_"))},
    )  # fmt: skip
    assert done.returncode == code, done.stderr.decode() + done.stdout.decode()
    return done.stdout


def reconcile(crew: Crew, *more: str, code: int) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(
        command(crew, "reconcile", "--target", str(crew.table), "--json", *more, code=code)
    )
    return report


def counted(report: dict[str, Any], fate: str) -> int:
    return sum(queue["counts"].get(fate, 0) for queue in report["queues"])


def test_a_removed_file_is_named_and_brought_back(tmp_path: Path, broker: Broker) -> None:
    crew = Crew(tmp_path, broker, "numbers_handler:number", "numbers", load=False)
    send_numbers(broker, "numbers", NUMBERS)
    crew.start()
    wait_until(lambda: crew.counter("sent_back_messages") == 16 and crew.sent_back_lag() == 0, what="the end")
    assert crew.stop() == 0
    a_lost_segment_is_named(crew)
    assert crew.load().num_rows == len(NUMBERS)

    report = reconcile(crew, code=0)
    assert counted(report, "loaded") == len(NUMBERS)
    assert counted(report, "sent_back") == 16
    assert counted(report, "no_rows") == 0

    victim = min(crew.table.glob("batch_id=*/*.parquet"))
    lost = (
        pq.read_table(str(victim), partitioning=None).select(["_topic", "_broker", "_queue_id", "_offset"]).to_pylist()
    )
    victim.unlink()
    report = reconcile(crew, code=1)
    assert unexplained(report, "missing") == {tuple(row.values()) for row in lost}

    told = {topic for queue in report["queues"] for topic in queue["sent_to"].items()}
    assert told == {("sent_back", f"%RETRY%{crew.group}")}

    report = reconcile(crew, "--rerun", "numbers_handler:number", code=0)
    rows = crew.loaded_rows()
    assert sorted(rows.column("number").to_pylist()) == list(NUMBERS)
    assert duplicate_keys(rows) == 0
    assert counted(report, "loaded") == len(NUMBERS)

    again_in_a_new_epoch(crew)


def unexplained(report: dict[str, Any], fate: str) -> set[tuple[object, ...]]:
    return {
        (queue["topic"], queue["broker"], queue["queue_id"], offset)
        for queue in report["queues"]
        for start, stop in queue["unexplained"].get(fate, [])
        for offset in range(start, stop)
    }


def a_lost_segment_is_named(crew: Crew) -> None:
    """One sealed segment is away while the others are loaded: exactly its messages are unexplained; it is put back."""
    victim = min((crew.slot / "segments" / "ready").iterdir())
    aside = victim.rename(crew.slot / victim.name)
    finished = read_facts(aside).finished
    crew.load(leave_gaps=True)
    report = reconcile(crew, code=1)
    assert unexplained(report, "unknown") == {
        (key.topic, key.broker, key.queue_id, offset)
        for key, offsets in finished.queues.items()
        for start, stop in offsets.pieces
        for offset in range(start, stop)
    }
    aside.rename(victim)


def again_in_a_new_epoch(crew: Crew) -> None:
    """Everything once more: its rows stand beside the first ones, and are explained."""
    checkpoint = crew.slot.parent / "engine" / "checkpoint"
    (checkpoint / "offsets").mkdir(parents=True)
    command(crew, "reset", "-t", "numbers", "--to", "earliest", "--reprocess", "--target", str(crew.table), code=0)
    assert checkpoint.parent.is_dir()
    assert not checkpoint.exists(), "an engine of the group begins at the offsets too"
    crew.start()
    # In this order: once all retries have come, nothing of them can be missing in the lag.
    wait_until(lambda: crew.retries() == 32 and crew.lag() == 0, what="the second end")
    assert b"members that run" in subprocess_error(crew)
    assert crew.stop() == 0
    rows = crew.load()
    again = [row["number"] for row in rows.to_pylist() if row["_epoch"] == 1]
    assert sorted(again) == list(NUMBERS), "retries too"
    assert rows.num_rows == 2 * len(NUMBERS)
    report = reconcile(crew, code=0)
    assert counted(report, "loaded") == 2 * len(NUMBERS)


def test_a_time_stands_for_the_first_message_stored_at_it(tmp_path: Path, broker: Broker) -> None:
    crew = Crew(tmp_path, broker, "numbers_handler:number", "numbers", load=False)
    send_numbers(broker, "numbers", range(40))
    between = int(time.time() * 1000) + 1
    wait_until(lambda: time.time() * 1000 > between, what="the next millisecond")
    send_numbers(broker, "numbers", range(40, 80))

    def offsets(to: object) -> int:
        said = command(crew, "reset", "-t", "numbers", "--to", str(to), "--new-group", "--json", code=0)
        return sum(queue["new"] for queue in json.loads(said)["queues"])

    assert [offsets(to) for to in (10**12, between, "latest")] == [0, 40, 80]


def subprocess_error(crew: Crew) -> bytes:
    """Rows of a group that runs cannot be loaded once more."""
    done = subprocess.run(
        [sys.executable, "-m", "rocketcrew", "reset", "-g", crew.group, "-n", crew.broker.name_server, "-t", "numbers",
         "--to", "earliest", "--reprocess", "--target", str(crew.table)], capture_output=True, check=False, timeout=WAIT_S,
    )  # fmt: skip
    assert done.returncode == 2
    return done.stderr


def test_a_topic_made_again_and_filled_past_the_group_while_it_rests_is_named_and_brought_by_a_reset(
    tmp_path: Path, broker: Broker
) -> None:
    """As at a broker 4.9, which keeps the group's offsets when a topic is deleted."""
    crew = Crew(tmp_path, broker, "numbers_handler:number", "again", load=False)
    run_with_cluster(broker.name_server, partial(make_topic, broker))
    send_numbers(broker, "again", range(10, 30))
    run_to_the_end(crew)
    crew.load()
    run_with_cluster(broker.name_server, partial(make_topic, broker, group=crew.group, committed=20))
    send_numbers(broker, "again", range(110, 150))
    run_to_the_end(crew)
    assert crew.load().num_rows == 20 + 20
    report = reconcile(crew, code=1)
    assert {place[-1] for place in unexplained(report, "unknown")} == set(range(20))
    told = command(crew, "reconcile", "--target", str(crew.table), code=1)
    assert b"made again: the broker stored its 0-19, at least, later" in told

    printed = re.search("`rocketcrew reset (.*?)`", told.decode())
    assert printed is not None
    run_here = [sys.executable, "-m", "rocketcrew", "reset", *shlex.split(printed[1]), "--yes"]
    subprocess.run(run_here, cwd=HANDLERS, check=True, timeout=WAIT_S)
    run_to_the_end(crew)
    rows = crew.load(recreated=True)
    assert sorted(rows.column("number").to_pylist()) == [*range(10, 30), *range(110, 150)]
    assert counted(reconcile(crew, code=0), "loaded") == rows.num_rows


async def make_topic(broker: Broker, cluster: Cluster, group: str = "", committed: int = 0) -> None:
    """The topic of one queue, anew where the group has committed something of it, which stays."""
    address, admin = f"127.0.0.1:{broker.port}", Admin(cluster)
    if group:
        await admin.delete_topic(address, "again")
    await admin.create_topic(address, TopicConfig("again", read_queue_nums=1, write_queue_nums=1))
    if group:
        await Operations(cluster).update_consumer_offset(group, MessageQueue("again", broker.name, 0), committed)


def run_to_the_end(crew: Crew) -> None:
    crew.start()
    wait_until(lambda: crew.lag() == 0, what="the end")
    assert crew.stop() == 0
