"""A child that a handler forked and that comes back out of it: it ends, and neither runs, says nor names anything."""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import os
import signal
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rocketcrew.workers.api import BatchResult, Handler, Rollback, handler
from rocketcrew.workers.async_runner import blocking
from rocketcrew.workers.cells import CELL_BYTES, HELD, STATE, UNREPORTED
from rocketcrew.workers.forks import end_if_forked
from rocketcrew.workers.ordered_packets import (
    Classify,
    OrderedDescriptor,
    decode_keys,
    encode_classify,
    encode_ordered,
)
from rocketcrew.workers.packets import REPORTS, QueueInfo, decode_reports, encode_direct

from .test_async_runner import Crew, Turn

if TYPE_CHECKING:
    from rocketcrew.workers.message import Message

Make = Callable[..., Any]
CHILD_S = 10
"""A child that does not end is ended, and with another code."""


class Forks:
    """What is run of each message, by whatever process, and what a call of the parent's finds when its child has ended."""

    def __init__(self) -> None:
        self.parent = os.getpid()
        self._ran = mmap.mmap(-1, mmap.PAGESIZE)
        self.cell = memoryview(mmap.mmap(-1, CELL_BYTES)).cast("Q")
        self.codes: list[int] = []
        self.unchanged: list[bool] = []
        self.worker: Any = None

    def runs(self, message: Message) -> bool:
        """Whether this is the child."""
        self._ran[int(message.body)] += 1
        return message.body == b"1" and self.fork()

    def fork(self) -> bool:
        before = [self.cell[word] for word in (STATE, HELD, UNREPORTED)]
        child = os.fork()
        if not child:
            signal.alarm(CHILD_S)
            self.worker.forked()
            return True
        self.codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        self.unchanged.append([self.cell[word] for word in (STATE, HELD, UNREPORTED)] == before)
        return False

    def end_children(self) -> None:
        """One that has come back to the test must not go on with it, and its code says so."""
        end_if_forked(self.parent, SystemExit(9))

    @contextlib.contextmanager
    def only_parent(self) -> Generator[None]:
        """A child must not come out of this block, not even by an error."""
        try:
            yield
        finally:
            self.end_children()

    def ran(self, messages: int) -> list[int]:
        return list(self._ran[:messages])


def numbered(make_record: Make, count: int) -> list[bytes]:
    return [make_record(b"%d" % number, offset=number) for number in range(count)]


def send(b: Any, records: list[bytes], *, ordered: bool) -> None:
    """The records as one chunk, and the steps for it."""
    if ordered:
        data = b"".join(records)
        b.link.send(encode_ordered([OrderedDescriptor(1, 1, 0, len(data), len(records), 0, (0, 0, 0))], 0), data)
    else:
        b.chunk(records)
    b.steps(4)


def nothing_of(forks: Forks) -> Callable[[Message], None]:
    def handle(message: Message) -> None:
        forks.runs(message)

    return handle


def one_each(forks: Forks) -> Handler:
    return Handler(nothing_of(forks))


def rows_each(forks: Forks) -> Handler:
    def handle(message: Message) -> dict[str, int]:
        forks.runs(message)
        return {"n": 1}

    return Handler(handle)


def odd_rows(forks: Forks) -> Handler:
    """Its rows are made by what it returns."""

    def handle(message: Message) -> object:
        forks.runs(message)
        return ({"n": number} for number in range(2))

    return Handler(handle)


def filtered(forks: Forks) -> Handler:
    def wanted(message: Message) -> bool:
        forks.runs(message)
        return True

    handled: list[Message] = []
    return Handler(handled.append, filter=wanted)


def together(forks: Forks) -> Handler:
    @handler(batch=True)
    def handle(messages: list[Message]) -> None:
        for message in messages:
            if forks.runs(message):
                return

    return handle  # type: ignore[return-value]


@pytest.mark.parametrize("made", [one_each, rows_each, odd_rows, filtered, together])
@pytest.mark.parametrize("inner", [False, True])
def test_it_runs_nothing_more_and_leaves_its_parents_cell_alone(
    bench: Make, make_record: Make, make_inner_batch: Make, tmp_path: Path, made: Make, inner: bool
) -> None:
    forks = Forks()
    b = bench(made(forks), schema="n int", folder=tmp_path, cell=forks.cell)
    forks.worker = b.worker
    b.worker.offer_reports()
    b.worker.offer_back()
    b.chunk([make_inner_batch([b"0", b"1", b"2"])] if inner else numbered(make_record, 3))
    b.steps(4)
    forks.end_children()
    assert (forks.codes, forks.unchanged) == ([0], [True])
    assert forks.ran(3) == [1, 1, 1]
    reported, failures = b.outcomes()
    assert sum(entry.records for entry in reported) == (1 if inner else 3)
    assert failures == []


@pytest.mark.parametrize("made", [one_each, odd_rows])
def test_in_order_too(bench: Make, make_record: Make, tmp_path: Path, made: Make) -> None:
    forks = Forks()
    ordered = Handler(made(forks).function, order="queue", auto_commit=False)
    b = bench(ordered, schema="n int", folder=tmp_path, cell=forks.cell)
    forks.worker = b.worker
    data = b"".join(numbered(make_record, 3))
    b.link.send(encode_ordered([OrderedDescriptor(1, 1, 0, len(data), 3, 0, (0, 0, 0))], 0), data)
    b.steps(3)
    forks.end_children()
    assert (forks.codes, forks.unchanged, forks.ran(3)) == ([0], [True], [1, 1, 1])


def failing_rows(forks: Forks) -> Callable[[Message], Iterator[dict[str, int]]]:
    """Rows of a generator, which raises in the child."""

    def rows(message: Message) -> Iterator[dict[str, int]]:
        if forks.runs(message):
            raise ValueError("in the child")
        yield {"n": 1}

    return rows


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("ordered", [False, True])
def test_one_that_fails_while_it_makes_rows_ends_at_once(
    bench: Make, make_record: Make, tmp_path: Path, batch: bool, ordered: bool
) -> None:
    forks = Forks()
    rows = failing_rows(forks)

    def of_each(messages: list[Message]) -> list[object]:
        return [rows(message) for message in messages]

    b = bench(
        Handler(of_each if batch else rows, batch=batch, order="queue" if ordered else None),
        schema="n int", folder=tmp_path, cell=forks.cell,
    )  # fmt: skip
    forks.worker = b.worker
    with forks.only_parent():
        send(b, numbered(make_record, 3), ordered=ordered)
    assert (forks.codes, forks.unchanged, forks.ran(3)) == ([1], [True], [1, 1, 1])


@pytest.mark.parametrize("batch", [False, True])
def test_one_of_a_coroutine_that_fails_while_it_makes_rows(make_record: Make, queue: QueueInfo, batch: bool) -> None:
    forks = Forks()
    rows = failing_rows(forks)

    async def each(message: Message) -> object:
        return rows(message)

    async def of_each(messages: list[Message]) -> list[object]:
        return [rows(message) for message in messages]

    crew = Crew(Handler(of_each if batch else each, batch=batch), make_record, queue, cell=forks.cell)
    forks.worker = crew.worker
    crew.chunk(1, [b"0", b"1", b"2"])
    with forks.only_parent():
        found = crew.run_until_reported(3)
    assert (forks.codes, forks.unchanged, forks.ran(3)) == ([1], [True], [1, 1, 1])
    assert [failures for *_, failures in found if failures] == []


def wants_all(forks: Forks, error: BaseException) -> Callable[[Message], bool]:
    """A filter whose child ends with this error."""

    def wanted(message: Message) -> bool:
        if forks.runs(message):
            raise error
        return True

    return wanted


ENDS = [(SystemExit(3), 3), (ValueError("in the child"), 1)]
"""What the child raises, and its code then."""


@pytest.mark.parametrize(("error", "ends"), ENDS)
@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("ordered", [False, True])
def test_one_of_a_filter_ends_as_it_wants_to(
    bench: Make, make_record: Make, batch: bool, ordered: bool, error: BaseException, ends: int
) -> None:
    forks = Forks()
    handled: list[object] = []
    b = bench(
        Handler(handled.append, filter=wants_all(forks, error), batch=batch, order="queue" if ordered else None),
        cell=forks.cell,
    )
    forks.worker = b.worker
    with forks.only_parent():
        send(b, numbered(make_record, 3), ordered=ordered)
    assert (forks.codes, forks.unchanged, forks.ran(3)) == ([ends], [True], [1, 1, 1])


@pytest.mark.parametrize(("error", "ends"), ENDS)
def test_one_of_a_coroutine_s_filter_does_too(
    make_record: Make, queue: QueueInfo, error: BaseException, ends: int
) -> None:
    forks = Forks()

    async def handle(_message: Message) -> None:
        await Turn()

    crew = Crew(Handler(handle, filter=wants_all(forks, error)), make_record, queue, cell=forks.cell)
    forks.worker = crew.worker
    crew.chunk(1, [b"0", b"1", b"2"])
    with forks.only_parent():
        crew.run_until_reported(3)
    assert (forks.codes, forks.unchanged, forks.ran(3)) == ([ends], [True], [1, 1, 1])


def test_packets_and_answers_are_its_parents(bench: Make, make_record: Make, queue: QueueInfo) -> None:
    """What it took off the link would be missing there, and what it sent would come twice."""
    forks = Forks()
    b = bench(one_each(forks), cell=forks.cell)
    forks.worker = b.worker
    record = make_record(b"1", offset=7)
    b.link.send(encode_direct(7, 0, len(record), queue), record)
    b.chunk(numbered(make_record, 1))
    b.steps(4)
    forks.end_children()
    assert (forks.codes, forks.unchanged) == ([0], [True])
    directed, *reports = b.packets()
    assert directed[0] != REPORTS
    assert [entry.records for packet in reports for entry in decode_reports(packet)[0]] == [1]
    assert forks.ran(2) == [1, 1]


def test_a_key_function_may_fork_as_well(bench: Make, make_record: Make) -> None:
    forks = Forks()

    def key(message: Message) -> str:
        forks.runs(message)
        return "k"

    b = bench(Handler(nothing_of(Forks()), order="key", key=key), cell=forks.cell)
    forks.worker = b.worker
    data = b"".join(numbered(make_record, 3))
    b.link.send(encode_classify(Classify(1, 0, len(data), 3)), data)
    b.steps(2)
    forks.end_children()
    assert (forks.codes, forks.unchanged, forks.ran(3)) == ([0], [True], [1, 1, 1])
    (keys,) = b.packets()
    assert len(decode_keys(keys)[1]) == 3


@pytest.mark.parametrize(("error", "ends"), ENDS)
def test_one_of_a_key_function_ends_as_it_wants_to(
    bench: Make, make_record: Make, error: BaseException, ends: int
) -> None:
    forks = Forks()

    def key(message: Message) -> str:
        if forks.runs(message):
            raise error
        return "k"

    b = bench(Handler(nothing_of(Forks()), order="key", key=key), cell=forks.cell)
    forks.worker = b.worker
    data = b"".join(numbered(make_record, 3))
    b.link.send(encode_classify(Classify(1, 0, len(data), 3)), data)
    with forks.only_parent():
        b.steps(2)
    assert (forks.codes, forks.unchanged, forks.ran(3)) == ([ends], [True], [1, 1, 1])
    (keys,) = b.packets()
    assert len(decode_keys(keys)[1]) == 3


def test_a_coroutine_s_child_ends_with_its_step(make_record: Make, queue: QueueInfo) -> None:
    """It shares the loop's descriptors: what it changed there would be changed in its parent."""
    forks = Forks()

    async def handle(message: Message) -> None:
        if message.body == b"0":
            for _ in range(3):
                await Turn()
        forks.runs(message)

    crew = Crew(Handler(handle), make_record, queue, cell=forks.cell, concurrency=4)
    forks.worker = crew.worker
    crew.chunk(1, [b"0", b"1"])
    crew.chunk(2, [b"2"])
    crew.chunk(3, [b"3"])
    found = crew.run_until_reported(4)
    forks.end_children()
    assert (forks.codes, forks.unchanged, forks.ran(4)) == ([0], [True], [1, 1, 1, 1])
    assert [failures for *_, failures in found if failures] == []


def test_a_child_of_a_callback_on_the_loop_runs_no_step_of_another_call(make_record: Make, queue: QueueInfo) -> None:
    forks, steps = Forks(), mmap.mmap(-1, mmap.PAGESIZE)

    async def handle(message: Message) -> None:
        if message.body == b"1":
            ended = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_soon(lambda: ended.set_result(forks.runs(message)))
            await ended
        for _ in range(4):
            await Turn()
            steps[0] |= os.getpid() != forks.parent

    crew = Crew(Handler(handle), make_record, queue, cell=forks.cell, concurrency=4)
    forks.worker = crew.worker
    crew.chunk(1, [b"0", b"1", b"2"])
    crew.run_until_reported(3)
    forks.end_children()
    assert (forks.codes, steps[0]) == ([0], 0)


@pytest.mark.parametrize(("fails", "ends"), [(False, 0), (True, 1)])
def test_a_child_of_a_coroutine_that_is_consumed_directly_leaves_the_loop_alone(fails: bool, ends: int) -> None:
    """It would close it, and take its parent's descriptors out of what that waits for."""
    codes: list[int] = []
    parent = os.getpid()

    async def handle(_message: Message) -> None:
        child = os.fork()
        if not child:
            signal.alarm(CHILD_S)
            if fails:
                raise ValueError("in the child")
            return
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))  # noqa: ASYNC222  as its handler does
        await asyncio.to_thread(os.getpid)  # its answer wakes the loop by one of them

    called: Any = blocking(Handler(handle)).function
    called(None)
    end_if_forked(parent, SystemExit(9))
    assert codes == [ends]


@pytest.mark.parametrize(("code", "ends"), [(4, 4), (None, 0)])
def test_a_coroutine_s_child_ends_as_it_wants_to(
    make_record: Make, queue: QueueInfo, code: int | None, ends: int
) -> None:
    forks = Forks()

    async def handle(message: Message) -> None:
        if forks.runs(message):
            raise SystemExit(code)

    crew = Crew(Handler(handle), make_record, queue, cell=forks.cell)
    forks.worker = crew.worker
    crew.chunk(1, [b"0", b"1"])
    crew.run_until_reported(2)
    forks.end_children()
    assert forks.codes == [ends]


@pytest.mark.parametrize("auto_commit", [True, False])
def test_a_child_that_rolls_back_ends(bench: Make, make_record: Make, tmp_path: Path, auto_commit: bool) -> None:
    forks = Forks()

    def handle(message: Message) -> None:
        if forks.runs(message):
            raise Rollback

    b = bench(Handler(handle, order="queue", auto_commit=auto_commit), folder=tmp_path, cell=forks.cell)
    forks.worker = b.worker
    with forks.only_parent():
        send(b, numbered(make_record, 3), ordered=True)
    assert (forks.codes, forks.unchanged) == ([1], [True])


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("fails", [True, False])
def test_a_child_of_a_generator_of_all_rows_ends(
    bench: Make, make_record: Make, tmp_path: Path, ordered: bool, fails: bool
) -> None:
    forks = Forks()

    def rows_of(messages: list[Message]) -> Iterator[tuple[Message, dict[str, int]]]:
        for message in messages:
            if forks.runs(message):
                if fails:
                    raise ValueError("in the child")
                return
            yield message, {"n": 1}

    target = Handler(
        lambda messages: BatchResult(rows=rows_of(messages)), batch=True, order="queue" if ordered else None
    )
    b = bench(target, schema="n int", folder=tmp_path, cell=forks.cell)
    forks.worker = b.worker
    with forks.only_parent():
        send(b, numbered(make_record, 3), ordered=ordered)
    assert (forks.codes, forks.unchanged) == ([int(fails)], [True])
