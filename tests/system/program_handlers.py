"""Handlers of test_programs.py, which start programs: what the message says. PROGRAMS names the folder of their notes."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from rocketcrew import Message, handler

WAITS = "touch begun; until [ -e run ]; do sleep 0.05; done; echo ok"
IGNORES_TERM = "trap '' TERM; while :; do sleep 1000; done"


def start(name: str, *words: str) -> None:
    """Start a program that runs for long, and note its process id by a file `name.pid`."""
    program = subprocess.Popen(words)
    (Path(os.environ["PROGRAMS"]) / f"{name}.{program.pid}").touch()


@handler(schema="said string", hard_time_limit_s=2)
def in_time(message: Message) -> None:
    """Starts a program and ends its worker: by itself, or at the time limit of its first attempt. Or leaves it running."""
    what = message.body.decode()
    if message.reconsume_times:
        return
    start(what, "sleep", "1000")
    if what == "exits":
        start("ignores_term", "sh", "-c", IGNORES_TERM)
        os._exit(7)
    if what == "hangs":
        sum(iter(int, 1))


@handler(schema="said string")
def waits(message: Message) -> dict[str, str]:
    """Runs a program, which waits until the test lets it go on."""
    done = subprocess.run(
        ["sh", "-c", WAITS], cwd=os.environ["PROGRAMS"], stdout=subprocess.PIPE, text=True, check=False
    )
    return {"said": f"{message.body.decode()} {done.returncode} {done.stdout.strip()}"}
