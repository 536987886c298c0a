"""The time window of a replay, as a user writes it. Pure."""

from __future__ import annotations

import re
from datetime import datetime

from ..conf.formats import UNIT_MS
from ..remoting.errors import UsageError

_AGO = re.compile(r"(\d{1,9})([smhd])")


def parse_time(option: str, text: str, now_ms: int) -> int:
    """Milliseconds since 1970 of `2026-01-31T08:00` (local time without a zone), of such a number, or of `2h` (so long ago).

    Raises UsageError naming the option.
    """
    wanted = text.strip()
    if match := _AGO.fullmatch(wanted.lower()):
        return max(0, now_ms - int(match[1]) * UNIT_MS[match[2]])
    if wanted.isdigit() and len(wanted) > 8:
        return int(wanted)
    try:
        return int(datetime.fromisoformat(wanted).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise UsageError(
            f"{option} {text!r} is no time: write 2026-01-31T08:00 (local time unless it names a zone), milliseconds"
            " since 1970, or how long ago, as 2h or 30m"
        ) from None


def check_window(from_ms: int, to_ms: int) -> None:
    """Raise UsageError for a window with nothing in it."""
    if from_ms >= to_ms:
        raise UsageError(
            "--from must be earlier than --to: messages stored from the one until before the other are run"
        )
