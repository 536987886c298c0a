"""Queue locks that a killed supervisor left at its brokers, given up in its name by the one that takes over its slot.

A broker keeps a lock for 60 s after its last renewal, so the next start, a new client id, would wait so long (Java does).
But whoever holds the slot's lock knows that the last owner is dead, and the note in the slot says under which client id it
locked. A broker takes an unlock from anybody who names group and client id (AdminBrokerProcessor.unlockBatchMQ). Workers of
the dead one may outlive it for an instant, with an ordered message in hand: while any of those that were alive at our start
is alive, nothing is given up, and the lock is asked for again a little later.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil
import structlog

from ...durable.files import write_atomically
from ...remoting.queues import MessageQueue
from ...workers.cells import CELLS_FILE, PID, CellFile

NOTE_FILE = "locks.json"
"""In the slot, while somebody locks queues: the client ids of this run, and of killed ones before it."""
OWNERS_MAX = 8
"""Runs that were killed one right after another; an older one's locks have expired."""

log = structlog.get_logger("rocketcrew.supervisor")


def is_alive(pid: int) -> bool:
    """Whether there is such a process, and not as a zombie. A number that is used anew costs no more than Java's wait."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return True  # it is somebody else's, but it is there


class StaleLocks:
    """What dead runs hold. Made while the slot is locked, before its cells are cleared or anything is started."""

    def __init__(self, slot: Path, client_id: str, alive: Callable[[int], bool] = is_alive) -> None:
        self._path = slot / NOTE_FILE
        self._client_id = client_id
        self._alive = alive
        self._noted = False
        self._given_up: set[MessageQueue] = set()
        self.owners = tuple(owner for owner in _read(self._path) if owner != client_id)
        """Client ids of dead runs that may hold locks."""
        self._workers = [pid for pid in _workers(slot / CELLS_FILE) if alive(pid)] if self.owners else []

    def note(self) -> None:
        """Before the first lock: say who holds locks from now on. A disk that refuses costs the next start its haste."""
        if self._noted:
            return
        self._noted = True
        _write(self._path, (*self.owners, self._client_id))

    def forget(self) -> None:
        """After a clean end every lock was given up."""
        self._path.unlink(missing_ok=True)

    def to_give_up(self, mqs: Iterable[MessageQueue]) -> list[MessageQueue]:
        """Those that dead runs may still hold; none while a worker of theirs lives."""
        if not self.owners:
            return []
        self._workers = [pid for pid in self._workers if self._alive(pid)]
        return [] if self._workers else [mq for mq in mqs if mq not in self._given_up]

    def given_up(self, mqs: Iterable[MessageQueue]) -> None:
        """The broker of these has heard it."""
        self._given_up.update(mqs)


def take_over_locks(folder: Path, other: Path) -> None:
    """What the dead owners of the slot `other` hold is ours to give up, unless a worker of theirs lives."""
    owners = _read(other / NOTE_FILE)
    if owners and not any(is_alive(pid) for pid in _workers(other / CELLS_FILE)):
        _write(folder / NOTE_FILE, (*_read(folder / NOTE_FILE), *owners))
    (other / NOTE_FILE).unlink(missing_ok=True)


def _read(path: Path) -> tuple[str, ...]:
    try:
        return tuple(map(str, json.loads(path.read_bytes())))
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, TypeError) as error:
        log.warning("lock_note_not_read", path=str(path), error=str(error))
        return ()


def _write(path: Path, owners: Iterable[str]) -> None:
    try:
        write_atomically(path, json.dumps(list(dict.fromkeys(owners))[-OWNERS_MAX:]), durable=False)
    except OSError as error:
        log.warning("lock_note_not_written", path=str(path), error=str(error))


def _workers(cells_file: Path) -> list[int]:
    """The process numbers in the cells of the last run."""
    if not cells_file.exists():
        return []
    with contextlib.closing(CellFile(cells_file, 1)) as cells:
        return [pid for slot in range(cells.slots) if (pid := cells.view(slot)[PID])]
