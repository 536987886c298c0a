"""`rocketcrew stacks`: what every process of a running supervisor is doing at this instant."""

from __future__ import annotations

from typing import Any

import click

from .controlling import Target, to_supervisor


@click.command()
@to_supervisor
def stacks(target: Target) -> None:
    """Print the Python stacks of the supervisor and all workers, with the message that each has in hand.

    Works for workers in a loop of C code too; one that is stopped is told as such. The signal USR1 writes the same into
    the log.
    """
    answer = target.ask("stacks")
    target.tell(answer, "\n".join(text_of(each) for each in answer["processes"]))


def text_of(process: dict[str, Any]) -> str:
    """One process for people."""
    head = f"=== {process['process']} {process['name']} pid {process['pid']}"
    if running := process["running"]:
        place = f"{running['topic']}/{running['broker']}/{running['queue_id']}@{running['offset']}"
        head += f", running {place} for {running['seconds']} s"
    if process["note"]:
        head += f" ({process['note']})"
    return f"{head}\n{process['stack'].rstrip()}\n"
