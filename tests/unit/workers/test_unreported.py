"""What has ended before a long call: read off the cell where it left no rows, else reported beside the call."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from rocketcrew.conf.segment_format import OPEN_DIR
from rocketcrew.workers.api import handler
from rocketcrew.workers.boot import WorkerBounds
from rocketcrew.workers.cells import CHUNK_ID, HELD, SEAL_WANTED, STATE, CellView, private_cell
from rocketcrew.workers.link import LinkClosedError
from rocketcrew.workers.ordered_packets import OrderedDescriptor, encode_ordered
from rocketcrew.workers.own_thread import NoThreadError
from rocketcrew.workers.packets import Report, Sealed
from rocketcrew.workers.reporter import REPORT_SIGNAL, ForkGuard, Reporter
from rocketcrew.workers.runner import SPARE_NS_MAX, SPARE_SHIFT
from rocketcrew.workers.salvage import salvage
from rocketcrew.workers.unreported import CHUNK_MASK, OFFERED, Seen, Unreported, look

Make = Callable[..., Any]
NEVER_DUE = WorkerBounds(flush_interval_us=100_000)


def nothing() -> bool:
    """A barrier in one thread."""
    return True


def numbers(make_record: Make, first: int, end: int) -> list[bytes]:
    return [make_record(str(number).encode(), offset=number) for number in range(first, end)]


def entries(said: list[Any]) -> list[tuple[int, int, int, bool]]:
    """(chunk, start, records, has rows) of each outcome."""
    return [(o.chunk_id, o.start, o.records, bool(o.segment_seq)) for o in said if isinstance(o, Report)]


# --- the cell ---------------------------------------------------------------------------------------------------


def made() -> tuple[CellView, Unreported]:
    cell = private_cell()
    unreported = Unreported(cell)
    unreported.offer()
    return cell, unreported


def test_the_record_in_hand_and_the_first_that_is_held_are_read() -> None:
    cell, unreported = made()
    cell[CHUNK_ID], cell[STATE] = 7, 100 + 1
    assert look(cell, 0, nothing) == Seen(7, 100, None)
    unreported.hold(7, 3)
    unreported.hold(7, 4)
    assert look(cell, 0, nothing) == Seen(7, 100, (7, 3))


def test_nothing_is_read_while_a_report_is_on_its_way() -> None:
    cell, unreported = made()
    cell[CHUNK_ID], cell[STATE] = 7, 100 + 1
    unreported.hold(7, 0)
    unreported.sent(2)
    assert [look(cell, read, nothing) for read in (0, 1, 3)] == [None] * 3
    assert look(cell, 2, nothing) == Seen(7, 100, None)


def test_nothing_is_read_without_a_call_an_offer_or_a_barrier() -> None:
    cell, _ = made()
    assert look(cell, 0, nothing) is None
    cell[STATE] = 1
    assert look(cell, 0, lambda: False) is None
    assert look(cell, 0, nothing) is not None
    cell[HELD] = 0
    assert look(cell, 0, nothing) is None


def test_a_worker_that_goes_on_between_two_reads_is_not_misread() -> None:
    """It ends chunk 7 at the first barrier, and begins chunk 8 at the same offset of another queue."""
    cell, unreported = made()
    cell[CHUNK_ID], cell[STATE] = 7, 100 + 1

    def goes_on() -> bool:
        cell[STATE] = 0
        cell[CHUNK_ID] = 8
        cell[STATE] = 100 + 1
        return True

    assert look(cell, 0, goes_on) is None
    barriers: list[int] = []

    def holds_at_the_second() -> bool:
        barriers.append(1)
        if len(barriers) == 2:
            unreported.hold(8, 5)
        return True

    assert look(cell, 0, holds_at_the_second) == Seen(8, 100, (8, 5))


@pytest.mark.parametrize("before_the_look", [True, False])
def test_what_is_kept_beside_a_report_is_held_at_whatever_moment(before_the_look: bool) -> None:
    cell, unreported = made()
    cell[CHUNK_ID], cell[STATE] = 7, 100 + 1
    unreported.hold(7, 0)
    kept = [(7, 3)] if before_the_look else []
    seen_held: list[bool] = [unreported.held]

    def left() -> tuple[int, int] | None:
        found = kept[0] if kept else None
        if not before_the_look:
            kept.append((7, 3))
            seen_held.append(unreported.held)
        return found

    unreported.sent(1, left)
    if not seen_held[-1]:  # then the loop waits for the report, and holds what it kept
        unreported.hold(7, 3)
    assert look(cell, 1, nothing) == Seen(7, 100, (7, 3))


def test_large_chunk_ids_and_many_reports_stay_apart() -> None:
    cell, unreported = made()
    cell[CHUNK_ID], cell[STATE] = (1 << 30) + 5, 1
    unreported.sent(1 << 23)  # as often as the word can count: it begins anew
    unreported.sent(3)
    unreported.hold((1 << 30) + 5, 65_534)
    seen = look(cell, (1 << 23) + 3, nothing)
    assert seen == Seen((1 << 30) + 5, 0, (((1 << 30) + 5) & CHUNK_MASK, 65_534))
    assert cell[HELD] & OFFERED


# --- what the worker holds --------------------------------------------------------------------------------------


def test_messages_without_rows_hold_nothing(bench: Make, make_record: Make) -> None:
    seen: list[Seen | None] = []

    def handle(message: Any) -> None:
        seen.append(look(b.cell, 0, nothing))

    b = bench(handle, bounds=NEVER_DUE)
    b.worker.offer_reports()
    b.chunk(numbers(make_record, 0, 3), 5)
    b.steps(2)
    assert seen == [Seen(5, offset, None) for offset in range(3)]


@pytest.mark.parametrize("what", ["fails", "is filtered", "has rows"])
def test_the_first_that_fails_or_has_rows_or_is_filtered_is_held(
    what: str, bench: Make, make_record: Make, tmp_path: Path
) -> None:
    seen: list[Seen | None] = []

    @handler(schema="n int", filter=lambda message: not (what == "is filtered" and message.body == b"1"))
    def handle(message: Any) -> Any:
        seen.append(look(b.cell, 0, nothing))
        if message.body in (b"1", b"2") and what == "fails":
            raise ValueError("no")
        return {"n": 1} if message.body in (b"1", b"2") and what == "has rows" else None

    b = bench(handle, schema="n int", folder=tmp_path, bounds=NEVER_DUE)
    b.worker.offer_reports()
    b.chunk(numbers(make_record, 0, 4), 5)
    b.steps(2)
    assert seen[-1] == Seen(5, 3, (5, 1))
    assert seen[0] == Seen(5, 0, None)


def test_a_chunk_that_cannot_be_read_is_held(bench: Make, make_record: Make) -> None:
    seen: list[Seen | None] = []

    def handle(_message: Any) -> None:
        seen.append(look(b.cell, 0, nothing))

    b = bench(handle, bounds=NEVER_DUE)
    b.worker.offer_reports()
    b.chunk([b"junk" * 30], 5)
    b.chunk(numbers(make_record, 0, 1), 6)
    b.steps(3)
    assert seen == [Seen(6, 0, (5, 0))]


def test_a_record_that_only_the_filter_of_a_batch_looks_at_has_not_been_passed(bench: Make, make_record: Make) -> None:
    """The cell names the one it looks at, and those before it in the batch have not run."""
    seen: list[Seen | None] = []

    def wants(_message: Any) -> bool:
        seen.append(look(b.cell, 0, nothing))
        return True

    @handler(batch=True, filter=wants)
    def handle(messages: list[Any]) -> None:
        pass

    b = bench(handle, bounds=WorkerBounds(batch_messages_max=3, flush_interval_us=100_000))
    b.worker.offer_reports()
    b.chunk(numbers(make_record, 0, 3), 5)
    b.steps(2)
    assert seen == [Seen(5, offset, (5, 0)) for offset in range(3)]


# --- beside a call ----------------------------------------------------------------------------------------------


def test_rows_and_failures_are_reported_beside_the_call_and_not_again(
    bench: Make, make_record: Make, tmp_path: Path
) -> None:
    said: list[Any] = []

    @handler(schema="n int")
    def handle(message: Any) -> Any:
        number = int(message.body)
        if number == 2:
            raise ValueError("no")
        if number == 4:
            b.worker.report_beside()
            said.extend(b.story())
        return {"n": number}

    b = bench(handle, schema="n int", folder=tmp_path, bounds=NEVER_DUE)
    b.worker.offer_reports()
    b.chunk(numbers(make_record, 0, 6), 5)
    b.steps(3)
    failure = next(each for each in said if not isinstance(each, Report | Sealed))
    assert entries(said) == [(5, 0, 4, True)]
    assert (failure[0], failure[1].error.partition(" (")[0]) == (2, "ValueError: no")
    assert entries(b.story()) == [(5, 4, 2, True)]


@pytest.mark.parametrize("one_chunk", [True, False])
def test_what_ended_in_order_is_reported_beside_the_call(
    bench: Make, make_record: Make, tmp_path: Path, *, one_chunk: bool
) -> None:
    """Also without rows: nobody else may say what of an ordered dispatch has ended."""
    beside: list[Any] = []

    @handler(schema="n int")
    def handle(message: Any) -> Any:
        number = int(message.body)
        if number == 4:
            held.append(look(b.cell, 0, lambda: True))
            b.worker.report_beside()
            beside.extend(b.story())
        return {"n": number} if number == 2 else None

    held: list[Seen | None] = []
    b = bench(handle, schema="n int", folder=tmp_path, bounds=NEVER_DUE)
    b.worker.offer_reports()
    parts = [(5, 0, 6)] if one_chunk else [(5, 0, 3), (6, 3, 6)]
    data = [b"".join(numbers(make_record, first, end)) for _, first, end in parts]
    chunks = [
        OrderedDescriptor(chunk_id, 1, 0, len(each), end - first, 0, ())
        for (chunk_id, first, end), each in zip(parts, data, strict=True)
    ]
    b.link.send(encode_ordered(chunks, 0), b"".join(data))
    b.steps(3)
    assert held == [Seen(parts[-1][0], 4, (5, 0))]
    assert entries(beside) == ([(5, 0, 4, True)] if one_chunk else [(5, 0, 3, True), (6, 0, 1, False)])
    assert entries(b.story()) == ([(5, 4, 2, False)] if one_chunk else [(6, 1, 2, False)])


def test_in_order_too_pending_outcomes_are_flushed_before_each_call_once_calls_are_long(
    bench: Make, make_record: Make
) -> None:
    unreported: list[int] = []
    reported = 0

    def handle(message: Any) -> None:
        nonlocal reported
        reported += sum(records for _, _, records, _ in entries(b.story()))
        number = int(message.body)
        unreported.append(number - reported)
        b.clock.advance_ms(500 if number == 3 else 0.001)

    b = bench(handle, bounds=WorkerBounds(flush_interval_us=5_000))
    data = b"".join(numbers(make_record, 0, 8))
    b.link.send(encode_ordered([OrderedDescriptor(5, 1, 0, len(data), 8, 0, ())], 0), data)
    b.steps(3)
    assert unreported == [0, 1, 2, 3, 0, 0, 0, 0]


def test_rows_that_do_not_fit_fail_their_message_beside_a_call_too(
    bench: Make, make_record: Make, tmp_path: Path
) -> None:
    said: list[Any] = []

    @handler(schema="n int")
    def handle(message: Any) -> Any:
        number = int(message.body)
        if number == 3:
            b.worker.report_beside()
            said.extend(b.story())
        return {"n": "no number" if number == 1 else number}

    b = bench(handle, schema="n int, m int", folder=tmp_path, bounds=NEVER_DUE)
    b.worker.offer_reports()
    b.chunk(numbers(make_record, 0, 5), 5)
    b.steps(3)
    later = b.story()
    failures = [each[0] for each in said if not isinstance(each, Report | Sealed)]
    assert entries(said) == [(5, 0, 3, True)]
    assert failures == [1]
    assert [type(each) for each in later] == [Report]
    assert entries(later) == [(5, 3, 2, True)]


def test_the_time_that_was_reported_beside_a_call_is_not_reported_twice(bench: Make, make_record: Make) -> None:
    beside: list[Any] = []

    def handle(message: Any) -> None:
        b.clock.advance_ms(2)
        if message.body == b"1":
            raise ValueError("no")
        if message.body == b"3":
            b.worker.report_beside()
            beside.extend(b.story())

    b = bench(handle, bounds=NEVER_DUE)
    b.worker.offer_reports()
    b.chunk(numbers(make_record, 0, 5), 5)
    b.steps(3)
    outcomes = [each for each in [*beside, *b.story()] if isinstance(each, Report)]
    assert [(o.start, o.records, o.busy_us) for o in outcomes] == [(0, 3, 6_000), (3, 2, 4_000)]


def test_finished_chunks_before_the_one_in_hand_are_reported_too(
    bench: Make, make_record: Make, tmp_path: Path
) -> None:
    said: list[Any] = []

    @handler(schema="n int")
    def handle(message: Any) -> Any:
        if message.body == b"5":
            b.worker.report_beside()
            said.extend(b.story())
        return {"n": 1}

    b = bench(handle, schema="n int", folder=tmp_path, bounds=NEVER_DUE)
    b.worker.offer_reports()
    b.chunk(numbers(make_record, 0, 4), 5)
    b.chunk(numbers(make_record, 4, 8), 6)
    b.steps(3)
    assert entries(said) == [(5, 0, 4, True), (6, 0, 1, True)]


def test_nothing_of_a_batch_in_hand_is_reported(bench: Make, make_record: Make, tmp_path: Path) -> None:
    said: list[list[tuple[int, int, int, bool]]] = []

    @handler(batch=True, schema="n int")
    def handle(messages: list[Any]) -> Any:
        b.worker.report_beside()
        said.append(entries(b.story()))
        return [{"n": int(message.body)} for message in messages]

    b = bench(
        handle, schema="n int", folder=tmp_path, bounds=WorkerBounds(batch_messages_max=2, flush_interval_us=100_000)
    )
    b.worker.offer_reports()
    b.chunk(numbers(make_record, 0, 4), 5)
    b.steps(2)
    assert said == [[], [(5, 0, 2, True)]]


def test_a_kill_after_the_append_and_before_the_outcome_leaves_what_had_ended(
    bench: Make, make_record: Make, tmp_path: Path
) -> None:
    """Killed beside the call: what salvage finds is what had ended, and not the record in hand."""
    found: list[Any] = []

    @handler(schema="n int")
    def handle(message: Any) -> Any:
        if message.body == b"3":
            b.link.close()  # the outcome reaches nobody, and the worker ends
            assert b.worker.report_beside() is None
            [left] = (tmp_path / OPEN_DIR).iterdir()
            found.append(salvage(left))
        return {"n": int(message.body)}

    b = bench(handle, schema="n int", folder=tmp_path, bounds=NEVER_DUE)
    b.worker.offer_reports()
    b.chunk(numbers(make_record, 0, 5), 5)
    with pytest.raises(LinkClosedError):
        b.steps(3)
    assert (found[0].rows, [queue.ranges for queue in found[0].messages]) == (3, [((0, 3),)])


def test_a_seal_is_served_beside_the_call_and_its_packet_seals_no_second_time(
    bench: Make, make_record: Make, tmp_path: Path
) -> None:
    said: list[Any] = []

    @handler(schema="n int")
    def handle(message: Any) -> Any:
        if message.body == b"2":
            b.cell[SEAL_WANTED] = 1
            b.worker.report_beside()
            said.extend(b.story())
        return {"n": int(message.body)}

    b = bench(handle, schema="n int", folder=tmp_path, bounds=NEVER_DUE)
    b.worker.offer_reports()
    b.chunk(numbers(make_record, 0, 4), 5)
    b.link.send(bytes((3,)))  # SEAL
    b.steps(3)
    assert [type(each) for each in said] == [Report, Sealed]
    assert (said[1].seq, said[1].rows) == (1, 2)
    assert [each for each in b.story() if isinstance(each, Sealed)] == []


def test_a_segment_that_is_idle_during_a_long_call_is_sealed(bench: Make, make_record: Make, tmp_path: Path) -> None:
    waits: list[float | None] = []
    said: list[Any] = []

    @handler(schema="n int")
    def handle(message: Any) -> Any:
        if message.body == b"1":
            waits.append(b.worker.report_beside())
            b.clock.advance_ms(1_001)
            waits.append(b.worker.report_beside())
            said.extend(b.story())
        return {"n": 1}

    b = bench(
        handle, schema="n int", folder=tmp_path, bounds=WorkerBounds(flush_interval_us=100_000, seal_idle_ms=1_000)
    )
    b.worker.offer_reports()
    b.chunk(numbers(make_record, 0, 2), 5)
    b.steps(2)
    assert waits == [1.001, None]
    assert [type(each) for each in said] == [Report, Sealed]


# --- while calls are long ---------------------------------------------------------------------------------------


def test_once_calls_are_long_what_only_the_worker_knows_is_flushed_before_each_call(
    bench: Make, make_record: Make, tmp_path: Path
) -> None:
    unreported: list[int] = []
    reported = 0

    @handler(schema="n int")
    def handle(message: Any) -> Any:
        nonlocal reported
        reported += sum(records for _, _, records, _ in entries(b.story()))
        number = int(message.body)
        unreported.append(number - reported)
        b.clock.advance_ms(500 if number == 3 else 0.001)
        return {"n": number}

    b = bench(handle, schema="n int", folder=tmp_path, bounds=WorkerBounds(flush_interval_us=5_000))
    b.chunk(numbers(make_record, 0, 12), 5)
    b.steps(2)
    assert unreported == [0, 1, 2, 3, 0, 0, 0, 0, 0, 0, 0, 0]


def test_the_time_for_flushes_before_calls_is_a_small_part_of_what_the_long_call_took(
    bench: Make, make_record: Make
) -> None:
    """Messages without rows are flushed for by nobody, and use up the time that is left for it."""

    def handle(message: Any) -> None:
        b.clock.advance_ms(10 if message.body == b"0" else 0.001)

    b = bench(handle, bounds=WorkerBounds(flush_interval_us=5_000))
    b.chunk(numbers(make_record, 0, 400), 5)
    b.steps(3)
    assert 10_000_000 >> SPARE_SHIFT < 400 * 1_000
    assert b.worker._runner.spare_ns <= 0
    assert [(o.start, o.records) for o in b.outcomes()[0]] == [(0, 1), (1, 399)]


def test_a_flush_that_waited_for_a_full_disk_is_soon_forgotten(bench: Make) -> None:
    """Else no later call would be flushed for, for an hour after a minute."""
    runner = bench(lambda _message: None).worker._runner
    runner.spare_ns = 1
    runner._flushed(60_000_000_000)
    assert runner.spare_ns == -SPARE_NS_MAX


# --- the thread -------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not REPORT_SIGNAL, reason="this platform has no real-time signals")
def test_the_thread_reports_when_it_is_asked_and_is_started_by_the_first_hold(
    bench: Make, make_record: Make, tmp_path: Path
) -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {REPORT_SIGNAL})
    said: list[Any] = []
    others = set(sys._current_frames())
    threads: list[list[int]] = []

    @handler(schema="n int")
    def handle(message: Any) -> Any:
        threads.append([thread for thread in sys._current_frames() if thread not in others])
        if message.body == b"2":
            [reporter] = threads[-1]
            signal.pthread_kill(reporter, REPORT_SIGNAL)
            while not said:
                said.extend(b.story())
        return {"n": int(message.body)} if message.body == b"1" else None

    b = bench(handle, schema="n int", folder=tmp_path, bounds=NEVER_DUE)
    b.worker.offer_reports()
    b.worker.report_when_asked()
    b.chunk(numbers(make_record, 0, 4), 5)
    b.steps(2)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert [len(each) for each in threads] == [0, 0, 1, 1]
    assert entries(said) == [(5, 0, 2, True)]


def test_a_system_without_threads_to_give_is_told_of_and_survived() -> None:
    logged: list[str] = []

    class Log:
        def warning(self, event: str, **_keys: object) -> None:
            logged.append(event)

    def refused(_run: Callable[[], None]) -> None:
        raise NoThreadError("can't start new thread")

    reporter = Reporter(lambda: None, Log(), refused)
    reporter.start()
    reporter.start()
    assert logged == ["no_reporter_thread"]


def test_a_fork_waits_for_the_lock_and_gives_it_back() -> None:
    lock = threading.RLock()
    guard = ForkGuard(lambda: lock)
    guard.before()
    other: list[bool] = []
    thread = threading.Thread(target=lambda: other.append(lock.acquire(blocking=False)))
    thread.start()
    thread.join()
    assert other == [False]
    guard.after_in_parent()
    assert lock.acquire(blocking=False)
    lock.release()


class Slow:
    """A lock that only the first gets, for whom the thread lets go of it in time."""

    def __init__(self) -> None:
        self.held = False
        self.released: list[int] = []

    def acquire(self, timeout: float) -> bool:
        before, self.held = self.held, True
        return timeout > 0 and not before

    def release(self) -> None:
        self.released.append(threading.get_ident())


def test_of_two_threads_that_fork_at_once_each_gives_back_what_it_has_got() -> None:
    lock = Slow()
    guard = ForkGuard(cast("Any", lambda: lock))
    guard.before()

    def forks_too() -> None:
        guard.before()
        guard.after_in_parent()

    thread = threading.Thread(target=forks_too)
    thread.start()
    thread.join()
    assert lock.released == []
    guard.after_in_parent()
    assert lock.released == [threading.get_ident()]
