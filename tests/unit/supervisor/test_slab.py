"""The slab: slots never overlap, the budget holds, everything comes back, reservations keep their part."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rocketcrew.supervisor.core.slab import SLAB_BYTES_MIN, UNIT_BYTES, Slab, Slot

FRAME_MAX = 16 * 1024 * 1024
UNITS = 40


class SlabMachine(RuleBasedStateMachine):
    """Against a naive model: one owner per unit."""

    def __init__(self) -> None:
        super().__init__()
        self.slab = Slab(UNITS * UNIT_BYTES)
        self.owner: dict[int, Slot] = {}
        self.refs: dict[Slot, int] = {}
        self.reserved: list[int] = []

    @rule(length=st.one_of(st.integers(1, 3 * UNIT_BYTES), st.integers(1, UNITS * UNIT_BYTES)))
    def take(self, length: int) -> None:
        slot = self.slab.take(length)
        need = -(-length // UNIT_BYTES)
        if slot is None:
            run = longest = 0
            for unit in range(UNITS):
                run = 0 if unit in self.owner else run + 1
                longest = max(longest, run)
            assert longest < need, "it fits and was refused"
            return
        first = slot.start // UNIT_BYTES
        assert slot.start % UNIT_BYTES == 0 and slot.length_bytes == length and slot.units == need
        for unit in range(first, first + need):
            assert 0 <= unit < UNITS and unit not in self.owner, "slots overlap"
            self.owner[unit] = slot
        self.refs[slot] = 1

    @precondition(lambda self: self.refs)
    @rule(data=st.data())
    def hold(self, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(list(self.refs)))
        slot.refs += 1
        self.refs[slot] += 1

    @precondition(lambda self: self.refs)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(list(self.refs)))
        self.refs[slot] -= 1
        assert self.slab.release(slot) == (self.refs[slot] == 0)
        if not self.refs[slot]:
            del self.refs[slot]
            self.owner = {unit: owner for unit, owner in self.owner.items() if owner is not slot}

    @precondition(lambda self: self.refs)
    @rule(data=st.data())
    def trim(self, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(list(self.refs)))
        places = st.integers(slot.start, slot.start + slot.length_bytes)
        held = [(min(pair), max(pair)) for pair in data.draw(st.lists(st.tuples(places, places), max_size=3))]
        mine = {unit for unit, owner in self.owner.items() if owner is slot}
        kept = {
            unit
            for unit in mine
            if any(start < (unit + 1) * UNIT_BYTES and end > unit * UNIT_BYTES and end > start for start, end in held)
        }
        assert self.slab.trim(slot, held) == len(mine) - len(kept)
        assert slot.units == len(kept)
        for unit in mine - kept:
            del self.owner[unit]

    @rule(length=st.integers(1, 12 * UNIT_BYTES))
    def reserve(self, length: int) -> None:
        units = self.slab.reserve(length)
        if units:
            if len(self.owner) or self.reserved:
                assert len(self.owner) + sum(self.reserved) + units <= UNITS - self.slab.overflow_units
            self.reserved.append(units)
        else:
            assert len(self.owner) or self.reserved, "one pull alone always may go"

    @precondition(lambda self: self.reserved)
    @rule(data=st.data())
    def unreserve(self, data: st.DataObject) -> None:
        self.slab.unreserve(self.reserved.pop(data.draw(st.integers(0, len(self.reserved) - 1))))

    @invariant()
    def counts(self) -> None:
        assert self.slab.used_units == len(self.owner) <= UNITS
        assert self.slab.reserved_units == sum(self.reserved)
        assert self.slab.peak_units >= self.slab.used_units
        run = longest = 0
        for unit in range(UNITS):
            run = 0 if unit in self.owner else run + 1
            longest = max(longest, run)
        assert self.slab.longest_free() == longest

    def teardown(self) -> None:
        for slot, refs in self.refs.items():
            for _ in range(refs):
                self.slab.release(slot)
        assert self.slab.used_units == 0
        whole = self.slab.take(UNITS * UNIT_BYTES)
        assert whole is not None and whole.start == 0, "free runs were not joined again"


TestSlab = SlabMachine.TestCase
TestSlab.settings = settings(max_examples=60, stateful_step_count=60)


def test_every_message_fits_when_it_comes_alone() -> None:
    slab = Slab(SLAB_BYTES_MIN)
    assert slab.reserve(FRAME_MAX)
    assert slab.take(FRAME_MAX) is not None


def test_a_size_that_is_no_multiple_of_a_unit_is_rounded_down() -> None:
    assert Slab(3 * UNIT_BYTES - 1).size_bytes == 2 * UNIT_BYTES


def test_giving_back_twice_is_noticed() -> None:
    slab = Slab(4 * UNIT_BYTES)
    slot = slab.take(1)
    assert slot is not None
    slab.release(slot)
    with pytest.raises(AssertionError, match="slot was given back twice"):
        slab.release(slot)
    with pytest.raises(AssertionError, match="reservation was given back twice"):
        slab.unreserve(1)
