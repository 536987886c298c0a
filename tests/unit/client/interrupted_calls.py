"""A program: the first call of a producer is interrupted at one of its lines after the other, and the next one sends.

    interrupted_calls.py NAME_SERVER TOPIC SEND_TIMEOUT_MS

Prints how many lines there were. An error is the traceback of what the next call raised.
"""

from __future__ import annotations

import itertools
import sys
from typing import TYPE_CHECKING, Any

from rocketcrew.client.sync import SyncProducer

if TYPE_CHECKING:
    from types import FrameType

EACH = 5
"""Of 2,000 lines, most of which stand in loops."""
FILES = ("client/sync.py", "asyncio/runners.py", "asyncio/base_events.py")


class Interrupted(BaseException):
    """As the exception of a signal's handler."""


class RaisesAt:
    """A trace that raises at the nth line of `FILES`, once."""

    def __init__(self, number: int) -> None:
        self.left = number

    def __call__(self, frame: FrameType, event: str, _: object) -> Any:
        code = frame.f_code
        if code.co_name in ("__del__", "run_forever") or not code.co_filename.endswith(FILES):
            return None
        if event == "line":
            self.left -= 1
            if not self.left:
                raise Interrupted
        return self


def main(name_server: str, topic: str, timeout_ms: int) -> None:
    for number in itertools.count(1, EACH):
        trace = RaisesAt(number)
        with SyncProducer(name_server, send_timeout_ms=timeout_ms) as producer:
            sys.settrace(trace)
            try:
                producer.send(topic, b"x")
            except Interrupted:
                pass
            finally:
                sys.settrace(None)
            assert producer.send(topic, b"y").mq.topic == topic, number
        if trace.left > 0:
            sys.stdout.write(f"{number}\n")
            return


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
