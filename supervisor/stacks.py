"""What every process of the crew is doing at this instant: Python stacks, and the message in hand.

A worker writes its stacks by itself when it gets the signal (workers/stack_dump.py); how long it takes is not ours to
decide, so everything here has a deadline: a worker that is stopped, or waits in the kernel, is told as such.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ..workers.stack_dump import STACK_SIGNAL
from .pool_member import Member

STACK_TIMEOUT_S: Final = 1.0
"""A worker that runs answers within a millisecond."""
_POLL_S: Final = 0.01
_FRAMES_MAX: Final = 40
_TASKS_MAX: Final = 200


@dataclass(frozen=True, slots=True)
class Running:
    """The message that a worker has in hand: where it stands, and for how long it has been running."""

    topic: str
    broker: str
    queue_id: int
    offset: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.topic}/{self.broker}/{self.queue_id}@{self.offset} for {self.seconds:.3f} s"


@dataclass(frozen=True, slots=True)
class ProcessStack:
    """One process. `text` has its stacks, the innermost call first; empty when it did not answer, then `note` says why."""

    process: str
    """"supervisor" or "worker"."""
    name: str
    """The worker's id; the supervisor's client id."""
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
                       "seconds": round(r.seconds, 3)}  # fmt: skip
        return {"process": self.process, "name": self.name, "pid": self.pid, "running": running, "stack": self.text,
                "note": self.note}  # fmt: skip


async def worker_stacks(
    members: Sequence[Member], running: Callable[[Member], Running | None], *, timeout_s: float = STACK_TIMEOUT_S
) -> list[ProcessStack]:
    """The stacks of all `members`, asked at the same time; `running` says what each has in hand. At most `timeout_s`."""
    asked: list[tuple[Member, Running | None]] = []
    for member in members:
        member.stack_file.forget()
        asked.append((member, running(member)))
        member.process.kill(STACK_SIGNAL)
    deadline = time.monotonic() + timeout_s
    sizes = [0] * len(asked)
    while time.monotonic() < deadline:
        await asyncio.sleep(_POLL_S)
        before, sizes = sizes, [0 if member.ended else member.stack_file.size() for member, _ in asked]
        # A dump has no end mark; it is written in one go, so one that has stopped growing is whole.
        if all(size and size == old for size, old in zip(sizes, before, strict=True)):
            break
    return [_answer(member, found) for member, found in asked]


def _answer(member: Member, running: Running | None) -> ProcessStack:
    if member.ended:
        return ProcessStack("worker", member.worker_id, member.process.pid, running, "", "ended meanwhile")
    text = member.stack_file.text()
    note = "" if text else f"did not answer within {STACK_TIMEOUT_S:g} s{_kernel_state(member.process.pid)}"
    return ProcessStack("worker", member.worker_id, member.process.pid, running, text, note)


def _kernel_state(pid: int) -> str:
    """What the kernel says of a process that does not answer (Linux), as in ", state: T (stopped)"."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return ""
    return next((f", state: {line[6:].strip()}" for line in lines if line.startswith("State:")), "")


def worker_facts(
    members: Iterable[Member], running: Callable[[Member], Running | None]
) -> dict[str, dict[str, object]]:
    """What is known of each worker without asking it, by its id: JSON types."""
    facts: dict[str, dict[str, object]] = {}
    for member in members:
        found = running(member)
        facts[member.worker_id] = {
            "pid": member.process.pid,
            "index": member.index,
            "generation": member.generation,
            "done": member.messages,
            "failed": member.failed,
            "rss_bytes": _resident_bytes(member.process.pid),
            "running": None if found is None else str(found),
            "progress": member.progress if found is not None else "",
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
