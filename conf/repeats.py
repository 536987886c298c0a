"""What is said again and again: the first line at once, then counted. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
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


class Outages:
    """Counts the lines of lost brokers and name servers. Each server has its first line at once; then all of them together
    have one in DISTANCE_MAX_S seconds, with how many there were of each event and server. After QUIET_S in which nothing came
    the outage is over: what came of it since its last line is in no later one."""

    def __init__(self) -> None:
        self._came_at: dict[str, float] = {}
        self._said_at = self._newest_at = float("-inf")
        self._unsaid = Counter[str]()

    def came(self, event: str, server: str, now: float) -> Mapping[str, int]:
        """What the line that came now is to stand for, itself included; nothing when it is not said. `server` is empty where
        the line names none: it belongs to an outage that there is, or is one. `now` in seconds."""
        what = f"{event} {server}".rstrip()
        if now - self._newest_at >= QUIET_S:
            self._unsaid.clear()
        self._newest_at = now
        if server or not any(now - at < DISTANCE_MAX_S for at in self._came_at.values()):
            before = self._came_at.get(server)
            if before is None and len(self._came_at) >= KINDS_MAX:
                self._came_at.clear()
            self._came_at[server] = now
            if before is None or now - before >= QUIET_S:
                if not self._unsaid:
                    self._said_at = now
                return {what: 1}
        self._unsaid[what] += 1
        if now - self._said_at < DISTANCE_MAX_S:
            return {}
        self._said_at = now
        counts, self._unsaid = self._unsaid, Counter[str]()
        return counts
