"""`rocketcrew resume`: the end of a pause."""

from __future__ import annotations

import click

from ..controlling import Target, to_supervisor


@click.command()
@to_supervisor
def resume(target: Target) -> None:
    """Let a paused supervisor pull again. The signal CONT does the same.

    \b
    Examples:
      rocketcrew resume -g billing
    """
    target.tell(target.ask("resume"), "resumed")
