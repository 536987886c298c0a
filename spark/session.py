"""Starting and ending a Spark session so that nothing leaks: no noise, no open ports but loopback, no process left over.

- Spark, the JVM and its scripts write to files in one folder: `spark.log` (log4j, rolled at 10 MB) and `jvm.log` (what
  the JVM itself prints, and why it did not start). Nothing of it reaches our own stderr.
- The environment that Spark would take its habits from (SPARK_CONF_DIR, PYSPARK_SUBMIT_ARGS, another SPARK_HOME …) is
  cleared while the JVM starts, and put back afterwards.
- Other users of the host do not see the settings, which may hold keys: the JVM reads them from a private file instead of its
  command line. Nor does it talk to others on loopback: with a local master Spark's ports ask for a secret.
- The JVM dies with the *thread* that called `open_session` (java_shim.py): keep that thread alive.
- A JVM that died can't be replaced in this process by any means that pyspark documents; the loader ends with a failure
  and is started anew. `close` clears what pyspark keeps, so that at least an orderly end allows a new start.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shlex
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from ..conf.columns import Column, ddl
from ..conf.redaction import masked_repr
from ..durable.files import remove_tree, spark_path
from ..remoting.errors import UsageError
from .connect import ConnectSession, is_local, is_remote, open_connect, rows_over_the_connection, shown
from .errors import SparkStartError
from .java import Java, find_java, make_shim
from .needs import DELTA_BUILDS, ICEBERG_BUILDS, delta_package, iceberg_packages
from .pulse import Deadline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

JVM_END_TIMEOUT_S = 5
SPARK_STOP_TIMEOUT_S = 20.0
"""Stopping takes a second on one machine, a few where a cluster is told; a JVM that hangs would never answer."""
JVM_LOG_BYTES_MAX = 10_000_000
LOG_TAIL_LINES = 15
PROPERTIES = "spark.properties"
"""In a session's folder, while its JVM starts: the settings."""
JOBS_LOOKED_AT = 4
"""Of a group, the newest: a write by Delta may have several."""
PROBES_MAX = 16
"""Tasks that look whether executors see staged files: enough to reach several hosts, and nothing beside one batch."""
UNREAD = "FAILED_READ_FILE"
"""In what Spark says of a file that an executor has not found, or may not read."""
NOT_RUNNING = (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
_CLEARED = (
    "PYSPARK_GATEWAY_PORT",
    "PYSPARK_GATEWAY_SECRET",
    "PYSPARK_SUBMIT_ARGS",
    "SPARK_CONF_DIR",
    "SPARK_CONNECT_MODE_ENABLED",
    "SPARK_DIST_CLASSPATH",
    "SPARK_LOCAL_DIRS",
    "SPARK_MASTER",
    "SPARK_REMOTE",
    "SPARK_TESTING",
)
_LOG4J = """\
status = error
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = {log}
appender.file.filePattern = {log}.%i
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{yyyy-MM-dd HH:mm:ss.SSS}} %p %c{{1}}: %m%n%ex
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = 10MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 1
"""


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """What a session is started with. `folder`: logs, temporary files and the Java shim; one session at a time."""

    folder: Path
    master: str = "local[2]"
    driver_memory: str = "1g"
    java_home: str = ""
    conf: Mapping[str, str] = field(default_factory=dict[str, str])
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    app_name: str = "rocketcrew"

    def __repr__(self) -> str:
        return masked_repr(self)

    @property
    def is_local(self) -> bool:
        """Whether Spark runs inside the one JVM."""
        return is_local(self.master)


class Session:
    """A running Spark session and its JVM."""

    where = "Spark's JVM"
    _by_path: bool | None = None
    """Whether staged files are read by their paths; None until that is known."""

    def __init__(self, spark: SparkSession, java: Java) -> None:
        self.spark = spark
        self.java = java
        context: Any = spark.sparkContext
        self._jvm: subprocess.Popen[bytes] = context._gateway.proc

    @property
    def jvm_pid(self) -> int:
        """The JVM's process id."""
        return self._jvm.pid

    def alive(self) -> bool:
        """Whether the JVM is still there."""
        return self._jvm.poll() is None

    def ends_within(self, seconds: float) -> bool:
        """Whether the JVM is gone, or goes now: its connections break a moment before the kernel says that it has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._jvm.wait(seconds)
        return not self.alive()

    def ask(self) -> object:
        """The JVM's clock: it answers as long as it does anything. Blocks while it hangs, raises when it is gone."""
        context: Any = self.spark.sparkContext
        return context._jvm.System.currentTimeMillis()

    def kill(self) -> None:
        """End the JVM at once."""
        self._jvm.kill()

    def new_session(self) -> SparkSession:
        """A session beside the main one, in the same JVM, with settings of its own."""
        return self.spark.newSession()

    def name_job(self, session: SparkSession, group: str, what: str) -> None:
        """Name what this thread does next, so that it can be cancelled."""
        context: Any = session.sparkContext
        context.setJobGroup(group, what)

    def cancel_jobs(self, session: SparkSession, group: str) -> None:
        """Cancel what is named so."""
        session.sparkContext.cancelJobGroup(group)

    def tasks(self, group: str) -> tuple[int, int]:
        """Tasks done, and tasks in all, of what is named so and runs; by any thread."""
        context: Any = self.spark.sparkContext
        tracker = context.statusTracker()
        done = total = 0
        for job in sorted(tracker.getJobIdsForGroup(group))[-JOBS_LOOKED_AT:]:  # those that have ended are named too
            told = tracker.getJobInfo(job)
            for stage in told.stageIds if told is not None and told.status == "RUNNING" else ():
                one = tracker.getStageInfo(stage)
                if one is not None:
                    done, total = done + one.numCompletedTasks, total + one.numTasks
        return done, total

    def read(self, session: SparkSession, files: Sequence[Path], columns: Sequence[Column]) -> DataFrame:
        """The rows of staged files: by their paths, or through this process where executors do not see them."""
        if self._by_path is None:
            local = is_local(str(session.sparkContext.master))
            self._by_path = local or self._executors_read(session, files[0], columns)
        if not self._by_path:
            return rows_over_the_connection(session, files, columns)
        return session.read.schema(ddl(columns)).parquet(*(spark_path(file) for file in files))

    def _executors_read(self, session: SparkSession, file: Path, columns: Sequence[Column]) -> bool:
        """Whether executors may read a staged file: on YARN they run on other hosts, and often as another user."""
        rows = session.read.schema(ddl(columns)).parquet(spark_path(file)).limit(1)
        looks = [rows] * max(2, min(PROBES_MAX, session.sparkContext.defaultParallelism))
        try:
            reduce(type(rows).unionAll, looks).collect()
        except Exception as error:
            if UNREAD not in str(error):
                raise
            return False
        return True

    def close(self, end_timeout_s: float = JVM_END_TIMEOUT_S, stop_timeout_s: float = SPARK_STOP_TIMEOUT_S) -> None:
        """Stop Spark and its JVM; never raises. Takes about a second.

        A JVM that has not stopped within `stop_timeout_s`, or not left within `end_timeout_s` after that, is killed.
        """
        from pyspark import SparkContext

        # Whatever goes wrong here, the JVM is about to end: its answers are no longer needed.
        context: Any = SparkContext
        with Deadline(stop_timeout_s, self.kill):
            with contextlib.suppress(Exception):
                self.spark.stop()
            with contextlib.suppress(Exception):
                context._gateway.shutdown()
        context._gateway = context._jvm = None
        if self._jvm.stdin is not None:
            with contextlib.suppress(OSError):
                self._jvm.stdin.close()
        try:
            self._jvm.wait(end_timeout_s)
        except subprocess.TimeoutExpired:
            self._jvm.kill()
            self._jvm.wait()


def open_any(settings: SessionSettings) -> Session | ConnectSession:
    """A session of our own, or one at a Spark Connect server, by the master. Raises SparkStartError, UsageError."""
    if is_remote(settings.master):
        return open_connect(settings.master, dict(settings.conf))
    return open_session(settings)


def open_session(settings: SessionSettings) -> Session:
    """Start Spark; takes 4 to 20 seconds. Raises SparkStartError with the reason and the remedy."""
    java = find_java(settings.java_home, settings.env)
    try:
        import pyspark
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise SparkStartError(f"pyspark can't be imported ({error}): pip install 'rocketcrew[spark]'") from None
    conf = spark_conf(settings)
    shim = _prepare_folder(settings.folder, java, conf)
    context: Any = pyspark.SparkContext
    try:
        with _environment(settings, Path(pyspark.__file__).parent, shim):
            # The JVM first, by the file: a builder that starts one writes all that it was told on the command line.
            context._ensure_initialized()
            builder: Any = SparkSession.builder
            # Told again, to the JVM that runs, values keep blanks at their ends, which Spark cuts off in a file.
            for name, value in conf.items():
                builder = builder.config(name, value)
            spark = builder.getOrCreate()
    except Exception as error:
        raise SparkStartError(why_not_started(settings, java, error)) from error
    finally:
        (settings.folder / PROPERTIES).unlink(missing_ok=True)
    return Session(spark, java)


def kill_starting(folder: Path) -> None:
    """Kill the JVM that this process starts with `folder`, and the scripts that start it: pyspark shows neither until
    the JVM has answered. They are known by the folder, which their command lines name."""
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if any(str(folder) in word for word in child.cmdline()):
                _kill_with_all_below(child)


def _kill_with_all_below(root: psutil.Process) -> None:
    """Stop each process before the ones below it are listed: a running one may start another after the list was made,
    which would outlive it."""
    stopped: dict[int, psutil.Process] = {}
    while found := [one for one in (root, *root.children(recursive=True)) if one.pid not in stopped]:
        for process in found:
            stopped[process.pid] = process
            with contextlib.suppress(psutil.NoSuchProcess):
                process.suspend()
        _wait_until_stopped(found)
    for process in stopped.values():
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def _wait_until_stopped(processes: Iterable[psutil.Process]) -> None:
    """Wait until none of them runs, 1 s at most: a fork that has begun ends before its process stops."""
    deadline = time.monotonic() + 1.0
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            while process.status() not in NOT_RUNNING and time.monotonic() < deadline:
                time.sleep(0.001)


def spark_conf(settings: SessionSettings) -> dict[str, str]:
    """Every Spark setting of the session; the user's own (`settings.conf`) win, and JVM options are joined."""
    folder = settings.folder
    conf = {
        "spark.master": settings.master,
        "spark.app.name": settings.app_name,
        "spark.driver.memory": settings.driver_memory,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.local.dir": str(folder / "tmp"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.session.timeZone": "UTC",
        # The default, INT96, is a type of Spark's own that other readers treat as old or refuse.
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        # Files go straight to their place and no _SUCCESS is left: the folder is nobody's until it is renamed.
        "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": "2",
        "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    }
    if settings.is_local:
        conf["spark.driver.host"] = conf["spark.driver.bindAddress"] = "127.0.0.1"
        conf["spark.pyspark.python"] = sys.executable
        # Every user of this host reaches ports on loopback, and what comes there is deserialised by Java.
        conf["spark.authenticate"] = "true"
    if settings.master.startswith("local-cluster"):
        conf["spark.authenticate.secret"] = secrets.token_hex(32)  # with `local` Spark makes one itself
    conf.update(settings.conf)
    options = f"-Dlog4j2.configurationFile={(folder / 'log4j2.properties').as_uri()}"
    theirs = settings.conf.get("spark.driver.extraJavaOptions", "")
    conf["spark.driver.extraJavaOptions"] = f"{options} {theirs}".strip()
    return conf


def format_conf(format_: str, delta_jars: str, iceberg_jars: str, master: str = "") -> dict[str, str]:
    """What a session needs to write tables of that format. A Connect server has its jars and extensions from its own start.

    Raises UsageError.
    """
    if is_remote(master):
        return {}
    if format_ == "delta":
        return delta_conf(delta_jars)
    return iceberg_conf(iceberg_jars) if format_ == "iceberg-spark" else {}


def delta_conf(jars: str) -> dict[str, str]:
    """What a session needs for Delta tables. `jars`: a folder of jars, or a list of files with commas; empty: fetched.

    Raises UsageError when the folder has no Delta jar in it, or when there is none to fetch for this Spark.
    """
    return {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    } | _jars(jars, "spark.delta_jars", "delta-spark", delta_package)


def iceberg_conf(jars: str) -> dict[str, str]:
    """What a session needs for Iceberg tables: `jars` as `delta_conf` has them. Catalogs are named to it later.

    Raises UsageError as `delta_conf`.
    """
    return _jars(jars, "spark.iceberg_jars", "iceberg-spark-runtime", iceberg_packages)


def _jars(jars: str, setting: str, library: str, package: Callable[[str], str]) -> dict[str, str]:
    if not jars:
        import pyspark

        return {"spark.jars.packages": package(pyspark.__version__)}
    files = sorted(str(file) for file in Path(jars).glob("*.jar")) if Path(jars).is_dir() else jars.split(",")
    if not any(Path(file).name.startswith(library) for file in files):
        raise UsageError(f"{setting} {jars!r} holds no {library} jar: give the folder that has it, or its files")
    # On the class path of the JVM itself: the catalog is looked up before jars are added to a running session.
    return {"spark.jars": ",".join(file.strip() for file in files)}


def as_properties(conf: Mapping[str, str]) -> str:
    """The settings as Java reads a file of properties; a character that may mean something there is written as a number."""
    return "".join(f"{_escaped(name)}={_escaped(value)}\n" for name, value in conf.items())


def _escaped(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._/-]", lambda found: _units(found[0]), text)


def _units(character: str) -> str:
    return re.sub("(....)", r"\\u\1", character.encode("utf-16-be", "surrogatepass").hex())


def _prepare_folder(folder: Path, java: Java, conf: Mapping[str, str]) -> Path:
    """Make the folder fresh but for its logs; returns the shim's JAVA_HOME."""
    log = folder / "jvm.log"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for left_over in ("tmp", "warehouse", "work"):
            remove_tree(folder / left_over)
        (folder / "tmp").mkdir()
        text = _LOG4J.format(log=(folder / "spark.log").as_posix())
        (folder / "log4j2.properties").write_text(text, encoding="utf-8")
        if log.exists() and log.stat().st_size > JVM_LOG_BYTES_MAX:
            log.replace(log.with_suffix(".log.1"))
        shim = make_shim(java, folder / "java", log)
        _write_private(folder / PROPERTIES, as_properties(conf))
        return shim
    except OSError as error:
        raise SparkStartError(f"Spark's folder {folder} can't be prepared: {error}") from None


def _write_private(file: Path, text: str) -> None:
    """Write a file anew that no other user reads. Raises OSError."""
    file.unlink(missing_ok=True)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w", encoding="ascii") as opened:
        opened.write(text)


@contextlib.contextmanager
def _environment(settings: SessionSettings, spark_home: Path, shim: Path) -> Generator[None]:
    """The process's environment as the JVM shall inherit it. pyspark offers no other way to hand it over."""
    before = dict(os.environ)
    wanted = {"SPARK_HOME": str(spark_home), "JAVA_HOME": str(shim)}
    words = ["--properties-file", str(settings.folder / PROPERTIES), "--load-spark-defaults", "pyspark-shell"]
    wanted["PYSPARK_SUBMIT_ARGS"] = shlex.join(words)
    if settings.is_local:
        wanted["SPARK_LOCAL_IP"] = "127.0.0.1"
        # Python data sources are looked for by this variable's Python; spark.pyspark.python says nothing to that step.
        wanted["PYSPARK_PYTHON"] = sys.executable
        # Where a local-cluster's executors work; otherwise inside of pyspark's own folder.
        wanted["SPARK_WORKER_DIR"] = str(settings.folder / "work")
    if "spark.pyspark.python" in settings.conf:
        wanted["PYSPARK_PYTHON"] = settings.conf["spark.pyspark.python"]
    try:
        for name in _CLEARED:
            os.environ.pop(name, None)
        os.environ.update(wanted)
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


_STACK = re.compile(r"\s*(at \S+\(|\.\.\. \d+ more)")
"""A line of Java's stacks: twenty of them stand below each line that says something."""
_NOT_FOUND = re.compile(r"unresolved dependency: ([^:\s]+[#:][^:\s]+[;:][^:\s]+): not found")


def why_not_started(settings: SessionSettings, java: Java, error: Exception) -> str:
    """What the JVM's logs in the session's folder say; of jars that Maven does not find, which, and which ones exist."""
    lines: deque[str] = deque(maxlen=LOG_TAIL_LINES)
    for name in ("jvm.log", "spark.log"):
        with contextlib.suppress(OSError), (settings.folder / name).open(encoding="utf-8", errors="replace") as log:
            lines.extend(line for line in log if not _STACK.match(line))
    said = str(error).strip().splitlines()
    tail = "".join(f"  {line}" for line in lines)
    if missing := sorted({found[1] for line in lines if (found := _NOT_FOUND.search(line))}):
        known = [*DELTA_BUILDS.items(), *ICEBERG_BUILDS.items()]
        builds = ", ".join(f"{build} for Spark {spark}" for spark, build in known)
        return (
            f"Spark could not be started: Maven has no {', '.join(missing)}, or can't be reached. Jars that exist: {builds}."
            f" Name jars by spark.delta_jars or spark.iceberg_jars, or other coordinates by spark.jars.packages in"
            f" spark.conf. Results stay safe in their segments. More in {settings.folder}/jvm.log"
        )
    return (
        f"Spark could not be started with master {shown(settings.master)!r}, {settings.driver_memory} of memory and Java"
        f" {java.version} from {java.source} ({java.home}): {said[0] if said else type(error).__name__}. Results stay safe"
        f" in their segments. The last lines of {settings.folder}/jvm.log and spark.log:\n{tail}"
    )
