"""Is the supervisor alive, and is it ready? What a liveness and a readiness probe ask (`/livez`, `/readyz`).

Alive is a supervisor that makes progress: as long as messages are in hand, something must be finished within the limit.
A handler may take its time, and one that takes too long is stopped by the supervisor itself; so the limit is beyond the
longest call that is allowed to the workers that are busy, and there is none where one of them may take any time. Nothing to
do, a pause, a disk without room and a broker that is away are no reasons to be restarted.

Ready is one that runs with at least one worker.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from .core.states import ServiceState

SLACK_S: Final = 60.0
"""Beyond the longest call: for its kill, the next worker's start, and a report."""
_FINISHED: Final = ("done_messages", "failed_messages", "filtered_messages", "worker_deaths", "redispatched_messages")


class Health:
    """Fed with pictures; times are seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._finished = -1
        self._since = 0.0

    def not_alive(self, picture: Mapping[str, Any], now: float) -> str:
        """Why it should be restarted; empty when it should not."""
        finished = sum(picture["counters"][name] for name in _FINISHED)
        # A worker that cannot write its segment waits for the disk, and so will the next one.
        limits_s = [
            worker["hard_limit_s"]
            for worker in picture["workers"]
            # One that has no limit is dead, and waits for its salvage.
            if worker["messages"] and "hard_limit_s" in worker and not worker.get("blocked")
        ]
        if finished != self._finished or not limits_s:
            self._finished, self._since = finished, now
            return ""
        stuck_s = now - self._since
        if not all(limits_s) or stuck_s <= max(limits_s) + SLACK_S:
            return ""
        return f"messages are in hand, and none has been finished for {stuck_s:.0f} s"

    @staticmethod
    def not_ready(picture: Mapping[str, Any]) -> str:
        """Why it takes no messages; empty when it does."""
        service = ServiceState(picture["service"])
        if service is ServiceState.START_FAILED:  # Java's name of every start until it is done
            return "the supervisor is starting"
        if service is not ServiceState.RUNNING:
            return f"the supervisor is {service.value}"
        if picture["stopping"]:
            return "the supervisor is stopping"
        if not picture["ready_workers"]:
            return "no worker is ready"
        return ""
