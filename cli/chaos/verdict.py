"""What came of a run of `rocketcrew chaos`: from what was sent, what handlers told, and what stands in the results.

Pure. *Lost*: sent for certain, and neither in the results nor a dead letter that was meant to be one. *Duplicated*: handled
to the end more than once, or in the results under two keys; faults that promise no less explain a number of those.
*Out of order*: begun before an earlier one of its lane was done, or while one of its lane was still running elsewhere.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from ...remoting.names import RETRY_PREFIX


class Line(NamedTuple):
    """One step of one handler call (handler.py)."""

    what: str
    pid: int
    topic: str
    queue_id: int
    offset: int
    key: str
    number: int
    at_ns: int


def parse(text: str) -> list[Line]:
    """All whole lines."""
    words = (line.split() for line in text.split("\n")[:-1])
    return [
        Line(what, int(pid), topic, int(queue), int(offset), key, int(number), int(at))
        for what, pid, topic, queue, offset, key, number, at in words
    ]


def standing(segments: Iterable[tuple[Any, ...]], table: Iterable[tuple[Any, ...]]) -> dict[int, int]:
    """For each number how often it stands in the results; rows are (keys of the pulled record …, number).

    Under two keys it stands twice. So it does under one key that the *table* has twice; in segments a key may come again,
    there and in the table too: the loader sees to that.
    """
    loaded = Counter(table)
    keys: dict[int, int] = Counter()
    for *_, number in set(segments) - loaded.keys():
        keys[number] += 1
    for (*_, number), times in loaded.items():
        keys[number] += times
    return dict(keys)


def lane_of(line: Line, order: str) -> Hashable:
    """What must be handled in order."""
    return (line.topic, line.queue_id, line.key) if order == "key" else (line.topic, line.queue_id)


def out_of_order(
    lines: Iterable[Line], order: str, given_up: Collection[int] = (), sent_back: Collection[int] = ()
) -> list[int]:
    """Numbers of messages that broke the order. `given_up` are dead letters, which nothing waits for; those `sent_back`
    have their final outcome in their lane with the last step there, and go on in the retry topic."""
    if order == "concurrent":
        return []
    lines = list(lines)
    offsets: dict[Hashable, set[int]] = defaultdict(set)
    for line in lines:
        if line.number not in given_up:
            offsets[lane_of(line, order)].add(line.offset)
    last_step = {(lane_of(line, order), line.offset): at for at, line in enumerate(lines) if line.number in sent_back}
    in_turn = {lane: sorted(found) for lane, found in offsets.items()}
    head: dict[Hashable, int] = defaultdict(int)
    done: dict[Hashable, set[int]] = defaultdict(set)
    running: dict[Hashable, Line] = {}
    overtaken: set[tuple[int, Hashable, int]] = set()
    broken: list[int] = []
    for at, line in enumerate(lines):
        lane = lane_of(line, order)
        if last_step.get((lane, line.offset)) == at:
            done[lane].add(line.offset)
        if line.what == "BEGIN":
            if (before := running.get(lane)) is not None:
                # Perhaps its process is dead; should it go on after this, both ran at once.
                overtaken.add((before.pid, lane, before.offset))
            running[lane] = line
            turn = in_turn.get(lane, [])
            while head[lane] < len(turn) and turn[head[lane]] in done[lane]:
                head[lane] += 1
            if head[lane] < len(turn) and turn[head[lane]] < line.offset:
                broken.append(line.number)
            continue
        current = running.get(lane)
        if current is not None and (current.pid, current.offset) == (line.pid, line.offset):
            del running[lane]
        elif (line.pid, lane, line.offset) in overtaken:
            broken.append(line.number)
        if line.what == "END":
            done[lane].add(line.offset)
    return broken


@dataclass(frozen=True, slots=True)
class FaultRecord:
    """One fault that was done: how long until the service worked again, None when it did not; repeats that it explains."""

    name: str
    recovered_s: float | None
    repeats_max: int


@dataclass(frozen=True, slots=True)
class FaultSummary:
    """All of one kind. Seconds; -1 when it did not recover."""

    fault: str
    times: int
    recovered_s_median: float
    recovered_s_max: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """The figures; `good` sums them up."""

    sent: int
    done: int
    dead_lettered: int
    uncertain_sends: int
    lost: tuple[int, ...]
    duplicated: int
    duplicates_explained: int
    out_of_order: int
    not_recovered: int
    violations: int
    faults: tuple[FaultSummary, ...]

    @property
    def good(self) -> bool:
        """Nothing lost, nothing out of order, all recovered, and no more repeated than the faults explain."""
        return not (
            self.lost
            or self.out_of_order
            or self.not_recovered
            or self.violations
            or self.duplicated > self.duplicates_explained
        )

    @property
    def line(self) -> str:
        """The one line that says it."""
        worst = max(self.faults, key=lambda found: found.recovered_s_max, default=None)
        slowest = f"; slowest recovery {worst.recovered_s_max:.2f} s ({worst.fault})" if worst is not None else ""
        return (
            f"VERDICT {'good' if self.good else 'BAD'}: {self.sent} sent, {len(self.lost)} lost, {self.duplicated} duplicated"
            f" ({self.duplicates_explained} explained by the faults), {self.out_of_order} out of order,"
            f" {self.dead_lettered} dead letters, {self.not_recovered} faults not recovered from{slowest}"
        )

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {"verdict": "good" if self.good else "bad", **asdict(self), "lost": len(self.lost),
                "lost_numbers": self.lost[:100]}  # fmt: skip


def summaries(records: Iterable[FaultRecord]) -> tuple[FaultSummary, ...]:
    """One line a kind of fault, in the order of their first."""
    from statistics import median  # brings fractions and decimal, which the help of the command needs not

    by_name: dict[str, list[FaultRecord]] = {}
    for record in records:
        by_name.setdefault(record.name, []).append(record)
    found: list[FaultSummary] = []
    for name, those in by_name.items():
        times = [record.recovered_s for record in those if record.recovered_s is not None]
        worst = max(times) if len(times) == len(those) else -1.0
        found.append(FaultSummary(name, len(those), round(median(times), 3) if times else -1.0, round(worst, 3)))
    return tuple(found)


def judge(
    *, sent: Collection[int], uncertain: Collection[int], meant_to_die: Collection[int], dead_lettered: int,
    lines: list[Line], rows: Mapping[int, int], order: str, records: list[FaultRecord], violations: int,
    held_go_back: bool = False,
) -> Verdict:  # fmt: skip
    """`sent`: numbers that a broker acknowledged. `uncertain`: those of sends without an answer, stored once, twice or never.
    `rows`: for each number under how many keys it stands in the results. `violations`: of the service's own invariant.
    `held_go_back`: it was stopped in between, which sends failed messages that are held in order back to the broker, so
    that those behind them may be committed."""
    ended = Counter(line.number for line in lines if line.what == "END")
    certain = set(sent) - set(meant_to_die)
    lost = sorted(number for number in certain if not rows.get(number))
    duplicated = sum(ended[number] > 1 or rows.get(number, 0) > 1 for number in certain)
    sent_back = {line.number for line in lines if line.topic.startswith(RETRY_PREFIX)} if held_go_back else set[int]()
    return Verdict(
        sent=len(sent),
        done=len(certain) - len(lost),
        dead_lettered=dead_lettered,
        uncertain_sends=len(uncertain),
        lost=tuple(lost),
        duplicated=duplicated,
        duplicates_explained=sum(record.repeats_max for record in records),
        out_of_order=len(out_of_order(lines, order, meant_to_die, sent_back)),
        not_recovered=sum(record.recovered_s is None for record in records),
        violations=violations,
        faults=summaries(records),
    )
