"""A crew that the program closes, by a signal's handler or another thread, while it waits for something."""

from __future__ import annotations

import asyncio
import pickle
import select
import signal
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from rocketcrew import Crew, CrewError
from rocketcrew.cli.watch import QueueLag
from rocketcrew.client.loop_thread import LoopThread
from rocketcrew.crew.process import Ready
from rocketcrew.remoting.errors import UsageError
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.supervisor.control import ControlServer
from rocketcrew.supervisor.service import Summary

COUNTERS = {"done_messages": 0, "dead_letter_messages": 0, "failed_messages": 0, "worker_deaths": 0}
STATUS: dict[str, Any] = {
    "counters": {**COUNTERS, "sent_back_messages": 0}, "queues": [], "unsealed_messages": 0, "sent_back_levels": {},
}  # fmt: skip
QUESTIONS = ["status", "lag", "status", "lag", "lag", "status", "status"]
"""What `wait` asks until everything is consumed, in this order."""
HELD_S = 60
"""So long the crew's process would run, and a question would wait for its answer."""
LATER_S = 0.02
"""Less than `wait` pauses between two looks."""


class Begun:
    """A crew that has begun, as far as `wait` sees: its loop and its control socket are real, its process only says how it
    ended, and this is its Watch. `close_crew` is called in the course of the question of that number, which is not answered,
    or, where it is negative, a moment after it."""

    def __init__(self, folder: Path, number: int, lag: int) -> None:
        self.crew = Crew(print, topics="t", group="g", name_servers="127.0.0.1:1",
                         settings={"supervisor.data_dir": str(folder / "data")})  # fmt: skip
        self.close_crew: Callable[[], object] = self.crew.close
        self.asked: list[str] = []
        self._number, self._lag = number, lag
        self._loop = LoopThread("test")
        end = folder / "end"
        end.write_bytes(pickle.dumps(Summary(0, COUNTERS, 0, 0, 0)))
        crew = cast("Any", self.crew)
        crew._own.enter()
        crew._process = subprocess.Popen(
            ["sh", "-c", f"exec <&-; cat '{end}'; exec sleep {HELD_S}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        select.select([crew._process.stdout], [], [], HELD_S)  # it has said it
        crew._ready, crew._loop, crew._watch = Ready(1, folder, "run"), self._loop, self
        self._server = ControlServer(folder, {"status": lambda _: self._answer("status", STATUS)})
        self._loop.run(self._server.bind())
        self._loop.run(self._server.serve())

    async def _answer(self, what: str, answer: Any) -> Any:
        self.asked.append(what)
        if len(self.asked) == self._number:
            self.close_crew()
            async with asyncio.timeout(HELD_S):
                await asyncio.Event().wait()
        if len(self.asked) == -self._number:
            asyncio.get_running_loop().call_later(LATER_S, self.close_crew)
        return answer

    def lag(self, _group: str, topics: Iterable[str]) -> list[QueueLag]:
        found = [QueueLag(MessageQueue(topic, "b", 0), self._lag, 0) for topic in topics]
        asked: list[QueueLag] = self._loop.run(self._answer("lag", found))
        return asked

    def delay_ends(self, _brokers: Iterable[str]) -> dict[tuple[str, int], int]:
        return {}

    delays_reached = delay_ends

    def close(self) -> None:
        self._loop.close()


@pytest.fixture(params=["signal", "thread"])
def closing_by(request: pytest.FixtureRequest) -> Iterator[Callable[[Crew], Callable[[], object]]]:
    """What closes a crew when it is called."""
    threads: list[threading.Thread] = []
    before = signal.getsignal(signal.SIGUSR2)

    def closing(crew: Crew) -> Callable[[], object]:
        if request.param == "thread":
            threads.append(threading.Thread(target=crew.close))
            return threads[0].start
        heard: list[int] = []
        main = threading.main_thread().ident
        assert main is not None

        def close(number: int, _frame: object) -> None:
            heard.append(number)
            crew.close()

        def send() -> None:
            """Again and again: one that comes just before the main thread begins to wait ends no wait."""
            if not heard:
                signal.pthread_kill(main, signal.SIGUSR2)
                asyncio.get_running_loop().call_later(LATER_S, send)

        signal.signal(signal.SIGUSR2, close)
        return send

    yield closing
    signal.signal(signal.SIGUSR2, before)
    for thread in threads:
        thread.join()


EMPTY: dict[str, Any] = {}
COUNTED = {"max_messages": 5, "until_empty": False}


@pytest.mark.parametrize(
    ("number", "lag", "wish"),
    [*((number, 0, EMPTY) for number in range(1, len(QUESTIONS) + 1)), (-2, 3, EMPTY), (4, 3, EMPTY),
     (1, 0, COUNTED), (-1, 0, COUNTED), (2, 0, COUNTED)],
)  # fmt: skip
def test_a_wait_ends_at_once_and_says_that_the_crew_is_closed(
    tmp_path: Path, closing_by: Callable[[Crew], Callable[[], object]], number: int, lag: int, wish: dict[str, Any]
) -> None:
    begun = Begun(tmp_path, number, lag)
    crew = begun.crew
    begun.close_crew = closing_by(crew)
    try:
        with pytest.raises(UsageError, match="this crew is closed"):
            crew.wait(timeout_s=HELD_S / 4, **wish)
        if wish is EMPTY and not lag:
            assert begun.asked == QUESTIONS[:number]
    finally:
        crew.close()
    assert crew.status["counters"] == COUNTERS


def test_nothing_is_closed_and_the_wait_ends_when_everything_is_consumed(tmp_path: Path) -> None:
    begun = Begun(tmp_path, 0, 0)
    try:
        begun.crew.wait(timeout_s=HELD_S)
        assert begun.asked == QUESTIONS
    finally:
        begun.crew.close()


def test_a_status_that_is_cut_off_says_that_the_crew_is_closed(
    tmp_path: Path, closing_by: Callable[[Crew], Callable[[], object]]
) -> None:
    begun = Begun(tmp_path, 1, 0)
    begun.close_crew = closing_by(begun.crew)
    with pytest.raises(UsageError, match="this crew is closed"):
        _ = begun.crew.status


@pytest.mark.parametrize(
    ("closed", "kind", "says"),
    [(True, UsageError, "this crew is closed"), (False, CrewError, "was stopped while it started")],
)
def test_a_process_that_is_stopped_while_it_starts_says_how_it_ended(
    tmp_path: Path, *, closed: bool, kind: type[Exception], says: str
) -> None:
    """A close by another thread sends it TERM, and anybody else may do so."""
    begun = Begun(tmp_path, 0, 0)
    crew = cast("Any", begun.crew)
    crew._ready, crew._closed = None, closed
    try:
        with pytest.raises(kind, match=says):
            crew._boot()
    finally:
        crew._end_now()


def test_whoever_closes_it_too_waits_for_the_first(tmp_path: Path) -> None:
    """A second TERM would force what the first one lets it finish."""
    begun = Begun(tmp_path, 0, 0)
    process = cast("Any", begun.crew)._process
    closers = [threading.Thread(target=begun.crew.close) for _ in range(3)]
    for closer in closers:
        closer.start()
    begun.crew.close()
    assert process.returncode == -signal.SIGTERM
    for closer in closers:
        closer.join()
