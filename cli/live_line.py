"""A terminal with one line at its bottom that is written anew, while other lines come and stay above it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TextIO

CLEAR = "\r\x1b[2K"
WIDTH_MAX = 120


class LiveLine:
    """Stands before a terminal's stream, also for the log: every other line goes above the live one."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._line = ""

    def isatty(self) -> bool:
        return self._stream.isatty()

    def write(self, text: str) -> int:
        """Write whole lines."""
        self._stream.write(f"{CLEAR}{text}{self._line}" if self._line else text)
        return len(text)

    def flush(self) -> None:
        self._stream.flush()

    def show(self, line: str) -> None:
        """Replace the live line; an empty one takes it away."""
        if line != self._line:
            self._line = line[:WIDTH_MAX]
            self._stream.write(CLEAR + self._line)
            self._stream.flush()


class Rate:
    """Messages a second, smoothed over some seconds."""

    def __init__(self) -> None:
        self._before: tuple[float, int] | None = None
        self.per_second = 0.0

    def at(self, now: float, done: int) -> float:
        """Messages a second, when so many are done at `now` (seconds)."""
        if self._before is not None and now > self._before[0]:
            latest = (done - self._before[1]) / (now - self._before[0])
            self.per_second += 0.3 * (latest - self.per_second) if self.per_second else latest
        self._before = (now, done)
        return self.per_second


def progress_line(found: Mapping[str, Any], per_second: float) -> str:
    """One line of a supervisor's status: done, failed, rate, lag, time left."""
    counters = found["counters"]
    # What is finished and not committed yet is no work any more.
    unfinished = sum(queue["unfinished"] for queue in (*found["queues"], *found["popped"]))
    lag = sum(queue["end_offset"] - queue["next_offset"] for queue in found["queues"]) + unfinished
    done, failed = counters["done_messages"], counters["failed_messages"]
    parts = [f"done {done}", f"failed {failed}", f"{per_second:.0f}/s", f"lag {lag}"]
    if lag and per_second >= 1:
        parts.append(f"{duration(lag / per_second)} left")
    if found["stopping"]:
        parts.append(f"stopping: {unfinished} in hand, Ctrl-C again forces")
    elif found["paused"]:
        parts.append("paused by " + " and ".join(found["paused"]))
    return "  ".join(parts)


def duration(seconds: float) -> str:
    """As 45 s, 3 min, 2.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def start_block(found: Mapping[str, Any], *, table: str, name_servers: str, page: str = "") -> str:
    """What a person wants to know at the start."""
    topics = [topic for topic in sorted(found["subscriptions"]) if not topic.startswith("%")]
    rows = {
        "group": found["group"],
        "topics": ", ".join(topics),
        "from": name_servers,
        "workers": f"{found['ready_workers']} processes",
        "rows go to": table,
        "state in": found["slot"],
        "page": page,
        "stop": "Ctrl-C finishes what was begun; `rocketcrew status`, `top`, `stop` from another terminal",
    }
    return "\n".join(f"  {name:<10}  {value}" for name, value in rows.items() if value)
