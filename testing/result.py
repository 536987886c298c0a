"""What a run in this process found out: plain values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pyarrow

from ..workers.message import Message


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the handler."""

    messages: tuple[Message, ...]
    """One; several of a batch handler."""
    at_s: float
    """Seconds of the test's clock since its start."""
    error: BaseException | None = None
    """What the handler raised."""

    @property
    def message(self) -> Message:
        """The only message, or the first of a batch."""
        return self.messages[0]


@dataclass(frozen=True, slots=True)
class Retried:
    """A message that failed and went back to its broker, which delivers it again."""

    message: Message
    """As the handler got it: `reconsume_times` counts the attempts before the failed one."""
    delay_s: float
    """How long the broker holds it."""
    level: int
    """The broker's delay level, 1.."""
    at_s: float
    error: str


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that went to the group's dead-letter topic."""

    message: Message
    at_s: float
    error: str


@dataclass(frozen=True, slots=True)
class Result:
    """The whole run."""

    rows: list[dict[str, Any]]
    """The columns that the handler declares, or that were inferred, row by row in the order in which they were written."""
    table: pyarrow.Table | None
    """The same rows with their key columns (`_topic`, `_queue_id`, `_offset`, ...), as the loader gets them; None without."""
    calls: list[Call]
    retries: list[Retried]
    dead_letters: list[DeadLetter]
    done: int
    """Messages that were consumed: the handler succeeded, or a filter did not want them."""
    filtered: int
    """Of these, messages that a worker left out: their tag is not subscribed, or the handler's filter did not want them. What
    the broker leaves out by its tags is counted nowhere."""
    unfinished: int
    """Messages that are neither consumed nor dead letters: their time has not come, or the run was cut off."""
    elapsed_s: float
    sent: list[Message] = field(default_factory=list[Message])
    """What the handler sent (`Send`), in order, with the unique keys; the broker has these messages too."""
    log: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """What would be logged: `event`, `level`, and the event's keys."""

    @property
    def delays_s(self) -> list[float]:
        """The delay of each retry, in order."""
        return [each.delay_s for each in self.retries]

    @property
    def errors(self) -> list[BaseException]:
        """What the handler raised, call by call."""
        return [each.error for each in self.calls if each.error is not None]
