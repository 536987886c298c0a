"""Messages that end their worker, or never end: only they are charged, and they end where RocketMQ users look for them.

Each test sends numbers, one of which is poison (poison_handlers.py), and ends with one verdict: every other number is in the
table exactly once, the poison is where it belongs, and no other message was charged with a death.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from harness import WAIT_S, Broker, Crew, duplicate_keys, send_numbers, stored_messages, wait_until
from poison_handlers import POISON

MESSAGES = 2_000
TOPIC = "numbers"
CrewMaker = Callable[..., Crew]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    found = Broker(tmp_path_factory.mktemp("broker"))
    yield found
    found.stop()


@pytest.fixture
def start(tmp_path: Path, broker: Broker, request: pytest.FixtureRequest) -> Iterator[CrewMaker]:
    """Starts a crew with a topic and group of its own."""
    crews: list[Crew] = []

    def make(handler: str, **settings: Any) -> Crew:
        name = f"{handler}-{abs(hash(request.node.name)) % 10**6}"
        crew = Crew(tmp_path, broker, f"poison_handlers:{handler}", f"T-{name}", load=False, group=f"g-{name}",
                    **{"log.format": "json", **settings})  # fmt: skip
        crews.append(crew)
        crew.start()
        return crew

    yield make
    for crew in crews:
        crew.stop()


def events(crew: Crew, name: str) -> list[dict[str, Any]]:
    """Log events of that name of all runs of the crew."""
    found: list[dict[str, Any]] = []
    for path in sorted(crew.folder.glob(f"supervisor-{crew.slot.name}-*.log")):
        lines = (line for line in path.read_text().splitlines() if line.startswith("{") and f'"{name}"' in line)
        found += [entry for entry in map(json.loads, lines) if entry.get("event") == name]
    return found


def verdict(crew: Crew, *, dead: bool) -> None:
    """Everything is finished; all numbers are in the table once, the poison too unless it is a dead letter."""
    wait_until(lambda: crew.lag() == 0 and (not dead or crew.dead_letters() == 1), 2 * WAIT_S, "all messages finished")
    status = crew.status()
    assert status is not None
    assert status["counters"]["invariant_violations"] == 0
    assert crew.stop() == 0
    rows = crew.load()
    numbers = sorted(cast("list[int]", rows.column("number").to_pylist()))
    assert numbers == [number for number in range(MESSAGES) if not dead or number != POISON]
    assert duplicate_keys(rows) == 0
    assert len(events(crew, "message_dead_lettered")) == int(dead)


def dead_letter(broker: Broker, crew: Crew) -> dict[str, str]:
    """The properties of the group's only dead letter."""
    [message] = stored_messages(broker.name_server, f"%DLQ%{crew.group}")
    assert int(message.body) == POISON
    return dict(message.properties)


@pytest.mark.parametrize(
    ("handler", "cause"),
    [("exits", "exit code 7"), ("segfaults", "SIGSEGV"), ("segfaults_in_a_batch", "SIGSEGV"),
     ("exits_in_a_batch_one_by_one", "exit code 8")],
)  # fmt: skip
def test_a_message_that_ends_its_worker_is_a_dead_letter(
    handler: str, cause: str, start: CrewMaker, broker: Broker
) -> None:
    batch = {"consumer.consume_message_batch_max_size": 16} if "batch" in handler else {}
    crew = start(handler, **batch)
    send_numbers(broker, crew.topic, range(MESSAGES))
    verdict(crew, dead=True)
    deaths = events(crew, "worker_died")
    charged = [death["charged_to"] for death in deaths if "charged_to" in death]
    assert len(charged) == 3, "three deaths are charged"
    assert len(set(charged)) == 1, "all of them to the poison"
    assert len(deaths) <= 3 + 5, "a batch of 16 is halved at most four times"
    assert all(death["cause"] == cause for death in deaths)
    properties = dead_letter(broker, crew)
    assert properties["ROCKETCREW_DEATHS"] == "3"
    assert properties["ROCKETCREW_CAUSE"] == cause
    assert properties["RETRY_TOPIC"] == crew.topic
    assert int(properties["ROCKETCREW_RSS_PEAK_BYTES"]) > 1 << 20
    if cause == "SIGSEGV":
        assert "follow_a_wild_pointer" in properties["ROCKETCREW_STACK"]
        assert "follow_a_wild_pointer" in deaths[-1]["stack"]
