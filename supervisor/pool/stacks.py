"""What every process of the crew is doing at this instant: Python stacks, and the message in hand.

A worker writes its stacks by itself when it gets the signal (workers/stack_dump.py), and so do the forkservers and the
loader; how long it takes is not ours to decide, so everything here has a deadline: one that is stopped, or waits in the
kernel, is shown as such.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ...workers.stack_dump import STACK_SIGNAL, StackFile, catches_stack_signal
from .child import Child

STACK_TIMEOUT_S: Final = 1.0
"""A worker that runs answers within a millisecond."""
_POLL_S: Final = 0.01
_EQUAL_LOOKS: Final = 5
"""A process that is put to sleep in the middle of its answer goes on sooner than that, mostly."""
_FRAMES_MAX: Final = 40
_TASKS_MAX: Final = 200


@dataclass(frozen=True, slots=True)
class Running:
    """The message that a worker has in hand: its place, and for how long it has been running. Of calls side by side (of a
    coroutine handler) their number, and for how long the oldest has."""

    topic: str | None
    broker: str | None
    queue_id: int | None
    offset: int | None
    seconds: float
    calls: int = 1

    def __str__(self) -> str:
        if self.topic is None:
            return f"{self.calls} calls at once, the oldest for {self.seconds:.3f} s"
        return f"{self.topic}/{self.broker}/{self.queue_id}@{self.offset} for {self.seconds:.3f} s"


@dataclass(frozen=True, slots=True)
class ProcessStack:
    """One process. `text` has its stacks, the innermost call first; empty when it did not answer: see `note`."""

    process: str
    """"supervisor", "worker", "forkserver", "spare" or "loader"."""
    name: str
    """The worker's id; the supervisor's client id; of the others, their purpose."""
    pid: int
    running: Running | None
    text: str
    note: str = ""

    def as_dict(self) -> dict[str, object]:
        """As JSON types, for the control socket."""
        running = None
        if self.running is not None:
            r = self.running
            running = {"topic": r.topic, "broker": r.broker, "queue_id": r.queue_id, "offset": r.offset,
                       "seconds": round(r.seconds, 3), "calls": r.calls}  # fmt: skip
        return {"process": self.process, "name": self.name, "pid": self.pid, "running": running, "stack": self.text,
                "note": self.note}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Helper:
    """A process of the crew that handles no messages: a forkserver, a spare, the loader. A child of the supervisor, or of
    one, that is not reaped while it is listed here, so that its pid is its own."""

    process: str
    name: str
    pid: int
    file: StackFile | None
    """Where it answers; None: it does not."""
    note: str = ""
    """Why it does not answer."""


@dataclass(slots=True)
class _Asked:
    """One process and its answer so far. The file may be closed during the wait: then the process has ended."""

    process: str
    name: str
    pid: int
    running: Running | None
    file: StackFile | None
    ended: Callable[[], bool]
    note: str = ""
    size: int = 0
    looks: int = 0
    """That found it as long as the one before."""

    def is_whole(self) -> bool:
        """A dump has no end mark, and is written in many pieces without a pause: one that has not grown for a while is so."""
        if self.file is None or self.ended():
            return True
        before, self.size = self.size, self.file.size()
        self.looks = self.looks + 1 if self.size and self.size == before else 0
        return self.looks >= _EQUAL_LOOKS

    def answer(self) -> ProcessStack:
        text, note = "", ""
        if self.file is None:
            note = ", ".join(part for part in (self.note, _kernel_state(self.pid)) if part)
        elif self.ended():
            note = "ended meanwhile"
        elif not (text := self.file.text()):
            parts = (f"did not answer within {STACK_TIMEOUT_S:g} s", _kernel_state(self.pid))
            note = ", ".join(part for part in parts if part)
        return ProcessStack(self.process, self.name, self.pid, self.running, text, note)


async def crew_stacks(
    children: Sequence[Child], running: Callable[[Child], Running | None], helpers: Callable[[], Sequence[Helper]],
    *, timeout_s: float = STACK_TIMEOUT_S,
) -> list[ProcessStack]:  # fmt: skip
    """The stacks of all `children` and `helpers`, asked at the same time; `running` says what each has in hand. At most
    `timeout_s`."""
    asked = [_ask_child(child, running(child)) for child in children]
    asked += [_ask_helper(helper, helpers) for helper in helpers()]
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        await asyncio.sleep(_POLL_S)
        whole = [each.is_whole() for each in asked]
        if all(whole):
            break
    return [each.answer() for each in asked]


def _ask_child(child: Child, running: Running | None) -> _Asked:
    child.stack_file.forget()
    child.process.kill(STACK_SIGNAL)
    return _Asked("worker", child.worker_id, child.process.pid, running, child.stack_file, ended=lambda: child.ended)


def _ask_helper(helper: Helper, helpers: Callable[[], Sequence[Helper]]) -> _Asked:
    file, note = helper.file, helper.note
    if file is not None and not catches_stack_signal(helper.pid):
        file, note = None, "does not answer yet"
    if file is not None:
        file.forget()
        with contextlib.suppress(ProcessLookupError):
            os.kill(helper.pid, STACK_SIGNAL)
    return _Asked(helper.process, helper.name, helper.pid, None, file, lambda: helper not in helpers(), note)


def _kernel_state(pid: int) -> str:
    """The kernel's state of a process that does not answer (Linux), as in "state: T (stopped)"."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return ""
    return next((f"state: {line[6:].strip()}" for line in lines if line.startswith("State:")), "")


def worker_facts(
    children: Iterable[Child], running: Callable[[Child], Running | None],
    blocked: Mapping[str, Mapping[str, object]], limit_s: Callable[[Child], float], now: float,
) -> dict[str, dict[str, object]]:  # fmt: skip
    """What is known of each worker without asking it, by its id: JSON types. `blocked` and `limit_s` are as Pool has
    them, `now` in seconds of the core's clock."""
    facts: dict[str, dict[str, object]] = {}
    for child in children:
        found = running(child)
        facts[child.worker_id] = {
            "pid": child.process.pid,
            "index": child.worker.index,
            "generation": child.worker.generation,
            "age_s": round(now - child.worker.started_at, 3),
            "done": child.worker.messages,
            "failed": child.worker.failed,
            "rss_bytes": _resident_bytes(child.process.pid),
            "running": None if found is None else str(found),
            "progress": child.progress if found is not None else "",
            "blocked": blocked.get(child.worker_id),
            "hard_limit_s": limit_s(child),
        }
    return facts


def _resident_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0


def own_stack(name: str) -> ProcessStack:
    """The supervisor's threads and asyncio tasks."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts: list[str] = []
    for ident, frame in sys._current_frames().items():  # pyright: ignore[reportPrivateUsage]
        lines = traceback.format_stack(frame, _FRAMES_MAX)
        parts.append(f"Thread {names.get(ident, ident)} (most recent call first):\n" + "".join(reversed(lines)))
    tasks = sorted(asyncio.all_tasks(), key=lambda task: task.get_name())
    for task in tasks[:_TASKS_MAX]:
        frames = task.get_stack(limit=_FRAMES_MAX)
        where = "".join(f'  File "{f.f_code.co_filename}", line {f.f_lineno} in {f.f_code.co_name}\n' for f in frames)
        parts.append(f"Task {task.get_name()} {getattr(task.get_coro(), '__qualname__', '')}:\n{where}")
    return ProcessStack("supervisor", name, os.getpid(), None, "\n".join(parts))


def as_text(stacks: Sequence[ProcessStack]) -> str:
    """All stacks as one text, a heading above each."""
    parts: list[str] = []
    for each in stacks:
        head = f"=== {each.process} {each.name} pid {each.pid}"
        if each.running is not None:
            head += f", running {each.running}"
        if each.note:
            head += f" ({each.note})"
        parts.append(f"{head}\n{each.text.rstrip()}\n")
    return "\n".join(parts)
