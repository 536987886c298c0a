"""`rocketcrew top`: a running supervisor, live."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import click

from .controlling import Target, to_supervisor
from .status import head_of, queues_of, workers_of
from .tables import lines

CLEAR = "\x1b[H\x1b[2J"


@click.command()
@click.option("--interval", type=click.FloatRange(0.1, 3600), default=1.0, show_default=True, metavar="S",
              help="Seconds between two looks.")  # fmt: skip
@click.option("--count", type=click.IntRange(0), default=0, metavar="N", help="End after N looks; 0: at Ctrl-C.")
@to_supervisor
def top(target: Target, interval: float, count: int) -> None:
    """Watch a running supervisor: rates, workers with the message in hand, queues. Ctrl-C ends it.

    With --json, one object a look and line, with `per_second` added.
    """
    before: dict[str, Any] | None = None
    asked = 0.0
    looks = 0
    while True:
        now = time.monotonic()
        found = target.ask("status")
        rates = rates_of(before, found, now - asked)
        if target.as_json:
            click.echo(json.dumps({**found, "per_second": rates}, ensure_ascii=False))
        else:
            click.echo((CLEAR if sys.stdout.isatty() else "") + "\n".join(text_of(found, rates)))
        before, asked, looks = found, now, looks + 1
        if looks == count:
            return
        time.sleep(interval)


def rates_of(before: dict[str, Any] | None, found: dict[str, Any], seconds: float) -> dict[str, float]:
    """Messages a second since the look before."""
    names = ("pulled_messages", "done_messages", "failed_messages", "sent_back_messages")
    if before is None or seconds <= 0:
        return dict.fromkeys(names, 0.0)
    return {name: round((found["counters"][name] - before["counters"][name]) / seconds, 1) for name in names}


def text_of(found: dict[str, Any], rates: dict[str, float]) -> list[str]:
    """One look for people."""
    told = "  ".join(f"{name.removesuffix('_messages').replace('_', ' ')} {rate}/s" for name, rate in rates.items())
    return [*head_of(found), told, "", *lines(workers_of(found)), "", *lines(queues_of(found))]
