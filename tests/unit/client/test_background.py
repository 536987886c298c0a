"""An end of several steps."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from rocketcrew.client.background import take_each
from rocketcrew.client.producer import Producer


async def test_each_step_of_an_end_is_taken_whatever_another_raises() -> None:
    taken: list[str] = []

    async def fine() -> None:
        taken.append("fine")

    async def fails() -> None:
        taken.append("fails")
        raise ValueError("of the second step")

    async def cancelled() -> None:
        taken.append("cancelled")
        raise asyncio.CancelledError

    with pytest.raises(ValueError, match="of the second step"):
        await take_each(fine, fails, fine)
    with pytest.raises(asyncio.CancelledError):
        await take_each(cancelled, fine)
    assert taken == ["fine", "fails", "fine", "cancelled", "fine"]


async def test_a_cancellation_comes_out_whatever_other_steps_raise_and_else_the_first_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def cancelled() -> None:
        raise asyncio.CancelledError

    def fails(what: str) -> Callable[[], Awaitable[None]]:
        async def step() -> None:
            raise ValueError(what)

        return step

    with pytest.raises(asyncio.CancelledError):
        await take_each(cancelled, fails("later"))
    with pytest.raises(asyncio.CancelledError):
        await take_each(fails("before"), cancelled)
    with pytest.raises(ValueError, match=r"^first$"):
        await take_each(fails("first"), fails("second"))
    said = capsys.readouterr().err
    assert [what in said for what in ("ValueError: later", "ValueError: before", "ValueError: second")] == [True] * 3
    assert "ValueError: first" not in said


def test_where_the_loop_is_dropped_in_the_middle_of_an_end_no_other_step_is_taken() -> None:
    taken: list[str] = []

    async def waits() -> None:
        try:
            await asyncio.sleep(0)
        finally:
            taken.append("cut")

    async def later() -> None:
        taken.append("later")
        await asyncio.sleep(0)

    end = take_each(waits, later)
    end.send(None)
    end.close()
    assert taken == ["cut"]


def test_nor_of_the_end_of_a_producer() -> None:
    async def begin() -> None:
        producer = Producer("127.0.0.1:1")
        producer.start()
        end = producer.close()
        end.send(None)
        end.close()

    asyncio.run(begin())
