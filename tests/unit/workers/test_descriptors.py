"""What a handler does to its worker's descriptors: one that it closes twice may have become the worker's, and what it leaves
open the worker lacks."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from resource import RLIMIT_NOFILE, getrlimit, setrlimit
from typing import Any, cast

import pytest

from rocketcrew.conf.segment_format import OPEN_DIR, READY_DIR
from rocketcrew.durable.files import OWN_FROM, FileCalls
from rocketcrew.workers.api import Retry
from rocketcrew.workers.cells import CHUNK_ID, STATE
from rocketcrew.workers.descriptors import (
    FEW,
    FREE_MIN,
    DescriptorWatch,
    SpareDescriptor,
    free_descriptors,
    lacks_descriptors,
)
from rocketcrew.workers.link import DescriptorsClosedError, Transport, WorkerLink, link_pair
from rocketcrew.workers.main import serve
from rocketcrew.workers.memory_watch import LeavingError
from rocketcrew.workers.packets import Sealed
from rocketcrew.workers.prefix import complete_prefix
from rocketcrew.workers.salvage import salvage
from rocketcrew.workers.sealing import OwnCalls, Sealer, SegmentLostError, open_segments
from rocketcrew.workers.worker import SegmentPause

Make = Callable[..., Any]


def descriptor(b: Any) -> int:
    """The open segment's."""
    fd: int = b.segments._fd
    return fd


def take_over(fd: int, path: Path) -> None:
    """The second close of a descriptor, and the handler's next open: that has the number then."""
    new = os.open(path, os.O_RDWR | os.O_CREAT)
    os.dup2(new, fd)
    os.close(new)


@pytest.fixture
def scene(bench: Make, make_record: Make, tmp_path: Path) -> Callable[[Callable[[Any], None]], Any]:
    """A worker whose first message has rows in an open segment; at the second one the handler does `harm`."""

    def make(harm: Callable[[Any], None]) -> Any:
        def handle(message: Any) -> dict[str, int]:
            if message.queue_offset == 1:
                harm(b)
            return {"n": message.queue_offset}

        b = bench(handle, schema="n int", folder=tmp_path)
        b.chunk([make_record(offset=0)], 1)
        b.steps(3)
        assert [entry.records for entry in b.outcomes()[0]] == [1]
        b.chunk([make_record(offset=1)], 2)
        return b

    return make


@pytest.mark.parametrize("how", ["reports", "a report beside", "an end of the segment"])
def test_rows_are_not_written_into_a_file_that_has_the_segment_s_number(scene: Make, tmp_path: Path, how: str) -> None:
    theirs = tmp_path / "log of the handler's"
    b = scene(lambda b: take_over(descriptor(b), theirs))
    b.steps(1)
    (path,) = open_segments(tmp_path)
    before = path.read_bytes()
    if how == "a report beside":
        b.worker.report_beside()
    elif how == "an end of the segment":
        with pytest.raises(DescriptorsClosedError):
            b.segments.detach()
    with pytest.raises(DescriptorsClosedError, match=f"segment {path.name}: its descriptor is another file now"):
        b.steps(1)
    b.worker.accuse(DescriptorsClosedError(""))
    assert theirs.read_bytes() == b""
    assert path.read_bytes() == before
    assert (b.cell[CHUNK_ID], b.cell[STATE]) == (2, 2), "the message that did it"
    assert b.outcomes() == ([], [])
    assert salvage(path).rows == 1
    assert os.fstat(descriptor(b)).st_ino == theirs.stat().st_ino, "it is not the worker's to close"


def test_a_segment_that_was_closed_is_no_full_disk(scene: Make) -> None:
    b = scene(lambda b: os.close(descriptor(b)))
    code = serve(b.worker, b.log)
    b.segments = None
    assert code
    assert [event["event"] for event in b.log.events] == ["handler_closed_descriptors"]
    assert "Bad file descriptor" in b.log.events[0]["error"]
    assert b.paused == []


@pytest.mark.parametrize("how", ["written", "written in the middle", "cut"])
def test_what_somebody_else_wrote_into_a_segment_is_not_sealed(scene: Make, tmp_path: Path, how: str) -> None:
    """A file object of the handler's that was closed twice still writes to its number."""

    def harm(b: Any) -> None:
        if how == "cut":
            os.ftruncate(descriptor(b), 100)
        elif how == "written":
            os.write(descriptor(b), b"a line of the handler's log\n")
        else:
            os.pwrite(descriptor(b), b"a page of the handler's\n", 10)

    b = scene(harm)
    with pytest.raises(SegmentLostError):
        b.steps(2)
    with pytest.raises(SegmentLostError):
        b.segments.detach()
    (path,) = open_segments(tmp_path)
    assert complete_prefix(path).rows == (0 if how == "cut" else 1)
    assert list((tmp_path / READY_DIR).iterdir()) == []


def test_rows_go_to_the_end_of_a_segment_wherever_somebody_else_has_moved_its_position(
    scene: Make, tmp_path: Path
) -> None:
    b = scene(lambda b: os.lseek(descriptor(b), 0, os.SEEK_SET))
    b.steps(2)
    b.segments.detach()
    (path,) = open_segments(tmp_path)
    assert complete_prefix(path).rows == 2


def test_a_write_that_fails_cuts_nobody_else_s_file(bench: Make, make_record: Make, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.write_bytes(b"long" * 10_000)

    def write(fd: int, data: memoryview) -> int:
        if b.segments._size:
            take_over(fd, theirs)
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return os.write(fd, data)

    b = bench(lambda _message: {"n": 1}, schema="n int", folder=tmp_path, write=write)
    b.chunk([make_record()])
    with pytest.raises(DescriptorsClosedError):
        b.steps(3)
    assert theirs.read_bytes() == b"long" * 10_000


def test_a_segment_s_number_is_none_that_handlers_close(bench: Make, make_record: Make, tmp_path: Path) -> None:
    b = bench(lambda _message: {"n": 1}, schema="n int", folder=tmp_path)
    b.chunk([make_record()])
    b.steps(3)
    assert descriptor(b) >= OWN_FROM
    assert [path.name for path in (tmp_path / OPEN_DIR).iterdir()]


def test_nor_is_that_of_a_segment_which_is_being_sealed(tmp_path: Path) -> None:
    """Else the handler's next file might be synced in its place."""
    sealer = Sealer(tmp_path, pause=lambda _what, _error: None, waits=None)
    fd = sealer._calls.open(os.devnull, os.O_RDONLY)
    assert fd >= OWN_FROM
    os.close(fd)


@pytest.fixture
def link() -> Iterator[WorkerLink]:
    theirs, ours = link_pair(Transport.SLAB)
    made = WorkerLink(ours, Transport.SLAB)
    yield made
    made.close()
    theirs.close()


def test_who_has_no_descriptor_for_a_segment_does_not_wait_for_one(bench: Make, link: WorkerLink) -> None:
    log, slept = bench(lambda _: None).log, list[int]()
    pause = SegmentPause(link, slept.append, log)
    full = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    with pytest.raises(DescriptorsClosedError, match=r"opening a segment: .* Too many open files: the handler leaves"):
        pause("opening a segment", full)
    with pytest.raises(DescriptorsClosedError):
        pause.beside()("sealing a segment", full)
    pause("opening a segment", OSError(errno.ENFILE, "of the whole machine"))
    assert len(slept) == 1


def test_a_thread_without_a_descriptor_leaves_the_sealing_to_the_loop(
    bench: Make, link: WorkerLink, tmp_path: Path
) -> None:
    pause, full = SegmentPause(link, list[int]().append, bench(lambda _: None).log), OSError(errno.EMFILE, "full")
    threads: list[int] = []

    class Full(FileCalls):
        def open(self, path: str, flags: int) -> int:
            threads.append(threading.get_ident())
            raise full

    path = tmp_path / "w-1"
    path.touch()
    sealer = Sealer(tmp_path, pause=pause.beside(), waits=pause.waits, calls=Full())

    def seal() -> None:
        sealer.add(path, Sealed(1, 1, 4, path.name))  # it may know already
        sealer.finish()

    with pytest.raises(DescriptorsClosedError, match=r"sealing a segment: .* the handler leaves"):
        seal()
    assert len(threads) == len(set(threads)) == 2
    assert sealer.busy


class Scarce:
    """Descriptors that are free at each look."""

    def __init__(self, log: Any, *free: int) -> None:
        self._free = iter(free)
        self.said: list[bytes] = []
        self.sealed = 0
        self.watch = DescriptorWatch(lambda: next(self._free), self.said.append, log)

    def seal(self) -> None:
        self.sealed += 1

    def leaves(self, *, under_way: bool = False) -> bool:
        try:
            self.watch(self.seal, under_way=under_way)
        except LeavingError:
            return True
        return False

    @property
    def told(self) -> list[str]:
        return [json.loads(packet[1:])["about"] for packet in self.said]


@pytest.mark.parametrize(
    ("free", "leaves"),
    [
        ([FREE_MIN], False),
        ([FREE_MIN - 1, FREE_MIN], False),  # after a collection
        ([FREE_MIN - 1, FREE_MIN - 1], True),
        ([0, 0], True),
    ],
)
def test_a_worker_ends_when_too_few_descriptors_are_free_between_calls(
    bench: Make, free: list[int], leaves: bool
) -> None:
    log = bench(lambda _: None).log
    scarce = Scarce(log, *free)
    assert scarce.leaves() is leaves
    assert scarce.sealed == leaves
    assert scarce.told == ["leaves"] * leaves
    assert [event["event"] for event in log.events] == ["worker_ends_for_descriptors"] * leaves


def test_one_whose_calls_are_under_way_asks_once_for_a_successor(bench: Make) -> None:
    scarce = Scarce(bench(lambda _: None).log, *[0] * 6)
    assert [scarce.leaves(under_way=True) for _ in range(2)] == [False, False]
    assert scarce.told == ["wants out"]
    assert scarce.leaves(), "what they have left open"
    assert scarce.told == ["wants out", "leaves"]
    assert scarce.sealed == 1


def test_what_is_left_is_counted_also_above_a_hole() -> None:
    with open(os.devnull) as hole, open(os.devnull):
        free = free_descriptors()
        hole.close()
        assert free_descriptors() == free + 1


def lacks(ran: list[int]) -> Callable[[Any], None]:
    """A handler that says so by an error of its own."""

    def handle(message: Any) -> None:
        ran.append(message.queue_offset)
        try:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        except OSError as error:
            raise RuntimeError("no model") from error

    return handle


def test_a_worker_reports_what_failed_before_it_leaves_for_want_of_descriptors(bench: Make, make_record: Make) -> None:
    """At once: the next calls would fail by the same."""
    ran: list[int] = []
    b = bench(lacks(ran))
    b.worker._descriptors = Scarce(b.log, 0, 0).watch
    b.chunk([make_record(offset=number) for number in range(9)])
    assert serve(b.worker, b.log) == 0
    assert len(b.outcomes()[1]) == 1
    assert ran == [0]


def test_calls_that_fail_for_more_than_there_are_and_close_theirs_cost_no_worker(
    bench: Make, make_record: Make
) -> None:
    ran: list[int] = []
    b = bench(lacks(ran))
    b.worker._descriptors = Scarce(b.log, *[FREE_MIN] * 9).watch
    b.chunk([make_record(offset=number) for number in range(9)])
    b.steps(3)
    assert ran == list(range(9))


@pytest.mark.parametrize("when", ["its calls succeeded", "never", "a call succeeds between", "some are free", "wanted"])
def test_where_calls_fail_with_few_descriptors_and_do_not_say_why_a_new_worker_is_asked_for_once(
    bench: Make, make_record: Make, when: str
) -> None:
    """Of one whose calls all fail the successor would fail as well, and a pool may have taken nearly all. None may be ready
    for long, as while a database is away: the worker goes on."""
    fails = (
        set(range(9)) if when == "never" else {1, 3, 5, 7} if when == "a call succeeds between" else set(range(1, 9))
    )
    ran: list[int] = []

    def handle(message: Any) -> None:
        ran.append(message.queue_offset)
        if message.queue_offset in fails:
            raise Retry if when == "wanted" else RuntimeError("unable to open database file")

    b = bench(handle)
    b.worker._descriptors._free = lambda: FEW if when == "some are free" else FEW - 1
    for first in (0, 3, 6):
        b.chunk([make_record(offset=number) for number in range(first, first + 3)])
        b.steps(3)
    assert ran == list(range(9))
    asked = [line for line in b.log.events if line["event"] == "worker_ends_for_descriptors"]
    assert len(asked) == (when == "its calls succeeded")


def test_descriptors_are_not_looked_at_while_no_call_lacks_any(bench: Make, make_record: Make) -> None:
    """A pool of connections may have taken nearly all: it works."""
    b = bench(lambda _: None)
    b.worker._descriptors = Scarce(b.log).watch
    b.chunk([make_record()])
    b.steps(3)
    assert len(b.outcomes()[0]) == 1


class Few:
    """Called, it leaves no descriptor."""

    def __init__(self) -> None:
        self._taken: list[int] = []

    def __call__(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self._taken.append(os.dup(0))

    def give_back(self) -> None:
        while self._taken:
            os.close(self._taken.pop())


@pytest.fixture
def few() -> Iterator[Few]:
    soft, hard = getrlimit(RLIMIT_NOFILE)
    setrlimit(RLIMIT_NOFILE, (min(soft, 300), hard))
    taken = Few()
    yield taken
    taken.give_back()
    setrlimit(RLIMIT_NOFILE, (soft, hard))


def test_a_worker_whose_handler_has_left_none_writes_its_rows_and_seals_them(
    bench: Make, make_record: Make, tmp_path: Path, few: Few, read_ready: Make
) -> None:
    def handle(message: Any) -> dict[str, int]:
        if message.queue_offset == 1:
            few()
            os.dup(0)
        return {"n": message.queue_offset}

    b = bench(handle, schema="n int", folder=tmp_path, beside=True)
    b.segments.spare, b.sealer._calls = SpareDescriptor(), OwnCalls(SpareDescriptor())
    b.chunk([make_record(offset=number) for number in range(3)])
    assert serve(b.worker, b.log) == 0
    _, failures = b.outcomes()
    assert len(failures) == 1
    assert b.paused == []
    assert [event["event"] for event in b.log.events] == ["message_failed", "worker_ends_for_descriptors"]
    few.give_back()
    (sealed,) = (tmp_path / READY_DIR).iterdir()
    assert complete_prefix(sealed).rows == 1


def test_one_whose_handler_holds_all_and_fails_by_nothing_goes_on(
    bench: Make, make_record: Make, tmp_path: Path, few: Few
) -> None:
    """Also its segments are sealed; what is open then keeps its own."""

    def handle(message: Any) -> dict[str, int]:
        if not message.queue_offset:
            few()
        return {"n": message.queue_offset}

    b = bench(handle, schema="n int", folder=tmp_path, beside=True)
    b.segments.spare, b.sealer._calls = SpareDescriptor(), OwnCalls(SpareDescriptor())
    for number in range(3):
        b.chunk([make_record(offset=number)], number)
        b.steps(3)
        if number:
            b.worker._seal(wait=True)
    assert b.paused == []
    assert b.log.events == []
    few.give_back()
    assert [complete_prefix(path).rows for path in sorted((tmp_path / READY_DIR).iterdir())] == [2, 1]


def test_a_spare_descriptor_that_is_somebody_else_s_by_now_is_not_closed(tmp_path: Path) -> None:
    spare = SpareDescriptor()
    take_over(spare._fd, tmp_path / "theirs")
    theirs = spare._fd
    assert not spare.give_up()
    os.close(theirs)
    spare.hold()
    assert spare.give_up()
    assert not spare.give_up()


class Numberless(OSError):
    @property
    def errno(self) -> int:
        raise ZeroDivisionError


class Leaving(OSError):
    @property
    def __cause__(self) -> Any:
        raise SystemExit(3)

    @property
    def __context__(self) -> Any:
        raise SystemExit(3)


class LeavingGroup(ExceptionGroup[Exception]):
    @property
    def exceptions(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        raise SystemExit(3)


class LeavingNumber:
    def __eq__(self, other: object) -> bool:
        raise SystemExit(3)

    __hash__ = None  # type: ignore[assignment]


def test_no_code_of_an_error_s_is_run_to_know_it() -> None:
    full, numbered = OSError(errno.EMFILE, "full"), OSError("x")
    numbered.errno = cast("Any", LeavingNumber())
    assert not lacks_descriptors(Leaving())
    assert not lacks_descriptors(numbered)
    assert lacks_descriptors(LeavingGroup("of a task group", [full]))
    with pytest.raises(Leaving) as caught:
        raise Leaving from full
    assert lacks_descriptors(caught.value)


def test_what_a_lack_of_descriptors_is() -> None:
    full, circle = OSError(errno.EMFILE, "full"), ValueError("a")
    circle.__cause__ = ValueError("b")
    circle.__cause__.__cause__ = circle
    assert lacks_descriptors(full)
    assert lacks_descriptors(ExceptionGroup("of a task group", [circle, ExceptionGroup("inner", [full])]))
    assert not lacks_descriptors(circle)
    assert not lacks_descriptors(Numberless())
    assert not lacks_descriptors(OSError(errno.ENFILE, "the whole machine has none"))
