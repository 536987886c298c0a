"""The list that a batch handler gets: it notes in the cell which message the handler takes, where it takes them one by one.

A worker that dies in `for message in messages:` was most likely working on the message taken last. It is only most likely
(a handler may collect a few before it works on them), so the rest of the batch is looked at too, see quarantine.py. An
iteration that came to its end says nothing about who is worked on, and is noted as such.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Any, SupportsIndex

from .cells import TAKEN, CellView
from .message import Message


class OneByOne(list[Message]):
    """A list of messages; `offsets` are the queue offsets of their records."""

    def __init__(self, messages: Sequence[Message], offsets: Sequence[int], cell: CellView) -> None:
        super().__init__(messages)
        self._offsets = offsets
        self._cell = cell

    def __iter__(self) -> Iterator[Message]:
        cell = self._cell
        for message, offset in zip(super().__iter__(), self._offsets, strict=False):
            cell[TAKEN] = offset + 1
            yield message
        cell[TAKEN] = 0

    def __getitem__(self, index: SupportsIndex | slice, /) -> Any:
        found = super().__getitem__(index)
        if not isinstance(index, slice) and len(self) == len(self._offsets):
            self._cell[TAKEN] = self._offsets[operator.index(index)] + 1
        return found

    def __reduce__(self) -> tuple[type[list[Message]], tuple[list[Message]]]:
        """A handler may hand it to another process: there it is a plain list."""
        return list, (super().copy(),)
