"""In order, a batch handler with a filter: what the filter refused has ended, wherever it lies in the batch, and the record
that failed is the one that is given back."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any

import pytest

from rocketcrew.workers.api import Handler, Retry, Rollback, handler
from rocketcrew.workers.boot import WorkerBounds
from rocketcrew.workers.cells import STATE
from rocketcrew.workers.message import Message
from rocketcrew.workers.ordered import OrderedRunner
from rocketcrew.workers.ordered_packets import RETURNED, OrderedDescriptor, Returned, decode_returned, encode_ordered
from rocketcrew.workers.packets import REPORTS, QueueInfo, Report, decode_reports

Make = Callable[..., Any]
BATCH = WorkerBounds(batch_messages_max=10)


class Scene:
    """A chunk of records from offset 0, and what its worker said. Of `kinds` "s" is filtered, "p" fails, "d" is damaged."""

    def __init__(self, bench: Make, records: Sequence[bytes], function: Handler) -> None:
        b = bench(function, bounds=BATCH)
        self.failed: list[int] = []
        b.worker.report_failures(self._note)
        data = b"".join(records)
        b.link.send(encode_ordered([OrderedDescriptor(1, 1, 0, len(data), len(records), 0, ())], 0), data)
        b.steps(3)
        self.reports: list[Report] = []
        self.returned: list[Returned] = []
        for packet in b.packets():
            if packet[0] == REPORTS:
                self.reports += decode_reports(packet)[0]
            elif packet[0] == RETURNED:
                self.returned.append(decode_returned(packet))
        self.logged = [line["offset"] for line in b.log.events if "offset" in line]
        self.state = b.cell[STATE]

    def _note(self, _queue: QueueInfo, message: Message | int, _error: BaseException) -> None:
        self.failed.append(message if isinstance(message, int) else message.queue_offset)

    @property
    def done(self) -> list[tuple[int, int, int]]:
        """Start, records and filtered ones of each run."""
        return [(report.start, report.records, report.filtered) for report in self.reports]


@pytest.fixture
def play(bench: Make, make_record: Make, spoil: Make) -> Callable[..., Scene]:
    def make(kinds: str, *, raises: BaseException | None = None, auto_commit: bool = True) -> Scene:
        @handler(batch=True, order="queue", auto_commit=auto_commit, filter=lambda m: kinds[m.queue_offset] != "s")
        def handle(messages: list[Message]) -> list[object]:
            if raises is not None:
                raise raises
            return [Retry() if kinds[message.queue_offset] == "p" else None for message in messages]

        records = [make_record(b"%d" % number, offset=number) for number in range(len(kinds))]
        return Scene(
            bench, [spoil(each) if kind == "d" else each for each, kind in zip(records, kinds, strict=True)], handle
        )

    return make


@pytest.mark.parametrize(
    "kinds", ["p", "sp", "ssp", "s.p.", "ss.p.", ".s.sp.", "s.sp", ".p", "sp.s", "..pss", "s.d", ".sd"]
)
def test_what_failed_is_given_back_and_all_before_it_is_done(play: Callable[..., Scene], kinds: str) -> None:
    at = max(kinds.find("p"), kinds.find("d"))
    scene = play(kinds)
    [returned] = scene.returned
    assert (returned.start, returned.failed) == (at, len(kinds) - at)
    assert scene.done == ([(0, at, kinds[:at].count("s"))] if at else [])
    if "p" in kinds:
        assert scene.failed == scene.logged == [at]
    assert scene.state == 0


@pytest.mark.parametrize("kinds", [".", "s.", "ss.s.", ".s", "..s.s"])
def test_a_call_that_raises_fails_at_its_first_message_and_not_at_what_was_filtered_before_it(
    play: Callable[..., Scene], kinds: str
) -> None:
    at = kinds.index(".")
    scene = play(kinds, raises=ValueError("no"))
    [returned] = scene.returned
    assert (returned.start, returned.failed) == (at, len(kinds) - at)
    assert scene.done == ([(0, at, at)] if at else [])
    assert scene.failed == scene.logged == [at]


def test_a_rollback_takes_back_what_was_filtered_before_it_too(play: Callable[..., Scene]) -> None:
    scene = play("ss.", raises=Rollback(), auto_commit=False)
    assert [returned.start for returned in scene.returned] == [0]
    assert scene.reports == []


@pytest.mark.parametrize("kinds", ["s", "s.", ".s", "s.s", "sss"])
def test_each_filtered_record_is_counted_once(play: Callable[..., Scene], kinds: str) -> None:
    scene = play(kinds)
    assert scene.done == [(0, len(kinds), kinds.count("s"))]
    assert scene.returned == []


class AtReturn:
    """Calls `action` where that function returns."""

    def __init__(self, function: FunctionType, action: Callable[[], object]) -> None:
        self._code, self._action = function.__code__, action

    def __call__(self, frame: FrameType, event: str, _arg: object) -> Any:
        if frame.f_code is not self._code:
            return None
        if event == "return":
            self._action()
        return self


def test_rows_and_what_was_filtered_by_one_call_are_noted_in_one_step(
    bench: Make, make_record: Make, tmp_path: Path
) -> None:
    """Or a report that comes in between has the rows' records without the filtered ones, which the next one has too many."""
    kinds, taken = "sr.", list[bool]()
    (tmp_path / "ready").mkdir()

    @handler(batch=True, order="queue", filter=lambda m: kinds[m.queue_offset] != "s")
    def handle(messages: list[Message]) -> list[object]:
        return [{"n": 1} if kinds[message.queue_offset] == "r" else None for message in messages]

    b = bench(handle, bounds=WorkerBounds(batch_messages_max=1), schema="n bigint", folder=tmp_path)

    def reporter_comes() -> None:
        thread = threading.Thread(target=lambda: taken.append(b.worker.lock.acquire(blocking=False)))
        thread.start()
        thread.join()

    data = b"".join(make_record(b"%d" % number, offset=number) for number in range(len(kinds)))
    b.link.send(encode_ordered([OrderedDescriptor(1, 1, 0, len(data), len(kinds), 0, ())], 0), data)
    before = sys.gettrace()
    sys.settrace(AtReturn(OrderedRunner._put, reporter_comes))  # pyright: ignore[reportPrivateUsage, reportArgumentType]
    try:
        b.steps(3)
    finally:
        sys.settrace(before)
    assert taken == [False] * 2
