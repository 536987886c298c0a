"""A data folder whose changes are recorded, and what a power cut at any moment may leave of it.

The model: what was synced is there. Of what was not, each page of a file has any of its later contents, or still the one that
was synced; a file has its new size or the synced one; of a folder's changes of names (files made, renamed, removed) the first
few are there. Nothing orders files or folders among each other but syncs.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from rocketcrew.broker.syncing import DiskCalls

PAGE_BYTES = 4_096


@dataclass
class _File:
    """Pages that are on the disk, and the later contents of each; likewise the size."""

    pages: dict[int, bytes] = field(default_factory=dict)
    size: int = 0
    now: dict[int, bytes] = field(default_factory=dict)
    size_now: int = 0
    later: dict[int, list[bytes]] = field(default_factory=dict)

    def write(self, position: int, data: bytes) -> None:
        at = 0
        while at < len(data):
            page, begin = divmod(position + at, PAGE_BYTES)
            part = data[at : at + PAGE_BYTES - begin]
            old = self.now.get(page, bytes(PAGE_BYTES))
            self.now[page] = old[:begin] + part + old[begin + len(part) :]
            self.later.setdefault(page, []).append(self.now[page])
            at += len(part)
        self.size_now = max(self.size_now, position + len(data))

    def truncate(self, size: int) -> None:
        if size < self.size_now:
            last, begin = divmod(size, PAGE_BYTES)
            for page in [page for page in self.now if page >= last]:
                kept = self.now[page][:begin].ljust(PAGE_BYTES, b"\0") if page == last else bytes(PAGE_BYTES)
                self.now[page] = kept
                self.later.setdefault(page, []).append(kept)
        self.size_now = size

    def synced(self) -> None:
        self.pages = dict(self.now)
        self.size = self.size_now
        self.later.clear()

    def after_cut(self, random: Random) -> tuple[dict[int, bytes], int]:
        pages = dict(self.pages)
        for page, contents in self.later.items():
            kept = random.randrange(len(contents) + 1)
            if kept:
                pages[page] = contents[kept - 1]
        return pages, random.choice((self.size, self.size_now))


@dataclass
class _Folder:
    """Names that are on the disk, and the later states of them all, oldest first."""

    names: dict[str, _File | _Folder] = field(default_factory=dict)
    now: dict[str, _File | _Folder] = field(default_factory=dict)
    later: list[dict[str, _File | _Folder]] = field(default_factory=list)

    def changed(self) -> None:
        self.later.append(dict(self.now))

    def synced(self) -> None:
        self.names = dict(self.now)
        self.later.clear()

    def after_cut(self, random: Random) -> dict[str, _File | _Folder]:
        kept = random.randrange(len(self.later) + 1)
        return self.later[kept - 1] if kept else self.names


class RecordedDisk(DiskCalls):
    """The system calls of one data folder. `keeps` False makes every sync do nothing: the control."""

    def __init__(self, root: Path, *, keeps: bool = True) -> None:
        self._root = root
        self._keeps = keeps
        self._open: dict[int, _File | _Folder] = {}
        self.steps = 0
        self.on_step = lambda: None
        """Called before each change."""
        self._top = self._read(root)

    def _read(self, folder: Path) -> _Folder:
        """What is there already is on the disk."""
        found = _Folder()
        for path in folder.iterdir():
            if path.is_dir():
                found.now[path.name] = self._read(path)
            else:
                file = found.now[path.name] = _File()
                file.write(0, path.read_bytes())
                file.synced()
        found.synced()
        return found

    def _find(self, path: str) -> tuple[_Folder, str]:
        parts = Path(path).relative_to(self._root).parts
        folder = self._top
        for part in parts[:-1]:
            below = folder.now[part]
            assert isinstance(below, _Folder)
            folder = below
        return folder, parts[-1]

    def _step(self) -> None:
        self.steps += 1
        self.on_step()

    def open(self, path: str, flags: int) -> int:
        if path == str(self._root):
            fd = super().open(path, flags)
            self._open[fd] = self._top
            return fd
        folder, name = self._find(path)
        if flags & os.O_CREAT and name not in folder.now:
            self._step()
            folder.now[name] = _File()
            folder.changed()
        fd = super().open(path, flags)
        self._open[fd] = found = folder.now[name]
        if flags & os.O_TRUNC and isinstance(found, _File):
            found.truncate(0)
        return fd

    def close(self, fd: int) -> None:
        super().close(fd)
        del self._open[fd]

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> int:
        self._step()
        file = self._open[fd]
        assert isinstance(file, _File)
        file.write(position, bytes(data))
        return super().pwrite(fd, data, position)

    def ftruncate(self, fd: int, length_bytes: int) -> None:
        self._step()
        file = self._open[fd]
        assert isinstance(file, _File)
        file.truncate(length_bytes)
        super().ftruncate(fd, length_bytes)

    def rename(self, path: str, new_path: str) -> None:
        (source, name), (target, new_name) = self._find(path), self._find(new_path)
        if name in source.now:
            self._step()
            target.now[new_name] = source.now.pop(name)
            target.changed()
            if source is not target:
                source.changed()
        super().rename(path, new_path)

    def unlink(self, path: str) -> None:
        self._forget(path)
        super().unlink(path)

    def rmdir(self, path: str) -> None:
        super().rmdir(path)
        self._forget(path)

    def _forget(self, path: str) -> None:
        folder, name = self._find(path)
        if name in folder.now:
            self._step()
            del folder.now[name]
            folder.changed()

    def mkdir(self, path: str) -> None:
        super().mkdir(path)
        self._step()
        folder, name = self._find(path)
        folder.now[name] = _Folder()
        folder.changed()

    def fsync(self, fd: int) -> None:
        self.fdatasync(fd)

    def fdatasync(self, fd: int) -> None:
        if self._keeps:
            self._step()
            self._open[fd].synced()

    def cut(self, random: Random, place: Path) -> None:
        """Put into the new folder `place` what a power cut now may leave."""
        self._put(self._top, random, place)

    def _put(self, folder: _Folder, random: Random, place: Path) -> None:
        place.mkdir()
        for name, found in folder.after_cut(random).items():
            if isinstance(found, _Folder):
                self._put(found, random, place / name)
                continue
            pages, size = found.after_cut(random)
            with open(place / name, "wb") as file:
                for page, content in pages.items():
                    if page * PAGE_BYTES < size and content.count(0) != PAGE_BYTES:
                        file.seek(page * PAGE_BYTES)
                        file.write(content)
                file.truncate(size)
