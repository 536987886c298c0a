"""Which records have cost workers their lives, and how often: pure, kept in the slot by charges_file.py.

A charge belongs to the record that was pulled. A message that is sent back between two deaths comes again as another
record, so its count is also kept by the id of its first record, as far as that is known (the record has to be decoded for
it, which is done after a death only). A record that finishes is forgotten.

The death of the whole member is charged to a record that was alone in hand in it. Records that were in hand beside others are
noted: an operator who kills the member again and again during one long message makes no dead letter of it. But a message may
well be what kills its container each time. So one that was in hand at `max_worker_deaths` deaths of the member makes the next
one *careful*: until it is over, one message at a time is in hand in the whole member. If it dies again, the one that was in
hand then is charged. The ordered modes note suspects of a worker's death in the same way. So is noted what the kernel has
killed for want of memory, before its last attempt (quarantine.py).

A popped message comes again as another record each time, and what its offset was says nothing then. So deaths of the member
are counted as well, and after `max_worker_deaths` of them a popped record that its broker has shown as often before is noted
when it is popped, with its unique id: the member is careful until that one is over. By the id a later charge finds the
message again.
"""

from __future__ import annotations

import json
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from math import inf
from typing import Any, NamedTuple

from ...remoting.errors import ProtocolError
from ...remoting.queues import MessageQueue
from .blame import Death, End, InHand, Verdict

CHARGES_MAX = 1000
"""Records, and ids, that are remembered; the oldest are forgotten first. More poison than this is no accident of a few."""
SUSPECTS_MAX = 1024
"""Records of one batch call, as in `consumer.consume_message_batch_max_size`."""
SURVIVORS_MAX = SUSPECTS_MAX
"""After so many popped records were noted and came through, it is none of those that are shown again."""
NOTED_MAX = 8 * SUSPECTS_MAX
"""Records that are noted; above it half are forgotten, see `_forget_half`."""


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


@dataclass(slots=True)
class Noted:
    """One record that was in hand beside others when the whole member died, or a worker that keeps an order."""

    topic: str
    broker_name: str
    queue_id: int
    offset: int
    runs: int = 0
    marks: list[str] = field(default_factory=list[str])
    """The calls that were counted."""
    unique_id: str = ""
    """Of a popped record; noted when it was popped."""

    @property
    def mq(self) -> MessageQueue:
        return MessageQueue(self.topic, self.broker_name, self.queue_id)


class Left(NamedTuple):
    """What the cell of a worker says that died with its supervisor. None = unknown, or not of a message."""

    mq: MessageQueue | None
    in_hand: InHand | None
    facts: dict[str, str]


class Charges:
    """The ledger; the core owns it."""

    def __init__(self) -> None:
        self.noted_max = NOTED_MAX
        self._records: dict[tuple[MessageQueue, int], Charge] = {}
        self._offsets: dict[MessageQueue, list[int]] = {}
        self._origins: dict[str, int] = {}
        """Deaths by origin message id, of messages that were sent back after a death."""
        self.noted: dict[tuple[MessageQueue, int], Noted] = {}
        """What was in hand beside others when the whole member died."""
        self._lines: tuple[int, dict[MessageQueue, list[int]]] | None = None
        """Offsets by queue of what was noted at so many deaths or more, the smallest last: that end is where those leave that
        are over. None = to be made anew."""
        self.runs = 0
        """Deaths of the whole member that had something in hand."""
        self._run_marks: list[str] = []
        """The calls of the last of them."""
        self._popped: set[tuple[MessageQueue, int]] = set()
        """Popped records that this run has noted, and that are not over."""
        self._survivors = 0

    def __len__(self) -> int:
        return len(self._records)

    @property
    def empty(self) -> bool:
        """Nothing at all is remembered."""
        return not (self._records or self._origins or self.noted or self.runs)

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

    def member_died(self, left: Sequence[Left], *, stopping: bool) -> list[Verdict]:
        """The whole member died with this in hand; the verdict on each. Nobody is charged when it had
        begun to stop. A call that was judged before, when only a part of the cells was cleared, is not judged again."""
        end = End.RETIRED if stopping else End.MEMBER if len(left) == 1 else End.MEMBER_AMONG_OTHERS
        verdicts = [self._judge_left(one, end) for one in left]
        marks = [one.in_hand.mark for one in left if one.in_hand is not None]
        if any(verdict is not Verdict.NOBODY for verdict in verdicts) and not set(marks) & set(self._run_marks):
            self.runs += 1
            self._run_marks = marks
        for key in [key for key, noted in self.noted.items() if noted.unique_id]:
            del self.noted[key]  # it comes again as another record
        return verdicts

    def _judge_left(self, left: Left, end: End) -> Verdict:
        mq, in_hand, facts = left
        if mq is None or in_hand is None:
            return Verdict.NOBODY
        verdict = Death(end, in_hand).verdict
        first = self.noted.get((mq, in_hand.offset))
        if verdict in (Verdict.CHARGED, Verdict.SUSPECTED) and first is not None and in_hand.mark in first.marks:
            return Verdict.NOTED
        if verdict is Verdict.CHARGED:
            unique_id = first.unique_id if first is not None else ""
            self.charge(mq, in_hand.offset, in_hand.mark, {"end": end.value, "cause": "unknown", **facts}, unique_id)
            return verdict
        for offset in range(in_hand.offset, min(in_hand.last, in_hand.offset + SUSPECTS_MAX) + 1):
            if verdict is Verdict.SUSPECTED:
                self.suspect(mq, offset)
            elif verdict is Verdict.NOTED:
                self._note(mq, offset, (in_hand.mark,))
        return verdict

    def _note(self, mq: MessageQueue, offset: int, marks: Sequence[str], runs_least: int = 0) -> None:
        """Count the deaths that it was in hand at; the same mark again is the same death. It may be forgotten at once."""
        noted = self.noted.setdefault((mq, offset), Noted(*mq, offset))
        for mark in marks:
            if mark not in noted.marks:
                noted.runs += 1
                noted.marks = [*noted.marks[-9:], mark]
        noted.runs = max(noted.runs, runs_least)
        self._lines = None
        if len(self.noted) > self.noted_max:
            self._forget_half()

    def _forget_half(self) -> None:
        """Those first that were in hand at the fewest deaths, and of these the ones that come last in their queues.

        They run beside others again. But what kills each time never finishes, so that it becomes the first of its queue in
        the end, for which there is room."""
        ranks: dict[tuple[MessageQueue, int], int] = {}
        before: Counter[MessageQueue] = Counter()
        for key in sorted(self.noted):
            ranks[key] = before[key[0]]
            before[key[0]] += 1
        kept = sorted(self.noted.items(), key=lambda item: (-item[1].runs, ranks[item[0]]))
        self.noted = dict(kept[: self.noted_max // 2])

    def watch(self, mq: MessageQueue, offset: int, runs_max: int) -> None:
        """A worker died of this record, of another that keeps its place beside it, or of what others had in memory beside it:
        be careful until it is over."""
        self._note(mq, offset, ("",), runs_max)

    def watched(self, mq: MessageQueue, offset: int, runs_max: int) -> bool:
        """The member is careful because of this record: nothing else is in hand when it is."""
        noted = self.noted.get((mq, offset))
        return noted is not None and noted.runs >= runs_max

    def careful(self, runs_max: int, pulled_to: Callable[[MessageQueue], int]) -> bool:
        """A record that was pulled, or popped, was in hand at so many deaths of the whole member; `pulled_to` says where
        a queue's next pull begins, 0 = it is not ours."""
        if self._popped:
            return True
        lines = self._noted_at(runs_max)
        return any(self._first(mq, line) < pulled_to(mq) for mq, line in lines.items())

    def _noted_at(self, runs_max: int) -> dict[MessageQueue, list[int]]:
        if self._lines is None or self._lines[0] != runs_max:
            lines: dict[MessageQueue, list[int]] = {}
            for mq, offset in sorted((key for key, one in self.noted.items() if one.runs >= runs_max), reverse=True):
                lines.setdefault(mq, []).append(offset)
            self._lines = runs_max, lines
        return self._lines[1]

    def _first(self, mq: MessageQueue, line: list[int]) -> float:
        while line and (mq, line[-1]) not in self.noted:
            line.pop()
        return line[-1] if line else inf

    # --- popped records -----------------------------------------------------------------------------------------

    @property
    def asks_for_ids(self) -> bool:
        """Something is known of messages by their ids: `popped` is to be called for each record."""
        return bool(self.runs or self._records or self._origins)

    def popped(self, mq: MessageQueue, offset: int, unique_id: str, times: int, runs_max: int) -> bool:
        """A record was popped, of a message that was shown `times` times before. True when it is charged or noted by its
        id, which has to be written before it runs."""
        deaths = self._origins.pop(unique_id, 0)
        for key, charge in list(self._records.items()):
            if unique_id and charge.origin == unique_id and key != (mq, offset):
                self._drop(key)
                deaths += charge.deaths
                self.suspect(mq, offset).facts = charge.facts
        if deaths:
            charge = self.suspect(mq, offset)
            charge.deaths, charge.origin = charge.deaths + deaths, unique_id
        if not unique_id or self.runs < runs_max or times < runs_max:
            return deaths > 0
        self.noted[mq, offset] = Noted(*mq, offset, runs=self.runs, unique_id=unique_id)
        self._popped.add((mq, offset))
        return True

    def is_popped(self, mq: MessageQueue, offset: int) -> bool:
        """The record was noted when it was popped, and is not over."""
        return (mq, offset) in self._popped

    def popped_over(self, mq: MessageQueue, offset: int) -> bool:
        """A record that was noted when it was popped has come through, or was given back. True when it was one."""
        if (mq, offset) not in self._popped:
            return False
        self._popped.remove((mq, offset))
        self.noted.pop((mq, offset), None)
        self._survivors += 1
        if self._survivors >= SURVIVORS_MAX:
            self.runs = self._survivors = 0
        return True

    # --- what is over -------------------------------------------------------------------------------------------

    def survived(self, mq: MessageQueue, offset: int) -> bool:
        """The record has failed and its worker lives: it was not what ended the member. True when it was noted."""
        return self.popped_over(mq, offset) or self.noted.pop((mq, offset), None) is not None

    def finished(self, mq: MessageQueue, offset: int, *, sent_back: bool) -> bool:
        """The record is done, or is sent back (its count follows the message); True when it was known."""
        noted = self.survived(mq, offset)
        charge = self._records.get((mq, offset))
        if charge is None:
            return noted
        if sent_back and charge.deaths and charge.origin:
            while len(self._origins) >= CHARGES_MAX:
                del self._origins[next(iter(self._origins))]
            self._origins[charge.origin] = charge.deaths
        self._drop((mq, offset))
        return True

    def forget_below(self, mq: MessageQueue, offset: int) -> bool:
        """Records that the committed offset has passed never come again; True when there were any."""
        passed = [key for key in self.noted if key[0] == mq and key[1] < offset]
        for key in passed:
            del self.noted[key]
        offsets = self._offsets.get(mq)
        if not offsets or offsets[0] >= offset:
            return bool(passed)
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
        data = {"version": 1, "records": [asdict(c) for c in self], "origins": self._origins, "noted": self._ranges(),
                "runs": self.runs, "run_marks": self._run_marks}  # fmt: skip
        return json.dumps(data, indent=1)

    def _ranges(self) -> list[dict[str, Any]]:
        """What is noted; neighbours of which the same is known are one entry, up to offset `last`."""
        ranges: list[dict[str, Any]] = []
        following: tuple[MessageQueue, int] | None = None
        known: tuple[int, list[str], str] | None = None
        for key in sorted(self.noted):
            one = self.noted[key]
            if key == following and (one.runs, one.marks, one.unique_id) == known:
                ranges[-1]["last"] = one.offset
            else:
                ranges.append(asdict(one) | {"last": one.offset})
                known = one.runs, one.marks, one.unique_id
            following = key[0], one.offset + 1
        return ranges

    def add_json(self, text: str | bytes, where: str) -> None:
        """Add what `to_json` wrote; the higher count holds. Raises ProtocolError for anything else."""
        try:
            data: Any = json.loads(text)
            for entry in data["records"]:
                self._add(Charge(**entry))
            for origin, deaths in data["origins"].items():
                self._origins[str(origin)] = max(int(deaths), self._origins.get(origin, 0))
            for entry in data["noted"]:
                last = int(entry.pop("last"))
                self._add_noted(Noted(**entry), last)
            if int(data["runs"]) > self.runs:
                self.runs, self._run_marks = int(data["runs"]), [str(mark) for mark in data["run_marks"]]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ProtocolError(f"no record of worker deaths: {error!r}", where) from error

    def _add_noted(self, read: Noted, last: int) -> None:
        mq, first = read.mq, int(read.offset)
        if not first <= last < first + NOTED_MAX:
            raise ValueError(f"offsets {first} to {last} are noted")
        if read.unique_id:
            self.noted[mq, first] = read
            return
        marks = [str(mark) for mark in read.marks]
        for offset in range(first, last + 1):
            self._note(mq, offset, marks, int(read.runs))

    def _add(self, read: Charge) -> None:
        charge = self.suspect(read.mq, int(read.offset))
        if read.deaths >= charge.deaths:
            charge.deaths, charge.origin = int(read.deaths), str(read.origin)
            charge.marks, charge.facts = list(read.marks), dict(read.facts)
