"""The slab: memory that the supervisor alone writes and every worker maps read-only.

An anonymous file (memfd) without a name, so nothing is left over whatever dies, and no resource tracker is involved.
It reaches a forkserver's worker as a duplicated descriptor inside the pickled WorkerBoot. The descriptor that travels
was opened read-only where /proc allows it: a worker gone wild can then not even map it writable.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import socket

from multiprocess import reduction


def slab_supported() -> bool:
    """Does this platform have memfd and SEQPACKET pairs?"""
    return hasattr(os, "memfd_create") and hasattr(socket, "SOCK_SEQPACKET")


class SharedFd:
    """A file descriptor that may be pickled while a worker is started: the worker gets a duplicate."""

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __reduce__(self) -> tuple[object, tuple[object]]:
        return _attach, (reduction.DupFd(self.fd),)


def _attach(duplicate: reduction.DupFd) -> SharedFd:
    return SharedFd(duplicate.detach())


class SlabHandle:
    """What a worker needs to map the slab; made by `SlabMemory.handle()`, picklable into a WorkerBoot."""

    __slots__ = ("shared_fd", "size_bytes")

    def __init__(self, shared_fd: SharedFd, size_bytes: int) -> None:
        self.shared_fd = shared_fd
        self.size_bytes = size_bytes

    def map_read_only(self) -> mmap.mmap:
        """Map it; the mapping stays after the descriptor is closed by `close_fd`."""
        return mmap.mmap(self.shared_fd.fd, self.size_bytes, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)

    def close_fd(self) -> None:
        """Close the descriptor (once, after mapping)."""
        os.close(self.shared_fd.fd)


class SlabMemory:
    """The supervisor's side: `view` is writable memory of `size_bytes`; `recv_into` slices of it."""

    def __init__(self, size_bytes: int, *, prefault: bool = False) -> None:
        """Allocate. `size_bytes` >= 1; prefault = touch every page now, else memory is taken as it is first used."""
        flags = mmap.MAP_SHARED | (getattr(mmap, "MAP_POPULATE", 0) if prefault else 0)
        self.size_bytes = size_bytes
        self._fd = os.memfd_create("rocketcrew-slab", os.MFD_CLOEXEC)
        os.ftruncate(self._fd, size_bytes)
        self._map = mmap.mmap(self._fd, size_bytes, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        self.view = memoryview(self._map)
        self._read_only_fd = self._reopen_read_only()

    def _reopen_read_only(self) -> int:
        try:
            return os.open(f"/proc/self/fd/{self._fd}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return os.dup(self._fd)

    def handle(self) -> SlabHandle:
        """For WorkerBoot.slab; the same handle may serve any number of workers."""
        return SlabHandle(SharedFd(self._read_only_fd), self.size_bytes)

    def close(self) -> None:
        """Unmap and close. Slices of `view` that are still held keep the memory (then nothing is unmapped)."""
        os.close(self._fd)
        os.close(self._read_only_fd)
        with contextlib.suppress(BufferError):
            self.view.release()
            self._map.close()
