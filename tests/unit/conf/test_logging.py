from __future__ import annotations

import contextlib
import fcntl
import gc
import gzip
import io
import json
import logging
import os
import resource
import signal
import socket
import threading
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from datetime import date
from pathlib import Path
from typing import Any, TextIO, cast

import pytest
import structlog

from rocketcrew.client.logs import get_logger
from rocketcrew.conf.logging import LogFile, log_stream, recent_faults, set_up
from rocketcrew.remoting.errors import UsageError
from rocketcrew.workers.context import logger


@pytest.fixture(autouse=True)
def leave_no_trace() -> Iterator[None]:
    root = logging.getLogger()
    level, handlers, last_resort = root.level, list(root.handlers), logging.lastResort
    yield
    root.setLevel(level)
    root.handlers[:] = handlers
    logging.captureWarnings(False)
    logging.lastResort = last_resort
    logging.getLogger("py.warnings").handlers.clear()
    structlog.reset_defaults()


def bare_root() -> None:
    """Makes it as Python does; `leave_no_trace` gives back what it had."""
    logging.getLogger().handlers.clear()
    logging.getLogger().setLevel(logging.WARNING)


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


def test_a_key_of_the_process_that_is_empty_is_on_no_line() -> None:
    out = io.StringIO()
    set_up("json", "info", out, "load", group="")
    structlog.get_logger().info("loading")
    assert "group" not in json.loads(out.getvalue())


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


def test_what_a_line_for_people_has_of_others_does_nothing_to_their_terminal() -> None:
    out = Terminal()
    set_up("human", "info", out, colors=False)
    try:
        raise LookupError("gone\x1b[2J")
    except LookupError:
        structlog.get_logger().exception("late\x1b[2J", keys="K\x1b[2J\x9b", properties={"a": "\x1b[2J"})
        logging.getLogger("lib").exception("of \x1b[2J %s", "b\x1b[2J")
    structlog.get_logger().warning("message_failed", exception="Traceback\n  \x1b[2J")
    assert "\x1b" not in out.getvalue()
    assert all(shown in out.getvalue() for shown in (r"late\x1b[2J", r"keys='K\x1b[2J\x9b'", r"of \x1b[2J b\x1b[2J"))
    assert "Traceback\n" in out.getvalue()


class Clears:
    def __repr__(self) -> str:
        return "Clears\x1b[2J"


@pytest.mark.parametrize(
    ("event", "keys", "expected"),
    [
        ("x", {"v": "a b\x1b[2J"}, r"v='a b\x1b[2J'"),
        ("x", {"v": "a\r\nb"}, r"v='a\r\nb'"),
        ("x", {"v": r"C:\new"}, r"v=C:\new"),
        ("x", {"v": Clears()}, r"v=Clears\x1b[2J"),
        ("x", {"v": [Clears()]}, r"v=[Clears\x1b[2J]"),
        ("x", {"k\x1b[2J": 1}, r"k\x1b[2J=1"),
        ("x", {"logger": "a\x1b[2J"}, r"[a\x1b[2J]"),
        (ValueError("\x1b[2J"), {}, r"] \x1b[2J"),
        ("x", {"stack": ["\x1b[2J"]}, "\n" + r"['\x1b[2J']"),
        ("x", {"exception": 5}, "\n5"),
        ("one\r\ntwo", {}, "] one\r\ntwo"),
    ],
)
def test_what_a_line_for_people_shows_of_controls_is_escaped_once(
    event: object, keys: dict[str, object], expected: str
) -> None:
    out = Terminal()
    set_up("human", "info", out, colors=False)
    structlog.get_logger().warning(event, **keys)
    assert expected in out.getvalue()
    assert "\x1b" not in out.getvalue()


def test_colours_stay_around_what_is_escaped() -> None:
    out = Terminal()
    set_up("human", "info", out)
    structlog.get_logger().warning("x", v="a\x1b[35mb")
    assert "\x1b[35m" + r"'a\x1b[35mb'" + "\x1b[0m" in out.getvalue()


@pytest.mark.parametrize("method", ["info", "log"])
def test_the_place_of_a_line_is_that_of_the_call(method: str) -> None:
    out = io.StringIO()
    set_up("json", "info", out)
    shows_place = structlog.processors.CallsiteParameterAdder({structlog.processors.CallsiteParameter.FUNC_NAME})
    structlog.configure(processors=[shows_place, *structlog.get_config()["processors"]])
    level = (logging.INFO,) if method == "log" else ()
    getattr(structlog.get_logger(), method)(*level, "%d counted", "three", stack_info=True)
    line = json.loads(out.getvalue())
    assert (line["event"], line["func_name"]) == (
        "%d counted ('three',)",
        test_the_place_of_a_line_is_that_of_the_call.__name__,
    )
    assert "rocketcrew" not in line["stack"].splitlines()[-2]
    assert "getattr(structlog" in line["stack"].splitlines()[-1]


def test_a_line_of_the_users_own_is_written_each_time_whatever_its_name() -> None:
    out = io.StringIO()
    set_up("json", "info", out)
    for number in range(3):
        logging.getLogger("shop").warning("request_failed")
        structlog.get_logger().warning("commit_failed", order=number)
        structlog.get_logger("shop").warning("connection_closed", order=number)
        logger().warning("request_failed", order=number)
    assert len(out.getvalue().splitlines()) == 12


@pytest.mark.parametrize("made_by", [structlog.get_logger, get_logger], ids=["structlog's", "client/logs.py's"])
def test_lines_of_ours_are_counted_whatever_made_their_logger(made_by: Callable[[str], Any]) -> None:
    out = io.StringIO()
    set_up("json", "info", out)
    for _ in range(30):
        made_by("rocketcrew.client").warning("connection_closed", address="h:1")
    assert len(out.getvalue().splitlines()) == 1


def test_what_is_remembered_of_a_line_keeps_none_of_its_values_alive() -> None:
    class Model:
        pass

    set_up("json", "info", io.StringIO())
    model = Model()
    structlog.get_logger().warning("not_loaded", model=model, models=[model], error=ValueError(model))
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
    assert recent_faults()[-1]["event"] == "not_loaded"


def test_a_worker_remembers_nothing() -> None:
    before = recent_faults()
    set_up("json", "info", io.StringIO(), "worker")
    structlog.get_logger().warning("not_loaded", body="x" * 1000)
    assert recent_faults() == before


def test_a_record_that_nothing_can_be_made_of_is_dropped() -> None:
    out = io.StringIO()
    set_up("json", "info", out)
    logging.getLogger().handlers[-1].emit(logging.makeLogRecord({"msg": "odd", "levelname": None}))
    assert out.getvalue() == ""


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


@pytest.mark.parametrize(
    ("users", "level", "told"),
    [("INFO", "info", 1), ("INFO", "warning", 0), ("DEBUG", "info", 1), ("WARNING", "info", 0)],
)
def test_a_level_that_the_handlers_module_has_set_holds(users: str, level: str, told: int) -> None:
    """By `logging.basicConfig(level=...)`, before ours is set up: its own lines at INFO are wanted."""
    out, root = io.StringIO(), logging.getLogger()
    root.handlers.clear()  # one of ours, of another test, would say that its level is ours
    root.setLevel(users)
    for _ in range(2):
        set_up("json", level, out)
    logging.getLogger("shop").info("counted")
    logging.getLogger("shop").debug("never")
    assert len(out.getvalue().splitlines()) == told


def test_the_last_set_up_holds_alone() -> None:
    first, second = io.StringIO(), io.StringIO()
    set_up("json", "info", first)
    set_up("json", "info", second)
    logging.getLogger("lib").error("once")
    structlog.get_logger().error("twice")
    assert first.getvalue() == ""
    assert len(second.getvalue().splitlines()) == 2


def test_what_modules_log_while_they_are_imported_are_lines_too() -> None:
    bare_root()
    out = io.StringIO()
    set_up("json", "info", out, "forkserver", for_imports=True, group="g")
    logging.getLogger("shop").setLevel(logging.DEBUG)
    logging.getLogger("shop").info("of a logger with a level")
    logging.getLogger("shop").debug("below log.level")
    logging.getLogger("lib").warning("of any")
    logging.getLogger("lib").info("nobody has asked for")
    warnings.warn("deprecated", UserWarning, stacklevel=1)
    structlog.get_logger().info("by structlog")
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [line["event"].rpartition("Warning: ")[2].split("\n")[0] for line in lines] == [
        "of a logger with a level", "of any", "deprecated", "by structlog"
    ]  # fmt: skip
    assert {(line["process"], line["group"]) for line in lines} == {("forkserver", "g")}


def test_basic_config_of_a_module_that_is_imported_does_what_it_did() -> None:
    bare_root()
    out, its_own = io.StringIO(), io.StringIO()
    set_up("json", "info", io.StringIO(), "forkserver", for_imports=True)
    logging.basicConfig(level=logging.INFO, stream=its_own, format="%(message)s")
    set_up("json", "info", out, "worker")
    logging.getLogger("shop").info("counted")
    warnings.warn("once", UserWarning, stacklevel=1)
    assert its_own.getvalue().startswith("counted\n")
    assert json.loads(out.getvalue().splitlines()[0])["event"] == "counted"
    assert len(out.getvalue().splitlines()) == 2


def test_a_logger_that_a_module_has_bound_while_it_was_imported_has_the_keys_of_the_worker() -> None:
    out = io.StringIO()
    set_up("json", "info", out, "forkserver", for_imports=True)
    bound = structlog.get_logger().bind(shop=1)
    set_up("json", "info", out, "worker", worker="w1")
    bound.info("counted")
    line = json.loads(out.getvalue())
    assert (line["process"], line["worker"], line["shop"]) == ("worker", "w1", 1)


LONG = 20_000


def test_a_line_is_one_write_however_long_it_is() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs, open(theirs.fileno(), "w", encoding="utf-8", closefd=False) as stream:
        set_up("json", "info", stream)
        stream.write("printed before")
        structlog.get_logger().info("x" * LONG)
        assert ours.recv(1 << 20) == b"printed before"
        line = ours.recv(1 << 20)
        assert json.loads(line)["event"] == "x" * LONG
        assert line.endswith(b"}\n")


def test_a_line_that_a_pipe_takes_in_parts_is_written_to_its_end_and_one_that_is_cut_takes_no_other_along() -> None:
    reads, writes = os.pipe()
    os.set_blocking(writes, False)  # somebody else's doing
    size = fcntl.fcntl(writes, fcntl.F_SETPIPE_SZ, 65536)
    with open(reads, "rb", buffering=0) as read, open(writes, "w", encoding="utf-8") as stream:
        set_up("json", "info", stream)
        log = structlog.get_logger()
        log.info("x" * 2 * size)
        assert len(read.read(2 * size)) == size
        log.info("after")
        assert [json.loads(line)["event"] for line in read.read(size).splitlines() if line] == ["after"]


def small_pipe() -> tuple[int, int]:
    reads, writes = os.pipe()
    fcntl.fcntl(writes, fcntl.F_SETPIPE_SZ, 4096)
    return reads, writes


def test_lines_of_threads_stay_apart_though_a_pipe_takes_them_in_parts() -> None:
    reads, writes = small_pipe()
    with open(reads, "rb") as read, open(writes, "w", encoding="utf-8") as stream:
        set_up("json", "info", stream)

        def tell(event: str) -> None:
            for _ in range(3):
                structlog.get_logger().info(event)

        events = ["x" * LONG, "y" * LONG, "short"]
        tellers = [threading.Thread(target=tell, args=(event,)) for event in events]
        for teller in tellers:
            teller.start()
        told = [json.loads(read.readline())["event"] for _ in range(9)]
        for teller in tellers:
            teller.join()
    assert sorted(told) == sorted(events * 3)


def told_around_a_signal(handler: Callable[[], None]) -> list[str]:
    """The whole lines, when a signal comes while a pipe has a part of the first one, and "next" follows."""
    reads, writes = small_pipe()
    main, parts, comes = threading.main_thread().ident or 0, list[bytes](), threading.Event()

    def read_on() -> None:
        with open(reads, "rb", buffering=0) as read:
            parts.append(read.read(1))
            signal.pthread_kill(main, signal.SIGUSR1)
            comes.wait()  # no more is read before the write was broken off
            parts.append(read.readall())

    def handle(_number: int, _frame: object) -> None:
        comes.set()
        handler()

    before = signal.signal(signal.SIGUSR1, handle)
    reader = threading.Thread(target=read_on)
    try:
        with open(writes, "w", encoding="utf-8") as stream:
            set_up("json", "info", stream)
            reader.start()
            with contextlib.suppress(KeyboardInterrupt):
                structlog.get_logger().info("x" * LONG)
            structlog.get_logger().info("next")
    finally:
        signal.signal(signal.SIGUSR1, before)
        reader.join()
    lines = b"".join(parts).splitlines()
    return [json.loads(line)["event"] for line in lines if line.startswith(b"{") and line.endswith(b"}")]


@pytest.mark.parametrize("error", [KeyboardInterrupt, TimeoutError])
def test_a_line_that_a_signal_has_cut_takes_no_other_along(error: type[BaseException]) -> None:
    def stop() -> None:
        raise error

    assert told_around_a_signal(stop) == ["next"]


def test_a_line_of_a_signals_handler_stands_for_itself() -> None:
    assert told_around_a_signal(lambda: structlog.get_logger().info("handled")) == ["handled", "next"]


def test_a_stream_that_does_more_than_write_gets_the_lines_itself(tmp_path: Path) -> None:
    class Tee(io.TextIOWrapper):
        copy = ""

        def write(self, text: str, /) -> int:
            self.copy += text
            return super().write(text)

    with Tee(open(tmp_path / "log", "wb")) as tee:
        set_up("json", "info", tee)
        structlog.get_logger().info("both")
        assert tee.copy == (tmp_path / "log").read_text()
        assert json.loads(tee.copy)["event"] == "both"
    with gzip.open(tmp_path / "log.gz", "wt", encoding="utf-8") as packed:
        set_up("json", "info", cast("TextIO", packed))
        structlog.get_logger().info("packed")
    with gzip.open(tmp_path / "log.gz", "rt", encoding="utf-8") as unpacked:
        assert json.loads(unpacked.read())["event"] == "packed"


def test_an_encoding_that_is_changed_later_is_that_of_the_lines_that_follow(tmp_path: Path) -> None:
    with open(tmp_path / "log", "w", encoding="ascii", errors="replace") as stream:
        set_up("human", "info", stream)
        structlog.get_logger().info("one é")
        stream.reconfigure(encoding="latin-1")
        structlog.get_logger().info("two é")
    before, after = (tmp_path / "log").read_bytes().splitlines()
    assert b"one ?" in before
    assert b"two \xe9" in after


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
    log = structlog.get_logger("rocketcrew.member")
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
    log = structlog.get_logger("rocketcrew.member")
    for offset in range(100):
        log.warning("consume_hook_failed", hook="a", topic="t", offset=offset)
        log.warning("consume_hook_failed", hook="b", topic="t", offset=offset)
        log.warning("message_failed", topic="t", offset=offset)
        log.warning("send_back_refused", topic="t", offset=offset, attempts=1, retry_in_ms=5000)
        log.warning(
            "dead_letter_refused", topic="t", error=f"SEND_MESSAGE_V2 (310) was refused: 2 busy for {offset} ms"
        )
    events = Counter(json.loads(line)["event"] for line in out.getvalue().splitlines())
    assert events == {
        "consume_hook_failed": 2, "message_failed": 100, "send_back_refused": 1, "dead_letter_refused": 1,
    }  # fmt: skip


def test_what_is_counted_hides_no_other_fault() -> None:
    out = io.StringIO()
    set_up("json", "info", out)
    log = structlog.get_logger("rocketcrew.member")
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
            structlog.get_logger("rocketcrew.member").warning(
                "pull_failed", topic=topic, broker=broker, queue_id=queue_id, offset=1
            )
    assert [json.loads(line)["broker"] for line in out.getvalue().splitlines()] == ["a", "b"]


def test_an_outage_is_one_line_for_each_server_whatever_fails_because_of_it() -> None:
    out = io.StringIO()
    set_up("json", "info", out)
    log = structlog.get_logger("rocketcrew.member")
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


# --- what cannot be rendered ----------------------------------------------------------------------------------------


class Detached:
    def __repr__(self) -> str:
        raise RuntimeError("not bound to a Session")


@pytest.mark.parametrize("format", ["json", "human"])
def test_no_value_of_a_line_raises_in_who_logs_it(format: str) -> None:
    bare_root()
    out = io.StringIO()
    set_up(format, "info", out)
    itself: list[object] = []
    itself.append(itself)
    log = structlog.get_logger().bind(bound={date(2026, 1, 1): 3})
    values = ({("a", 1): Detached()}, itself, Detached(), 10**5_000, float("nan"))
    for value in values:
        log.info("counted", value=value)
        logging.getLogger("lib").warning("counted %r", value)
    log.info("%d counted", "three")
    log.info(Detached())
    log.info({"counted": 3})
    log.error("request_failed", topic=["orders"], broker=Detached(), error=Detached())
    log.error("counted", exc_info=("no", "such"))
    lines = out.getvalue().splitlines()
    assert sum("counted" in line for line in lines) == 2 * len(values) + 3
    assert "%d counted ('three',)" in out.getvalue()
    assert "2026" in out.getvalue()
    assert "request_failed" in out.getvalue()


def test_a_json_line_is_json() -> None:
    out = io.StringIO()
    set_up("json", "info", out)
    structlog.get_logger().info("scores", mean=float("nan"), each={"a": [float("inf"), 0.5]}, count=3)
    line = json.loads(out.getvalue(), parse_constant=pytest.fail)
    assert (line["mean"], line["each"], line["count"]) == ("nan", {"a": ["inf", 0.5]}, 3)


# --- a file, and its rotation ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def file_size_limit(size_bytes: int) -> Generator[None]:
    """As on a full disk, files grow no further than this."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[tuple[Path, LogFile]]:
    path = tmp_path / "crew.log"
    made = LogFile(str(path))
    yield path, made
    made.close()


def test_a_renamed_file_is_followed_by_all_who_write_it(file: tuple[Path, LogFile]) -> None:
    path, ours = file
    theirs = LogFile(str(path))
    for number in range(3):
        ours.write(f"ours {number}\n")
        theirs.write(f"theirs {number}\n")
        path.rename(path.with_suffix(f".{number}"))
    theirs.write("theirs last\n")
    ours.write("ours last\n")
    theirs.close()
    kept = [path.with_suffix(f".{number}").read_text() for number in range(3)]
    assert kept == [f"ours {number}\ntheirs {number}\n" for number in range(3)]
    assert path.read_text() == "theirs last\nours last\n"


def test_a_file_that_was_made_anew_under_the_name_is_taken(file: tuple[Path, LogFile]) -> None:
    path, log = file
    log.write("before\n")
    path.rename(path.with_suffix(".1"))
    path.write_text("made by logrotate\n")  # `create`
    log.write("after\n")
    assert path.read_text() == "made by logrotate\nafter\n"


def test_a_file_that_was_copied_and_cut_short_goes_on_at_its_new_end(file: tuple[Path, LogFile]) -> None:
    path, log = file
    log.write("before\n")
    os.truncate(path, 0)
    log.write("after\n")
    assert path.read_bytes() == b"after\n", "no hole of zeros"


def test_while_no_new_file_can_be_made_lines_go_on_into_the_old_one(file: tuple[Path, LogFile]) -> None:
    path, log = file
    old = path.with_suffix(".1")
    path.rename(old)
    path.symlink_to(path.parent / "away" / "crew.log")
    log.write("in between\n")
    path.unlink()
    log.write("after\n")
    assert (old.read_text(), path.read_text()) == ("in between\n", "after\n")


def test_a_file_in_the_current_folder_is_the_same_after_the_process_has_left_it(tmp_path: Path) -> None:
    with contextlib.chdir(tmp_path):
        log = LogFile("crew.log")
    (tmp_path / "crew.log").rename(tmp_path / "crew.log.1")
    log.write("after\n")
    log.close()
    assert (tmp_path / "crew.log").read_text() == "after\n"


@pytest.mark.usefixtures("no_collection")
def test_rotations_cost_no_descriptor(file: tuple[Path, LogFile]) -> None:
    path, log = file
    before = len(os.listdir("/proc/self/fd"))
    for number in range(20):
        path.rename(path.with_suffix(f".{number}"))
        log.write("line\n")
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_line_that_was_cut_by_a_full_disk_does_not_take_the_next_one_along(file: tuple[Path, LogFile]) -> None:
    path, log = file
    log.write("first\n")
    with pytest.raises(OSError, match=r"."), file_size_limit(10):
        log.write("second line\n")
        log.write("third\n")
    log.write("fourth\n")
    assert path.read_text().splitlines() == ["first", "seco", "fourth"]


def test_the_log_goes_to_the_file_as_json(tmp_path: Path) -> None:
    path = tmp_path / "crew.log"
    stream = log_stream(str(path), io.StringIO())
    set_up("auto", "info", stream)
    structlog.get_logger().info("hello", topic="orders")
    logging.getLogger("lib").warning("too")
    stream.close()
    assert [json.loads(line)["event"] for line in path.read_text().splitlines()] == ["hello", "too"]


def test_without_a_file_the_log_goes_where_it_went() -> None:
    out = io.StringIO()
    assert log_stream("", out) is out


def test_a_file_that_cannot_be_opened_is_named_with_what_to_do(tmp_path: Path) -> None:
    fifo = tmp_path / "unread"
    os.mkfifo(fifo)
    for path in (tmp_path / "nosuch" / "crew.log", tmp_path, fifo):
        with pytest.raises(UsageError, match=r"^log\.file = '.*' cannot be written \(.*\): name a file in a folder"):
            log_stream(str(path), io.StringIO())
