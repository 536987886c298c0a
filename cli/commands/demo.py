"""`rocketcrew demo`: the whole way once, on real input, without a cluster.

Every Python source file of the running interpreter's standard library is one message. The handler of
`examples/functions.py` parses it and returns a row for each function; files that do not parse are retried and
dead-lettered. The loader puts the rows into a Spark table, and Spark SQL answers from it; where pyspark is not installed, the
same table is written without Spark, and DuckDB answers.

Everything it starts is its child, and everything it writes is in one folder that it makes anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
import sysconfig
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import click
from tqdm import tqdm

from ...client.access import Access
from ...client.outgoing import OutgoingMessage
from ...client.sync import SyncProducer
from ...conf.segment_format import OPEN_DIR, PLAN_DIR, READY_DIR
from ...conf.sources import environment_name
from ...durable.files import try_lock
from ...remoting.errors import RocketcrewError, UsageError
from ...spark.needs import installed_version
from ...supervisor.control import ask
from ..children import Child
from ..json_text import json_text
from ..tables import lines
from ..watch import Watch

TOPIC = "python-sources"
GROUP = "demo"
PRODUCER_GROUP = "demo-producer"
DELAY_LEVELS = "200ms 400ms 600ms 800ms 1s 1s 1s 1s"
"""Retries come at once instead of after 10 s, 30 s, ...: the demo shows the path, not the patience."""
MAX_RECONSUME_TIMES = 2
COUNT_SQL = "SELECT count(*) AS rows FROM latest"
TOP_SQL = """
SELECT module, function, complexity, length, nesting FROM latest
ORDER BY complexity DESC, module, function LIMIT 10
"""
PACKAGES_SQL = """
SELECT package, count(*) AS functions, round(avg(complexity), 2) AS average, max(complexity) AS most
FROM latest GROUP BY package ORDER BY sum(complexity) DESC LIMIT 10
"""
_OF_CLUSTERS = tuple(map(environment_name, ("cluster.", "security.", "broker.")))
"""Variables that say how to reach another cluster than the demo's own."""
LIGHT_JVM = 'spark.conf={"spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"}'
"""For some thousand rows Java's start is most of the work: its light compiler halves it."""
START_TIMEOUT_S = 60.0
LOAD_TIMEOUT_S = 300.0
ANSWER_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 60.0
POLL_S = 0.25
PATIENCE_MS = 30_000
"""With a broker beside workers that use all cores, on a machine that may be asleep for a while."""
PLAIN_EVERY_S = 5.0
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@dataclass(frozen=True, slots=True)
class Progress:
    """What happened to the files so far."""

    done: int = 0
    retried: int = 0
    dead: int = 0


@dataclass(frozen=True, slots=True)
class Means:
    """What writes the table, and what answers from it. They go together, whatever spark.format the environment has."""

    format: str
    engine: str


BY_SPARK = Means("parquet", "spark")
BY_DUCKDB = Means("pyarrow", "duckdb")


def means(installed: Callable[[str], str] = installed_version) -> Means:
    """Those that are here. Raises UsageError where nothing could answer in the end: then nothing is begun."""
    if installed("pyspark"):
        return BY_SPARK
    if installed("duckdb"):
        return BY_DUCKDB
    raise UsageError(
        "the demo asks its table by DuckDB or by Spark, and neither is installed here: pip install 'rocketcrew[duckdb]', or"
        " 'rocketcrew[spark]' for Spark SQL"
    )


@click.command()
@click.option("--dir", "folder", type=click.Path(path_type=Path), default=Path("demo-data"), show_default=True,
              help="Folder of the demo's data. What an earlier demo left in it is removed first.")  # fmt: skip
@click.option("--files", type=click.IntRange(min=1), default=None, help="Send only about so many files (default: all).")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as one JSON object at the end.")
def demo(folder: Path, files: int | None, as_json: bool) -> None:
    """Process the Python standard library's sources from end to end and print what SQL finds in their rows.

    Starts an embedded broker, a producer, the supervisor with one worker a core, and the loader; all of them stop when it
    ends or is interrupted (Ctrl-C). The table is written and asked by Spark; without pyspark by pyarrow and by DuckDB
    (pip install 'rocketcrew[duckdb]').

    \b
    Examples:
      rocketcrew demo
    """
    started = time.monotonic()
    signal.signal(signal.SIGTERM, _interrupt)
    sources = sample(standard_library(), files)
    found = means()
    with clean_folder(folder.resolve()) as place:
        run = DemoRun(place, found)
        try:
            click.echo(f"sending {len(sources)} files of Python {sys.version.split()[0]}'s standard library", err=True)
            figures = run.process(sources)
            run.stop()
            figures |= run.answer(figures)
        finally:
            run.stop()
    figures["seconds"] = round(time.monotonic() - started, 1)
    if as_json:
        click.echo(json_text(figures))
    if figures["files_sent"] != figures["done"] + figures["dead_lettered"]:
        raise RocketcrewError(f"{figures['files_sent']} files were sent, but done + dead-lettered is another number")


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


def standard_library() -> list[tuple[str, Path]]:
    """(dotted module name, file) of every source of the running interpreter's standard library, sorted."""
    root = Path(sysconfig.get_paths()["stdlib"])
    found = [
        (".".join(path.relative_to(root).with_suffix("").parts), path)
        for path in root.rglob("*.py")
        if "site-packages" not in path.parts and "dist-packages" not in path.parts
    ]
    return sorted(found)


def sample(sources: list[tuple[str, Path]], count: int | None) -> list[tuple[str, Path]]:
    """About `count` of the files, evenly spread, and always those that are bad on purpose (`bad_coding`, ...)."""
    if count is None or count >= len(sources):
        return sources
    step = len(sources) / count
    chosen = {int(number * step) for number in range(count)}
    return [source for index, source in enumerate(sources) if index in chosen or ".bad" in source[0]]


@contextlib.contextmanager
def clean_folder(folder: Path) -> Generator[Path]:
    """An empty folder, which no other demo empties before the end of the block; only one that a demo made is emptied."""
    mark = folder / "made-by-rocketcrew-demo"
    if folder.exists() and any(folder.iterdir()) and not mark.exists():
        raise UsageError(f"--dir {folder} is not empty and not of a demo: name another folder")
    folder.mkdir(parents=True, exist_ok=True)
    lock = try_lock(mark)
    if lock is None:
        raise UsageError(f"another demo runs in --dir {folder}: name another folder, or wait for its end")
    try:
        for left in set(folder.iterdir()) - {mark}:
            if left.is_dir() and not left.is_symlink():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink()
        yield folder
    finally:
        os.close(lock)


class DemoRun:
    """The processes of one demo, and what is asked of them."""

    def __init__(self, folder: Path, found: Means) -> None:
        self._folder = folder
        self._means = found
        self._children: list[Child] = []
        self._name_server = ""
        self._slot = folder / "state" / GROUP / "0"
        self._table = folder / "table"

    def process(self, sources: list[tuple[str, Path]]) -> dict[str, Any]:
        """Send, consume, load; the figures of the run."""
        self._start_broker()
        supervisor = self._start_supervisor()
        begin = time.monotonic()
        access = Access(self._name_server, request_timeout_ms=PATIENCE_MS, connect_timeout_ms=PATIENCE_MS)
        with (
            SyncProducer(access, PRODUCER_GROUP, send_timeout_ms=PATIENCE_MS) as producer,
            Watch(access) as watch,
            ProgressBar(len(sources)) as bar,
        ):
            for sent, (name, path) in enumerate(sources, 1):
                package, _, _ = name.partition(".")
                # RocketMQ refuses empty bodies, and some of the files are empty: a newline means the same.
                producer.send(OutgoingMessage(TOPIC, path.read_bytes() or b"\n", tags=package, keys=name))
                if sent % 64 == 0:
                    bar.show(self._progress(watch))
            while bar.show(progress := self._progress(watch)).done + progress.dead < len(sources):
                supervisor.check()
                time.sleep(POLL_S)
        consumed_s = time.monotonic() - begin
        click.echo("all files are processed; loading what is left into the table", err=True)
        supervisor.wait_for(self._all_loaded, LOAD_TIMEOUT_S, "load its results")
        return {
            "files_sent": len(sources),
            "done": progress.done,
            "retried": progress.retried,
            "dead_lettered": progress.dead,
            "consume_seconds": round(consumed_s, 1),
            "load_seconds": round(time.monotonic() - begin - consumed_s, 1),
        }

    def _start_broker(self) -> None:
        broker = self._child("broker", [
            "broker", "--json", "--name-server-port", "0", "--port", "0",
            "--set", f"broker.dir={self._folder / 'broker'}",
            "--set", f"broker.message_delay_level={DELAY_LEVELS}",
        ], announces=True)  # fmt: skip
        self._name_server = broker.announcement(START_TIMEOUT_S)["name_server"]

    def _start_supervisor(self) -> Child:
        supervisor = self._child("supervisor", [
            "run", "functions:measure",
            "--topic", TOPIC, "--group", GROUP, "-n", self._name_server,
            "--set", "consumer.consume_from_where=CONSUME_FROM_FIRST_OFFSET",
            "--set", f"consumer.max_reconsume_times={MAX_RECONSUME_TIMES}",
            "--set", "consumer.rebalance_interval_ms=1000",
            "--set", f"supervisor.data_dir={self._folder / 'state'}",
            "--set", f"spark.target={self._table}",
            "--set", f"spark.format={self._means.format}",
            "--set", "spark.max_wait_ms=3000",
            "--set", LIGHT_JVM,
        ], cwd=EXAMPLES)  # fmt: skip
        supervisor.wait_for(lambda: self._status() is not None, START_TIMEOUT_S, "start")
        return supervisor

    def _child(
        self,
        name: str,
        arguments: list[str],
        *,
        cwd: Path | None = None,
        out: Path | None = None,
        announces: bool = False,
    ) -> Child:
        env = {key: value for key, value in os.environ.items() if not key.startswith(_OF_CLUSTERS)}
        child = Child(name, arguments, log=self._folder / f"{name}.log", cwd=cwd, out=out, announces=announces, env=env)
        self._children.append(child)
        return child

    def _status(self) -> dict[str, Any] | None:
        try:
            return asyncio.run(ask(self._slot, "status"))
        except UsageError:
            return None

    def _progress(self, watch: Watch) -> Progress:
        status = self._status()
        if status is None:
            return Progress()
        counters = status["counters"]
        return Progress(counters["done_messages"], counters["sent_back_messages"], watch.stored(GROUP, f"%DLQ%{GROUP}"))

    def _all_loaded(self) -> bool:
        segments = self._slot / "segments"
        busy = any(path for name in (OPEN_DIR, READY_DIR) for path in (segments / name).iterdir())
        return not busy and self._table.exists() and not _unfinished_plans(segments / PLAN_DIR)

    def stop(self) -> None:
        """Stop in order: the supervisor drains while the broker still answers."""
        for child in reversed(self._children):
            child.stop(STOP_TIMEOUT_S)

    def answer(self, figures: dict[str, Any]) -> dict[str, Any]:
        """Query the table, print the answer."""
        # A process of its own: pyspark puts in a handler for Ctrl-C of its own, and while Spark starts it may lose one.
        out = self._folder / "answer.json"
        child = self._child("query", [
            "query", "--json", "--engine", self._means.engine, "--target", str(self._table), "--set", LIGHT_JVM,
            COUNT_SQL, TOP_SQL, PACKAGES_SQL,
        ], out=out)  # fmt: skip
        child.wait(ANSWER_TIMEOUT_S)
        (count,), top, packages = (json.loads(line) for line in out.read_text().splitlines())
        rows = int(count["rows"])
        _print_table("The ten most complex functions", top)
        _print_table("Complexity by package", packages)
        rate = round(rows / max(figures["consume_seconds"], 0.1))
        click.echo(
            f"\n{rows} functions (rows) from {figures['files_sent']} files: {rate} rows per second.\n"
            f"files sent {figures['files_sent']} = done {figures['done']} + dead-lettered {figures['dead_lettered']}"
            f" (retried {figures['retried']} times); table: {self._table}"
        )
        return {"rows": rows, "rows_per_second": rate, "most_complex": top}


def _unfinished_plans(folder: Path) -> list[Path]:
    return [path for path in folder.glob("*.json") if not path.with_suffix(".done").exists()]


class ProgressBar:
    """A bar with rate and time left on a terminal; a plain line now and then elsewhere."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._terminal = sys.stderr.isatty()
        self._bar = tqdm(total=total, unit=" files", disable=not self._terminal, file=sys.stderr, dynamic_ncols=True)
        self._begin = self._last = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def show(self, progress: Progress) -> Progress:
        """Move to `progress`."""
        finished = progress.done + progress.dead
        if self._terminal:
            self._bar.set_postfix_str(f"retried={progress.retried}, dead={progress.dead}", refresh=False)
            self._bar.update(finished - self._bar.n)
        elif time.monotonic() - self._last >= PLAIN_EVERY_S or finished == self._total:
            self._last = time.monotonic()
            rate = finished / max(self._last - self._begin, 0.001)
            left = (self._total - finished) / rate if rate else 0.0
            click.echo(
                f"{finished}/{self._total} files, {rate:.0f} a second, {left:.0f} s left,"
                f" retried {progress.retried}, dead-lettered {progress.dead}",
                err=True,
            )
        return progress


def _print_table(title: str, rows: list[dict[str, Any]]) -> None:
    click.echo(f"\n{title}")
    for line in lines(rows):
        click.echo("  " + line)
