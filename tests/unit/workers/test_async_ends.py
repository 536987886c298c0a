"""Calls of a coroutine handler that end out of order, are cancelled by others, or end because their worker does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rocketcrew.conf.segment_format import READY_DIR
from rocketcrew.workers.api import Handler
from rocketcrew.workers.cells import STATE
from rocketcrew.workers.ddl import parse_ddl
from rocketcrew.workers.link import LinkClosedError
from rocketcrew.workers.packets import QueueInfo, encode_chunk, encode_stop
from rocketcrew.workers.prefix import complete_prefix
from rocketcrew.workers.rows import RowBuffer
from rocketcrew.workers.sealing import Sealer
from rocketcrew.workers.segment import SegmentWriter

from .test_async_runner import Crew, Turn

if TYPE_CHECKING:
    from rocketcrew.workers.message import Message

Make = Callable[..., bytes]


def never(*_: object) -> None:
    raise AssertionError("the disk takes everything")


def test_inner_batches_that_end_out_of_order_are_finished_whole(
    make_inner_batch: Make, queue: QueueInfo, tmp_path: Path
) -> None:
    """A segment that names only the last offset of one leaves the others without any account."""
    gate = asyncio.Event()

    async def handle(message: Message) -> dict[str, int] | None:
        offset = message.queue_offset
        if offset == 3:
            await gate.wait()
        if offset == 8:
            gate.set()
        return {"n": offset} if offset % 3 == 2 else None

    rows = RowBuffer[Any](parse_ddl("n bigint"), "group")
    segments = SegmentWriter(
        tmp_path, "w.1", rows.schema, seal_rows=1000, seal_bytes=1 << 20, seal_idle_ms=1000, pause=never
    )
    sealer = Sealer(tmp_path / READY_DIR, pause=never, waits=None)
    crew = Crew(Handler(handle), make_inner_batch, queue, rows=rows, segments=segments, sealer=sealer, concurrency=4)
    data = b"".join(make_inner_batch([b"a", b"b", b"c"], offset=first) for first in (0, 3, 6))
    crew.link.send(encode_chunk(1, 1, 0, len(data), 3), data)
    crew.run_until_reported(3)
    (segment,) = (tmp_path / READY_DIR).iterdir()
    (finished,) = complete_prefix(segment).finished.queues()
    assert finished.ranges == ((0, 9),)


def test_a_call_that_another_one_cancels_before_it_began_is_its_messages_failure(
    make_record: Make, queue: QueueInfo
) -> None:
    """Before its first step nothing of the handler runs that could raise."""

    async def handle(message: Message) -> None:
        if message.body == b"cancels":
            for task in asyncio.all_tasks():
                if getattr(task.get_coro(), "__name__", "") == "_call" and task is not asyncio.current_task():
                    task.cancel()
        handled.append(message.body)
        await Turn()

    handled: list[bytes] = []
    crew = Crew(Handler(handle), make_record, queue, concurrency=3)
    crew.chunk(1, [b"cancels", b"b", b"c", b"waits"])
    found = crew.run_until_reported(4)
    assert [failure for entry in found for failure in entry[3]] == [(1, 0), (2, 0)]
    assert handled == [b"cancels", b"waits"], "what waits for its turn has no task yet"


def cancel_all_but_the_test_s() -> None:
    for task in asyncio.all_tasks():
        if getattr(task.get_coro(), "__name__", "") not in ("wait_for", "watch") and task is not asyncio.current_task():
            task.cancel()


def test_a_call_that_cancels_all_tasks_of_the_loop_does_not_end_its_worker(make_record: Make, queue: QueueInfo) -> None:
    async def handle(message: Message) -> None:
        await Turn()
        if message.body == b"cancels":
            cancel_all_but_the_test_s()
        await Turn()
        handled.append(message.body)

    handled: list[bytes] = []
    crew = Crew(Handler(handle), make_record, queue)
    crew.chunk(1, [b"a", b"cancels", b"c", b"cancels", b"e"])
    found = crew.run_until_reported(5)
    assert [place for entry in found for place, _ in entry[3]] == [0, 2]
    assert handled == [b"cancels", b"cancels", b"e"]


def test_a_clean_up_that_cancels_all_tasks_is_awaited_at_the_end(make_record: Make, queue: QueueInfo) -> None:
    async def handle(_: Message) -> None:
        crew.link.send(encode_stop())
        try:
            await asyncio.Event().wait()
        finally:
            cancel_all_but_the_test_s()
            for _turn in range(3):
                await Turn()
            cleaned_up.append(True)

    cleaned_up: list[bool] = []
    crew = Crew(Handler(handle), make_record, queue)
    crew.chunk(1, [b"a"])
    crew.worker.run()
    assert cleaned_up == [True]
    crew.loop.close()
    crew.link.close()


def test_a_call_whose_cancellation_came_too_late_is_done(make_record: Make, queue: QueueInfo) -> None:
    """Its task counts as cancelled all the same."""

    async def handle(_: Message) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()  # and nothing is awaited any more

    crew = Crew(Handler(handle), make_record, queue)
    crew.chunk(1, [b"a", b"b"])
    assert [failure for entry in crew.run_until_reported(2) for failure in entry[3]] == []


@pytest.mark.parametrize("gone", [False, True])
@pytest.mark.parametrize(
    "way", ["plain", "awaits what it cancelled", "raises it anew", "fails", "exits", "ends", "rows"]
)
def test_what_a_call_makes_of_the_end_of_its_worker_is_no_failure(
    way: str, gone: bool, make_inner_batch: Make, queue: QueueInfo
) -> None:
    """Whether the worker is asked to stop or its supervisor is gone: the call is not reported, and comes again."""

    def rows() -> Generator[dict[str, int]]:
        yield {"n": 1}
        raise ValueError("no more")

    async def clean_up() -> object:
        helper = asyncio.ensure_future(asyncio.Event().wait())
        if way == "awaits what it cancelled":
            helper.cancel()
            await helper
        if way in raised:
            raise raised[way]
        return rows() if way == "rows" else None

    async def handle(message: Message) -> object:
        began.append(message.queue_offset)
        if len(began) == 1:
            if gone:
                crew.link.close()
            else:
                crew.link.send(encode_stop())
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError as error:
            raised["plain"] = error
        return await clean_up()

    raised: dict[str, BaseException] = {
        "raises it anew": asyncio.CancelledError(), "fails": ValueError("in the clean-up"), "exits": SystemExit(3),
    }  # fmt: skip
    began: list[int] = []
    failures: list[BaseException] = []
    crew = Crew(Handler(handle), make_inner_batch, queue, rows=RowBuffer[Any](parse_ddl("n bigint"), "group"))
    crew.worker.report_failures(lambda _queue, _message, error: failures.append(error))
    data = make_inner_batch([b"a", b"b"])
    crew.link.send(encode_chunk(1, 1, 0, len(data), 1), data)
    if gone:
        with pytest.raises(LinkClosedError) as link_closed:
            crew.worker.run()
        crew.worker.accuse(link_closed.value)
    else:
        crew.worker.run()
    assert (began, failures, crew.cell[STATE]) == ([0], [], 0)
    for task in asyncio.all_tasks(crew.loop):  # helpers that it left
        task.cancel()
    crew.loop.run_until_complete(asyncio.sleep(0))
    crew.loop.close()
    crew.link.close()
