"""What comes into a folder and what goes, without listing it: the kernel's notices (inotify), read when it suits.

Linux only, and only for what this machine does: on a file system that other hosts write to, what they do is not noticed. So
whoever uses this lists the folder too, now and then.
"""

from __future__ import annotations

import ctypes
import os
import struct
from pathlib import Path
from typing import Final

IN_CLOSE_WRITE, IN_MOVED_FROM, IN_MOVED_TO, IN_CREATE, IN_DELETE = 0x8, 0x40, 0x80, 0x100, 0x200
IN_DELETE_SELF, IN_MOVE_SELF = 0x400, 0x800
IN_Q_OVERFLOW, IN_IGNORED = 0x4000, 0x8000
IN_ONLYDIR: Final = 0x01000000
CAME: Final = IN_CREATE | IN_CLOSE_WRITE | IN_MOVED_TO
WENT: Final = IN_DELETE | IN_MOVED_FROM
LOST: Final = IN_Q_OVERFLOW | IN_IGNORED | IN_DELETE_SELF | IN_MOVE_SELF
HEAD: Final = struct.Struct("iIII")
"""struct inotify_event: watch, mask, cookie, length of the name that follows."""
READ_BYTES: Final = 64 * 1024


class FolderNotices:
    """Of one folder. The kernel keeps some thousands of notices; when it had to drop some, `read` says so."""

    def __init__(self, folder: Path) -> None:
        """Raises OSError where the system has no such notices, or grants no more of them (fs.inotify.max_user_instances)."""
        libc = ctypes.CDLL(None, use_errno=True)
        if not hasattr(libc, "inotify_init1"):
            raise OSError("this system has no inotify")
        self._descriptor = int(libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        if self._descriptor < 0:
            raise _error("inotify_init1")
        mask = CAME | WENT | IN_DELETE_SELF | IN_MOVE_SELF | IN_ONLYDIR
        if libc.inotify_add_watch(self._descriptor, os.fsencode(folder), mask) < 0:
            error = _error(f"inotify_add_watch of {folder}")
            self.close()
            raise error

    def read(self) -> dict[str, bool] | None:
        """What has happened since the last call: by name, True = it came or was written, False = it went; the last of several
        counts. None = some was lost, or the folder itself was replaced: make new notices, and list it."""
        found: dict[str, bool] = {}
        lost = False
        while True:
            try:
                data = os.read(self._descriptor, READ_BYTES)
            except BlockingIOError:
                return None if lost else found
            at = 0
            while at < len(data):
                _, mask, _, length = HEAD.unpack_from(data, at)
                at += HEAD.size
                name = os.fsdecode(data[at : at + length].rstrip(b"\0"))
                at += length
                lost = lost or bool(mask & LOST)
                if name:
                    found.pop(name, None)
                    found[name] = bool(mask & CAME)

    def close(self) -> None:
        """No more notices."""
        os.close(self._descriptor)


def _error(what: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{what}: {os.strerror(number)}")
