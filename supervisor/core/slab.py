"""The byte budget for pulled bodies: a pure allocator over one block of memory that only the supervisor writes.

The block is never smaller than two of the largest frames (`SLAB_BYTES_MIN`), so that every message fits when it comes
alone. It is cut into units of 16 KiB; a slot is a run of adjacent units and is counted by references: the part of a pull
that waits to be dispatched holds one, every chunk cut from it holds one. A slot is free when the last is given back, so
a slice that a worker may still read is never written again.

Nothing is ever moved. When bytes run short, a slot of which only a part is still held gives its other units back (`trim`,
pulling.py), so that one slow message holds up its own units and not those of its whole pull.

A pull reserves its bytes before it is sent. What the reservation did not foresee (a larger body, a fragmented slab) may
use a small overflow that reservations never touch; beyond that a body is read and dropped, and pulled again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from itertools import groupby

UNIT_BYTES = 16 * 1024
"""One unit. A default pull of 32 messages of 1 KiB is about 39 KiB: 3 units, 20 % lost to rounding."""

SLAB_BYTES_MIN = 32 * 1024 * 1024
"""Two frames of the protocol's maximum of 16 MiB (docs/protocol.md)."""


class Slot:
    """A run of units of the slab; `start` in bytes. `pieces`: (first unit, units) of what is left of it."""

    __slots__ = ("length_bytes", "pieces", "refs", "start", "units")

    def __init__(self, start: int, units: int, length_bytes: int) -> None:
        self.start = start
        self.units = units
        self.length_bytes = length_bytes
        self.refs = 1
        self.pieces = [(start // UNIT_BYTES, units)]


class Slab:
    """First-fit allocation with merging of neighbours; all figures in bytes, rounded to units."""

    def __init__(self, size_bytes: int) -> None:
        self.units = size_bytes // UNIT_BYTES
        self._free: list[tuple[int, int]] = [(0, self.units)]
        self.used_units = 0
        self.reserved_units = 0
        self.overflow_units = self.units // 8
        self.peak_units = 0
        self.worn = False
        """A slot of several units has lost a reference since the last look: a trim may bring something."""

    @property
    def size_bytes(self) -> int:
        return self.units * UNIT_BYTES

    def reserve(self, length_bytes: int) -> int:
        """Set `length_bytes` aside for a pull; the units reserved, or 0 when there is no room now."""
        units = -(-length_bytes // UNIT_BYTES)
        if self.used_units + self.reserved_units + units > self.units - self.overflow_units:
            # One pull alone may always go: otherwise a budget below one reservation would never move.
            if self.used_units or self.reserved_units:
                return 0
            units = min(units, self.units)
        self.reserved_units += units
        return units

    def unreserve(self, units: int) -> None:
        self.reserved_units -= units
        assert self.reserved_units >= 0, "a reservation was given back twice"

    def take(self, length_bytes: int) -> Slot | None:
        """A slot of at least `length_bytes`, with one reference; None when no free run is long enough."""
        units = -(-length_bytes // UNIT_BYTES)
        for index, (start, run) in enumerate(self._free):
            if run >= units:
                if run == units:
                    del self._free[index]
                else:
                    self._free[index] = (start + units, run - units)
                self.used_units += units
                self.peak_units = max(self.peak_units, self.used_units)
                return Slot(start * UNIT_BYTES, units, length_bytes)
        return None

    def release(self, slot: Slot) -> bool:
        """Give one reference back; True when that freed the slot."""
        slot.refs -= 1
        assert slot.refs >= 0, "a slot was given back twice"
        if slot.refs:
            self.worn = self.worn or slot.units > 1
            return False
        self.used_units -= slot.units
        for start, units in slot.pieces:
            self._put_back(start, units)
        return True

    def trim(self, slot: Slot, held: Iterable[tuple[int, int]]) -> int:
        """Give back the units of the slot that none of the byte ranges `held` touches; how many that were."""
        wanted = {
            unit for start, end in held if end > start for unit in range(start // UNIT_BYTES, -(-end // UNIT_BYTES))
        }
        pieces: list[tuple[int, int]] = []
        freed = 0
        for start, units in slot.pieces:
            for kept, run in groupby(range(start, start + units), wanted.__contains__):
                first, *more = run
                if kept:
                    pieces.append((first, 1 + len(more)))
                else:
                    self._put_back(first, 1 + len(more))
                    freed += 1 + len(more)
        slot.pieces = pieces
        slot.units -= freed
        self.used_units -= freed
        return freed

    def longest_free(self) -> int:
        """Units of the longest free run."""
        return max((units for _, units in self._free), default=0)

    def _put_back(self, start: int, units: int) -> None:
        free = self._free
        at = after = bisect_left(free, (start, 0))
        end = start + units
        if after < len(free) and free[after][0] == end:
            end += free[after][1]
            after += 1
        if at and sum(free[at - 1]) == start:
            at -= 1
            start = free[at][0]
        free[at:after] = [(start, end - start)]
