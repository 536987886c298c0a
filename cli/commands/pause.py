"""`rocketcrew pause`: a running supervisor pulls nothing until it is told to resume."""

from __future__ import annotations

from typing import Any

import click

from ..controlling import Target, to_change_supervisor


@click.command()
@to_change_supervisor
def pause(target: Target) -> None:
    """Pause a running supervisor: it pulls nothing more, finishes what it has, and stays in its group.

    The signal TSTP does the same. `rocketcrew resume` ends it.

    \b
    Examples:
      rocketcrew pause -g billing
    """

    def what(found: dict[str, Any]) -> str:
        return "pause pulling" + (f", which is paused by {' and '.join(found['paused'])}" if found["paused"] else "")

    answer = target.change("pause", what)
    if answer is not None:
        target.tell(answer, "paused")
