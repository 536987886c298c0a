"""A terminal with one line at its bottom that is written anew, while other lines come and stay above it.

Others write to the terminal too: workers print, and log what is a warning to them. While the line is shown (`beside`), our
own standard output and error are a terminal of our making, which children inherit; what comes through it is written line by
line, each where the live line was, which then follows below. A terminal and not a pipe: Python buffers what it prints into a
pipe.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import sys
import termios
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from .patient_output import CLEAR

if TYPE_CHECKING:
    import asyncio

WIDTH_MAX = 120
READ_BYTES_MAX: Final = 64 * 1024
LINE_CHARACTERS_MAX: Final = 64 * 1024
"""A line without an end is cut there."""


class Output(Protocol):
    """Where the lines go: one that does not wait, while a loop runs."""

    def write(self, text: str, /) -> int: ...
    def flush(self) -> None: ...
    def isatty(self) -> bool: ...


class LiveLine:
    """Stands before a terminal's stream, also for the log: every other line goes above the live one."""

    def __init__(self, stream: Output, columns: Callable[[], int] = lambda: WIDTH_MAX) -> None:
        """`columns`: the terminal's width now, 0 where it does not say. A line that wraps could not be taken away again."""
        self._stream = stream
        self._columns = columns
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
            self._line = line[: min(WIDTH_MAX, (self._columns() or WIDTH_MAX + 1) - 1)]
            self._stream.write(CLEAR + self._line)
            self._stream.flush()


class Lines:
    """Bytes of other processes, in any pieces, as whole lines of text. Pure."""

    def __init__(self, write: Callable[[str], object]) -> None:
        """`write` is given one or more whole lines."""
        self._write = write
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""

    def feed(self, data: bytes) -> None:
        """More has come."""
        text = self._rest + self._decoder.decode(data).replace("\r\n", "\n")
        whole, newline, self._rest = text.rpartition("\n")
        if newline:
            self._write(whole + newline)
        if len(self._rest) > LINE_CHARACTERS_MAX:
            self.end()

    def end(self) -> None:
        """Nothing more comes: what has no end of line gets one."""
        rest, self._rest = self._rest, ""
        if rest:
            self._write(rest + "\n")


@contextlib.contextmanager
def beside(line: LiveLine, loop: asyncio.AbstractEventLoop) -> Generator[None]:
    """Until the end of the block, what this process and its children write to the terminal goes above the live line."""
    outputs = [
        number for number in (1, 2) if os.isatty(number)
    ]  # before anything is opened, which may get their numbers
    ours, theirs = os.openpty()
    modes = termios.tcgetattr(theirs)
    modes[1] &= ~termios.OPOST  # a line ends by \\n: the terminal behind adds what it needs
    termios.tcsetattr(theirs, termios.TCSANOW, modes)
    os.set_blocking(ours, False)
    lines = Lines(line.write)
    sys.stdout.flush()
    sys.stderr.flush()
    kept = {number: os.dup(number) for number in outputs}
    for number in kept:
        os.dup2(theirs, number)
    os.close(theirs)

    def read() -> bool:
        try:
            data = os.read(ours, READ_BYTES_MAX)
        except BlockingIOError:
            return False
        except OSError:  # nobody has it open any more
            data = b""
        if data:
            lines.feed(data)
            line.flush()
        else:
            loop.remove_reader(ours)
        return bool(data)

    loop.add_reader(ours, read)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, was in kept.items():
            os.dup2(was, number)
            os.close(was)
        loop.remove_reader(ours)
        while read():
            pass
        lines.end()
        line.flush()
        os.close(ours)


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


class Reloads:
    """What is said of reloads, once of each: the log of a terminal has warnings and errors only."""

    def __init__(self) -> None:
        self._seen = {"reloaded": 0, "rolled_back": 0}

    def news(self, staff: Mapping[str, Any]) -> str:
        """A line where a reload has ended since the last call, else nothing; `staff` is that of a supervisor's status."""
        before, self._seen = self._seen, {name: staff["counts"].get(name, 0) for name in self._seen}
        if self._seen["rolled_back"] > before["rolled_back"]:
            why = str(staff["last_reload"]).removeprefix("rolled back: ").partition("\n")[0]
            return f"reload failed, the old code goes on: {why}"
        return "reloaded: the new code runs" if self._seen["reloaded"] > before["reloaded"] else ""


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
        loader: dict[str, Any] = found.get("loader") or {}
        batch: dict[str, Any] = loader.get("running") or {}
        rows = batch.get("rows", 0)
        waits = f"the loader ends its batch of {rows} rows" if rows and not unfinished else f"{unfinished} in hand"
        parts.append(f"stopping: {waits}, Ctrl-C again forces")
    elif found["paused"]:
        parts.append("paused by " + " and ".join(found["paused"]))
    return "  ".join(parts)


def duration(seconds: float) -> str:
    """As 45 s, 3 min, 2.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _from_here(path: Path) -> Path:
    """As a person in this folder would type it."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def start_block(found: Mapping[str, Any], *, table: str, name_servers: str, page: str = "", log: str = "") -> str:
    """What a person wants to know at the start."""
    topics = [topic for topic in sorted(found["subscriptions"]) if not topic.startswith("%")]
    rows = {
        "group": found["group"],
        "topics": ", ".join(topics),
        "from": name_servers,
        "workers": f"{found['ready_workers']} processes",
        "rows go to": _from_here(Path(table)) if table.startswith("/") else table,
        "state in": _from_here(Path(found["slot"])),
        "log": log,
        "page": page,
        "stop": "Ctrl-C finishes what was begun; `rocketcrew status`, `top`, `stop` from another terminal",
    }
    return "\n".join(f"  {name:<10}  {value}" for name, value in rows.items() if value)
