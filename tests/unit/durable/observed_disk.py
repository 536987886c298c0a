"""A folder whose changes are seen from outside, and what a power cut at any moment may leave of it.

For code that makes its own system calls, and for writers in C++: `os.fsync` and what changes names are wrapped while the disk
is observed, and the folder is looked at before and after each of them. The model is that of recorded_disk.py: what was synced
is there; of what was not, each page of a file has any of the contents that were seen, or still the synced one; a file has a
size that was seen or the synced one; of a folder's changes of names the first few are there.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from random import Random
from typing import Any

PAGE_BYTES = 4_096
NAMES = ("rename", "replace", "unlink", "remove", "rmdir", "mkdir")
SYNCS = ("fsync", "fdatasync")


class _File:
    def __init__(self) -> None:
        self.synced = b""
        self.later: list[bytes] = []
        self.stamp: tuple[int, int] | None = None

    @property
    def now(self) -> bytes:
        return self.later[-1] if self.later else self.synced

    def sync(self) -> None:
        self.synced, self.later = self.now, []

    def after_cut(self, random: Random) -> bytes:
        seen = [self.synced, *self.later]
        size = len(random.choice(seen))
        pages = (random.choice(seen)[at : at + PAGE_BYTES] for at in range(0, size, PAGE_BYTES))
        return b"".join(page.ljust(PAGE_BYTES, b"\0") for page in pages)[:size]


class _Folder:
    def __init__(self) -> None:
        self.synced: dict[str, _File | _Folder] = {}
        self.later: list[dict[str, _File | _Folder]] = []

    @property
    def now(self) -> dict[str, _File | _Folder]:
        return self.later[-1] if self.later else self.synced

    def sync(self) -> None:
        self.synced, self.later = self.now, []


class ObservedDisk:
    """The folder `root`. `keeps` False makes every sync do nothing: the control."""

    def __init__(self, root: Path, *, keeps: bool = True) -> None:
        self._root, self._keeps = root, keeps
        self._lock = threading.RLock()
        self._cutting = False
        self._top = _Folder()
        self._known: dict[int, _File | _Folder] = {}
        """By inode; one that is gone is forgotten at once, as its number is given again."""
        self.on_step: Callable[[], None] = lambda: None
        """Called before each change of names and each sync, with nothing changing meanwhile but the contents of files."""

    @contextlib.contextmanager
    def observed(self) -> Generator[None]:
        """What is there when it begins is on the disk."""
        self._look()
        for each in [self._top, *self._known.values()]:
            each.sync()
        real: dict[str, Any] = {name: getattr(os, name) for name in (*NAMES, *SYNCS)}
        try:
            for name in NAMES:
                setattr(os, name, self._naming(real[name]))
            for name in SYNCS:
                setattr(os, name, self._syncing(real[name]))
            yield
        finally:
            for name, call in real.items():
                setattr(os, name, call)

    def _naming(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def naming(*given: Any, **named: Any) -> Any:
            with self._lock:
                if self._cutting:
                    return call(*given, **named)
                self._look()
                self.on_step()
                try:
                    return call(*given, **named)
                finally:
                    self._look()

        return naming

    def _syncing(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def syncing(fd: Any) -> None:
            with self._lock:
                self._look()
                self.on_step()
                call(fd)
                found = self._known.get(os.fstat(fd).st_ino)
                if found is not None and self._keeps:
                    found.sync()

        return syncing

    def _look(self) -> None:
        seen: dict[int, _File | _Folder] = {}
        self._look_at(self._root, self._top, seen)
        seen[self._root.stat().st_ino] = self._top
        self._known = seen

    def _look_at(self, path: Path, folder: _Folder, seen: dict[int, _File | _Folder]) -> None:
        now: dict[str, _File | _Folder] = {}
        for entry in sorted(os.scandir(path), key=lambda one: one.name):
            with contextlib.suppress(FileNotFoundError):
                facts = entry.stat(follow_symlinks=False)
                is_folder = entry.is_dir(follow_symlinks=False)
                found = self._known.get(facts.st_ino)
                if found is None or isinstance(found, _Folder) != is_folder:
                    found = _Folder() if is_folder else _File()
                now[entry.name] = seen[facts.st_ino] = found
                if isinstance(found, _Folder):
                    self._look_at(path / entry.name, found, seen)
                elif found.stamp != (facts.st_mtime_ns, facts.st_size):
                    found.stamp = facts.st_mtime_ns, facts.st_size
                    content = (path / entry.name).read_bytes()
                    if content != found.now:
                        found.later.append(content)
        if now != folder.now:
            folder.later.append(now)

    def cut(self, random: Random, place: Path) -> None:
        """Put into the new folder `place` what a power cut now may leave. Not below `root`."""
        with self._lock:
            self._cutting = True
            self._put(self._top, random, place)
            self._cutting = False

    def _put(self, folder: _Folder, random: Random, place: Path) -> None:
        os.makedirs(place)
        for name, found in random.choice([folder.synced, *folder.later]).items():
            if isinstance(found, _Folder):
                self._put(found, random, place / name)
            else:
                (place / name).write_bytes(found.after_cut(random))
