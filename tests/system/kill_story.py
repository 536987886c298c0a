"""A staging folder that fills while its loader is killed, again and again: at named points, and at random moments.

Between two kills workers seal more: new records, records that come a second time with other rows, failures (noted as sent
back, later handled under the retry topic) and records without rows. What is settled is sealed with each round. In the end the
loader may finish, and the table is compared with what was sealed, key by key.

Kills are of loader and JVM together. A named point is where the loader kills itself (`crash_point`); its JVM has a
parent-death signal. A random one is SIGKILL to the process group of both, somewhere between the start and the end.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from deliveries import rows as delivered_rows
from loaders import COLUMNS, WAIT_S, Loaders
from segment_helpers import Record, expected, settle

from rocketcrew.durable.facts import facts_to_text
from rocketcrew.durable.intervals import IntervalSet, OffsetSet, QueueKey
from rocketcrew.durable.outcomes import NO_ROWS, SENT_BACK, Outcomes
from rocketcrew.spark.loader import POINTS

TARGETS = ("parquet", "pyarrow", "delta", "deltalake", "foreach", "json", "naive")
"""`json` is one of the formats of `df.write`, where only *at least once* is promised. `naive` appends and remembers
nothing: the control, which must come out wrong."""
EXACT = ("parquet", "pyarrow", "delta", "deltalake", "foreach")
WITHOUT_JVM = ("pyarrow", "deltalake", "naive")
QUEUES = 3
TOPIC, RETRY_TOPIC = "orders", "%RETRY%g"
SEGMENTS_A_ROUND = 4
FRESH_A_SEGMENT = 5
FIRST_JOB_S = 6.0
POLL_S = 0.01
PATHS = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parent.parent / "unit" / "spark")])
"""Where the loader process finds the function of deliveries.py."""


@dataclass
class Verdict:
    """What came of a story. `foreign`: rows that are not those of the first run of their record; `repeated`: rows beyond
    the first of their key; `wrong`: whatever else must not be."""

    target: str
    kills: Counter[str] = field(default_factory=Counter[str])
    batches: int = 0
    segments: int = 0
    records: int = 0
    again: int = 0
    retries: int = 0
    rows: int = 0
    missing: int = 0
    foreign: int = 0
    repeated: int = 0
    wrong: list[str] = field(default_factory=list[str])

    @property
    def exact(self) -> bool:
        """Every row once, and no other."""
        return not (self.missing or self.foreign or self.repeated or self.wrong)

    @property
    def good(self) -> bool:
        """As promised for this target; of the control: that it is seen to be wrong."""
        if self.target == "naive":
            return bool(self.repeated)
        return self.exact if self.target in EXACT else not (self.missing or self.foreign or self.wrong)

    @property
    def line(self) -> str:
        """One line for people and for bench/soak.py."""
        kills = sum(self.kills.values())
        named = sum(count for point, count in self.kills.items() if point != "random")
        return (
            f"VERDICT {'good' if self.good else 'BAD'}: loader, {self.target}: {kills} kills ({named} at named points,"
            f" {self.kills['random']} at random), {self.batches} batches of {self.segments} segments, {self.records} records"
            f" ({self.retries} retries), {self.again} delivered again; {self.rows} rows, {self.missing} missing,"
            f" {self.foreign} foreign, {self.repeated} repeated{''.join(f'; {text}' for text in self.wrong)}"
        )


class KillStory:
    """One target under fire. `seed` gives the records and the kills; the moments of random kills are as they come."""

    def __init__(self, folder: Path, target: str, seed: int, delta_jars: str = "") -> None:
        self.loaders = Loaders(folder, "naive" if target == "naive" else "spark")
        self.verdict = Verdict(target)
        self._output = folder / "output"
        self._dice = random.Random(seed)
        self._next = [0] * QUEUES
        self._retries: list[Record] = []
        self._retried = 0
        self._notes = 0
        self._job_s = FIRST_JOB_S
        self._settings: dict[str, object] = {"format": target}
        self._env = {**os.environ, "DELIVERIES": str(self._output), "PYTHONPATH": PATHS}
        if target == "delta":
            self._settings["delta_jars"] = delta_jars
        elif target == "foreach":
            self._settings["function"] = "deliveries:keep"
        elif target == "naive":
            self._settings |= {"format": "parquet", "leave_gaps": True}  # what is loaded looks lost to it

    def run(self, kills: Sequence[str], seconds: float = math.inf) -> Verdict:
        """One kill after the other (names of POINTS, or "random"), none after `seconds`; then to the end, and the verdict."""
        over = time.monotonic() + seconds
        self.seal_round()
        self._finish()  # how long a job takes, for the moments of random kills
        for kill in kills:
            if time.monotonic() > over:
                break
            self.seal_round()
            while not self._killed_at_random() if kill == "random" else not self._killed_at(kill):
                self.seal_round()
            self.verdict.kills[kill] += 1
        self.loaders.seal(*self._retries)
        self._finish()
        self._judge()
        return self.verdict

    def seal_round(self) -> None:
        """What workers seal between two kills, and what the supervisor notes of it."""
        for _ in range(SEGMENTS_A_ROUND):
            records = [self._fresh() for _ in range(FRESH_A_SEGMENT)]
            records += self._again(self._dice.randint(0, 2))
            records += [self._retries.pop(0) for _ in range(min(len(self._retries), self._dice.randint(0, 1)))]
            self._dice.shuffle(records)
            self.loaders.seal(*(record for record in records if record.values))
            self.verdict.segments += 1
        settle(self.loaders.staging, *(("g", TOPIC, "broker-a", queue, 0, top) for queue, top in enumerate(self._next)))

    def _fresh(self) -> Record:
        queue = self._dice.randrange(QUEUES)
        offset = self._next[queue]
        self._next[queue] += 1
        self.verdict.records += 1
        fate = self._dice.random()
        if fate < 0.1:
            self._note(NO_ROWS, queue, offset)
        elif fate < 0.2:
            self._note(SENT_BACK, queue, offset)
            self.verdict.retries += 1
            self._retried += 1
            origin = f"{TOPIC}-broker-a-{queue}-{offset}"
            self._retries.append(Record(self._retried, ["retried"], RETRY_TOPIC, origin=origin, reconsume_times=1))
        else:
            return Record(offset, [f"{offset}.{seq}" for seq in range(self._dice.randint(1, 2))], queue_id=queue)
        return Record(offset, [], queue_id=queue)

    def _again(self, count: int) -> list[Record]:
        """Records that were handled before, with other rows: the first ones count."""
        before = list(self.loaders.records.values())
        found = self._dice.sample(before, min(count, len(before)))
        self.verdict.again += len(found)
        return [Record(one.offset, ["again", "and more"], one.topic, queue_id=one.queue_id) for one in found]

    def _note(self, kind: str, queue: int, offset: int) -> None:
        self._notes += 1
        folder = self.loaders.staging / "outcomes"
        folder.mkdir(parents=True, exist_ok=True)
        records = OffsetSet({QueueKey("g", TOPIC, "broker-a", queue): IntervalSet.from_offsets([offset])})
        draft = folder / f".{self._notes}"
        draft.write_text(facts_to_text(Outcomes.of([(kind, records)])))
        draft.rename(folder / f"{self._notes}.facts")

    def _start(self, **more: object) -> subprocess.Popen[bytes]:
        return self.loaders.start(env=self._env, **{**self._settings, **more})

    def _finish(self) -> None:
        """A run to the end; how long its batch took, from when the writer was ready."""
        process = self._start()
        begun = self._wait_for_work(process)
        assert process.wait(WAIT_S) == 0, self.loaders.log.read_text()
        self._job_s = time.monotonic() - begun

    def _killed_at(self, point: str) -> bool:
        """By itself, in the first or the second batch of a run."""
        second = self._dice.random() < 0.3
        more = {"max_rows": 1, "crash_point": f"{point}:2"} if second else {"crash_point": point}
        process = self._start(**more)
        code = process.wait(WAIT_S)
        assert code in (0, -signal.SIGKILL), self.loaders.log.read_text()
        self._no_jvm_is_left()
        return code != 0

    def _killed_at_random(self) -> bool:
        """Loader and JVM at once; False when they had ended before."""
        early = self._dice.random() < 0.2
        process = self._start(max_rows=self._dice.choice([1, 1_000_000]))
        if not early:
            self._wait_for_work(process)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(self._dice.uniform(0, self._job_s))
        if process.poll() is not None:
            assert process.returncode == 0, self.loaders.log.read_text()
            return False
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(WAIT_S)
        self._no_jvm_is_left()
        return True

    def _wait_for_work(self, process: subprocess.Popen[bytes]) -> float:
        """Until a plan is being written to the table (Spark runs), or there is nothing left; when that was."""
        deadline = time.monotonic() + WAIT_S
        while process.poll() is None:
            status = self.loaders.status()
            ready = status.get("jvm_pid") or self.verdict.target in WITHOUT_JVM
            if status.get("pid") == process.pid and status["state"] == "loading" and ready:
                break
            assert time.monotonic() < deadline, self.loaders.log.read_text()
            time.sleep(POLL_S)
        return time.monotonic()

    def _no_jvm_is_left(self) -> None:
        jvm = int(self.loaders.status().get("jvm_pid") or 0)
        if jvm:
            with contextlib.suppress(psutil.NoSuchProcess):
                psutil.Process(jvm).wait(WAIT_S)

    def _judge(self) -> None:
        found = self._rows()
        wanted = set(expected(self.loaders.records.values()))
        verdict = self.verdict
        verdict.rows = len(found)
        verdict.missing = len(wanted.difference(found))
        verdict.foreign = len(set(found) - wanted)
        verdict.repeated = len(found) - len({row[:-1] for row in found})
        verdict.batches = int(self.loaders.status()["batches_total"])
        if left := [path.name for path in (self.loaders.staging / "ready").iterdir()]:
            verdict.wrong.append(f"{len(left)} segments are left")
        if left := [path.name for path in (self.loaders.staging / "plan").iterdir() if path.name != "lock"]:
            verdict.wrong.append(f"plans are left: {left}")
        if list((self.loaders.staging / "bad").iterdir()):
            verdict.wrong.append("segments were set aside")

    def _rows(self) -> list[tuple[object, ...]]:
        if self.verdict.target == "foreach":
            return delivered_rows(self._output)
        if self.verdict.target == "json":
            return self._json_rows()
        return self.loaders.rows()

    def _json_rows(self) -> list[tuple[object, ...]]:
        """The rows; a row may come again only under the number of the batch that brought it."""
        rows: list[dict[str, Any]] = [
            json.loads(line)
            for path in sorted(self.loaders.table.glob("part-*.json"))
            for line in path.read_text().splitlines()
        ]
        batches: dict[tuple[object, ...], set[int]] = {}
        for row in rows:
            batches.setdefault(tuple(row[name] for name in COLUMNS), set()).add(row["batch_id"])
        if strays := sum(len(found) > 1 for found in batches.values()):
            self.verdict.wrong.append(f"{strays} rows stand under two batch numbers")
        return [tuple(row[name] for name in COLUMNS) for row in rows]


def kills_in_turn(count: int, seed: int) -> list[str]:
    """Half of them at the named points, each as often as the others, half at random; in random order."""
    named = [POINTS[at % len(POINTS)] for at in range((count + 1) // 2)]
    kills = [*named, *["random"] * (count - len(named))]
    random.Random(seed).shuffle(kills)
    return kills
