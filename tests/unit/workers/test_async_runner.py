"""Coroutine handlers: bounded concurrency, reports in order, failures and time limits of single messages."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import time
import traceback
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from rocketcrew.workers.api import BatchResult, Handler, handler
from rocketcrew.workers.async_runner import (
    AsyncWorkerLoop,
    TimeLimit,
    blocking,
    call_began_ns,
    limited,
    one_call_at_a_time,
)
from rocketcrew.workers.boot import WorkerBounds
from rocketcrew.workers.cells import (
    BEATS,
    BETWEEN,
    CALLS,
    CHUNK_ID,
    OLDEST_NS,
    RECORDS,
    STARTED_NS,
    STATE,
    private_cell,
)
from rocketcrew.workers.ddl import parse_ddl
from rocketcrew.workers.descriptors import HOLD_S
from rocketcrew.workers.failures import Cause
from rocketcrew.workers.link import Transport, WorkerLink, link_pair
from rocketcrew.workers.own_thread import NoThreadError, OwnThread
from rocketcrew.workers.packets import (
    DIRECTED,
    REPORTS,
    QueueInfo,
    decode_directed,
    decode_reports,
    encode_chunk,
    encode_direct,
    encode_queue,
    encode_stop,
)
from rocketcrew.workers.rows import Prepared, RowBuffer
from rocketcrew.workers.user_errors import CallTimedOutError

if TYPE_CHECKING:
    from rocketcrew.workers.message import Message

WAIT_S = 20.0


class Turn:
    """Awaited, it lets the others on the loop go first, once."""

    def __await__(self) -> Generator[None]:
        yield


class Crew:
    """An async worker on this thread's own loop, and what it said until it stopped."""

    def __init__(self, target: Handler, record: Callable[..., bytes], queue: QueueInfo, **more: Any) -> None:
        self.link, sock = link_pair(Transport.STREAM)
        self.cell = more.pop("cell", None) or private_cell()
        self.own_loop = "loop" not in more
        self.loop = more.pop("loop", None) or asyncio.new_event_loop()
        bounds = WorkerBounds(batch_messages_max=2)
        chosen: dict[str, Any] = {"concurrency": 2, "rows": None, "segments": None, "bounds": bounds} | more
        self.worker = AsyncWorkerLoop(
            WorkerLink(sock, Transport.STREAM), target, slab=None,
            clock=time.monotonic_ns, cell=self.cell, log=None, loop=self.loop,
            **chosen,
        )  # fmt: skip
        self.record = record
        self.link.send(encode_queue(1, queue))

    def chunk(self, chunk_id: int, bodies: list[bytes]) -> None:
        data = b"".join(self.record(body, offset=10 * chunk_id + n) for n, body in enumerate(bodies))
        self.link.send(encode_chunk(chunk_id, 1, 0, len(data), len(bodies)), data)

    def outcomes(self) -> list[tuple[int, int, int, list[tuple[int, int]]]]:
        """(chunk, start, records, [(position, cause) of failures]), in the order in which they were said."""
        found: list[tuple[int, int, int, list[tuple[int, int]]]] = []
        for packet in self.link.receive():
            if packet[0] == REPORTS:
                entries, failures = decode_reports(packet)
                at = 0
                for entry in entries:
                    own = failures[at : at + entry.failed]
                    at += entry.failed
                    found.append(
                        (
                            entry.chunk_id,
                            entry.start,
                            entry.records,
                            [(place, failure.cause) for place, failure in own],
                        )
                    )
        return found

    def run_until_reported(
        self, records: int, heard: Callable[[], object] = lambda: None
    ) -> list[tuple[int, int, int, list[tuple[int, int]]]]:
        """`heard` is called when something was reported."""
        found: list[tuple[int, int, int, list[tuple[int, int]]]] = []

        async def watch() -> None:
            while sum(entry[2] for entry in found) < records:
                await Turn()
                if outcomes := self.outcomes():
                    found.extend(outcomes)
                    heard()
            self.link.send(encode_stop())

        watching = self.loop.create_task(asyncio.wait_for(watch(), WAIT_S))
        self.worker.run()
        self.loop.run_until_complete(watching)
        if self.own_loop:
            self.loop.close()
        self.link.close()
        return found


def test_a_slow_message_holds_up_only_the_reports_behind_it(
    make_record: Callable[..., bytes], queue: QueueInfo
) -> None:
    order: list[bytes] = []
    gate = asyncio.Event()
    at_once = most = 0

    async def handle(message: Message) -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        if message.body == b"slow":
            await gate.wait()
        else:
            await Turn()
        order.append(message.body)
        at_once -= 1

    def heard() -> None:
        if b"last" in order:
            gate.set()

    crew = Crew(Handler(handle), make_record, queue)
    crew.chunk(1, [b"a", b"slow", b"b"])
    crew.chunk(2, [b"c", b"last"])
    found = crew.run_until_reported(5, heard)
    assert order[0] == b"a"
    assert order.index(b"last") < order.index(b"slow")
    assert most == 2
    by_chunk = {number: [entry[1:3] for entry in found if entry[0] == number] for number in (1, 2)}
    assert by_chunk[1][0] == (0, 1)
    assert sum(records for _, records in by_chunk[1]) == 3
    assert by_chunk[2][-1][0] + by_chunk[2][-1][1] == 2
    assert crew.cell[STATE] == 0


def test_reports_wait_for_others_while_calls_enough_are_in_hand(
    make_record: Callable[..., bytes], queue: QueueInfo
) -> None:
    """Each report costs both processes more than a call."""

    async def handle(_: Message) -> None:
        await Turn()

    heard: list[None] = []
    crew = Crew(Handler(handle), make_record, queue, bounds=WorkerBounds(flush_interval_us=60_000_000))
    for number in range(1, 5):
        crew.chunk(number, [b"a"] * 10)
    found = crew.run_until_reported(40, lambda: heard.append(None))
    assert len(heard) <= 3
    assert found[0][1:3] == (0, 10)


class Clock(asyncio.SelectorEventLoop):
    """A loop whose time can be moved on, and that counts its timers."""

    def __init__(self) -> None:
        super().__init__()
        self.later_s = 0.0
        self.timers = 0

    def time(self) -> float:
        return super().time() + self.later_s

    def call_at(self, *given: Any, **more: Any) -> asyncio.TimerHandle:
        self.timers += 1
        return super().call_at(*given, **more)


def test_each_call_has_its_own_time_and_all_have_one_timer() -> None:
    loop = Clock()
    ended: list[int] = []

    async def handle(number: Any) -> None:
        if number:
            await asyncio.Event().wait()

    call = limited(Handler(handle), TimeLimit(60)).function

    async def counted(number: int) -> None:
        try:
            await call(number)
        except CallTimedOutError:
            ended.append(number)

    async def turns() -> None:
        for _ in range(10):
            await Turn()

    async def main() -> None:
        for _ in range(100):
            await call(0)
        assert loop.timers == 1
        tasks: list[asyncio.Task[None]] = []
        seen: list[int] = []
        for number in range(1, 7):  # each 40 s after the one before
            if number < 5:
                tasks.append(loop.create_task(counted(number)))
            await turns()
            seen.append(len(ended))
            loop.later_s += 40
        assert seen == [0, 0, 1, 2, 3, 4]
        assert ended == [1, 2, 3, 4]

    loop.run_until_complete(main())
    loop.close()


def test_a_call_that_goes_on_after_its_cancellation_is_over_its_hard_limit(
    make_record: Callable[..., bytes], queue: QueueInfo
) -> None:
    """The supervisor reads the words of the cell, and kills the worker for that call."""
    loop, ends = Clock(), asyncio.Event()

    async def handle(message: Message) -> None:
        while message.body == b"stays" and not ends.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await ends.wait()
        await ends.wait()

    limit = TimeLimit(2, hard_s=4)
    crew = Crew(limited(Handler(handle), limit), make_record, queue, loop=loop, time_limit=limit, concurrency=3)
    crew.chunk(1, [b"goes", b"stays", b"goes"])
    cell, seen = crew.cell, list[tuple[int, int, int]]()

    async def watch() -> None:
        while not cell[CALLS]:
            await Turn()
        began = cell[OLDEST_NS]
        for later_s in (1, 3, 4, 5, 10):  # cancelled at 3 s, given time until 8
            loop.later_s = later_s
            for _ in range(3):
                beats = cell[BEATS]
                while cell[BEATS] == beats:
                    await Turn()
            seen.append((cell[STATE], cell[CALLS], (cell[STARTED_NS] - began) // 10_000_000))
        ends.set()
        reported = 0
        while reported < 3:
            await Turn()
            reported += sum(entry[2] for entry in crew.outcomes())
        crew.link.send(encode_stop())

    watching = loop.create_task(asyncio.wait_for(watch(), WAIT_S))
    crew.worker.run()
    loop.run_until_complete(watching)
    assert [each[:2] for each in seen[:1]] == [(BETWEEN, 3)]
    assert [each[1] for each in seen[1:]] == [1] * 4
    assert all(since > 0 for _, _, since in seen[:4]), "the loop turns, and is seen to"
    assert seen[4] == (12, 1, 0)
    assert cell[STATE] == 0
    loop.close()
    crew.link.close()


def test_tasks_that_calls_have_left_are_named_at_the_end(make_record: Callable[..., bytes], queue: QueueInfo) -> None:
    left: list[asyncio.Task[None]] = []

    async def work(ends: bool) -> None:
        if not ends:
            await asyncio.Event().wait()

    async def handle(message: Message) -> None:
        left.append(asyncio.create_task(work(message.body == b"ends")))
        await Turn()

    loop = asyncio.new_event_loop()
    with capture_logs() as logged:
        crew = Crew(Handler(handle), make_record, queue, loop=loop)
        crew.chunk(1, [b"ends", b"stays", b"stays"])
        crew.run_until_reported(3)
        crew.worker.tell_left()
    assert [(line["event"], line["tasks"]) for line in logged if line["log_level"] == "warning"] == [("tasks_left", 2)]
    for task in left:
        task.cancel()
    loop.run_until_complete(asyncio.wait(left))
    loop.close()


@pytest.mark.parametrize("ends_by", ["its time", "a task that exits"])
def test_in_order_a_call_is_over_before_the_next_begins(ends_by: str) -> None:
    order: list[str] = []

    async def leave() -> None:
        raise SystemExit(3)

    async def handle(_: Message) -> None:
        order.append("begins")
        try:
            task = asyncio.create_task(leave()) if ends_by != "its time" else None
            await asyncio.Event().wait()
            del task
        finally:
            for other in asyncio.all_tasks() - {asyncio.current_task()}:  # who waits for this one, too
                other.cancel()
            await Turn()
            order.append("is over")

    loop = asyncio.new_event_loop()
    call = one_call_at_a_time(limited(Handler(handle), TimeLimit(0.01)), loop).function
    for _ in range(2):
        with pytest.raises(CallTimedOutError if ends_by == "its time" else SystemExit):
            call(None)
    loop.close()
    assert order == ["begins", "is over"] * 2


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("raised", [False, True])
def test_an_error_that_a_module_has_does_not_grow_with_each_message(
    make_record: Callable[..., bytes], queue: QueueInfo, raised: bool, batch: bool
) -> None:
    error = ValueError("no")
    seen: list[int] = []

    async def handle(_: object) -> object:
        seen.append(len(list(traceback.walk_tb(error.__traceback__))))
        if raised:
            raise error
        return error

    crew = Crew(Handler(handle, batch=batch), make_record, queue, concurrency=1)
    for chunk_id in (1, 2, 3):
        crew.chunk(chunk_id, [b"0", b"1", b"2", b"3"])
    crew.run_until_reported(12)
    assert set(seen) == {0, seen[-1]}


def test_failures_and_time_limits_are_of_single_messages(make_record: Callable[..., bytes], queue: QueueInfo) -> None:
    async def handle(message: Message) -> None:
        if message.body == b"bad":
            raise ValueError("bad")
        if message.body == b"hangs":
            await asyncio.Event().wait()

    crew = Crew(limited(Handler(handle), TimeLimit(0.02)), make_record, queue)
    crew.chunk(1, [b"good", b"bad", b"hangs", b"good"])
    found = crew.run_until_reported(4)
    failures = sorted(failure for entry in found for failure in entry[3])
    assert failures == [(1, Cause.FAILED), (2, Cause.TIME_LIMIT)]


@pytest.mark.parametrize("batch", [False, True])
def test_whatever_a_call_ends_with_is_its_messages_failure(
    make_record: Callable[..., bytes], queue: QueueInfo, batch: bool
) -> None:
    """A cancellation that came from what it awaited, sys.exit(), and what closes a coroutine: none may leave the message in
    hand for ever."""

    async def handle(message: Message) -> None:
        if message.body == b"cancelled":
            inner = asyncio.ensure_future(asyncio.Event().wait())
            inner.cancel()
            await inner
        if message.body == b"exits":
            raise SystemExit(3)
        if message.body == b"closes":
            raise GeneratorExit

    async def handle_batch(messages: list[Message]) -> None:
        for message in messages:
            await handle(message)

    crew = Crew(Handler(handle_batch, batch=True) if batch else Handler(handle), make_record, queue)
    crew.chunk(1, [b"good", b"cancelled", b"exits", b"good", b"closes", b"good"])
    found = crew.run_until_reported(6)
    failed = [0, 1, 2, 3, 4, 5] if batch else [1, 2, 4]  # two a call
    assert sorted(failure for entry in found for failure in entry[3]) == [(place, 0) for place in failed]


def test_a_call_that_cancels_itself_is_its_messages_failure(
    make_record: Callable[..., bytes], queue: QueueInfo
) -> None:
    """As a library does that ends its work by cancelling the task that it runs in."""

    async def handle(message: Message) -> None:
        if message.body == b"cancels itself" and (task := asyncio.current_task()) is not None:
            task.cancel()
        await Turn()

    crew = Crew(Handler(handle), make_record, queue)
    crew.chunk(1, [b"good", b"cancels itself", b"good"])
    found = crew.run_until_reported(3)
    assert [failure for entry in found for failure in entry[3]] == [(1, 0)]


class BadDisk(RowBuffer[Any]):
    """Fails with the rows of one message, by a fault that is not the handler's."""

    def keep(self, owner: Any, prepared: Prepared) -> None:
        if owner[1] == 1:
            raise RuntimeError("a bug of ours")
        super().keep(owner, prepared)


@pytest.mark.parametrize("others", [0, 1, 2])
def test_an_error_of_our_own_ends_the_worker_and_names_the_call(
    others: int, make_record: Callable[..., bytes], queue: QueueInfo
) -> None:
    """Not logged by a task that nobody waits for: its message would be neither done nor failed."""

    async def handle(message: Message) -> dict[str, int]:
        if message.body == b"waits":
            await asyncio.Event().wait()
        return {"n": 1}

    crew = Crew(Handler(handle), make_record, queue, concurrency=4, rows=BadDisk(parse_ddl("n bigint"), "group"))
    crew.chunk(1, [b"good", b"bad", b"good"])
    if others:
        crew.chunk(2, [b"waits"] * others)
    with pytest.raises(RuntimeError, match="a bug of ours") as raised:
        crew.run_until_reported(3 + others)
    crew.worker.accuse(raised.value)
    assert (crew.cell[CHUNK_ID], crew.cell[STATE] - 1, crew.cell[RECORDS]) == (1, 11, 1)
    for task in asyncio.all_tasks(crew.loop):
        task.cancel()
    crew.loop.run_until_complete(asyncio.gather(*asyncio.all_tasks(crew.loop), return_exceptions=True))
    crew.loop.close()


def test_a_call_knows_when_it_began(make_record: Callable[..., bytes], queue: QueueInfo) -> None:
    began: list[int] = []

    async def handle(_: Message) -> None:
        await Turn()
        began.append(call_began_ns.get())

    before = time.monotonic_ns()
    crew = Crew(Handler(handle), make_record, queue)
    crew.chunk(1, [b"a", b"b"])
    crew.run_until_reported(2)
    assert all(before <= each <= time.monotonic_ns() for each in began)
    assert call_began_ns.get() == 0


def test_a_batch_handler_may_be_a_coroutine_function(make_record: Callable[..., bytes], queue: QueueInfo) -> None:
    sizes: list[int] = []

    @handler(batch=True)
    async def handle(messages: list[Message]) -> BatchResult:
        sizes.append(len(messages))
        await Turn()
        return BatchResult(ack_index=0)

    crew = Crew(handle, make_record, queue)
    crew.chunk(1, [b"a", b"b", b"c"])
    found = crew.run_until_reported(3)
    assert sizes == [2, 1]
    assert [failure for entry in found for failure in entry[3]] == [(1, 0)]


def test_the_cell_names_the_call_whose_step_runs(make_record: Callable[..., bytes], queue: QueueInfo) -> None:
    """Whichever it is: of one chunk or of several, at its first step or later."""
    seen: list[tuple[int, int, int, int]] = []

    async def handle(message: Message) -> None:
        for _ in range(3):
            seen.append((message.queue_offset, crew.cell[STATE] - 1, crew.cell[CHUNK_ID], crew.cell[RECORDS]))
            await Turn()

    crew = Crew(Handler(handle), make_record, queue, concurrency=3)
    crew.chunk(1, [b"a", b"b"])
    crew.chunk(2, [b"c"])
    crew.chunk(3, [b"d"])
    crew.run_until_reported(4)
    assert len(seen) == 4 * 3
    assert {(offset, chunk) for offset, _, chunk, _ in seen} == {(10, 1), (11, 1), (20, 2), (30, 3)}
    assert all(offset == named for offset, named, _, _ in seen)
    assert {records for *_, records in seen} == {1}
    assert crew.cell[STATE] == 0


def test_a_filter_and_tasks_of_a_call_are_named_as_the_call(
    make_record: Callable[..., bytes], queue: QueueInfo
) -> None:
    seen: list[tuple[int, int]] = []

    def note(offset: int) -> bool:
        seen.append((offset, crew.cell[STATE] - 1))
        return True

    async def part(offset: int) -> None:
        note(offset)
        try:
            await Turn()
        finally:
            note(offset)

    @handler(filter=lambda message: note(message.queue_offset))
    async def handle(message: Message) -> None:
        offset = message.queue_offset
        await asyncio.gather(part(offset), part(offset))
        cancelled = asyncio.ensure_future(part(offset))
        await Turn()
        cancelled.cancel()
        early = asyncio.ensure_future(part(offset))
        early.cancel()  # before its first step: that is no coroutine which nobody awaited
        await asyncio.wait([cancelled, early])
        note(offset)

    crew = Crew(handle, make_record, queue)
    crew.chunk(1, [b"a"])
    crew.chunk(2, [b"b"])
    crew.run_until_reported(2)
    assert len(seen) == 2 * (1 + 4 + 2 + 1)
    assert all(offset == named for offset, named in seen)


def test_a_single_call_from_outside_of_the_loop() -> None:
    async def double(value: int) -> int:
        await Turn()
        if value < 0:
            raise ValueError(value)
        return 2 * value

    plain = blocking(Handler(double))
    assert plain.function(4) == plain.plain(4) == 8
    with pytest.raises(ValueError, match="-1"):
        plain.function(-1)

    def refuses(_run: Callable[[], None]) -> OwnThread:
        raise NoThreadError("can't start new thread")

    with pytest.raises(NoThreadError):
        blocking(Handler(double), begin=refuses).function(4)
    loop = asyncio.new_event_loop()
    ordered = one_call_at_a_time(Handler(double), loop)
    assert ordered.function(4) == ordered.plain(4) == 8
    loop.close()


def test_a_single_call_from_outside_of_the_loop_is_cancelled_at_the_limit_of_all() -> None:
    async def never_ends(_value: int) -> None:
        await asyncio.get_running_loop().create_future()

    plain = blocking(Handler(never_ends), TimeLimit(0.001))
    for _ in range(2):
        with pytest.raises(CallTimedOutError):
            plain.function(4)


def test_a_coroutine_handler_consumes_directly(make_record: Callable[..., bytes], queue: QueueInfo) -> None:
    """CONSUME_MESSAGE_DIRECTLY runs the coroutine to its end, beside the loop that is at work."""
    bodies: list[bytes] = []

    async def handle(message: Message) -> None:
        await Turn()
        bodies.append(message.body)
        if message.body == b"bad":
            raise ValueError("no")

    crew = Crew(Handler(handle), make_record, queue)
    for number, body in enumerate((b"good", b"bad")):
        record = make_record(body)
        crew.link.send(encode_direct(number, 0, len(record), queue), record)
    crew.link.send(encode_stop())
    crew.worker.run()
    answers = [decode_directed(packet).result for packet in crew.link.receive() if packet[0] == DIRECTED]
    crew.loop.close()
    crew.link.close()
    assert bodies == [b"good", b"bad"]
    assert answers == ["CR_SUCCESS", "CR_THROW_EXCEPTION"]


class LateLoop(asyncio.SelectorEventLoop):
    """Its time can be put forward."""

    ahead_s = 0.0

    def time(self) -> float:
        return super().time() + self.ahead_s


@pytest.mark.parametrize("ends", [True, False])
def test_no_call_begins_until_descriptors_are_counted_between_calls(
    make_record: Callable[..., bytes], queue: QueueInfo, ends: bool
) -> None:
    """Where the others do not end in time, they are counted beside them, and the calls go on."""
    loop = LateLoop()
    begun: list[bytes] = []
    looks: list[bool] = []
    seen: list[int] = []

    async def handle(message: Message) -> None:
        begun.append(message.body)
        if message.body == b"0":
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        if message.body == b"1":
            for _ in range(20):
                await Turn()
            seen.append(len(begun))
            if not ends:
                loop.ahead_s = HOLD_S
            while not ends and len(begun) < 6:
                await Turn()

    crew = Crew(Handler(handle), make_record, queue, loop=loop)

    def look(seal: Callable[[], None], *, under_way: bool) -> None:
        del seal
        looks.append(under_way)

    crew.worker._descriptors = look  # type: ignore[assignment]
    crew.chunk(1, [b"0", b"1", b"2", b"3", b"4", b"5"])
    found = crew.run_until_reported(6)
    loop.close()
    assert seen == [2]
    assert looks == [not ends]
    assert [failed for *_, failures in found for failed in failures] == [(0, Cause.FAILED)]
