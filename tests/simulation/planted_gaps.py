"""Bugs on purpose in what is said of offsets that a broker passes over although everything is subscribed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rocketcrew.supervisor.core.process_queue import PulledQueue
from rocketcrew.supervisor.core.pulling import Pulling, PullResult

from .planted import CoreParts, Planted

PASSED_OVER: dict[str, Any] = {"subscription": "A || B", "claims_all": True}


class CallingItFiltered(Pulling):
    def _note_passed_over(
        self, q: PulledQueue, result: PullResult, positions: Sequence[int], offsets: Sequence[int], now: float
    ) -> None:
        super()._note_passed_over(q, replace(result, takes_all=False), positions, offsets, now)


class ForgettingTheTail(Pulling):
    def _note_passed_over(
        self, q: PulledQueue, result: PullResult, positions: Sequence[int], offsets: Sequence[int], now: float
    ) -> None:
        end = offsets[-1] + 1 if offsets else result.next_offset
        super()._note_passed_over(q, replace(result, next_offset=end), positions, offsets, now)


class CallsItFiltered(CoreParts):
    """Whatever was subscribed, a gap is taken for what a filter left out."""

    pulling_class = CallingItFiltered


class ForgetsTheTail(CoreParts):
    """What lies after the last record of an answer is not named."""

    pulling_class = ForgettingTheTail


PLANTED_GAPS = {
    "what nobody filters is called filtered": Planted(CallsItFiltered, 5, ("kill member",), PASSED_OVER),
    "the end of an answer is not named": Planted(ForgetsTheTail, 10, (), PASSED_OVER),
}
