"""The journal: what is written is read, what is torn or damaged ends the replay, a reset makes it forget."""

from __future__ import annotations

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketcrew.durable.intervals import Intervals
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.supervisor.core.actions import JournalCommitted, JournalDone, JournalLost, JournalSealed
from rocketcrew.supervisor.core.journal import (
    MAGIC,
    Entry,
    JournalEncoder,
    JournalError,
    JournalState,
    replay,
    snapshot,
)

A, B = MessageQueue("orders", "broker-a", 0), MessageQueue("%RETRY%g", "broker-ä", 1)
OFFSETS = st.integers(0, 60)
ENTRIES: st.SearchStrategy[Entry] = st.one_of(
    st.builds(
        lambda mq, start, size, worker, seq: JournalDone(mq, start, start + size, worker if seq else "", seq),
        st.sampled_from([A, B]), OFFSETS, st.integers(1, 5), st.sampled_from(["w1", "w2"]), st.integers(0, 2),
    ),
    st.builds(JournalSealed, st.sampled_from(["w1", "w2"]), st.integers(1, 2)),
    st.builds(lambda mq, start, size: JournalCommitted(mq, start, start + size), st.sampled_from([A, B]), OFFSETS, OFFSETS),
)  # fmt: skip
BLOCKS = st.lists(st.lists(ENTRIES, max_size=5), max_size=8)


def _applied(blocks: list[list[Entry]]) -> JournalState:
    state = JournalState()
    for block in blocks:
        for entry in block:
            state.apply(entry)
    return state


def _file(blocks: list[list[Entry]]) -> bytes:
    encoder = JournalEncoder()
    return MAGIC + b"".join(encoder.blocks(block) for block in blocks)


@given(BLOCKS)
def test_what_is_written_is_read(blocks: list[list[Entry]]) -> None:
    data = _file(blocks)
    assert replay(data, "j") == (_applied(blocks), len(data))


@given(BLOCKS, BLOCKS)
def test_a_snapshot_holds_the_state_and_its_encoder_goes_on(
    before: list[list[Entry]], after: list[list[Entry]]
) -> None:
    data, encoder = snapshot(_applied(before))
    assert replay(data, "j")[0] == _applied(before)
    data += b"".join(encoder.blocks(block) for block in after)
    assert replay(data, "j")[0] == _applied(before + after)


BLOCKS_3: list[list[Entry]] = [
    [JournalCommitted(A, 5, 10), JournalDone(A, 12, 14, "", 0)],
    [JournalDone(A, 15, 20, "w1", 1), JournalDone(B, 0, 3, "w1", 1)],
    [JournalSealed("w1", 1)],
]


def test_what_waited_for_a_lost_segment_waits_no_longer_and_the_file_says_nothing_of_that() -> None:
    lost: Entry = JournalLost("w1", 1)
    state = _applied([*BLOCKS_3[:2], [lost]])
    assert state.pending == {}
    assert state.queues == _applied(BLOCKS_3[:2]).queues
    assert snapshot(JournalState())[1].blocks([lost]) == b""


def test_a_tear_at_any_byte_leaves_the_whole_blocks_before_it() -> None:
    data = _file(BLOCKS_3)
    ends = [len(_file(BLOCKS_3[:count])) for count in range(4)]
    for cut in range(len(data) + 1):
        whole = max((n for n, end in enumerate(ends) if end <= cut), default=0)
        state, length = replay(data[:cut], "j")
        assert state == _applied(BLOCKS_3[:whole])
        assert length == (ends[whole] if cut >= len(MAGIC) else 0)


def test_a_damaged_byte_ends_the_replay_before_its_block() -> None:
    data = _file(BLOCKS_3)
    ends = [len(_file(BLOCKS_3[:count])) for count in range(4)]
    for at in range(len(MAGIC), len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 0x40
        whole = sum(end <= at for end in ends[1:])
        assert replay(bytes(damaged), "j") == (_applied(BLOCKS_3[:whole]), ends[whole])


@pytest.mark.parametrize("zeros", [8, 16, 4096])
def test_zeros_between_blocks_end_the_replay(zeros: int) -> None:
    """After a loss of power a page may hold zeros though a later one was written: what follows is not complete. Eight zeros
    are no empty block, though the checksum of nothing is zero."""
    first, rest = _file(BLOCKS_3[:1]), _file(BLOCKS_3)[len(_file(BLOCKS_3[:1])) :]
    for data in (first + bytes(zeros), first + bytes(zeros) + rest):
        assert replay(data, "j") == (_applied(BLOCKS_3[:1]), len(first))


def test_a_file_that_is_no_journal_is_refused_by_name() -> None:
    with pytest.raises(JournalError, match=r"/x/journal is not a rocketcrew journal.*move it away"):
        replay(b"#!/bin/sh\n", "/x/journal")


@pytest.mark.parametrize(
    "payload",
    [
        b"\x63",
        b"\x03",
        struct.pack("<BIqqII", 3, 7, 0, 1, 0, 0),
        struct.pack("<BII", 4, 9, 1),
        struct.pack("<BIH", 1, 1, 2) + b"[]",
        struct.pack("<BIH", 1, 1, 2) + b"\xff\xff",
    ],
)
def test_a_whole_block_that_means_nothing_is_refused_in_words(payload: bytes) -> None:
    data = MAGIC + struct.pack("<II", len(payload), zlib.crc32(payload)) + payload
    with pytest.raises(JournalError, match="j is damaged at byte 4 or written by a newer"):
        replay(data, "j")


def test_nothing_is_written_for_nothing() -> None:
    assert JournalEncoder().blocks([]) == b""


# --- meaning ----------------------------------------------------------------------------------------------------


def test_rows_count_when_their_segment_is_sealed_or_found() -> None:
    state = _applied([[JournalCommitted(A, 0, 10), JournalDone(A, 12, 15, "w1", 1), JournalDone(A, 15, 16, "w2", 1)]])
    assert state.recovered() == {}
    state.sealed(("w1", 1))
    assert state.recovered() == {A: (10, Intervals([(12, 15)]))}
    assert state.forget_pending() == 1
    state.sealed(("w2", 1))
    assert state.recovered() == {A: (10, Intervals([(12, 15)]))}


def test_a_commit_forgets_what_is_below_it_also_when_it_is_sealed_later() -> None:
    state = _applied([[JournalDone(A, 3, 8, "w1", 1), JournalDone(A, 1, 3, "", 0), JournalCommitted(A, 0, 5)]])
    assert state.recovered() == {}
    state.sealed(("w1", 1))
    assert state.recovered() == {A: (5, Intervals([(5, 8)]))}


def test_a_reset_forgets_what_was_finished_sealed_or_not() -> None:
    state = _applied([[
        JournalCommitted(A, 0, 100), JournalDone(A, 105, 110, "", 0), JournalDone(A, 120, 130, "w1", 1),
        JournalDone(B, 1, 2, "w1", 1), JournalDone(A, 130, 131, "w1", 2), JournalCommitted(A, 50, 50),
        JournalDone(A, 52, 53, "", 0), JournalSealed("w1", 1), JournalSealed("w1", 2),
    ]])  # fmt: skip
    assert state.recovered() == {A: (50, Intervals([(52, 53)])), B: (0, Intervals([(1, 2)]))}
    assert state.pending == {}


def test_only_an_offset_that_goes_back_must_be_on_the_disk_at_once() -> None:
    state = JournalState()
    entries = [JournalCommitted(A, 0, 100), JournalDone(A, 105, 110, "", 0), JournalCommitted(A, 50, 50)]
    assert [state.apply(entry) for entry in [*entries, JournalCommitted(A, 60, 60)]] == [False, False, True, False]


def test_an_opening_at_the_same_place_forgets_nothing() -> None:
    state = _applied([[JournalCommitted(A, 0, 100), JournalDone(A, 105, 110, "", 0), JournalCommitted(A, 100, 100)]])
    assert state.recovered() == {A: (100, Intervals([(105, 110)]))}


def test_two_slots_are_joined() -> None:
    mine = _applied([[JournalCommitted(A, 0, 10), JournalDone(A, 12, 14, "", 0), JournalDone(A, 30, 31, "w1", 1)]])
    other = _applied([[
        JournalCommitted(A, 5, 13), JournalDone(A, 20, 22, "", 0), JournalDone(B, 4, 5, "", 0),
        JournalDone(A, 31, 32, "w9", 1),
    ]])  # fmt: skip
    mine.merge(other)
    assert mine.recovered() == {A: (13, Intervals([(13, 14), (20, 22)])), B: (0, Intervals([(4, 5)]))}
    assert mine.queues[A].start == 5
    mine.sealed(("w1", 1))
    mine.sealed(("w9", 1))
    assert mine.recovered()[A] == (13, Intervals([(13, 14), (20, 22), (30, 32)]))


def test_of_a_salvaged_segment_only_the_records_found_in_it_count() -> None:
    """After a loss of power its file may hold less than was reported."""
    state = _applied([[JournalCommitted(A, 0, 10), JournalDone(A, 12, 20, "w1", 1)]])
    state.join([("w1", 1, [(A, [(9, 11), (12, 15), (25, 26)])])], ())
    assert state.recovered() == {A: (10, Intervals([(10, 11), (12, 15), (25, 26)]))}
    assert state.forget_pending() == 0


def test_of_a_sealed_segment_only_the_reported_records_found_in_it_count() -> None:
    """A start that failed may have salvaged it: it lies in ready/ like a whole one. What was not reported may be from
    before a reset."""
    state = _applied([[
        JournalCommitted(A, 0, 10), JournalDone(A, 12, 20, "w1", 1), JournalDone(B, 3, 4, "w1", 1),
        JournalDone(A, 20, 22, "w1", 2),
    ]])  # fmt: skip
    torn, whole = [(A, [(11, 15), (25, 26)])], [(A, [(20, 22)])]
    state.join([("w1", 1, torn), ("w1", 2, whole), ("w1", 1, torn)], {("w1", 1), ("w1", 2)})
    assert state.recovered() == {A: (10, Intervals([(12, 15), (20, 22)]))}
    assert state.forget_pending() == 0


@pytest.mark.parametrize("sealed", [(), {("w1", 1)}])
def test_of_a_segment_that_is_gone_nothing_counts(sealed: set[tuple[str, int]]) -> None:
    """The loader has taken it, but nobody knows how much it held."""
    state = _applied([[JournalCommitted(A, 0, 10), JournalDone(A, 12, 20, "w1", 1)]])
    state.join([("w1", 1, [])], sealed)
    assert state.recovered() == {}
    assert state.forget_pending() == 1
