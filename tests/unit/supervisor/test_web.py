"""What the supervisor serves by HTTP: metrics that real parsers read, probes, status, a page, actions behind a token."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import re
import socket
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, cast

import pytest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as openmetrics,  # pyright: ignore[reportUnknownVariableType]
)
from prometheus_client.parser import text_string_to_metric_families as prometheus

from rocketcrew.conf.settings import MetricsSettings
from rocketcrew.durable.files import try_lock
from rocketcrew.remoting.errors import RocketcrewError, UsageError
from rocketcrew.supervisor.control import Command
from rocketcrew.supervisor.core.stats import ConsumerStats
from rocketcrew.supervisor.health import SLACK_S, Health
from rocketcrew.supervisor.slot import take_slot, targets_file
from rocketcrew.supervisor.web import (
    CONNECTIONS_MAX,
    PortsTakenError,
    Request,
    Response,
    Site,
    WebServer,
    cannot_listen,
    listen,
    page_html,
    read_request,
    targets,
)

QUEUE = {"topic": "orders", "broker": "b", "queue_id": 0, "state": "assigned", "next_offset": 9, "committed": 4,
         "end_offset": 20, "lag": 16, "unfinished": 5, "unfinished_bytes": 512, "span": 5}  # fmt: skip


def stats() -> ConsumerStats:
    found = ConsumerStats()
    found.consumed("orders", 2, 0, 1_600)
    found.consumed("orders", 1, 1, 250_000)
    found.ended("orders", 3, 10_000, [2_000, 9_000, 9_980].__getitem__)
    return found


def picture(**more: Any) -> dict[str, Any]:
    counters = dict.fromkeys(
        ("done_messages", "failed_messages", "filtered_messages", "worker_deaths", "redispatched_messages"), 0
    )
    return {
        "service": "RUNNING", "stopping": False, "paused": [], "group": "crew", "client_id": "me", "ready_workers": 2,
        "waiting_messages": 0,
        "counters": {**counters, "done_messages": 42, "dead_letter_messages": 3, "busy_us": 1_500_000},
        "worker_deaths_by_cause": {"crashed": 2, "hard time limit": 1},
        "workers": [{"worker_id": "w.1", "index": 0, "messages": 1, "rss_bytes": 1 << 20}],
        "queues": [QUEUE, {**QUEUE, "queue_id": 1}], "popped": [], "stats": stats().picture(), "memory": {"slab_bytes": 64},
        "open_send_backs": 0, "unsealed_segments": 0, "staff": {"workers": 2, "counts": {"started": 3}},
        "loader": {"rows_total": 7, "batches_total": 2, "restarts": 0, "last": {"seconds": 0.5},
                   "commit_buckets": {"0.05": 1, "0.1": 0, "+Inf": 1}, "commit_seconds_total": 7.25},
        "backlog": {"segments": 1, "bytes": 99, "oldest_s": 2.5},
        **more,
    }  # fmt: skip


def site(asked: list[Any] | None = None, *, found: Callable[[], dict[str, Any]] = picture, **settings: Any) -> Site:
    chosen: dict[str, Any] = {"port": 0, "port_count": 1, "host": "127.0.0.1", "page": True, "token": "", **settings}

    def scale(request: Any) -> dict[str, Any]:
        if request["workers"] > 9:
            raise UsageError("too many")
        if asked is not None:
            asked.append(request)
        return {"workers": request["workers"]}

    async def stacks(_request: Any) -> dict[str, Any]:
        return {"processes": []}

    commands: dict[str, Command] = {"scale": scale, "stacks": stacks}
    return Site(MetricsSettings(**chosen), found, commands, Health(), lambda: 0.0, lambda: [{"event": "pull_failed"}])


def answer(where: Site, method: str, target: str, **headers: str) -> Response:
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return asyncio.run(where.answer(read_request(f"{method} {target} HTTP/1.1\r\n{lines}\r\n".encode())))


# --- metrics --------------------------------------------------------------------------------------------------------


PARSERS: list[tuple[str, Callable[[str], Any]]] = [
    ("", prometheus),
    ("application/openmetrics-text; version=1.0.0", openmetrics),
]


@pytest.mark.parametrize(("accept", "parse"), PARSERS)
def test_metrics_are_read_by_the_parsers_of_prometheus(accept: str, parse: Callable[[str], Any]) -> None:
    page = answer(site(), "GET", "/metrics", Accept=accept)
    assert page.status == 200
    assert ("openmetrics" in page.content_type) is bool(accept)
    samples = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in parse(page.body.decode())
        for sample in family.samples
    }
    group = ("group", "crew")
    of_topic = ("client_id", "me"), ("consumer_group", "crew")
    assert samples["rocketcrew_done_messages_total", group] == 42
    assert samples["rocketcrew_handler_seconds_total", group] == 1.5
    assert samples["rocketmq_consumer_lag_messages", *of_topic, ("topic", "orders")] == 32
    assert samples["rocketmq_consumer_cached_bytes", *of_topic, ("topic", "orders")] == 1024
    assert samples["rocketmq_send_to_dlq_messages_total", *of_topic] == 3
    assert samples["rocketcrew_loader_rows_total", group] == 7
    commits = "rocketcrew_loader_commit_seconds"
    assert [samples[f"{commits}_bucket", group, ("le", bound)] for bound in ("0.05", "0.1", "+Inf")] == [1, 1, 2]
    assert (samples[f"{commits}_count", group], samples[f"{commits}_sum", group]) == (2, 7.25)
    assert samples["rocketcrew_worker_deaths_total", ("cause", "crashed"), group] == 2
    assert samples["rocketcrew_worker_deaths_total", ("cause", "hard time limit"), group] == 1
    assert samples["rocketcrew_unloaded_oldest_seconds", group] == 2.5
    buckets = {dict(key[1:])["le"]: value for key, value in samples.items() if key[0] == "rocketmq_process_time_bucket"}
    assert {float(bound): value for bound, value in buckets.items()} == {
        1: 2, 5: 2, 10: 2, 100: 2, 1000: 3, 10_000: 3, 60_000: 3, float("inf"): 3
    }  # fmt: skip
    assert samples["rocketmq_process_time_sum", *of_topic, ("topic", "orders")] == pytest.approx(251.6)
    latency, of_ours = "rocketcrew_end_to_end_latency_seconds", (group, ("topic", "orders"))
    buckets = {dict(key[1:])["le"]: value for key, value in samples.items() if key[0] == f"{latency}_bucket"}
    assert {float(bound): value for bound, value in buckets.items() if float(bound) in (0.01, 0.025, 0.5, 1, 5, 10)} == {
        0.01: 0, 0.025: 1, 0.5: 1, 1: 2, 5: 2, 10: 3
    }  # fmt: skip
    assert samples[f"{latency}_count", *of_ours] == 3
    assert samples[f"{latency}_sum", *of_ours] == pytest.approx(12.03)


def test_what_was_popped_is_in_hand_and_has_no_lag_here() -> None:
    popped = {"topic": "popped", "broker": "b", "queue_id": -1, "unfinished": 4, "unfinished_bytes": 40}
    page = answer(site(found=lambda: picture(queues=[], popped=[popped])), "GET", "/metrics").body.decode()
    assert 'rocketmq_consumer_inflight_messages{client_id="me",consumer_group="crew",topic="popped"} 4.0' in page
    assert "rocketmq_consumer_lag_messages{" not in page, "0 would say that all is done"
    assert 'rocketcrew_queue_unfinished_messages{broker="b",group="crew",queue_id="-1",topic="popped"} 4.0' in page


def test_each_series_is_there_once_while_workers_and_queues_go_over() -> None:
    """A worker that leaves has the index of its successor, and a queue may be pulled and popped at once. Prometheus takes
    nothing of a page with a series that is there twice."""
    workers = [{"worker_id": f"w.{number}", "index": 0, "messages": 1, "rss_bytes": 5} for number in (1, 2)]
    popped = [{"topic": "orders", "broker": "b", "queue_id": 0, "unfinished": 4, "unfinished_bytes": 40}]
    page = answer(site(found=lambda: picture(workers=workers, popped=popped)), "GET", "/metrics").body.decode()
    series = [line.rpartition(" ")[0] for line in page.splitlines() if not line.startswith("#")]
    assert len(series) == len(set(series))
    assert 'rocketcrew_worker_memory_bytes{group="crew",worker="0"} 10.0' in page
    assert 'rocketcrew_queue_unfinished_messages{broker="b",group="crew",queue_id="0",topic="orders"} 9.0' in page


def test_a_member_without_a_loader_has_metrics_too() -> None:
    page = answer(
        site(found=lambda: picture(loader={"restarts": 0}, backlog={}, queues=[], stats={})), "GET", "/metrics"
    )
    assert b"rocketcrew_loader_rows" not in page.body
    assert page.body.count(b"rocketmq_process_time_bucket") == 0


@pytest.mark.parametrize(("accept", "parse"), PARSERS)
def test_rates_and_what_they_hold_back(accept: str, parse: Callable[[str], Any]) -> None:
    limits = [
        {"topic": "", "messages_per_second": 100.0, "limited": False},
        {"topic": "orders", "messages_per_second": 0.5, "limited": True},
    ]
    page = answer(site(found=lambda: picture(rate_limits=limits)), "GET", "/metrics", Accept=accept).body.decode()
    samples = [sample for family in parse(page) for sample in family.samples if "rate_limit" in sample.name]
    assert {(sample.name, sample.labels["topic"]): sample.value for sample in samples} == {
        ("rocketcrew_rate_limit", ""): 100.0,
        ("rocketcrew_rate_limit", "orders"): 0.5,
        ("rocketcrew_rate_limited", ""): 0.0,
        ("rocketcrew_rate_limited", "orders"): 1.0,
    }


def test_a_batch_call_counts_once() -> None:
    found = ConsumerStats()
    found.calls_are_batches = True
    found.consumed("t", 32, 0, 40_000)
    assert sum(found.topics["t"].process_times) == 1


# --- probes ---------------------------------------------------------------------------------------------------------


def test_alive_as_long_as_something_is_finished() -> None:
    health = Health()
    busy = picture(workers=[busy_worker(900)])
    idle = picture(workers=[])
    assert health.not_alive(busy, 0.0) == ""
    assert health.not_alive(busy, 900 + SLACK_S) == ""
    assert "none has been finished for" in health.not_alive(busy, 901 + SLACK_S)
    assert health.not_alive(idle, 5_000) == ""
    assert health.not_alive(busy, 5_001) == "", "it has just begun"
    one_more = {**busy, "counters": {**busy["counters"], "failed_messages": 1}}
    assert health.not_alive(one_more, 5_001 + 960.5) == ""
    assert health.not_alive(one_more, 5_001 + 960.5 + 961)


def busy_worker(limit_s: float, **more: Any) -> dict[str, Any]:
    return {"worker_id": "w.1", "index": 0, "messages": 1, "rss_bytes": 1 << 20, "hard_limit_s": limit_s, **more}


@pytest.mark.parametrize(
    ("workers", "alive_at", "dead_at"),
    [
        ([busy_worker(60), busy_worker(3_600)], 3_600 + SLACK_S, 3_601 + SLACK_S),
        ([busy_worker(60), busy_worker(3_600, messages=0)], 60 + SLACK_S, 61 + SLACK_S),
        ([busy_worker(60), busy_worker(0)], 1e9, None),  # its handler may take any time
        ([busy_worker(60), {"state": "dead", "messages": 1}], 60 + SLACK_S, 61 + SLACK_S),  # not salvaged yet
        ([busy_worker(60, blocked={"error": "No space left on device", "seconds": 9.0})], 1e9, None),
    ],
)
def test_a_member_that_does_what_it_is_allowed_to_is_alive(
    workers: list[dict[str, Any]], alive_at: float, dead_at: float | None
) -> None:
    """A handler's own limit goes before the settings; a full disk is no better after a restart."""
    health, busy = Health(), picture(workers=workers)
    assert [health.not_alive(busy, now) for now in (0.0, alive_at)] == ["", ""]
    assert dead_at is None or "none has been finished for" in health.not_alive(busy, dead_at)


@pytest.mark.parametrize(
    ("more", "code", "says"),
    [
        ({}, 200, "ok"),
        ({"service": "START_FAILED"}, 503, "the supervisor is starting"),
        ({"service": "SHUTDOWN_ALREADY"}, 503, "the supervisor is SHUTDOWN_ALREADY"),
        ({"stopping": True}, 503, "is stopping"),
        ({"ready_workers": 0}, 503, "no worker is ready"),
    ],
)
def test_ready_with_a_worker(more: dict[str, Any], code: int, says: str) -> None:
    found = answer(site(found=lambda: picture(**more)), "GET", "/readyz")
    assert found.status == code
    assert says in found.body.decode()


# --- status, page, actions ------------------------------------------------------------------------------------------


def test_the_status_has_the_last_faults() -> None:
    found = answer(site(), "GET", "/status", Host="localhost:9911")
    assert json.loads(found.body)["faults"] == [{"event": "pull_failed"}]
    assert json.loads(found.body)["group"] == "crew"


def test_the_page_is_off_unless_asked_for_and_asks_for_nothing_from_elsewhere() -> None:
    assert b"<html" not in answer(site(page=False), "GET", "/").body
    page = answer(site(), "GET", "/")
    assert page.body == page_html()
    assert b"https://" not in page.body
    assert page.body.replace(b"http://www.w3.org/2000/svg", b"").count(b"http://") == 0


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:9911", "127.0.0.1.evil.example", "[", "[::1", "]", "[localhost]"],
)
def test_a_foreign_name_for_a_loopback_address_is_refused(host: str) -> None:
    for listening in ("127.0.0.1", "127.1", "2130706433", "::1", "::ffff:127.0.0.1", "LOCALHOST"):
        assert answer(site(host=listening), "GET", "/status", Host=host).status == 403
    assert answer(site(host="0.0.0.0"), "GET", "/status", Host=host).status == 200


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:9911", "127.0.0.2", "[::1]:9911", "LOCALHOST:x", ""])
def test_a_loopback_address_by_its_own_names(host: str) -> None:
    assert answer(site(), "GET", "/status", Host=host).status == 200


@pytest.mark.parametrize("version", ["x", "1.", "2.x", "9" * 5_000, "1.0.0\u00e9"])
@pytest.mark.parametrize("kind", ["text/plain", "application/openmetrics-text"])
def test_metrics_of_a_version_that_is_no_number_are_prometheus_own(kind: str, version: str) -> None:
    page = answer(site(), "GET", "/metrics", Accept=f"{kind}; version={version}")
    assert page.status == 200
    assert list(prometheus(page.body.decode()))


JUNK = [
    "",
    "[",
    "]",
    "[::1",
    "\u00ff",
    "\u00bd",
    "%",
    "%zz",
    "a=b;c",
    "-1",
    "9" * 5_000,
    "\x00",
    "//",
    "//[",
    "?",
    "&=&",
    ";",
    ",;=",
    "\t",
]


def test_nothing_that_a_client_can_send_raises() -> None:
    guarded = site(token="s3cret")
    targets_asked = [
        "/",
        "/metrics",
        "/livez",
        "/status",
        "/scale",
        "/stacks",
        *(f"/scale?workers={junk}" for junk in JUNK),
        *JUNK,
    ]
    for method in ("GET", "HEAD", "POST", "\u00ff"):
        for target in targets_asked:
            for junk in JUNK:
                headers = f"Host: {junk}\r\nAccept: {junk}\r\nX-Rocketcrew-Token: s3cret\r\n{junk}\r\n"
                try:
                    request = read_request(f"{method} {target} HTTP/1.1\r\n{headers}\r\n".encode("latin-1"))
                except ValueError:
                    continue
                asyncio.run(guarded.answer(request))


def test_actions_want_the_token() -> None:
    asked: list[Any] = []
    guarded = site(asked, token="s3cret")
    assert answer(guarded, "POST", "/scale?workers=3").status == 403
    assert answer(guarded, "POST", "/scale?workers=3", X_Rocketcrew_Token="s3crex").status == 403
    assert answer(guarded, "GET", "/scale?workers=3", X_Rocketcrew_Token="s3cret").status == 405
    assert answer(site(asked), "POST", "/scale?workers=3", X_Rocketcrew_Token="").status == 403, "no token, no actions"
    assert asked == []
    assert json.loads(answer(guarded, "POST", "/scale?workers=3", X_Rocketcrew_Token="s3cret").body) == {"workers": 3}
    assert answer(guarded, "POST", "/scale?workers=x", X_Rocketcrew_Token="s3cret").status == 400
    assert answer(guarded, "POST", "/scale?workers=10", X_Rocketcrew_Token="s3cret").body == b"too many\n"
    assert json.loads(answer(guarded, "POST", "/stacks", X_Rocketcrew_Token="s3cret").body) == {"processes": []}
    assert answer(guarded, "POST", "/stop", X_Rocketcrew_Token="s3cret").status == 405, "that is not for a page"


@pytest.mark.parametrize("head", [b"", b"GET /", b"\xff\xfe \xff \xff", b"GET / SPDY/3"])
def test_what_is_not_http_is_refused(head: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  of any kind
        read_request(head)


def test_a_query_is_read() -> None:
    request = read_request(b"POST /scale?workers=1&workers=2 HTTP/1.0\r\nX-A:  b \r\n\r\n")
    assert request == Request("POST", "/scale", {"workers": "2"}, {"x-a": "b"})


def served(tmp_path: Path, where: Site, look: Callable[[int], Coroutine[Any, Any, None]], **more: float) -> None:
    """`look` is given the port."""

    async def scene() -> None:
        settings = MetricsSettings(port=0, port_count=1, host="127.0.0.1", page=True, token="")
        server = WebServer(settings, where, tmp_path / "0", "crew", **more)
        await server.start()
        try:
            await look(server.port)
        finally:
            await server.stop()

    asyncio.run(scene())


def test_who_does_not_take_the_answer_is_cut_off(tmp_path: Path) -> None:
    """A descriptor, and all of the answer, would be gone for each such client."""

    async def look(port: int) -> None:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(client, ("127.0.0.1", port))
            await loop.sock_sendall(client, b"GET /status HTTP/1.1\r\n\r\n")
            assert await loop.sock_recv(client, 1) == b"H"
            (answering,) = asyncio.all_tasks() - {cast("asyncio.Task[Any]", asyncio.current_task())}
            _, open_still = await asyncio.wait([answering], timeout=10)
            assert not open_still

    large = site(found=lambda: picture(paused=["x" * (16 << 20)]))
    served(tmp_path, large, look, answer_timeout_s=0.05)


def test_more_connections_than_there_may_be_are_closed(tmp_path: Path) -> None:
    async def look(port: int) -> None:
        clients = [await asyncio.open_connection("127.0.0.1", port) for _ in range(CONNECTIONS_MAX + 1)]
        with contextlib.suppress(ConnectionError):
            assert await clients[-1][0].read() == b""
        clients[0][1].write(b"HEAD /livez HTTP/1.1\r\n\r\n")
        assert (await clients[0][0].read()).startswith(b"HTTP/1.1 200")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"HEAD /livez HTTP/1.1\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 200")
        for _, each in [*clients, (reader, writer)]:
            each.close()

    served(tmp_path, site(), look)


def test_it_is_served_and_takes_the_next_port_that_is_free(tmp_path: Path) -> None:
    async def get(port: int, request: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        found = await reader.read()
        writer.close()
        return found

    async def story() -> None:
        settings = MetricsSettings(port=0, port_count=1, host="127.0.0.1", page=False, token="")
        slots = [tmp_path / "0", tmp_path / "1"]
        first = WebServer(settings, site(), slots[0], "crew")
        await first.start()
        assert (await get(first.port, b"GET /livez HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 200 OK\r\n")
        assert (await get(first.port, b"HEAD /livez HTTP/1.1\r\n\r\n")).endswith(b"\r\n\r\n")
        assert (await get(first.port, b"nonsense\r\n\r\n")).startswith(b"HTTP/1.1 400 ")
        taken = MetricsSettings(port=first.port, port_count=1, host="127.0.0.1", page=False, token="")
        with pytest.raises(PortsTakenError, match=r"metrics\.port = \d+: cannot listen on 127\.0\.0\.1, port \d+ \("):
            await WebServer(taken, site(), slots[1], "crew").start()
        assert not targets_file(slots[1]).exists()
        more = MetricsSettings(port=first.port, port_count=100, host="127.0.0.1", page=False, token="")
        second = WebServer(more, site(), slots[1], "crew")
        await second.start()
        assert first.port < second.port < first.port + 100
        for slot, server in zip(slots, (first, second), strict=True):
            (target,) = json.loads(targets_file(slot).read_text())
            labels = {"rocketcrew_group": "crew", "slot": slot.name}
            assert target == {"targets": [f"127.0.0.1:{server.port}"], "labels": labels}
            page = await get(server.port, b"GET /metrics HTTP/1.1\r\n\r\n")
            assert labels.keys().isdisjoint(re.findall(r'(\w+)="', page.decode()))  # Prometheus would rename those
            await server.stop()
            assert not targets_file(slot).exists()

    asyncio.run(story())


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (OSError(errno.EADDRINUSE, "x"), PortsTakenError, "metrics.port = 80: cannot listen on h, ports 80 to 81 ("),
        (OSError(errno.EADDRNOTAVAIL, "x"), RocketcrewError, "metrics.host = h: this machine does not have that address"),
        (OSError("could not bind on any address"), RocketcrewError, "metrics.host = h: this machine does not have that"),
        (socket.gaierror(-3, "Try again"), RocketcrewError, "metrics.host = h: cannot be resolved (Try again)"),
        (OSError(errno.EMFILE, "x"), RocketcrewError, "metrics.port = 80: cannot listen on h, ports 80 to 81 (Too many"),
        (OSError(errno.EACCES, "x"), UsageError, "metrics.port = 80: cannot listen on h, ports 80 to 81 (Permission"),
    ],
)  # fmt: skip
def test_what_may_pass_is_no_usage_error_and_advice_on_ports_is_for_ports(
    error: OSError, kind: type[RocketcrewError], said: str
) -> None:
    found = cannot_listen(MetricsSettings(port=80, port_count=2, host="h", page=False, token=""), error)
    assert type(found) is kind
    assert str(found).startswith(said)
    assert ("choose another port" in str(found)) is (kind is not RocketcrewError)


@pytest.mark.parametrize("host", ["a..b", "a" * 64 + ".example"])
def test_a_host_that_no_name_can_be_is_a_usage_error(host: str) -> None:
    async def story() -> None:
        settings = MetricsSettings(port=20_000, port_count=2, host=host, page=False, token="")
        with pytest.raises(UsageError, match=r"^metrics\.host = a.*: is no name of a host"):
            await listen(settings, lambda _reader, _writer: None)

    asyncio.run(story())


def test_no_port_is_above_the_last_that_there_is() -> None:
    async def story() -> None:
        settings = MetricsSettings(port=65_535, port_count=9, host="127.0.0.1", page=False, token="")
        with socket.socket() as holder:
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind(("127.0.0.1", 65_535))
            holder.listen()
            with pytest.raises(PortsTakenError, match=r"port 65535 \("):
                await listen(settings, lambda _reader, _writer: None)

    asyncio.run(story())


def test_the_file_of_a_killed_crew_does_not_name_the_port_of_another(tmp_path: Path) -> None:
    async def story() -> None:
        settings = MetricsSettings(port=0, port_count=1, host="127.0.0.1", page=False, token="")
        for group in ("alive", "elsewhere", "killed", "ours"):
            (tmp_path / group).mkdir()
        alive = WebServer(settings, site(), tmp_path / "alive" / "0", "alive")
        await alive.start()
        ports = range(alive.port, min(alive.port + 50, 65_536))
        left = {port: targets_file(tmp_path / "killed" / str(port)) for port in ports}
        held: list[int | None] = []
        for port, file in left.items():
            (tmp_path / "killed" / str(port)).mkdir()
            (tmp_path / "killed" / str(port) / "lock").touch()
            file.write_text(targets("0.0.0.0", port, {"rocketcrew_group": "killed"}))  # it said the wildcard
        for port in ports:
            (tmp_path / "elsewhere" / str(port)).mkdir()
            held.append(try_lock(tmp_path / "elsewhere" / str(port) / "lock"))
            running = targets("127.0.0.1", port, {"rocketcrew_group": "elsewhere"})
            targets_file(tmp_path / "elsewhere" / str(port)).write_text(running)
        for number, strange in enumerate(("{}", "[]", "[1]", "no JSON", '[{"targets": [1]}]')):
            targets_file(tmp_path / "killed" / str(number)).write_text(strange)
        more = MetricsSettings(port=ports[0], port_count=len(ports), host="127.0.0.1", page=False, token="")
        ours = WebServer(more, site(), tmp_path / "ours" / "0", "ours")
        await ours.start()
        assert [port for port, file in left.items() if not file.exists()] == [ours.port]
        assert targets_file(tmp_path / "alive" / "0").exists()
        assert all(targets_file(tmp_path / "elsewhere" / str(port)).exists() for port in ports)
        await ours.stop()
        await alive.stop()
        for lock in filter(None, held):
            os.close(lock)

    asyncio.run(story())


def test_a_prometheus_of_another_user_finds_the_file_and_reads_it(tmp_path: Path) -> None:
    def check() -> None:
        (path,) = tmp_path.glob("data/billing/prometheus-*.json")  # as docs/how-to/operate.md has it
        assert path == targets_file(slot.path)
        assert path.stat().st_mode & 0o004
        for folder in (path.parent, path.parent.parent):
            assert folder.stat().st_mode & 0o005 == 0o005, folder

    async def story() -> None:
        settings = MetricsSettings(port=0, port_count=1, host="127.0.0.1", page=False, token="")
        server = WebServer(settings, site(), slot.path, "billing")
        await server.start()
        try:
            check()
        finally:
            await server.stop()

    before = os.umask(0o022)
    try:
        slot = take_slot(tmp_path / "data", "billing")
        asyncio.run(story())
    finally:
        os.umask(before)
    slot.release()


@pytest.mark.parametrize(
    ("host", "target"),
    [("127.0.0.1", "127.0.0.1:1"), ("0.0.0.0", "localhost:1"), ("::", "localhost:1"), ("::1", "[::1]:1"), ("h", "h:1")],
)
def test_prometheus_finds_the_port_in_the_file(host: str, target: str) -> None:
    assert json.loads(targets(host, 1, {"slot": "0"})) == [{"targets": [target], "labels": {"slot": "0"}}]
