"""`rocketcrew scale`: more or fewer workers in a running supervisor."""

from __future__ import annotations

import click

from ..controlling import Target, to_supervisor


@click.command()
@click.argument("workers", type=int, metavar="N")
@to_supervisor
def scale(target: Target, workers: int) -> None:
    """Have N worker processes (1 to 256) in a running supervisor.

    Workers that are too many finish what they have first. The signals TTIN and TTOU do it by one. What was set here stays
    until the supervisor ends, or a reload brings another workers.count.
    """
    answer = target.ask("scale", workers=workers)
    target.tell(answer, f"{answer['workers']} workers (before: {answer['before']})")
