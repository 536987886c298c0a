"""The loader's steps: sealed segments to batches of the table, each record once, whatever dies in between.

One batch is this sequence. Every step leaves something on disk from which `recover` knows what to do; the names are the
points at which tests kill the process.

    (gather)      files of facts are read, THEN ready/ is listed; bad files go to bad/
    planned       the plan is frozen: plan/<id>.json                     -> run it again, same id, same records
    staged        its rows are Parquet files in plan/<id>.staged/         -> swept by who locks the folder; run again
    job_done      Spark has written them to a place nobody reads         -> replaced by the next run
    noted         the plan's files of facts are read             -> they stay until a commit has them; twice is once
    renamed       THE COMMIT: rows and loaded set are visible together    -> the target has the plan: mark it done
    done_marked   plan/<id>.done                                         -> only this and deletions are left:
    left          outcomes/<id>.left: facts of records not loaded yet    -> written again, from the plan's facts
    deleting      some of its segments are deleted                       -> delete the rest
    finished      the plan file is gone                                  -> nothing to do

Should a mark be lost all the same, nothing is loaded twice: the records are in the table's loaded set, and a segment
that has nothing new is deleted without a batch. When the target has moved on since a plan was frozen (another loader
won its number), the plan is dropped and a new one made: it was never visible.

The copies need room on the disk that the segments fill. So a plan takes no more than there is room for, also on the disk of
the table, and one that meets a full disk all the same, with its copies or with the table's files, is dropped, with its
copies, for one of half its bytes, down to one segment. Only when that does not fit either, the loader ends, as it does at
once where the target cannot tell whether it has the rows. Whatever fails, no copies are left.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import replace
from itertools import islice

from ..client.logs import get_logger
from ..conf.columns import Column, ColumnConflictError, merged
from ..conf.segment_format import EPOCH
from ..durable.intervals import IntervalSet, OffsetSet, QueueKey
from ..durable.outcomes import (
    CLOSED,
    ELSEWHERE,
    ENDS,
    FORGOTTEN,
    NO_ROWS,
    PASSED,
    ROWS,
    SETTLED,
    SETTLING,
    BatchOutcomes,
    Outcomes,
)
from .accounts import NO_DETAIL, PIECES_MAX, Accounts, Detail, detail_after, open_tops, shrunk
from .convert import COPY_DISK, FILE_BYTES, CopyDisk, DamagedSegmentError, Staged, stage
from .costs import Costs
from .epochs import Opening, in_epochs, inherited, next_stretch, tops_after
from .errors import BadSegmentError, BatchTakenError, LoaderError, is_no_room
from .gaps import Gaps
from .outcome_levels import SPAN, check_whole
from .plan import (
    Early,
    Ends,
    Plan,
    PlanBounds,
    SegmentFacts,
    Take,
    Trigger,
    age_ms,
    first_fitting,
    make_takes,
    settled_to_fold,
    within_room,
)
from .progress import COMMITTING, WRITING, Progress
from .reports import BatchReport, Dropped, Elsewhere, Totals, Waiting
from .segments import read_times, readable_offsets
from .staging import ReadyFile, Staging, inspect
from .status import is_another
from .targets.target import TableState, Target

POINTS = ("planned", "staged", "job_done", "noted", "renamed", "done_marked", "left", "deleting", "finished")
"""Names of the moments between steps, in order."""
RACES_LOST_MAX = 20
"""Races lost one after the other before the loader gives up: more than a handful means that something is wrong."""


class Loader:
    """Loads one staging folder into one target. Not thread-safe: one thread calls it."""

    def __init__(
        self,
        staging: Staging,
        target: Target,
        trigger: Trigger,
        bounds: PlanBounds,
        *,
        threads: Executor,
        cores: int,
        new_id: Callable[[int], str],
        on_point: Callable[[str], None] = lambda _: None,
        file_bytes: int = FILE_BYTES,
        epoch_on_recreated: bool = False,
        leave_gaps: bool = False,
        pieces_max: int = PIECES_MAX,
        epoch_column: bool = False,
        exact: bool = True,
        disk: CopyDisk = COPY_DISK,
        table_replaced: str = "",
    ) -> None:
        """`threads` read and convert, for `cores` tasks of Spark at once; `new_id` makes an unused plan id.

        `pieces_max`: intervals of one queue in the table's state (accounts.py). `epoch_column`: a new table has the column
        `_epoch` from its first file on, by which many a reader of Parquet folders decides what columns there are. `exact`:
        the target knows what it holds; another may have had the rows of a plan that an earlier process froze, and gets
        these again and no others. `table_replaced`: what to do about a table that has gone back.
        """
        self.waiting = Waiting()
        self.totals = Totals()
        self.costs = Costs()
        self.progress = Progress()
        self.topics: frozenset[str] = frozenset()
        """Of the table, as of the last batch that was loaded."""
        self._staging = staging
        self._target = target
        self._trigger = trigger
        self._plan_bounds = bounds
        self._threads = threads
        self._cores = cores
        self._new_id = new_id
        self._on_point = on_point
        self._file_bytes = file_bytes
        self._epoch_on_recreated = epoch_on_recreated
        self._gaps = Gaps(staging, leave=leave_gaps)
        self._pieces_max = pieces_max
        self._epoch_column = epoch_column
        self._exact = exact
        self._disk = disk
        self._table_replaced = table_replaced
        self._bytes_max = bounds.bytes_max
        """Of a plan: less after one that met a full disk, and twice as much after each commit until it is the limit again."""
        self._detail: tuple[TableState, Detail] | None = None
        """What outcomes say of holes, and the state of the table by which that is so."""
        self._started = False
        self._early = Early()
        self.batch = 0
        """What the table is known to have reached: its batch number."""
        self.table = ""
        """The id of the table, as TableState has it, as far as it is known."""
        self.plan = ""
        """The id of the plan that became the batch which the table is known to have reached, as far as it is known."""
        self._facts: dict[str, SegmentFacts] = {}
        self._resume: Plan | None = None
        self._races_lost = 0
        self._log = get_logger().bind(staging=str(staging.root))
        self._dropped = Dropped(self.totals, self._log)
        self._elsewhere = Elsewhere(self.totals, self._log)

    def recover(self, known_batch: int = 0, known_table: str = "", known_plan: str = "") -> None:
        """Finish or take up what an earlier process left. Call once, before the first step; the folder is locked.

        `known_batch`: the batch that the table is known to have reached, `known_table`: its id, `known_plan`: the plan that
        became that batch. Raises LoaderError when it has fewer or is another one: it was deleted or swapped under us, and
        going on would hide which records are missing.
        """
        self.batch, self.table, self.plan = known_batch, known_table, known_plan
        self._staging.set_damaged_aside()
        self._target.sweep()
        state = self._state()
        for plan in self._staging.done_plans():
            self._leave(plan, state)
            self._finish(plan)
        for plan in self._staging.frozen_plans():
            self._recover_plan(plan, state)

    @property
    def resuming(self) -> bool:
        """A plan of an earlier process is to be run first."""
        return self._resume is not None

    def _state(self) -> TableState:
        """The table's state, which never goes back: also not under a loader that runs on for weeks."""
        state = self._target.state()
        if state.batch < self.batch:
            raise LoaderError(
                f"the table had reached batch {self.batch}, and is now at {state.batch}: it was removed, replaced or"
                f" taken back. {self._table_replaced}"
            )
        if is_another(self.table, state.table):
            raise LoaderError(
                f"the table had reached batch {self.batch}, and there is another one in its place, at batch"
                f" {state.batch}: it was removed or replaced. {self._table_replaced}"
            )
        if is_another(self.plan, state.plan_of(self.batch)):
            raise LoaderError(
                f"the table is at batch {state.batch}, and its batch {self.batch} is not the one that it had reached:"
                " it was taken back, as by a copy that was put in its place, and others have loaded on from there, or it was"
                f" replaced. {self._table_replaced}"
            )
        self.batch, self.plan, self.table = state.batch, state.plan_id, state.table or self.table
        return state

    def _recover_plan(self, plan: Plan, state: TableState) -> None:
        if self._was_committed(plan):
            return
        if plan.follows(state.batch, state.plan_id) and self._resume is None:
            self._log.info("plan_taken_up", plan=plan.id, batch=plan.batch)
            self._resume = plan
        else:
            self._drop_plan(plan, "the table has moved on")

    def _was_committed(self, plan: Plan) -> bool:
        """Whether the plan is a batch of the table, and done with that: an earlier process may be dead, and its commit still
        be made, by a server that was slow with it."""
        if not self._target.has(plan):
            return False
        self._log.info("plan_was_committed", plan=plan.id, batch=plan.batch)
        self._staging.mark_done(plan.id)
        self._leave(plan, self._target.state())
        self._finish(plan)
        return True

    def step(self, now_ms: int, *, at_once: bool) -> BatchReport | None:
        """Load one batch if one is due (`at_once`: if there is anything at all). `now_ms` is wall-clock time.

        None: nothing was due, or the plan has to be made anew; `waiting` tells which. Raises LoaderError.
        """
        names, noted, ready = self._gather()
        segments = [self._facts[file.path.name] for file in ready]
        self._note_waiting(ready)
        plan, self._resume = self._resume, None
        if plan is not None and not set(plan.names) <= self._facts.keys():
            self._drop_plan(plan, "segments of it are gone")
            plan = None
        if plan is not None and self._exact and (why := self._is_too_large(plan)):
            self._drop_plan(plan, why)
            plan = None
        if plan is None and not self._is_wanted(now_ms, ready, segments, at_once=at_once):
            return None  # the table is not asked: in a bucket each question is a request
        state = self._state()
        if plan is not None and not plan.follows(state.batch, state.plan_id):
            if self._was_committed(plan):
                return None
            self._drop_plan(plan, "the table has moved on")
            plan = None
            if not self._is_wanted(now_ms, ready, segments, at_once=at_once):
                return None
        may_drop = self._exact or plan is None
        if plan is None:
            plan = self._plan(state, segments, names, noted)
            if plan is None:
                return None
            self._staging.freeze(plan)
        try:
            report = self._run(plan, state, may_drop=may_drop)
        except Exception:
            self._staging.sweep()  # whoever tries again, and everybody else, needs the room
            raise
        finally:
            self.progress.end()
        if report is not None:
            left = self._facts.keys() - set(plan.names)
            self._note_waiting([file for file in ready if file.path.name in left])
        return report

    def _is_wanted(
        self, now_ms: int, ready: Sequence[ReadyFile], segments: Sequence[SegmentFacts], *, at_once: bool
    ) -> bool:
        return bool(ready) and (at_once or self._is_due(now_ms, ready, segments))

    def _is_due(self, now_ms: int, ready: Sequence[ReadyFile], segments: Sequence[SegmentFacts]) -> bool:
        first, last = ready[0].sealed_ms, ready[-1].sealed_ms
        # The last is the older one where the clock was set back after it was sealed.
        oldest_ms = max(age_ms(now_ms, first), age_ms(now_ms, last))
        if self._trigger.for_costs(self.costs).due(segments, oldest_ms):
            return True
        self._early = self._early.at(now_ms, self._trigger.wait_ms)
        # The first batch does not wait for a pause: somebody looks whether rows arrive.
        newest_ms = age_ms(now_ms, last) if self._started else oldest_ms
        if self._early.spare < 1 or not self._trigger.is_quiet(newest_ms):
            return False
        self._early = self._early.made()
        return True

    def drain(self, now_ms: Callable[[], int], should_stop: Callable[[], bool]) -> Iterable[BatchReport]:
        """Load all that is sealed, batch by batch, until ready/ is empty or `should_stop`."""
        while not should_stop():
            report = self.step(now_ms(), at_once=True)
            if report is not None:
                yield report
            elif not self.waiting.segments:
                return

    def _gather(self) -> tuple[tuple[str, ...], Outcomes, list[ReadyFile]]:
        """Files of facts, what was noted, and what is sealed. Notes first, listing second: see staging.py."""
        names, noted = self._staging.noted()
        ready = self._staging.list_ready()
        fresh = [file for file in ready if file.path.name not in self._facts]
        known = {file.path.name for file in ready}
        self._facts = {name: facts for name, facts in self._facts.items() if name in known}
        for file, found in zip(fresh, self._threads.map(inspect, fresh), strict=True):
            if isinstance(found, SegmentFacts):
                self._facts[file.path.name] = found
            elif found is not None:
                self._quarantine(file.path.name, found, readable_offsets(file.path))
        return names, noted, [file for file in ready if file.path.name in self._facts]

    def _note_waiting(self, ready: Sequence[ReadyFile]) -> None:
        self.waiting = Waiting(
            segments=len(ready),
            rows=sum(self._facts[file.path.name].rows for file in ready),
            bytes=sum(file.bytes for file in ready),
            oldest_ms=ready[0].sealed_ms if ready else 0,
        )

    def _plan(
        self, state: TableState, segments: list[SegmentFacts], names: tuple[str, ...], noted: Outcomes
    ) -> Plan | None:
        """A plan for the oldest segments that fit; None when it has nothing new, and its segments are deleted. `names` are of
        the files of facts whose notes are among `noted`."""
        columns, fitting = self._fit_columns(state, segments)
        request = self._staging.epoch_request()
        most = first_fitting(fitting, self._bounds())
        newest = [key.in_epoch(epoch) for key, epoch in state.epochs.items()]
        # Before epochs are looked for: a late record of a hole that was passed is no queue that begins anew.
        detail = self._detail_of(state, (in_epochs(segment, newest).offsets for segment in fitting[:most]))
        exact = state if detail is None else state.exactly(detail.open)
        try:
            stretch = next_stretch(fitting[:most], exact.loaded, state.tops, request, self._times_of)
        except DamagedSegmentError as error:
            self._set_aside(error.name, error.reason)
            return None
        if stretch.unclear:
            self._set_aside(fitting[0].name, stretch.unclear, apart=True)
            return None
        for opening in stretch.openings:
            self._open_epoch(opening)
        count = min(stretch.length, most)
        chosen = [in_epochs(segment, stretch.epochs) for segment in fitting[:count]]
        begun_anew = {key.in_epoch(0) for key in (*stretch.epochs, *request.queues)} | state.epochs.keys()
        noted = noted.from_first(OffsetSet.union([state.loaded, *(segment.offsets for segment in chosen)]))
        settled = noted.of_kind(SETTLED).without(begun_anew)
        told = OffsetSet.union([settled, *(noted.of_kind(kind).without(begun_anew) for kind in SETTLING)])
        ended = OffsetSet.union(noted.of_kind(kind).without(begun_anew) for kind in ENDS)
        ended -= noted.of_kind(ELSEWHERE) & state.loaded  # it is said again and again, of all that was shown
        inherits = inherited(stretch.openings, state.loaded)
        of_before = inherits.rekeyed(lambda key: key.in_epoch(key.epoch - 1))
        detail = detail or self._detail_of(state, [told, ended, of_before, *(segment.offsets for segment in chosen)])
        if detail is not None:
            state = state.exactly(detail.open)
        inherits = inherited(stretch.openings, state.loaded)
        takes = make_takes(chosen, state.loaded | inherits)
        if not any(take.of(segment.offsets) for take, segment in zip(takes, chosen, strict=True)):
            self._delete_known(takes)
            return None
        _, bad = self._staging.bad_segments()
        fold = settled_to_fold(told - state.loaded, fitting[count:], bad)
        ended = settled_to_fold(ended - state.loaded, fitting[count:], bad)
        if detail is not None:
            ended -= detail.open  # they were passed before
        known = noted if detail is None else Outcomes.union([noted, Outcomes.of([(NO_ROWS, detail.noted)])])
        fold -= self._gaps.find(state, settled - state.loaded, fitting, bad, known)
        if stretch.epochs or (self._epoch_column and not state.batch):
            columns = merged(columns, (Column(EPOCH, "bigint"),))
        batch = state.batch + 1
        since = {opening.key: opening.ends.first_us for opening in stretch.openings}
        return Plan(
            self._new_id(batch), batch, takes, fold, columns, stretch.epochs, since, inherits, ended, names, state.plan_id
        )  # fmt: skip

    def _bounds(self) -> PlanBounds:
        """What a plan may take now."""
        bounds = replace(self._plan_bounds, bytes_max=self._bytes_max)
        return within_room(bounds, self._disk.free_bytes(self._staging.plans))

    def _is_too_large(self, plan: Plan) -> str:
        """Why a plan of an earlier process is to be made smaller, empty where it is not or cannot be."""
        size = self._bytes_of(plan)
        if len(plan.takes) == 1 or size <= self._bounds().bytes_max:
            return ""
        return "the disk has no room for it" if size <= self._bytes_max else "it has more than spark.max_bytes_mib"

    def _bytes_of(self, plan: Plan) -> int:
        return sum(self._facts[name].bytes for name in plan.names)

    def _times_of(self, name: str, key: QueueKey, offsets: IntervalSet) -> tuple[Ends, ...]:
        try:
            return read_times(self._staging.ready / name, key, offsets)
        except BadSegmentError as error:
            raise DamagedSegmentError(name, str(error)) from None

    def _detail_of(self, state: TableState, touched: Iterable[OffsetSet]) -> Detail | None:
        """What the table's outcomes say of the holes that its floors have passed, if any of `touched` is among them."""
        if not state.holes or not any(one & state.holes for one in touched):
            return None
        if self._detail is None or self._detail[0].plan_id != state.plan_id:
            self._detail = (state, self._read_detail(state))
        return self._detail[1]

    def _read_detail(self, state: TableState) -> Detail:
        """Only what was committed since the last time is read; from time to time all, as old outcomes are forgotten."""
        known, before = self._detail or (None, NO_DETAIL)
        above = 0 if known is None or known.batch > state.batch else known.batch
        if above // SPAN != state.batch // SPAN:
            above = 0
        told = list(self._target.outcomes(above))
        if above and any(one.outcomes.of_kind(FORGOTTEN) for one in told):
            # What ended a hole since then is no longer said: what is kept of older ones alone is not to be trusted.
            above, told = 0, list(self._target.outcomes())
        check_whole(told, passed=bool(above))
        return detail_after(before if above else NO_DETAIL, state.loaded, state.holes, (one.outcomes for one in told))

    def _open_epoch(self, opening: Opening) -> None:
        key, ends, _, _ = opening
        queue = f"{key.topic} {key.broker} {key.queue_id}"
        if not self._epoch_on_recreated:
            raise LoaderError(
                f"the queue {queue} of group {key.group} begins anew: offset {ends.first_offset} was loaded already, and now"
                " comes with another message, which was stored later. Either its topic was deleted and made again, or its"
                " broker failed over to a replica that lagged, and lost the queue's end: then the table alone has the lost"
                " messages, and these came in their place. In both cases set spark.on_recreated = epoch to load them as a new"
                " epoch (column _epoch), or load them into another table"
            )
        self._log.warning("epoch_opened", topic=key.topic, broker=key.broker, queue_id=key.queue_id, group=key.group,
                          epoch=key.epoch, first_offset=ends.first_offset)  # fmt: skip

    def _facts_of(self, plan: Plan) -> dict[str, SegmentFacts]:
        """The facts of the plan's segments, in its epochs."""
        return {name: in_epochs(self._facts[name], plan.epochs) for name in plan.names}

    def _fit_columns(
        self, state: TableState, segments: Iterable[SegmentFacts]
    ) -> tuple[tuple[Column, ...], list[SegmentFacts]]:
        """Our columns of the table with those that the segments bring; segments that don't fit are set aside."""
        columns = (*state.columns, *state.others)
        fitting: list[SegmentFacts] = []
        for segment in segments:
            try:
                columns = merged(columns, segment.columns)
            except ColumnConflictError as error:
                self._set_aside(segment.name, f"does not fit the table: {error}")
                continue
            fitting.append(segment)
        brought = {column.name for segment in fitting for column in segment.columns}
        # The others are not ours to write: a null would be there instead of a default, or of what the table generates.
        left = {column.name for column in state.others} - brought
        return tuple(column for column in columns if column.name not in left), fitting

    def columns(self) -> tuple[Column, ...]:
        """Those of the table, none where there is none yet."""
        state = self._state()
        return *state.columns, *state.others

    def misfits(self, columns: tuple[Column, ...]) -> tuple[dict[str, str], tuple[Column, ...]]:
        """Sealed segments that a table of `columns` can't take, each with the reason: what `step` would set aside. And the
        columns that it has with the others."""
        *_, ready = self._gather()
        found: dict[str, str] = {}
        for file in ready:
            segment = self._facts[file.path.name]
            try:
                columns = merged(columns, segment.columns)
            except ColumnConflictError as error:
                found[segment.name] = str(error)
        return found, columns

    def _delete_known(self, takes: Iterable[Take]) -> None:
        for take in takes:
            dropped = self._facts[take.name].rows
            self._dropped.note(dropped, whole=dropped)
            self._staging.note(take.name, Outcomes.of([(NO_ROWS, self._facts[take.name].finished)]))
            self._log.info("segment_known", segment=take.name, rows_dropped=dropped)
            self._staging.delete_segment(take.name)

    def _run(self, plan: Plan, state: TableState, *, may_drop: bool) -> BatchReport | None:
        self._on_point("planned")
        begun = time.monotonic()
        rows = sum(self._facts[name].rows for name in plan.names)
        self.progress.begin(plan.batch, rows, self.waiting.rows - rows, begun)
        written = self._write(plan, begun, may_drop=may_drop)
        if written is None:
            return None
        staged, stage_s = written
        self._on_point("job_done")
        job_s = time.monotonic() - begun - stage_s
        self.progress.enter(COMMITTING, begun + stage_s + job_s)
        self._staging.set_damaged_aside()
        noted = self._staging.facts_of(plan)
        before = state.epochs
        epochs = {**before, **{key.in_epoch(0): key.epoch for key in plan.epochs}}
        accounts, outcomes, sure = self._accounts(plan, state)
        # Who noted what is elsewhere knew no epochs: at a beginning that is of the queue of before.
        begins = {base for base, epoch in epochs.items() if epoch != before.get(base, 0)}
        told = noted.without(SETTLED).not_of(ELSEWHERE, begins).in_epochs(epochs).from_first(accounts.loaded)
        going = self._gaps.going(accounts.loaded, sure, epochs)
        outcomes = Outcomes.union([told, going, outcomes])
        self._on_point("noted")
        try:
            self._target.commit(plan, accounts, BatchOutcomes(staged.rows, outcomes))
        except BatchTakenError as error:
            self._lose_race(plan, error)
            return None
        except (OSError, LoaderError) as error:
            if not self._exact or not _can_be_halved(plan, error):
                raise
            self._after_full_disk(plan)
            return None
        self._races_lost, self.batch, self.plan = 0, plan.batch, plan.id
        if plan.batch == 1:  # before, there was none that had an id
            self.table = self._target.state().table
        self.topics = frozenset(key.topic for key in accounts.loaded.queues)
        self._bytes_max = min(self._plan_bounds.bytes_max, 2 * self._bytes_max)
        self._on_point("renamed")
        report = self._report(plan, staged, begun, stage_s, job_s)
        others = (plan.ended & told.of_kind(ELSEWHERE)) - accounts.new
        self._elsewhere.note(others, accounts.new, state.loaded)
        self._staging.mark_done(plan.id)
        self._on_point("done_marked")
        self._gaps.leave(plan.id, noted, accounts.loaded, sure, epochs)
        self._on_point("left")
        self._finish(plan)
        self._on_point("finished")
        return report

    def _write(self, plan: Plan, begun: float, *, may_drop: bool) -> tuple[Staged, float] | None:
        """Have the rows written where no reader sees them: the copies, and how long these took. None: the plan is dropped, if
        it may be where it can be made smaller. Raises OSError, as of a full disk, and LoaderError."""
        try:
            staged = self._stage(plan)
            self._on_point("staged")
            stage_s = time.monotonic() - begun
            self.progress.enter(WRITING, begun + stage_s)
            self._target.write(plan, staged)
        except DamagedSegmentError as error:
            self._drop_plan(plan, "a segment of it is damaged")
            self._set_aside(error.name, error.reason)
            return None
        except BatchTakenError as error:
            self._lose_race(plan, error)
            return None
        except (OSError, LoaderError) as error:
            if not may_drop or not _can_be_halved(plan, error):
                raise
            self._after_full_disk(plan)
            return None
        return staged, stage_s

    def _after_full_disk(self, plan: Plan) -> None:
        """Unless it became its batch before the disk was full, drop the plan: the next one has half of its bytes.

        Should a server still make a commit whose answer was lost, the number is that plan's, whose state stays while it is
        free (`discard` of the targets): the next plan loses it, and what is loaded is dropped.
        """
        if not self._was_committed(plan):
            self._bytes_max = self._bytes_of(plan) // 2
            self._drop_plan(plan, "the disk is full: half of it is tried")
        self._target.sweep()  # its locks were given back when it failed, and nobody else removes them

    def _stage(self, plan: Plan) -> Staged:
        """Convert in the background while the writer starts here: Spark's first start takes as long as many batches.

        The start stays in this thread because the JVM is to die with the thread that made it.
        """
        self._staging.sweep()
        folder = self._staging.staged(plan.id)
        with ThreadPoolExecutor(1, "stage") as background:
            staging = background.submit(
                stage, plan, self._facts_of(plan), self._staging.ready, folder, self._threads, self._cores, self._file_bytes,
                self.progress, self._disk,
            )  # fmt: skip
            self._target.start()
            try:
                return staging.result()
            finally:
                del staging  # else it and an error, which has this frame, would hold each other: see `stage`

    def _accounts(self, plan: Plan, state: TableState) -> tuple[Accounts, Outcomes, OffsetSet]:
        """What counts as loaded after the plan, the outcomes that it adds of itself, and what is loaded for sure: no hole."""
        facts = self._facts_of(plan)
        taken, finished = plan.taken(facts), plan.finished(facts)
        detail = self._detail_of(state, (taken, finished, plan.settled, plan.ended))
        before = OffsetSet() if detail is None else detail.open
        brought = OffsetSet.union((taken, finished, plan.settled, plan.inherits))
        holes = state.holes if detail is None else (before - brought).hull()
        # Holes that were passed stay so: the floor never goes back.
        accounts, passed = shrunk(state.loaded | before | brought, holes, self._pieces_max, plan.ended)
        tops = open_tops(tops_after(state.tops, facts.values(), plan.since, plan.inherits), accounts.loaded)
        accounts = replace(accounts, new=brought - (state.loaded - before), tops=tops, plans=state.newest_plans)
        closed = before & (plan.settled - taken - finished)
        # What an epoch inherits has its rows in the one before.
        told = [(ROWS, taken), (NO_ROWS, finished | plan.inherits), (CLOSED, closed), (PASSED, passed)]
        still = state.holes if detail is None else before - brought
        return accounts, Outcomes.of(told), accounts.loaded - (still | passed)

    def _report(self, plan: Plan, staged: Staged, begun: float, stage_s: float, job_s: float) -> BatchReport:
        facts = [self._facts[name] for name in plan.names]
        seconds = time.monotonic() - begun
        report = BatchReport(
            batch=plan.batch,
            segments=len(facts),
            rows=staged.rows,
            rows_dropped=sum(fact.rows for fact in facts) - staged.rows,
            bytes=sum(fact.bytes for fact in facts),
            stage_s=stage_s,
            job_s=job_s,
            commit_s=seconds - stage_s - job_s,
            seconds=seconds,
        )
        if self._started:
            self.costs = self.costs.after(report.rows, report.seconds)
        self._started = True  # the first batch pays for starting Spark
        self.totals.batches += 1
        self.totals.rows += report.rows
        whole = sum(self._facts[take.name].rows for take in plan.takes if take.part is not None and not take.part)
        self._dropped.note(report.rows_dropped, whole)
        self.totals.segments += report.segments
        return report

    def _leave(self, plan: Plan, state: TableState) -> None:
        """Of a plan whose commit an earlier process made: what it took of notes and may not have left."""
        facts = self._staging.facts_of(plan)
        self._gaps.leave(plan.id, facts, state.loaded, state.loaded - state.holes, state.epochs)

    def _finish(self, plan: Plan) -> None:
        """Delete the plan's files, then the plan: the other way round, leftovers would have to be found out again."""
        names = iter(plan.names)
        for name in islice(names, 1):
            self._staging.delete_segment(name)
        self._on_point("deleting")
        for name in names:
            self._staging.delete_segment(name)
        for name in plan.facts:
            self._staging.delete_facts(name)
        self._staging.forget(plan.id)

    def _drop_plan(self, plan: Plan, why: str) -> None:
        self.totals.replanned += 1
        self._log.info("plan_dropped", plan=plan.id, batch=plan.batch, reason=why)
        self._target.discard(plan)
        self._staging.forget(plan.id)

    def _lose_race(self, plan: Plan, error: BatchTakenError) -> None:
        if self._was_committed(plan):
            self._races_lost = 0
            return
        self._races_lost += 1
        if self._races_lost > RACES_LOST_MAX:
            raise LoaderError(f"gave up after {self._races_lost} lost races in a row: {error}")
        self._drop_plan(plan, str(error))

    def _set_aside(self, name: str, reason: str, *, apart: bool = False) -> None:
        """A segment whose facts are known."""
        facts = self._facts.pop(name)
        self._quarantine(name, reason, facts.offsets | facts.finished, apart=apart)

    def _quarantine(self, name: str, reason: str, offsets: OffsetSet, *, apart: bool = False) -> None:
        self.totals.quarantined += 1
        self._log.error("segment_quarantined", segment=name, reason=reason, moved_to=str(self._staging.bad))
        self._staging.quarantine(name, reason, offsets, apart=apart)


def _can_be_halved(plan: Plan, error: OSError | LoaderError) -> bool:
    return len(plan.takes) > 1 and is_no_room(error)
