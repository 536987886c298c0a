"""Answers that cost too much for one turn: they are made in rounds, and others are served between these.

A handler gives its steps, a generator that yields once for each operation and returns the answer. The first
OPERATIONS_MAX of them are done at once, so that most answers wait for nothing; each tick then does as many for one of those
that wait, in turn. What waits goes with its connection, and is bounded: each may have an answer of BODY_MAX_BYTES in hand.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import cast

from ..remoting.codes import ResponseCode
from ..remoting.command import Command
from .refusal import Refused

OPERATIONS_MAX = 500  # looks at one queue each: some 10 ms
WAITING_MAX = 8
BODY_MAX_BYTES = 15 << 20  # RocketMQ's clients take frames of 16 MiB

Steps = Generator[None, None, Command]


@dataclass(slots=True, eq=False)
class LongAnswer:
    channel: int
    command: Command
    steps: Steps

    def round(self) -> Command | None:
        """The answer, None when it is not made yet. Raises what the steps raise."""
        try:
            for _ in range(OPERATIONS_MAX):
                next(self.steps)
        except StopIteration as end:
            return cast("Command", end.value)
        return None


class LongAnswers:
    """Those that wait for their next round, the next one first."""

    def __init__(self) -> None:
        self.waiting: deque[LongAnswer] = deque()

    def begin(self, channel: int, command: Command, steps: Steps) -> Command | None:
        """The answer, None when it takes further rounds, or nobody waits for it. Raises what the steps raise; Refused when
        too many wait, or one of this connection."""
        if command.is_oneway:
            return None
        fresh = LongAnswer(channel, replace(command, body=b""), steps)  # what its body was read into is used again
        answer = fresh.round()
        if answer is None:
            if len(self.waiting) >= WAITING_MAX or any(other.channel == channel for other in self.waiting):
                remark = f"{len(self.waiting)} requests that take as long as this one are being answered: try again"
                raise Refused(ResponseCode.SYSTEM_BUSY, remark)
            self.waiting.append(fresh)
        return answer

    def drop_channel(self, channel: int) -> None:
        self.waiting = deque(other for other in self.waiting if other.channel != channel)


def refuse_too_large(length_bytes: int, instead: str) -> None:
    """Raises Refused for an answer of so many bytes; `instead` says what to ask for."""
    if length_bytes > BODY_MAX_BYTES:
        remark = f"the answer has more than the {BODY_MAX_BYTES} bytes that fit into a frame: {instead}"
        raise Refused(ResponseCode.SYSTEM_ERROR, remark)
