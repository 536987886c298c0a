"""Genuine RocketMQ as child processes: jars from Maven Central, a name server and a broker on free ports, Java programs.

Jars are resolved once into a pom and a class path below a user cache folder; while every file that it names is there, Maven
and the network are not asked again. Every process has a parent-death signal, its files in a folder of its own, a small
heap, and is stopped by its own handle within a deadline.

The 5.x servers listen on 127.0.0.1 only. 4.9 servers have no such setting and listen on every address.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO

from light_jvm import jvm_id
from ports import free_ports, take

from rocketcrew.cli.children import listens
from rocketcrew.client.access import Access
from rocketcrew.client.admin import Admin
from rocketcrew.client.cluster import Cluster
from rocketcrew.client.sync import run_with_cluster
from rocketcrew.remoting.admin_bodies import TopicConfig
from rocketcrew.remoting.codes import RequestCode
from rocketcrew.remoting.command import Command
from rocketcrew.remoting.errors import RocketcrewError
from rocketcrew.workers.parent_death import die_with_parent

ARTIFACTS = ("rocketmq-namesrv", "rocketmq-broker", "rocketmq-tools", "rocketmq-client")
DEPENDENCY_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1"
RESOLVE_TIMEOUT_S = 240.0
START_TIMEOUT_S = 240.0
STOP_TIMEOUT_S = 2.0
"""Short: an orderly stop of a broker takes ten seconds, and what it would write is thrown away."""
POLL_S = 0.05
LOG_TAIL_BYTES = 4000
JAVA_OPTIONS = (
    "-Xms256m", "-Xmx512m", "-XX:MaxDirectMemorySize=512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
    "-Djava.net.preferIPv4Stack=true", "-Dtls.server.mode=disabled",
    "--add-opens=java.base/java.nio=ALL-UNNAMED", "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
)  # fmt: skip
"""Without TLS, which tests of it switch on: each server would else make itself a certificate, by a library of 900 classes
that no archive takes, as its jars are signed. That is half of the CPU of a pair's start, and three quarters with 4.9.7."""
CLIENT_OPTIONS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.net.preferIPv4Stack=true")
LIGHT_COMPILER = ("-J-XX:TieredStopAtLevel=1", "-J-XX:+UseSerialGC", "-proc:none")
LOGBACK = '<configuration><root level="WARN"/></configuration>'
BINARY_HEADERS = "-Drocketmq.serialize.type=ROCKETMQ"


class ServerError(Exception):
    """A program of RocketMQ's could not be had, or failed; the text holds the end of its log."""


def missing_programs(*names: str) -> list[str]:
    """Those of the programs that are not on the PATH."""
    return [name for name in names if shutil.which(name) is None]


# Jars.


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "rocketcrew" / "interop"


def class_path(version: str) -> str:
    """The class path of servers, tools and client of one version; resolved on first use. Raises ServerError."""
    jars = resolved(version, [f"org.apache.rocketmq:{name}:{version}" for name in ARTIFACTS])
    return with_archive(version, jars, run_to_its_end)


_archives: dict[str, Path] = {}
"""For class paths that begin so: where the JVM finds their classes ready made."""


def archived(classes: str) -> list[str]:
    """Options with which a JVM starts in half the time; one that cannot use its archive starts as usual, and is silent."""
    found = [archive for jars, archive in _archives.items() if f"{classes}:".startswith(f"{jars}:")]
    return ["-Xlog:disable", f"-XX:SharedArchiveFile={found[0]}"] if found else []


RunOnce = Callable[[Path, str, str], None]
"""In a folder, with these jars and an option more: a JVM that has loaded what tests need, and ends in order."""


def with_archive(name: str, jars: str, run: RunOnce) -> str:
    """These jars, resolved under that name. JVMs whose class path begins so find their classes in an archive, which is made
    once for jars and JVM, by `run`."""
    if jars not in _archives:
        _archives[jars] = class_archive(cache_folder() / name, jars, run)
    return jars


def class_archive(folder: Path, jars: str, run: RunOnce) -> Path:
    """The classes that a JVM had loaded at its end, in a file of the cache."""
    archive = folder / f"classes-{jvm_id()}.jsa"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists() or archive.stat().st_mtime < (folder / "classpath.txt").stat().st_mtime:
            with tempfile.TemporaryDirectory() as home:
                part = archive.with_suffix(".part")
                part.unlink(missing_ok=True)
                run(Path(home), jars, f"-XX:ArchiveClassesAtExit={part}")
                if part.exists():
                    part.replace(archive)
    return archive


def run_to_its_end(home: Path, jars: str, option: str) -> None:
    """A broker without a name server: up, and down again in order."""
    write_logging(home)
    port, replication_port = broker_ports()
    (home / "broker.conf").write_text(broker_settings(home, free_ports(1)[0], port, replication_port))
    words = ["org.apache.rocketmq.broker.BrokerStartup", "-c", "broker.conf"]
    broker = Java("broker", home, jars, words, (*JAVA_OPTIONS, option))
    try:
        broker.wait_for(lambda: listens(port), "listen")
    finally:
        broker.stop(START_TIMEOUT_S)


def resolved(name: str, coordinates: Sequence[str]) -> str:
    """The class path of `group:artifact:version[:classifier]` artifacts and all they need, kept in the cache under `name`."""
    folder = cache_folder() / name
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        pom, found = folder / "pom.xml", folder / "classpath.txt"
        wanted = pom_text(name, coordinates)
        if not (pom.exists() and pom.read_text() == wanted and is_complete(found)):
            pom.write_text(wanted)
            resolve(pom, found)
        return found.read_text().strip()


def pom_text(name: str, coordinates: Sequence[str]) -> str:
    names = ("groupId", "artifactId", "version", "classifier")
    dependencies = "".join(
        "<dependency>{}</dependency>\n".format(
            "".join(f"<{name}>{part}</{name}>" for name, part in zip(names, one.split(":"), strict=False))
        )
        for one in coordinates
    )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>\n'
        f"<groupId>rocketcrew</groupId><artifactId>interop</artifactId><version>{name}</version>\n"
        f"<dependencies>\n{dependencies}</dependencies></project>\n"
    )


def is_complete(found: Path) -> bool:
    """Whether the class path was resolved before and every jar that it names is still there."""
    return found.exists() and all(Path(jar).is_file() for jar in found.read_text().strip().split(os.pathsep))


def resolve(pom: Path, found: Path) -> None:
    """Let Maven write the class path: first from what it has, then with the network."""
    part = found.with_suffix(".part")
    output = ""
    for how in (["-o"], []):
        command = ["mvn", "-q", "-B", *how, "-f", str(pom), f"{DEPENDENCY_PLUGIN}:build-classpath",
                   f"-Dmdep.outputFile={part}"]  # fmt: skip
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
            timeout=RESOLVE_TIMEOUT_S,
        )  # fmt: skip
        if done.returncode == 0 and is_complete(part):
            part.rename(found)
            return
        output = done.stdout
    raise ServerError(f"Maven could not resolve {pom}:\n{output[-LOG_TAIL_BYTES:]}")


def stored(jars: str, *names: str) -> str:
    """The class path with copies of the jars whose names begin so, in the cache, without compression. As old as the jars: an
    archive of their classes is good for them only."""
    folder = cache_folder() / "stored"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return os.pathsep.join(
            str(_stored(Path(jar), folder)) if Path(jar).name.startswith(names) else jar
            for jar in jars.split(os.pathsep)
        )


def _stored(jar: Path, folder: Path) -> Path:
    copy = folder / jar.name
    if not copy.exists():
        part = copy.with_suffix(".part")
        with zipfile.ZipFile(jar) as packed, zipfile.ZipFile(part, "w") as unpacked:
            for entry in packed.infolist():
                data = packed.read(entry)
                entry.compress_type = zipfile.ZIP_STORED
                unpacked.writestr(entry, data)
        os.utime(part, ns=(jar.stat().st_mtime_ns, jar.stat().st_mtime_ns))
        part.replace(copy)
    return copy


# Programs of our own.


def programs(version: str) -> str:
    """As `compiled`, into a folder of the cache; compiled once for each JVM and text of the programs. Raises ServerError."""
    jars = class_path(version)
    texts = hashlib.sha256(b"".join(file.read_bytes() for file in _sources())).hexdigest()[:16]
    folder = cache_folder() / version / f"programs-{jvm_id()}-{texts}"
    with (folder.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(dir=folder.parent) as part:
                javac(jars, Path(part, "classes"))
                Path(part, "classes").rename(folder)
    return f"{jars}{os.pathsep}{folder}"


def compiled(version: str, folder: Path) -> str:
    """The class path of one version with the programs of `java/`, compiled into `folder`. Raises ServerError."""
    jars = class_path(version)
    javac(jars, folder)
    return f"{jars}{os.pathsep}{folder}"  # in this order, or the archive of the jars would not fit


def _sources() -> list[Path]:
    return sorted((Path(__file__).parent / "java").glob("*.java"))


def javac(jars: str, folder: Path) -> None:
    """Compile the programs of `java/` into `folder`. Raises ServerError."""
    sources = map(str, _sources())
    done = subprocess.run(
        ["javac", *LIGHT_COMPILER, "-nowarn", "-encoding", "UTF-8", "-cp", jars, "-d", str(folder), *sources],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        timeout=START_TIMEOUT_S,
    )  # fmt: skip
    if done.returncode != 0:
        raise ServerError(f"javac failed:\n{done.stdout[-LOG_TAIL_BYTES:]}")


class Member:
    """A genuine push consumer in a process of its own; see Member.java."""

    def __init__(
        self, folder: Path, classes: str, name_server: str, group: str, topic: str, options: Sequence[str] = ()
    ) -> None:
        fast = ("-Drocketmq.client.rebalance.waitInterval=1000",)
        words = ["Member", name_server, group, topic]
        self.java = Java("java-member", folder, classes, words, (*CLIENT_OPTIONS, *fast, *options))
        try:
            self.java.wait_for(lambda: "STARTED" in self.java.lines(), "start")
        except BaseException:
            self.java.stop()
            raise

    def queues(self) -> set[int]:
        """The queues of the topic that it has now."""
        before = len(self._answers())
        self.java.write("queues")
        self.java.wait_for(lambda: len(self._answers()) > before, "tell its queues")
        return {int(queue) for queue in self._answers()[-1].split(",") if queue}

    def done(self) -> list[tuple[int, int]]:
        """(number, times it was retried) of every message that it has finished."""
        words = [line.split() for line in self.java.lines() if line.startswith("DONE ")]
        return [(int(number), int(times)) for _, number, times, _ in words]

    def leave(self) -> None:
        """Shut the consumer down in order."""
        self.java.finish()

    def _answers(self) -> list[str]:
        return [line.removeprefix("QUEUES ") for line in self.java.lines() if line.startswith("QUEUES ")]


def send_by_java(
    folder: Path, classes: str, name_server: str, topic: str, numbers: range, options: Sequence[str] = ()
) -> None:
    """Send the numbers with a genuine producer; see Sender.java. Raises ServerError."""
    words = ["Sender", name_server, topic, str(numbers.start), str(numbers.stop)]
    sender = Java("java-sender", folder, classes, words, (*CLIENT_OPTIONS, *options))
    try:
        assert f"SENT {len(numbers)}" in sender.finish()
    finally:
        sender.stop()


class Tools:
    """Commands of RocketMQ's `mqadmin`, all in one process; see Tools.java. It is started with the first one: each `mqadmin`
    by itself would be one more JVM."""

    def __init__(self, folder: Path, version: str, name_server: str) -> None:
        self._folder, self._version, self._name_server = folder, version, name_server
        self._java: Java | None = None
        self._read = 0

    def __call__(self, *words: str) -> str:
        """What one command prints; a stack trace too. Raises ServerError when it takes too long."""
        if missing_programs("javac"):
            return self.alone(*words)
        java = self._java
        if java is None:
            write_logging(self._folder)
            name = f"tools-{time.monotonic_ns()}"
            java = self._java = Java(name, self._folder, programs(self._version), ["Tools", self._name_server])
            self._read = 0
        try:
            java.write("\t".join(words))
            java.wait_for(lambda: "END" in java.lines()[self._read :], f"answer {words[0]}")
        except BaseException:
            self.stop()  # its answer may still come, and would be taken for the next command's
            raise
        begin = self._read
        self._read = java.lines().index("END", begin) + 1
        return "\n".join(java.lines()[begin : self._read - 1])

    def alone(self, *words: str) -> str:
        """The same by `mqadmin` itself, in a process of its own; also where our programs cannot be compiled."""
        write_logging(self._folder)
        words = ("org.apache.rocketmq.tools.command.MQAdminStartup", *words, "-n", self._name_server)
        java = Java(f"mqadmin-{time.monotonic_ns()}", self._folder, class_path(self._version), words)
        try:
            return "\n".join(java.finish())
        finally:
            java.stop()

    def stop(self) -> None:
        """End the process, if there is one."""
        if self._java is not None:
            self._java.stop()
            self._java = None


@contextmanager
def run_tools(folder: Path, version: str, name_server: str) -> Iterator[Tools]:
    """The tools for one test; their process is ended with it."""
    tools = Tools(folder, version, name_server)
    try:
        yield tools
    finally:
        tools.stop()


# Processes.


class Java:
    """One Java program with its output in a file and, where it listens to it, its stdin as a pipe."""

    def __init__(
        self, name: str, folder: Path, classes: str, words: Sequence[str], options: Sequence[str] = CLIENT_OPTIONS,
        env: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        self.name = name
        self.log = folder / f"{name}.log"
        self.rests = False
        parent = os.getpid()
        with self.log.open("wb") as out:
            self._process = subprocess.Popen(
                ["java", *archived(classes), *options, f"-Duser.home={folder}", "-cp", classes, *words],
                stdin=subprocess.PIPE, stdout=out, stderr=subprocess.STDOUT, cwd=folder, text=True,
                env={**os.environ, "ROCKETMQ_HOME": str(folder), **(env or {})},
                start_new_session=True,
                preexec_fn=lambda: die_with_parent(parent),  # noqa: PLW1509  started by the main thread, before others
            )  # fmt: skip

    @property
    def pid(self) -> int:
        return self._process.pid

    def lines(self) -> list[str]:
        """Whole lines of its output so far."""
        return self.log.read_text(errors="replace").split("\n")[:-1]

    def write(self, line: str) -> None:
        """One line to its stdin."""
        self._stdin.write(line + "\n")
        self._stdin.flush()

    @property
    def _stdin(self) -> IO[str]:
        assert self._process.stdin is not None
        return self._process.stdin

    def wait_for(self, condition: Callable[[], bool], what: str, timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until `condition()` is true. Raises ServerError when the program ends or the time is over first."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            if self._process.poll() is not None:
                raise ServerError(f"{self.name} ended with {self._process.returncode}:\n{self.tail()}")
            if time.monotonic() > deadline:
                raise ServerError(f"{self.name} did not {what} within {timeout_s:.0f} s:\n{self.tail()}")
            time.sleep(POLL_S)

    def finish(self, timeout_s: float = START_TIMEOUT_S) -> list[str]:
        """Close its stdin and wait for its end; its output. Raises ServerError when it fails or takes longer."""
        self._stdin.close()
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired as error:
            raise ServerError(f"{self.name} did not end within {timeout_s:.0f} s:\n{self.tail()}") from error
        if code != 0:
            raise ServerError(f"{self.name} ended with {code}:\n{self.tail()}")
        return self.log.read_text(errors="replace").splitlines()  # also a last line without an end

    def rest(self) -> None:
        """It stands still until `wake`."""
        self._process.send_signal(signal.SIGSTOP)
        self.rests = True

    def wake(self) -> None:
        self._process.send_signal(signal.SIGCONT)
        self.rests = False

    def terminate(self) -> None:
        """Ask it to end."""
        self._process.terminate()

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """TERM, then KILL after `timeout_s`."""
        if self._process.poll() is None:
            self.terminate()
            try:
                self._process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait()
        with suppress(BrokenPipeError):  # what it was not told is nothing to a process that has ended
            self._stdin.close()

    def tail(self) -> str:
        return self.log.read_bytes()[-LOG_TAIL_BYTES:].decode("utf-8", "replace")


def write_logging(folder: Path) -> None:
    """What 4.9 programs read below ROCKETMQ_HOME and do not start without."""
    (folder / "conf").mkdir(exist_ok=True)
    for name in ("namesrv", "broker", "tools"):
        (folder / "conf" / f"logback_{name}.xml").write_text(LOGBACK)


def broker_ports() -> tuple[int, int]:
    """(listening, replication): a broker also listens two below the first."""
    while True:
        port, replication = free_ports(2)
        if take(port - 2):
            return port, replication


@dataclass(frozen=True)
class Kind:
    """Which servers: their version, and whether they write binary headers."""

    version: str
    binary_headers: bool = False

    def __str__(self) -> str:
        return self.version + ("-binary-headers" if self.binary_headers else "")


VERSIONS = (Kind("5.5.0"), Kind("4.9.7"))


@dataclass(frozen=True)
class Servers:
    """A name server and a broker that run."""

    kind: Kind
    folder: Path
    classes: str
    name_server: str
    address: str
    """The broker's."""
    broker: Java
    tools: Tools
    access: Access | None = None
    """How an administrator reaches them, where the address alone is not enough."""

    @property
    def target(self) -> Access | str:
        """What clients take in place of addresses."""
        return self.access or self.name_server

    def rest(self) -> None:
        """The broker stands still until `wake`: in a minute without work it takes as much CPU as for its start."""
        if not self.broker.rests:
            self.broker.rest()

    def wake(self) -> None:
        """To be called before each use: a name server gives up a broker that rests for two minutes."""
        if self.broker.rests:
            self.broker.wake()
            self.broker.wait_for(lambda: answers(lambda: is_known(self)), "register with the name server again")

    def create_topic(self, topic: str, queues: int) -> None:
        """A topic with so many queues; it has a route when this returns."""
        config = TopicConfig(topic, read_queue_nums=queues, write_queue_nums=queues)

        def created() -> bool:
            run_with_cluster(self.target, lambda cluster: Admin(cluster).create_topic(self.address, config))
            return True

        wait_until_answered(created, f"{topic} on the broker")  # on a busy machine its first answers take seconds
        wait_until_answered(
            lambda: run_with_cluster(self.target, lambda cluster: cluster.route(topic)) is not None,
            f"a route of {topic}",
        )

    def set(self, name: str, value: object) -> None:
        """Change a setting of the broker while it runs."""

        async def tell(cluster: Cluster) -> None:
            command = Command(RequestCode.UPDATE_BROKER_CONFIG, body=f"{name}={value}".encode())
            answer = await cluster.remoting.request(self.address, command, timeout_ms=5000)
            assert answer.code == 0, answer.remark

        run_with_cluster(self.name_server, tell)

    def admin(self, *words: str) -> list[str]:
        """What RocketMQ's own `mqadmin` prints; what it could not do is an AssertionError, since it ends with 0 then, too."""
        printed = self.tools(*words)
        assert "SubCommandException" not in printed, printed
        return printed.splitlines()


def wait_until_answered(condition: Callable[[], bool], what: str, timeout_s: float = START_TIMEOUT_S) -> None:
    """Poll until true; a cluster that cannot answer yet counts as false."""
    deadline = time.monotonic() + timeout_s
    while not answers(condition):
        assert time.monotonic() < deadline, f"{what} did not come true within {timeout_s} s"
        time.sleep(POLL_S)


def answers(condition: Callable[[], bool]) -> bool:
    try:
        return condition()
    except RocketcrewError:
        return False


@contextmanager
def run_servers(
    kind: Kind, folder: Path, *, java_options: Sequence[str] = (), settings: str = "", access: Access | None = None
) -> Iterator[Servers]:
    """Start both servers, wait until the broker is known to the name server and has a route, stop both.

    `settings` are further lines of broker.conf. `access` without addresses: how such servers are reached.
    """
    classes = class_path(kind.version)
    options = (*JAVA_OPTIONS, *java_options, *([BINARY_HEADERS] if kind.binary_headers else []))
    write_logging(folder)
    name_server_port = free_ports(1)[0]
    (folder / "namesrv.conf").write_text(f"listenPort={name_server_port}\nbindAddress=127.0.0.1\n")
    name_server = Java(
        "namesrv", folder, classes, ["org.apache.rocketmq.namesrv.NamesrvStartup", "-c", "namesrv.conf"], options
    )
    address = f"127.0.0.1:{name_server_port}"
    tools = Tools(folder, kind.version, address)
    broker: Java | None = None
    try:
        # First: a broker that finds none tries again in ten seconds, and then every half minute.
        name_server.wait_for(lambda: listens(name_server_port), "listen")
        broker, port = listening_broker(folder, classes, options, name_server_port, settings)
        reached = replace(access, name_servers=address) if access is not None else None
        servers = Servers(kind, folder, classes, address, f"127.0.0.1:{port}", broker, tools, reached)
        broker.wait_for(lambda: answers(lambda: is_known(servers)), "register with the name server")
        yield servers
    finally:
        with ExitStack() as ends:  # each of them, also when another's end raises
            ends.callback(name_server.stop, 0)
            if broker is not None:
                ends.callback(broker.stop, 0)  # nothing of it is looked at again
            ends.callback(tools.stop)


def listening_broker(
    folder: Path, classes: str, options: Sequence[str], name_server_port: int, settings: str
) -> tuple[Java, int]:
    """A broker that has begun to listen, and its port. With other ports where somebody was faster at one: that ends it."""
    for tries_left in (2, 1, 0):
        port, replication_port = broker_ports()
        text = broker_settings(folder, name_server_port, port, replication_port) + settings
        (folder / "broker.conf").write_text(text)
        words = ["org.apache.rocketmq.broker.BrokerStartup", "-c", "broker.conf"]
        broker = Java("broker", folder, classes, words, options)
        try:
            broker.wait_for(partial(listens, port), "listen")
        except BaseException as error:
            broker.stop(0)
            if not (tries_left and isinstance(error, ServerError) and "Address already in use" in str(error)):
                raise
        else:
            return broker, port
    raise AssertionError("the last try returns or raises")


def is_known(servers: Servers) -> bool:
    addresses = run_with_cluster(servers.target, lambda cluster: Admin(cluster).master_addresses())
    run_with_cluster(servers.target, lambda cluster: cluster.route("TBW102"))
    return addresses == [servers.address]


def broker_settings(folder: Path, name_server_port: int, port: int, replication_port: int) -> str:
    """Small files, short delays, and patience with a slow disk; all else as RocketMQ has it.

    Some settings spare the processor: until the first metrics of transactions are written 5.5.0 loops without a pause (ten
    seconds of one core after each start), and so it does for good when it has written that a transaction has ended and the
    interval for such writes is over: each is written at once here, and the interval is a day. Each flush of the timer wheel
    compares 39 MB byte by byte: every five seconds that is a third of what an idle broker takes, and nobody here needs one
    but that of an orderly end. Three threads each look for timers that are due, ten times in a second.
    """
    settings = {
        "brokerClusterName": "DefaultCluster",
        "brokerName": "broker-a",
        "brokerId": 0,
        "brokerIP1": "127.0.0.1",
        "brokerIP2": "127.0.0.1",
        "bindAddress": "127.0.0.1",
        "namesrvAddr": f"127.0.0.1:{name_server_port}",
        "listenPort": port,
        "haListenPort": replication_port,
        "storePathRootDir": folder / "store",
        "storePathCommitLog": folder / "store" / "commitlog",
        "mappedFileSizeCommitLog": 64 << 20,
        "mappedFileSizeConsumeQueue": 20 * 50_000,
        "maxIndexNum": 100_000,
        "maxHashSlotNum": 20_000,
        "diskMaxUsedSpaceRatio": 95,
        "messageDelayLevel": " ".join(["1s"] * 18),
        "flushConsumerOffsetInterval": 1000,
        "mappedFileSizeTimerLog": 1 << 20,
        "timerPrecisionMs": 100,
        "timerFlushIntervalMs": 86_400_000,
        "timerGetMessageThreadNum": 1,
        "timerPutMessageThreadNum": 1,
        "transactionMetricFlushInterval": 200,
        "recallMessageEnable": "true",
        "transactionTimeOut": 1000,
        "transactionCheckInterval": 1000,
        "transactionOpMsgMaxSize": 1,
        "transactionOpBatchInterval": 86_400_000,
        "traceTopicEnable": "true",
        "waitTimeMillsInSendQueue": 2000,
        "osPageCacheBusyTimeOutMills": 5000,
    }
    return "".join(f"{name}={value}\n" for name, value in settings.items())
