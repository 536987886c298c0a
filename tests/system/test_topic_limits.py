"""`workers.topic_concurrency`: so many calls at once on a topic, over all workers, its retries too; others pass them."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from harness import Broker, Crew, duplicate_keys, send_numbers, wait_until
from ordered_trace import Line, lines_of, traced

LIMITED, FREE = "limited", "free"
NUMBERS = range(200)
FREE_NUMBERS = range(1000, 1200)


def at_once_max(lines: list[Line]) -> int:
    """How many messages of the limited topic were in hand together."""
    in_hand = most = 0
    for line in lines:
        if line.number in NUMBERS:
            in_hand += 1 if line.what == "BEGIN" else -1
            most = max(most, in_hand)
    return most


def ended(trace: Path) -> set[int]:
    return {line.number for line in lines_of(trace) if line.what == "END"}


def test_one_call_at_a_time_on_a_topic_while_others_pass(tmp_path: Path, broker: Broker) -> None:
    """The first message of the limited topic waits until all of the other topic are done, which three more workers do."""
    with traced(tmp_path / "trace") as trace:
        settings = {"workers.count": 4, "workers.topic_concurrency": f"{LIMITED}=1"}
        crew = Crew(tmp_path, broker, "ordered_handlers:waits_at_one", LIMITED, load=False, **settings)
        crew.flags = ["--topic", FREE]
        crew.start()
        send_numbers(broker, LIMITED, NUMBERS)
        wait_until(lambda: any(line.number == 0 for line in lines_of(trace)), what="the message that waits")
        send_numbers(broker, FREE, FREE_NUMBERS)
        wait_until(lambda: ended(trace) >= set(FREE_NUMBERS), what="the other topic")
        assert not set(NUMBERS) <= ended(trace)
        Path(f"{trace}.go").touch()
        wait_until(lambda: ended(trace) == {*NUMBERS, *FREE_NUMBERS} and crew.lag() == 0, what="all messages")
        assert crew.counter("invariant_violations") == 0
        assert crew.stop() == 0
        lines = lines_of(trace)
    assert at_once_max(lines) == 1
    assert [line.what for line in lines if line.number == 7] == ["BEGIN", "FAIL", "BEGIN", "END"]
    rows = crew.staged_rows()
    assert sorted(rows.column("number").to_pylist()) == [*NUMBERS, *FREE_NUMBERS]
    assert duplicate_keys(rows) == 0
