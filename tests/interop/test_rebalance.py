"""Mixed groups: Java members and ours in one strategy own every queue exactly once, while members come and go."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "system"))

from crowd import Crowd, crowd_of
from fault_servers import Site
from harness import Crew, wait_until
from servers import CLIENT_OPTIONS, VERSIONS, Java, Servers

ON_BOTH = pytest.mark.parametrize("servers", VERSIONS, ids=str, indirect=True, scope="session")
ON_SITES = pytest.mark.parametrize("site", ["5.5.0", "4.9.7"], indirect=True, scope="session")
JavaClasses = Callable[[str], str]
ROOM = "broker-room"
IN_ROOM = {"brokerName": "east@broker-a"}
"""The broker in a machine room: MACHINE_ROOM reads it in the name."""
VECTORS = Path(__file__).parent.parent / "unit" / "supervisor" / "allocation_vectors.json"
QUEUES = 8
ALL_QUEUES = set(range(QUEUES))
STRATEGIES = ("AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH")
FAR_S = 240.0


@pytest.mark.parametrize("version", [kind.version for kind in VERSIONS])
def test_java_allocates_as_it_was_recorded(version: str, tmp_path: Path, java_classes: JavaClasses) -> None:
    """The recorded answers, by which the unit tests judge our strategies, are those of this version's classes."""
    vectors = json.loads(VECTORS.read_text())
    lines, wanted = [], []
    for vector in vectors:
        for client_id, mine in vector["mine"].items():
            lines.append([vector["strategy"], vector["argument"], client_id, vector["queues"], vector["members"]])
            wanted.append(mine)
    file = tmp_path / "cases.tsv"
    file.write_text("".join("\t".join(line) + "\n" for line in lines))
    java = Java("allocation", tmp_path, java_classes(version), ["Allocation", str(file)], CLIENT_OPTIONS)
    try:
        found = [line.removeprefix("MINE ") for line in java.finish() if line.startswith("MINE ")]
    finally:
        java.stop()
    assert found == wanted


def split(crews: list[Crew], crowd: Crowd, prefix: str) -> list[set[int]]:
    """Who has which queues: ours, then Java's whose names begin so."""
    theirs = [queues for name, queues in crowd.queues().items() if name.startswith(prefix)]
    return [*(crew.assigned() for crew in crews), *theirs]


def is_whole(parts: list[set[int]], members: int) -> bool:
    """Every queue has one owner."""
    return len(parts) == members and set().union(*parts) == ALL_QUEUES and sum(map(len, parts)) == QUEUES


@dataclass(frozen=True)
class Mixed:
    """A group of its own: the settings of Java's members, and of ours."""

    name: str
    java: str
    settings: Mapping[str, object]


def come_and_go(cluster: Servers | Site, folder: Path, classes: str, groups: Sequence[Mixed]) -> None:
    """All groups at the same time, each with a member of ours and one to four of Java's."""
    crews: dict[str, Crew] = {}
    with crowd_of(folder, classes, cluster.name_server) as crowd:
        try:
            for group in groups:
                topic = topic_of(group.name)
                cluster.create_topic(topic, QUEUES)
                crew = Crew(folder, cluster, "numbers_handler:number", topic, load=False, group=topic,
                            **{"workers.count": 1, **group.settings})  # fmt: skip
                crew.start()
                crews[group.name] = crew
            for count in (1, 2, 3, 4):
                for group in groups:
                    topic = topic_of(group.name)
                    crowd.join(f"{group.name}/{count}", topic, topic, strategy=group.java)
                if count in (1, 4):
                    wait_until_whole(crews, crowd, 1 + count)
            for count in (4, 2):
                for group in groups:
                    crowd.leave(f"{group.name}/{count}")
            wait_until_whole(crews, crowd, 3)
            for count in (1, 3):
                for group in groups:
                    crowd.leave(f"{group.name}/{count}")
            wait_until_whole(crews, crowd, 1)
        finally:
            codes = [crew.stop() for crew in crews.values()]
    assert codes == [0] * len(groups)


def topic_of(name: str) -> str:
    return f"mixed-{name}"


def wait_until_whole(crews: dict[str, Crew], crowd: Crowd, members: int) -> None:
    for name, crew in crews.items():
        wait_until(
            lambda crew=crew, name=name: is_whole(split([crew], crowd, f"{name}/"), members),  # type: ignore[misc]
            FAR_S, f"a whole split of {name} among {members}",
        )  # fmt: skip


@ON_BOTH
def test_a_mixed_group_has_neither_overlap_nor_gap(servers: Servers, tmp_path: Path, java_classes: JavaClasses) -> None:
    groups = [Mixed(name, name, {"consumer.allocate_strategy": name}) for name in STRATEGIES]
    come_and_go(servers, tmp_path, java_classes(servers.kind.version), groups)


@ON_SITES
def test_mixed_groups_by_rooms_and_by_a_strategy_of_ones_own(
    site: Site, tmp_path: Path, java_classes: JavaClasses
) -> None:
    """The broker is in a room, as its name says, where no member is; one's own strategy is written in both languages."""
    site.make_whole(ROOM, settings=IN_ROOM)
    groups = [
        Mixed("MACHINE_ROOM", "MACHINE_ROOM=west+east",
              {"consumer.allocate_strategy": "MACHINE_ROOM", "consumer.machine_room_ids": "west,east"}),
        Mixed("NEARBY", "MACHINE_ROOM_NEARBY-AVG_BY_CIRCLE",
              {"consumer.allocate_strategy": "MACHINE_ROOM_NEARBY-AVG_BY_CIRCLE",
               "consumer.machine_rooms": "east@*=east,*=elsewhere"}),
        Mixed("own", "BACKWARDS", {"consumer.allocate_strategy": "strategies:backwards"}),
    ]  # fmt: skip
    come_and_go(site, tmp_path, java_classes(site.version), groups)


@ON_BOTH
def test_fixed_lists_of_both_are_kept_to(servers: Servers, tmp_path: Path, java_classes: JavaClasses) -> None:
    """CONFIG: everybody has the queues that are written down for him, whoever comes and goes."""
    topic = "mixed-config"
    servers.create_topic(topic, QUEUES)
    named = [f"{topic}@broker-a:{queue}" for queue in range(QUEUES)]
    crew = Crew(tmp_path, servers, "numbers_handler:number", topic, load=False, group=topic,
                **{"consumer.allocate_strategy": "CONFIG", "consumer.allocate_queues": ",".join(named[:3]),
                   "workers.count": 1})  # fmt: skip
    crew.start()
    try:
        with crowd_of(tmp_path, java_classes(servers.kind.version), servers.name_server) as crowd:
            crowd.join("config/1", topic, topic, strategy="CONFIG=" + "+".join(named[3:]))
            wait_until(
                lambda: split([crew], crowd, "config/") == [set(range(3)), set(range(3, QUEUES))], FAR_S, "both lists"
            )
            crowd.leave("config/1")
            looks = crew.counter("rebalances")
            wait_until(lambda: crew.counter("rebalances") >= looks + 2, FAR_S, "another look, with its answers")
            assert crew.assigned() == set(range(3))
    finally:
        assert crew.stop() == 0
