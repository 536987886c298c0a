"""One batch of the stream, from its messages to the table; each step can be taken up after a crash.

(the checkpoint names the offsets of batch n before any of it runs)
handled   tasks have run the handler; their segments and failed messages lie in batches/<n>/
frozen    manifest.json names the files that count. Before it, a restart runs the handler again; after it, never
sent      failed messages are at the brokers, file by file (sending.py)
moved     segments are in the staging folder, outcomes beside them
loaded    the loader's steps have put them into the table, exactly once (spark/loader.py)
done      state.json says so; the batch's folder is deleted
(the checkpoint's commit log follows; where it is behind, the batch comes once more and is known to be done)

A batch is known by its offsets, not by its number (planned.py). Where Spark lost its record of a batch and planned the number
anew, what was frozen of it is finished as it was, and only what is beyond that is handled.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from ..conf.segment_format import OPEN_DIR
from ..durable.files import remove_tree, sync_path, write_atomically
from ..durable.intervals import OffsetSet
from ..durable.outcomes import SETTLED, Outcomes
from ..remoting.errors import UsageError
from ..source.offsets import Offsets
from ..spark.staging import Staging
from ..workers.loading import HandlerLoadError
from .home import FAILED_DIR, MANIFEST, SEEN_DIR, Home, Reached, State, move_into
from .planned import Planned, done_before, ends_after
from .spec import REPORT_SCHEMA, Report, TaskSpec
from .task import run_tasks

Send = Callable[[Path], Outcomes]
Load = Callable[[], Reached]
Job = Callable[[Any, TaskSpec], list[Report]]

_log = structlog.get_logger("rocketcrew.engine")


def spark_job(frame: Any, spec: TaskSpec) -> list[Report]:
    """Have Spark run the handler over the messages in `frame`. Raises HandlerLoadError, and what Spark raises."""
    rows = frame.mapInArrow(partial(run_tasks, spec), REPORT_SCHEMA).collect()
    reports = [Report.from_json(row.report) for row in rows]
    for report in reports:
        if report.unwritable:
            raise UsageError(
                f"tasks on {report.unwritable}, may not write into {spec.folder}: driver and executors share"
                " supervisor.data_dir, by the same path. Where containers run as another user, let a group of both write it"
                " (chgrp and chmod 3770 on supervisor.data_dir); what tasks write into gets that group and its rights"
            )
        if report.error:
            raise HandlerLoadError(report.error, report.traceback)
    return sorted(reports, key=lambda report: report.partition)


@dataclass(frozen=True, slots=True)
class Frozen:
    """A batch whose handler has run: what stands in its manifest."""

    name: str
    planned: Planned
    reports: list[Report]


class Batches:
    """Runs batches of one stream, one after the other."""

    def __init__(
        self, home: Home, staging: Staging, spec: TaskSpec, *, send: Send, load: Load, job: Job = spark_job
    ) -> None:
        """`load` loads what is in the staging folder and returns what the table has reached."""
        self._home = home
        self._staging = staging
        self._spec = spec
        self._send = send
        self._load = load
        self._job = job

    def run(self, frame: Any, batch: int) -> None:
        """For `foreachBatch`. Raises what stands in the way; the batch then comes again."""
        home, query = self._home, self._home.query()
        state, planned = home.state(query), home.planned(batch)
        frozen = read_manifest(home.batches / str(batch))
        for number in sorted(int(one.name) for one in home.batches.iterdir() if one.name.isdigit()):
            old = read_manifest(home.batches / str(number))
            if old is not None and (number, old.planned) != (batch, planned):
                _log.warning(
                    "batch_planned_anew", batch=number, hint="Spark's record of it was lost; it is finished first"
                )
                state = self._finish(state, number, old)
                frozen = frozen if number != batch else None
        folder = home.batches / str(batch)
        if state.knows(planned):
            remove_tree(folder)
            _log.info("batch_known", batch=batch)
            return
        if frozen is None:
            name, after = self._name(query, batch), done_before(state.ends, planned)
            if after:  # its first part is in the table already, under the name of the batch
                name += f".{zlib.crc32(json.dumps(planned.to_json()).encode()):08x}"
                _log.warning(
                    "batch_known_in_part", batch=batch, after={str(tuple(queue)): at for queue, at in after.items()}
                )
            frozen = self._handle(frame, folder, Frozen(name, planned, []), after)
        self._finish(state, batch, frozen)

    @staticmethod
    def _name(query: str, batch: int) -> str:
        return f"e{query[:8]}.{batch}"

    def _finish(self, state: State, batch: int, frozen: Frozen) -> State:
        """From the manifest to the table; what is done then."""
        folder, reports = self._home.batches / str(batch), frozen.reports
        failed = [self._send(folder / FAILED_DIR / report.failures) for report in reports if report.failures]
        outcomes = Outcomes.union([*failed, *(report.outcomes for report in reports)])
        self._move(folder, frozen.name, reports, outcomes)
        reached = self._load()
        ends = ends_after(state.ends, frozen.planned)
        state = State(state.query, max(batch, state.done), reached, ends)
        self._home.write_state(state)
        remove_tree(folder)
        _log.info(
            "batch_done", batch=batch, handled=_sum(report.handled for report in reports),
            failed=_sum(report.failed for report in reports), rows=_sum(report.rows for report in reports),
        )  # fmt: skip
        return state

    def _handle(self, frame: Any, folder: Path, frozen: Frozen, after: Offsets) -> Frozen:
        for left in (OPEN_DIR, FAILED_DIR, SEEN_DIR):  # and not hands/: what cost lives before a restart counts
            remove_tree(folder / left)
        self._home.make_task_folders(folder)
        reports = self._job(frame, replace(self._spec, folder=folder, prefix=frozen.name, after=after))
        # Files were synced by their tasks, their names by nobody.
        for made in (OPEN_DIR, FAILED_DIR):
            if (folder / made).is_dir():
                sync_path(folder / made)
        frozen = replace(frozen, reports=reports)
        write_manifest(folder, frozen)
        return frozen

    def _move(self, folder: Path, name: str, reports: list[Report], outcomes: Outcomes) -> None:
        staging = self._staging
        names = [segment for report in reports for segment in report.segments]
        move_into([folder / OPEN_DIR / segment for segment in names], staging.ready)
        if outcomes:
            settled = OffsetSet.union(outcomes.kinds.values())
            staging.note(name, Outcomes.union([outcomes, Outcomes.of([(SETTLED, settled)])]))


def read_manifest(folder: Path) -> Frozen | None:
    """What was frozen, None when the handler has to run. Raises UsageError for a file that is damaged."""
    try:
        told: Any = json.loads((folder / MANIFEST).read_text())
        reports = [Report.from_json(line) for line in told["reports"]]
        return Frozen(str(told["name"]), Planned.from_json(told["offsets"]), reports)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, UsageError) as error:
        raise UsageError(
            f"{folder / MANIFEST} is not understood ({type(error).__name__}: {error}): delete the folder to run it again"
        ) from None


def write_manifest(folder: Path, frozen: Frozen) -> None:
    """From now on these files are the batch."""
    told = {
        "name": frozen.name, "offsets": frozen.planned.to_json(), "reports": [one.to_json() for one in frozen.reports]
    }  # fmt: skip
    write_atomically(folder / MANIFEST, json.dumps(told), durable=True)


def _sum(numbers: Iterable[int]) -> int:
    return sum(numbers)
