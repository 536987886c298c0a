"""A failed message: why it failed, by which way it goes back, and after which delay it comes again. One type, one table.

The worker that ran the message makes the `Failure`, or the supervisor where the worker died with it; it is kept until a
broker has the message again. What is done with it: supervisor/core/retries.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Final


class Cause(IntEnum):
    """Why a message failed. The numbers are those of the worker's packets."""

    FAILED = 0
    """Its handler raised, asked for another attempt, or did not acknowledge it; or it could not be decoded."""
    TIME_LIMIT = 1
    """Its call was stopped at the soft or the hard time limit."""
    GIVEN_UP = 2
    """Its handler wants it in the dead letters at once."""
    DEATHS = 3
    """It crashed too many workers."""
    ATTEMPTS = 4
    """It is ordered, and was tried here as often as `consumer.max_reconsume_times` allows."""
    HELD = 5
    """It is ordered and would be tried again here, but its member stops."""


DEFAULT_MAX_RECONSUME_TIMES = 16


class Mode(Enum):
    """By which way a failed message goes back."""

    SEND_BACK = "send-back"
    """It was pulled: its broker puts a copy into the retry topic, after the delay of a level."""
    POP = "invisible time"
    """It was popped: its broker shows it again when its new invisible time is over."""
    DEAD_LETTER = "dead letter"
    LAST_ATTEMPT = "last attempt"
    """An ordinary send to the retry topic that counts the attempts made here, as Java's orderly service does; the broker
    makes it a dead letter."""
    DROP = "dropped"
    """Broadcasting: nothing is consumed again."""


DEAD_LETTER_LEVEL: Final = -1
"""What users and brokers call the delay level of a dead letter. Inside it is a mode."""
BY_ATTEMPTS: Final = 0
"""No level: the delay grows with the attempts."""
DELAY_LEVELS: Final[Mapping[tuple[Cause, Mode], int]] = {
    (Cause.FAILED, Mode.SEND_BACK): BY_ATTEMPTS,  # 10 s, 30 s, 1 min, 2 min, ...: the broker takes level 3 + attempts
    (Cause.FAILED, Mode.POP): BY_ATTEMPTS,  # 10 s, 30 s, 1 min, 2 min, ...: POP_DELAYS_S
    (Cause.HELD, Mode.SEND_BACK): BY_ATTEMPTS,
    (Cause.TIME_LIMIT, Mode.SEND_BACK): 3,  # 10 s; ProcessQueue.cleanExpiredMsg
    (Cause.TIME_LIMIT, Mode.POP): 3,  # 120 s: POP counts its delays from 0, and from 10 s
}
"""The level of a failure for which neither the handler nor `consumer.delay_level_when_next_consume` names one."""
POP_DELAYS_S: Final = (10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
"""popDelayLevel (DefaultMQPushConsumerImpl.java): the invisible time by level, or by attempts where there is no level."""
RESEND_LEVEL: Final = 3
"""The first retry that a client sends by itself waits at level 3 (10 s), the n-th at level 2 + n, as with send-backs."""

_DEAD: Final = frozenset({Cause.GIVEN_UP, Cause.DEATHS, Cause.ATTEMPTS})
_AS_CONFIGURED: Final = frozenset({Cause.FAILED, Cause.TIME_LIMIT})


@dataclass(slots=True)
class Failure:
    """One failed message; open until a broker has it again."""

    cause: Cause
    error: str = ""
    level: int = BY_ATTEMPTS
    """That the handler asked for, 0..127; 0 = none."""
    facts: dict[str, str] | None = None
    """DEATHS: of the last crash, for the dead letter's properties."""
    tried: int = 0
    """ATTEMPTS: how often it was tried here without going back."""
    attempts: int = 0
    """Its refused send-backs."""
    mode: Mode | None = None
    """By which way it was last asked to go back."""
    last: bool = False
    """Its broker makes a dead letter of it: by that way, or since its attempts are used up."""
    sent: bool = False
    """That is under way or was accepted, or it runs here again: it is not sent a second time beside it."""


def reconsume_limit(configured: int) -> int:
    """How often a message goes back before it is a dead letter. `configured` is `consumer.max_reconsume_times`; what -1 means
    without an order, and for keys in order (DefaultMQPushConsumerImpl.getMaxReconsumeTimes)."""
    return DEFAULT_MAX_RECONSUME_TIMES if configured < 0 else configured


def asked(level: int, error: str) -> Failure:
    """The failure of a handler that names a level in RocketMQ's numbers: -1 = dead letter, 0 = none, else that one."""
    if level == DEAD_LETTER_LEVEL:
        return Failure(Cause.GIVEN_UP, error)
    return Failure(Cause.FAILED, error, level)


def is_dead_letter(failure: Failure, configured: int) -> bool:
    """It is not tried again. `configured` is `consumer.delay_level_when_next_consume`, -1..127."""
    if failure.cause in _AS_CONFIGURED and failure.level == BY_ATTEMPTS:
        return configured == DEAD_LETTER_LEVEL
    return failure.cause in _DEAD


def is_used_up(reconsume_times: int, max_reconsume_times: int) -> bool:
    """Its broker makes a dead letter of it: it compares the record's attempts with the limit in the header
    (SendMessageProcessor.consumerSendMsgBack). `max_reconsume_times` as configured, -1 = 16."""
    return reconsume_times >= reconsume_limit(max_reconsume_times)


@dataclass(frozen=True, slots=True)
class Attempts:
    """The settings of [consumer] that decide whether a failed message comes again, where it was consumed without an order."""

    max_reconsume_times: int = -1
    delay_level_when_next_consume: int = BY_ATTEMPTS
    broadcasting: bool = False

    def is_last(self, failure: Failure, reconsume_times: int) -> bool:
        """The message becomes a dead letter, or is dropped as nothing is consumed again."""
        used_up = is_used_up(reconsume_times, self.max_reconsume_times)
        mode = mode_of(failure, self.delay_level_when_next_consume, used_up=used_up, broadcasting=self.broadcasting)
        return mode is Mode.DROP or is_last(mode, used_up=used_up)


def mode_of(
    failure: Failure, configured: int, *, used_up: bool = False, popped: bool = False, broadcasting: bool = False
) -> Mode:
    """By which way it goes back. `used_up` as by `is_used_up`: of popped messages brokers count no attempts, so we do."""
    if broadcasting:
        return Mode.DROP
    if failure.cause is Cause.ATTEMPTS:
        return Mode.LAST_ATTEMPT
    if is_dead_letter(failure, configured) or (popped and used_up):
        return Mode.DEAD_LETTER
    return Mode.POP if popped else Mode.SEND_BACK


def is_last(mode: Mode, *, used_up: bool) -> bool:
    """Whether the message is a dead letter once a broker has taken it by that way."""
    return mode in (Mode.DEAD_LETTER, Mode.LAST_ATTEMPT) or (mode is Mode.SEND_BACK and used_up)


def level_of(failure: Failure, mode: Mode, configured: int) -> int:
    """At which level, 0..127: the handler's, else the configured one, else the table's; 0 = by its attempts, or no retry."""
    if mode not in (Mode.SEND_BACK, Mode.POP):
        return BY_ATTEMPTS
    return failure.level or max(configured, 0) or DELAY_LEVELS[failure.cause, mode]


def resend_level(level: int, times: int) -> int:
    """The level of an ordinary send to the retry topic in place of a send-back; `times` = attempts with this one."""
    return level if level > 0 else RESEND_LEVEL + times - 1


def pop_delay_ms(level: int, reconsume_times: int) -> int:
    """How long a popped message that failed stays invisible, in milliseconds."""
    at = level if level > 0 else reconsume_times
    return POP_DELAYS_S[min(at, len(POP_DELAYS_S) - 1)] * 1000
