"""Mixed groups: Java members and ours in one strategy own every queue exactly once, while members come and go."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "system"))

from crowd import Crowd, crowd_of
from harness import Crew, wait_until
from servers import CLIENT_OPTIONS, VERSIONS, Java, Servers

ON_BOTH = pytest.mark.parametrize("servers", VERSIONS, ids=str, indirect=True, scope="session")
JavaClasses = Callable[[str], str]
VECTORS = Path(__file__).parent.parent / "unit" / "supervisor" / "allocation_vectors.json"
QUEUES = 8
ALL_QUEUES = set(range(QUEUES))
STRATEGIES = ("AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH")
FAR_S = 120.0


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


def queues_of(crew: Crew) -> set[int]:
    """Queues of the topic that our member has now."""
    status = crew.status()
    found = status["queues"] if status else []
    return {queue["queue_id"] for queue in found if queue["topic"] == crew.topic and queue["state"] == "assigned"}


def split(crews: list[Crew], crowd: Crowd, prefix: str) -> list[set[int]]:
    """Who has which queues: ours, then Java's whose names begin so."""
    theirs = [queues for name, queues in crowd.queues().items() if name.startswith(prefix)]
    return [*(queues_of(crew) for crew in crews), *theirs]


def is_whole(parts: list[set[int]], members: int) -> bool:
    """Every queue has one owner."""
    return len(parts) == members and set().union(*parts) == ALL_QUEUES and sum(map(len, parts)) == QUEUES


@ON_BOTH
def test_a_mixed_group_has_neither_overlap_nor_gap(servers: Servers, tmp_path: Path, java_classes: JavaClasses) -> None:
    """One group for each strategy at the same time, each with a member of ours and one to four of Java's."""
    crews: dict[str, Crew] = {}
    with crowd_of(tmp_path, java_classes(servers.kind.version), servers.name_server) as crowd:
        try:
            for strategy in STRATEGIES:
                name = f"mixed-{strategy}"
                servers.create_topic(name, QUEUES)
                crew = Crew(tmp_path, servers, "numbers_handler:number", name, load=False, group=name,
                            **{"consumer.allocate_strategy": strategy, "workers.count": 1})  # fmt: skip
                crew.start()
                crews[strategy] = crew
            for count in (1, 2, 3, 4):
                for strategy in STRATEGIES:
                    crowd.join(f"{strategy}/{count}", f"mixed-{strategy}", f"mixed-{strategy}", strategy=strategy)
                if count in (1, 4):
                    wait_until_whole(crews, crowd, 1 + count)
            for count in (4, 2):
                for strategy in STRATEGIES:
                    crowd.leave(f"{strategy}/{count}")
            wait_until_whole(crews, crowd, 3)
            for count in (1, 3):
                for strategy in STRATEGIES:
                    crowd.leave(f"{strategy}/{count}")
            wait_until_whole(crews, crowd, 1)
        finally:
            for crew in crews.values():
                assert crew.stop() == 0


def wait_until_whole(crews: dict[str, Crew], crowd: Crowd, members: int) -> None:
    for strategy, crew in crews.items():
        wait_until(
            lambda crew=crew, strategy=strategy: is_whole(split([crew], crowd, f"{strategy}/"), members),  # type: ignore[misc]
            FAR_S, f"a whole split of {strategy} among {members}",
        )  # fmt: skip
