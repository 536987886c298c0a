"""The crews of this process that run, and what becomes of one that nothing names any more.

A notebook's cell that is run again rebinds its `crew`. The crew before it would go on consuming beside the new one, with
the handler of before, until the kernel ends. So the process of a crew whose object is collected is told to end; it finishes
what it has begun, and the new one takes over its queues. Where the object is still held when another crew of its group
starts (by a variable, by what a notebook keeps of its output), a warning names it: two may be meant.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import warnings
import weakref
from collections.abc import Callable
from typing import Final, NamedTuple

from ..conf.settings import Settings
from ..remoting.errors import RocketcrewError, UsageError


class Place(NamedTuple):
    """What crews have in common that take messages from each other."""

    pid: int
    """Of the process that has started it: a fork has no crews yet."""
    cluster: str
    group: str
    embedded: bool
    """Then the cluster is the folder of its broker, which is of one crew at a time."""


class _Living(NamedTuple):
    place: Place
    handler: str
    process: subprocess.Popen[bytes]


_all: Final[dict[int, _Living]] = {}
"""By the process id of the crew."""


def place_of(settings: Settings, *, embedded: bool) -> Place:
    """Where a crew of these settings consumes; an embedded broker is told from others by its folder."""
    cluster = settings.cluster
    servers = ";".join(sorted(cluster.name_servers)) or cluster.namesrv_domain
    return Place(
        os.getpid(), os.path.abspath(settings.broker.dir) if embedded else servers, settings.consumer.group, embedded
    )


def warn_of_others(place: Place, stacklevel: int) -> None:
    """One warning where a crew of that place runs already; `stacklevel` is as seen from here. Raises UsageError where both
    would have the same embedded broker."""
    running = [one for one in list(_all.values()) if one.process.poll() is None]
    for one in running:
        if place.embedded and one.place[:2] == place[:2]:
            raise UsageError(
                f"a crew that was started here before still runs, with the handler {one.handler} (process {one.process.pid}),"
                f" and its embedded broker has the folder {place.cluster}: close() it first, or name another as broker.dir"
            )
    others = [one for one in running if one.place == place]
    if not others:
        return
    one = others[0]
    warnings.warn(
        f'a crew of the group "{place.group}" that was started here before still runs, with the handler {one.handler}'
        f" (process {one.process.pid}), and takes a part of the messages: close() it first, unless two are meant (workers=N"
        " is for more processes). One that no variable names any more ends by itself, as when this cell was run again",
        stacklevel=stacklevel,
    )


def end_with(
    owner: object, place: Place, handler: str, process: subprocess.Popen[bytes], end: Callable[[], None]
) -> None:
    """When `owner` is collected, the process is told to end. `end` is called by another thread, once it has been, and waits
    for it: whatever makes the collector run must not wait. Not at the end of this process, which its crews notice themselves.
    """
    _all[process.pid] = _Living(place, handler, process)
    weakref.finalize(owner, _abandoned, place, process, end).atexit = False


def has_ended(process: subprocess.Popen[bytes]) -> None:
    """It needs nothing any more."""
    _all.pop(process.pid, None)


def _abandoned(place: Place, process: subprocess.Popen[bytes], end: Callable[[], None]) -> None:
    living = _all.get(process.pid)
    if place.pid != os.getpid() or living is None or living.process is not process:
        return
    if process.poll() is None:
        process.terminate()
        warnings.warn(
            f'the crew of the group "{place.group}" (process {process.pid}) ends, as nothing names it any more: keep what'
            " start() returns for as long as it shall consume",
            stacklevel=2,
        )
    threading.Thread(target=_ended, args=(process, end), name="rocketcrew-crew-end", daemon=True).start()


def _ended(process: subprocess.Popen[bytes], end: Callable[[], None]) -> None:
    with contextlib.suppress(RocketcrewError):  # nobody is there to be told
        end()
    has_ended(process)
