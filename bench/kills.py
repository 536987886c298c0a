"""kill -9 of random workers at random instants under load: what is lost, who is blamed, how long a place stays empty.

    python bench/kills.py [--kills 1000] [--seed 1] [--pause-ms 50] [--stall-limit-s 1]

Workers nap for a millisecond a message; one of them is killed, and as soon as its successor is ready, after a random pause,
the next. With pauses of a second and more no death comes quickly after another, and the times are those of a worker that
dies by itself: to reach are 50 ms. Verdict: every message in the results once; each death charged to the message in hand or
to nobody; what ran twice were chunks in flight; the times from a kill to a ready successor, and the longest time in which
nothing was finished.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "system"))

from harness import WAIT_S, Broker, Crew, send_numbers, wait_until  # noqa: E402

TOPIC = "kills"
BATCH = 5_000
CHUNK_MESSAGES_MAX = 64
CHUNKS_IN_FLIGHT = 2
POLL_S = 0.002


class Run:
    """One crew under fire."""

    def __init__(self, folder: Path, seed: int, pause_ms: float) -> None:
        self.pause_s = pause_ms / 1000
        self.random = random.Random(seed)
        self.broker = Broker(folder)
        settings: dict[str, Any] = {"log.format": "json", "workers.max_worker_deaths": 100}
        self.crew = Crew(folder, self.broker, "poison_handlers:naps", TOPIC, load=False, **settings)
        self.crew.start()
        self.sent = 0
        self.empty_s: list[float] = []
        self.stall_s = 0.0
        self._done = 0
        self._moved = time.monotonic()

    def feed(self) -> None:
        """More messages when few are left."""
        if self.sent - self._done < BATCH:
            send_numbers(self.broker, TOPIC, range(self.sent, self.sent + BATCH))
            self.sent += BATCH

    def look(self) -> set[int]:
        """The ready workers; on the way, the longest time without progress."""
        status = self.crew.status()
        assert status is not None
        now, done = time.monotonic(), int(status["counters"]["done_messages"])
        if done != self._done or done >= self.sent:
            self._done, self._moved = done, now
        self.stall_s = max(self.stall_s, now - self._moved)
        return {worker["pid"] for worker in status["workers"] if worker["state"] == "ready"}

    def kill_one(self) -> None:
        self.feed()
        pause_until = time.monotonic() + self.random.random() * self.pause_s
        while time.monotonic() < pause_until:
            time.sleep(POLL_S)
        ready = self.look()
        victim = self.random.choice(sorted(ready))
        os.kill(victim, signal.SIGKILL)
        begin = time.monotonic()
        while not (now := self.look()) - ready or len(now) < len(ready):
            assert time.monotonic() - begin < WAIT_S, "no successor"
            time.sleep(POLL_S)
        self.empty_s.append(time.monotonic() - begin)

    def verdict(self, kills: int, stall_limit_s: float) -> bool:
        wait_until(lambda: bool(self.look()) and self.crew.lag() == 0, 5 * WAIT_S, "all messages finished")
        status = self.crew.status()
        assert status is not None
        counters = status["counters"]
        self.crew.stop()
        rows = self.crew.load().column("number").to_pylist()
        log = "".join(path.read_text() for path in self.crew.folder.glob("supervisor-*.log"))
        deaths = [json.loads(line) for line in log.splitlines() if line.startswith("{") and '"worker_died"' in line]
        wrong = [death for death in deaths if death.get("charged_to") != death.get("running")]
        sent = set(range(self.sent))
        lost, twice, foreign = len(sent - set(rows)), len(rows) - len(set(rows)), len(set(rows) - sent)
        again_max = kills * CHUNKS_IN_FLIGHT * CHUNK_MESSAGES_MAX
        good = (not lost and not twice and not foreign and len(deaths) == kills and not wrong and self.stall_s < stall_limit_s
                and counters["redispatched_messages"] <= again_max and not counters["invariant_violations"])  # fmt: skip
        empty_ms = sorted(1000 * seconds for seconds in self.empty_s)
        middle, late = empty_ms[len(empty_ms) // 2], empty_ms[int(len(empty_ms) * 0.99)]
        print(
            f"VERDICT {'good' if good else 'BAD'}: {kills} kills, {self.sent} messages, {lost} lost, {twice} twice in the"
            f" results, {len(deaths)} deaths seen, {counters['charged_deaths']} charged, {len(wrong)} wrongly,"
            f" {counters['redispatched_messages']} messages handed out again, {counters['salvaged_messages']} salvaged;"
            f" successor ready after {middle:.0f} ms (median), {late:.0f} ms (p99; deaths in a row are delayed on purpose),"
            f" longest stall {self.stall_s:.2f} s, load average {os.getloadavg()[0]:.1f}"
        )
        return good

    def close(self) -> None:
        self.crew.stop()
        self.broker.stop()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--pause-ms", type=float, default=50.0, help="at most so long between a successor and the next kill"
    )
    parser.add_argument(
        "--stall-limit-s",
        type=float,
        default=1.0,
        help="longest time in which nothing is finished; more on a busy machine",
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder), options.seed, options.pause_ms)
        try:
            for _ in range(options.kills):
                run.kill_one()
            return int(not run.verdict(options.kills, options.stall_limit_s))
        finally:
            run.close()


if __name__ == "__main__":
    sys.exit(main())
