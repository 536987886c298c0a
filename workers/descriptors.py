"""A worker's descriptors: whether its handler has left it some, and those that are kept for its segments.

A handler that leaves files or sockets open soon has each of its calls fail at once: such a worker would empty the queue into
the dead letters. So once a call has failed for want of descriptors, what is open is counted when no call is under way. Where
the calls have closed theirs, many are free, and the worker goes on: it lacks none for the next calls. Else it ends, with
everything reported and sealed; what it has not started goes to others.

Not every such error says so: SQLite's is "unable to open database file", and that of a thread may be raised as one of the
handler's own. So what is free is counted at each failure. Hardly any is nothing wrong by itself, a pool of connections may
have them; but where calls fail one after the other with so few, in a worker whose calls had succeeded, a new one is likely to
do better: it is asked for, and the old one goes on until that is ready, as no new one starts while a database is away, say.
One whose calls have all failed is not replaced for that: its successor would be, too.

Coroutines are given HOLD_S to end, and none begins meanwhile. Where some are under way after that, it is not known whose the
descriptors are: the worker asks for a successor and goes on until that is ready.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import os
from _socket import AF_UNIX
from _socket import socket as PlainSocket  # as it was before the handler's module: see own_thread.py
from collections.abc import Callable
from resource import RLIMIT_NOFILE, getrlimit
from typing import Any, Final

from ..durable.files import out_of_the_way
from .link import identity
from .memory_watch import LeavingError
from .packets import LEAVES, WANTS_OUT, encode_notice
from .user_errors import related

FREE_MIN: Final = 32
"""With fewer free ones between calls, or less than an eighth of all, the next calls would fail as well."""
HOLD_S: Final = 1.0
"""For the calls under way, before what is open is counted all the same."""
FEW: Final = 8
"""With fewer free ones a call may have failed for want of them, whatever its error says: to start a program takes six."""
_REMEDY: Final = (
    "the handler leaves files or sockets open: close them, or use `with`; if it needs them, raise `ulimit -n`"
)
_OPEN_FOLDER: Final = "/proc/self/fd"


def free_descriptors() -> int:
    """How many more this process may open; all, where nobody can count them."""
    limit = getrlimit(RLIMIT_NOFILE)[0]
    try:
        # Its size is their number since Linux 6.2. To list it takes one of them.
        return limit - (os.stat(_OPEN_FOLDER).st_size or len(os.listdir(_OPEN_FOLDER)) - 1)
    except OSError as error:
        return 0 if error.errno == errno.EMFILE else limit


def lacks_descriptors(error: BaseException) -> bool:
    """The process had none left: by the error itself, one of a group, or one of those that it came from."""
    with contextlib.suppress(BaseException):  # what the user gave as its number may be anything
        return any(
            issubclass(type(each), OSError) and OSError.__dict__["errno"].__get__(each) == errno.EMFILE
            for each in related(error)
        )
    return False


class SpareDescriptor:
    """One that is held, and given up for a file of the worker's own when no other is left."""

    def __init__(self) -> None:
        self._fd, self._own = -1, (0, 0)
        self.hold()

    def hold(self) -> None:
        """Have one again, where one is to be had."""
        if self._fd < 0:
            with contextlib.suppress(OSError):
                fd = out_of_the_way(PlainSocket(AF_UNIX).detach())
                self._fd, self._own = fd, identity(fd)

    def take_over(self, fd: int) -> bool:
        """Have this open one where there is none, without its number being free for a moment."""
        if self._fd >= 0:
            return False
        with contextlib.suppress(OSError):
            os.dup2(0, fd, inheritable=False)
            self._fd, self._own = fd, identity(fd)
        return self._fd >= 0

    def give_up(self) -> bool:
        """Whether there is a free one by it."""
        fd, self._fd = self._fd, -1
        with contextlib.suppress(OSError):
            if fd >= 0 and identity(fd) == self._own:  # else the handler has closed it, and has the number now
                os.close(fd)
                return True
        return False

    def open(self, path: str | os.PathLike[str], flags: int, mode: int) -> int:
        """As `os.open`."""
        try:
            return os.open(path, flags, mode)
        except OSError as error:
            if error.errno != errno.EMFILE or not self.give_up():
                raise
        return os.open(path, flags, mode)


class DescriptorWatch:
    """Decides after a call has failed, perhaps for want of descriptors. `free` counts those that are left, `tell(packet)`
    sends to the supervisor."""

    def __init__(self, free: Callable[[], int], tell: Callable[[bytes], None], log: Any) -> None:
        self._free = free
        self._tell = tell
        self._log = log
        self._left = 0
        self._asked = False
        self._handled = 0
        """Messages, when calls had last failed while few were free."""
        self._suspected = False
        """That is all that is known."""

    def __call__(self, seal: Callable[[], None], *, under_way: bool) -> None:
        """Everything is reported; `under_way` = but calls that may close some. Raises LeavingError, after `seal`, when the
        worker must end now."""
        may_go_on, self._suspected = under_way or self._suspected, False
        if not self._lacks():
            return
        gc.collect()  # it may close what is left in circles
        if not self._lacks() or (may_go_on and self._asked):
            return
        limit = getrlimit(RLIMIT_NOFILE)[0]
        self._log.warning("worker_ends_for_descriptors", free=self._left, limit=limit, remedy=_REMEDY)
        self._asked = True
        self._tell(encode_notice(WANTS_OUT if may_go_on else LEAVES, reason="descriptors"))
        if not may_go_on:
            seal()
            raise LeavingError(f"of {limit} file descriptors only {self._left} are free between calls: {_REMEDY}")

    def few(self) -> bool:
        """Hardly any is free."""
        return self._free() < FEW

    def in_vain(self, handled: int) -> bool:
        """Calls failed while few were free, with an error that does not say why; the worker has handled so many messages by
        now. Whether that was for want of descriptors: some, but none since calls had last failed so."""
        before, self._handled = self._handled, handled
        self._suspected = 0 < handled == before
        return self._suspected

    def _lacks(self) -> bool:
        self._left = self._free()
        return self._left < max(1, min(FREE_MIN, getrlimit(RLIMIT_NOFILE)[0] // 8))
