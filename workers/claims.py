"""Who runs a message that was dispatched and not started: the worker claims messages before it runs them, and the supervisor
can take back what is not claimed, to give it to a worker that idles. Both sides stand here.

The race: the worker is about to start the next message while the supervisor decides that somebody else shall run it. A few
words of the cell settle it, without a lock, so that nobody can die, stop or fork while holding one:

    worker      CLAIM := what it is about to run; then, unless ASKED is the number that it knows: wait until ANSWERED is
                that number, and look at GIVEN and KEPT
    supervisor  read CLAIM; ASKED := next number; barrier; read CLAIM again; if it is the same: KEPT := that claim, GIVEN :=
                how many chunks the worker was handed so far; ANSWERED := the number

Of the first GIVEN chunks the worker runs what KEPT names, and what it claimed before that, and nothing else. GIVEN and KEPT
stay until something is reclaimed again, so a worker that misses an answer finds all of it in the next one.

Each writes first and reads then. A processor may move a read before an earlier write, so a barrier is needed between the
two, on both sides. `membarrier` has one executed on every processor that runs a registered process: the supervisor, which
does this seldom, pays for the worker, which does it all the time. So if the second read finds the old claim, the worker's
next claim is made after the barrier, and it finds the request; if it finds a new one, the request is void. Where there is
no membarrier (Linux before 4.16, other systems), workers do not offer it, and nothing is reclaimed.

The old claim may itself be one whose worker has not looked at ASKED yet (it was put to sleep between its write and its
read). The supervisor counts on it, so the worker must run it although it finds itself asked: hence KEPT. And a worker may
sleep there while that very chunk is reclaimed; then it claims what is not its own, and finds that out when it wakes up. Hence
a claim names its chunk by how many the worker was handed: one of the first GIVEN chunks that is not KEPT counts for nothing.

The worker claims a stride at once, about STRIDE_NS of work, one message where a call lately took long, because what is
claimed waits for its worker.
"""

from __future__ import annotations

import ctypes
import platform
import sys
import time
from collections.abc import Callable
from typing import Final

from .cells import ANSWERED, ASKED, CLAIM, GIVEN, KEPT, STATE, CellView

STRIDE_NS: Final = 20_000
"""A claim costs about 0.2 µs. Handlers that take longer than half of this claim message by message: nothing waits after
one."""
STRIDE_MAX: Final = 64
LONG_NS: Final = 20_000_000
"""A call that took so long may be followed by another such: from then on messages are claimed one by one, ..."""
CAREFUL_RECORDS: Final = 10_000
"""... for so many."""
ASK_ALWAYS: Final = -1
"""No request has this number: as long as the last chunk is given up, each claim of it is looked at."""
FIRST_REQUEST: Final = 1
"""ASKED of a worker that gives back and was not asked yet."""
WAIT_S: Final = 20e-6
"""Between two looks for an answer, which takes the supervisor a few microseconds; or as long as it is stopped."""
RECORD_BITS: Final = 16
"""Of CLAIM: how many records of the chunk are claimed; the rest is which chunk: the first that was dispatched is 1."""
RECORD_MASK: Final = (1 << RECORD_BITS) - 1

_SYSCALLS: Final = {"x86_64": 324, "aarch64": 283, "riscv64": 283, "ppc64le": 365, "s390x": 356}
_GLOBAL_EXPEDITED: Final = 2
_REGISTER: Final = 4


def _membarrier() -> Callable[[int], int] | None:
    """The system call as a function of its command; None where there is none."""
    number = _SYSCALLS.get(platform.machine())
    if not sys.platform.startswith("linux") or number is None:
        return None
    call = ctypes.CDLL(None).syscall
    return lambda command: int(call(number, command, 0, 0))


def find_barrier() -> Callable[[], bool] | None:
    """A barrier on every processor that runs a worker, and whether it was executed; None where the system has none."""
    membarrier, wanted = _membarrier(), _GLOBAL_EXPEDITED | _REGISTER
    if membarrier is None or (known := membarrier(0)) < 0 or known & wanted != wanted:
        return None
    return lambda: membarrier(_GLOBAL_EXPEDITED) == 0


def obey_barriers() -> bool:
    """Let this process take part in the supervisor's barriers. False: it cannot."""
    membarrier = _membarrier()
    return membarrier is not None and membarrier(_REGISTER) == 0


class Claims:
    """The worker's side."""

    def __init__(self, cell: CellView, wait: Callable[[float], object] = time.sleep) -> None:
        self._cell = cell
        self._wait = wait
        self._asked = cell[ASKED]
        self._handed = 0
        """Chunks that came so far."""
        self._given_up = 0
        """Chunks up to this one were given up, but for what is kept."""
        self._kept = 0
        """The claim that counts although its chunk was given up."""
        self._careful = 0
        self.stride = 1
        """How many records to claim at once."""

    def offer(self) -> None:
        """Let the supervisor reclaim. Before the first chunk, and only after `obey_barriers`."""
        self._asked = self._cell[ASKED] = FIRST_REQUEST

    def handed(self) -> bool:
        """A chunk has come. False: it was reclaimed before it was started."""
        self._handed += 1
        return self._handed > self._given_up

    def ran(self, records: int, busy_ns: int, slowest_ns: int) -> None:
        """So many records of a chunk ran: it decides the next stride."""
        if slowest_ns >= LONG_NS:
            self._careful = CAREFUL_RECORDS
        elif self._careful:
            self._careful = max(0, self._careful - records)
        if self._careful:
            self.stride = 1
        else:
            fits = STRIDE_NS * records // (busy_ns or 1)
            self.stride = STRIDE_MAX if fits > STRIDE_MAX else fits or 1

    def claim(self, upto: int) -> bool:
        """Records `[.., upto)` of the last chunk are about to run. False: they are reclaimed, and the rest of it too."""
        cell = self._cell
        claim = cell[CLAIM] = self._handed << RECORD_BITS | upto
        return cell[ASKED] == self._asked or self._is_mine() or claim == self._kept

    def mine(self) -> bool:
        """The last chunk, of which nothing is claimed yet, was not reclaimed."""
        return self._cell[ASKED] == self._asked or self._is_mine()

    def _is_mine(self) -> bool:
        """Wait for the answer. It is consistent if nothing more was asked until it was read."""
        cell = self._cell
        cell[STATE] = 0  # the message before is over
        while True:
            asked = cell[ASKED]
            if cell[ANSWERED] != asked:
                self._wait(WAIT_S)
                continue
            self._given_up, self._kept = cell[GIVEN], cell[KEPT]
            if cell[ASKED] == asked:
                break
        mine = self._handed > self._given_up
        self._asked = asked if mine else ASK_ALWAYS
        return mine


def take_back(cell: CellView, handed: int, barrier: Callable[[], bool]) -> tuple[int, int] | None:
    """The supervisor's side: take what the worker has not claimed of the `handed` chunks that it was given so far.

    Returns how many of them it has not started, the last ones, and how many records of the one before these it has claimed,
    0 = what it runs was settled before. None = it went on meanwhile, has nothing to give, or cannot give back.
    """
    asked, claim, given = cell[ASKED], cell[CLAIM], cell[GIVEN]
    if not asked or given == handed:
        return None
    begun = claim >> RECORD_BITS
    counts = begun > given
    cell[ASKED] = asked + 1
    taken = barrier() and cell[CLAIM] == claim
    if taken:
        if counts:
            cell[KEPT] = claim
        cell[GIVEN] = handed
        barrier()  # whoever sees the answer sees these two
    cell[ANSWERED] = asked + 1
    if not taken:
        return None
    return (handed - begun, claim & RECORD_MASK) if counts else (handed - given, 0)
