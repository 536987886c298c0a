"""From store time to reported outcome: which bucket, at what cost, and each record once, also where its worker dies."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import pytest

from rocketcrew.supervisor.core import actions as act
from rocketcrew.supervisor.core import events as ev
from rocketcrew.supervisor.core.stats import LATENCY_S, Latencies

from .conftest import TOPIC, Bench

WALL_MS = 1_700_000_000_000
FRESH, SECONDS_OLD, HOURS_OLD = WALL_MS - 4, WALL_MS - 2_000, WALL_MS - 7_200_000


class Stored:
    """Store times of records that are reported together, and how often one was read."""

    def __init__(self, times: Sequence[int]) -> None:
        self._times = times
        self.reads = 0

    def __call__(self, index: int) -> int:
        self.reads += 1
        return self._times[index]


def counted(times: Sequence[int]) -> list[int]:
    """By hand, record by record."""
    below = [sum(max(0, WALL_MS - at) <= bound * 1000 for at in times) for bound in LATENCY_S]
    return [after - before for before, after in zip([0, *below], [*below, len(times)], strict=True)]


@pytest.mark.parametrize(
    "times",
    [
        pytest.param([FRESH], id="one"),
        pytest.param([WALL_MS - round(bound * 1000) for bound in reversed(LATENCY_S)], id="each on its bound"),
        pytest.param([WALL_MS - round(bound * 1000) - 1 for bound in reversed(LATENCY_S)], id="each just above"),
        pytest.param([HOURS_OLD] * 5 + [SECONDS_OLD] * 3 + [FRESH] * 2, id="three ages"),
        pytest.param([SECONDS_OLD, WALL_MS + 900], id="stored in our future"),
        pytest.param([FRESH, HOURS_OLD, SECONDS_OLD], id="the clock was set back"),
    ],
)
def test_each_record_is_in_its_bucket(times: list[int]) -> None:
    found = Latencies()
    found.add(WALL_MS, len(times), Stored(times))
    assert found.counts == counted(times)


def test_a_report_costs_two_reads_whatever_it_has_and_a_bisection_for_each_bucket_between() -> None:
    alike = Stored([SECONDS_OLD] * 4096)
    Latencies().add(WALL_MS, 4096, alike)
    assert alike.reads == 2
    spread = Stored([WALL_MS - 10_000_000 + 2_441 * n for n in range(4096)])
    Latencies().add(WALL_MS, 4096, spread)
    assert 2 < spread.reads <= 2 + 13 * len(LATENCY_S)


def test_the_sum_takes_the_mean_of_the_first_and_the_last() -> None:
    found = Latencies()
    found.add(WALL_MS, 3, Stored([WALL_MS - 30, WALL_MS - 20, WALL_MS - 10]))
    assert found.sum_ms == 60


def latencies(bench: Bench) -> dict[float, int]:
    """Records whose latency is not above these bounds."""
    counts = bench.core.state.stats.topics[TOPIC].latencies.counts
    below = dict(zip([*LATENCY_S, float("inf")], accumulate(counts), strict=True))
    return {bound: below[bound] for bound in (0.01, 5.0, float("inf"))}


def test_failed_or_not_each_record_counts_when_it_is_reported(make: type[Bench]) -> None:
    bench = make(chunk_messages_max=8)
    bench.core.state.sizer.tail_us = 200.0
    (handle,) = bench.open(0)
    bench.worker("w1")
    bench.found(handle, range(4), stored_ms=[HOURS_OLD, SECONDS_OLD, SECONDS_OLD, FRESH])
    (chunk,) = bench.dispatched()
    bench.done(chunk, count=2, wall_ms=WALL_MS, failures=[(0, 0, "no")])
    assert latencies(bench) == {0.01: 0, 5.0: 1, float("inf"): 2}
    bench.done(chunk, wall_ms=WALL_MS)
    assert latencies(bench) == {0.01: 1, 5.0: 3, float("inf"): 4}


def test_a_record_that_runs_again_here_counts_once(make: type[Bench]) -> None:
    bench = make(send_back_retry_ms=5_000)
    (handle,) = bench.open(0)
    bench.worker("w1")
    bench.found(handle, [0], stored_ms=[FRESH])
    bench.done(bench.dispatched()[0], wall_ms=WALL_MS, failures=[(0, 0, "no")])
    back = bench.one(act.SendBack)
    bench.core.handle(ev.SentBack(handle, back.chunk_id, back.index, accepted=False), bench.now)
    bench.pass_ms(6_000)
    bench.done(bench.dispatched()[0], wall_ms=WALL_MS + 6_000)
    assert bench.counters.done_messages == 1
    assert latencies(bench) == {0.01: 1, 5.0: 1, float("inf"): 1}


def test_what_a_dead_worker_wrote_counts_once_and_the_rest_when_another_has_run_it(make: type[Bench]) -> None:
    bench = make(chunk_messages_max=8)
    bench.core.state.sizer.tail_us = 200.0
    (handle,) = bench.open(0)
    bench.worker("w1")
    bench.found(handle, range(6), stored_ms=[HOURS_OLD] * 2 + [SECONDS_OLD] * 2 + [FRESH] * 2)
    (chunk,) = bench.dispatched()
    bench.done(chunk, count=2, seq=1, wall_ms=WALL_MS)
    bench.core.handle(ev.WorkerDied("w1"), bench.now)
    bench.core.handle(ev.Salvaged("w1", 1, [(bench.queue(), [(2, 3), (4, 5)])]), bench.now)
    bench.core.handle(ev.SalvageComplete("w1", WALL_MS), bench.now)
    assert latencies(bench) == {0.01: 1, 5.0: 2, float("inf"): 4}
    bench.worker("w2")
    for again in bench.dispatched():
        bench.done(again, wall_ms=WALL_MS)
    assert latencies(bench) == {0.01: 2, 5.0: 4, float("inf"): 6}
    assert bench.counters.done_messages == 6


def test_what_is_read_off_a_cell_is_not_counted_again_when_the_worker_reports_it(make: type[Bench]) -> None:
    bench = make(chunk_messages_max=8)
    bench.core.state.sizer.tail_us = 200.0
    (handle,) = bench.open(0)
    bench.worker("w1")
    bench.found(handle, range(4), stored_ms=[FRESH] * 4)
    (chunk,) = bench.dispatched()
    bench.core.handle(ev.CellRead("w1", chunk.chunk_id, 3, None, WALL_MS), bench.now)
    assert latencies(bench) == {0.01: 3, 5.0: 3, float("inf"): 3}
    bench.core.handle(ev.Reported("w1", chunk.chunk_id, 0, 4, 0, 400, 100, 0, (), WALL_MS), bench.now)
    assert latencies(bench) == {0.01: 4, 5.0: 4, float("inf"): 4}
