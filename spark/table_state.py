"""The table's state as a file: which batch, by which plan, which records, which columns.

Every target keeps one such file per batch where its commit makes it count: inside the batch's folder (Parquet), beside the
Delta log under the name that the commit carries, or in a ledger of its own.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

from ..conf.columns import BATCH_COLUMN, Column, folded
from ..conf.segment_format import OUTCOMES_DIR
from ..durable.files import make_folders, write_atomically
from ..durable.intervals import IntervalSet, OffsetSet, QueueKey
from ..durable.outcomes import BatchOutcomes
from ..durable.versions import check_version
from ..remoting.errors import UsageError
from .accounts import Accounts
from .cuts import cuts_to_json, with_cuts
from .errors import LoaderError, unusable
from .object_store import Place, write_whole
from .outcome_levels import FAN, SUFFIX, OutcomeLevels, Part
from .plan import Plan, Top
from .table_columns import STATE_VERSION
from .targets.target import TableState

OUTCOMES_SUFFIX = SUFFIX
_SINGLE = re.compile(r"(\d+)-(?!\d+\.(?:\d+|forgotten)\.json\.gz)(.+)\.json\.gz")
"""A commit's own file, `<batch>-<plan id>`; plan ids begin with the number too, but have no point in them."""


def write_state(
    path: Place, plan: Plan, accounts: Accounts, rows: int, *, durable: bool, partition_by: Sequence[str] = (),
    table: str = "",
) -> None:  # fmt: skip
    """Write what the table is after `plan`, whole or not at all; `table` as in TableState. Raises OSError, LoaderError."""
    names, queues = _queues_to_json(accounts)
    state = {
        "version": STATE_VERSION,
        "plan": plan.id,
        "batch": plan.batch,
        "rows": rows,
        "segments": len(plan.takes),
        "columns": plan.columns,
        "names": names,
        "queues": queues,
        **({"partition_by": list(partition_by)} if partition_by else {}),
        **({"table": table} if table else {}),
        **({"plans": accounts.plans} if accounts.plans else {}),
    }
    text = json.dumps(state, separators=(",", ":")) + "\n"
    if isinstance(path, Path):
        write_atomically(path, text, durable=durable)
    else:
        write_whole(path, text.encode())


def read_state(path: Place) -> TableState:
    """The state in the file `path`. Raises LaterVersionError for that of a later version, LoaderError when it is missing or
    not understood."""
    try:
        data: dict[str, Any] = json.loads(path.read_bytes())
        check_version(data["version"], STATE_VERSION, path)
        accounts = _queues_from_json(data)
        return TableState(
            batch=int(data["batch"]),
            plan_id=str(data["plan"]),
            loaded=accounts.loaded,
            columns=tuple(Column(str(name), str(type_)) for name, type_ in data["columns"]),
            tops=accounts.tops,
            partition_by=tuple(map(str, data.get("partition_by", ()))),
            holes=accounts.holes,
            table=str(data.get("table", "")),
            plans=tuple(map(str, data.get("plans", ()))),
        )
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise LoaderError(
            f"{path} can't be used ({type(error).__name__}: {error}), so it is unknown what is in the table. Restore the"
            f" file, or move {path.parent} away if it was not made by rocketcrew"
        ) from None


def as_in_table(state: TableState, table: str, found: Iterable[Column]) -> TableState:
    """The state with the table's own id and the types that its columns have now, which others may have changed; a column
    that they dropped comes back with the next batch."""
    there = {folded(column.name): column for column in found if column.name != BATCH_COLUMN}
    columns = tuple(there.pop(folded(column.name), column) for column in state.columns)
    return replace(state, table=table, columns=columns, others=tuple(there.values()))


def look(path: Place) -> tuple[int, int] | None:
    """What a file looks like from outside, so that another one in its place is noticed; None: there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    if isinstance(found, os.stat_result):
        return found.st_ino, found.st_mtime_ns
    return found.st_size, int(found.st_mtime * 1000)


def _queues_to_json(accounts: Accounts) -> tuple[list[str], list[list[object]]]:
    """The names, and `[group, topic, broker, queue id, closed, open, …]` for each queue, names by their place.

    `closed`: `[[epoch, start, stop], …]`; an open epoch: `[epoch, intervals, top, holes, cuts]`, where the last three may
    lack.
    """
    tops = accounts.tops
    keys = sorted({*accounts.loaded.queues, *tops})
    names = sorted({name for key in keys for name in key[:3]})
    place = {name: at for at, name in enumerate(names)}
    rows: list[list[object]] = []
    for queue, epochs in groupby(keys, key=lambda key: key[:4]):
        closed: list[list[int]] = []
        opened: list[list[object]] = []
        for key in epochs:
            pieces, holes = accounts.loaded.of_queue(key).pieces, accounts.holes.of_queue(key).pieces
            if len(pieces) == 1 and key not in tops and not holes:
                closed.append([key.epoch, *pieces[0]])
            else:
                top = tops.get(key)
                told = [list(top[:3]) if top else 0, list(holes[0]) if holes else 0, cuts_to_json(top) if top else []]
                while told and not told[-1]:
                    told.pop()
                opened.append([key.epoch, accounts.loaded.of_queue(key).to_json(), *told])
        rows.append([*(place[name] for name in queue[:3]), queue[3], closed, *opened])
    return names, rows


def _queues_from_json(data: dict[str, Any]) -> Accounts:
    names: list[str] = [str(name) for name in data["names"]]
    loaded: dict[QueueKey, IntervalSet] = {}
    holes: dict[QueueKey, IntervalSet] = {}
    tops: dict[QueueKey, Top] = {}
    for group, topic, broker, queue_id, closed, *opened in data["queues"]:
        queue = (names[int(group)], names[int(topic)], names[int(broker)], int(queue_id))
        for epoch, start, stop in closed:
            loaded[QueueKey(*queue, int(epoch))] = IntervalSet.of([(int(start), int(stop))])
        for epoch, intervals, *told in opened:
            key = QueueKey(*queue, int(epoch))
            loaded[key] = IntervalSet.from_json(intervals)
            if told and told[0]:
                offset, stored_us, since_us = (int(number) for number in told[0])
                tops[key] = with_cuts(Top(offset, stored_us, since_us), told[2] if len(told) > 2 else ())
            if len(told) > 1 and told[1]:
                holes[key] = IntervalSet.of([(int(told[1][0]), int(told[1][1]))])
    return Accounts(_filled(loaded), _filled(holes), tops=tops)


def _filled(queues: Mapping[QueueKey, IntervalSet]) -> OffsetSet:
    return OffsetSet({key: offsets for key, offsets in queues.items() if offsets})


def check_partitions(table: Place, wanted: Sequence[str], there: Sequence[str]) -> None:
    """Rows under other folders than the table's make it unreadable. Raises UsageError."""
    if tuple(wanted) != tuple(there):
        raise UsageError(
            f"the table {table} is partitioned by {list(there)}, and spark.partition_by is {list(wanted)}: set it as the"
            " table is, or give the path of a new table"
        )


def outcomes_path(folder: Place, plan: Plan) -> Place:
    """Where the ledger in `folder` keeps the outcomes that were noted with `plan`."""
    return folder / OUTCOMES_DIR / f"{plan.batch}-{plan.id}{OUTCOMES_SUFFIX}"


Winner = Callable[[int, Sequence[str]], str]
"""Which of several plans that wanted a number became that batch. Raises LoaderError when it is unknown."""


def tried_outcomes(folder: Place, batch: int) -> dict[str, Place]:
    """The own files of a batch in the ledger `folder` by the plans that wanted its number; merged files are none."""
    found = (
        (_SINGLE.fullmatch(path.name), path) for path in (folder / OUTCOMES_DIR).glob(f"{batch}-*{OUTCOMES_SUFFIX}")
    )
    return {match[2]: path for match, path in found if match}


def delete_old_states(folder: Place, plan: Plan, kept: int) -> None:
    """After the commit of `plan`: delete state files `kept` batches back, and what others noted who wanted its number."""
    for state in folder.glob("*-*.json"):
        of = state.name.partition("-")[0]
        if of.isdigit() and plan.batch - 2 * kept <= int(of) <= plan.batch - kept:
            state.unlink(missing_ok=True)
    for tried, other in tried_outcomes(folder, plan.batch).items():
        if tried != plan.id:  # of those who wanted the number and died
            other.unlink(missing_ok=True)


def write_outcomes(folder: Place, plan: Plan, told: BatchOutcomes) -> None:
    """Keep the outcomes in the ledger `folder`, on disk when this returns. Raises OSError, LoaderError."""
    write_whole(outcomes_path(folder, plan), told.pack())


def write_before_commit(
    path: Place, plan: Plan, accounts: Accounts, told: BatchOutcomes, table: Place, table_id: str = ""
) -> None:
    """Keep the outcomes, and in `path` beside them the state, before the commit that makes both count. Raises UsageError
    where the `table`'s folder can't be written, OSError where its disk is full, and LoaderError."""
    try:
        if isinstance(path, Path):
            make_folders(path.parent)
        write_outcomes(path.parent, plan, told)
        write_state(path, plan, accounts, told.rows or 0, durable=True, table=table_id)
    except OSError as error:
        raise unusable(f"the table folder {table} can't be written", error) from None


def ledger_outcomes(folder: Place, newest: int, fan: int = FAN, winner: Winner | None = None) -> OutcomeLevels:
    """The outcomes in the ledger `folder` of the batches up to `newest`. `winner` None: no plan ever loses its number."""
    place = folder / OUTCOMES_DIR

    def singles(above: int) -> Iterator[Part]:
        paths: list[Place] = sorted([*place.glob(f"[!.]*{OUTCOMES_SUFFIX}")], key=str)
        found = ((_SINGLE.fullmatch(path.name), path) for path in paths)
        own = [(int(match[1]), path) for match, path in found if match]
        named = {number for number, _ in own}
        lacking = ((number, None) for number in range(max(1, above + 1), newest + 1) if number not in named)
        for number, path in sorted([*own, *lacking], key=lambda one: one[0]):
            if above < number <= newest:
                yield Part(number, number, 0, path)

    def which(parts: Sequence[Part]) -> Part:
        assert winner is not None
        by_plan = {match[2]: part for part in parts if part.path and (match := _SINGLE.fullmatch(part.path.name))}
        return by_plan[winner(parts[0].first, list(by_plan))]

    return OutcomeLevels(place, singles, fan, None if winner is None else which)
