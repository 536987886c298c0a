"""The Prometheus page: counters of the core and a few gauges, read when somebody asks; nothing is counted twice.

Where RocketMQ 5 has a name for the same thing, the family has it (https://rocketmq.apache.org/docs/observability/01metrics),
with its unit: milliseconds. All others are rocketcrew's own, in base units.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

Labels = tuple[str, ...]

TOPIC_RATES = {
    "pull_rt": "ms from a pull to its answer with messages, mean of the last minute",
    "pull_tps": "messages pulled per second, last minute",
    "consume_rt": "ms per call of the handler, mean of the last minute (of the last hour when that had none)",
    "consume_ok_tps": "messages consumed per second, last minute",
    "consume_failed_tps": "messages that failed per second, last minute",
}
"""As in running info, by topic."""

OF_ROCKETMQ = {
    "lag": ("rocketmq_consumer_lag_messages", "messages that the broker has and the group has not committed"),
    "unfinished": ("rocketmq_consumer_inflight_messages", "messages pulled and not finished"),
    "cached": ("rocketmq_consumer_cached_messages", "messages in this member's cache"),
    "unfinished_bytes": ("rocketmq_consumer_cached_bytes", "bytes of the messages in this member's cache"),
}
"""Gauges by topic, under RocketMQ 5's names."""


class PictureCollector(Collector):
    """Turns the status picture into metric families."""

    def __init__(self, picture: Callable[[], dict[str, Any]]) -> None:
        self._picture = picture

    def collect(self) -> Iterator[Metric]:
        data = self._picture()
        group = (data["group"],)
        yield from _of_rocketmq(data)
        for name, value in data["counters"].items():
            if name == "busy_us":
                yield _counter(
                    "rocketcrew_handler_seconds", "seconds that calls of the handler took", [(group, value / 1e6)]
                )
            elif name == "worker_deaths":
                deaths = [((*group, cause), number) for cause, number in data["worker_deaths_by_cause"].items()]
                yield _counter("rocketcrew_worker_deaths", "workers that died, by cause", deaths, ("group", "cause"))
            else:
                yield _counter(f"rocketcrew_{name}", name.replace("_", " "), [(group, value)])
        gauges = {
            "ready_workers": data["ready_workers"],
            "wanted_workers": data["staff"]["workers"],
            "paused": int(bool(data["paused"])),
            "waiting_messages": data["waiting_messages"],
            "assigned_queues": len(data["queues"]),
            "unsealed_segments": data["unsealed_segments"],
            "open_send_backs": data["open_send_backs"],
            **data["memory"],
        }
        for name, value in gauges.items():
            yield _gauge(f"rocketcrew_{name}", name.replace("_", " "), [(group, value)])
        yield _counter(
            "rocketcrew_worker_turnover", "workers replaced, delayed or left, by what happened",
            [((*group, event), value) for event, value in data["staff"]["counts"].items()], ("group", "event"),
        )  # fmt: skip
        yield _gauge(
            "rocketcrew_worker_memory_bytes", "resident memory of each worker",
            _summed(((*group, str(worker.get("index", ""))), worker.get("rss_bytes", 0)) for worker in data["workers"]),
            ("group", "worker"),
        )  # fmt: skip
        yield _gauge(
            "rocketcrew_queue_unfinished_messages", "pulled or popped and not finished, per message queue",
            _summed(((*group, q["topic"], q["broker"], str(q["queue_id"])), q["unfinished"]) for q in _all_queues(data)),
            ("group", "topic", "broker", "queue_id"),
        )  # fmt: skip
        yield _latency(data, group)
        for name, text in TOPIC_RATES.items():
            of_topics = [((*group, topic), stats[name]) for topic, stats in data["stats"].items()]
            yield _gauge(f"rocketcrew_{name}", text, of_topics, ("group", "topic"))
        yield from _of_rates(data, group)
        yield from _of_loader(data, group)


def _summed(samples: Iterable[tuple[Labels, float]]) -> Iterable[tuple[Labels, float]]:
    """Each series once, or Prometheus takes nothing of the page: a worker that leaves has the index of its successor, and a
    queue that goes over to POP has messages that were pulled and some that were popped."""
    found: dict[Labels, float] = {}
    for labels, value in samples:
        found[labels] = found.get(labels, 0) + value
    return found.items()


def _all_queues(data: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """With those that are popped, of which the broker has the lag."""
    return [*data["queues"], *data["popped"]]


def _of_rocketmq(data: Mapping[str, Any]) -> Iterator[Metric]:
    labels = ("consumer_group", "client_id", "topic")
    who = (data["group"], data["client_id"])
    topics: dict[str, dict[str, int]] = {}
    for queue in _all_queues(data):
        sums = topics.setdefault(queue["topic"], dict.fromkeys(OF_ROCKETMQ, 0))
        for key in ("lag", "unfinished", "unfinished_bytes"):
            sums[key] += queue.get(key, 0)
        sums["cached"] += queue["unfinished"]
    pulled = {queue["topic"] for queue in data["queues"]}
    for key, (name, text) in OF_ROCKETMQ.items():
        # The lag of what is popped only the brokers know: 0 would say that all is done.
        samples = [((*who, topic), sums[key]) for topic, sums in topics.items() if key != "lag" or topic in pulled]
        yield _gauge(name, text, samples, labels)
    dead = data["counters"]["dead_letter_messages"]
    yield _counter("rocketmq_send_to_dlq_messages", "messages sent to the dead letters", [(who, dead)], labels[:2])
    times = HistogramMetricFamily("rocketmq_process_time", "ms that calls of the handler took", labels=labels)
    for topic, stats in data["stats"].items():
        found = stats["process_time"]
        times.add_metric((*who, topic), _cumulated(found["buckets"]), found["sum_ms"])
    yield times


def _latency(data: Mapping[str, Any], group: Labels) -> HistogramMetricFamily:
    latency = HistogramMetricFamily(
        "rocketcrew_end_to_end_latency_seconds", "seconds from a record's store time at the broker to its reported outcome",
        labels=("group", "topic"),
    )  # fmt: skip
    for topic, stats in data["stats"].items():
        found = stats["end_to_end_latency"]
        latency.add_metric((*group, topic), _cumulated(found["buckets"]), found["sum_s"])
    return latency


def _cumulated(counts: Iterable[tuple[str, int]]) -> list[tuple[str, float]]:
    """As Prometheus has buckets: each with all below it."""
    bounds, numbers = zip(*counts, strict=True)
    return list(zip(bounds, accumulate(numbers), strict=True))


def _of_rates(data: Mapping[str, Any], group: Labels) -> Iterator[Metric]:
    """Where topics or the member have a rate; the topic of the member's is empty."""
    labels, limits = ("group", "topic"), data.get("rate_limits", ())
    if limits:
        rates = [((*group, limit["topic"]), limit["messages_per_second"]) for limit in limits]
        yield _gauge("rocketcrew_rate_limit", "messages a second that may be dispatched", rates, labels)
        held = [((*group, limit["topic"]), float(limit["limited"])) for limit in limits]
        yield _gauge("rocketcrew_rate_limited", "1 while messages wait for that rate, else 0", held, labels)


def _of_loader(data: Mapping[str, Any], group: Labels) -> Iterator[Metric]:
    """What the loader's status file says, and what waits for it; nothing where no loader runs."""
    loader: dict[str, Any] = data.get("loader") or {}
    backlog: dict[str, Any] = data.get("backlog") or {}
    for name, key in (("rows", "rows_total"), ("batches", "batches_total"), ("restarts", "restarts")):
        if key in loader:
            yield _counter(f"rocketcrew_loader_{name}", f"{name} of the loader", [(group, loader[key])])
    last: dict[str, Any] = loader.get("last") or {}
    if "commit_buckets" in loader:
        times = HistogramMetricFamily(
            "rocketcrew_loader_commit_seconds", "seconds of the loader's commits", labels=("group",)
        )
        times.add_metric(group, _cumulated(loader["commit_buckets"].items()), loader["commit_seconds_total"])
        yield times
    if "seconds" in last:
        yield _gauge("rocketcrew_loader_last_batch_seconds", "the newest batch, whole", [(group, last["seconds"])])
    for name, key, text in (
        ("segments", "segments", "sealed segments that are not loaded yet"),
        ("bytes", "bytes", "their size"),
        ("oldest_seconds", "oldest_s", "age of the oldest of them"),
    ):
        if key in backlog:
            yield _gauge(f"rocketcrew_unloaded_{name}", text, [(group, backlog[key])])


def _counter(
    name: str, text: str, samples: Iterable[tuple[Labels, float]], labels: Labels = ("group",)
) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=labels)
    for values, value in samples:
        family.add_metric(values, value)
    return family


def _gauge(
    name: str, text: str, samples: Iterable[tuple[Labels, float]], labels: Labels = ("group",)
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=labels)
    for values, value in samples:
        family.add_metric(values, value)
    return family


class MetricsPage:
    """What `GET /metrics` gives, in Prometheus's text format or as OpenMetrics, as `Accept` has it."""

    def __init__(self, picture: Callable[[], dict[str, Any]]) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(PictureCollector(picture))

    def get(self, accept: str) -> tuple[str, bytes]:
        """The content type and the page."""
        try:
            encode, content_type = choose_encoder(accept)
        except TypeError:  # a version that is no number: prometheus_client compares the two
            encode, content_type = choose_encoder("")
        return content_type, encode(self._registry)
