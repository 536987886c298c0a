"""One batch of the stream, from its messages to the table; each step can be taken up after a crash.

(the checkpoint names the offsets of batch n before any of it runs)
handled   tasks have run the handler; their segments and failed messages lie in batches/<n>/
frozen    manifest.json names the files that count. Before it, a restart runs the handler again; after it, never
sent      failed messages are at the brokers, file by file (sending.py)
moved     segments are in the staging folder, outcomes beside them, then settled.json
loaded    the loader's steps have put them into the table, exactly once (spark/loader.py)
done      state.json says so; the batch's folder is deleted
(the checkpoint's commit log follows; where it is behind, the batch comes once more and is known to be done)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from ..conf.segment_format import OPEN_DIR
from ..durable.files import remove_tree, sync_path, write_atomically
from ..durable.intervals import OffsetSet
from ..durable.outcomes import Outcomes, notes_to_json
from ..remoting.errors import UsageError
from ..spark.staging import Staging
from ..workers.loading import HandlerLoadError
from .home import MANIFEST, Home, move_into
from .spec import REPORT_SCHEMA, Report, TaskSpec
from .task import FAILED_DIR, SEEN_DIR, run_tasks

Send = Callable[[Path], Outcomes]
Job = Callable[[Any, TaskSpec], list[Report]]

_log = structlog.get_logger("rocketcrew.engine")


def spark_job(frame: Any, spec: TaskSpec) -> list[Report]:
    """Have Spark run the handler over the messages in `frame`. Raises HandlerLoadError, and what Spark raises."""
    rows = frame.mapInArrow(partial(run_tasks, spec), REPORT_SCHEMA).collect()
    reports = [Report.from_json(row.report) for row in rows]
    for report in reports:
        if report.error:
            raise HandlerLoadError(report.error, report.traceback)
    return sorted(reports, key=lambda report: report.partition)


class Batches:
    """Runs batches of one stream, one after the other."""

    def __init__(
        self, home: Home, staging: Staging, spec: TaskSpec, *, send: Send, load: Callable[[], int], job: Job = spark_job
    ) -> None:
        """`load` loads what is in the staging folder and returns the table's batch number."""
        self._home = home
        self._staging = staging
        self._spec = spec
        self._send = send
        self._load = load
        self._job = job

    def run(self, frame: Any, batch: int) -> None:
        """For `foreachBatch`. Raises what stands in the way; the batch then comes again."""
        home, query = self._home, self._home.query()
        if batch <= home.done(query):
            _log.info("batch_known", batch=batch)
            return
        folder = home.batches / str(batch)
        name = f"e{query[:8]}.{batch}"
        reports = read_manifest(folder)
        if reports is None:
            reports = self._handle(frame, folder, name)
        failed = [self._send(folder / FAILED_DIR / report.failures) for report in reports if report.failures]
        outcomes = Outcomes.union([*failed, *(report.outcomes for report in reports)])
        self._move(folder, name, reports, outcomes)
        table_batch = self._load()
        home.mark_done(query, batch, table_batch)
        remove_tree(folder)
        _log.info(
            "batch_done", batch=batch, handled=_sum(report.handled for report in reports),
            failed=_sum(report.failed for report in reports), rows=_sum(report.rows for report in reports),
        )  # fmt: skip

    def _handle(self, frame: Any, folder: Path, name: str) -> list[Report]:
        for left in (OPEN_DIR, FAILED_DIR, SEEN_DIR):  # and not hands/: what cost lives before a restart counts
            remove_tree(folder / left)
        folder.mkdir(exist_ok=True)
        reports = self._job(frame, replace(self._spec, folder=folder, prefix=name))
        # Files were synced by their tasks, their names by nobody.
        for made in (OPEN_DIR, FAILED_DIR):
            if (folder / made).is_dir():
                sync_path(folder / made)
        write_manifest(folder, reports)
        return reports

    def _move(self, folder: Path, name: str, reports: list[Report], outcomes: Outcomes) -> None:
        staging = self._staging
        names = [segment for report in reports for segment in report.segments]
        move_into([folder / OPEN_DIR / segment for segment in names], staging.ready)
        if outcomes:
            write_atomically(staging.outcomes / f"{name}.json", notes_to_json(outcomes), durable=True)
            settled = OffsetSet.union([staging.settled(), *outcomes.kinds.values()])
            self._home.write_settled(settled)


def read_manifest(folder: Path) -> list[Report] | None:
    """The reports that were frozen, None when the handler has to run. Raises UsageError for a file that is damaged."""
    try:
        return [Report.from_json(line) for line in json.loads((folder / MANIFEST).read_text())]
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{folder / MANIFEST} is not understood ({type(error).__name__}: {error}): delete the folder to run it again"
        ) from None


def write_manifest(folder: Path, reports: Iterable[Report]) -> None:
    """From now on these files are the batch."""
    write_atomically(folder / MANIFEST, json.dumps([report.to_json() for report in reports]), durable=True)


def _sum(numbers: Iterable[int]) -> int:
    return sum(numbers)
