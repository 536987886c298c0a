"""`rocketcrew stacks`: what every process of a running supervisor is doing at this instant."""

from __future__ import annotations

from typing import Any

import click

from ..controlling import Target, to_supervisor

WORKER_BEGINS = " in worker_main"
"""The last line that people are shown of a worker's stack; --json has all."""


@click.command()
@to_supervisor
def stacks(target: Target) -> None:
    """Print the Python stacks of all processes: supervisor, workers with the message that each has in hand, the processes
    that workers are forked from, and the loader.

    Works for workers in a loop of C code too; a stopped process is reported as stopped. The signal USR1 writes the same
    into the log.

    \b
    Examples:
      rocketcrew stacks -g billing
    """
    answer = target.ask("stacks")
    target.tell(answer, "\n".join(text_of(each) for each in answer["processes"]))


def text_of(process: dict[str, Any]) -> str:
    """One process for people."""
    head = f"=== {process['process']} {process['name']} pid {process['pid']}"
    running = process["running"]
    if running:
        if running["topic"] is None:
            head += f", running {running['calls']} calls at once, the oldest for {running['seconds']} s"
        else:
            place = f"{running['topic']}/{running['broker']}/{running['queue_id']}@{running['offset']}"
            head += f", running {place} for {running['seconds']} s"
    if process["note"]:
        head += f" ({process['note']})"
    elif process["process"] == "worker" and not running:
        head += ", has no message in hand"
    return f"{head}\n{_without_start(process['stack']).rstrip()}\n"


def _without_start(stack: str) -> str:
    """The threads' frames up to our own first one: how a worker was forked says nothing of what it does."""
    threads = stack.rstrip("\n").split("\n\n")
    return "\n\n".join(_up_to_main(thread.split("\n")) for thread in threads)


def _up_to_main(frames: list[str]) -> str:
    last = next((at for at, frame in enumerate(frames) if frame.endswith(WORKER_BEGINS)), len(frames))
    return "\n".join(frames[: last + 1])
