"""A claimed record runs in its worker, a reclaimed one does not, in whatever order the two sides act."""

from __future__ import annotations

import mmap
import os
import random
from typing import Any

import pytest

from rocketcrew.workers.cells import ANSWERED, ASKED, CLAIM, GIVEN, CellView, private_cell
from rocketcrew.workers.claims import (
    CAREFUL_RECORDS,
    LONG_NS,
    RECORD_BITS,
    STRIDE_MAX,
    Claims,
    find_barrier,
    obey_barriers,
    take_back,
)


def made() -> tuple[CellView, Claims]:
    cell = private_cell()
    claims = Claims(cell, wait=lambda _: pytest.fail("it waits for an answer that never comes"))
    claims.offer()
    return cell, claims


def nothing() -> bool:
    """A barrier in one thread."""
    return True


def test_what_is_not_claimed_is_taken_back_and_the_worker_stops_there() -> None:
    cell, claims = made()
    assert claims.handed()
    assert claims.claim(3)
    assert take_back(cell, 2, nothing) == (1, 3)
    assert not claims.claim(6)
    assert not claims.handed()  # the second chunk, too
    assert claims.handed()  # the third came later
    assert claims.mine()
    assert claims.claim(1)


def test_a_chunk_that_is_finished_is_followed_by_none_that_was_taken_back() -> None:
    cell, claims = made()
    claims.handed()
    claims.claim(3)
    take_back(cell, 2, nothing)
    assert claims.handed()  # it does not know yet
    assert not claims.mine()
    assert claims.handed()
    assert claims.claim(1)


def test_who_goes_on_in_that_moment_keeps_everything() -> None:
    cell, claims = made()
    claims.handed()
    claims.claim(3)

    def goes_on() -> bool:
        cell[CLAIM] = 1 << RECORD_BITS | 6
        return True

    assert take_back(cell, 2, goes_on) is None
    assert claims.claim(6)
    assert claims.handed()
    assert claims.claim(1)


def test_without_its_barrier_nothing_is_taken() -> None:
    cell, claims = made()
    claims.handed()
    claims.claim(3)
    assert take_back(cell, 2, lambda: False) is None
    assert claims.claim(6)


def test_a_worker_that_meets_a_request_waits_for_the_verdict() -> None:
    cell, waits = private_cell(), list[float]()

    def verdict_comes(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            cell[GIVEN], cell[ANSWERED] = 1, cell[ASKED]

    claims = Claims(cell, verdict_comes)
    claims.offer()
    claims.handed()
    claims.claim(3)
    cell[ASKED] += 1
    assert not claims.claim(4)
    assert len(waits) == 3


def test_nothing_is_asked_twice_before_something_more_was_handed_over() -> None:
    cell, claims = made()
    claims.handed()
    claims.claim(3)
    assert take_back(cell, 1, nothing) == (0, 3)
    assert take_back(cell, 1, nothing) is None
    assert take_back(cell, 3, nothing) == (2, 0)  # it stands where it stood
    assert not claims.claim(6)
    assert [claims.handed() for _ in range(3)] == [False, False, True]


def test_a_claim_that_the_supervisor_has_seen_is_run_although_the_worker_did_not_look_yet() -> None:
    cell, claims = made()
    claims.handed()
    claims.claim(3)
    cell[CLAIM] = 1 << RECORD_BITS | 6  # and is put to sleep
    assert take_back(cell, 2, nothing) == (1, 6)
    assert claims.claim(6)  # it wakes up
    assert not claims.claim(7)
    assert not claims.handed()


def test_a_claim_of_what_was_taken_back_counts_for_nothing() -> None:
    cell, claims = made()
    claims.handed()
    claims.claim(3)
    assert claims.handed()
    assert claims.mine()
    assert take_back(cell, 2, nothing) == (1, 3)
    cell[CLAIM] = 2 << RECORD_BITS | 1  # it did not know, and is put to sleep
    assert take_back(cell, 3, nothing) == (1, 0)
    assert not claims.claim(1)
    assert not claims.handed()


def test_an_answer_that_was_missed_stands_in_the_next_one() -> None:
    cell, claims = made()
    claims.handed()
    claims.claim(3)
    assert take_back(cell, 2, nothing) == (1, 3)
    assert take_back(cell, 3, lambda: False) is None  # void
    assert not claims.claim(6)
    assert not claims.handed()
    assert claims.handed()
    assert claims.claim(1)


def test_who_has_begun_nothing_gives_everything_back() -> None:
    cell, claims = made()
    assert take_back(cell, 2, nothing) == (2, 0)
    assert claims.handed()
    assert not claims.claim(1)


def test_a_worker_that_does_not_offer_it_is_left_alone() -> None:
    assert take_back(private_cell(), 1, nothing) is None


def test_the_stride_is_some_time_of_work_and_one_after_a_long_call() -> None:
    _, claims = made()
    assert claims.stride == 1
    claims.ran(10, 20_000, 4_000)  # 2 µs each
    assert claims.stride == 10
    claims.ran(64, 0, 0)
    assert claims.stride == STRIDE_MAX
    claims.ran(64, 64_000_000, 1_000_000)
    assert claims.stride == 1
    claims.ran(64, 64_000 + LONG_NS, LONG_NS)
    claims.ran(CAREFUL_RECORDS - 1, 1000, 1)
    assert claims.stride == 1
    claims.ran(1, 1000, 1)
    claims.ran(64, 64_000, 1_000)
    assert claims.stride == 20


RECORDS = 7
CHUNKS = 1_500
HANDED, RAN = 128, 256
"""Places in the shared memory: a word after the cell, and a byte a record."""


def _work(memory: mmap.mmap, words: Any) -> None:
    claims, lot = Claims(words, lambda _: None), random.Random(2)
    claims.offer()
    for chunk in range(1, CHUNKS + 1):
        while words[HANDED] < chunk:
            os.sched_yield()
        if not claims.handed() or not claims.mine():
            continue
        for index in range(0, RECORDS, 2):
            end = min(index + 2, RECORDS)
            if not lot.randrange(20):
                words[CLAIM] = chunk << RECORD_BITS | end
                for _ in range(lot.randrange(20)):
                    os.sched_yield()  # asleep between its claim and its look
            if not claims.claim(end):
                break
            for record in range(chunk * RECORDS + index, chunk * RECORDS + end):
                memory[RAN * 8 + record] += 1


@pytest.mark.skipif(find_barrier() is None, reason="this system has no membarrier")
def test_two_processes_agree_about_each_record() -> None:
    """One runs chunks, the other hands them out and takes back, as fast as both can: each record is one's or the other's."""
    barrier = find_barrier()
    assert barrier is not None
    memory = mmap.mmap(-1, RAN * 8 + (CHUNKS + 1) * RECORDS)
    words = memoryview(memory)[: RAN * 8].cast("Q")
    child = os.fork()
    if not child:
        try:
            assert obey_barriers()
            _work(memory, words)
        finally:
            os._exit(0)
    taken, lot = bytearray((CHUNKS + 1) * RECORDS), random.Random(1)
    handed = done = takes = 0
    while handed < CHUNKS:
        before = words[CLAIM]
        handed = words[HANDED] = min(CHUNKS, handed + lot.randrange(1, 4))
        while words[CLAIM] == before:
            os.sched_yield()
        for _ in range(lot.randrange(100)):
            pass
        found = take_back(words, handed, barrier)
        if found is not None:
            takes += 1
            unbegun, claimed = found
            first = (handed - unbegun) * RECORDS + claimed if claimed else done
            for record in range(max(first, done), (handed + 1) * RECORDS):
                taken[record] += 1
            done = (handed + 1) * RECORDS
    _, status = os.waitpid(child, 0)
    assert status == 0
    assert takes > 10
    ran = memory[RAN * 8 :]
    assert [record for record in range(RECORDS, len(taken)) if ran[record] + taken[record] != 1] == []
