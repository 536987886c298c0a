"""What a handler raises may be broken itself: its message has failed then, and its worker goes on. Where a worker ends by an
error of our own between two calls, its cell names whom that is charged to."""

from __future__ import annotations

import io
import pdb  # noqa: T100  a debugger without a terminal
import struct
import tracemalloc
from bdb import BdbQuit
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from rocketcrew.remoting.errors import UsageError
from rocketcrew.workers.api import BodyError, Retry, Rollback, Suspend, as_handler, handler
from rocketcrew.workers.boot import WorkerBounds
from rocketcrew.workers.cells import BETWEEN, CHUNK_ID, LAST, RECORDS, STARTED_NS, STATE
from rocketcrew.workers.failures import Cause
from rocketcrew.workers.link import DescriptorsClosedError, LinkClosedError
from rocketcrew.workers.main import serve
from rocketcrew.workers.ordered import OrderedRunner
from rocketcrew.workers.ordered_packets import RETURNED, OrderedDescriptor, Returned, decode_returned, encode_ordered
from rocketcrew.workers.packets import encode_stop
from rocketcrew.workers.run import Run
from rocketcrew.workers.user_errors import (
    FRAMES_CHARS_MAX,
    MESSAGE_CHARS_MAX,
    NO_TERMINAL,
    describe_error,
    failure_of,
    usable,
    user_traceback,
)
from rocketcrew.workers.worker import WorkerLoop

Make = Callable[..., Any]


class NotPaid(Retry):
    def __init__(self, order: str) -> None:  # pyright: ignore[reportMissingSuperCall]
        self.order = order


class Waits(Suspend):
    def __init__(self, order: str) -> None:  # pyright: ignore[reportMissingSuperCall]
        self.order = order


class Undone(Rollback):
    def __init__(self, order: str) -> None:  # pyright: ignore[reportMissingSuperCall]
        self.order = order


class Lazy(Retry):
    @property
    def delay_level(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        raise ZeroDivisionError("no level yet")

    @delay_level.setter
    def delay_level(self, level: int) -> None:
        pass


class Mute(Retry):
    def __str__(self) -> str:
        raise ZeroDivisionError


class Shy:
    def __repr__(self) -> str:
        raise ZeroDivisionError


def changed(error: BaseException, name: str, value: object) -> BaseException:
    """It, with an attribute that its constructor would have refused."""
    setattr(error, name, value)
    return error


UNUSABLE: list[tuple[BaseException, str]] = [
    (NotPaid("o-1"), "NotPaid has no delay_level: call super().__init__() in its __init__"),
    (Waits("o-1"), "Waits has no suspend_ms: call super().__init__() in its __init__"),
    (Undone("o-1"), "Undone has no suspend_ms: call super().__init__() in its __init__"),
    (Lazy(), "Lazy: ZeroDivisionError: no level yet"),
    (changed(Retry(), "delay_level", 300), "Retry(delay_level=300): give a whole number from -1 to 127"),
    (changed(Retry(), "delay_level", -2), "Retry(delay_level=-2): give"),
    (changed(Retry(), "delay_level", "high"), "Retry(delay_level='high'): give"),
    (changed(Retry(), "delay_level", None), "Retry(delay_level=None): give"),
    (changed(Retry(), "delay_level", Shy()), "Retry: ZeroDivisionError"),
    (changed(BodyError("no"), "delay_level", 300), "BodyError(delay_level=300): give"),
    (changed(Retry(3), "reason", 7), "Retry(reason=7): give a str"),
    (changed(Suspend(), "suspend_ms", None), "Suspend(suspend_ms=None): give a whole number"),
    (changed(Suspend(), "suspend_ms", 1 << 40), "Suspend(suspend_ms=1099511627776): give a whole number"),
    (changed(Suspend(), "reason", None), "Suspend(reason=None): give a str"),
]
NAMES = [f"{type(error).__name__}-{number}" for number, (error, _) in enumerate(UNUSABLE)]


@pytest.mark.parametrize(("error", "text"), UNUSABLE, ids=NAMES)
def test_what_asks_for_something_that_cannot_be_done_is_an_ordinary_failure_that_says_why(
    error: BaseException, text: str
) -> None:
    failure = failure_of(error)
    assert (failure.cause, failure.level) == (Cause.FAILED, 0)
    assert text in failure.error
    assert isinstance(usable(error), UsageError)


@pytest.mark.parametrize(
    ("error", "cause", "level"),
    [(Retry(), Cause.FAILED, 0), (Retry(127, "x"), Cause.FAILED, 127), (Retry(-1), Cause.GIVEN_UP, 0),
     (BodyError("x", -1), Cause.GIVEN_UP, 0), (Mute(5), Cause.FAILED, 5), (Suspend(50), Cause.FAILED, 0)],
)  # fmt: skip
def test_what_can_be_done_is_left_as_it_is(error: BaseException, cause: Cause, level: int) -> None:
    failure = failure_of(error)
    assert (failure.cause, failure.level) == (cause, level)
    assert usable(error) is error


class Noted(Exception):
    @property
    def __notes__(self) -> list[str]:  # type: ignore[override]
        raise ZeroDivisionError


def no_sql(*where: Any) -> SyntaxError:
    return SyntaxError("not SQL", where)


@pytest.mark.parametrize("error", [no_sql("a.sql", 1, 2, b"select"), no_sql("a.sql", 1, "b", "select"), Noted("x")])
def test_an_error_that_cannot_be_written_as_python_does_is_written_in_short(error: BaseException) -> None:
    text = user_traceback(error).splitlines()[0]
    name, says, _ = text.partition(": ")
    assert (
        name.rpartition(".")[2] == type(error).__name__
    )  # Python 3.13 can, for notes, and writes the module's name too
    assert says


class Leaves(Exception):
    """Every text of it ends the process of who reads it."""

    def __str__(self) -> str:
        raise SystemExit(3)

    @property
    def __notes__(self) -> list[str]:  # type: ignore[override]
        raise SystemExit(3)


class NamelessKind(type):
    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise RuntimeError("no name")


class Nameless(Exception, metaclass=NamelessKind):
    pass


class Traceless(Exception):
    @property
    def __traceback__(self) -> Any:
        raise SystemExit(3)


class Classless(Exception):
    @property
    def __class__(self) -> Any:
        raise SystemExit(3)


class LeavingRetry(Retry):
    @property
    def reason(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        raise SystemExit(3)

    @reason.setter
    def reason(self, reason: str) -> None:
        pass


class Frozen(dict[str, object]):
    def get(self, *_: object) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        raise SystemExit(3)

    def __setitem__(self, name: str, value: object) -> None:
        raise SystemExit(3)


class Unequal(str):
    """A name that is asked whether it is another."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        raise SystemExit(3)

    def __hash__(self) -> int:
        return hash("_rocketcrew_told")


def changed_names(names: dict[str, object]) -> BaseException:
    error = ValueError("x")
    error.__dict__ = names
    return error


HOSTILE: list[tuple[BaseException, str]] = [
    (Leaves(), "Leaves: <str() failed>"),
    (Nameless("x"), "Nameless: x"),
    (Traceless("x"), "Traceless: x"),
    (Classless("x"), "Classless: SystemExit: 3"),
    (LeavingRetry(), "LeavingRetry: SystemExit: 3"),
    (changed_names(Frozen()), "ValueError: x"),
    (changed_names({Unequal(): 1}), "ValueError: x"),
]


@pytest.mark.parametrize(("error", "text"), HOSTILE, ids=[text.partition(":")[0] for _, text in HOSTILE])
def test_what_an_error_does_when_it_is_looked_at_ends_nobody(error: BaseException, text: str) -> None:
    failure = failure_of(error)
    assert (failure.cause, failure.level) == (Cause.FAILED, 0)
    assert text in failure.error
    assert text.partition(":")[0] in user_traceback(usable(error))


def stops_in_the_debugger(debugger: pdb.Pdb) -> None:
    debugger.set_trace()
    raise AssertionError("goes on")


def test_a_debugger_that_has_no_terminal_is_told_as_that() -> None:
    """By the user's own line, and not the debugger's."""
    with pytest.raises(BdbQuit) as raised:
        stops_in_the_debugger(pdb.Pdb(stdin=io.StringIO(), stdout=io.StringIO(), nosigint=True, readrc=False))
    line = stops_in_the_debugger.__code__.co_firstlineno
    told = failure_of(raised.value).error
    assert told.startswith(f"BdbQuit: {NO_TERMINAL} (test_unusable_errors.py:")
    assert told.endswith((f":{line + 1})", f":{line + 2})"))  # Python 3.13 stops in the call itself


LONG: Final = "x" * 100_000


@pytest.mark.parametrize(
    "error", [ValueError(LONG), Retry(reason=LONG), SyntaxError("no", ("a.sql", 1, 2, LONG)), KeyError(LONG)]
)
def test_of_what_an_error_says_the_beginning_is_told(error: BaseException) -> None:
    for text in (user_traceback(error), describe_error(error)):
        assert text.startswith(type(error).__name__)
        assert len(text) <= MESSAGE_CHARS_MAX + 100
        assert "xxx…" in text or text.startswith("SyntaxError: no")


def test_a_long_message_is_not_copied_for_its_log_line() -> None:
    """100 MB of it in a worker with 8 MiB left would be a death for the message."""
    error = ValueError("x" * 10_000_000)
    tracemalloc.start()
    told = failure_of(error).error, user_traceback(error)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 1_000_000
    assert min(map(len, told)) > 100


def test_an_error_of_code_without_line_numbers_is_told_without_its_frames() -> None:
    def raises() -> None:
        raise ValueError("no")

    raises.__code__ = raises.__code__.replace(co_linetable=b"")
    with pytest.raises(ValueError, match="no") as caught:
        raises()
    assert user_traceback(caught.value) == "ValueError: no\n"
    assert describe_error(caught.value).startswith("ValueError: no (")


class Loader:
    def get_source(self, _name: str) -> str:
        raise SystemExit(3)


def test_an_error_of_code_whose_loader_leaves_is_told_without_its_frames() -> None:
    names: dict[str, Any] = {"__name__": "loaded", "__loader__": Loader()}
    exec(compile("def raises():\n    1 / 0\n", "loaded-by-nobody.py", "exec"), names)
    with pytest.raises(ZeroDivisionError) as caught:
        names["raises"]()
    assert user_traceback(caught.value) == "ZeroDivisionError: division by zero\n"


def test_of_frames_with_long_lines_the_innermost_are_told(tmp_path: Path) -> None:
    path, names = tmp_path / "long.py", dict[str, Any]()
    path.write_text(f"def fails(n):\n    return fails(n - 1) if n else 1 / 0  # {LONG}\n")
    exec(compile(path.read_text(), str(path), "exec"), names)
    with pytest.raises(ZeroDivisionError) as caught:
        names["fails"](3)
    text = user_traceback(caught.value)
    assert text.startswith("Traceback (most recent call last):\n…x")
    assert text.endswith("ZeroDivisionError: division by zero\n")
    assert len(text) <= FRAMES_CHARS_MAX + 100


# --- through a worker ---------------------------------------------------------------------------------------------------


def run_in_order(b: Any, *records: bytes) -> list[Returned]:
    data = b"".join(records)
    b.link.send(encode_ordered([OrderedDescriptor(1, 1, 0, len(data), len(records), 0, ())], 0), data)
    b.steps(3)
    return [decode_returned(packet) for packet in b.packets() if packet[0] == RETURNED]


@pytest.mark.parametrize(("error", "text"), UNUSABLE, ids=NAMES)
def test_in_order_the_message_is_given_back_and_the_worker_goes_on(
    bench: Make, make_record: Make, error: BaseException, text: str
) -> None:
    raised = [error]

    @handler(order="queue", auto_commit=False)
    def held(_message: Any) -> None:
        if raised:
            raise raised.pop()

    b = bench(held)
    [returned] = run_in_order(b, make_record(offset=7), make_record(offset=8))
    assert (returned.start, returned.failed, returned.suspend_ms) == (0, 1, -1)
    assert returned.failure is not None
    assert (returned.failure.cause, returned.failure.level) == (Cause.FAILED, 0)
    assert text in returned.failure.error
    assert [(line["event"], text in line["error"]) for line in b.log.events] == [("message_failed", True)]
    assert run_in_order(b, make_record(offset=7)) == []
    assert b.cell[STATE] == 0


@pytest.mark.parametrize(
    ("error", "text"),
    [
        *((changed(Retry(), "delay_level", level), f"delay_level={level!r}") for level in (300, "high", None)),
        (NotPaid("o-1"), "NotPaid has no delay_level"),
    ],
)  # fmt: skip
def test_without_an_order_it_is_reported_as_a_failure_and_the_worker_goes_on(
    bench: Make, make_record: Make, error: Exception, text: str
) -> None:
    def refused(message: Any) -> object:
        return error if message.queue_offset == 1 else None

    b = bench(refused)
    b.steps(1)
    b.chunk([make_record(offset=0), make_record(offset=1)])
    b.chunk([make_record(offset=2)], 2)
    b.steps(3)
    reports, failures = b.outcomes()
    assert [(report.chunk_id, report.records, report.failed) for report in reports] == [(1, 2, 1), (2, 1, 0)]
    assert [(place, failure.level) for place, failure in failures] == [(1, 0)]
    assert text in failures[0][1].error


# --- a worker that ends by an error of our own --------------------------------------------------------------------------


class Broken(OrderedRunner):
    """Has failures that no packet can hold."""

    def take(self) -> list[Run]:
        runs = super().take()
        for run in runs:
            for failure in run.failures.values():
                failure.level = 300
        return runs


def of_runner(b: Any, function: Callable[[Any], object], runner: type[OrderedRunner]) -> WorkerLoop:
    return WorkerLoop(b.worker_link, as_handler(function), bounds=WorkerBounds(), slab=None, rows=None, segments=None,
                      clock=b.clock, cell=b.cell, log=b.log, runner=runner)  # fmt: skip


def fails(_message: Any) -> None:
    raise ValueError("no")


@pytest.mark.parametrize("records", [1, 3])
def test_what_could_not_be_reported_is_named_in_the_cell(bench: Make, make_record: Make, records: int) -> None:
    b = bench(fails)
    b.chunk([make_record(offset=40 + number) for number in range(records)], 6)
    with pytest.raises(struct.error):
        serve(of_runner(b, fails, Broken), b.log)
    assert b.cell[STATE] == 40 + 1
    assert (b.cell[CHUNK_ID], b.cell[RECORDS], b.cell[LAST]) == (6, records, 40 + records - 1)
    assert b.cell[STARTED_NS] == b.clock.now_ns


def test_of_several_chunks_that_could_not_be_reported_all_are_suspected(bench: Make, make_record: Make) -> None:
    b = bench(fails)
    for number in (1, 2):
        b.chunk([make_record(offset=number)], number)
    with pytest.raises(struct.error):
        serve(of_runner(b, fails, Broken), b.log)
    assert b.cell[STATE] == BETWEEN


def test_of_closed_descriptors_the_last_chunk_is_suspected_as_before(bench: Make, make_record: Make) -> None:
    def closes(message: Any) -> None:
        if message.queue_offset == 2:
            b.worker_link.close()

    b = bench(closes)
    worker = of_runner(b, closes, OrderedRunner)
    b.chunk([make_record(offset=1)], 1)
    b.chunk([make_record(offset=2), make_record(offset=3)], 2)
    for _ in range(3):
        worker.step()
    worker.accuse(DescriptorsClosedError("as the next flush would find out"))
    assert (b.cell[CHUNK_ID], b.cell[STATE], b.cell[RECORDS]) == (2, 3, 2)


def test_a_chunk_that_was_no_records_has_no_place_that_could_be_named(bench: Make) -> None:
    b = bench(fails)
    b.chunk([b"no record"], 1)
    b.steps(2)
    b.worker.accuse(ValueError())
    assert b.cell[STATE] == 0


def test_nobody_is_blamed_when_the_supervisor_is_gone(bench: Make, make_record: Make) -> None:
    b = bench(fails)
    b.chunk([make_record(offset=1)])
    b.link.close()
    with pytest.raises(LinkClosedError):
        serve(b.worker, b.log)
    assert b.cell[STATE] == 0


def test_what_was_reported_is_not_blamed_and_stop_ends_with_success(bench: Make, make_record: Make) -> None:
    b = bench(fails)
    b.chunk([make_record(offset=1)])
    b.link.send(encode_stop())
    assert serve(b.worker, b.log) == 0
    b.worker.accuse(ValueError())
    assert b.cell[STATE] == 0


@pytest.mark.parametrize("ordered", [False, True])
def test_an_error_of_our_own_while_a_failure_is_noted_is_charged_to_its_message(
    bench: Make, make_record: Make, *, ordered: bool
) -> None:
    def fails_later(message: Any) -> None:
        if message.queue_offset == 11:
            raise ValueError("no")

    def breaks(*_: Any) -> None:
        raise ZeroDivisionError

    b = bench(handler(order="queue")(fails_later) if ordered else fails_later)
    b.worker.report_failures(breaks)
    records = [make_record(offset=offset) for offset in (10, 11, 12)]
    if ordered:
        data = b"".join(records)
        b.link.send(encode_ordered([OrderedDescriptor(4, 1, 0, len(data), 3, 0, ())], 0), data)
    else:
        b.chunk(records, 4)
    with pytest.raises(ZeroDivisionError):
        serve(b.worker, b.log)
    assert (b.cell[CHUNK_ID], b.cell[STATE], b.cell[RECORDS]) == (4, 11 + 1, 1)
