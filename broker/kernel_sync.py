"""fdatasync that the kernel does on its own: begun by one system call, its end told by an eventfd (Linux AIO, since 4.18).

A thread that waits for the disk has to get the interpreter's lock twice for each sync, from a loop that lets go of it only
where it waits itself; and a wake-up costs each of them a change of threads. Measured at eight sends in flight: 30 us a send.

Where the kernel does not offer it (an older one, another machine's numbers, a container that forbids it) `KernelSync` cannot
be made, and syncing.py's thread does the work.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import sys
from struct import Struct

# Of the calls io_setup, io_destroy, io_getevents and io_submit; asm/unistd_64.h and asm-generic/unistd.h have them.
_NUMBERS = {"x86_64": (206, 207, 208, 209), "aarch64": (0, 1, 4, 2)}
_FDSYNC = 3  # IOCB_CMD_FDSYNC
_RESFD = 1  # IOCB_FLAG_RESFD: count up an eventfd
# linux/aio_abi.h says: data, key, rw_flags, opcode, priority, descriptor, buffer, bytes, offset, reserved, flags, eventfd.
_IOCB = Struct("<QIIHhIQQqQII")
_EVENT = Struct("<QQqq")  # data, the request, its result or minus an error's number
_TIMESPEC = Struct("<qq")
_AT_ONCE = _TIMESPEC.pack(0, 0)


class KernelSync:
    """One sync at a time; whoever begins it asks for its end."""

    def __init__(self, eventfd: int) -> None:
        """`eventfd` is counted up when a sync has ended. Raises OSError where the kernel does not offer this."""
        numbers = _NUMBERS.get(platform.machine())
        if numbers is None or not sys.platform.startswith("linux") or sys.maxsize < 1 << 32:
            raise OSError("only for 64-bit Linux on x86 and ARM")
        self._setup, self._destroy, self._getevents, self._submit = map(ctypes.c_long, numbers)
        # Most calls return at once: the interpreter's lock stays here (PyDLL). That of a call that waits does not (CDLL).
        self._call = ctypes.PyDLL(None, use_errno=True).syscall
        self._call_that_waits = ctypes.CDLL(None, use_errno=True).syscall
        self._call.restype = self._call_that_waits.restype = ctypes.c_long
        self._eventfd = eventfd
        self._one = ctypes.c_long(1)
        self._request = ctypes.create_string_buffer(_IOCB.size)
        self._requests = (ctypes.c_void_p * 1)(ctypes.addressof(self._request))
        self._event = ctypes.create_string_buffer(_EVENT.size)
        self._context = ctypes.c_ulong(0)
        _checked(self._call(self._setup, self._one, ctypes.byref(self._context)))
        try:  # each call by itself may be forbidden
            _checked(self._call(self._submit, self._context, ctypes.c_long(0), self._requests))
            self.ended()
        except OSError:
            self.close()
            raise

    def begin(self, fd: int) -> None:
        """Begin to sync what is open as `fd`, which may be closed at once. Raises OSError when refused."""
        _IOCB.pack_into(self._request, 0, 0, 0, 0, _FDSYNC, 0, fd, 0, 0, 0, 0, _RESFD, self._eventfd)
        _checked(self._call(self._submit, self._context, self._one, self._requests))

    def ended(self, *, waits: bool = False) -> int | None:
        """None while it is under way, else 0 or the number of its error; with `waits` when it has ended."""
        call, least, timeout = (self._call_that_waits, 1, None) if waits else (self._call, 0, _AT_ONCE)
        while True:
            with contextlib.suppress(InterruptedError):
                found = call(self._getevents, self._context, ctypes.c_long(least), self._one, self._event, timeout)
                if _checked(found) == 0:
                    return None
                break
        return -int(_EVENT.unpack(self._event.raw)[2])

    def close(self) -> None:
        """Give it back to the kernel, when nothing is under way."""
        self._call_that_waits(self._destroy, self._context)


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


__all__ = ["KernelSync"]
