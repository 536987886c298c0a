"""The Prometheus page: counters of the core and a few gauges, read when somebody asks; nothing is counted twice.

Served by the supervisor's own loop: a page is a few kilobytes, and a thread would only compete for the interpreter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from ..remoting.errors import UsageError

REQUEST_TIMEOUT_S = 5.0
HEAD_BYTES_MAX = 8 * 1024
TOPIC_RATES = {
    "pull_rt": "ms from a pull to its answer with messages, mean of the last minute",
    "pull_tps": "messages pulled per second, last minute",
    "consume_rt": "ms per call of the handler, mean of the last minute (of the last hour when that had none)",
    "consume_ok_tps": "messages consumed per second, last minute",
    "consume_failed_tps": "messages that failed per second, last minute",
}
"""As in running info, by topic."""


class CoreCollector(Collector):
    """Turns the status picture into metric families."""

    def __init__(self, picture: Callable[[], dict[str, Any]]) -> None:
        self._picture = picture

    def collect(self) -> Iterator[Metric]:
        data = self._picture()
        labels = [data["group"]]
        for name, value in data["counters"].items():
            family = CounterMetricFamily(f"rocketcrew_{name}", name.replace("_", " "), labels=["group"])
            family.add_metric(labels, value)
            yield family
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
            gauge = GaugeMetricFamily(f"rocketcrew_{name}", name.replace("_", " "), labels=["group"])
            gauge.add_metric(labels, value)
            yield gauge
        turnover = CounterMetricFamily(
            "rocketcrew_worker_turnover",
            "workers replaced, delayed or left, by what happened",
            labels=["group", "event"],
        )
        for event, value in data["staff"]["counts"].items():
            turnover.add_metric([data["group"], event], value)
        yield turnover
        yield self._queues(data)
        for name, text in TOPIC_RATES.items():
            rates = GaugeMetricFamily(f"rocketcrew_{name}", text, labels=["group", "topic"])
            for topic, stats in data["stats"].items():
                rates.add_metric([data["group"], topic], stats[name])
            yield rates

    @staticmethod
    def _queues(data: dict[str, Any]) -> Metric:
        family = GaugeMetricFamily(
            "rocketcrew_queue_unfinished_messages",
            "pulled or popped and not finished, per message queue",
            labels=["group", "topic", "broker", "queue_id"],
        )
        for queue in (*data["queues"], *data["popped"]):
            family.add_metric(
                [data["group"], queue["topic"], queue["broker"], str(queue["queue_id"])], queue["unfinished"]
            )
        return family


class MetricsServer:
    """`GET /metrics` on host:port, HTTP/1.0, one page a connection."""

    def __init__(self, host: str, port: int, picture: Callable[[], dict[str, Any]]) -> None:
        self._host = host
        self._port = port
        self._registry = CollectorRegistry()
        self._registry.register(CoreCollector(picture))
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen. Raises UsageError when the port is taken."""
        try:
            self._server = await asyncio.start_server(self._serve, self._host, self._port, limit=HEAD_BYTES_MAX)
        except OSError as error:
            raise UsageError(
                f"metrics.port = {self._port}: cannot listen on {self._host}:{self._port} ({error.strerror}); choose"
                " another port, or 0 to switch the metrics page off"
            ) from error

    @property
    def port(self) -> int:
        """The port that is listened on (for port 0: the one that was given)."""
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
            if head.startswith((b"GET / ", b"GET /metrics")):
                status, body = "200 OK", generate_latest(self._registry)
            else:
                status, body = "404 Not Found", b"the page is /metrics\n"
            writer.write(
                f"HTTP/1.0 {status}\r\nContent-Type: {CONTENT_TYPE_LATEST}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
                + body
            )
            await writer.drain()
        except (TimeoutError, ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()
