"""An end of several steps."""

from __future__ import annotations

import asyncio

import pytest

from rocketcrew.client.background import to_the_end


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
        await to_the_end(fine, fails, fine)
    with pytest.raises(asyncio.CancelledError):
        await to_the_end(cancelled, fine)
    assert taken == ["fine", "fails", "fine", "cancelled", "fine"]
