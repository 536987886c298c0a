"""`rocketcrew top`: a running supervisor, live."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

import click

from ..controlling import Target, to_supervisor
from ..json_text import json_text
from ..picture import head_of, queues_of, workers_of
from ..tables import lines, seen
from ..times import Seconds

FIRST_S = 0.5
"""Before the first look, so that it has rates."""
CLEAR = "\x1b[H\x1b[2J"


@click.command()
@click.option("--interval", type=Seconds(0.1, 3600), default=1.0, show_default=True, metavar="S",
              help="Seconds between two looks.")  # fmt: skip
@click.option("--count", type=click.IntRange(0), default=0, metavar="N", help="End after N looks; 0: at Ctrl-C.")
@to_supervisor
def top(target: Target, interval: float, count: int) -> None:
    """Watch a running supervisor: rates, workers with the message in hand, queues. Ctrl-C ends it.

    Rates are those since the look before; the first look takes half a second for that. With --json, one object a look and
    line, with `per_second` added.

    \b
    Examples:
      rocketcrew top -g billing
    """
    before, asked = target.ask("status"), time.monotonic()
    time.sleep(min(interval, FIRST_S))
    looks = 0
    while True:
        found, now = target.ask("status"), time.monotonic()
        rates = rates_of(before, found, now - asked)
        if target.as_json:
            click.echo(json_text({**found, "per_second": rates}))
        else:
            text = "\n".join(text_of(found, rates, worker_rates(before, found, now - asked), target.known))
            click.echo((CLEAR if sys.stdout.isatty() else "") + seen(text))
        before, asked, looks = found, now, looks + 1
        if looks == count:
            return
        time.sleep(interval)


def rates_of(before: dict[str, Any], found: dict[str, Any], seconds: float) -> dict[str, float]:
    """Messages a second since the look before."""
    names = ("pulled_messages", "done_messages", "failed_messages", "sent_back_messages")
    return {name: round((found["counters"][name] - before["counters"][name]) / seconds, 1) for name in names}


def worker_rates(before: dict[str, Any], found: dict[str, Any], seconds: float) -> dict[str, float]:
    """Messages that each worker has finished, well or not, a second since the look before; one that is new began with 0."""

    def finished(status: dict[str, Any]) -> dict[str, int]:
        return {worker["worker_id"]: worker.get("done", 0) + worker.get("failed", 0) for worker in status["workers"]}

    earlier = finished(before)
    return {worker: round((count - earlier.get(worker, 0)) / seconds, 1) for worker, count in finished(found).items()}


def text_of(
    found: dict[str, Any], rates: dict[str, float], each: dict[str, float], known: Sequence[str] = ()
) -> list[str]:
    """One look for people."""
    told = "  ".join(f"{name.removesuffix('_messages').replace('_', ' ')} {rate}/s" for name, rate in rates.items())
    workers = [_with_rate(row, each[str(row["WORKER"])]) for row in workers_of(found)]
    return [*head_of(found, known), told, "", *lines(workers), "", *lines(queues_of(found))]


def _with_rate(row: dict[str, object], rate: float) -> dict[str, object]:
    """The rate stands before the message in hand, which is as long as it likes."""
    running = row.pop("RUNNING")
    return {**row, "PER S": rate, "RUNNING": running}
