"""Connections of this process to clusters: made when first needed, shared by all tasks that Spark gives it, closed when idle.

Spark runs task after task in the same Python worker. Its connections, routes and producers live as long as the process, in a
loop of their own thread; a cluster that nobody used for a minute is closed (a worker that Spark keeps idle holds no sockets
for ever), and so is the longest unused one when there are too many. What is used is never closed.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ..client.access import Access
from ..client.cluster import Cluster
from ..client.loop_thread import LoopThread
from ..client.opening import new_cluster
from ..client.operations import Operations
from ..client.producer import Producer
from ..client.sending import SendRules

IDLE_S = 60.0
CLUSTERS_MAX = 16
CLOSE_TIMEOUT_S = 5.0

T = TypeVar("T")


@dataclass(eq=False)
class Link:
    """One cluster as tasks use it: blocking calls from any thread, work in the loop's."""

    access: Access
    thread: LoopThread
    cluster: Cluster
    operations: Operations
    users: int = 0
    used_s: float = 0.0
    producers: dict[tuple[str, int], Producer] = field(default_factory=dict[tuple[str, int], Producer])
    without_stats: set[str] = field(default_factory=set[str])
    """The addresses that refuse to say the ends of all queues of a topic at once."""

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for the result."""
        return self.thread.run(work)

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin, and wait later."""
        return self.thread.submit(work)

    def producer(self, group: str, retries: int) -> Producer:
        """The producer of a group, one per number of retries."""
        known = self.producers.get((group, retries))
        if known is None:
            known = self.producers[group, retries] = self.run(self._new_producer(group, retries))
        return known

    async def _new_producer(self, group: str, retries: int) -> Producer:
        producer = Producer(self.cluster, group, rules=SendRules(retries=retries), spans=False)
        producer.start()
        return producer

    async def close(self) -> None:
        """Leave groups, close connections."""
        for producer in self.producers.values():
            await producer.close()
        await self.cluster.close()
        await self.cluster.remoting.close()


class Connections:
    """See the module's text. One of them per process: `shared`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, idle_s: float = IDLE_S) -> None:
        self._clock = clock
        self._idle_s = idle_s
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._thread: LoopThread | None = None
        self._links: dict[Access, Link] = {}
        self._timer: threading.Timer | None = None

    @property
    def open(self) -> list[Access]:
        """The clusters that are connected."""
        return list(self._links)

    @contextlib.contextmanager
    def use(self, access: Access) -> Generator[Link]:
        """The link to a cluster, for a `with` block. Raises UsageError for TLS files that cannot be used."""
        with self._lock:
            link = self._link(access)
            link.users += 1
        try:
            yield link
        finally:
            with self._lock:
                link.users -= 1
                link.used_s = self._clock()
            self._look_later()

    def close_idle(self) -> int:
        """Close what nobody uses and nobody used for a while; how many that were."""
        with self._lock:
            now_s = self._clock()
            unused = sorted((link for link in self._links.values() if not link.users), key=lambda link: link.used_s)
            too_many = len(self._links) - CLUSTERS_MAX
            idle = [link for at, link in enumerate(unused) if at < too_many or now_s - link.used_s >= self._idle_s]
            for link in idle:
                del self._links[link.access]
        for link in idle:
            link.submit(link.close())
        return len(idle)

    def close(self) -> None:
        """Close everything that is not in use, and wait for it."""
        with self._lock:
            links = list(self._links.values())
            self._links.clear()
            thread, self._thread = self._thread, None
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
        for link in links:
            with contextlib.suppress(TimeoutError):
                link.submit(link.close()).result(CLOSE_TIMEOUT_S)
        if thread is not None:
            thread.close()

    def _link(self, access: Access) -> Link:
        if self._pid != os.getpid():
            # A child of a fork has its parent's sockets and not its thread: they are the parent's to use.
            self._pid, self._thread, self._links, self._timer = os.getpid(), None, {}, None
        link = self._links.get(access)
        if link is None:
            if self._thread is None:
                self._thread = LoopThread("rocketcrew-source")
            cluster = self._thread.run(_open(access))
            link = self._links[access] = Link(access, self._thread, cluster, Operations(cluster))
        return link

    def _look_later(self) -> None:
        """Have somebody look for idle ones; one timer, whatever the number of uses, and none when nothing is open."""
        with self._lock:
            if self._timer is None and self._links:
                self._timer = threading.Timer(self._idle_s, self._look)
                self._timer.daemon = True
                self._timer.start()

    def _look(self) -> None:
        with self._lock:
            self._timer = None
        self.close_idle()
        self._look_later()


async def _open(access: Access) -> Cluster:
    return new_cluster(access)


shared = Connections()
"""Those of this process. A worker that Spark forks begins with none."""
