"""What ended before a long call is reported during it, whatever the handler does there: a kill -9 does not run it again."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from harness import WAIT_S, Broker, Crew, one_queue, patient_producer, say, wait_for_end, wait_until
from long_handlers import LONG

from rocketcrew.client.outgoing import OutgoingMessage
from rocketcrew.supervisor.journal_file import read_journal

TOPIC = "long"
WARM = 2_000
"""Quick messages before, so that chunks are as large as they become."""
QUICK = 40


def send(broker: Broker, bodies: list[bytes]) -> None:
    with patient_producer(broker) as producer:
        producer.send_many(OutgoingMessage(TOPIC, body) for body in bodies)


def journalled(crew: Crew) -> int:
    """Up to which offset of the queue all is finished and durable, by the journal on the disk."""
    state = read_journal(crew.slot / "journal")
    found = [log for mq, log in state.queues.items() if mq.topic == TOPIC]
    if not found:
        return 0
    ends = [end for start, end in found[0].durable.pairs() if start <= max(found[0].committed, found[0].start)]
    return max([found[0].committed, *ends])


@pytest.mark.parametrize(
    ("kind", "how"),
    [("without_rows", "sleep"), ("without_rows", "c"), ("with_rows", "sleep"), ("with_rows", "python")],
)
def test_what_ended_before_a_long_call_is_durable_during_it(
    tmp_path: Path, broker: Broker, kind: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LONG_CALLS", str(tmp_path))
    monkeypatch.setenv("LONG_HOW", how)
    one_queue(broker, TOPIC)
    settings: dict[str, Any] = {"workers.count": 1}
    crew = Crew(tmp_path, broker, f"long_handlers:{kind}", TOPIC, load=False, **settings)
    crew.start()
    send(broker, [b"%d" % number for number in range(WARM)])
    wait_until(lambda: crew.lag() == 0, WAIT_S, "the first messages")
    send(broker, [*(b"%d" % number for number in range(WARM, WARM + QUICK)), LONG])
    wait_until((tmp_path / "entered").exists, WAIT_S, "the long call")
    wait_until(lambda: journalled(crew) == WARM + QUICK, WAIT_S, "the messages before the long call")
    assert not (tmp_path / "left").exists(), "it was reported after the call, not during it"
    workers = crew.workers()
    crew.kill()
    wait_for_end(workers, "the workers' end")
    (tmp_path / "entered").unlink()
    (tmp_path / "release").touch()
    monkeypatch.setenv("LONG_HOW", "sleep")
    crew.start()
    wait_until(lambda: crew.lag() == 0, WAIT_S, "the long message")
    assert crew.counter("done_messages") <= 1, "what had ended before the kill ran again"
    assert crew.stop() == 0
    say(f"{kind}, {how}: {QUICK} messages that ended before a long call were durable during it")
