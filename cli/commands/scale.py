"""`rocketcrew scale`: changes the number of workers of a running supervisor."""

from __future__ import annotations

from typing import Final

import click

from ...conf.printed import counted
from ..controlling import Target, to_change_supervisor

WORKERS_MAX: Final = 256
"""As of workers.count."""


@click.command()
@click.argument("workers", type=click.IntRange(1, WORKERS_MAX), metavar="N")
@to_change_supervisor
def scale(target: Target, workers: int) -> None:
    """Change the number of worker processes of a running supervisor to N, 1 to 256.

    Surplus workers first finish what they have. The signals TTIN and TTOU add and remove one worker. The number holds until
    the supervisor ends, or until a reload brings another workers.count.

    \b
    Examples:
      rocketcrew scale 8
      rocketcrew scale 8 -g billing
    """
    answer = target.change(
        "scale", lambda found: f"have {counted(workers, 'worker')}, now {found['staff']['workers']}", workers=workers
    )
    if answer is not None:
        target.tell(answer, f"{counted(answer['workers'], 'worker')} (before: {answer['before']})")
