"""Messages that end their worker, or never end, on genuine servers: where they go, and what RocketMQ's own tools show."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "system"))

from harness import WAIT_S, Crew, send_numbers, stored_messages, wait_until
from poison_handlers import POISON
from reading import wait_until_readable
from servers import VERSIONS, Servers

ON_BOTH = pytest.mark.parametrize("servers", VERSIONS, ids=str, indirect=True, scope="session")
NUMBERS = range(POISON - 50, POISON + 50)
TIME_OUT_LEVEL = "3"

CrewMaker = Callable[[str], Crew]


@pytest.fixture
def new_crew(tmp_path: Path, servers: Servers, request: pytest.FixtureRequest) -> Iterator[CrewMaker]:
    """A crew of this test's own topic and group, stopped at its end."""
    name = request.node.name.partition("[")[0]
    made: list[Crew] = []

    def make(handler: str) -> Crew:
        topic = f"{name}-{handler}"
        servers.create_topic(topic, 2)
        crew = Crew(tmp_path, servers, f"poison_handlers:{handler}", topic, load=False, group=f"{topic}-group")
        crew.start()
        made.append(crew)
        return crew

    yield make
    for crew in made:
        crew.stop()


@ON_BOTH
def test_what_ends_its_worker_is_a_dead_letter_that_mqadmin_explains(servers: Servers, new_crew: CrewMaker) -> None:
    crew = new_crew("segfaults")
    send_numbers(servers, crew.topic, NUMBERS)
    wait_until(lambda: crew.counter("dead_letter_messages") == 1, WAIT_S, "the dead letter")
    wait_until(lambda: crew.lag() == 0, WAIT_S, "all messages finished")
    assert sorted(crew.staged_rows().column("number").to_pylist()) == [n for n in NUMBERS if n != POISON]
    dead = f"%DLQ%{crew.group}"
    wait_until_readable(servers.name_server, dead, 1)
    [message] = stored_messages(servers.name_server, dead)
    assert int(message.body) == POISON
    assert message.reconsume_times == 1
    shown = "\n".join(servers.admin(
        "queryMsgByOffset", "-t", dead, "-b", "broker-a", "-i", "0", "-o", "0",
    ))  # fmt: skip
    for text in (f"RETRY_TOPIC={crew.topic}", "ROCKETCREW_DEATHS=3", "ROCKETCREW_CAUSE=SIGSEGV", "follow_a_wild_pointer",
                 "ORIGIN_MESSAGE_ID=", f"KEYS=n{POISON}"):  # fmt: skip
        assert text in shown, f"mqadmin does not show {text}:\n{shown}"


@ON_BOTH
@pytest.mark.parametrize(("handler", "killed"), [("endless_c_loop", 1), ("endless_coroutine", 0)])
def test_what_is_over_its_time_limit_is_stopped_and_sent_back(
    servers: Servers, new_crew: CrewMaker, handler: str, killed: int
) -> None:
    """As Java's consume timeout sends it back, at level 3; but the handler does not run on beside its retry. A coroutine is
    cancelled, and its worker goes on."""
    crew = new_crew(handler)
    send_numbers(servers, crew.topic, NUMBERS)
    wait_until(lambda: crew.counter("done_messages") == len(NUMBERS), WAIT_S, "all messages, one at its second attempt")
    wait_until(lambda: crew.lag() == 0, WAIT_S, "all offsets")
    assert crew.counter("timed_out_messages") == crew.counter("worker_deaths") == killed
    [retried] = stored_messages(servers.name_server, f"%RETRY%{crew.group}")
    assert int(retried.body) == POISON
    assert (retried.reconsume_times, retried.properties["DELAY"]) == (1, TIME_OUT_LEVEL)
    assert crew.dead_letters() == 0
