"""`rocketcrew stop`: ask a running supervisor to stop."""

from __future__ import annotations

import click

from ..controlling import Target, to_supervisor


@click.command()
@click.option("--quick", is_flag=True, help="At once, without finishing what was begun; it will come again.")
@to_supervisor
def stop(target: Target, quick: bool) -> None:
    """Stop a running supervisor: it finishes what was begun, commits and leaves the group (as by TERM; --quick: QUIT)."""
    target.tell(target.ask("stop", quick=quick), "stopping")
