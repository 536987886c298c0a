"""What is subscribed: tags and their hash collisions, SQL92, changes while running, and groups that disagree."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "system"))

from crowd import crowd_of
from harness import Crew, patient_producer, wait_until
from servers import VERSIONS, Servers, answers

from rocketcrew.cli.watch import Watch
from rocketcrew.client.outgoing import OutgoingMessage
from rocketcrew.supervisor.control import ask

ON_BOTH = pytest.mark.parametrize("servers", VERSIONS, ids=str, indirect=True, scope="session")
JavaClasses = Callable[[str], str]
CrewMaker = Callable[..., Crew]
QUEUES = 2
FAR_S = 240.0
SQL = "price BETWEEN 20 AND 60 AND (colour IN ('red', 'blue') OR colour IS NULL) AND NOT (price = 30)"


@pytest.fixture
def new_crew(tmp_path: Path, servers: Servers) -> Iterator[CrewMaker]:
    made: list[Crew] = []

    def make(topic: str, group: str, slot: int = 0, *, handler: str = "number", **settings: object) -> Crew:
        crew = Crew(tmp_path, servers, f"numbers_handler:{handler}", topic, load=False, group=group, slot=slot,
                    **{"workers.count": 1, "cluster.heartbeat_interval_ms": 1000, **settings})  # fmt: skip
        crew.start()
        made.append(crew)
        return crew

    yield make
    for crew in made:
        crew.stop()


def send(servers: Servers, topic: str, numbers: range, tag: str = "", **properties: str) -> None:
    with patient_producer(servers) as producer:
        producer.send_many(
            OutgoingMessage(topic, str(number).encode(), tags=tag or None, properties=properties) for number in numbers
        )


def tell(crew: Crew, command: str, **arguments: Any) -> dict[str, Any]:
    return asyncio.run(ask(crew.slot, command, **arguments))


def sealed(crew: Crew) -> set[int]:
    """The numbers whose rows are in sealed segments."""
    return set(crew.staged_rows().column("number").to_pylist())


def opened(crew: Crew, topic: str) -> list[tuple[int, str]]:
    """Queue and reason of each line that says where a queue of the topic began."""
    return [(each["queue_id"], each["reason"]) for each in crew.logged("queue_opened") if each["topic"] == topic]


def has_no_queue(crew: Crew, topic: str) -> bool:
    status = crew.status()
    return status is not None and all(queue["topic"] != topic for queue in status["queues"])


@pytest.fixture
def with_sql(servers: Servers) -> Iterator[None]:
    """Brokers have SQL92 switched off."""
    servers.set("enablePropertyFilter", "true")
    yield
    servers.set("enablePropertyFilter", "false")


@ON_BOTH
@pytest.mark.usefixtures("with_sql")
def test_tags_sql_and_changes_while_running(servers: Servers, new_crew: CrewMaker) -> None:
    """ "Aa" and "BB" have the same Java hash: the broker lets both through, and only a second look tells them apart. And a
    filter of the user's, before the handler: what ends in a nine is counted and committed, and leaves no row."""
    for topic in ("tagged", "priced", "later"):
        servers.create_topic(topic, QUEUES)
    send(servers, "tagged", range(110, 120), "Aa")
    send(servers, "tagged", range(120, 130), "BB")
    send(servers, "tagged", range(130, 140), "other")
    send(servers, "tagged", range(140, 150))
    for number, price in enumerate((10, 20, 30, 40, 60, 70)):
        send(servers, "priced", range(210 + number, 211 + number), price=str(price), colour="red")
        send(servers, "priced", range(220 + number, 221 + number), price=str(price), colour="green")
        send(servers, "priced", range(230 + number, 231 + number), price=str(price))
    crew = new_crew(f"priced:SQL92:{SQL}", "filters", handler="number_without_nines")
    assert tell(crew, "subscribe", topic="tagged", filter="Aa || more") == {"changed": True}
    wanted = {*range(110, 119), 211, 213, 214, 231, 233, 234}
    wait_until(lambda: wanted <= sealed(crew) and crew.counter("filtered_messages") == 11, FAR_S, "what is wanted")
    old_era = servers.kind.version.startswith("4.")  # whose brokers do not tell a young queue from an offset of 0
    # A thread writes the log: it may be behind the rows.
    wait_until(lambda: len(opened(crew, "priced")) >= QUEUES, what="where the queues began")
    why = opened(crew, "priced")
    assert sorted(queue_id for queue_id, _ in why) == list(range(QUEUES))
    assert all(text.startswith("the broker's stored offset" if old_era else "a young queue") for _, text in why), why
    # Another filter for one, another topic, and one topic less.
    assert tell(crew, "subscribe", topic="later", filter="*") == {"changed": True}
    assert tell(crew, "subscribe", topic="tagged", filter="other") == {"changed": True}
    assert tell(crew, "subscribe", topic="tagged", filter=" other ") == {"changed": False}
    assert "cannot start" in tell(crew, "subscribe", topic="no such!")["error"]
    send(servers, "tagged", range(160, 170), "Aa")
    send(servers, "tagged", range(170, 180), "other")
    send(servers, "later", range(310, 320))
    wanted |= {*range(170, 179), *range(310, 319)}
    wait_until(lambda: wanted <= sealed(crew), FAR_S, "what is wanted now")
    with Watch(servers.name_server) as watch:
        wait_until(
            lambda: answers(lambda: not any(row.lag for row in watch.lag("filters", ["later"]))),
            FAR_S, "319 committed, without a row",
        )  # fmt: skip
    assert tell(crew, "unsubscribe", topic="later") == {"changed": True}
    wait_until(lambda: has_no_queue(crew, "later"), FAR_S, "the end of later")
    status = crew.status()
    assert status is not None
    assert sorted(status["subscriptions"]) == ["%RETRY%filters", "priced", "tagged"]
    assert status["subscription_mismatch"] == []
    # What the filter before had left out may come where the offset behind it was not committed yet.
    assert crew.stop() == 0
    assert wanted <= sealed(crew) <= wanted | {*range(130, 139)}


@ON_BOTH
@pytest.mark.usefixtures("with_sql")
def test_an_expression_that_is_none_keeps_us_from_starting(servers: Servers, new_crew: CrewMaker) -> None:
    servers.create_topic("wrong", QUEUES)
    with pytest.raises(Exception, match="supervisor ended"):
        new_crew("wrong:SQL92:price >", "wrong")


@ON_BOTH
def test_a_group_that_disagrees_is_told(
    servers: Servers, tmp_path: Path, java_classes: JavaClasses, new_crew: CrewMaker
) -> None:
    topic = group = "disagreed"
    servers.create_topic(topic, QUEUES)
    with crowd_of(tmp_path, java_classes(servers.kind.version), servers.name_server) as crowd:
        crowd.join("java", group, topic, "a || b")
        crew = new_crew(f"{topic}:c", group)  # the newest: the broker has our filter, and Java's messages vanish
        # While a member does not answer, what the broker holds is told in its place.
        wait_until(lambda: any(text.startswith("member ") for text in mismatch(crew) or ()), FAR_S, "the mismatch")
        [text] = mismatch(crew) or ()
        assert text.startswith("member 127.0.0.1@")
        assert f"topic {topic} is filtered there by 'a || b', by us by 'c'" in text
        assert tell(crew, "subscribe", topic=topic, filter="b || a") == {"changed": True}
        wait_until(lambda: mismatch(crew) == [], FAR_S, "the end of the mismatch")
        assert tell(crew, "subscribe", topic=topic, filter="*") == {"changed": True}
        wait_until(lambda: bool(mismatch(crew)), FAR_S, "another mismatch")
        crowd.leave("java")
        wait_until(lambda: mismatch(crew) == [], FAR_S, "its end with the member's")


def mismatch(crew: Crew) -> list[str] | None:
    """None: it did not answer."""
    status = crew.status()
    return list(status["subscription_mismatch"]) if status else None


@ON_BOTH
def test_one_client_id_is_in_a_group_once(servers: Servers, new_crew: CrewMaker) -> None:
    servers.create_topic("twice", QUEUES)
    settings = {"cluster.instance_name": "same", "cluster.client_ip": "127.0.0.1"}
    first = new_crew("twice", "twice", **settings)
    with pytest.raises(Exception, match=r"The consumer group\[twice\] has been created before, specify another name"):
        new_crew("twice", "twice", slot=1, **settings)
    status = first.status()
    assert status is not None
    assert status["client_id"] == "127.0.0.1@same"
