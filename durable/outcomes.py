"""What became of every pulled record, as intervals per kind and queue: the list by which gaps in a table are explained. Pure.

    rows         it has rows in the table                         the loader notes it, from the segments of a batch
    no_rows      its handler returned none                        the supervisor, from the workers' reports
    filtered     its tag was not asked for                        the supervisor, from what pulls left out
    undelivered  everything of its topic is subscribed, and the   the supervisor, from what pulls left out
                 broker passed it over all the same: nobody has
                 said why
    sent_back    it failed, and is in the group's retry topic     the supervisor, when a broker has accepted it
    dead_letter  it failed for good, and is in %DLQ%<group>       the same
    recovered    finished, the journal says, but a killed         the supervisor, when it starts after a kill -9
                 process took its last notes with it
    lost         the broker had deleted it unread                 the supervisor, when a pull is answered with a later offset
    skipped      the group was reset past it                      `rocketcrew reset`, or the member that it reaches
    elsewhere    POP: the broker had shown it to the group, or    the supervisor, when nobody here has it long after
                 passed it over, and it was not for this member
    settled      finished and durable, whatever became of it      the supervisor, as a queue's offset moves on; in files of
                                                                  facts alone, never in a table
    passed       nobody had said anything of it when the floor    the loader, with a commit (spark/accounts.py)
                 of its queue passed it: no outcome, but a hole
    closed       it was passed, and is settled since              the loader
    forgotten    a batch of long ago was about it                 the loader, by age (spark/outcome_levels.py)

`elsewhere` begins at 0: a member of a group that pops knows how far the broker has shown a queue, and not from where on. So
it says nothing of what is below the first record that the table knows of (`from_first`).

Kinds may overlap, and the first of this order that names a record counts: so `filtered` may name whole ranges ("what has no
other outcome in here was filtered"), which stays a few numbers where a tag matches one message in ten. Of messages that were
reported together some may have rows: then their segment says which were finished, and the loader notes all of these as
`no_rows`, after `rows`. `undelivered` names the very offsets, and counts before the others: what is noted of a record takes
along what was passed over before it. Sets are joined, never subtracted: noting the same outcome twice changes nothing, and
that is why no crash point matters here.

The supervisor seals the list in the staging folder (facts.py), the loader moves it into the ledger of the table,
beside the state of each batch, compressed. This module imports nothing heavy: the supervisor uses it too.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from .intervals import IntervalSet, OffsetSet, QueueKey

OUTCOMES_VERSION: Final = 1
ROWS, NO_ROWS, FILTERED, SENT_BACK, DEAD_LETTER = "rows", "no_rows", "filtered", "sent_back", "dead_letter"
UNDELIVERED: Final = "undelivered"
RECOVERED: Final = "recovered"
LOST, SKIPPED, ELSEWHERE = "lost", "skipped", "elsewhere"
PASSED, CLOSED, FORGOTTEN = "passed", "closed", "forgotten"
SETTLED: Final = "settled"
KINDS: Final = (
    ROWS, UNDELIVERED, SENT_BACK, DEAD_LETTER, NO_ROWS, FILTERED, RECOVERED, LOST, SKIPPED, ELSEWHERE, FORGOTTEN, CLOSED,
    PASSED, SETTLED,
)  # fmt: skip
"""In the order in which they count."""
EXACT: Final = (ROWS, NO_ROWS, SENT_BACK, DEAD_LETTER)
"""Kinds that name the very records: each of them is finished. The others may name ranges with records that are not."""
SETTLING: Final = (NO_ROWS, SENT_BACK, DEAD_LETTER)
"""Those of them that a supervisor notes: such a record has no rows, in whatever segment."""
ENDS: Final = (LOST, SKIPPED, ELSEWHERE)
"""Kinds that end a hole: nobody will bring its records. A member that had some of them in hand may do so all the same."""
NO_OFFSET_WAITS: Final = (SETTLED, ELSEWHERE)
"""Kinds for which no offset waits until they are on the disk."""
NOT_ACCOUNTED: Final = (PASSED, CLOSED, SETTLED)
"""Kinds that say nothing of what became of a record, only of how it counts."""


@dataclass(frozen=True, slots=True)
class Outcomes:
    """An `OffsetSet` per kind; kinds without records are left out. Treat it as immutable."""

    kinds: Mapping[str, OffsetSet] = field(default_factory=dict[str, OffsetSet])

    @classmethod
    def of(cls, pairs: Iterable[tuple[str, OffsetSet]]) -> Outcomes:
        """The union of all given sets; a kind may be named more than once. Raises ValueError for an unknown one."""
        found: dict[str, list[OffsetSet]] = {}
        for kind, records in pairs:
            if kind not in KINDS:
                raise ValueError(f"no kind of outcome is called {kind!r}")
            if records:
                found.setdefault(kind, []).append(records)
        return cls({kind: OffsetSet.union(sets) for kind, sets in found.items()})

    @classmethod
    def union(cls, many: Iterable[Outcomes]) -> Outcomes:
        """All outcomes of all lists."""
        return cls.of(item for one in many for item in one.kinds.items())

    def __bool__(self) -> bool:
        return bool(self.kinds)

    def within(self, records: OffsetSet) -> Outcomes:
        """The outcomes of these records alone."""
        return Outcomes.of((kind, one & records) for kind, one in self.kinds.items())

    def in_epochs(self, epochs: Mapping[QueueKey, int]) -> Outcomes:
        """The same outcomes, of records of these epochs; `epochs` by keys in epoch 0."""
        if not epochs:
            return self
        return Outcomes.of(
            (kind, records.rekeyed(lambda key: key.in_epoch(epochs.get(key, 0))))
            for kind, records in self.kinds.items()
        )

    def without(self, *kinds: str) -> Outcomes:
        """The outcomes of all other kinds."""
        return Outcomes({kind: records for kind, records in self.kinds.items() if kind not in kinds})

    def from_first(self, known: OffsetSet) -> Outcomes:
        """The same, but `elsewhere` only from the first offset of `known` on, and not of queues that are not in there."""
        if ELSEWHERE not in self.kinds:
            return self
        begun = OffsetSet(
            {
                key: IntervalSet.of([(known.queues[key].pieces[0][0], offsets.pieces[-1][1])])
                for key, offsets in self.kinds[ELSEWHERE].queues.items()
                if key in known.queues
            }
        )
        return Outcomes.of([*self.without(ELSEWHERE).kinds.items(), (ELSEWHERE, self.kinds[ELSEWHERE] & begun)])

    def not_of(self, kind: str, queues: Iterable[QueueKey]) -> Outcomes:
        """The same, without what is of that kind in these queues."""
        return Outcomes.of(
            (one, records.without(queues) if one == kind else records) for one, records in self.kinds.items()
        )

    def of_kind(self, kind: str) -> OffsetSet:
        """The records of one kind."""
        return self.kinds.get(kind, _NOTHING)

    def of_queue(self, kind: str, key: QueueKey) -> IntervalSet:
        """The offsets of one kind in one queue."""
        return self.of_kind(kind).of_queue(key)

    def queues(self) -> set[QueueKey]:
        """Every queue that is named."""
        return {key for records in self.kinds.values() for key in records.queues}

    def to_json(self) -> dict[str, object]:
        """`{kind: an offset set as OffsetSet.to_json writes it}`."""
        return {kind: self.kinds[kind].to_json() for kind in KINDS if kind in self.kinds}

    @classmethod
    def from_json(cls, data: object) -> Outcomes:
        """What `to_json` wrote. Raises ValueError for anything else."""
        match data:
            case dict():
                named: dict[Any, Any] = data  # pyright: ignore[reportUnknownVariableType]
                return cls.of((str(kind), OffsetSet.from_json(records)) for kind, records in named.items())
            case _:
                raise ValueError(f"outcomes are a JSON object, not {type(data).__name__}")


_NOTHING = OffsetSet()


class DamagedOutcomesError(ValueError):
    """Bytes that no version of this program has written."""


@dataclass(frozen=True, slots=True)
class BatchOutcomes:
    """What a batch of the table's ledger holds, or several: how many rows they brought, and the outcomes noted with them.

    `rows` None: the outcomes of some batch among them are gone.
    """

    rows: int | None
    outcomes: Outcomes

    def pack(self) -> bytes:
        """As it is stored in the ledger: compressed JSON of short numbers, without a time in it."""
        told = {"version": OUTCOMES_VERSION, "rows": self.rows, "outcomes": self.outcomes.to_json()}
        text = json.dumps(told, separators=(",", ":"))
        return gzip.compress(text.encode(), 6, mtime=0)

    @classmethod
    def unpack(cls, packed: bytes) -> BatchOutcomes:
        """What `pack` made. Raises DamagedOutcomesError for anything else, and ValueError for what another version made."""
        try:
            data: dict[str, Any] = json.loads(gzip.decompress(packed))
            version = data["version"]
            if version == OUTCOMES_VERSION:
                rows = data["rows"]
                return cls(None if rows is None else int(rows), Outcomes.from_json(data["outcomes"]))
        except (
            OSError,
            EOFError,
            zlib.error,
            ValueError,
            KeyError,
            TypeError,
            ArithmeticError,
            RecursionError,
        ) as error:
            raise DamagedOutcomesError(f"not a list of outcomes: {type(error).__name__}: {error}") from None
        raise ValueError(f"version {version!r}, this program knows {OUTCOMES_VERSION}")
