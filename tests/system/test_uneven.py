"""One message in 200 takes long: no other one waits for it while a worker idles."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from harness import WAIT_S, Broker, Crew, duplicate_keys, say, send_numbers, wait_until
from uneven_handlers import SLOW_EVERY

TOPIC = "numbers"
WORKERS = 4
SLOW = WORKERS - 1
WARM = 1000
"""Quick messages before, so that chunks are as large as they become."""
MESSAGES = SLOW * SLOW_EVERY
QUICK = WARM + MESSAGES - SLOW


@pytest.mark.parametrize("transport", ["slab", "stream"])
def test_slow_messages_hold_up_nobody(
    tmp_path: Path, broker: Broker, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All workers but one have a message that ends only when every other one ran, so these must all reach the last worker."""
    monkeypatch.setenv("UNEVEN", str(tmp_path))
    monkeypatch.setenv("UNEVEN_QUICK", str(QUICK))
    settings = {"workers.count": WORKERS, "workers.transport": transport}
    crew = Crew(tmp_path, broker, "uneven_handlers:uneven", TOPIC, load=False, **settings)
    crew.start()
    send_numbers(broker, TOPIC, range(-WARM, 0))
    wait_until(lambda: crew.lag() == 0, WAIT_S, "the quick messages")
    send_numbers(broker, TOPIC, range(MESSAGES))
    wait_until(lambda: crew.lag() == 0, 2 * WAIT_S, "all messages")
    slow = (tmp_path / "slow").read_text().splitlines()
    assert sorted(slow, key=lambda line: int(line.split()[0])) == [f"{n * SLOW_EVERY} {QUICK}" for n in range(SLOW)]
    assert crew.counter("reclaimed_messages") > 0
    assert crew.counter("invariant_violations") == 0
    assert crew.stop() == 0
    rows = crew.staged_rows()
    assert duplicate_keys(rows) == 0
    assert sorted(rows.column("number").to_pylist()) == list(range(-WARM, MESSAGES))
    say(f"uneven handlers, {transport}: {MESSAGES} messages, none waited for a slow one")
