"""The end of a command's process: what the interpreter does at its end, also where it is not taken down."""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import os
import signal
import sys
import threading
from typing import Any, Final, NoReturn

from ..conf.exit_codes import EXIT_FAILURE
from .exit_codes import tell
from .patient_output import drop_rest

END_S: Final = 10.0
"""A disk may be busy for so long; a pipe whose reader hangs is, for ever."""
_FILE: Final[type] = io.IOBase.__mro__[1]
"""The base of Python's own files, too. `isinstance` of the public one would ask objects of all kinds what they are."""
_ON_DESCRIPTORS: Final = (io.BufferedWriter, io.BufferedRandom, io.FileIO)


def leave(code: int, *, at_once: bool) -> NoReturn:
    """End the process with `code`; with 1 in place of 0 where what was printed cannot be written.

    `at_once`: threads that are no daemons, functions of atexit and open files come first, as at any end; but the interpreter
    is not taken down. Before Python 3.14 a daemon thread, as py4j's are, that gives up or takes the lock at that moment may
    reach into memory that is free (gh-124878), and the code would be SIGSEGV's.
    """
    if at_once:
        _end_threads()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except ValueError:  # a library has closed it
            pass
        except KeyboardInterrupt:  # who reads it hangs
            drop_rest((stream.fileno(),))
        except OSError as error:
            drop_rest((stream.fileno(),))
            if not code:
                tell(error.strerror or str(error))
                code = EXIT_FAILURE
    if at_once:
        _end_files()
        os._exit(code)
    sys.exit(code)


def _end_threads() -> None:
    """What the interpreter's end does first. Ctrl-C and TERM end a wait, and do not change the code."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt):
        threading._shutdown()  # type: ignore[attr-defined]  # as multiprocess ends its processes
    with contextlib.suppress(KeyboardInterrupt):
        atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]


def _end_files() -> None:
    """Write what is in the buffers of this process's files, and close those which write an end, as compressed ones do.
    What fails is told and no more. Not what other objects write when they end, such as `zipfile.ZipFile`."""
    failures: list[Exception] = []
    # A daemon: nothing else ends a write.
    ending = threading.Thread(target=_write_and_close, args=(failures,), name="files", daemon=True)
    with contextlib.suppress(KeyboardInterrupt, OSError, ValueError):
        try:
            ending.start()
            ending.join(END_S)
        except RuntimeError:  # no thread is to be had: then nothing but Ctrl-C ends a write
            _write_and_close(failures)
        if failures:
            tell(f"a file of the program's could not be written to its end: {failures[0]}")


def _write_and_close(failures: list[Exception]) -> None:
    """Those of text first, those with a descriptor last: the ones write to the others."""
    gc.unfreeze()  # frozen objects are not listed
    streams = {id(sys.stdout), id(sys.stderr)}
    files: list[Any] = [each for each in gc.get_objects() if issubclass(type(each), _FILE) and id(each) not in streams]
    text = [each for each in files if isinstance(each, io.TextIOBase)]
    last: list[Any] = [each for each in files if isinstance(each, _ON_DESCRIPTORS)]
    others = [each for each in files if not isinstance(each, (io.TextIOBase, *_ON_DESCRIPTORS))]
    # One with a descriptor may also be above a compressed one, which takes nothing more when it is closed.
    for method, those in (("flush", text), ("flush", last), ("flush", others), ("close", others), ("flush", last)):
        for each in those:
            try:
                if not each.closed and each.writable():
                    getattr(each, method)()
            except Exception as error:  # noqa: BLE001  of any class of the user's
                failures.append(error)
