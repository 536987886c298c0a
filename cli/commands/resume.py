"""`rocketcrew resume`: the end of a pause."""

from __future__ import annotations

import click

from ..controlling import Target, to_change_supervisor


@click.command()
@to_change_supervisor
def resume(target: Target) -> None:
    """Let a paused supervisor pull again. The signal CONT does the same.

    \b
    Examples:
      rocketcrew resume -g billing
    """
    answer = target.change(
        "resume", lambda found: "resume pulling" + ("" if found["paused"] else ", which is not paused")
    )
    if answer is not None:
        still = f", but pulling is still held up by {', '.join(answer['paused_by'])}" if answer["paused"] else ""
        target.tell(answer, f"resumed{still}")
