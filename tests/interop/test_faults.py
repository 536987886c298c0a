"""Faults on genuine servers while numbered messages flow: nothing is lost, and what repeats is counted and explained.

Each fault small here, on the version that is named at its test; `make soak` runs them all on both with 50,000 messages
(`--fault-messages`). Every test has a topic, a
group and a crew of its own; the servers are shared, and made whole before each test.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "system"))

from fault_servers import Site
from harness import WAIT_S, Crew, patient_producer, wait_until
from load import Load, verdict
from proxy import Proxy

from rocketcrew.client.outgoing import OutgoingMessage

NEW, OLD = "5.5.0", "4.9.7"


def on(*small: str) -> pytest.MarkDecorator:
    """Small on these versions; on both in `make soak`."""
    versions = [
        version if version in small else pytest.param(version, marks=pytest.mark.soak) for version in (NEW, OLD)
    ]
    return pytest.mark.parametrize("site", versions, indirect=True, scope="session")


ON_BOTH = on(NEW, OLD)

A, B = "broker-a", "broker-b"
QUEUES = 4
PER_SECOND_MAX = 3000
LOAD_S = 4
CUTS = 3
SLAB_MIB = 32
LARGE_BYTES, LARGE_MESSAGES_MAX = 100_000, 2_000
BUSY: Mapping[str, object] = {
    # One thread and one place in the line for sends, and for pulls: whoever comes while they are taken is refused.
    "sendMessageThreadPoolNums": 1,
    "sendThreadPoolQueueCapacity": 1,
    "pullMessageThreadPoolNums": 1,
    "pullThreadPoolQueueCapacity": 1,
}


@pytest.fixture
def numbers(pytestconfig: pytest.Config) -> range:
    return range(int(pytestconfig.getoption("--fault-messages", None) or 1000))


@dataclass(frozen=True)
class Through:
    """The cluster as clients behind a proxy see it."""

    name_server: str


class Scene:
    """One fault: its site, topic, crew and load."""

    def __init__(self, name: str, site: Site, folder: Path, numbers: range) -> None:
        self.name, self.site, self.numbers = name, site, numbers
        self.topic = name.partition("[")[0].removeprefix("test_")
        self.group = f"{self.topic}-group"
        self.folder = folder
        self.unanswered = 0
        self.limit_s = 2 * WAIT_S + len(numbers) / 200

    @contextmanager
    def crew(self, name_server: str = "", handler: str = "slow_number", **settings: object) -> Iterator[Crew]:
        """A crew that runs; behind a proxy it is only itself, and what the test asks goes the straight way."""
        crew = Crew(
            self.folder, Through(name_server or self.site.name_server), f"numbers_handler:{handler}", self.topic,
            load=False, group=self.group, **{"consumer.max_reconsume_times": 3, **settings},
        )  # fmt: skip
        crew.start()
        crew.broker = self.site
        try:
            yield crew
        finally:
            crew.stop()

    @contextmanager
    def load(self, name_server: str = "", numbers: range | None = None) -> Iterator[Load]:
        """All numbers, or these, over some seconds."""
        numbers = self.numbers if numbers is None else numbers
        per_second = min(PER_SECOND_MAX, len(numbers) / LOAD_S)
        with Load(name_server or self.site.name_server, self.topic, numbers, per_second) as load:
            yield load

    def wait_for_share(self, crew: Crew, share: float) -> None:
        """So much of the numbers is done."""
        wanted = int(len(self.numbers) * share)
        wait_until(lambda: crew.counter("done_messages") >= wanted, self.limit_s, f"{wanted} messages done")

    def send(self, numbers: range) -> None:
        """All at once, each until a broker has it."""
        with Load(self.site.name_server, self.topic, numbers, PER_SECOND_MAX) as load:
            load.finish(self.limit_s)
        self.unanswered += load.unanswered

    def judge(self, crew: Crew, load: Load | None, *, forgets: bool = False, recreated: bool = False) -> None:
        if load is not None:
            load.finish(self.limit_s)
            self.unanswered += load.unanswered
        name = f"{self.topic} {self.site.version}"
        verdict(name, crew, self.numbers, self.unanswered, self.limit_s, forgets=forgets, recreated=recreated)


@pytest.fixture
def scene(request: pytest.FixtureRequest, site: Site, tmp_path: Path, numbers: range) -> Scene:
    return Scene(request.node.name, site, tmp_path, numbers)


def kill_broker(scene: Scene, _crew: Crew) -> None:
    broker = scene.site.broker(A)
    broker.kill()
    broker.start()
    scene.site.wait_until_known(A)


def take_name_server_away(scene: Scene, crew: Crew) -> None:
    """Routes are remembered: messages go on while it is away."""
    scene.site.stop_name_server()
    scene.wait_for_share(crew, 0.6)
    scene.site.start_name_server()
    scene.site.wait_until_known(A)


def set_queues(scene: Scene, crew: Crew, write: int, read: int) -> None:
    words = ("-b", scene.site.broker(A).address, "-t", scene.topic, "-w", str(write), "-r", str(read))
    scene.site.admin("updateTopic", *words)
    wait_until(lambda: len(crew.assigned()) == read, WAIT_S, f"{read} queues")


def begins_anew(crew: Crew) -> bool:
    """Nothing of the topic is read beyond its beginning."""
    status = crew.status()
    return status is not None and all(
        queue["next_offset"] <= 0 for queue in status["queues"] if queue["topic"] == crew.topic
    )


def under_load(scene: Scene, fault: Callable[[Scene, Crew], None]) -> None:
    scene.site.make_whole(A)
    scene.site.create_topic(scene.topic, QUEUES)
    with scene.crew() as crew, scene.load() as load:
        scene.wait_for_share(crew, 0.2)
        fault(scene, crew)
        scene.judge(crew, load)


@ON_BOTH
def test_broker_killed(scene: Scene) -> None:
    under_load(scene, kill_broker)


@on(OLD)
def test_name_server_away(scene: Scene) -> None:
    under_load(scene, take_name_server_away)


@on(NEW)
def test_queues_added_and_removed(site: Site, scene: Scene) -> None:
    """As an operator does it: more of both; then fewer to write, and when those are empty fewer to read."""
    site.make_whole(A)
    site.create_topic(scene.topic, QUEUES)
    first = len(scene.numbers) * 4 // 5
    with scene.crew() as crew:
        with scene.load(numbers=scene.numbers[:first]) as load:
            scene.wait_for_share(crew, 0.2)
            set_queues(scene, crew, 8, 8)
            scene.wait_for_share(crew, 0.4)
            set_queues(scene, crew, 2, 8)
            load.finish(scene.limit_s)
        scene.unanswered += load.unanswered
        wait_until(lambda: crew.lag() == 0, scene.limit_s, "empty queues where nobody writes")
        set_queues(scene, crew, 2, 2)
        scene.send(scene.numbers[first:])
        scene.judge(crew, None)


@on(OLD)
def test_connections_cut(site: Site, scene: Scene) -> None:
    """In the middle of a pull answer, and in the middle of a request."""
    site.make_whole(A)
    site.create_topic(scene.topic, QUEUES)
    share = len(scene.numbers) // CUTS
    with site.proxied(A) as (name_server, proxy), scene.crew(name_server) as crew:
        for number in range(CUTS):
            # The last share is what is left. Of a load that began before, all answers may be through when one is to be cut.
            proxy.answers_to_cut = 1
            with scene.load(numbers=scene.numbers[number * share :][: share if number < CUTS - 1 else None]) as load:
                cut(proxy, number)
                load.finish(scene.limit_s)
            scene.unanswered += load.unanswered
        scene.judge(crew, None)
    assert proxy.cuts == 2 * CUTS


def cut(proxy: Proxy, number: int) -> None:
    wait_until(lambda: proxy.cuts == 2 * number + 1, WAIT_S, "a pull answer to be cut")
    proxy.requests_to_cut = 1
    wait_until(lambda: proxy.cuts == 2 * number + 2, WAIT_S, "a request to be cut")


@on(NEW)
def test_broker_busy(site: Site, scene: Scene) -> None:
    """The broker refuses pulls and send-backs by SYSTEM_BUSY, because its lines are full."""
    site.make_whole(A)
    site.create_topic(scene.topic, 4 * QUEUES)
    scene.send(scene.numbers)
    site.make_whole(A, settings=BUSY)
    with scene.crew() as crew:
        scene.judge(crew, None)
        log = "".join(file.read_text() for file in scene.folder.glob("supervisor-*.log"))
    assert "system busy" in log, "the broker was never busy"


@ON_BOTH
def test_topic_recreated(site: Site, scene: Scene) -> None:
    """Deleted and made anew while the crew runs: what is sent to the new one is consumed from its beginning."""
    site.make_whole(A)
    site.create_topic(scene.topic, QUEUES)
    half = len(scene.numbers) // 2
    with scene.crew() as crew:
        scene.send(scene.numbers[:half])
        wait_until(
            lambda: crew.counter("done_messages") >= half - half // 1000 and crew.lag() == 0, scene.limit_s, "half"
        )
        site.admin("deleteTopic", "-c", "DefaultCluster", "-t", scene.topic)
        wait_until(lambda: not site.exists(scene.topic), WAIT_S, "the end of the topic")
        # A topic that is back and as long as before when the crew looks again was not deleted for it (recreated.py).
        wait_until(lambda: begins_anew(crew), WAIT_S, "the end of the topic to be noticed")
        site.create_topic(scene.topic, QUEUES)
        scene.send(scene.numbers[half:])
        scene.judge(crew, None, recreated=True)


@on(NEW)
def test_one_of_two_brokers_dies(site: Site, scene: Scene) -> None:
    """The other's messages go on; those of the dead one come when it is back."""
    site.make_whole(A, B)
    site.create_topic(scene.topic, QUEUES)
    with scene.crew() as crew, scene.load() as load:
        scene.wait_for_share(crew, 0.2)
        site.broker(B).kill()
        load.finish(scene.limit_s)
        wait_until(lambda: len(crew.assigned()) == QUEUES, WAIT_S, "the queues of the broker that lives")
        site.broker(B).start()
        site.wait_until_known(A, B)
        scene.judge(crew, load, forgets=True)
    assert set(load.stored.values()) == {A, B}


@on(OLD)
def test_send_backs_behind_pull_answers(site: Site, scene: Scene) -> None:
    """The slab is full: pull answers wait in the connection, before the answers that would free slots."""
    site.make_whole(A)
    site.create_topic(scene.topic, 4 * QUEUES)
    scene.numbers = scene.numbers[:LARGE_MESSAGES_MAX]
    with patient_producer(site, compress_from_bytes=2 * LARGE_BYTES) as producer:
        producer.send_many(
            (OutgoingMessage(scene.topic, str(number).encode().ljust(LARGE_BYTES)) for number in scene.numbers),
            in_flight_max=16, timeout_ms=30_000,
        )  # fmt: skip
    with scene.crew(**{"memory.pulled_bytes_mib": SLAB_MIB, "consumer.pull_threshold_for_queue": 32}) as crew:
        scene.judge(crew, None)
