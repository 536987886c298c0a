"""A program: a call of a producer is interrupted at one of its steps after the other, and the next one sends.

    interrupted_calls.py NAME_SERVER TOPIC SEND_TIMEOUT_MS here|first|later

`here`: the first call of a producer, in the caller's thread, at its lines. `first` and `later`: of one with a thread of its
own, at its byte codes. Prints how many steps there were. An error is a traceback: what comes out of the call that is
interrupted is the interrupt, the next call sends, and no thread and no descriptor is left.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import sys
import threading
from typing import TYPE_CHECKING, Any

from rocketcrew.client.sync import SyncProducer

if TYPE_CHECKING:
    from types import FrameType

EACH = 5
"""Of 2,000 lines, most of which stand in loops."""
LINES_IN = ("client/sync.py", "asyncio/runners.py", "asyncio/base_events.py")
CODES_IN = (
    "client/sync.py",
    "client/loop_thread.py",
    "asyncio/tasks.py",
    "concurrent/futures/_base.py",
    "/threading.py",
)
NEVER_IN = ("__del__", "run_forever")


class Interrupted(BaseException):
    """As the exception of a signal's handler."""


class RaisesAt:
    """A trace that raises at the nth step, once."""

    def __init__(self, number: int, *, codes: bool) -> None:
        self.left = number
        self._codes, self._files = codes, CODES_IN if codes else LINES_IN

    def __call__(self, frame: FrameType, event: str, _: object) -> Any:
        code = frame.f_code
        if code.co_name in NEVER_IN or not code.co_filename.endswith(self._files):
            return None
        frame.f_trace_opcodes = self._codes
        if event == ("opcode" if self._codes else "line"):
            self.left -= 1
            if not self.left:
                raise Interrupted
        return self


def interrupted(producer: SyncProducer, topic: str, number: int, *, codes: bool) -> bool:
    """Whether there was such a step. The next call has sent."""
    trace = RaisesAt(number, codes=codes)
    sys.settrace(trace)
    try:
        producer.send(topic, b"x")
    except Interrupted:
        pass
    finally:
        sys.settrace(None)
    assert producer.send(topic, b"y").mq.topic == topic, number
    return trace.left <= 0


def main(name_server: str, topic: str, timeout_ms: int, which: str) -> None:
    codes = which != "here"
    with contextlib.ExitStack() as to_the_end:
        kept = SyncProducer(name_server, send_timeout_ms=timeout_ms, background=codes)
        to_the_end.enter_context(kept)
        kept.send(topic, b"w")
        before = left_open()
        found, number = True, 1
        while found:
            faulthandler.dump_traceback_later(timeout_ms / 1000, exit=True)
            if which == "later":
                found = interrupted(kept, topic, number, codes=codes)
            else:
                with SyncProducer(name_server, send_timeout_ms=timeout_ms, background=codes) as producer:
                    found = interrupted(producer, topic, number, codes=codes)
            number += 1 if codes else EACH
        gc.collect()
        if codes:
            assert left_open() == before, (left_open(), before)
    sys.stdout.write(f"{number}\n")


def left_open() -> tuple[int, list[threading.Thread]]:
    return len(os.listdir("/proc/self/fd")), threading.enumerate()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
