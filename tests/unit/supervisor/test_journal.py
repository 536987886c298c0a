"""The journal: what is written is read, what is torn or damaged ends the replay, a reset makes it forget."""

from __future__ import annotations

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketcrew.durable.intervals import Intervals
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.supervisor.core.actions import (
    Commit,
    Heartbeat,
    JournalCommitted,
    JournalDone,
    JournalGoesOn,
    JournalLost,
    JournalSealed,
    Pull,
    forgotten,
)
from rocketcrew.supervisor.core.journal import (
    MAGIC,
    Entry,
    JournalEncoder,
    JournalError,
    JournalRun,
    JournalSent,
    JournalState,
    entries_of,
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
    st.builds(
        lambda mq, start, size, at: JournalCommitted(mq, start, start + size, at),
        st.sampled_from([A, B]), OFFSETS, OFFSETS, st.integers(0, 2),
    ),
    st.builds(JournalCommitted, st.sampled_from([A, B]), st.just(-1), st.just(-1), st.integers(1, 2)),
    st.builds(JournalGoesOn, st.sampled_from([A, B]), st.integers(1, 2)),
    st.builds(JournalSent, st.sampled_from([A, B]), OFFSETS),
    st.builds(JournalRun, st.sampled_from([A, B]), st.just("w1")),
    st.builds(JournalRun, st.none(), st.sampled_from(["", "w1"])),
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
        b"\x00",
        b"\x03",
        struct.pack("<BIqqII", 3, 7, 0, 1, 0, 0),
        struct.pack("<BII", 4, 9, 1),
        struct.pack("<BIH", 1, 1, 2) + b"[]",
        struct.pack("<BIH", 1, 1, 2) + b"\xff\xff",
    ],
)
def test_a_whole_block_that_means_nothing_is_refused_in_words(payload: bytes) -> None:
    data = MAGIC + struct.pack("<II", len(payload), zlib.crc32(payload)) + payload
    with pytest.raises(JournalError, match=r"j is damaged at byte 4 .*move it away"):
        replay(data, "j")


def test_nothing_is_written_for_nothing() -> None:
    assert JournalEncoder().blocks([]) == b""


# --- meaning ----------------------------------------------------------------------------------------------------


def test_rows_count_when_their_segment_is_sealed_or_found() -> None:
    state = _applied([[JournalCommitted(A, 0, 10), JournalDone(A, 12, 15, "w1", 1), JournalDone(A, 15, 16, "w2", 1)]])
    assert state.recovered() == {}
    state.sealed(("w1", 1))
    assert state.recovered() == {A: (10, Intervals([(12, 15)]))}
    assert state.begin_run("w8") == 1
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
    """Of a queue that both know, and nobody knows when it was opened, the journal with the higher offset counts."""
    mine = _applied([[JournalCommitted(A, 0, 10), JournalDone(A, 12, 14, "", 0), JournalDone(A, 30, 31, "w1", 1)]])
    other = _applied([[
        JournalCommitted(A, 5, 13), JournalDone(A, 20, 22, "", 0), JournalDone(B, 4, 5, "", 0),
        JournalDone(A, 31, 32, "w9", 1), JournalSent(A, 14),
    ]])  # fmt: skip
    for _ in range(2):  # a take-over may be cut short, and repeated
        mine.merge(other)
        assert mine.recovered() == {A: (13, Intervals([(20, 22)])), B: (0, Intervals([(4, 5)]))}
        assert mine.sent() == {A: 14, B: 0}
        assert mine.queues[A].start == 5
    mine.sealed(("w1", 1))
    mine.sealed(("w9", 1))
    assert mine.recovered()[A] == (13, Intervals([(20, 22), (31, 32)]))
    assert other.pending.keys() == {("w9", 1)}, "it is a copy"


def _killed_at(committed: int, start: int, end: int, worker_id: str) -> JournalState:
    """A slot whose member was killed when it had finished that above the offset, of it the last with rows."""
    return _applied([[
        JournalCommitted(A, 0, committed), JournalDone(A, start, end - 1, "", 0), JournalDone(A, end - 1, end, worker_id, 1),
    ]])  # fmt: skip


@pytest.mark.parametrize("committed", [40, 60])
def test_the_journal_of_a_slot_that_was_dead_during_a_reset_makes_nobody_skip(committed: int) -> None:
    """It was killed at 40 or 60. Ours was at 100, met a reset, and is at 60."""
    ours = _applied([[JournalCommitted(A, 0, 100), JournalCommitted(A, 0, 0), JournalCommitted(A, 0, 60)]])
    ours.merge(_killed_at(committed, 61, 100, "w1"))
    ours.join([("w1", 1, [(A, [(99, 100)])])], ())  # its open segment is ours now
    assert ours.recovered() == {}


@given(st.permutations([(40, 61, 100), (60, 62, 70), (80, 90, 95)]))
def test_it_makes_no_difference_in_which_order_dead_slots_are_taken_over(slots: list[tuple[int, int, int]]) -> None:
    state = JournalState()
    for committed, start, end in slots:
        state.merge(_killed_at(committed, start, end, f"w{committed}"))
    assert state.recovered() == {A: (80, Intervals([(90, 94)]))}
    assert state.pending.keys() == {("w80", 1)}


_OLD: list[Entry] = [JournalCommitted(A, 0, 0, 1), JournalCommitted(A, 0, 200), JournalDone(A, 300, 310, "", 0)]
_LATER: dict[str, list[Entry]] = {
    "a slow head": [JournalCommitted(A, 200, 200, 2), JournalDone(A, 201, 5000, "", 0)],
    "began before the last commit there": [JournalCommitted(A, 150, 150, 2), JournalDone(A, 201, 5000, "", 0)],
    "met a reset": [JournalCommitted(A, 0, 0, 2), JournalCommitted(A, 0, 5), JournalDone(A, 201, 5000, "", 0)],
}


@pytest.mark.parametrize("later", _LATER)
def test_the_journal_that_opened_a_queue_later_counts_whatever_is_committed(later: str) -> None:
    old, new = _applied([_OLD]), _applied([_LATER[later]])
    for mine, other in ((old, new), (new, old)):
        state = replay(snapshot(mine)[0], "j")[0]
        state.merge(replay(snapshot(other)[0], "j")[0])
        assert state.recovered()[A][1] == Intervals([(201, 5000)])
        assert state.queues[A].opened_ms == 2


def test_what_was_forgotten_in_the_later_journal_is_not_known_by_the_older_one() -> None:
    entries: list[Entry] = [JournalCommitted(A, 400, 400, 2), JournalDone(A, 410, 420, "", 0), forgotten(A)]
    state = _applied([entries])
    state = replay(snapshot(state)[0], "j")[0]
    state.merge(_applied([_OLD]))
    assert state.recovered() == {}


def _killed(run: str, *entries: Entry) -> JournalState:
    return _applied([[JournalRun(None, run), *entries]])


def _join_both(state: JournalState) -> JournalState:
    """Each run has left an open segment that holds more than was reported. A start killed before it joined them tells the
    next one all that it knew."""
    state = replay(snapshot(state)[0], "j")[0]
    state.join([(f"{run}.1", 4, [(A, [(62, 75)]), (B, [(6, 8)])]) for run in ("v", "w")], ())
    return state


def test_of_an_open_segment_counts_what_was_not_reported_where_its_run_opened_the_queue() -> None:
    """Of a queue that two journals know one run's records are from before those that count. One that has no journal any
    more, or one that a loss of power cut off, says nothing of any queue."""
    v = _killed("v", JournalCommitted(A, 0, 0, 1), JournalCommitted(A, 0, 10), JournalDone(A, 62, 63, "v.1", 4))
    w = _killed("w", JournalCommitted(A, 60, 60, 2), JournalDone(A, 66, 67, "w.1", 4), JournalCommitted(B, 5, 5, 2))
    for mine, other in ((v, w), (w, v)):
        state = replay(snapshot(mine)[0], "j")[0]
        state.merge(other)
        assert _join_both(state).recovered() == {A: (60, Intervals([(62, 75)])), B: (5, Intervals([(6, 8)]))}
    assert _join_both(v).recovered() == {A: (10, Intervals([(62, 75)]))}
    for gone in (JournalState(), _killed("w")):
        gone.merge(v)
        gone.apply(JournalCommitted(B, 0, 5))
        assert _join_both(gone).recovered() == {A: (10, Intervals([(62, 75)]))}
    later = _killed("u", JournalCommitted(A, 61, 61, 3))
    later.merge(w)
    assert _join_both(later).recovered() == {B: (5, Intervals([(6, 8)]))}


@pytest.mark.parametrize("to", [0, 200])
def test_of_a_queue_that_was_reset_no_open_segment_of_the_same_run_counts(to: int) -> None:
    """It was reported and taken back, and its worker, in a long call since, has not sealed it. The next run begins anew."""
    reported = JournalDone(A, 155, 160, "w.1", 4)
    state = _killed("w", JournalCommitted(A, 100, 100, 1), reported, forgotten(A), JournalCommitted(A, to, to, 2))
    state.join([("w.1", 4, [(A, [(255, 262)])])], ())
    assert state.recovered() == {}
    assert state.begin_run("u") == 0
    state.apply(JournalCommitted(A, to, to, 3))
    state.join([("u.1", 1, [(A, [(255, 262)])])], ())
    assert state.recovered() == {A: (to, Intervals([(255, 262)]))}


def test_an_opening_is_later_than_the_one_before_it_whatever_the_clock_says() -> None:
    """Else a dead slot that opened the queue in between would count."""
    state = _applied([[JournalCommitted(A, 0, 0, 9_000), JournalCommitted(A, 0, 0, 2_000)]])
    state.merge(_applied([[JournalCommitted(A, 0, 0, 8_000), JournalDone(A, 5, 9, "", 0)]]))
    assert state.recovered() == {}


def test_an_offset_that_goes_back_and_takes_nothing_back_need_not_be_on_the_disk() -> None:
    """At a start no run has opened the queue, so no segment can bring anything back either. Where one has, it waits."""
    for entries, waits in (
        ([], False),
        ([JournalDone(A, 70, 80, "", 0)], True),
        ([JournalDone(A, 70, 80, "w.1", 1)], True),
        ([JournalCommitted(A, 50, 50, 1)], True),
    ):
        state = _killed("w", JournalRun(None, ""), JournalCommitted(A, 50, 50), JournalRun(None, "w"), *entries)
        assert state.apply(forgotten(A)) is waits


# --- offsets that were sent -------------------------------------------------------------------------------------


def test_an_offset_is_noted_before_it_is_sent_but_not_where_a_queue_was_moved_to() -> None:
    """Pulls carry offsets, too."""
    done, commit = JournalDone(A, 3, 5, "", 0), Commit(1, A, 5, guarded=True)
    moves, pull = Commit(1, A, 900, guarded=False, moves=True), Pull(1, B, 40, 30)
    first, second, third = entries_of([commit, Heartbeat(), moves, done, pull, Pull(1, A, 40, 0)])
    assert isinstance(first, JournalSent)
    assert isinstance(third, JournalSent)
    assert (first.mq, first.offset, second, third.mq, third.offset) == (A, 5, done, B, 30)


def test_what_is_finished_up_to_an_offset_says_that_it_may_be_sent() -> None:
    """So a pull writes nothing, most of the time: only where nothing of ours was below, as with a filter."""
    state = _applied([[JournalCommitted(A, 0, 10), JournalDone(A, 10, 15, "", 0), JournalDone(A, 20, 22, "w1", 1)]])
    assert [state.is_known(JournalSent(A, offset)) for offset in (10, 15, 16, 22)] == [True, True, False, False]
    assert state.sent() == {A: 15}
    state.apply(JournalSent(A, 20))
    state.apply(JournalCommitted(A, 0, 14))  # the answer to a commit, beside which a pull has carried the 20
    assert (state.is_known(JournalSent(A, 20)), state.sent()) == (True, {A: 20})
    state.sealed(("w1", 1))
    assert state.sent() == {A: 22}, "20 had been sent: everything to 20 is finished"
    assert not state.is_known(JournalSent(B, 1))
    assert not state.is_known(JournalSealed("w1", 1))


def test_what_was_sent_is_known_until_it_is_confirmed_or_reset() -> None:
    blocks: list[list[Entry]] = [
        [JournalCommitted(A, 0, 10), JournalSent(A, 20), JournalSent(A, 15), JournalDone(A, 30, 31, "", 0)]
    ]
    assert replay(_file(blocks), "j")[0].sent() == replay(snapshot(_applied(blocks))[0], "j")[0].sent() == {A: 20}
    assert _applied([*blocks, [JournalCommitted(A, 0, 20)]]).sent() == {A: 20}
    assert _applied([*blocks, [JournalCommitted(A, 5, 5), JournalDone(A, 30, 31, "", 0)]]).sent() == {A: 5}


def test_of_a_salvaged_segment_only_the_records_found_in_it_count() -> None:
    """After a loss of power its file may hold less than was reported."""
    state = _killed("w", JournalCommitted(A, 0, 0), JournalCommitted(A, 0, 10), JournalDone(A, 12, 20, "w.1", 1))
    state.join([("w.1", 1, [(A, [(9, 11), (12, 15), (25, 26)])])], ())
    assert state.recovered() == {A: (10, Intervals([(10, 11), (12, 15), (25, 26)]))}
    assert state.begin_run("w8") == 0


def test_of_a_queue_that_was_forgotten_an_open_segment_does_not_count() -> None:
    """What its worker had not reported is from before the reset. And what is there all the same can be forgotten."""
    state = _applied([[JournalCommitted(A, 0, 10), JournalDone(A, 12, 20, "w1", 1), forgotten(A)]])
    state.join([("w1", 1, [(A, [(12, 25)])])], ())
    assert state.recovered() == {}
    state.apply(JournalDone(A, 12, 20, "", 0))
    assert state.apply(forgotten(A))
    assert state.recovered() == {}


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
    assert state.begin_run("w8") == 0


@pytest.mark.parametrize("sealed", [(), {("w1", 1)}])
def test_of_a_segment_that_is_gone_nothing_counts(sealed: set[tuple[str, int]]) -> None:
    """The loader has taken it, but nobody knows how much it held."""
    state = _applied([[JournalCommitted(A, 0, 10), JournalDone(A, 12, 20, "w1", 1)]])
    state.join([("w1", 1, [])], sealed)
    assert state.recovered() == {}
    assert state.begin_run("w8") == 1
