"""Rows of every kind, a full disk, and bodies that are large beside the byte budget."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from disks import new_disks
from harness import WAIT_S, Broker, Crew, duplicate_keys, patient_producer, say, send_numbers, wait_until

from rocketcrew.cli.children import Child
from rocketcrew.client.outgoing import OutgoingMessage

TOPIC = "pressure"
MIB = 1 << 20
BODY_BYTES = 4 * MIB


def test_rows_of_any_size_are_written_and_wrong_ones_fail_their_message_alone(tmp_path: Path, broker: Broker) -> None:
    """Neighbours in the same chunk keep their rows; the bad ones are retried and end as dead letters."""
    kinds = ["plain", "many", "large", "wrong", "unknown", "lock", "nothing"]
    bad = {"wrong", "unknown", "lock", "nothing"}
    numbers = range(10 * len(kinds))
    crew = Crew(tmp_path, broker, "pressure_handlers:rows_of_any_kind", TOPIC, load=False,
                **{"consumer.max_reconsume_times": 1})  # fmt: skip
    crew.start()
    try:
        with patient_producer(broker) as producer:
            for number in numbers:
                # Most of them plain, so that each odd one has ordinary neighbours.
                kind = kinds[number // 10] if number % 10 == 5 else "plain"
                producer.send(OutgoingMessage(TOPIC, f"row {number} {kind}".encode()))
        wait_until(lambda: crew.sent_back_lag() == 0 and crew.dead_letters() == len(bad), 2 * WAIT_S, "all messages")
        assert crew.counter("worker_deaths") == 0
        assert crew.stop() == 0
    finally:
        crew.child.stop(WAIT_S)
    counts = Counter(crew.staged_rows().column("number").to_pylist())
    assert counts.pop(15) == 50_000
    assert counts == {number: 1 for number in numbers if number != 15 and not (number % 10 == 5 and number > 30)}
    assert duplicate_keys(crew.staged_rows()) == 0


def limit_files(pids: list[int], length_bytes: int) -> None:
    """No file of these processes grows beyond so many bytes, as by a quota (RLIMIT_FSIZE: Python gets an error)."""
    for pid in pids:
        psutil.Process(pid).rlimit(psutil.RLIMIT_FSIZE, (length_bytes, resource.RLIM_INFINITY))


def test_workers_that_cannot_write_wait_with_an_alarm_and_go_on(tmp_path: Path, broker: Broker) -> None:
    crew = Crew(tmp_path, broker, "numbers_handler:slow_plain_number", TOPIC, load=False)
    crew.start()
    messages = 2_000
    try:
        send_numbers(broker, TOPIC, range(200))
        wait_until(lambda: crew.counter("done_messages") == 200, what="the first messages")
        workers = crew.workers()
        limit_files(workers, 64 * 1024)  # a segment outgrows it in no time; the log, a file too, does not
        send_numbers(broker, TOPIC, range(200, messages))
        wait_until(lambda: "segment_write_failed" in crew.child.log.read_text(), what="the alarm")
        wait_until(lambda: all_wait(crew), what="every worker to wait")
        stands_at = crew.counter("done_messages")
        assert stands_at < messages
        limit_files(workers, resource.RLIM_INFINITY)
        wait_until(lambda: crew.lag() == 0, 2 * WAIT_S, "all messages")
        assert crew.counter("worker_deaths") == 0
        assert set(crew.workers()) == set(workers), "they waited; none was replaced"
        assert crew.stop() == 0
    finally:
        crew.child.stop(WAIT_S)
    rows = crew.staged_rows()
    assert sorted(rows.column("number").to_pylist()) == list(range(messages))
    assert duplicate_keys(rows) == 0
    say(f"full disk: {messages} messages, 0 lost, 0 duplicated, no worker replaced")


def all_wait(crew: Crew) -> bool:
    """Whether every worker has its hands full, and nothing was finished between two looks."""
    first = crew.status()
    second = crew.status()
    if first is None or second is None:
        return False
    return all(worker["chunks"] for worker in second["workers"]) and (
        first["counters"]["done_messages"] == second["counters"]["done_messages"]
    )


@contextlib.contextmanager
def small_disk(size_mib: int) -> Iterator[Path]:
    """A disk in memory, mounted in a namespace that only a process of ours holds, and reached through that process; it is
    gone with it. Skips where nobody may mount one."""
    holder = subprocess.Popen(
        [*new_disks(), "sh", "-c", f"mount -t tmpfs -o size={size_mib}m tmpfs /mnt && echo mounted && exec cat"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    with holder:
        assert holder.stdout is not None
        try:
            assert holder.stdout.readline() == b"mounted\n"
            yield Path(f"/proc/{holder.pid}/root/mnt")
        finally:
            holder.kill()


def pauses(crew: Crew, reason: str) -> list[str]:
    """What the log says of pulling that was held up for that reason."""
    both = [*crew.logged("pulling_paused"), *crew.logged("pulling_resumed")]
    return [each["event"] for each in sorted(both, key=lambda each: each["timestamp"]) if each["reason"] == reason]


def test_a_disk_that_is_nearly_full_pauses_pulling_until_there_is_room_again(tmp_path: Path, broker: Broker) -> None:
    """All in one process: no restart, and nobody has to tell it of the room."""
    with small_disk(256) as disk:
        crew = Crew(tmp_path, broker, "numbers_handler:number", TOPIC, load=False,
                    **{"results.free_disk_min_mib": 32, "supervisor.data_dir": disk,
                       "consumer.pull_batch_size": 1})  # fmt: skip
        crew.slot = disk / crew.group / "0"
        crew.start()
        try:
            send_numbers(broker, TOPIC, range(5))
            wait_until(lambda: crew.lag() == 0, what="the first messages")
            assert pauses(crew, "disk") == []
            free = psutil.disk_usage(str(disk)).free
            (disk / "filler").write_bytes(bytes(free - 16 * MIB))
            wait_until(lambda: "disk" in (crew.status() or {}).get("paused", ()), what="the pause")
            # A thread writes the log of a running supervisor, so that may be a moment behind the status.
            wait_until(lambda: pauses(crew, "disk") == ["pulling_paused"], what="the pause in the log")
            send_numbers(broker, TOPIC, range(10, 30))
            # The pull that was out for each of the four queues may bring one message; nothing is asked for after that. Waited
            # for is only an answer that comes in time: the lag never rises again.
            wait_until(lambda: crew.lag() >= 16, what="those that have to wait")
            (disk / "filler").unlink()
            wait_until(lambda: crew.lag() == 0, what="the messages that had to wait")
            assert crew.stop() == 0
            assert pauses(crew, "disk") == ["pulling_paused", "pulling_resumed"]
        finally:
            crew.child.stop(WAIT_S)
        assert sorted(crew.staged_rows().column("number").to_pylist()) == [*range(5), *range(10, 30)]


def test_above_the_high_water_mark_pulling_waits_for_the_loader(tmp_path: Path, broker: Broker) -> None:
    """The loader is a process that somebody starts later, without a JVM."""
    messages, mark_mib, row_bytes = 400, 1, 20_000
    crew = Crew(tmp_path, broker, "pressure_handlers:wide_row", TOPIC, load=False,
                **{"results.high_water_mib": mark_mib, "results.seal_rows": 10, "consumer.pull_batch_size": 8,
                   "consumer.pull_threshold_for_queue": 8})  # fmt: skip
    crew.start()
    try:
        send_numbers(broker, TOPIC, range(messages))
        wait_until(lambda: "backlog" in (crew.status() or {}).get("paused", ()), what="the pause")
        wait_until(lambda: all_idle(crew), what="what workers had in hand")
        status = crew.status()
        assert status is not None
        assert status["waiting_messages"] > 0, "what was pulled waits, too"
        assert status["counters"]["done_messages"] < messages
        assert mark_mib * MIB < status["backlog"]["bytes"] < messages * row_bytes / 2
        loader = Child("loader", ["load", "--follow", "--staging", str(crew.slot / "segments"), "--target", str(crew.table),
                                  "--set", "spark.format=pyarrow", "--set", "spark.max_wait_ms=100"],
                       log=tmp_path / "loader.log")  # fmt: skip
        try:
            wait_until(lambda: crew.lag() == 0, 2 * WAIT_S, "all messages")
            assert crew.stop() == 0
            wait_until(lambda: not any((crew.slot / "segments" / "ready").iterdir()), what="all loaded")
        finally:
            loader.stop(WAIT_S)
    finally:
        crew.child.stop(WAIT_S)
    told = pauses(crew, "backlog")
    assert told[:2] == ["pulling_paused", "pulling_resumed"]
    assert sorted(crew.loaded_rows().column("number").to_pylist()) == list(range(messages))


def all_idle(crew: Crew) -> bool:
    """Whether no worker has anything in hand."""
    status = crew.status()
    return status is not None and not any(w["messages"] for w in status["workers"])


def send_large(broker: Broker, numbers: range) -> None:
    """Bodies that no compression makes smaller, a number in front."""
    with patient_producer(broker, compress_from_bytes=1 << 30) as producer:
        for number in numbers:
            head = f"{number} ".encode()
            producer.send(OutgoingMessage(TOPIC, head + os.urandom(BODY_BYTES - len(head))), timeout_ms=30_000)


@pytest.mark.parametrize("budget_mib", [64, 1])
def test_bodies_that_are_large_beside_the_budget(
    tmp_path: Path, broker: Broker, budget_mib: int, full_numbers: bool
) -> None:
    """With 1 MiB every single message is larger than the budget: they get through alone."""
    messages = 200 if full_numbers and budget_mib > 1 else 24
    crew = Crew(tmp_path, broker, "pressure_handlers:large_body", TOPIC, load=False,
                **{"memory.pulled_bytes_mib": budget_mib})  # fmt: skip
    crew.start()
    try:
        send_large(broker, range(messages))
        wait_until(lambda: crew.lag() == 0, 4 * WAIT_S, "all messages")
        status = crew.status()
        assert status is not None
        memory = status["memory"]
        assert memory["slab_peak_bytes"] <= memory["slab_bytes"] == max(budget_mib, 32) * MIB
        assert status["counters"]["invariant_violations"] == 0
        peak_mib, again = memory["slab_peak_bytes"] // MIB, status["counters"]["pull_bodies_dropped"]
        say(f"{messages} bodies of 4 MiB under {budget_mib} MiB, peak {peak_mib} MiB, {again} pulled again")
        assert crew.stop() == 0
    finally:
        crew.child.stop(WAIT_S)
    rows = crew.staged_rows()
    assert sorted(rows.column("number").to_pylist()) == list(range(messages))
    assert set(rows.column("bytes").to_pylist()) == {BODY_BYTES}
