"""1 message in 200 takes 2 s, the rest 0.1 ms: how long does a message wait while a worker idles?

Numbered messages at a steady rate through the embedded broker, settings as they are by default, a few workers. Handlers note
when each call began and ended. A message waits from its sending to the begin of its call; what counts is the part of that
in which at least one worker had nothing in hand. To reach: at most 100 ms, for every message.

    python bench/uneven.py [--workers 4] [--rate 200] [--seconds 30]
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from measure import report

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "system"))

from harness import WAIT_S, Broker, Crew, wait_until  # noqa: E402

from rocketcrew.client.outgoing import OutgoingMessage  # noqa: E402
from rocketcrew.client.sync import SyncProducer  # noqa: E402

TOPIC = "uneven"
LIMIT_MS = 100.0
TICK_S = 0.02
NS_PER_MS = 1e6


class Call(NamedTuple):
    """One call of the handler, in ns of the monotonic clock."""

    pid: int
    number: int
    sent: int
    began: int
    ended: int


def calls_of(trace: Path) -> list[Call]:
    """What the handlers noted."""
    return [Call(*map(int, line.split())) for line in trace.read_text().splitlines()]


def idle_times(calls: list[Call]) -> list[tuple[int, int]]:
    """Stretches between the first and the last begin in which some worker had nothing in hand, joined and in order."""
    first, last = min(call.began for call in calls), max(call.began for call in calls)
    by_worker: dict[int, list[Call]] = defaultdict(list)
    for call in calls:
        by_worker[call.pid].append(call)
    gaps: list[tuple[int, int]] = []
    for those in by_worker.values():
        at = first
        for call in sorted(those, key=lambda call: call.began):
            gaps.append((at, call.began))
            at = call.ended
        gaps.append((at, last))
    joined: list[tuple[int, int]] = []
    for start, end in sorted(gap for gap in gaps if gap[0] < gap[1]):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        else:
            joined.append((start, end))
    return joined


def waits_ms(calls: list[Call]) -> list[tuple[float, float]]:
    """(wait, the part of it in which a worker idled) of each message that was sent once all workers were known, in ms."""
    idle = idle_times(calls)
    found: list[tuple[float, float]] = []
    for call in calls:
        beside = sum(max(0, min(end, call.began) - max(start, call.sent)) for start, end in idle)
        found.append(((call.began - call.sent) / NS_PER_MS, beside / NS_PER_MS))
    return found


def send(broker: Broker, rate: int, seconds: float) -> int:
    """Send at a steady rate; how many."""
    begin, sent = time.monotonic(), 0
    with SyncProducer(broker.name_server) as producer:
        while sent < rate * seconds:
            due = min(int((time.monotonic() - begin) * rate), int(rate * seconds))
            producer.send_many(
                OutgoingMessage(TOPIC, f"{number} {time.monotonic_ns()}".encode()) for number in range(sent, due)
            )
            sent = due
            time.sleep(TICK_S)
    return sent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--rate", type=int, default=200, help="messages a second")
    parser.add_argument("--seconds", type=float, default=30.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["UNEVEN"] = name
        broker = Broker(folder)
        crew = Crew(
            folder, broker, "uneven_handlers:one_in_200", TOPIC, load=False, **{"workers.count": options.workers}
        )
        try:
            crew.start()
            count = send(broker, options.rate, options.seconds)
            wait_until(lambda: crew.counter("done_messages") >= count, 5 * WAIT_S, "all messages")
            taken_back = crew.counter("reclaimed_messages")
        finally:
            crew.stop()
            broker.stop()
        calls = calls_of(folder / "calls")
    waits = waits_ms(calls)
    beside = sorted(idle for _, idle in waits)
    over = sum(idle > LIMIT_MS for idle in beside)
    report("uneven", [{
        "messages": len(calls), "workers": options.workers, "rate": options.rate,
        "wait_ms_max": max(wait for wait, _ in waits), "wait_while_idle_ms_p50": beside[len(beside) // 2],
        "wait_while_idle_ms_p99": beside[int(len(beside) * 0.99)], "wait_while_idle_ms_max": beside[-1],
        "over_100_ms": over, "taken_back": taken_back,
    }])  # fmt: skip
    print(f"VERDICT {'BAD' if over else 'good'}: {over} of {len(calls)} messages waited over {LIMIT_MS:.0f} ms while a worker"
          f" idled, at most {beside[-1]:.0f} ms; load average {os.getloadavg()[0]:.1f}")  # fmt: skip
    return int(bool(over))


if __name__ == "__main__":
    sys.exit(main())
