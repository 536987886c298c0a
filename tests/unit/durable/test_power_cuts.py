"""A power cut at any moment: no sealed segment is lost, no batch is loaded in part or twice, and no reset is undone.

Facts are cut in tests/unit/supervisor/test_sealing.py, the embedded broker in tests/unit/broker/test_power_loss.py. Each test
has its control: without syncs it must lose.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "spark"))

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from observed_disk import ObservedDisk
from segment_helpers import Record, rows_of, segment_schema, write_segment

from rocketcrew.durable import files
from rocketcrew.durable.intervals import OffsetSet
from rocketcrew.remoting.errors import RocketcrewError
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.spark.arrow_writer import ArrowWriter
from rocketcrew.spark.errors import BadSegmentError, LoaderError
from rocketcrew.spark.loader import Loader
from rocketcrew.spark.plan import PlanBounds, Trigger
from rocketcrew.spark.segments import read_facts
from rocketcrew.spark.staging import Staging
from rocketcrew.spark.targets.delta import DeltaTarget, append_by_delta_rs, open_log
from rocketcrew.spark.targets.local_folder import LocalFolder
from rocketcrew.spark.targets.parquet import ParquetTarget
from rocketcrew.spark.targets.target import Target
from rocketcrew.supervisor import journal_file
from rocketcrew.supervisor.core.actions import JournalCommitted, JournalDone, JournalSealed
from rocketcrew.supervisor.core.journal import Entry, JournalState
from rocketcrew.supervisor.journal_file import JournalFile, read_journal
from rocketcrew.workers.sealing import Sealer, seal_file
from rocketcrew.workers.segment import SegmentWriter

CASES, FULL_CASES = 150, 3_400
"""Of each: in CI, and in the soak run, which has 10,000 together."""
LOSSES_ENOUGH = 11
"""A control that has lost so often has shown that its cuts lose."""
STEPS_MAX = 20
A, B = MessageQueue("orders", "broker-a", 0), MessageQueue("orders", "broker-a", 1)


@pytest.fixture
def cases(full_numbers: bool) -> int:
    return FULL_CASES if full_numbers else CASES


def cut_at_each_step(disk: ObservedDisk, root: Path, random: Random, promised: set[int]) -> list[tuple[Path, set[int]]]:
    """What a cut before each step leaves, in folders beside `root`, and what had been promised by then."""
    cuts: list[tuple[Path, set[int]]] = []

    def cut() -> None:
        cuts.append((root.with_name(f"{root.name}-cut-{len(cuts)}"), set(promised)))
        disk.cut(random, cuts[-1][0])

    disk.on_step = cut
    return cuts


# --- segments -----------------------------------------------------------------------------------------------------------


def offsets_in(folder: Path) -> set[int]:
    """Of the records whose rows are in sealed segments that can be read."""
    found: list[OffsetSet] = []
    for path in folder.glob("ready/*.arrows"):
        try:
            found.append(read_facts(path).offsets)
        except BadSegmentError:
            continue
    together = OffsetSet.union(found)
    return {n for pieces in together.queues.values() for start, stop in pieces.pieces for n in range(start, stop)}


def cut_segments(place: Path, seed: int, cases: int, *, keeps: bool) -> int:
    """In how many of so many power cuts a record was lost whose segment had been reported as sealed."""
    random, made, losses = Random(seed), 0, 0
    schema = segment_schema()
    while made < cases and losses < LOSSES_ENOUGH:
        root = place / f"{seed}-{made}"
        for folder in ("open", "ready"):
            (root / folder).mkdir(parents=True)
        disk = ObservedDisk(root, keeps=keeps)
        promised: set[int] = set()
        cuts = cut_at_each_step(disk, root, random, promised)
        with disk.observed():
            writer = SegmentWriter(root, "w1", schema, seal_rows=1, seal_bytes=1, seal_idle_ms=1, pause=refuse)
            sealer, offset = Sealer(root / "ready", pause=refuse, waits=None), 0
            for number in range(6):
                offsets = range(offset, offset + random.choice((1, 40, 400)))
                offset = offsets.stop
                write_batch(writer, schema, offsets)
                ended = writer.detach()
                assert ended is not None
                sealer.add(*ended)
                if sealer.take():
                    promised |= set(offsets)
                if number % 3 == 2:  # the loader has them in the table, and deletes them
                    for path in root.glob("ready/*.arrows"):
                        promised -= offsets_in_file(path)
                        path.unlink()
        for left, was in cuts:
            lost = was - offsets_in(left)
            losses += bool(lost)
            assert not lost or not keeps, f"seed {seed}, {left.name}: lost {sorted(lost)[:5]}"
            shutil.rmtree(left)
        made += len(cuts)
        shutil.rmtree(root)
    return losses


def refuse(what: str, error: OSError) -> None:
    raise AssertionError(what) from error


def offsets_in_file(path: Path) -> set[int]:
    pieces = [one for found in read_facts(path).offsets.queues.values() for one in found.pieces]
    return {number for start, stop in pieces for number in range(start, stop)}


def write_batch(writer: SegmentWriter, schema: pa.Schema, offsets: range) -> None:
    rows = [row for offset in offsets for row in rows_of(Record(offset, ["x" * 50]))]
    writer.append(pa.RecordBatch.from_pylist(rows, schema=schema), b"[]", 0)


def test_a_sealed_segment_survives_any_power_cut(tmp_path: Path, cases: int) -> None:
    assert cut_segments(tmp_path, 0, cases, keeps=True) == 0


def test_without_syncs_a_sealed_segment_would_be_lost(tmp_path: Path) -> None:
    assert cut_segments(tmp_path, 0, 60, keeps=False) >= LOSSES_ENOUGH


# --- the loader's commit ------------------------------------------------------------------------------------------------


TABLES = ("parquet", "deltalake")


def loader_of(root: Path, threads: ThreadPoolExecutor, table: str) -> tuple[Staging, Loader]:
    staging = Staging(root / "staging")
    target: Target = ParquetTarget(LocalFolder(root / "table", threads), ArrowWriter())
    if table == "deltalake":
        target = DeltaTarget(root / "table", append_by_delta_rs, lambda: None)
    loader = Loader(
        staging, target, Trigger(1, 1, 0), PlanBounds(1, 1 << 40), threads=threads, cores=1,
        new_id=lambda batch: f"{batch:08d}-{next(_IDS)}",
    )  # fmt: skip
    return staging, loader


_IDS = iter(range(1 << 60))


def rows_after(root: Path, threads: ThreadPoolExecutor, table: str) -> Counter[int]:
    """Of each offset, after the next start of the machine, once another loader has done what there is to do. A Delta table
    whose newest commit is torn is refused, and the operator does what the refusal says."""
    try:
        return rows_loaded(root, threads, table)
    except RocketcrewError as error:
        if table != "deltalake":
            raise
        follow(str(error), root)
        return rows_loaded(root, threads, table)


def follow(advice: str, root: Path) -> None:
    """Raises LoaderError where it is no advice that a machine can follow."""
    log = root / "table/_delta_log"
    away = root / "away"
    away.mkdir()
    if "Move all in the table's folder but _rocketcrew" in advice:
        gone = [path for path in (root / "table").iterdir() if path.name != "_rocketcrew"]
    else:
        found = re.search(r"move (\S+)/(\d{20})\.json and", advice)
        if found is None:
            raise LoaderError(advice)
        gone = [*log.glob(f"{found[2]}.*"), *log.glob("_last_checkpoint")]
    for path in gone:
        path.rename(away / path.name)


def rows_loaded(root: Path, threads: ThreadPoolExecutor, table: str) -> Counter[int]:
    _, loader = loader_of(root, threads, table)
    loader.recover()
    steps = 0
    while loader.step(10**13, at_once=True) is not None or loader.waiting.segments:
        steps += 1
        if steps > STEPS_MAX:
            raise LoaderError("it does not come to an end")
    files = [str(path) for path in (root / "table").glob("batch_id=*/*.parquet")]
    if table == "deltalake" and (root / "table").exists():
        files = [
            str(root / "table" / path)
            for path in pa.table(open_log(root / "table").get_add_actions())["path"].to_pylist()
        ]
    return Counter(ds.dataset(files).to_table().column("_offset").to_pylist()) if files else Counter()


def cut_commits(place: Path, seed: int, cases: int, table: str, *, keeps: bool) -> int:
    """In how many of so many power cuts a sealed record was not in the table once in the end."""
    random, made, losses = Random(seed), 0, 0
    while made < cases and losses < LOSSES_ENOUGH:
        root = place / f"{seed}-{made}"
        (root / "staging/open").mkdir(parents=True)
        (root / "staging/ready").mkdir()
        disk = ObservedDisk(root, keeps=keeps)
        for number in range(3):  # before it is observed: they are on the disk, and it is the commits that lose
            seal(root / "staging", number + 1, range(number * 20, number * 20 + 20))
        promised = set(range(60))
        cuts = cut_at_each_step(disk, root, random, promised)
        with ThreadPoolExecutor(2) as threads:
            with disk.observed():
                _, loader = loader_of(root, threads, table)
                loader.recover()
                for _ in range(3):
                    assert loader.step(10**13, at_once=True) is not None
            for left, was in cuts:
                if losses < LOSSES_ENOUGH:
                    losses += is_lost(left, was, threads, table, f"seed {seed}, {left.name}", keeps=keeps)
                shutil.rmtree(left)
        made += len(cuts)
        shutil.rmtree(root)
    return losses


def seal(staging: Path, seq: int, offsets: Sequence[int]) -> None:
    path = write_segment(staging / "aside", "w1", seq, [[Record(offset) for offset in offsets]])
    opened = path.rename(staging / "open" / path.name)
    seal_file(opened, staging / "ready")


def is_lost(left: Path, was: set[int], threads: ThreadPoolExecutor, table: str, where: str, *, keeps: bool) -> bool:
    try:
        rows = rows_after(left, threads, table)
    except (RocketcrewError, OSError, pa.ArrowException):
        if keeps:
            raise
        return True
    wrong = {offset for offset in was if rows[offset] != 1} | {offset for offset, count in rows.items() if count > 1}
    assert not wrong or not keeps, f"{where}: {sorted(wrong)}"
    return bool(wrong)


@pytest.mark.parametrize("table", TABLES)
def test_no_power_cut_loses_or_doubles_a_row_of_a_commit(tmp_path: Path, cases: int, table: str) -> None:
    full = FULL_CASES if table == "parquet" else FULL_CASES // 10  # delta-rs takes ten times as long
    assert cut_commits(tmp_path, 0, full if cases > CASES else CASES // 3, table, keeps=True) == 0


@pytest.mark.parametrize("table", TABLES)
def test_without_syncs_a_commit_would_lose_rows(tmp_path: Path, table: str) -> None:
    assert cut_commits(tmp_path, 0, 60, table, keeps=False) >= LOSSES_ENOUGH


# --- the journal --------------------------------------------------------------------------------------------------------


def told(state: JournalState) -> object:
    """What a state says, in one form."""
    queues = {mq: (log.start, log.committed, tuple(log.durable.pairs())) for mq, log in state.queues.items()}
    return queues, {token: tuple(sorted(items)) for token, items in state.pending.items()}


def some_entry(random: Random, at: dict[MessageQueue, int]) -> Entry:
    mq = random.choice((A, B))
    draw = random.random()
    if draw < 0.7:
        start = at[mq] + random.randrange(200)
        seq = random.randrange(3)
        return JournalDone(mq, start, start + 1 + random.randrange(4), "w1" if seq else "", seq)
    if draw < 0.85:
        return JournalSealed("w1", 1 + random.randrange(2))
    back = random.random() < 0.3
    at[mq] = random.randrange(at[mq] + 1) if back else at[mq] + random.randrange(30)
    return JournalCommitted(mq, 0, at[mq])


class TroubledDisk:
    """Refuses a `share` of writes and of syncs of a folder; some writes take but a part."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.share = 0.0

    def write(self, fd: int, data: memoryview) -> int:
        if not self.share:
            return os.write(fd, data)
        self._refuse(errno.ENOSPC)
        return os.write(fd, data[: 1 + self._random.randrange(len(data))])

    def sync_path(self, path: Path) -> None:
        if self.share:
            self._refuse(errno.EIO)
        files.sync_path(path)

    def _refuse(self, code: int) -> None:
        if self._random.random() < self.share:
            raise OSError(code, os.strerror(code))


def cut_journals(place: Path, seed: int, cases: int, *, keeps: bool, full: float = 0.0) -> int:
    """In how many of so many power cuts a journal was no longer readable, said what nobody had, or forgot a reset.

    `full`: the share of writes, and of syncs of the folder, that fail.
    """
    random, made, losses = Random(seed), 0, 0
    while made < cases and losses < LOSSES_ENOUGH:
        root = place / f"{seed}-{made}"
        root.mkdir(parents=True)
        disk = ObservedDisk(root, keeps=keeps)
        path = root / "journal"
        cuts: list[tuple[Path, int, int]] = []
        history: list[object] = [told(JournalState())]
        promised = 0

        def cut(root: Path = root, disk: ObservedDisk = disk) -> None:
            cuts.append((root.with_name(f"{root.name}-cut-{len(cuts)}"), promised, len(history)))  # noqa: B023
            disk.cut(random, cuts[-1][0])  # noqa: B023

        with disk.observed(), pytest.MonkeyPatch.context() as patch:
            troubled = TroubledDisk(random)
            patch.setattr(journal_file, "sync_path", troubled.sync_path)
            bytes_max = random.choice((200, 2_000, 20_000))
            journal = JournalFile(path, JournalState(), bytes_max, write=troubled.write)
            troubled.share = full
            shadow, at, back = JournalState(), {A: 0, B: 0}, 0
            for _ in range(40):
                entries = [some_entry(random, at) for _ in range(1 + random.randrange(5))]
                went_back = [shadow.apply(entry) for entry in entries]
                history.append(told(shadow))
                back = len(history) - 1 if any(went_back) else back
                try:
                    journal.append(entries)
                except OSError:
                    assert full
                else:  # also a reset that an earlier call could not write; one that it could need not be written anew
                    promised = back
                cut()
            journal.close()
        for left, upto, since in cuts:
            losses += is_wrong(left / "journal", history, upto, since, keeps=keeps)
            shutil.rmtree(left)
        made += len(cuts)
        shutil.rmtree(root)
    return losses


def is_wrong(path: Path, history: list[object], promised: int, upto: int, *, keeps: bool) -> bool:
    """What is there must be what was said at some moment since the last reset that was promised."""
    try:
        found = told(read_journal(path))
    except RocketcrewError:
        if keeps:
            raise
        return True
    wrong = found != history[0] and found not in history[promised:upto]
    assert not wrong or not keeps, f"{path}: state {history.index(found) if found in history else '?'}, not {promised}"
    return wrong


def test_a_journal_says_no_more_than_was_said_after_any_power_cut(tmp_path: Path, cases: int) -> None:
    assert cut_journals(tmp_path, 0, cases, keeps=True) == 0


def test_a_journal_that_met_a_full_disk_undoes_no_reset(tmp_path: Path, cases: int) -> None:
    assert cut_journals(tmp_path, 1, 3 * cases, keeps=True, full=0.1) == 0


def test_without_syncs_a_journal_would_forget_a_reset(tmp_path: Path) -> None:
    assert cut_journals(tmp_path, 0, 400, keeps=False) >= LOSSES_ENOUGH
