"""What a handler may ask: answers in a worker, harmless outside of one."""

from __future__ import annotations

import io
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from rocketcrew.workers import context
from rocketcrew.workers.capture import LINE_MAX, Captured
from rocketcrew.workers.cells import CANCEL, STATE, TEXT, TEXT_BYTES, private_cell, queue_words
from rocketcrew.workers.context import Context, cancelled, enter, keys_in_hand, progress, worker_index
from rocketcrew.workers.link import DescriptorsClosedError
from rocketcrew.workers.main import core_for
from rocketcrew.workers.memory_watch import LOOK_EVERY_NS, LeavingError, MemoryWatch, resident_reader
from rocketcrew.workers.packets import decode_notice, progress_text


class Log:
    def __init__(self) -> None:
        self.events: list[dict[str, object]] = []

    def info(self, event: str, **keys: object) -> None:
        self.events.append({"event": event} | keys)

    warning = info


@pytest.fixture
def told() -> Iterator[list[bytes]]:
    said: list[bytes] = []
    cell = private_cell()
    enter(Context("w.1", 3, cell, said.append))
    yield said
    enter(None)


def test_outside_of_a_worker_everything_is_harmless() -> None:
    assert (worker_index(), cancelled(), keys_in_hand()) == (0, False, {})
    progress(1, 2)
    context.logger().debug("said")


def test_the_message_in_hand_is_read_from_the_cell() -> None:
    cell = private_cell()
    enter(Context("w.1", 3, cell, lambda _packet: None))
    try:
        assert (worker_index(), keys_in_hand()) == (3, {})
        words, size = queue_words("orders", "broker-a", 2)
        cell[TEXT : TEXT + len(words)] = words
        cell[TEXT_BYTES] = size
        cell[STATE] = 8
        assert keys_in_hand() == {"topic": "orders", "broker": "broker-a", "queue_id": 2, "offset": 7}
        assert not cancelled()
        cell[CANCEL] = 1
        assert cancelled()
        log = Log()
        stream = Captured("stdout", 1, log)
        print("one\ntwo", file=stream, end="")
        assert [(e["text"], e["offset"]) for e in log.events] == [("one", 7)]
        stream.flush()
        stream.flush()
        assert [e["text"] for e in log.events] == ["one", "two"]
    finally:
        enter(None)


def test_lines_without_an_end_come_in_pieces() -> None:
    log = Log()
    stream = Captured("stderr", 2, log)
    stream.write("x" * (2 * LINE_MAX + 5))
    assert [len(str(event["text"])) for event in log.events] == [LINE_MAX, LINE_MAX]


def test_a_line_is_cut_between_two_characters() -> None:
    log = Log()
    text = "€" * LINE_MAX
    print(text, file=Captured("stdout", 1, log))
    pieces = [str(event["text"]) for event in log.events]
    assert "".join(pieces) == text
    assert max(len(piece.encode()) for piece in pieces) <= LINE_MAX


def test_a_captured_stream_can_what_standard_output_can() -> None:
    log = Log()
    stream = Captured("stdout", 1, log)
    assert (stream.name, stream.mode, stream.encoding, stream.isatty(), stream.fileno()) == (
        "<stdout>", "w", "utf-8", False, 1,
    )  # fmt: skip
    stream.reconfigure(line_buffering=True)
    stream.write("half ")
    stream.buffer.write(b"a line\nno UTF-8: \xff\n")
    below: Any = stream.buffer
    below.writelines([bytearray(b"un"), memoryview(b"ended")])
    stream.buffer.flush()
    click.echo(b"bytes", file=stream)
    print("half of a pair: \udc80", file=stream)
    with io.TextIOWrapper(stream.buffer, encoding="utf-8") as another:
        another.write("by another stream")
    stream.close()
    print("after", file=stream)
    assert [event["text"] for event in log.events] == [
        "half a line", "no UTF-8: \\xff", "unended", "bytes", "half of a pair: \\udc80", "by another stream", "after",
    ]  # fmt: skip


def test_threads_have_their_own_unfinished_lines() -> None:
    log = Log()
    stream = Captured("stdout", 1, log)

    def prints() -> None:
        print("another", "line", file=stream, flush=True)
        print("left ", end="", file=stream)

    print("one", end=" ", file=stream)
    thread = threading.Thread(target=prints)
    thread.start()
    thread.join()
    print("line", file=stream)
    assert [event["text"] for event in log.events] == ["another line", "one line"]


def test_a_line_that_an_ended_thread_has_left_is_not_the_start_of_anothers() -> None:
    log = Log()
    stream = Captured("stdout", 1, log)
    for text, end in (("left", ""), ("right", "\n")):  # the second one usually gets the number of the first
        thread = threading.Thread(target=print, args=(text,), kwargs={"end": end, "file": stream})
        thread.start()
        thread.join()
    assert "leftright" not in [event["text"] for event in log.events]


def test_progress_is_told_seldom_but_its_end_always(told: list[bytes]) -> None:
    for done in range(1, 100):
        progress(done, 100, "pages")
    progress(100, 100, "pages")
    notices = [decode_notice(packet) for packet in told]
    assert notices[-1]["done"] == 100
    assert len(notices) < 50
    assert progress_text(notices[-1]) == "100/100 pages"
    assert progress_text({"done": 0.5, "total": None, "text": ""}) == "0.5"


@pytest.mark.parametrize(
    ("rss_mib", "abouts", "leaves"),
    [((99, 99), [], False), ((100, 120), ["wants out"], False), ((120, 150), ["wants out", "leaves"], True)],
)
def test_memory_is_told_at_the_limit_and_ends_the_worker_above(
    rss_mib: tuple[int, int], abouts: list[str], leaves: bool
) -> None:
    now_ns = [0]
    said: list[bytes] = []
    sealed: list[int] = []
    values = iter(rss_mib)
    watch = MemoryWatch(100 << 20, lambda: now_ns[0], lambda: next(values) << 20, said.append, Log())
    left = False
    for _ in rss_mib:
        now_ns[0] += LOOK_EVERY_NS
        try:
            watch(lambda: sealed.append(1))
            watch(lambda: sealed.append(1))  # too early for another look
        except LeavingError:
            left = True
    assert [json.loads(packet[1:])["about"] for packet in said] == abouts
    assert left is leaves
    assert bool(sealed) is leaves


@pytest.mark.parametrize(("rss_mib", "abouts"), [(99, []), (100, ["starts large"])])
def test_a_worker_that_has_too_much_before_its_first_message_says_so(rss_mib: int, abouts: list[str]) -> None:
    said: list[bytes] = []
    MemoryWatch(100 << 20, lambda: 0, lambda: rss_mib << 20, said.append, Log()).begin()
    assert [json.loads(packet[1:])["about"] for packet in said] == abouts


def test_between_two_looks_nothing_is_wanted_twice() -> None:
    """A worker that reports once a chunk asks before, between two messages, whether a report has to come now."""
    now_ns, rss_mib = [LOOK_EVERY_NS], [50]
    watch = MemoryWatch(100 << 20, lambda: now_ns[0], lambda: rss_mib[0] << 20, lambda _packet: None, Log())
    wanted: list[bool] = []
    for mib in (50, 120, 120, 160):
        rss_mib[0] = mib
        wanted.append(watch.wants())
        now_ns[0] += LOOK_EVERY_NS
        wanted.append(watch.wants())
        if wanted[-1] and mib < 150:
            watch(lambda: None)
    assert wanted == [False, False, False, True, False, False, False, True]


def test_cores_in_turn() -> None:
    assert [core_for(index, [6, 2, 4]) for index in range(4)] == [2, 4, 6, 2]
    assert core_for(0, []) is None


def test_memory_is_not_read_from_what_has_the_place_of_a_closed_descriptor(tmp_path: Path) -> None:
    free = os.open(os.devnull, os.O_RDONLY)
    os.close(free)
    resident, fd = resident_reader(), free
    assert resident() > 1 << 20
    (tmp_path / "figures.txt").write_text("1 999999999 3")
    with (tmp_path / "figures.txt").open("rb") as file:
        os.dup2(file.fileno(), fd)
    with pytest.raises(DescriptorsClosedError):
        resident()
    os.close(fd)
    with pytest.raises(DescriptorsClosedError):
        resident()
