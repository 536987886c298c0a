"""Whom a worker names in its cell when it ends by an error of our own between two calls, and that naming hides no error."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest

from rocketcrew.remoting.errors import UsageError
from rocketcrew.workers.api import handler
from rocketcrew.workers.cells import BETWEEN, CHUNK_ID, LAST, RECORDS, STATE, TEXT, TEXT_BYTES
from rocketcrew.workers.main import serve
from rocketcrew.workers.ordered import OrderedRunner
from rocketcrew.workers.ordered_packets import OrderedDescriptor, encode_ordered
from rocketcrew.workers.packets import REPORTS, QueueInfo, decode_reports
from rocketcrew.workers.run import Run

from .test_unusable_errors import Broken, of_runner

Make = Callable[..., Any]
OTHER = QueueInfo("group", "TopicTest", "broker-b", 4)


class Confused(Broken):
    """Cannot even say afterwards what it had."""

    def take(self) -> list[Run]:
        if self.taken:
            raise IndexError("of our own making")
        runs = super().take()
        self.taken = any(run.failures for run in runs)
        return runs

    taken = False


def nothing(_message: Any) -> None:
    return None


def records_reported(b: Any) -> int:
    return sum(report.records for packet in b.packets() if packet[0] == REPORTS for report in decode_reports(packet)[0])


def in_flight_of_two_chunks(b: Any, make_record: Make) -> None:
    b.chunk([make_record(offset=100 + number) for number in range(5)], 1)
    b.chunk([make_record(offset=200)], 2)


def test_of_the_rest_of_a_chunk_and_a_shorter_one_behind_it_both_are_suspected(bench: Make, make_record: Make) -> None:
    b = bench(nothing)

    def handle(message: Any) -> None:
        if message.queue_offset in range(100, 104):
            b.clock.advance_ms(10_000)  # reported at once; the last one is not
        if message.queue_offset == 200:
            raise ValueError("no")

    in_flight_of_two_chunks(b, make_record)
    with pytest.raises(struct.error):
        serve(of_runner(b, handle, Broken), b.log)
    assert records_reported(b) == 4
    assert b.cell[STATE] == BETWEEN


def test_the_same_where_the_reporter_has_cut_off_what_it_reported(bench: Make, make_record: Make) -> None:
    b = bench(nothing)

    def handle(message: Any) -> None:
        if message.queue_offset == 104:
            worker.report_beside()
            raise ValueError("no")

    worker = of_runner(b, handle, Broken)
    worker.offer_reports()
    in_flight_of_two_chunks(b, make_record)
    with pytest.raises(struct.error):
        serve(worker, b.log)
    assert records_reported(b) == 4
    assert b.cell[STATE] == BETWEEN


def test_of_one_chunk_the_rest_is_named_whatever_its_runs_are(bench: Make, make_record: Make) -> None:
    b = bench(nothing)

    def handle(message: Any) -> None:
        if message.queue_offset in (100, 101):
            b.clock.advance_ms(10_000)
        if message.queue_offset == 103:
            raise ValueError("no")

    b.chunk([make_record(offset=100 + number) for number in range(5)], 1)
    with pytest.raises(struct.error):
        serve(of_runner(b, handle, Broken), b.log)
    assert records_reported(b) == 2
    assert (b.cell[CHUNK_ID], b.cell[STATE] - 1, b.cell[RECORDS], b.cell[LAST]) == (1, 102, 2, 103)  # 104 was not begun


def test_its_queue_is_named_with_it_also_when_another_was_looked_at_since(bench: Make, make_record: Make) -> None:
    @handler(order="queue")
    def handle(message: Any) -> None:
        if message.queue_offset == 200:
            b.worker_link.close()
            raise ValueError("no")

    b = bench(handle)
    b.queue(OTHER, 2)
    one, another = make_record(offset=100), make_record(offset=200)
    chunks = [OrderedDescriptor(1, 1, 0, len(one), 1, 0, ()), OrderedDescriptor(2, 2, 0, len(another), 1, 1, ())]
    b.link.send(encode_ordered(chunks, 0), one + another)
    serve(b.worker, b.log)
    assert (b.cell[CHUNK_ID], b.cell[STATE] - 1) == (1, 100)
    assert bytes(b.cell[TEXT:])[: b.cell[TEXT_BYTES]] == b'["TopicTest","broker-a",3]'


def test_what_goes_wrong_while_it_is_named_is_a_note_on_the_error(bench: Make, make_record: Make) -> None:
    b = bench(nothing)

    def fails(_message: Any) -> None:
        raise ValueError("no")

    b.chunk([make_record(offset=1)], 1)
    with pytest.raises(struct.error) as raised:
        serve(of_runner(b, fails, Confused), b.log)
    [note] = raised.value.__notes__
    assert "IndexError('of our own making')" in note
    assert b.cell[STATE] == 0


def test_what_waits_is_taken_with_the_lock_that_the_reporter_takes_too(bench: Make, make_record: Make) -> None:
    held: list[bool] = []

    class Watched(OrderedRunner):
        def take(self) -> list[Run]:
            lock: Any = self.lock
            held.append(lock._is_owned())
            return super().take()

    b = bench(nothing)
    worker = of_runner(b, nothing, Watched)
    b.chunk([make_record(offset=1)], 1)
    worker.step()
    worker.step()
    worker.accuse(UsageError("as any error of ours"))
    assert b.cell[STATE] == 1 + 1
    assert held == [True]


def test_after_a_report_that_failed_beside_a_call_nothing_is_reported_any_more(bench: Make, make_record: Make) -> None:
    b = bench(nothing)

    def handle(message: Any) -> None:
        if message.queue_offset == 100:
            raise ValueError("no")
        assert worker.report_beside() is None

    worker = of_runner(b, handle, Broken)
    worker.offer_reports()
    b.chunk([make_record(offset=100 + number) for number in range(3)], 1)
    with pytest.raises(struct.error):
        serve(worker, b.log)
    assert records_reported(b) == 0
    assert (b.cell[STATE] - 1, b.cell[RECORDS], b.cell[LAST]) == (100, 3, 102)
