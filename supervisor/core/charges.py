"""Which records have cost workers their lives, and how often: pure, kept in the slot by charges_file.py.

A charge belongs to the record that was pulled. A message that is sent back between two deaths comes again as another
record, so its count is also kept by the id of its first record, as far as that is known (the record has to be decoded for
it, which is done after a death only). A record that finishes is forgotten.
"""

from __future__ import annotations

import json
from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from ...remoting.errors import ProtocolError
from ...remoting.queues import MessageQueue

CHARGES_MAX = 1000
"""Records, and ids, that are remembered; the oldest are forgotten first. More poison than this is no accident of a few."""


@dataclass(slots=True)
class Charge:
    """`deaths` of one record; 0 = it is only suspected."""

    topic: str
    broker_name: str
    queue_id: int
    offset: int
    deaths: int = 0
    origin: str = ""
    marks: list[str] = field(default_factory=list[str])
    """The calls that were counted."""
    facts: dict[str, str] = field(default_factory=dict[str, str])
    """Of the last death."""

    @property
    def mq(self) -> MessageQueue:
        return MessageQueue(self.topic, self.broker_name, self.queue_id)


class Charges:
    """The ledger; the core owns it."""

    def __init__(self) -> None:
        self._records: dict[tuple[MessageQueue, int], Charge] = {}
        self._offsets: dict[MessageQueue, list[int]] = {}
        self._origins: dict[str, int] = {}
        """Deaths by origin message id, of messages that were sent back after a death."""

    def __len__(self) -> int:
        return len(self._records)

    @property
    def empty(self) -> bool:
        """Nothing at all is remembered."""
        return not self._records and not self._origins

    def __iter__(self) -> Iterator[Charge]:
        return iter(self._records.values())

    def get(self, mq: MessageQueue, offset: int) -> Charge | None:
        return self._records.get((mq, offset))

    def first_in(self, mq: MessageQueue, low: int, high: int) -> int | None:
        """The smallest offset in `[low, high]` that is charged or suspected."""
        offsets = self._offsets.get(mq)
        if not offsets:
            return None
        at = bisect_left(offsets, low)
        return offsets[at] if at < len(offsets) and offsets[at] <= high else None

    def suspect(self, mq: MessageQueue, offset: int) -> Charge:
        """It is to run alone from now on."""
        charge = self._records.get((mq, offset))
        if charge is None:
            while len(self._records) >= CHARGES_MAX:
                suspects = (key for key, old in self._records.items() if not old.deaths)
                self._drop(next(suspects, next(iter(self._records))))
            charge = Charge(mq.topic, mq.broker_name, mq.queue_id, offset)
            self._records[mq, offset] = charge
            insort(self._offsets.setdefault(mq, []), offset)
        return charge

    def charge(self, mq: MessageQueue, offset: int, mark: str, facts: dict[str, str], origin: str = "") -> Charge:
        """Count one death; the same `mark` again is the same death."""
        charge = self.suspect(mq, offset)
        if origin and not charge.origin:
            charge.origin = origin
            charge.deaths += self._origins.pop(origin, 0)
        if not mark or mark not in charge.marks:
            charge.deaths += 1
            charge.marks = [*charge.marks[-9:], mark]
        charge.facts = facts
        return charge

    def finished(self, mq: MessageQueue, offset: int, *, sent_back: bool) -> bool:
        """The record is done, or is sent back (its count follows the message); True when it was known."""
        charge = self._records.get((mq, offset))
        if charge is None:
            return False
        if sent_back and charge.deaths and charge.origin:
            while len(self._origins) >= CHARGES_MAX:
                del self._origins[next(iter(self._origins))]
            self._origins[charge.origin] = charge.deaths
        self._drop((mq, offset))
        return True

    def forget_below(self, mq: MessageQueue, offset: int) -> bool:
        """Records that the committed offset has passed never come again; True when there were any."""
        offsets = self._offsets.get(mq)
        if not offsets or offsets[0] >= offset:
            return False
        for old in offsets[: bisect_left(offsets, offset)]:
            self._drop((mq, old))
        return True

    def _drop(self, key: tuple[MessageQueue, int]) -> None:
        del self._records[key]
        offsets = self._offsets[key[0]]
        del offsets[bisect_left(offsets, key[1])]
        if not offsets:
            del self._offsets[key[0]]

    # --- on disk ------------------------------------------------------------------------------------------------

    def to_json(self) -> str:
        return json.dumps({"version": 1, "records": [asdict(c) for c in self], "origins": self._origins}, indent=1)

    def add_json(self, text: str | bytes, where: str) -> None:
        """Add what `to_json` wrote; the higher count holds. Raises ProtocolError for anything else."""
        try:
            data: Any = json.loads(text)
            for entry in data["records"]:
                self._add(Charge(**entry))
            for origin, deaths in data["origins"].items():
                self._origins[str(origin)] = max(int(deaths), self._origins.get(origin, 0))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ProtocolError(f"no record of worker deaths: {error!r}", where) from error

    def _add(self, read: Charge) -> None:
        charge = self.suspect(read.mq, int(read.offset))
        if read.deaths >= charge.deaths:
            charge.deaths, charge.origin = int(read.deaths), str(read.origin)
            charge.marks, charge.facts = list(read.marks), dict(read.facts)
