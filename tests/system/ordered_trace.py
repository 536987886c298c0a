"""The verdict on order: what the handlers logged (ordered_handlers.py), read line by line."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from ordered_handlers import TRACE


class Line(NamedTuple):
    """One step of one handler call."""

    what: str
    pid: int
    topic: str
    queue_id: int
    offset: int
    key: str
    number: int
    times: int


Lane = Callable[[Line], Hashable]


def by_queue(line: Line) -> Hashable:
    """The lane with order = "queue"."""
    return line.topic, line.queue_id


def by_key(line: Line) -> Hashable:
    """The lane with order = "key"."""
    return line.topic, line.queue_id, line.key


def lines_of(path: Path) -> list[Line]:
    """All whole lines so far."""
    words = [line.split() for line in path.read_text().split("\n")[:-1]] if path.exists() else []
    return [
        Line(what, int(pid), topic, int(queue), int(offset), key, int(number), int(times))
        for what, pid, topic, queue, offset, key, number, times, _ in words
    ]


def check_order(lines: list[Line], lane_of: Lane, killed: Collection[int] = (), given_up: Collection[int] = ()) -> None:
    """Fail unless in each lane one message at a time was handled, and none before all earlier ones were done.

    `killed`: processes that may have left a message in the middle. `given_up`: numbers that went back to the broker.
    """
    offsets: dict[Hashable, dict[int, int]] = defaultdict(dict)
    for line in lines:
        offsets[lane_of(line)][line.offset] = line.number
    done: dict[Hashable, set[int]] = defaultdict(set)
    running: dict[Hashable, Line] = {}
    for line in lines:
        lane = lane_of(line)
        before = running.pop(lane, None)
        if line.what == "BEGIN":
            assert before is None or before.pid in killed, f"{line} begins while {before} runs"
            missing = [
                offset
                for offset, number in offsets[lane].items()
                if offset < line.offset and offset not in done[lane] and number not in given_up
            ]
            assert not missing, f"{line} begins before {missing} are done"
            running[lane] = line
            continue
        assert before is not None and (before.pid, before.offset) == (line.pid, line.offset), f"{line} after {before}"
        if line.what == "END":
            done[lane].add(line.offset)
    assert not [line for line in running.values() if line.pid not in killed]


@contextmanager
def traced(path: Path) -> Iterator[Path]:
    """Processes that are started meanwhile tell their steps there."""
    os.environ[TRACE] = str(path)
    try:
        yield path
    finally:
        del os.environ[TRACE]
