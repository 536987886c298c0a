"""`rocketcrew pause`: a running supervisor pulls nothing until it is told to resume."""

from __future__ import annotations

import click

from ..controlling import Target, to_supervisor


@click.command()
@to_supervisor
def pause(target: Target) -> None:
    """Pause a running supervisor: it pulls nothing more, finishes what it has, and stays in its group.

    The signal TSTP does the same. `rocketcrew resume` ends it.

    \b
    Examples:
      rocketcrew pause -g billing
    """
    target.tell(target.ask("pause"), "paused")
