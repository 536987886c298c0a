"""Handlers of the engine's system tests, imported by Spark's Python processes: the folder travels as a zip."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from pathlib import Path

from rocketcrew import Message, handler


@handler(schema="number bigint, attempt int", hard_time_limit_s=2)
def deadly(message: Message) -> dict[str, int]:
    """33 ends its process, 44 sleeps for ever and 66 fails, both at first; the others are numbers."""
    value = int(message.body)
    if value == 33:
        ctypes.string_at(0)
    if value == 44 and message.reconsume_times == 0:
        time.sleep(3600)
    if value == 66 and message.reconsume_times == 0:
        raise ValueError("66 fails at first")
    return {"number": value, "attempt": message.reconsume_times}


@handler(schema="number bigint, attempt int")
def felled(message: Message) -> dict[str, int]:
    """The one that handles 300 for the first time ends its whole executor: the Python process's ancestors up to the JVM."""
    value = int(message.body)
    mark = Path(message.properties["mark"])
    if value == 300 and not mark.exists():
        mark.touch()
        kill_executor()
    time.sleep(0.0005)
    return {"number": value, "attempt": message.reconsume_times}


def kill_executor() -> None:
    """SIGKILL to the JVM that this Python process belongs to."""
    pid = os.getpid()
    while pid > 1:
        status = Path(f"/proc/{pid}/stat").read_text()
        name, parent = (
            status[status.index("(") + 1 : status.rindex(")")],
            int(status[status.rindex(")") + 2 :].split()[1]),
        )
        if name == "java":
            os.kill(pid, signal.SIGKILL)
            time.sleep(60)
        pid = parent


@handler(schema="number bigint, attempt int")
def changed(message: Message) -> dict[str, int]:
    """As numbers_handler.number at its last attempt, but for one number."""
    value = int(message.body)
    return {"number": value, "attempt": 2 if value % 50 == 7 and value != 57 else 0}


@handler(schema="number bigint, attempt int")
def as_in_the_end(message: Message) -> dict[str, int]:
    """What numbers_handler.number_retried_once leaves in the table, at the first attempt."""
    value = int(message.body)
    return {"number": value, "attempt": 1 if value % 50 == 7 else 0}
