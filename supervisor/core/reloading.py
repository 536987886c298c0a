"""A reload of the handler's code, as a table: one worker of the new generation first, then all, or back.

    idle -> probing -> canary -> rolling -> idle
               |          |         |
               +-> idle   +---------+-> rolling back -> idle

Probing: the first worker of the new code boots beside those of the old; an import error ends the reload there and nobody
was touched. Canary: it works beside the one that it will replace until it has done its first messages. Rolling: the
others are replaced one after another; new code that stops booting is rolled back.
"""

from __future__ import annotations

from enum import Enum


class Reload(Enum):
    IDLE = "idle"
    PROBING = "probing"
    CANARY = "canary"
    ROLLING = "rolling"
    ROLLING_BACK = "rolling back"


class ReloadEvent(Enum):
    ASKED = "asked"
    BOOTED = "booted"
    PASSED = "passed"
    FAILED = "failed"
    REPLACED = "replaced"


RELOAD: dict[tuple[Reload, ReloadEvent], Reload] = {
    (Reload.IDLE, ReloadEvent.ASKED): Reload.PROBING,
    (Reload.PROBING, ReloadEvent.BOOTED): Reload.CANARY,
    (Reload.PROBING, ReloadEvent.FAILED): Reload.IDLE,
    (Reload.CANARY, ReloadEvent.PASSED): Reload.ROLLING,
    (Reload.CANARY, ReloadEvent.FAILED): Reload.ROLLING_BACK,
    (Reload.ROLLING, ReloadEvent.REPLACED): Reload.IDLE,
    (Reload.ROLLING, ReloadEvent.FAILED): Reload.ROLLING_BACK,
    (Reload.ROLLING_BACK, ReloadEvent.REPLACED): Reload.IDLE,
}

ROLLING_FAILURES_MAX = 3
"""Boots of the new code that fail in a row while it is rolled out; the next thing is the way back."""


def canary_verdict(messages: int, failed: int, wanted: int, *, over: bool) -> ReloadEvent | None:
    """PASSED or FAILED by what the first worker did, None while that is open. `over` = its time is over.

    It fails when more than half of the first `wanted` messages fail; messages that always fail are part of ordinary life.
    """
    if failed * 2 > wanted:
        return ReloadEvent.FAILED
    if messages >= wanted or over:
        return ReloadEvent.FAILED if failed * 2 > messages else ReloadEvent.PASSED
    return None
