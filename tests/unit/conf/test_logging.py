from __future__ import annotations

import io
import json
import logging
from collections import Counter
from collections.abc import Iterator

import pytest
import structlog

from rocketcrew.conf.logging import set_up


@pytest.fixture(autouse=True)
def leave_no_trace() -> Iterator[None]:
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    yield
    root.setLevel(level)
    root.handlers[:] = handlers
    logging.captureWarnings(False)
    structlog.reset_defaults()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_json_lines_have_event_keys_level_time_and_the_process_keys() -> None:
    out = io.StringIO()
    set_up("json", "info", out, "worker", worker_id="w3")
    log = structlog.get_logger().bind(queue="t/b/0")
    log.info("queue opened", offset=5)
    log.debug("not wanted")
    (line,) = out.getvalue().splitlines()
    entry = json.loads(line)
    assert entry.pop("timestamp").endswith("Z")
    assert entry == {
        "event": "queue opened",
        "level": "info",
        "offset": 5,
        "process": "worker",
        "queue": "t/b/0",
        "worker_id": "w3",
    }


def test_auto_is_for_people_on_a_terminal_and_json_elsewhere() -> None:
    terminal, file = Terminal(), io.StringIO()
    set_up("auto", "info", terminal)
    structlog.get_logger().info("hello", a=1)
    set_up("auto", "info", file)
    structlog.get_logger().info("hello", a=1)
    assert "\x1b[" in terminal.getvalue()
    assert json.loads(file.getvalue())["a"] == 1


def test_human_lines_have_no_colours_unless_on_a_terminal() -> None:
    out = io.StringIO()
    set_up("human", "warning", out, "supervisor", group="g")
    structlog.get_logger().info("quiet")
    structlog.get_logger().warning("late answer", assignment=7)
    assert "\x1b" not in out.getvalue()
    assert "late answer" in out.getvalue()
    assert "assignment=7" in out.getvalue()
    assert "group=g" in out.getvalue()
    assert "quiet" not in out.getvalue()


def test_exceptions_are_one_json_object() -> None:
    out = io.StringIO()
    set_up("json", "info", out)
    try:
        raise LookupError("gone")
    except LookupError:
        structlog.get_logger().exception("handler failed", body=b"\xff")
    entry = json.loads(out.getvalue())
    assert "LookupError: gone" in entry["exception"]
    assert entry["body"] == "b'\\xff'"


def test_libraries_that_use_logging_come_along() -> None:
    out = io.StringIO()
    set_up("json", "info", out, "loader")
    logging.getLogger("py4j").warning("gateway %s", "gone")
    logging.getLogger("py4j").info("each command")
    broken = logging.LogRecord("py4j", logging.WARNING, "x.py", 1, "broken %d", ("text",), None)
    logging.getLogger().handlers[-1].emit(broken)
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [line["event"] for line in lines] == ["gateway gone", "broken %d ('text',)"]
    assert {line["process"] for line in lines} == {"loader"}
    assert {line["logger"] for line in lines} == {"py4j"}


def test_the_last_set_up_holds_alone() -> None:
    first, second = io.StringIO(), io.StringIO()
    set_up("json", "info", first)
    set_up("json", "info", second)
    logging.getLogger("lib").error("once")
    structlog.get_logger().error("twice")
    assert first.getvalue() == ""
    assert len(second.getvalue().splitlines()) == 2


def test_a_line_that_cannot_be_written_is_dropped() -> None:
    out = io.StringIO()
    set_up("json", "info", out)
    out.close()
    structlog.get_logger().error("nobody hears this")
    logging.getLogger("lib").error("nor this")


def test_unknown_words_are_refused() -> None:
    for words in (("xml", "info"), ("json", "loud")):
        with pytest.raises(ValueError, match="none that is known"):
            set_up(*words, io.StringIO())


def test_lines_of_an_outage_are_counted_by_address() -> None:
    out = io.StringIO()
    set_up("json", "info", out)
    log = structlog.get_logger()
    for _ in range(100):
        log.warning("name_server_failed", address="a:1")
        log.warning("name_server_failed", address="b:1")
        log.warning("anything_else")
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [line.get("address") for line in lines if line["event"] == "name_server_failed"] == ["a:1", "b:1"]
    assert sum(line["event"] == "anything_else" for line in lines) == 100


def test_a_fault_that_each_message_meets_is_counted_by_its_hook_and_a_message_has_its_own_line() -> None:
    out = io.StringIO()
    set_up("json", "info", out)
    log = structlog.get_logger()
    for offset in range(100):
        log.warning("consume_hook_failed", hook="a", topic="t", offset=offset)
        log.warning("consume_hook_failed", hook="b", topic="t", offset=offset)
        log.warning("message_failed", topic="t", offset=offset)
    events = [json.loads(line)["event"] for line in out.getvalue().splitlines()]
    assert (events.count("consume_hook_failed"), events.count("message_failed")) == (2, 100)


def test_what_is_counted_hides_no_other_fault() -> None:
    out = io.StringIO()
    set_up("json", "info", out)
    log = structlog.get_logger()
    for offset in range(300):
        log.warning("filter_failed", topic="orders", broker="a", offset=offset, error=f"KeyError: 'STATE' at {offset}")
        log.warning("filter_failed", topic="payments", broker="a", offset=offset, error="ValueError: no number")
        log.error("message_dropped", topic="orders", broker="a", offset=offset, error="ValueError: lost")
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    found = Counter((each["event"], each["topic"]) for each in lines)
    assert found["filter_failed", "orders"] == found["filter_failed", "payments"] == 1
    assert found["message_dropped", "orders"] == 300, "each is a message that nobody gets"


def test_lines_of_an_outage_are_counted_by_broker_and_not_by_queue() -> None:
    out = io.StringIO()
    set_up("json", "info", out)
    for queue_id in range(50):
        for topic, broker in (("t", "a"), ("u", "a"), ("t", "b")):
            structlog.get_logger().warning("pull_failed", topic=topic, broker=broker, queue_id=queue_id, offset=1)
    assert [json.loads(line)["broker"] for line in out.getvalue().splitlines()] == ["a", "b"]


def test_an_outage_is_one_line_for_each_server_whatever_fails_because_of_it() -> None:
    out = io.StringIO()
    set_up("json", "info", out)
    log = structlog.get_logger()
    for offset in range(100):
        log.warning("pull_failed", topic="t", broker="a", queue_id=0, offset=offset, error="a:1: Connection refused")
        log.warning("heartbeat_failed", broker="a", address="a:1", error="a:1: Connection refused")
        log.warning("route_not_renewed", topic="t", error="n:1: no name server answered")
        log.warning("commit_failed", topic="t", broker="a", queue_id=0, offset=1, error="COMMIT was refused: 16 NO")
    events = [json.loads(line)["event"] for line in out.getvalue().splitlines()]
    assert events == ["pull_failed", "commit_failed"], "a refusal is no outage, and has a line of its own"


def test_a_line_has_the_id_of_the_current_span() -> None:
    from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, use_span

    out = io.StringIO()
    set_up("json", "info", out)
    structlog.get_logger().info("outside")
    with use_span(NonRecordingSpan(SpanContext(0xABC, 0xDEF, is_remote=False, trace_flags=TraceFlags(1)))):
        structlog.get_logger().info("inside")
    outside, inside = (json.loads(line) for line in out.getvalue().splitlines())
    assert "trace_id" not in outside
    assert inside["trace_id"] == f"{0xABC:032x}"
