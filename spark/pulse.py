"""Whether the JVM still answers. One that hangs (a deadlock, a full heap, a stopped process) never ends a job by itself.

The question is cheap (the JVM's clock) and asked from threads of its own, as py4j gives each thread a connection. A JVM that
leaves it unanswered for the timeout is killed: whoever waits for a job of it then sees it dead, the loader ends with a
failure, and its parent starts it anew, with back-off.

Before the JVM can be asked, and after it was told to stop, a `Deadline` takes the pulse's place.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from ..client.logs import get_logger

ASK_INTERVAL_S = 5.0
LATE_AGAIN_S = 1.0


class Deadline:
    """As a context: `late` is called by another thread unless the block ends within `seconds` (0: no limit), and again each
    `again_s` until it does: what is to be killed may not have been started yet.

    It is to make the block end, as by killing what that waits for; then `passed` says why it did.
    """

    def __init__(self, seconds: float, late: Callable[[], None], again_s: float = LATE_AGAIN_S) -> None:
        self.passed = False
        self._seconds = seconds
        self._late = late
        self._again_s = again_s
        self._ended = threading.Event()

    def __enter__(self) -> Self:
        if self._seconds:
            threading.Thread(target=self._watch, name="deadline", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()

    def _watch(self) -> None:
        wait_s, said = self._seconds, False
        while not self._ended.wait(wait_s):
            self.passed = True
            try:
                self._late()
            except Exception:  # noqa: BLE001  as where no descriptor is free: again in a moment
                if not said:
                    get_logger().exception("deadline_not_kept", limit_ms=round(self._seconds * 1_000))
                said = True
            wait_s = self._again_s


class Pulse:
    """Asks every ASK_INTERVAL_S. `ask` raises or returns when the JVM is dead or well, and blocks while it hangs."""

    def __init__(self, ask: Callable[[], object], timeout_s: float, kill: Callable[[], None]) -> None:
        """`kill` is called once, by the pulse's thread, after `timeout_s` without an answer."""
        self.hung = False
        self._ask = ask
        self._timeout_s = timeout_s
        self._kill = kill
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pulse", daemon=True)

    def start(self) -> None:
        """Begin asking."""
        self._thread.start()

    def stop(self) -> None:
        """Ask no more; a question that is open is left alone."""
        self._end.set()

    def beat(self) -> bool:
        """Ask once: whether there was an answer (also "I am dead") in time, or nobody wants to know any more."""
        answered = threading.Event()

        def put() -> None:
            with contextlib.suppress(Exception):  # dead, which others find out
                self._ask()
            answered.set()

        threading.Thread(target=put, name="pulse-ask", daemon=True).start()
        return answered.wait(self._timeout_s) or self._end.is_set()

    def _run(self) -> None:
        while not self._end.wait(min(ASK_INTERVAL_S, self._timeout_s)):
            if not self.beat():
                self.hung = True
                self._kill()
                return
