"""A worker stops where the supervisor has taken the rest, reports what it ran, and goes on with what came later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rocketcrew.workers.api import handler
from rocketcrew.workers.boot import WorkerBounds
from rocketcrew.workers.claims import take_back

Make = Callable[..., Any]


def reported(b: Any) -> list[tuple[int, int, int, int]]:
    """chunk id, start, records, failed."""
    return [(entry.chunk_id, entry.start, entry.records, entry.failed) for entry in b.outcomes()[0]]


def test_the_rest_of_the_chunk_and_the_next_one_are_left(bench: Make, make_record: Make) -> None:
    ran: list[int] = []
    claimed: list[tuple[int, int] | None] = []

    def handle(message: Any) -> None:
        ran.append(message.queue_offset)
        if message.queue_offset == 2:
            claimed.append(take_back(b.cell, 2, lambda: True))

    b = bench(handle)
    b.worker.offer_back()
    b.chunk([make_record(offset=n) for n in range(8)], 1)
    b.chunk([make_record(offset=n) for n in range(8, 12)], 2)
    b.chunk([make_record(offset=n) for n in range(12, 14)], 3)
    b.steps(5)
    assert claimed == [(1, 3)]
    assert ran == [0, 1, 2, 12, 13]
    assert reported(b) == [(1, 0, 3, 0), (3, 0, 2, 0)]


def test_what_was_claimed_with_the_message_in_hand_is_run(bench: Make, make_record: Make) -> None:
    ran: list[int] = []
    claimed: list[tuple[int, int] | None] = []

    def handle(message: Any) -> None:
        ran.append(message.queue_offset)
        b.clock.advance_ms(0.004)
        if message.queue_offset == 11:
            claimed.append(take_back(b.cell, 2, lambda: True))

    b = bench(handle)
    b.worker.offer_back()
    b.chunk([make_record(offset=n) for n in range(10)], 1)
    b.chunk([make_record(offset=n) for n in range(10, 20)], 2)
    b.steps(4)
    assert claimed == [(0, 5)]  # 20 µs of work
    assert ran == list(range(15))
    assert reported(b) == [(1, 0, 10, 0), (2, 0, 5, 0)]


def test_a_batch_is_one_claim(bench: Make, make_record: Make) -> None:
    ran: list[list[int]] = []

    @handler(batch=True)
    def handle(messages: Any) -> None:
        ran.append([message.queue_offset for message in messages])
        if len(ran) == 2:
            assert take_back(b.cell, 1, lambda: True) == (0, 6)

    b = bench(handle, bounds=WorkerBounds(batch_messages_max=3))
    b.worker.offer_back()
    b.chunk([make_record(offset=n) for n in range(10)], 1)
    b.steps(3)
    assert ran == [[0, 1, 2], [3, 4, 5]]
    assert sum(records for _, _, records, _ in reported(b)) == 6


def test_what_the_filter_has_not_looked_at_is_left(bench: Make, make_record: Make) -> None:
    """Each record is claimed before the user's filter looks at it: it may stop there, as in the handler."""
    ran: list[list[int]] = []
    asked: list[int] = []

    def wants(message: Any) -> bool:
        asked.append(message.queue_offset)
        if message.queue_offset == 5:
            assert take_back(b.cell, 2, lambda: True) == (1, 6)
        return bool(message.queue_offset != 4)

    @handler(batch=True, filter=wants)
    def handle(messages: Any) -> None:
        ran.append([message.queue_offset for message in messages])

    b = bench(handle, bounds=WorkerBounds(batch_messages_max=3))
    b.worker.offer_back()
    b.chunk([make_record(offset=n) for n in range(10)], 1)
    b.chunk([make_record(offset=n) for n in range(10, 14)], 2)
    b.chunk([make_record(offset=n) for n in range(14, 16)], 3)
    b.steps(5)
    assert asked == [0, 1, 2, 3, 4, 5, 14, 15]
    assert ran == [[0, 1, 2], [3, 5], [14, 15]]
    assert reported(b) == [(1, 0, 6, 0), (3, 0, 2, 0)]


def test_a_chunk_that_cannot_be_read_is_not_reported_once_it_was_taken_back(bench: Make, make_record: Make) -> None:
    def handle(message: Any) -> None:
        del message
        assert take_back(b.cell, 2, lambda: True) == (1, 1)

    b = bench(handle)
    b.worker.offer_back()
    b.chunk([make_record()], 1)
    b.chunk([b"nonsense" * 20], 2)
    b.steps(4)
    assert reported(b) == [(1, 0, 1, 0)]


def test_a_worker_that_does_not_offer_it_runs_all(bench: Make, make_record: Make) -> None:
    ran: list[int] = []

    def handle(message: Any) -> None:
        ran.append(message.queue_offset)
        assert take_back(b.cell, 1, lambda: True) is None

    b = bench(handle)
    b.chunk([make_record(offset=n) for n in range(4)], 1)
    b.steps(3)
    assert ran == [0, 1, 2, 3]
