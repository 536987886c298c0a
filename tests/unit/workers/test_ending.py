"""Until when a worker whose work is done waits for what its handler has left running, and what it says of that."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from time import monotonic_ns
from typing import Any

import pytest

from rocketcrew.conf.units import NS_PER_MS, NS_PER_S
from rocketcrew.supervisor.service import WORKER_STOP_MS
from rocketcrew.workers.ending import CHILDREN_WAIT_S, LEAVE_S, Ending, say_left, until_due
from rocketcrew.workers.link import LinkClosedError, Transport, WorkerLink, link_pair
from rocketcrew.workers.packets import encode_seal, encode_stop

BEGUN_NS = 100 * NS_PER_S


def after(seconds: float) -> int:
    return BEGUN_NS + round(seconds * NS_PER_S)


@dataclass
class Scene:
    """In place of a worker's link, with a clock that waiting moves on; `comes`: packets, and when."""

    stop_by_ns: int
    comes: list[tuple[float, bytes]] = field(default_factory=list[tuple[float, bytes]])
    now_ns: int = BEGUN_NS

    def wait(self, timeout_ms: int) -> bool:
        end_ns = self.now_ns + timeout_ms * NS_PER_MS
        self.now_ns = min(end_ns, max(self.now_ns, after(self.comes[0][0]))) if self.comes else end_ns
        return self.now_ns < end_ns

    def receive(self) -> bytes | None:
        if not self.comes or after(self.comes[0][0]) > self.now_ns:
            return None
        packet = self.comes.pop(0)[1]
        if not packet:
            raise LinkClosedError
        return packet

    def pause(self, seconds: float) -> None:
        self.now_ns += round(seconds * NS_PER_S)

    def waited_s(self) -> float:
        link: Any = self
        until_due(link, lambda: self.now_ns, self.pause)
        return (self.now_ns - BEGUN_NS) / NS_PER_S


@pytest.mark.parametrize(
    ("given_s", "waited_s"), [(LEAVE_S, 9), (WORKER_STOP_MS / 1_000, 4), (1, 0.5), (0, 0), (-3, 0)]
)
def test_it_waits_for_nearly_as_long_as_the_supervisor_does(given_s: float, waited_s: float) -> None:
    assert Scene(after(given_s)).waited_s() == waited_s


def test_a_worker_that_nobody_has_asked_to_stop_ends_soon() -> None:
    """It has too much memory, say, and its messages wait for its end."""
    assert Scene(0).waited_s() == CHILDREN_WAIT_S


def test_of_a_stream_two_packets_may_be_here_at_once() -> None:
    ours, theirs = link_pair(Transport.STREAM)
    link, now_ns = WorkerLink(theirs, Transport.STREAM), monotonic_ns()
    ours.send(encode_seal())
    ours.send(encode_stop(now_ns))
    link.stop_by_ns = now_ns + 3_600 * NS_PER_S
    until_due(link)
    ours.close()
    link.close()


def test_a_stop_of_all_holds_for_a_worker_that_is_being_replaced_too() -> None:
    assert Scene(after(10), [(1, encode_seal()), (2, encode_stop(after(7)))]).waited_s() == 6
    assert Scene(after(5), [(2, encode_stop(after(12)))]).waited_s() == 4


def test_without_a_supervisor_it_waits_as_long() -> None:
    assert Scene(after(10), [(2, b"")]).waited_s() == 9


def test_who_has_waited_first_ends_the_process_and_nobody_else_does() -> None:
    ended: list[int] = []
    over, log = threading.Event(), Log()

    def leave(code: int) -> None:
        ended.append(code)
        over.set()

    ending = Ending(3, log, leave)
    ending.after(lambda: None)
    assert over.wait(60)
    ending.cut_off(lambda: None)
    assert (ended, len(log.lines)) == ([3], 1)


class Log:
    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def warning(self, event: str, **keys: Any) -> None:
        self.lines.append({"event": event} | keys)


def test_the_thread_that_empties_a_queue_is_named_where_it_is_waited_for() -> None:
    log = Log()

    def _finalize_join(thread: object) -> None:
        say_left(log)

    _finalize_join(threading.Thread(name="QueueFeederThread"))
    assert log.lines[0]["threads"][-1] == "QueueFeederThread"
