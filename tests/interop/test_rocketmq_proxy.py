"""Through a genuine RocketMQ 5 proxy's remoting port: `run`, `send`, retries, `lag`, `status`, `reconcile`, `reset` and the
data source. Managed clusters show nothing else.

A proxy in local mode has the broker in its own process. The routes that it gives to remoting clients name its gRPC port
(LocalTopicRouteService.java): Java's clients get no further than ours.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from ports import free_ports

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "system"))

from harness import WAIT_S, Crew, duplicate_keys, send_numbers, wait_until
from needs import need_jars
from servers import (
    JAVA_OPTIONS,
    Java,
    Kind,
    answers,
    broker_ports,
    broker_settings,
    class_path,
    resolved,
    run_servers,
    write_logging,
)

from rocketcrew.cli import main
from rocketcrew.cli.children import listens
from rocketcrew.client.access import Access
from rocketcrew.client.admin import Admin
from rocketcrew.client.cluster import Cluster
from rocketcrew.client.sync import run_with_cluster
from rocketcrew.remoting.admin_bodies import TopicConfig
from rocketcrew.source.batch_reader import BatchReader
from rocketcrew.source.connections import shared
from rocketcrew.source.pulling import Reading
from rocketcrew.source.reading import read_options

VERSION = "5.5.0"
TOPIC, GROUP = "proxied", "proxied-group"
QUEUES, NUMBERS = 4, range(100, 200)


@dataclass(frozen=True)
class Proxied:
    """A proxy that runs, as clients know it; `address` is the broker's behind it, and `behind` its name server."""

    name_server: str
    behind: str
    address: str

    def create_topic(self, topic: str) -> None:
        """By way of the name server, as a proxy makes no topics."""
        config = TopicConfig(topic, read_queue_nums=QUEUES, write_queue_nums=QUEUES)
        run_with_cluster(self.behind, lambda cluster: Admin(cluster).create_topic(self.address, config))
        wait_until(lambda: answers(lambda: self.knows(topic)), WAIT_S, f"a route of {topic} by the proxy")

    def masters(self) -> list[str]:
        """The brokers that the name server knows."""
        return run_with_cluster(self.behind, lambda cluster: Admin(cluster).master_addresses())

    def knows(self, topic: str) -> bool:
        async def ask(cluster: Cluster) -> bool:
            return len(await cluster.queues_to_read(topic, refresh=True)) == QUEUES

        return run_with_cluster(self.name_server, ask)


@contextmanager
def run_proxy(mode: str, folder: Path) -> Iterator[Proxied]:
    """A proxy in the mode `cluster`, before a broker of its own process, or `local`, with the broker in the proxy's."""
    classes = resolved(f"proxy-{VERSION}", [f"org.apache.rocketmq:rocketmq-proxy:{VERSION}"])
    port, grpc_port = free_ports(2)
    with run_behind(mode, folder) as (name_server, broker_port):
        settings = {
            "rocketMQClusterName": "DefaultCluster", "proxyMode": mode.upper(), "namesrvAddr": name_server,
            "localServeAddr": "127.0.0.1", "remotingAccessAddr": "127.0.0.1", "remotingListenPort": port,
            "grpcServerPort": grpc_port,
        }  # fmt: skip
        (folder / "proxy.json").write_text(json.dumps(settings))
        words = ["org.apache.rocketmq.proxy.ProxyStartup", "-pc", "proxy.json", "-pm", mode, "-n", name_server]
        words += ["-bc", "broker.conf"] if mode == "local" else []
        proxy = Java("proxy", folder, classes, words, JAVA_OPTIONS)
        try:
            proxy.wait_for(lambda: listens(port) and listens(broker_port), "listen", 2 * WAIT_S)
            found = Proxied(f"127.0.0.1:{port}", name_server, f"127.0.0.1:{broker_port}")
            proxy.wait_for(lambda: answers(lambda: bool(found.masters())), "register its broker", 2 * WAIT_S)
            yield found
        finally:
            proxy.stop(0)


@contextmanager
def run_behind(mode: str, folder: Path) -> Iterator[tuple[str, int]]:
    """The address of a name server, and the port of the broker, which runs already unless the proxy is to start it."""
    if mode == "cluster":
        with run_servers(Kind(VERSION), folder) as servers:
            yield servers.name_server, int(servers.address.rpartition(":")[2])
        return
    write_logging(folder)
    (name_server_port,), (port, replication_port) = free_ports(1), broker_ports()
    (folder / "namesrv.conf").write_text(f"listenPort={name_server_port}\nbindAddress=127.0.0.1\n")
    (folder / "broker.conf").write_text(broker_settings(folder, name_server_port, port, replication_port))
    words = ["org.apache.rocketmq.namesrv.NamesrvStartup", "-c", "namesrv.conf"]
    name_server = Java("namesrv", folder, class_path(VERSION), words, JAVA_OPTIONS)
    try:
        name_server.wait_for(lambda: listens(name_server_port), "listen")
        yield f"127.0.0.1:{name_server_port}", port
    finally:
        name_server.stop(0)


def test_the_main_stories_through_a_proxy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    need_jars(VERSION)
    with run_proxy("cluster", tmp_path) as proxy:
        proxy.create_topic(TOPIC)
        crew = Crew(tmp_path, proxy, "numbers_handler:number", TOPIC, load=False, group=GROUP,
                    **{"consumer.max_reconsume_times": 3})  # fmt: skip

        def ask(*words: str) -> tuple[int, str, str]:
            told = (
                f"supervisor.data_dir={crew.folder / 'state'}",
                f"spark.target={crew.table}",
                f"consumer.topics={TOPIC}",
                f"cluster.name_servers={proxy.name_server}",
            )
            capsys.readouterr()
            said = main.run([*words, *(word for each in told for word in ("--set", each))], {}, tmp_path)
            return said, *capsys.readouterr()

        def command(*words: str) -> str:
            code, out, err = ask(*words)
            assert code == 0, out + err
            return out

        def lag_of_all() -> int:
            """-1 where the proxy did not answer in time."""
            code, out, _ = ask("lag", "-g", GROUP, "--json")
            return int(json.loads(out)["total"]) if code == 0 else -1

        crew.start()
        try:
            send_numbers(proxy, TOPIC, NUMBERS)
            command("send", "-t", TOPIC, "707")  # fails twice, as 107 and 157 do
            count = len(NUMBERS) + 1
            wait_until(  # all six came back, and then nothing is left
                lambda: crew.counter("sent_back_messages") >= 6 and crew.sent_back_lag() == 0 and lag_of_all() == 0,
                WAIT_S,
                "the last retry",
            )
            assert TOPIC in command("status", "-g", GROUP)
            assert crew.counter("invariant_violations") == 0
        finally:
            assert crew.stop() == 0
        rows = crew.load()
        attempts = dict(zip(rows.column("number").to_pylist(), rows.column("attempt").to_pylist(), strict=True))
        assert attempts == {number: 2 * (number % 50 == 7) for number in [*NUMBERS, 707]}
        assert duplicate_keys(rows) == 0
        report = json.loads(command("reconcile", "-g", GROUP, "--json"))
        assert sum(queue["counts"].get("loaded", 0) for queue in report["queues"]) == count, report
        command("reset", "-g", GROUP, "-t", TOPIC, "--to", "earliest")
        lag = json.loads(command("lag", "-g", GROUP, "-t", TOPIC, "--json"))
        assert lag["total"] == count, lag
        assert len(read_by_spark(proxy.name_server)) == count


def test_a_proxy_in_local_mode_is_named_as_what_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    need_jars(VERSION)
    with run_proxy("local", tmp_path) as proxy:
        proxy.create_topic(TOPIC)
        assert main.run(["send", "-t", TOPIC, "1", "-n", proxy.name_server], {}, tmp_path) != 0
        assert "a gRPC port" in capsys.readouterr().err
        assert main.run(["send", "-t", TOPIC, "1", "-n", proxy.behind], {}, tmp_path) == 0


def read_by_spark(name_server: str) -> list[bytes]:
    """The topic as the data source reads it."""
    options = read_options({"subscribe": TOPIC, "startingTimestamp": "100000000000"}, streaming=False)
    reader = BatchReader(Reading(Access(name_server), options, ("body",)))
    try:
        return [row["body"] for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    finally:
        shared.close()
