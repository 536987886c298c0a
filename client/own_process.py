"""What holds sockets works in one process.

The child of a fork has copies of its parent's sockets, and shares what a loop keeps in the kernel (epoll). It would take the
answers to its parent's requests, and what it closes in an orderly way ends for the parent too. So a child neither uses nor
closes what has begun in its parent. What had not begun yet begins in the child as its own.

Its threads share the interpreter's lock, by the name it had when this was imported: a worker imports this before the
handler's module, where gevent or eventlet may put their own in its place, which know nothing of threads that are not theirs.
"""

from __future__ import annotations

import os
from _thread import allocate_lock as allocate_lock  # noqa: PLC0414  to be imported from here
from collections.abc import Callable

from ..remoting.errors import UsageError


class OwnProcess:
    """Where something works: in the process that first enters."""

    def __init__(self, what: str, process_id: Callable[[], int] = os.getpid) -> None:
        """`what` is its name in the message of the error."""
        self._what = what
        self._process_id = process_id
        self._own_id = 0

    def enter(self) -> None:
        """Begin, or go on, to work here. Raises UsageError in a fork of the process where it has begun."""
        current = self._process_id()
        if not self._own_id:
            self._own_id = current
        elif current != self._own_id:
            raise UsageError(
                f"this {self._what} was made in process {self._own_id}, and process {current} is a fork of it: a fork shares"
                " its sockets, so make one in each process"
            )

    @property
    def is_elsewhere(self) -> bool:
        """Whether it has begun in another process, of which this one is a fork."""
        return self._own_id not in (0, self._process_id())
