"""`rocketcrew run`: the supervisor, one member of the consumer group, with its workers and the Spark loader."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import os
import signal
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
import structlog

from ...conf.exit_codes import EXIT_FORCED
from ...conf.importing import uncollected
from ...conf.settings import Settings
from ...remoting.errors import UsageError
from ..embedded import EmbeddedBroker, start_broker
from ..exit_codes import ForcedStopError, NotStartedError
from ..interrupts import Interrupts
from ..live_line import LiveLine, Rate, Reloads, beside, progress_line, start_block
from ..options import LIVE_LEVEL, live_line, log_output, reread_settings, with_settings
from ..patient_output import PatientOutput, drop_rest
from ..program_lines import Tell, for_program
from ..surroundings import Surroundings, check_nothing_shadows, import_from_here, surroundings
from ..tables import counted, seen

if TYPE_CHECKING:
    from ...supervisor.service import Summary, Supervisor
    from ...workers.loading import HandlerSpec

COLLECT_AFTER_ALLOCATIONS = 10_000
SHOW_S = 1.0


_log = structlog.get_logger("rocketcrew.run")


@click.command()
@click.argument("handler", metavar="HANDLER")
@click.option("-t", "--topic", "topics", multiple=True, metavar="TOPIC[:TAGS]",
              help="A topic to consume, with tags as in 'orders:paid || shipped', or 'orders:SQL92:price > 3'."
                   " May be repeated.")  # fmt: skip
@click.option("-g", "--group", metavar="GROUP", help="The consumer group.")
@click.option("-w", "--workers", "workers", type=int, metavar="N", help="Worker processes; 0 = one for each core.")
@click.option("--batch", type=int, metavar="N", help="Messages in one call of a batch handler.")
@click.option("--schema", metavar="DDL", help="Columns of the rows, where the handler does not declare them.")
@click.option("--target", metavar="PATH", help="The Spark table. Otherwise a folder beside the state.")
@click.option(
    "--load/--no-load", "load", default=True, help="Load sealed results into the table (default), or leave them."
)
@click.option("--reload", "reload_on_change", is_flag=True,
              help="For development: reload when a Python file below the current folder changes.")  # fmt: skip
@click.option("--embedded", is_flag=True, help="Start a broker of its own and consume from that.")
@click.option("--engine", type=click.Choice(["workers", "spark"]), default="workers",
              help="What runs the handler: worker processes on this host (default), or a Spark cluster.")  # fmt: skip
@click.option("--check", "check_first", is_flag=True,
              help="First look at everything, as `rocketcrew doctor` does; start nothing when there is a fault.")  # fmt: skip
@click.option("--master", metavar="URL", help="Spark's master, such as local[4] or spark://host:7077.")
@click.option("--json", "as_json", is_flag=True,
              help="Print two JSON objects, each on a line: when it runs, and when it has ended; with --engine spark only"
                   " the second. What handlers print goes to stderr.")  # fmt: skip
@with_settings(
    topics="consumer.topics",
    group="consumer.group",
    workers="workers.count",
    batch="consumer.consume_message_batch_max_size",
    schema="results.schema",
    target="spark.target",
    load="spark.load",
    master="spark.master",
)
@click.pass_context
def run(
    context: click.Context, settings: Settings, handler: str, embedded: bool, reload_on_change: bool, engine: str,
    check_first: bool, as_json: bool,
) -> None:  # fmt: skip
    """Consume with HANDLER, a function written as package.module:function, or a module that has one handler.

    A module whose handlers name their topics is run with all of them, as one group; their topics are subscribed.

    A handler gets one message at a time (or a list, see `rocketcrew.handler`) and returns rows, or nothing. Modules of
    the current folder can be named. Raising means that the message is consumed again later.

    Signals: TERM or INT (Ctrl-C) finish what was begun, commit and leave the group; a second one forces, and reports how
    many messages will come again. QUIT stops at once. HUP reloads the handler's code and the settings, worker by worker,
    and goes back when the new code does not start. TTIN and TTOU start and stop one worker. USR1 logs what every process
    is doing. TSTP and CONT pause and resume pulling. `rocketcrew status`, `top`, `stacks`, `scale`, `reload`, `pause`,
    `resume` and `stop` do the same from another terminal.

    With --engine spark the same handler runs in the tasks of a Spark job, batch after batch: the same retries, dead letters
    and table. The offsets are in Spark's checkpoint in supervisor.data_dir, which driver and executors must see at the same
    path. TERM or INT end it after the batch that runs; settings that mean nothing there are refused.

    \b
    Examples:
      rocketcrew run functions:measure -t sources -g functions --embedded
      rocketcrew run shop.orders:handle -t orders:paid -g billing -n 10.0.0.5:9876
      rocketcrew run shop -g billing -n 10.0.0.5:9876
      rocketcrew run shop.orders:handle -c billing.toml --check
      rocketcrew run shop.orders:handle -t orders -g billing \\
          -n 10.0.0.5:9876 --engine spark --master spark://10.0.0.9:7077
    """
    from ...workers.trial_import import examine_as_set

    interrupts = surroundings(context).interrupts
    import_from_here()
    spec = examine_as_set(handler, settings, interrupts.check)
    if engine == "spark":
        options = {"embedded": embedded, "reloads": reload_on_change, "check_first": check_first}
        with for_program(as_json=as_json) as tell:
            code = _run_on_spark(context, settings, spec, **options)
            if tell is not None:
                tell({"event": "ended", "exit_code": code})
        context.exit(code)
    watched = Path.cwd() if reload_on_change else None
    run_here(
        settings, spec, reread_settings(), embedded=embedded, watched=watched, check_first=check_first, as_json=as_json
    )


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
            _name_servers(settings, embedded, around.interrupts) as (settings_to_use, broker),
            _signals_after(around.interrupts),
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            around.interrupts.check()
            if check_first:
                _check(settings_to_use, spec, around)
            summary = runner.run(
                _supervise(settings_to_use, spec, reread, watched, broker, around.interrupts, around.env, tell)
            )
        _tell(summary, tell)
    if summary.exit_code == EXIT_FORCED:
        if settings.log.format == "json" and not settings.log.file:
            raise click.exceptions.Exit(EXIT_FORCED)  # the log has said it, and each line there is one object
        raise ForcedStopError(f"stopped by force: {summary.unfinished + summary.unsealed} messages will come again")


@contextlib.contextmanager
def _signals_after(interrupts: Interrupts) -> Generator[None]:
    """Around a loop of uvloop's, also one that fails."""
    try:
        yield
    finally:
        interrupts.take_back()


def _run_on_spark(
    context: click.Context, settings: Settings, spec: HandlerSpec, *, embedded: bool, reloads: bool, check_first: bool
) -> int:
    from ...spark.needs import check_pyspark, check_writer

    check_pyspark("run --engine spark")
    if settings.results.enabled:
        check_writer(settings.spark)
    from ...engine.stream import run_stream  # pyspark takes its time to import
    from ...supervisor.wiring import with_topics

    settings = with_topics(settings, spec)
    if reloads:
        raise UsageError("--reload has no meaning with --engine spark: stop it, and start it with the new code")
    interrupts = surroundings(context).interrupts
    with _name_servers(settings, embedded, interrupts) as (settings_to_use, broker):
        if check_first:
            _check(settings_to_use, spec, surroundings(context), on_spark=True)
        interrupts.raise_again()  # the stream takes the signals over itself, and gives them back
        interrupts.hold()
        if broker is not None:
            broker.watch_by_thread(lambda: os.kill(os.getpid(), signal.SIGTERM))
        output = log_output()
        try:
            with output or contextlib.nullcontext():  # a reader of the log that stops does not stop the batches
                return run_stream(settings_to_use, spec, surroundings(context).env)
        finally:
            _give_up_on(output)


def _check(settings: Settings, spec: HandlerSpec, around: Surroundings, *, on_spark: bool = False) -> None:
    """Print what is not fine. Raises NotStartedError when there is a fault."""
    from ..checkup_facts import gather
    from ..checkups import Level, check_exit_code, findings, worst
    from .doctor import summary

    around.interrupts.raise_again()  # nothing looks at a note meanwhile
    found = findings(gather(settings, spec.name, around.env, on_spark=on_spark))
    around.interrupts.note()
    for one in found:
        if one.level is not Level.FINE:
            click.echo(seen(str(one), err=True), err=True)
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
        from ...supervisor.notify import Notify
        from ...supervisor.service import Supervisor
    _calm_collector()

    loop, line, output = asyncio.get_running_loop(), live_line(), log_output()
    if line is not None and not settings.log.file:  # workers log as we do
        settings = dataclasses.replace(settings, log=dataclasses.replace(settings.log, level=LIVE_LEVEL))

    def again() -> Settings:
        read = reread_here(reread, Path.cwd(), sys.path)
        found = dataclasses.replace(read, cluster=settings.cluster)  # an embedded broker's address is not on disk
        return found if line is None or settings.log.file else dataclasses.replace(found, log=settings.log)

    showing: list[asyncio.Task[None]] = []

    def ready() -> None:
        found = supervisor.picture()
        page = f"http://{settings.metrics.host}:{found['http_port']}/" if settings.metrics.page else ""
        if tell is not None:
            facts = {name: found[name] for name in ("group", "client_id", "pid", "slot", "ready_workers")}
            tell({"event": "running", **facts, "name_servers": _cluster(settings), "page": page})
        elif line is None and page:
            (output or sys.stderr).write(f"status page: {page}\n")
        if line is not None:
            block = start_block(found, table=_rows_go_to(settings), name_servers=_cluster(settings), page=page,
                                log=settings.log.file)  # fmt: skip
            line.write(block + "\n")
            showing.append(loop.create_task(_show(line, supervisor)))

    supervisor = Supervisor(
        settings, spec, reread=again, watched=watched, on_ready=ready, notify=Notify(env, os.getpid()),
        terminal=interrupts.terminal,
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
        _give_up_on(output)


def _give_up_on(output: PatientOutput | None) -> None:
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


def _rows_go_to(settings: Settings) -> str:
    """In words; empty where handlers' rows go nowhere."""
    if not (settings.results.enabled and settings.spark.load):
        return ""
    return settings.spark.target or f"{settings.supervisor.data_dir}/{settings.consumer.group}/table"


def _cluster(settings: Settings) -> str:
    return ";".join(settings.cluster.name_servers) or settings.cluster.namesrv_domain


@contextlib.contextmanager
def _name_servers(
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
        click.echo(f"embedded broker: {broker.name_server} (pid {broker.child.pid}, log {broker.child.log})", err=True)
        cluster = dataclasses.replace(settings.cluster, name_servers=(broker.name_server,))
        yield dataclasses.replace(settings, cluster=cluster), broker
    finally:
        broker.close()


def make_broker_log(data_dir: str) -> Path:
    """The embedded broker's log file. Raises UsageError for a data folder in which it cannot be made."""
    from ...supervisor.slot import unusable

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
    agreed = click.confirm("No name server is configured. Start an embedded broker?", default=True, err=True)
    interrupts.note()
    return agreed


def _tell(summary: Summary, tell: Tell | None) -> None:
    """What somebody wants to know at the end: a person on stderr, a program on stdout."""
    if tell is not None:
        tell({"event": "ended", **dataclasses.asdict(summary)})
    if not sys.stderr.isatty():
        return
    click.echo(ended_line(summary), err=True)


def ended_line(summary: Summary) -> str:
    """What was done, and what comes again."""
    c = summary.counters
    beside = (
        f"; not committed {summary.uncommitted}, which come again only if another member takes over, or if they were popped"
        if summary.uncommitted
        else ""
    )
    waiting = (
        f"; {counted(summary.not_loaded, 'segment')} not in the table yet: the next run loads, or `rocketcrew load`"
    )
    return (
        f"done {c['done_messages']}, failed {c['failed_messages']} (sent back {c['sent_back_messages']}),"
        f" filtered {c['filtered_messages']}, worker deaths {c['worker_deaths']}; to come again"
        f" {summary.unfinished + summary.unsealed}{beside}{waiting if summary.not_loaded else ''}"
    )
