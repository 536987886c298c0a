"""What is said again and again while a broker or name server is away: the first line at once, then counted. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

FIRST_S: Final = 5.0
DISTANCE_MAX_S: Final = 60.0
QUIET_S: Final = 180.0
"""A line that did not come for so long is news again."""
KINDS_MAX: Final = 1_000


@dataclass(slots=True)
class _Kind:
    said_at: float
    came_at: float
    distance_s: float
    unsaid: int


class Repeats:
    """Counts lines by kind; the distance between two that are said doubles from FIRST_S to DISTANCE_MAX_S seconds."""

    def __init__(self) -> None:
        self._kinds: dict[object, _Kind] = {}

    def came(self, kind: object, now: float) -> int:
        """How many lines the one that came now is to stand for, itself included; 0 when it is not said. `now` in seconds."""
        found = self._kinds.get(kind)
        if found is None or now - found.came_at >= QUIET_S:
            if len(self._kinds) >= KINDS_MAX:
                self._kinds.clear()
            self._kinds[kind] = _Kind(now, now, FIRST_S, 0)
            return 1
        found.came_at = now
        found.unsaid += 1
        if now - found.said_at < found.distance_s:
            return 0
        times, found.unsaid = found.unsaid, 0
        found.said_at = now
        found.distance_s = min(2 * found.distance_s, DISTANCE_MAX_S)
        return times
