"""Giving back the parts of slots that nobody needs any more, when bytes run short.

A pull's body is one slot, and chunks of it finish at different times: a message that takes minutes would hold all of what
was pulled with it. Whoever still needs bytes is either a pull run that waits, or a chunk that a worker may read or whose
failed messages are to be sent back. A slot all of whose references are found this way is cut down to their units; one
with a reference that is not found (a body that is just being received) is left alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from .chunks import Chunk
from .slab import Slot
from .state import State


def trim(state: State) -> int:
    """Cut down every slot that can be; the units that came free."""
    state.slab.worn = False
    held: dict[Slot, list[tuple[int, int]]] = {}
    for slot, start, end in chain(_waiting(state), _in_use(state)):
        if slot.units > 1:
            held.setdefault(slot, []).append((start, end))
    freed = sum(state.slab.trim(slot, ranges) for slot, ranges in held.items() if len(ranges) == slot.refs)
    state.counters.trimmed_units += freed
    return freed


def _waiting(state: State) -> Iterator[tuple[Slot, int, int]]:
    for pq in state.queues.values():
        for run in pq.waiting:
            yield run.slot, run.positions[run.at], run.positions[run.end]


def _in_use(state: State) -> Iterator[tuple[Slot, int, int]]:
    chunks: dict[int, Chunk] = {}
    queues = (pq.open.values() for pq in state.queues.values())
    for chunk in chain(state.chunks.values(), state.redo, state.quarantine, *queues):
        chunks[id(chunk)] = chunk
    for chunk in chunks.values():
        if chunk.held:
            yield chunk.slot, chunk.positions[0], chunk.positions[-1]
