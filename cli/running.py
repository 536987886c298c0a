"""A supervisor run in this process to its end, as `run` and `dev` do; and what `run --engine spark` has in common with that:
name servers, or a broker of its own; the look at everything before; the terminal.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import os
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..conf.exit_codes import EXIT_FORCED
from ..conf.importing import uncollected
from ..conf.printed import counted
from ..conf.settings import MetricsSettings, Settings
from ..durable.room import unusable
from ..remoting.errors import UsageError
from ..remoting.names import host_and_port
from .changing import confirms
from .embedded import EmbeddedBroker, start_broker
from .exit_codes import ForcedStopError, NotStartedError
from .interrupts import Interrupts
from .live_line import LiveLine, Rate, Reloads, beside, progress_line, start_block
from .options import LIVE_LEVEL, live_line, log_output
from .patient_output import PatientOutput, drop_rest
from .program_lines import Tell, for_program
from .stagings import load_line, rows_go_to
from .surroundings import Surroundings, check_nothing_shadows, surroundings
from .tables import seen

if TYPE_CHECKING:
    from ..supervisor.service import Summary, Supervisor
    from ..workers.loading import HandlerSpec

COLLECT_AFTER_ALLOCATIONS = 10_000
SHOW_S = 1.0


def run_here(
    settings: Settings, spec: HandlerSpec, reread: Callable[[], Settings], *, embedded: bool, watched: Path | None,
    check_first: bool = False, as_json: bool = False,
) -> None:  # fmt: skip
    """Run a supervisor in this process to its end. `reread` gives the settings anew; a change below `watched` reloads.
    `as_json`: what it tells a person at its start and end is for a program, on stdout.

    Raises ForcedStopError when it was stopped by force, Exit where the log on stderr is JSON and has said that, and whatever
    keeps it from starting.
    """
    import uvloop

    around = surroundings(click.get_current_context())
    with for_program(as_json=as_json) as tell:
        with (
            name_servers_of(settings, embedded, around.interrupts) as (settings_to_use, broker),
            _signals_after(around.interrupts),
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            around.interrupts.check()
            if check_first:
                check(settings_to_use, spec, around)
            summary = runner.run(
                _supervise(settings_to_use, spec, reread, watched, broker, around.interrupts, around.env, tell)
            )
        _tell(summary, tell, settings)
    if summary.exit_code == EXIT_FORCED:
        if settings.log.format == "json" and not settings.log.file:
            raise click.exceptions.Exit(EXIT_FORCED)  # the log has said it, and each line there is one object
        again = counted(summary.unfinished + summary.unsealed, "message")
        raise ForcedStopError(f"stopped by force: {again} will come again")


@contextlib.contextmanager
def _signals_after(interrupts: Interrupts) -> Generator[None]:
    """Around a loop of uvloop's, also one that fails."""
    try:
        yield
    finally:
        interrupts.take_back()


def check(settings: Settings, spec: HandlerSpec, around: Surroundings, *, on_spark: bool = False) -> None:
    """Print what is not fine. Raises NotStartedError when there is a fault."""
    from .checkup_facts import gather
    from .checkups import Level, check_exit_code, findings, summary, worst

    around.interrupts.raise_again()  # nothing looks at a note meanwhile
    found = findings(gather(settings, spec.name, around.env, on_spark=on_spark))
    around.interrupts.note()
    for one in found:
        if one.level is not Level.FINE and around.said.objects:
            level = "error" if one.level is Level.FAULT else "warning"
            around.said.line(level, "check_found", check=one.check, error=one.found, remedy=one.todo)
        elif one.level is not Level.FINE:
            click.echo(seen(str(one), err=True), err=True)
    if around.said.objects:
        around.said.line("info", "checked", result=summary(found))
    else:
        click.echo(summary(found), err=True)
    if worst(found) is Level.FAULT:
        raise NotStartedError(check_exit_code(found))


def _calm_collector() -> None:
    """What is imported stays, and the loop makes hardly any cycles: at Python's own pace the collector takes some percent
    of the supervisor's time to find nothing (measured while it pulls small messages)."""
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER_ALLOCATIONS, 10, 10)


async def _supervise(
    settings: Settings, spec: HandlerSpec, reread: Callable[[], Settings], watched: Path | None,
    broker: EmbeddedBroker | None, interrupts: Interrupts, env: Mapping[str, str], tell: Tell | None,
) -> Summary:  # fmt: skip
    with uncollected():
        from ..supervisor.notify import Notify
        from ..supervisor.service import Supervisor
    _calm_collector()

    loop, line, output = asyncio.get_running_loop(), live_line(), log_output()
    if line is not None and not settings.log.file:  # workers log as we do
        settings = dataclasses.replace(settings, log=dataclasses.replace(settings.log, level=LIVE_LEVEL))

    def again() -> Settings:
        read = reread_here(reread, Path.cwd(), sys.path)
        found = dataclasses.replace(read, cluster=settings.cluster)  # an embedded broker's address is not on disk
        if broker is not None:
            found = broker.reached_by(found)
        return found if line is None or settings.log.file else dataclasses.replace(found, log=settings.log)

    showing: list[asyncio.Task[None]] = []

    def ready() -> None:
        found = supervisor.picture()
        page = page_url(settings.metrics, found["http_port"])
        if tell is not None:
            facts = {name: found[name] for name in ("group", "client_id", "pid", "slot", "ready_workers")}
            tell({"event": "running", **facts, "name_servers": _cluster(settings), "page": page})
        elif line is None and page:
            (output or sys.stderr).write(f"status page: {page}\n")
        if line is not None:
            block = start_block(found, table=_shown_target(settings), name_servers=_cluster(settings), page=page,
                                log=settings.log.file)  # fmt: skip
            line.write(block + "\n")
            showing.append(loop.create_task(_show(line, supervisor)))

    supervisor = Supervisor(
        settings, spec, reread=again, watched=watched, on_ready=ready, notify=Notify(env, os.getpid()),
        terminal=interrupts.terminal, own_broker="" if broker is None else broker.folder,
    )  # fmt: skip

    def died() -> None:
        assert broker is not None
        loop.remove_reader(broker)
        broker.died()
        supervisor.stop()

    if broker is not None:
        loop.add_reader(broker, died)
    # What came before the supervisor took the signals over, which is the first that its run does.
    loop.call_soon(lambda: supervisor.stop() if interrupts.noted else None)
    try:
        with output or contextlib.nullcontext(), beside(line, loop) if line is not None else contextlib.nullcontext():
            try:
                return await supervisor.run()
            finally:
                if broker is not None:
                    loop.remove_reader(broker)
                for task in showing:
                    task.cancel()
                await asyncio.gather(*showing, return_exceptions=True)
    finally:
        give_up_on(output)


def give_up_on(output: PatientOutput | None) -> None:
    """Of an output that takes nothing any more: what is still said would keep the process from ending."""
    if output is not None and output.stalled:
        drop_rest((1, 2) if os.isatty(1) or _is_stderr(1) else (2,))


def _is_stderr(number: int) -> bool:
    """Whether what is written to this descriptor comes out where standard error does."""
    try:
        return os.path.sameopenfile(number, 2)
    except OSError:  # closed
        return False


def reread_here(reread: Callable[[], Settings], folder: Path, path: Sequence[str]) -> Settings:
    """The settings anew, for a reload. Raises UsageError, which refuses it, also for a module that has appeared in `folder`
    and hides a needed one: new workers would import it."""
    check_nothing_shadows(folder, path)
    return reread()


def page_url(metrics: MetricsSettings, port: int) -> str:
    """Where a browser finds the page; empty where there is none."""
    return f"http://{host_and_port(metrics.host, port)}/" if metrics.page else ""


async def _show(line: LiveLine, supervisor: Supervisor) -> None:
    """Keep the line at the bottom of the terminal true, until cancelled."""
    loop, rate, reloads = asyncio.get_running_loop(), Rate(), Reloads()
    try:
        while True:
            found = supervisor.picture()
            news = reloads.news(found["staff"])
            if news:
                line.write(f"{news}\n")
            line.show(progress_line(found, rate.at(loop.time(), found["counters"]["done_messages"])))
            await asyncio.sleep(SHOW_S)
    finally:
        line.show("")


def _shown_target(settings: Settings) -> str:
    """In words; empty where handlers' rows go nowhere."""
    if not (settings.results.enabled and settings.spark.load):
        return ""
    return rows_go_to(settings) or settings.spark.function or settings.spark.format


def _cluster(settings: Settings) -> str:
    return ";".join(settings.cluster.name_servers) or settings.cluster.namesrv_domain


@contextlib.contextmanager
def name_servers_of(
    settings: Settings, embedded: bool, interrupts: Interrupts
) -> Generator[tuple[Settings, EmbeddedBroker | None]]:
    """The settings with name servers in them: the configured ones, or those of an embedded broker."""
    if embedded and settings.cluster.name_servers:
        raise UsageError(
            "--embedded starts a broker of its own, but name servers are configured:"
            f" {';'.join(settings.cluster.name_servers)} (from {settings.origin['cluster.name_servers']})."
            " Leave one of the two out"
        )
    if settings.cluster.name_servers or (settings.cluster.namesrv_domain and not embedded):
        yield settings, None
        return
    if not embedded and not _agrees(interrupts):
        raise UsageError(
            "no name server is configured: give -n HOST:PORT, set NAMESRV_ADDR or cluster.name_servers in the file, or use"
            " --embedded to start a broker of your own"
        )
    log = make_broker_log(settings.supervisor.data_dir)
    broker = start_broker(settings.broker, log, interrupts.check)
    try:
        click.echo(f"embedded broker: {broker.shown} (pid {broker.child.pid}, log {broker.child.log})", err=True)
        yield broker.reached_by(settings), broker
    finally:
        broker.close()


def make_broker_log(data_dir: str) -> Path:
    """The embedded broker's log file. Raises UsageError for a data folder in which it cannot be made."""
    log = Path(data_dir) / "broker.log"
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        log.touch()
    except OSError as error:
        raise unusable(data_dir, error) from error
    return log


def _agrees(interrupts: Interrupts) -> bool:
    """Ask, but only somebody who sits at a terminal."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    interrupts.raise_again()  # nothing else ends the reading of a line
    agreed = confirms("No name server is configured. Start an embedded broker?", default=True)
    interrupts.note()
    return agreed


def _tell(summary: Summary, tell: Tell | None, settings: Settings) -> None:
    """What somebody wants to know at the end: a person on stderr, a program on stdout."""
    if tell is not None:
        tell({"event": "ended", **dataclasses.asdict(summary)})
    if not sys.stderr.isatty():
        return
    click.echo(ended_line(summary, load_line(settings, summary.staging), next_run_loads=settings.spark.load), err=True)


def ended_line(summary: Summary, load: str, *, next_run_loads: bool = True) -> str:
    """What was done, and what comes again; `load` is the command line that loads what is sealed."""
    c = summary.counters
    beside = (
        f"; not committed {summary.uncommitted}, which come again only if another member takes over, or if they were popped"
        if summary.uncommitted
        else ""
    )
    loads = f"the next run loads, or `{load}`" if next_run_loads else f"`{load}` loads"
    waiting = f"; {counted(summary.not_loaded, 'segment')} not in the table yet: {loads}"
    return (
        f"done {c['done_messages']}, failed {c['failed_messages']} (sent back {c['sent_back_messages']}),"
        f" filtered {c['filtered_messages']}, worker deaths {c['worker_deaths']}; to come again"
        f" {summary.unfinished + summary.unsealed}{beside}{waiting if summary.not_loaded else ''}"
    )
