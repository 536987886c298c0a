"""Genuine servers that come and go: a name server and brokers that are killed, stopped and started again with their files.

`servers.py` has the pair that most tests share; here every process has a handle of its own, keeps its ports and its store,
and can be started again with other settings. Clients may be given the name server behind a proxy that shows them every
broker behind a proxy too (see proxy.py).
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from ports import free_ports
from proxy import Proxy
from servers import (
    JAVA_OPTIONS,
    STOP_TIMEOUT_S,
    Java,
    Tools,
    answers,
    broker_ports,
    broker_settings,
    class_path,
    wait_until_answered,
    write_logging,
)

from rocketcrew.cli.children import listens
from rocketcrew.client.admin import Admin
from rocketcrew.client.sync import run_with_cluster
from rocketcrew.remoting.admin_bodies import TopicConfig

Settings = Mapping[str, object]
NAME_SERVER_STOP_S = 0.5
NONE: Settings = MappingProxyType({})
OWN: Settings = {
    "registerNameServerPeriod": 10_000,  # how soon a broker is known to a name server that was away
    "timerWheelEnable": "true",  # without it 5.5.0 cannot delete a topic
}


class GenuineBroker:
    """One broker: `kill`, `stop` and `start` keep its ports and its store."""

    def __init__(self, folder: Path, classes: str, name: str, name_server_port: int, options: Sequence[str]) -> None:
        self.name = name
        self._options = options
        self._folder = folder / name
        self._folder.mkdir()
        write_logging(self._folder)
        self._classes = classes
        self._name_server_port = name_server_port
        self.port, self._replication_port = broker_ports()
        self.address = f"127.0.0.1:{self.port}"
        self.settings: Settings = NONE
        self._java: Java | None = None
        self._starts = 0

    def start(self, settings: Settings = NONE) -> None:
        """Returns as soon as it listens."""
        self._starts += 1
        self.settings = dict(settings)
        text = broker_settings(self._folder, self._name_server_port, self.port, self._replication_port)
        own = {**OWN, "brokerName": self.name, **settings}
        file = self._folder / "broker.conf"
        file.write_text(text + "".join(f"{key}={value}\n" for key, value in own.items()))  # the last one holds
        words = ["org.apache.rocketmq.broker.BrokerStartup", "-c", "broker.conf"]
        self._java = Java(f"broker-{self._starts}", self._folder, self._classes, words, self._options)
        self._java.wait_for(lambda: listens(self.port), "listen")

    def kill(self) -> None:
        """kill -9."""
        if self._java is not None:
            os.kill(self._java.pid, signal.SIGKILL)
            self.stop()

    def terminate(self) -> None:
        """TERM, and return at once: how it shuts down is what is looked at."""
        if self._java is not None:
            self._java.terminate()

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """TERM, then KILL after `timeout_s`; an orderly end takes some ten seconds."""
        if self._java is not None:
            self._java.stop(timeout_s)
            self._java = None

    def rest(self) -> None:
        """It stands still until `wake`, if it runs."""
        if self._java is not None and not self._java.rests:
            self._java.rest()

    def wake(self) -> None:
        if self._java is not None and self._java.rests:
            self._java.wake()

    @property
    def runs(self) -> bool:
        return self._java is not None

    @property
    def pid(self) -> int:
        """Of the JVM that runs now."""
        assert self._java is not None, f"{self.name} does not run"
        return self._java.pid


class Site:
    """See the module's text. `name_server` is what clients are given."""

    def __init__(self, version: str, folder: Path, options: Sequence[str] = JAVA_OPTIONS) -> None:
        """`options` are for the brokers' JVMs."""
        self.version = version
        self._options = options
        self.folder = folder
        self.classes = class_path(version)
        write_logging(folder)
        self._name_server_port = free_ports(1)[0]
        (folder / "namesrv.conf").write_text(f"listenPort={self._name_server_port}\nbindAddress=127.0.0.1\n")
        self._name_server_java: Java | None = None
        self._name_server_starts = 0
        self.brokers: dict[str, GenuineBroker] = {}

    @property
    def name_server(self) -> str:
        return f"127.0.0.1:{self._name_server_port}"

    def start_name_server(self) -> None:
        self._name_server_starts += 1
        words = ["org.apache.rocketmq.namesrv.NamesrvStartup", "-c", "namesrv.conf"]
        name = f"namesrv-{self._name_server_starts}"
        self._name_server_java = Java(name, self.folder, self.classes, words, JAVA_OPTIONS)
        self._name_server_java.wait_for(lambda: listens(self._name_server_port), "listen")

    def stop_name_server(self) -> None:
        if self._name_server_java is not None:
            self._name_server_java.stop(NAME_SERVER_STOP_S)
            self._name_server_java = None

    def broker(self, name: str = "broker-a") -> GenuineBroker:
        """The broker of that name, made at its first mention; not started."""
        if name not in self.brokers:
            self.brokers[name] = GenuineBroker(self.folder, self.classes, name, self._name_server_port, self._options)
        return self.brokers[name]

    def make_whole(self, *names: str, settings: Settings = NONE) -> None:
        """The name server and exactly these brokers run, with these settings, and are known: restarts what must be."""
        if self._name_server_java is None:
            self.start_name_server()
        for name, broker in self.brokers.items():
            if broker.runs and (name not in names or broker.settings != settings):
                broker.stop()
        for name in names:
            if not self.broker(name).runs:
                self.broker(name).start(settings)
        self.wait_until_known(*names)

    def wait_until_known(self, *names: str) -> None:
        """The name server knows exactly these brokers, and answers with routes."""
        wanted = sorted(self.broker(name).address for name in names)
        wait_until_answered(lambda: self._masters() == wanted, f"the registration of {names}")

    def _masters(self) -> list[str]:
        found = run_with_cluster(self.name_server, lambda cluster: Admin(cluster).master_addresses())
        run_with_cluster(self.name_server, lambda cluster: cluster.route("TBW102"))
        return found

    def create_topic(self, topic: str, queues: int) -> None:
        """A topic with so many queues on every broker that runs; has its whole route when this returns."""
        config = TopicConfig(topic, read_queue_nums=queues, write_queue_nums=queues)
        brokers = [broker for broker in self.brokers.values() if broker.runs]
        for broker in brokers:
            address = broker.address
            wait_until_answered(lambda at=address: self._created(at, config), f"{topic} on {broker.name}")
        wait_until_answered(lambda: self.queue_count(topic) == queues * len(brokers), f"the route of {topic}")

    def _created(self, address: str, config: TopicConfig) -> bool:
        run_with_cluster(self.name_server, lambda cluster: Admin(cluster).create_topic(address, config))
        return True

    def queue_count(self, topic: str) -> int:
        """Readable queues in the name server's route."""
        return len(run_with_cluster(self.name_server, lambda cluster: cluster.queues_to_read(topic)))

    def exists(self, topic: str) -> bool:
        """Whether the name server has a route."""
        return answers(lambda: self.queue_count(topic) > 0)

    def admin(self, *words: str) -> list[str]:
        """What RocketMQ's own `mqadmin` prints. Each command has its process, which takes seconds: a crew looks at a topic
        that is deleted and made anew, as people do it, in between."""
        return Tools(self.folder, self.version, self.name_server).alone(*words).splitlines()

    @contextmanager
    def proxied(self, *names: str) -> Iterator[tuple[str, Proxy]]:
        """(a name server for clients, the proxy): what is asked of it names the proxy's ports for these brokers."""
        with Proxy(self.name_server, [self.broker(name).address for name in names]) as proxy:
            yield proxy.name_server, proxy

    def rest(self) -> None:
        """No test has a use for it now. What its brokers were to the name server is waited for by `make_whole`."""
        for broker in self.brokers.values():
            broker.rest()

    def wake(self) -> None:
        for broker in self.brokers.values():
            broker.wake()

    def stop(self) -> None:
        for broker in self.brokers.values():
            broker.stop()
        self.stop_name_server()


@contextmanager
def run_site(version: str, folder: Path, options: Sequence[str] = JAVA_OPTIONS) -> Iterator[Site]:
    """A site with nothing started yet; everything of it is stopped at the end."""
    site = Site(version, folder, options)
    try:
        yield site
    finally:
        site.stop()
