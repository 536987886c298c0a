"""What worker processes run. It is a module of its own so that the supervisor can name it without importing pyarrow."""

from __future__ import annotations

import contextlib
import importlib
import socket
import struct
import sys
from pathlib import Path
from typing import Any, Final

import dill
import multiprocess
from multiprocess import forkserver

from .boot import WorkerBoot
from .parent_death import be_worker
from .slab_memory import SharedFd

LENGTH: Final = struct.Struct("<Q")
"""Before the pickled WorkerBoot that a spare is sent."""
FDS_MAX: Final = 16
OOM_SCORE_ADJ: Final = Path("/proc/self/oom_score_adj")
OOM_SCORE_MORE: Final = 300
OOM_SCORE_MAX: Final = 1000


def run_worker(boot: WorkerBoot) -> None:
    """Run one worker to its end; leaves by SystemExit with the worker's exit code."""
    be_killed_first()
    main = importlib.import_module(".main", __package__)
    sys.exit(main.worker_main(boot))


def be_killed_first(path: Path = OOM_SCORE_ADJ) -> None:
    """Where memory is wanting, the kernel is to choose a worker, which is replaced by itself, before the supervisor, the
    forkserver and the loader. More than what is inherited, as that places all of the member among other programs."""
    with contextlib.suppress(OSError, ValueError):  # not Linux, or not ours to write
        path.write_text(str(min(int(path.read_text()) + OOM_SCORE_MORE, OOM_SCORE_MAX)))


def run_spare(boot_link: SharedFd) -> None:
    """Wait for the boot of a worker, then run that worker. Ends when nobody can send one any more, and with its forkserver.

    No user code runs before that: the handler's set-up hook may take much memory, or ask for the worker's index.
    """
    be_worker()
    importlib.import_module(".main", __package__)
    importlib.import_module(".salvage", __package__).warm_up()
    with socket.socket(fileno=boot_link.fd) as link:
        boot = _receive(link)
    if boot is None:
        sys.exit(0)
    multiprocess.current_process().name = f"rocketcrew-{boot.worker_id}"
    run_worker(boot)


def _receive(link: socket.socket) -> WorkerBoot | None:
    """The boot and its descriptors; None when the other end is closed first."""
    try:
        head, fds, _, _ = socket.recv_fds(link, LENGTH.size, FDS_MAX, socket.MSG_WAITALL)
        if len(head) < LENGTH.size:
            return None
        (length,) = LENGTH.unpack(head)
        with link.makefile("rb") as file:
            data = file.read(length)
    except OSError:
        return None
    if len(data) < length:
        return None
    # Where descriptors of a pickled object are looked up, in a worker that is started the usual way too.
    server: Any = forkserver._forkserver  # pyright: ignore[reportPrivateUsage]
    server._inherited_fds = fds
    boot: WorkerBoot = dill.loads(data)  # noqa: S301  it comes from our own supervisor
    return boot
