"""Rates per topic of the group, with Java's windows (client/stat/ConsumerStatsManager.java, common/stats/StatsItem.java).

Five sums per topic: pull RT and messages pulled (answers that found something), consume RT, messages consumed, messages
failed. Every 10 s the sums are noted in the minute's list (7 notes, so 60 s), every 10 minutes in the hour's, every hour in
the day's (25 notes); a rate is the difference between a list's ends. A topic begins with a note of zeros one interval back.
RTs are milliseconds per pull and per call of the handler. Times come in from the caller, seconds of one monotonic clock.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from ...remoting.bodies import ConsumeStatus
from ...remoting.check_points import RETRY_V1, RETRY_V2, real_topic


class Window(Enum):
    """A list of notes: its name, the seconds between two of them, and how many are kept."""

    MINUTE = ("minute", 10, 7)
    HOUR = ("hour", 600, 7)
    DAY = ("day", 3600, 25)

    def __init__(self, label: str, interval_s: int, notes_max: int) -> None:
        self.label = label
        self.interval_s = interval_s
        self.notes_max = notes_max


class Rate(NamedTuple):
    """What a window says: the sum in it, per second, and per time that something was added."""

    sum: float = 0.0
    tps: float = 0.0
    average: float = 0.0
    times: int = 0


_NOTHING: Final = Rate()

PROCESS_TIME_MS: Final = (1, 5, 10, 100, 1_000, 10_000, 60_000)
"""Upper bounds of RocketMQ 5's rocketmq_process_time, and a second."""
_BOUNDS_US: Final = tuple(bound * 1_000 for bound in PROCESS_TIME_MS)

LATENCY_S: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1_800.0, 3_600.0)
"""Upper bounds: a retry at a late delay level, and a backlog of an hour, are told apart from a slow minute."""
_LATENCY_MS: Final = tuple(round(bound * 1_000) for bound in LATENCY_S)


class Item:
    """One sum with its windows (StatsItem.java). Whoever adds to `value` adds to `times`: a call for it would be two for each
    pull and three for each report."""

    __slots__ = ("_notes", "times", "value")

    def __init__(self) -> None:
        self.value = 0.0
        self.times = 0
        self._notes: dict[Window, deque[tuple[float, int, float]]] = {
            window: deque(maxlen=window.notes_max) for window in Window
        }

    def sample(self, window: Window, now: float) -> None:
        """Note the sums of this moment."""
        notes = self._notes[window]
        if not notes:
            notes.append((now - window.interval_s, 0, 0.0))
        notes.append((now, self.times, self.value))

    def rate(self, window: Window) -> Rate:
        notes = self._notes[window]
        if not notes:
            return _NOTHING
        (began, times_before, before), (ended, times_after, after) = notes[0], notes[-1]
        total, times = after - before, times_after - times_before
        tps = total / (ended - began) if ended > began else 0.0
        return Rate(total, tps, total / times if times > 0 else 0.0, times)


class Latencies:
    """How long records took from their store time at the broker until their outcome was reported: a histogram, records by
    the bound that their latency is not above, the last for all that is longer.

    A report may have thousands of records and costs a few reads of store times, however many it has. Store times rise within
    a queue, because its broker writes one record after another: the first and the last say which buckets are between them,
    and bisection says where one ends. After the clock of a broker was set back, or a failover, they may fall: where the last
    is older than the first, each record is looked at; a fall that both ends hide may put records of that one report into
    another bucket. How many records there were is always exact.
    """

    __slots__ = ("counts", "sum_ms")

    def __init__(self) -> None:
        self.counts = [0] * (len(LATENCY_S) + 1)
        self.sum_ms = 0.0
        """Of records that are reported together, each counts with the mean of the first and the last."""

    def add(self, wall_ms: int, count: int, stored_ms: Callable[[int], int]) -> None:
        """`count` (at least 1) records of one queue have an outcome at `wall_ms`; `stored_ms(index)` is the store time of
        one, both in ms since 1970. A broker's clock that is ahead of ours gives a latency of 0."""
        first, last = stored_ms(0), stored_ms(count - 1)
        if first > last:
            for index in range(count):
                self._one(max(0, wall_ms - stored_ms(index)))
            return
        longest, shortest = max(0, wall_ms - first), max(0, wall_ms - last)
        self.sum_ms += (longest + shortest) * count / 2
        bucket, newest, start = bisect_left(_LATENCY_MS, longest), bisect_left(_LATENCY_MS, shortest), 0
        while bucket > newest:
            end = bisect_left(range(count), wall_ms - _LATENCY_MS[bucket - 1], start, key=stored_ms)
            self.counts[bucket] += end - start
            bucket, start = bucket - 1, end
        self.counts[newest] += count - start

    def _one(self, latency_ms: int) -> None:
        self.sum_ms += latency_ms
        self.counts[bisect_left(_LATENCY_MS, latency_ms)] += 1


@dataclass(slots=True)
class TopicStats:
    """The sums of one topic."""

    pull_rt: Item
    pull_messages: Item
    consume_rt: Item
    consume_ok: Item
    consume_failed: Item
    process_times: list[int] = field(default_factory=lambda: [0] * (len(PROCESS_TIME_MS) + 1))
    """Messages by the bound that their time in the handler is not above, the last for all that is longer. Of messages that
    are reported together, each counts with their mean."""
    latencies: Latencies = field(default_factory=Latencies)

    def items(self) -> tuple[Item, ...]:
        return self.pull_rt, self.pull_messages, self.consume_rt, self.consume_ok, self.consume_failed


class ConsumerStats:
    """The topics of one group; as many as are subscribed, retry topics included."""

    def __init__(self) -> None:
        self.topics: dict[str, TopicStats] = {}
        self.calls_are_batches = False
        """One report is one call of a batch handler."""

    def _of(self, topic: str) -> TopicStats:
        return self.topics.setdefault(topic, TopicStats(Item(), Item(), Item(), Item(), Item()))

    def pulled(self, topic: str, messages: int, rt_ms: float) -> None:
        """A pull that found messages was answered after `rt_ms`."""
        stats = self.topics.get(topic) or self._of(topic)
        stats.pull_rt.value += rt_ms
        stats.pull_rt.times += 1
        stats.pull_messages.value += messages
        stats.pull_messages.times += 1

    def consumed(self, topic: str, messages: int, failed: int, busy_us: int) -> None:
        """A report: the handler took `busy_us` for `messages`, of which `failed` are to be consumed later."""
        stats = self.topics.get(topic) or self._of(topic)
        calls = 1 if self.calls_are_batches else messages
        stats.consume_rt.value += busy_us / 1000
        stats.consume_rt.times += calls
        stats.process_times[bisect_left(_BOUNDS_US, busy_us / calls if calls else 0)] += calls
        if messages > failed:
            stats.consume_ok.value += messages - failed
            stats.consume_ok.times += 1
        if failed:
            stats.consume_failed.value += failed
            stats.consume_failed.times += 1

    def ended(self, topic: str, records: int, wall_ms: int, stored_ms: Callable[[int], int]) -> None:
        """So many records of one queue have an outcome, see `Latencies.add`."""
        (self.topics.get(topic) or self._of(topic)).latencies.add(wall_ms, records, stored_ms)

    def keep(self, topics: Iterable[str], group: str) -> None:
        """Others are not the group's any more. Retries that are popped are of topics that nobody subscribes."""
        ours = {real_topic(topic, group, mark) for topic in topics for mark in ("", RETRY_V1, RETRY_V2)}
        for topic in self.topics.keys() - ours:
            del self.topics[topic]

    def sample(self, window: Window, now: float) -> None:
        """To be called at the window's interval."""
        for stats in self.topics.values():
            for item in stats.items():
                item.sample(window, now)

    def status(self, topic: str) -> ConsumeStatus:
        """As in running info: the minute's rates; consume RT of the hour when the minute had none."""
        stats = self.topics.get(topic)
        if stats is None:
            return ConsumeStatus()
        consume_rt = stats.consume_rt.rate(Window.MINUTE)
        if not consume_rt.sum:
            consume_rt = stats.consume_rt.rate(Window.HOUR)
        return ConsumeStatus(
            pull_rt=stats.pull_rt.rate(Window.MINUTE).average,
            pull_tps=stats.pull_messages.rate(Window.MINUTE).tps,
            consume_rt=consume_rt.average,
            consume_ok_tps=stats.consume_ok.rate(Window.MINUTE).tps,
            consume_failed_tps=stats.consume_failed.rate(Window.MINUTE).tps,
            consume_failed_msgs=int(stats.consume_failed.rate(Window.HOUR).sum),
        )

    def picture(self) -> dict[str, dict[str, object]]:
        """By topic: the rates of running info, and messages consumed and failed per window."""
        return {
            topic: {
                **asdict(self.status(topic)),
                "consume_ok_msgs": {window.label: int(stats.consume_ok.rate(window).sum) for window in Window},
                "consume_failed_msgs": {window.label: int(stats.consume_failed.rate(window).sum) for window in Window},
                "process_time": {
                    "buckets": list(zip([*map(str, PROCESS_TIME_MS), "+Inf"], stats.process_times, strict=True)),
                    "sum_ms": stats.consume_rt.value,
                },
                "end_to_end_latency": {
                    "buckets": list(zip([*map(str, LATENCY_S), "+Inf"], stats.latencies.counts, strict=True)),
                    "sum_s": stats.latencies.sum_ms / 1000,
                },
            }
            for topic, stats in sorted(self.topics.items())
        }
