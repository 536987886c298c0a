"""How genuine servers are found and addressed: name servers, address server, saved routes, namespaces, units, filters."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from ports import free_ports

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "system"))

from harness import WAIT_S, Crew, wait_until
from servers import VERSIONS, Servers, send_by_java

from rocketcrew.client.access import Access
from rocketcrew.client.outgoing import OutgoingMessage
from rocketcrew.client.sync import SyncProducer

ON_BOTH = pytest.mark.parametrize("servers", VERSIONS, ids=str, indirect=True, scope="session")
JavaClasses = Callable[[str], str]
QUEUES = 4
NUMBERS = range(300, 400)
SEND_TIMEOUT_MS = 30_000
DONE = {number: 2 * (number % 50 == 7) for number in NUMBERS}


def crew_of(folder: Path, servers: Servers, topic: str, **settings: object) -> Crew:
    return Crew(folder, servers, "numbers_handler:number", topic, load=False, group=f"{topic}-group",
                **{"consumer.max_reconsume_times": 3, **settings})  # fmt: skip


def send(target: Access | str, topic: str) -> None:
    with SyncProducer(target, send_timeout_ms=SEND_TIMEOUT_MS) as producer:
        producer.send_many(OutgoingMessage(topic, str(number).encode()) for number in NUMBERS)


def wait_and_check(crew: Crew) -> None:
    """Every number was done once, with its retries; the crew ends."""
    try:
        wait_until(lambda: crew.counter("done_messages") >= len(DONE), WAIT_S, "all messages finished")
    finally:
        code = crew.stop()
    assert code == 0
    rows = crew.staged_rows()
    found = zip(rows.column("number").to_pylist(), rows.column("attempt").to_pylist(), strict=True)
    assert sorted(found) == sorted(DONE.items())


@contextmanager
def address_server(answer: Callable[[], str]) -> Iterator[tuple[str, list[str]]]:
    """(domain, paths that were asked for) of an HTTP server in a thread."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            body = answer().encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@ON_BOTH
def test_an_address_server_a_dead_name_server_and_then_none_at_all(servers: Servers, tmp_path: Path) -> None:
    """An HTTP server names the name servers, the first of which is dead. The next start uses what was saved."""
    topic = "found"
    servers.create_topic(topic, QUEUES)
    nobody = f"127.0.0.1:{free_ports(1)[0]}"
    unnamed = replace(servers, name_server="", access=Access(servers.name_server))
    with address_server(lambda: f"{nobody};{servers.name_server}\n") as (domain, asked):
        crew = crew_of(tmp_path, unnamed, topic, **{"cluster.namesrv_domain": domain, "cluster.unit_name": "eu"})
        crew.start()
        clients = "\n".join(servers.admin("consumerConnection", "-g", crew.group))
        assert crew.stop() == 0
    assert set(asked) == {"/rocketmq/nsaddr-eu?nofix=1"}
    assert "@eu" in clients
    alone = crew_of(tmp_path, replace(servers, name_server=nobody, access=Access(servers.name_server)), topic)
    alone.start()
    send(servers.name_server, topic)
    wait_and_check(alone)


@ON_BOTH
def test_a_namespace_is_shared_with_java(servers: Servers, tmp_path: Path, java_classes: JavaClasses) -> None:
    topic, space = "orders", "MQ_INST_7"
    servers.create_topic(f"{space}%{topic}", QUEUES)
    crew = crew_of(tmp_path, servers, topic, **{"cluster.namespace": space})
    crew.slot = tmp_path / "state" / f"{space}%{topic}-group" / "0"
    crew.start()
    try:
        classes = java_classes(servers.kind.version)
        send_by_java(tmp_path, classes, servers.name_server, f"{space}%{topic}", range(300, 310))
        send(Access(servers.name_server, namespace=space), topic)
        wait_until(lambda: crew.counter("done_messages") >= len(DONE) + 10, WAIT_S, "all messages finished")
        words = [sys.executable, "-m", "rocketcrew", "lag", "-g", crew.group, "-n", servers.name_server]
        lag = subprocess.run(
            [*words, "--set", f"cluster.namespace={space}"], capture_output=True, text=True, check=True
        )
        seen = "\n".join(servers.admin("consumerConnection", "-g", f"{space}%{crew.group}"))
    finally:
        code = crew.stop()
    assert code == 0
    assert f"{space}%{topic}" in seen
    assert f"%RETRY%{space}%{crew.group}" in seen
    assert f"\n{topic} " in lag.stdout
    assert space not in lag.stdout


@ON_BOTH
def test_the_second_namespace_the_vip_channel_and_unit_mode(servers: Servers, tmp_path: Path) -> None:
    topic = "vip"
    servers.create_topic(topic, QUEUES)
    settings = {"cluster.namespace_v2": "space", "cluster.vip_channel_enabled": True, "cluster.unit_mode": True}
    crew = crew_of(tmp_path, servers, topic, **settings)
    crew.start()
    send(Access(servers.name_server, namespace_v2="space", vip_channel_enabled=True, unit_mode=True), topic)
    wait_and_check(crew)


@ON_BOTH
def test_a_filter_that_brokers_do_not_know_stops_the_start(servers: Servers, tmp_path: Path) -> None:
    servers.create_topic("filtered", 1)
    words = ["run", "numbers_handler:number", "-t", "filtered:SQL92:price > 3", "-g", "filtered-group"]
    state = ["--set", f"supervisor.data_dir={tmp_path}", "--set", "spark.load=false", "--log-level", "error"]
    done = subprocess.run(
        [sys.executable, "-m", "rocketcrew", *words, "-n", servers.name_server, *state],
        cwd=Path(__file__).parent.parent / "system", capture_output=True, text=True, timeout=WAIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "refuses the SQL92 filter of topic filtered (price > 3)" in done.stderr
    assert "enablePropertyFilter" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
