"""The reporter's thread comes at any moment of the loop over a chunk: between any two of its steps it reports once, and each
record is reported once, with its rows, and is held until then."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pyarrow
import pytest

from rocketcrew.conf.segment_format import OPEN_DIR
from rocketcrew.workers.api import handler
from rocketcrew.workers.boot import WorkerBounds
from rocketcrew.workers.ddl import parse_ddl
from rocketcrew.workers.failures import Failure
from rocketcrew.workers.message import make_message
from rocketcrew.workers.packets import REPORTS, Report, decode_reports
from rocketcrew.workers.rows import RowBuffer
from rocketcrew.workers.run import Run
from rocketcrew.workers.runner import Runner
from rocketcrew.workers.unreported import look
from rocketcrew.workers.worker import WorkerLoop

pa: Any = pyarrow
Make = Callable[..., Any]
KINDS = ["none", "row", "row", "fails", "rows", "none", "misfit", "row", "none"]
LOOP = Runner._run_each.__code__  # pyright: ignore[reportPrivateUsage]
WITH_ROWS = [number for number, kind in enumerate(KINDS) if kind in ("row", "rows")]


class AtStep:
    """Calls `action` before the given step (instruction) of the loop, or of what else these `codes` are."""

    def __init__(self, step: int, action: Callable[[], object], codes: Sequence[CodeType] = (LOOP,)) -> None:
        self.left = step
        self._action = action
        self._codes = codes

    def __call__(self, frame: FrameType, event: str, _arg: object) -> Any:
        if frame.f_code not in self._codes:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            self.left -= 1
            if self.left == 0:
                self._action()
        return self


class Scene:
    """One chunk, and everything that was said of it."""

    def __init__(self, bench: Make, make_record: Make, folder: Path) -> None:
        self.entries: list[Report] = []
        self.failures: list[tuple[int, Failure]] = []
        self.wrong: list[object] = []
        """Seen where an error would be taken for the handler's."""
        self.packets = 0
        self.folder = folder
        scene = self

        @handler(schema="n int")
        def handle(message: Any) -> Any:
            number: int = message.queue_offset
            scene.check(number)
            kind = KINDS[number]
            if kind == "fails":
                raise ValueError("no")
            row = {"n": "no number" if kind == "misfit" else number, "m": 0}
            return None if kind == "none" else [row, row] if kind == "rows" else row

        self.bench = bench(handle, schema="n int, m int", folder=folder, bounds=WorkerBounds(flush_interval_us=100_000))
        self.bench.worker.offer_reports()
        self.bench.chunk([make_record(offset=number) for number in range(len(KINDS))], 1)
        self.bench.steps(1)

    def read(self) -> None:
        for packet in self.bench.packets():
            if packet[0] == REPORTS:
                self.packets += 1
                entries, failures = decode_reports(packet)
                self.entries += entries
                self.failures += failures

    def check(self, in_hand: int) -> None:
        """What the supervisor would take from the cell is nothing that only the worker can report."""
        self.read()
        seen = look(self.bench.cell, self.packets, lambda: True)
        if seen is None:
            return
        end = in_hand if seen.held is None else seen.held[1]
        reported = max((entry.start + entry.records for entry in self.entries), default=0)
        if seen.offset != in_hand or any(KINDS[number] != "none" for number in range(reported, end)):
            self.wrong.append(seen)

    def rows(self) -> list[int]:
        (path,) = (self.folder / OPEN_DIR).glob("*.arrows")
        found: list[int] = []
        reader = pa.ipc.open_stream(path.read_bytes())
        while True:
            try:
                found += reader.read_next_batch().column("n").to_pylist()
            except (pa.ArrowInvalid, StopIteration):  # the segment is open: it has no end
                return found

    def report_beside(self) -> None:
        self.bench.worker.report_beside()
        self.read()
        for entry in self.entries:
            rows = set(WITH_ROWS) & set(range(entry.start, entry.start + entry.records))
            if rows and not (entry.segment_seq and rows <= set(self.rows())):
                self.wrong.append(entry)


def test_a_report_at_any_moment_of_the_loop_reports_each_record_once(
    bench: Make, make_record: Make, tmp_path: Path
) -> None:
    step, before = 0, sys.gettrace()
    while True:
        step += 1
        scene = Scene(bench, make_record, tmp_path / str(step))
        at = AtStep(step, scene.report_beside)
        sys.settrace(at)
        try:
            scene.bench.steps(1)
        finally:
            sys.settrace(before)
        scene.bench.steps(1)
        scene.read()
        covered = [number for entry in scene.entries for number in range(entry.start, entry.start + entry.records)]
        assert covered == list(range(len(KINDS)))
        assert sorted(position for position, _ in scene.failures) == [3, 6]
        assert not scene.wrong
        assert scene.rows() == [1, 2, 4, 4, 7]
        scene.bench.close()
        if at.left > 0:
            break
    assert step > 20 * len(KINDS)


def test_a_row_that_the_loop_keeps_at_any_moment_of_a_report_is_counted() -> None:
    """It keeps it without the lock. One that was not counted was reported as having no row."""
    codes = (RowBuffer.take.__code__, RowBuffer._more_in.__code__)  # pyright: ignore[reportPrivateUsage]
    step, before = 0, sys.gettrace()
    while True:
        step += 1
        rows: RowBuffer[int] = RowBuffer(parse_ddl("n int"), "g")

        def keep(number: int, rows: RowBuffer[int] = rows) -> None:
            values = rows.plain({"n": number})
            assert values is not None
            rows.kept.append((number, make_message(b"x", queue_offset=number), values, None))

        keep(0)
        at = AtStep(step, lambda keep=keep: keep(1), codes)  # type: ignore[misc]
        sys.settrace(at)
        try:
            taken, _ = rows.take(1)
        finally:
            sys.settrace(before)
        if at.left > 0:
            break
        assert taken.column("n").to_pylist() == [0]
        assert (rows.rows, len(rows.kept)) == (1, 1)
    assert step > 20


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("batch", [False, True])
def test_a_handler_that_fills_the_same_row_anew_writes_different_rows(
    batch: bool, several: bool, bench: Make, make_record: Make, tmp_path: Path
) -> None:
    raw, view, tags = bytearray(1), bytearray(1), [0]
    row: dict[str, Any] = {
        "n": 0, "raw": raw, "text": raw, "view": memoryview(view), "tags": tags, "place": {"at": tags}
    }  # fmt: skip

    def fill(message: Any) -> Any:
        row["n"] = raw[0] = view[0] = tags[0] = message.queue_offset
        return [row] if several else row

    def handle(given: Any) -> Any:
        return [fill(message) for message in given] if batch else fill(given)

    schema = "n int, raw binary, text string, view binary, tags array<int>, place struct<at: array<int>>"
    b = bench(handler(batch=batch, schema=schema)(handle), schema=schema, folder=tmp_path,
              bounds=WorkerBounds(flush_interval_us=100_000))  # fmt: skip
    b.chunk([make_record(offset=number) for number in range(3)], 1)
    b.steps(3)
    (path,) = (tmp_path / OPEN_DIR).glob("*.arrows")
    block = pa.ipc.open_stream(path.read_bytes()).read_next_batch()
    numbers = range(3)
    assert block.column("n").to_pylist() == list(numbers)
    assert block.column("raw").to_pylist() == block.column("view").to_pylist() == [bytes([n]) for n in numbers]
    assert block.column("text").to_pylist() == [chr(n) for n in numbers]
    assert block.column("tags").to_pylist() == [[n] for n in numbers]
    assert block.column("place").to_pylist() == [{"at": [n]} for n in numbers]


# --- the loop goes on at any moment of a report --------------------------------------------------------------------------

LOCKED_S = 0.02
REPORT = tuple(
    function.__code__
    for function in (Runner.cut_ended, Run.cut, RowBuffer.take, WorkerLoop.report_beside, WorkerLoop._write_and_report)  # pyright: ignore[reportPrivateUsage]
)


class Beside:
    """A loop in a thread of its own, which a report lets go on by one call at the given step (instruction)."""

    def __init__(self, bench: Make, folder: Path, first_call: int) -> None:
        """The loop is to stand in the call of record `first_call`."""
        self.folder, self._first = folder, first_call
        self._go = [threading.Event() for _ in range(12)]
        self._in_call = [threading.Event() for _ in range(12)]
        beside = self

        @handler(schema="n int")
        def handle(message: Any) -> Any:
            number: int = message.queue_offset
            beside._in_call[number].set()
            assert beside._go[number].wait(60)
            return {"n": number} if number in (0, 1, 10) else None

        self.bench = bench(handle, schema="n int", folder=folder, bounds=WorkerBounds(flush_interval_us=10_000_000))
        self.bench.worker.offer_reports()
        self._loop = threading.Thread(target=lambda: self.bench.steps(1))

    def let(self, *numbers: int) -> None:
        for number in numbers:
            self._go[number].set()

    def start(self) -> None:
        """As far as the call of the first record."""
        self._loop.start()
        assert self._in_call[self._first].wait(60)

    def go_on(self, number: int, until_call: int) -> None:
        """That call ends; the loop comes to the next one, or to the lock, which the report holds: of that nothing tells."""
        self.let(number)
        self._in_call[until_call].wait(LOCKED_S)

    def report(self, step: int, go_on: Callable[[], object]) -> bool:
        """A report beside; False where it has fewer steps."""
        at, before = AtStep(step, go_on, REPORT), sys.gettrace()
        sys.settrace(at)
        try:
            self.bench.worker.report_beside()
        finally:
            sys.settrace(before)
        return at.left <= 0

    def end(self) -> list[Report]:
        self.let(*range(12))
        if self._loop.ident is None:
            self._loop.start()
        self._loop.join(60)
        self.bench.steps(1)
        return [entry for packet in self.bench.packets() if packet[0] == REPORTS for entry in decode_reports(packet)[0]]


def with_rows_are_held(entries: list[Report], chunk_id: int, index: int) -> bool:
    found = [entry for entry in entries if entry.chunk_id == chunk_id and 0 <= index - entry.start < entry.records]
    return len(found) == 1 and found[0].segment_seq > 0


def test_a_row_that_is_kept_at_any_moment_of_a_report_is_reported_with_its_segment(
    bench: Make, make_record: Make, tmp_path: Path
) -> None:
    step, goes_on = 0, True
    while goes_on:
        step += 1
        beside = Beside(bench, tmp_path / str(step), 1)
        beside.bench.chunk([make_record(offset=number) for number in range(4)], 1)
        beside.bench.steps(1)
        beside.let(0)
        beside.start()
        goes_on = beside.report(step, lambda beside=beside: beside.go_on(1, 2))
        entries = beside.end()
        assert all(with_rows_are_held(entries, 1, index) for index in (0, 1)), (step, entries)
    assert step > 100


def test_a_row_of_a_chunk_that_begins_at_any_moment_of_a_report_is_reported_with_its_segment(
    bench: Make, make_record: Make, tmp_path: Path
) -> None:
    step, goes_on = 0, True
    while goes_on:
        step += 1
        beside = Beside(bench, tmp_path / str(step), 10)
        beside.let(0, 1)
        beside.bench.steps(1)
        beside.bench.chunk([make_record(offset=number) for number in range(2)], 1, window_open=True)
        beside.bench.steps(1)
        beside.bench.chunk([make_record(offset=number) for number in (10, 11)], 2)
        goes_on = beside.report(step, lambda beside=beside: (beside.start(), beside.go_on(10, 11)))
        entries = beside.end()
        assert all(with_rows_are_held(entries, *place) for place in ((1, 0), (1, 1), (2, 0))), (step, entries)
    assert step > 100
