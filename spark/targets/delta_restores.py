"""RESTOREs in the log of a Delta table that have taken rows of ours away: each is told of once.

They come at any moment, also just before a commit of ours. So a loader looks before its commit and behind it, each time at
the entries that have come since its last look, and whoever can't look now takes these entries along the next time.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Mapping
from typing import Any, Final

from ...client.logs import get_logger
from ..object_store import Place

MARK: Final = "rocketcrew"
"""In a commit of delta-rs: the key of the plan's id. In one of Spark's: the first word of its user metadata."""
LOOKED_FIRST: Final = 50
"""Entries of the log that a first look reads before it reads more."""
LOOKED_MAX: Final = 500
"""So many entries at most; of older ones it is not told."""
RESTORED: Final = (
    "an older version was restored: rows that were loaded after it, if any, are gone and not loaded again; rocketcrew"
    " reconcile names them, and reconcile --rerun brings them back"
)


class Restores:
    """What a loader has seen of them in the table at `table`."""

    def __init__(self, table: Place) -> None:
        self._table = table
        self._first = sys.maxsize
        """The version at which the first look was to be made: ours above it are this loader's own."""
        self._looked = -1
        """The version up to which the log was looked at."""
        self._ours = -1
        """The newest entry of ours up to there."""

    def tell(self, snapshot: Any, errors: type[Exception]) -> None:
        """Warn of those in the snapshot's log that no look has seen yet. `errors`: delta-rs's. A log that can't be looked at
        is no reason not to commit."""
        newest = int(snapshot.version())
        if newest < self._first:  # the first look, or another table's
            self._first, self._looked, self._ours = newest, -1, -1
        try:
            entries = self._unseen(snapshot, newest)
        except (errors, OSError, ValueError):
            return
        below = newest - len(entries)
        gone, self._ours = taken_back(reversed(entries), self._ours if below == self._looked else below)
        self._looked = self._first = newest
        for version in gone:
            get_logger().warning("delta_table_restored", table=str(self._table), version=version, error=RESTORED)

    def _unseen(self, snapshot: Any, newest: int) -> list[dict[str, Any]]:
        """Entries that no look has seen, the newest first; at the first look those behind the last one of ours that was there
        before this loader's own."""

        def wanted(entry: Mapping[str, Any]) -> bool:
            return int(entry["version"]) > self._first or not plan_noted(entry)

        unseen = min(newest - self._looked, LOOKED_MAX)
        found: list[dict[str, Any]] = []
        for limit in (newest - self._first + LOOKED_FIRST, LOOKED_MAX):
            entries: list[dict[str, Any]] = snapshot.history(min(limit, unseen)) if unseen else []
            found = list(itertools.takewhile(wanted, entries))
            if len(found) < len(entries) or len(entries) < limit:
                break
        return found


def taken_back(entries: Iterable[Mapping[str, Any]], ours: int) -> tuple[list[int], int]:
    """The versions of those RESTOREs among `entries`, the oldest first, behind which rows of ours are gone, which no later
    one has undone; and the newest entry of ours. `ours`: that of before. Pure."""
    gone: list[int] = []
    for entry in entries:
        version = int(entry["version"])
        if entry.get("operation") == "RESTORE":
            to = _restored_to(entry)
            if to is not None:
                gone = [other for other in gone if other <= to]
            if to is None or to < ours:
                gone.append(version)
        elif plan_noted(entry):
            ours = version
    return gone, ours


def plan_noted(commit: Mapping[str, Any]) -> str:
    """The id of the plan that an entry of the log's history is of, empty for others."""
    return str(commit.get(MARK) or "") or _plan_of(str(commit.get("userMetadata") or ""))


def _plan_of(user_metadata: str) -> str:
    mark, _, plan_id = user_metadata.partition(" ")
    return plan_id if mark == MARK else ""


def _restored_to(restore: Mapping[str, Any]) -> int | None:
    """The version that an entry of a RESTORE names; None where it names a time, or is in words that are not known here."""
    try:
        return int(restore["operationParameters"]["version"])
    except (KeyError, TypeError, ValueError):
        return None
