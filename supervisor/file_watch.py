"""`rocketcrew run --reload`: for development, a reload as soon as a Python file below the current folder changes.

Looked at by stat, a few times a second and outside of the loop, which works on every file system. An editor that writes
several files is waited for: the reload begins when nothing has changed for one look.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

LOOK_S: Final = 0.3
FILES_MAX: Final = 20_000
"""More than this is not somebody's handler, but a folder full of other things."""
SKIPPED: Final = frozenset({"__pycache__", "node_modules", "site-packages"})
"""Folders that are not looked into, nor are those whose name begins with a dot."""

Picture = dict[str, tuple[int, int]]

log = structlog.get_logger("rocketcrew.supervisor")


def picture(folder: Path) -> Picture:
    """Every Python file below the folder, with its time of change (ns) and size; at most FILES_MAX of them."""
    found: Picture = {}
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in SKIPPED)
        for name in files:
            if not name.endswith(".py"):
                continue
            path = os.path.join(place, name)
            try:
                status = os.stat(path)
            except OSError:
                continue  # an editor is replacing it: the next look finds it
            found[path] = (status.st_mtime_ns, status.st_size)
            if len(found) >= FILES_MAX:
                return found
    return found


def changed(before: Picture, after: Picture) -> list[str]:
    """Files that are new, gone or different."""
    return sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))


class Settled:
    """When to act on a series of pictures: one look after the last change. Pure."""

    def __init__(self, first: Picture) -> None:
        self._acted_on = first
        self._last = first

    def look(self, now: Picture) -> list[str]:
        """What changed since it was last acted on, once that has come to rest; else nothing."""
        rests, self._last = now == self._last, now
        if not rests or now == self._acted_on:
            return []
        files, self._acted_on = changed(self._acted_on, now), now
        return files


async def watch(folder: Path, settled: Settled, act: Callable[[], object]) -> None:
    """Call `act` after changes below `folder` since the first picture of `settled`, until cancelled."""
    while True:
        await asyncio.sleep(LOOK_S)
        files = settled.look(await asyncio.to_thread(picture, folder))
        if files:
            log.info("files_changed", files=files[:5], more=max(0, len(files) - 5))
            act()
