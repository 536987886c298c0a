"""Broadcasting beside Java: a Java broadcaster's offsets are taken over by ours and back; every member gets everything."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "system"))

from crowd import crowd_of
from harness import Crew, send_numbers, wait_until
from servers import VERSIONS, Servers

from rocketcrew.cli.watch import Watch
from rocketcrew.supervisor.member.local_offsets import LocalOffsets

ON_BOTH = pytest.mark.parametrize("servers", VERSIONS, ids=str, indirect=True, scope="session")
JavaClasses = Callable[[str], str]
QUEUES = 4
FAR_S = 240.0


def broadcaster(folder: Path, servers: Servers, topic: str, group: str, slot: int = 0, **settings: object) -> Crew:
    crew = Crew(folder, servers, "numbers_handler:number", topic, load=False, group=group, slot=slot,
                **{"consumer.message_model": "BROADCASTING", "consumer.local_offset_store_dir": folder / "offsets",
                   "cluster.client_ip": "127.0.0.1", "workers.count": 1, **settings})  # fmt: skip
    crew.start()
    return crew


def finished(crew: Crew) -> int:
    return crew.counter("done_messages") + crew.counter("dropped_messages")


@ON_BOTH
def test_offsets_are_taken_over_from_java_and_back(servers: Servers, tmp_path: Path, java_classes: JavaClasses) -> None:
    topic = group = "broadcast"
    servers.create_topic(topic, QUEUES)
    file = tmp_path / "offsets" / "127.0.0.1@radio" / group / "offsets.json"
    send_numbers(servers, topic, range(100))
    with crowd_of(tmp_path, java_classes(servers.kind.version), servers.name_server, tmp_path / "offsets") as crowd:
        crowd.join("java", group, topic, model="BROADCASTING", instance="radio")
        wait_until(lambda: len(crowd.done("java")) >= 100, FAR_S, "all for Java")
        crowd.leave("java")  # it stores its offsets then
        assert sum(LocalOffsets(file).table.values()) == 100
        send_numbers(servers, topic, range(960, 1060))
        crew = broadcaster(tmp_path, servers, topic, group, **{"cluster.instance_name": "radio"})
        wait_until(lambda: finished(crew) >= 100, FAR_S, "all for ours")
        status = crew.status()
        assert crew.stop() == 0
        assert status is not None
        # Two of its numbers fail at first and one always; nobody retries them.
        assert status["counters"]["dropped_messages"] == 3
        assert status["counters"]["sent_back_messages"] == 0
        assert sum(LocalOffsets(file).table.values()) == 200
        send_numbers(servers, topic, range(2000, 2050))
        crowd.join("again", group, topic, model="BROADCASTING", instance="radio")
        wait_until(lambda: len(crowd.done("again")) >= 50, FAR_S, "the rest for Java")
        crowd.leave("again")
        assert sorted(crowd.done("again")) == list(range(2000, 2050))
    rows = crew.staged_rows()
    assert sorted(rows.column("number").to_pylist()) == sorted({*range(960, 1060)} - {999, 1007, 1057})
    assert set(rows.column("_group").to_pylist()) == {f"{group}@127.0.0.1@radio"}
    with Watch(servers.name_server) as watch:
        assert watch.stored(group, f"%RETRY%{group}") == 0


@ON_BOTH
def test_every_member_gets_everything(servers: Servers, tmp_path: Path, java_classes: JavaClasses) -> None:
    topic = group = "everybody"
    servers.create_topic(topic, QUEUES)
    send_numbers(servers, topic, range(100, 150))
    crews = [
        broadcaster(tmp_path, servers, topic, group, slot, **{"cluster.instance_name": f"b{slot}"}) for slot in (0, 1)
    ]
    try:
        with crowd_of(tmp_path, java_classes(servers.kind.version), servers.name_server, tmp_path / "offsets") as crowd:
            crowd.join("java", group, topic, model="BROADCASTING")
            wait_until(lambda: len(crowd.done("java")) >= 50, FAR_S, "all for Java")
            wait_until(lambda: all(finished(crew) >= 50 for crew in crews), FAR_S, "all for ours")
    finally:
        codes = [crew.stop() for crew in crews]
    assert codes == [0, 0]
    for crew in crews:
        rows = crew.staged_rows()
        assert len(rows) == 49  # 107 fails
        assert set(rows.column("_group").to_pylist()) == {f"{group}@127.0.0.1@b{crew.slot.name}"}
