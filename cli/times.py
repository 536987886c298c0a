"""Times on the command line: points in time, and how long something is."""

from __future__ import annotations

import re
from datetime import datetime
from math import isfinite
from typing import Any, Final

import click

from ..conf.formats import UNIT_MS, check_milliseconds, consume_timestamp_ms
from ..remoting.errors import UsageError

SKEW_MAX_MS: Final = 5_000
"""Between clocks of two hosts. Brokers report theirs to the second; less than this does no harm."""
_AGO: Final = re.compile(r"([0-9]{1,9})([smhd])")
_TIMESTAMP: Final = re.compile(r"[0-9]{14}")
"""yyyyMMddHHmmss, as RocketMQ's own commands take it; in milliseconds it would be a time after the year 2286."""
_NUMBER_MS: Final = re.compile(r"[0-9]{9,15}")
"""With fewer digits it is a day, as 20260131; with more it is in microseconds."""


class Seconds(click.FloatRange):
    """An option that is a time: nan, which is in every range, and inf are refused."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found: float = super().convert(value, param, ctx)
        if not isfinite(found):
            self.fail(f"{value!r} is no number of seconds", param, ctx)
        return found


def parse_time(option: str, text: str, now_ms: int) -> int:
    """Milliseconds since 1970 of `2026-01-31T08:00` or 20260131080000 (local time without a zone), of such a number, or of
    `2h` (so long ago).

    Raises UsageError naming the option.
    """
    wanted = text.strip()
    if match := _AGO.fullmatch(wanted.lower()):
        return max(0, now_ms - int(match[1]) * UNIT_MS[match[2]])
    if _NUMBER_MS.fullmatch(wanted):
        try:
            if _TIMESTAMP.fullmatch(wanted):
                return consume_timestamp_ms(wanted)
            check_milliseconds(int(wanted))
        except ValueError as error:
            raise UsageError(f"{option} {text!r} {error}") from None
        return int(wanted)
    try:
        if not wanted.isascii():
            raise ValueError(wanted)  # `fromisoformat` takes any character between day and hour
        return int(datetime.fromisoformat(wanted).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise UsageError(
            f"{option} {text!r} is no time: write 2026-01-31T08:00 or 20260131080000 (local time unless it names a zone),"
            " milliseconds since 1970, or how long ago, as 2h or 30m"
        ) from None
