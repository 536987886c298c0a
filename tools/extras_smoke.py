"""What an extra exists for, done once in an environment that has the package with this extra and nothing else.

    extras_smoke.py EXTRA FOLDER

tools/extras.py starts it with the Python of that environment. An embedded broker, one worker, ten messages; their rows must
come out of the table, or of the crew, exactly once. Ends with exit code 0 and one line, or with a traceback.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from rocketcrew import Crew, SyncProducer
from rocketcrew.cli.children import free_ports, listens
from rocketcrew.testing import LocalBroker

COUNT = 10
WAIT_S = 900
SETTINGS = {"consumer.consume_from_where": "CONSUME_FROM_FIRST_OFFSET", "consumer.rebalance_interval_ms": 1000}


def consumed(
    handler: str | Callable[..., Any], folder: Path, settings: Mapping[str, object], target: object = None
) -> Crew:
    """A crew that has consumed COUNT messages, and whose rows are in `target`; it is closed."""
    with LocalBroker() as broker:
        topic = broker.topic()
        with SyncProducer(broker.name_server) as producer:
            for number in range(COUNT):
                producer.send(topic, f'{{"n": {number}}}')
        chosen = {**SETTINGS, "supervisor.data_dir": str(folder / "state"), **settings}
        with Crew(
            handler, topics=topic, group=broker.group(), name_servers=broker.name_server, workers=1, schema="n INT",
            target=None if target is None else str(target), settings=chosen,
        ) as crew:  # fmt: skip
            crew.wait(max_messages=COUNT if target is None else None, timeout_s=WAIT_S)
        return crew


def number(message: Any) -> dict[str, int]:
    """A handler of bytes."""
    return {"n": int(message.body[6:-1])}


def query(table: object, *options: str) -> None:
    """The rows by the command, each once; raises AssertionError for others."""
    words = [sys.executable, "-Im", "rocketcrew", "query", "--target", str(table), *options]
    found = subprocess.run(
        [*words, "SELECT count(*) AS rows, count(DISTINCT n) AS numbers, sum(n) AS total FROM latest"],
        capture_output=True, text=True, timeout=WAIT_S, check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    assert [int(word) for word in found.stdout.split() if word.isdigit()][-3:] == [COUNT, COUNT, 45], found.stdout


def plain(folder: Path) -> None:
    """No extra: a Parquet table without a JVM."""
    consumed(number, folder, {"spark.format": "pyarrow"}, folder / "table")
    from rocketcrew import read

    assert sorted(read(folder / "table").column("n").to_pylist()) == list(range(COUNT))
    assert importlib.util.find_spec("pyspark") is None


def spark(folder: Path) -> None:
    """One batch by Spark, and SQL by Spark."""
    consumed(number, folder, {"spark.format": "parquet", "spark.driver_memory": "600m"}, folder / "table")
    query(folder / "table")


def connect(folder: Path) -> None:
    """One batch by a Spark Connect server."""
    with connect_server(folder) as url:
        consumed(number, folder, {"spark.format": "parquet", "spark.master": url}, folder / "table")
    from rocketcrew import read

    assert sorted(read(folder / "table").column("n").to_pylist()) == list(range(COUNT))


@contextlib.contextmanager
def connect_server(folder: Path) -> Generator[str]:
    """Its address; a server from this environment's pyspark, ended afterwards."""
    import pyspark

    from rocketcrew.spark.java import find_java, make_shim

    home, (port,) = Path(pyspark.__file__).parent, free_ports(1)
    java = make_shim(find_java("", os.environ), folder / "java", folder / "jvm.log")
    command = [str(home / "bin/spark-submit"), "--master", "local[2]", "--driver-memory", "600m"]
    for word in (f"spark.connect.grpc.binding.port={port}", "spark.connect.grpc.binding.address=127.0.0.1"):
        command += ["--conf", word]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
    env = {**os.environ, "SPARK_HOME": str(home), "JAVA_HOME": str(java), "SPARK_LOCAL_IP": "127.0.0.1"}
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True, cwd=folder)
    try:
        until = time.monotonic() + WAIT_S
        while not listens(port):
            assert server.poll() is None, (folder / "server.log").read_text()[-4000:]
            assert time.monotonic() < until, "the Connect server does not listen"
            time.sleep(0.1)
        yield f"sc://127.0.0.1:{port}"
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def delta(folder: Path) -> None:
    """One batch into a Delta table without Spark."""
    consumed(number, folder, {"spark.format": "deltalake"}, folder / "table")
    from deltalake import DeltaTable

    assert sorted(DeltaTable(str(folder / "table")).to_pyarrow_table().column("n").to_pylist()) == list(range(COUNT))


def iceberg(folder: Path) -> None:
    """One batch into an Iceberg table without Spark."""
    consumed(number, folder, {"spark.format": "iceberg"}, folder / "table")
    from rocketcrew import read

    assert sorted(read(folder / "table").column("n").to_pylist()) == list(range(COUNT))


def s3(folder: Path) -> None:
    """One batch into a Delta table in a bucket: S3_URL, on the server S3_ENDPOINT."""
    options = {"endpoint": os.environ["S3_ENDPOINT"], "allow_http": "true", "region": "us-east-1"}
    target = os.environ["S3_URL"]
    consumed(number, folder, {"spark.format": "deltalake", "spark.options": options}, target)
    from rocketcrew import read

    assert sorted(read(target, options=options).column("n").to_pylist()) == list(range(COUNT))


def delta_spark(folder: Path) -> None:
    """One batch into a Delta table by Spark, with the jars of DELTA_JARS where that is set."""
    jars = os.environ.get("DELTA_JARS", "")
    settings = {"spark.format": "delta", "spark.driver_memory": "600m", "spark.delta_jars": jars}
    consumed(number, folder, settings, folder / "table")
    from deltalake import DeltaTable

    assert sorted(DeltaTable(str(folder / "table")).to_pyarrow_table().column("n").to_pylist()) == list(range(COUNT))


def iceberg_spark(folder: Path) -> None:
    """One batch into an Iceberg table by Spark, with the jars of ICEBERG_JARS where that is set."""
    jars = os.environ.get("ICEBERG_JARS", "")
    settings = {"spark.format": "iceberg-spark", "spark.driver_memory": "600m", "spark.iceberg_jars": jars}
    consumed(number, folder, settings, folder / "table")
    from rocketcrew import read

    assert sorted(read(folder / "table").column("n").to_pylist()) == list(range(COUNT))


def duckdb(folder: Path) -> None:
    """`rocketcrew query` where there is no Spark."""
    consumed(number, folder, {"spark.format": "pyarrow"}, folder / "table")
    query(folder / "table")
    assert importlib.util.find_spec("pyspark") is None


TYPED = """
import msgspec

class Body(msgspec.Struct):
    n: int

def handle(body: Body):
    return {"n": body.n}
"""


def typed(folder: Path) -> None:
    """A handler whose annotation says what the body is. In a module: msgspec's classes do not travel by value."""
    (folder / "typed_handler.py").write_text(TYPED, encoding="utf-8")
    crew = consumed("typed_handler:handle", folder, {})
    assert sorted(row["n"] for row in crew.results()) == list(range(COUNT))


def otel(folder: Path) -> None:
    """Spans by the API alone: what nobody collects costs nothing and breaks nothing."""
    from rocketcrew.client.spans import span_api

    assert span_api() is not None
    crew = consumed(number, folder, {})
    assert sorted(row["n"] for row in crew.results()) == list(range(COUNT))


FAILING = """
def handle(message):
    number = int(message.body[6:-1])
    if number == 0 and message.reconsume_times == 0:
        raise ValueError("number 0")
    return {"n": number}
"""


def sentry(folder: Path) -> None:
    """A failed call is sent to a server of this process, and nothing else is."""
    events: list[bytes] = []

    class Server(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            events.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    (folder / "failing_handler.py").write_text(FAILING, encoding="utf-8")
    dsn = f"http://key@127.0.0.1:{server.server_port}/1"
    crew = consumed("failing_handler:handle", folder, {"sentry.dsn": dsn})
    server.shutdown()
    assert sorted(row["n"] for row in crew.results()) == list(range(COUNT))
    assert len(events) == 1


SMOKES: dict[str, Callable[[Path], None]] = {
    "": plain, "spark": spark, "connect": connect, "delta": delta, "s3": s3, "iceberg": iceberg, "delta-spark": delta_spark,
    "iceberg-spark": iceberg_spark,
    "duckdb": duckdb, "typed": typed, "otel": otel, "sentry": sentry,
}  # fmt: skip


def main() -> None:
    """Run one of SMOKES. State is below FOLDER, which exists."""
    extra, folder = sys.argv[1:]
    os.chdir(folder)  # a handler's module must not be found by accident
    SMOKES[extra](Path(folder))
    names = (
        "pyspark",
        "deltalake",
        "pyiceberg",
        "duckdb",
        "obstore",
        "msgspec",
        "opentelemetry-api",
        "sentry-sdk",
        "pandas",
    )
    there = [f"{one} {found}" for one in (*names, "pyarrow") if (found := _version(one))]
    print(f"rocketcrew[{extra}] on Python {sys.version.split()[0]}: works with {', '.join(there)}")


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


if __name__ == "__main__":
    main()
