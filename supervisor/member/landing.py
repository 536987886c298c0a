"""Where the body of one pull or pop lands: a slot that the core gives when its length is known, or nowhere."""

from __future__ import annotations

from ...remoting.command import Command
from ..core.decisions import Core
from ..core.slab import Slot


class Landing:
    """The body sink of one request for `handle`; `slot` is what the core gave, None as long as it gave none."""

    __slots__ = ("_core", "_handle", "_view", "slot")

    def __init__(self, core: Core, view: memoryview, handle: int) -> None:
        self._core = core
        self._view = view
        self._handle = handle
        self.slot: Slot | None = None

    def __call__(self, _command: Command, length_bytes: int) -> memoryview | None:
        """Room for a body of that length; None = it is read and dropped."""
        slot = self.slot = self._core.room_for(self._handle, length_bytes)
        return None if slot is None else self._view[slot.start : slot.start + length_bytes]

    def give_back(self) -> None:
        """Nobody will say what landed: its bytes are free again."""
        if self.slot is not None:
            self._core.state.release(self.slot)
            self.slot = None
