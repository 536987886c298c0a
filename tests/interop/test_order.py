"""Order on genuine servers: with a Java orderly member that comes and goes, and at the limit of attempts."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "system"))

from harness import Crew, send_numbers, wait_until
from ordered_trace import by_queue, check_order, lines_of, traced
from servers import CLIENT_OPTIONS, VERSIONS, Java, Servers

ON_BOTH = pytest.mark.parametrize("servers", VERSIONS, ids=str, indirect=True, scope="session")
QUEUES = 4
FAST = "-Drocketmq.client.rebalance.waitInterval=1000"


def ended(trace: Path, pid: int | None = None) -> set[int]:
    """Numbers that were handled, by that process or by anybody."""
    return {line.number for line in lines_of(trace) if line.what == "END" and pid in (None, line.pid)}


@ON_BOTH
def test_a_java_orderly_member_comes_and_goes(
    servers: Servers, tmp_path: Path, java_classes: Callable[[str], str]
) -> None:
    topic, group, numbers, parts = "in-order", "in-order-group", range(1200), 3
    servers.create_topic(topic, QUEUES)
    with traced(tmp_path / "trace") as trace:
        crew = Crew(tmp_path, servers, "ordered_handlers:by_queue", topic, load=False, group=group)
        crew.start()
        java: Java | None = None
        try:
            send_numbers(servers, topic, range(numbers.stop // parts))
            wait_until(lambda: len(ended(trace)) > 50, what="ours began")
            words = ["OrderedMember", servers.name_server, group, topic, str(trace)]
            java = Java("ordered-member", tmp_path, java_classes(servers.kind.version), words, (*CLIENT_OPTIONS, FAST))
            member = java
            member.wait_for(lambda: "STARTED" in member.lines(), "start")
            wait_until(lambda: crew.lag() == 0, what="the first part")
            send_numbers(servers, topic, range(numbers.stop // parts, 2 * numbers.stop // parts))
            wait_until(lambda: len(ended(trace, member.pid)) > 50, what="Java's part")
            send_numbers(servers, topic, range(2 * numbers.stop // parts, numbers.stop))
            member.finish()
            wait_until(lambda: ended(trace) == set(numbers) and crew.lag() == 0, what="all numbers")
            check_order(lines_of(trace), by_queue)
            assert crew.stop() == 0
        finally:
            if java is not None:
                java.stop()
            if crew.status() is not None:
                crew.kill()


@ON_BOTH
def test_a_message_at_its_limit_goes_to_the_dead_letters_and_the_queue_goes_on(
    servers: Servers, tmp_path: Path
) -> None:
    topic, group, numbers = "stubborn", "stubborn-group", range(60)
    servers.create_topic(topic, QUEUES)
    poor = {number for number in numbers if number % 10 == 3}
    with traced(tmp_path / "trace") as trace:
        crew = Crew(tmp_path, servers, "ordered_handlers:stubborn", topic, load=False, group=group,
                    **{"consumer.max_reconsume_times": 2})  # fmt: skip
        crew.start()
        try:
            send_numbers(servers, topic, numbers)
            wait_until(lambda: crew.dead_letters() == len(poor), what="the dead letters")
            wait_until(lambda: crew.lag() == 0, what="all committed")
            assert crew.stop() == 0
        finally:
            if crew.status() is not None:
                crew.kill()
    lines = lines_of(trace)
    check_order(lines, by_queue, given_up=poor)
    assert ended(trace) == set(numbers) - poor
    assert {
        number: sum(line.what == "FAIL" and line.number == number for line in lines) for number in poor
    } == dict.fromkeys(poor, 3)
