"""`rocketcrew chaos`: faults on purpose, under load, and a verdict on what they did."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Final

import click

from ...client.clock import wall_ms
from ...conf.exit_codes import EXIT_FAILURE
from ...conf.logging import set_up
from ...conf.settings import Settings
from ...remoting.errors import UsageError
from ..changing import changes, would
from ..chaos.faults import FAULTS, endure
from ..chaos.ground import Ground
from ..chaos.verdict import FaultRecord, Verdict, judge
from ..children import ChildError
from ..json_text import json_text
from ..options import with_settings
from ..tables import lines
from ..times import Seconds

NO_PROGRESS_MAX_S: Final = 60.0
WORKERS: Final = 2
ORDERS: Final = ("concurrent", "queue", "key")
LIST: Final = "\n".join(f"  {name.ljust(16)} {fault.text}" for name, fault in FAULTS.items())


def _list_faults(context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:
        click.echo(LIST)
        context.exit()


@click.command()
@click.option("-f", "--fault", "faults", multiple=True, type=click.Choice(list(FAULTS)), metavar="NAME",
              help="A fault; may be repeated. Otherwise all that need no Spark, in random order.")  # fmt: skip
@click.option("--list", "list_them", is_flag=True, is_eager=True, expose_value=False, callback=_list_faults,
              help="Print the names of all faults with what they do, and end.")  # fmt: skip
@click.option("--seconds", type=Seconds(min=1), default=30.0, show_default=True,
              help="How long faults are done; each chosen one is done at least once, however long that takes.")  # fmt: skip
@click.option("--messages", type=click.IntRange(min=1), default=10_000, show_default=True,
              help="Messages sent evenly over those seconds; when faults take longer, more at the same pace.")  # fmt: skip
@click.option("--order", type=click.Choice(ORDERS), default="concurrent", show_default=True,
              help="In which order messages are to be handled; that is checked too.")  # fmt: skip
@click.option("-w", "--workers", type=click.IntRange(min=1, max=64), default=WORKERS, show_default=True,
              help="Worker processes.")  # fmt: skip
@click.option("--seed", type=int, default=None, help="Repeat the choices of an earlier run, which printed its seed.")
@click.option("--embedded", is_flag=True, help="A broker of its own, although name servers are configured.")
@click.option("--dir", "folder", type=click.Path(path_type=Path), default=None,
              help="Keep logs and state in this folder, which must be empty or new. Otherwise a temporary one, removed"
                   " when the verdict is good.")  # fmt: skip
@changes(asks=False)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of table and verdict.")
@with_settings()
def chaos(
    settings: Settings, faults: tuple[str, ...], seconds: float, messages: int, order: str, workers: int,
    seed: int | None, embedded: bool, folder: Path | None, dry_run: bool, as_json: bool,
) -> None:  # fmt: skip
    """Break things on purpose, and say whether that lost, duplicated or disordered a message.

    Starts a supervisor with workers of its own, sends numbered messages, and meanwhile kills, stops, reloads and floods it.
    Works on a broker of its own, or on the cluster that is configured (-n, NAMESRV_ADDR): there with a topic and a group
    of its own that it removes at the end. It never ends a process that it did not start. Prints a table with the
    time to recover from each fault, and one verdict; exits with 0 when that is good and with 1 when it is bad.

    \b
    Examples:
      rocketcrew chaos
      rocketcrew chaos --fault kill-worker --seconds 60 --order key
      rocketcrew chaos -n 10.0.0.5:9876 --json
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if settings.log.level != "debug":
        # Lost connections are what is wanted here: a warning for each would bury the table.
        set_up(settings.log.format, "error", sys.stderr, "chaos")
    configured = bool(settings.cluster.name_servers or settings.cluster.namesrv_domain)
    own_broker = embedded or not configured
    chosen = choose(faults, own_broker=own_broker)
    where = "a broker of its own" if own_broker else "the configured cluster"
    if dry_run:
        would(f"do {', '.join(chosen)} on {where}", as_json=as_json, faults=chosen, own_broker=own_broker)
        return
    seed = random.SystemRandom().getrandbits(32) if seed is None else seed
    name = f"rocketcrew-chaos-{os.getpid()}-{wall_ms() % 10**9}"
    place = _place(folder)
    more = {key: value for fault in chosen for key, value in FAULTS[fault].settings.items()}
    click.echo(f"chaos on {where}: topic and group {name}, seed {seed}, folder {place}", err=True)

    def make() -> Ground:
        return Ground(settings, place, name, embedded=own_broker, order=order, workers=workers, more=more)

    verdict = asyncio.run(_run(make, chosen, seconds, messages, random.Random(seed)))
    if as_json:
        click.echo(json_text({**verdict.as_dict(), "seed": seed, "order": order, "topic": name, "folder": str(place)}))
    else:
        for line in lines([asdict(fault) for fault in verdict.faults]):
            click.echo(line)
        click.echo(verdict.line)
    if verdict.good and folder is None:
        shutil.rmtree(place, ignore_errors=True)
    if not verdict.good:
        click.echo(f"logs and state are in {place}; --seed {seed} repeats the choices", err=True)
        raise click.exceptions.Exit(EXIT_FAILURE)


def choose(faults: tuple[str, ...], *, own_broker: bool) -> list[str]:
    """The faults to do. Raises UsageError for one that needs a broker that may be killed."""
    for name in faults:
        if FAULTS[name].needs_own_broker and not own_broker:
            raise UsageError(
                f"--fault {name} ends the broker, and the configured one is not ours to end: use --embedded"
            )
    return list(dict.fromkeys(faults)) or [
        name for name, fault in FAULTS.items() if not fault.asked_only and (own_broker or not fault.needs_own_broker)
    ]


def _place(folder: Path | None) -> Path:
    if folder is None:
        return Path(tempfile.mkdtemp(prefix="rocketcrew-chaos-"))
    if folder.exists() and any(folder.iterdir()):
        raise UsageError(f"--dir {folder} is not empty: name another folder")
    folder.mkdir(parents=True, exist_ok=True)
    return folder.resolve()


async def _run(
    make: Callable[[], Ground], chosen: list[str], seconds: float, messages: int, dice: random.Random
) -> Verdict:
    ground = make()
    try:
        await ground.open()
        feeding = asyncio.create_task(ground.feed(messages, seconds))
        try:
            records = await _break_things(ground, chosen, seconds, dice)
            ground.feeding_over.set()
            await asyncio.wait({feeding}, timeout=seconds + NO_PROGRESS_MAX_S)
        finally:
            feeding.cancel()
        return await _judged(ground, records)
    finally:
        # Also after an interrupt or an error: what was made on somebody's cluster goes with us.
        for text in await ground.close():
            click.echo(f"not removed: {text}", err=True)


async def _break_things(ground: Ground, chosen: list[str], seconds: float, dice: random.Random) -> list[FaultRecord]:
    """Each fault once, in random order; then again, until the time is over."""
    records: list[FaultRecord] = []
    end = time.monotonic() + seconds
    while not records or time.monotonic() < end:
        for name in dice.sample(chosen, len(chosen)):
            if len(records) >= len(chosen) and time.monotonic() > end:
                break
            record = await endure(ground, name, dice)
            took = "did not recover" if record.recovered_s is None else f"{record.recovered_s:.2f} s"
            click.echo(f"  {name}: {took}", err=True)
            records.append(record)
    return records


async def _judged(ground: Ground, records: list[FaultRecord]) -> Verdict:
    """Wait for the last message (or until nothing moves any more), stop, and compare."""
    await _settled(ground)
    dead_letters = await ground.dead_letters()
    status = await ground.status()
    violations = int(status["counters"]["invariant_violations"]) if status else 0
    if (code := ground.stop_supervisor()) != 0:
        assert ground.supervisor is not None
        raise ChildError(f"the supervisor ended with exit code {code}:\n{ground.supervisor.tail()}")
    return judge(
        sent=ground.sent, uncertain=ground.uncertain, meant_to_die=ground.meant_to_die, dead_lettered=max(0, dead_letters),
        lines=ground.lines(), rows=ground.rows(), order=ground.order, records=records, violations=violations,
        held_go_back=any(FAULTS[record.name].stops for record in records),
    )  # fmt: skip


async def _settled(ground: Ground) -> None:
    wanted = ground.sent - ground.meant_to_die
    moved, left = time.monotonic(), -1
    while True:
        missing = len(wanted - {line.number for line in ground.lines() if line.what == "END"})
        lag = await ground.lag()
        if not missing and not lag:
            return
        if (now := missing + max(0, lag)) != left:
            moved, left = time.monotonic(), now
        if time.monotonic() - moved > NO_PROGRESS_MAX_S:
            return
        await asyncio.sleep(0.25)
