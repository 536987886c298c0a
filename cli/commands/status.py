"""`rocketcrew status`: one look at a running supervisor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from ..controlling import Target, to_supervisor
from ..picture import head_of, queues_of, workers_of
from ..tables import lines


@click.command()
@to_supervisor
def status(target: Target) -> None:
    """Show how a running supervisor is doing: its workers, its queues, what was done. --json has everything.

    \b
    Examples:
      rocketcrew status
      rocketcrew status -g billing --json
    """
    answer = target.ask("status")
    target.tell(answer, text_of(answer, target.known))


def text_of(found: dict[str, Any], known: Sequence[str] = ()) -> str:
    """The status for people."""
    return "\n".join([*head_of(found, known), "", *lines(workers_of(found)), "", *lines(queues_of(found))])
