"""A broker that is killed and comes back, under ordered consumers and with messages that must be sent back to it.

Small on both versions. Other faults: test_faults.py.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "system"))

from fault_servers import Site
from harness import WAIT_S, Crew, duplicate_keys, send_numbers, wait_until
from load import Load
from ordered_trace import Lane, by_key, by_queue, check_order, lines_of, traced

ON_BOTH = pytest.mark.parametrize("site", ["5.5.0", "4.9.7"], indirect=True, scope="session")
A = "broker-a"
QUEUES = 4
PER_SECOND = 250
LANES: dict[str, Lane] = {"by_queue": by_queue, "by_key": by_key}


@contextmanager
def crew_of(site: Site, folder: Path, handler: str, topic: str, **settings: object) -> Iterator[Crew]:
    """A crew that runs, of a topic of its own on a site that is whole."""
    crew = Crew(folder, site, f"ordered_handlers:{handler}", topic, load=False, group=f"{topic}-group", **settings)
    crew.start()
    try:
        yield crew
        assert crew.counter("invariant_violations") == 0
        assert crew.stop() == 0
    finally:
        if crew.status() is not None:
            crew.kill()


@ON_BOTH
@pytest.mark.parametrize("handler", LANES)
def test_order_through_a_restart_of_the_broker(site: Site, tmp_path: Path, handler: str) -> None:
    """Killed under load, it forgets locks and offsets that it had not saved: order holds in each queue, nothing is lost."""
    topic, numbers = f"restarted-{handler}", range(1000)
    site.make_whole(A)
    site.create_topic(topic, QUEUES)
    with traced(tmp_path / "trace") as trace, crew_of(site, tmp_path, handler, topic) as crew:
        with Load(site.name_server, topic, numbers, PER_SECOND) as load:
            wait_until(lambda: crew.counter("done_messages") >= len(numbers) // 5, WAIT_S, "the first fifth")
            site.broker(A).kill()
            site.broker(A).start()
            site.wait_until_known(A)
            load.finish(2 * WAIT_S)
        wait_until(lambda: handled(trace) == set(numbers) and crew.lag() == 0, 2 * WAIT_S, "all numbers")
    check_order(lines_of(trace), LANES[handler])
    rows = crew.load()
    assert set(rows.column("number").to_pylist()) == set(numbers)
    assert duplicate_keys(rows) == 0


def handled(trace: Path) -> set[int]:
    return {line.number for line in lines_of(trace) if line.what == "END"}


def places_of(trace: Path, number: int) -> set[int]:
    """Offsets at which it was begun."""
    return {line.offset for line in lines_of(trace) if line.number == number}


@ON_BOTH
def test_what_cannot_be_sent_back_is_not_passed(site: Site, tmp_path: Path) -> None:
    """The broker is away when a message fails: it stays, runs again here, and no offset passes it before it is done."""
    topic, numbers = "away", range(20)
    site.make_whole(A)
    site.create_topic(topic, 1)
    with traced(tmp_path / "trace") as trace, crew_of(site, tmp_path, "fails_when_told", topic) as crew:
        send_numbers(site, topic, numbers)
        wait_until(lambda: handled(trace) == set(numbers) - {5}, WAIT_S, "all but one")
        wait_until(lambda: len(places_of(trace, 5)) == 1, WAIT_S, "the begin of that one")
        [offset] = places_of(trace, 5)
        site.broker(A).kill()
        Path(f"{trace}.go").touch()
        wait_until(lambda: crew.counter("send_back_refused") >= 2, WAIT_S, "send-backs that nobody takes")
        status = crew.status()
        assert status is not None
        [committed] = [queue["committed"] for queue in status["queues"] if queue["topic"] == topic]
        assert committed <= offset
        site.broker(A).start()
        site.wait_until_known(A)
        wait_until(lambda: handled(trace) == set(numbers) and crew.lag() == 0, 2 * WAIT_S, "all numbers")
        assert crew.dead_letters() == 0
    rows = crew.load()
    attempts = dict(zip(rows.column("number").to_pylist(), rows.column("attempt").to_pylist(), strict=True))
    assert attempts == dict.fromkeys(numbers, 0) | {5: 3}
    assert duplicate_keys(rows) == 0
