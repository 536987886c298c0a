"""Limits on descriptors, processes and threads: what a member needs of them, and which one an error has met.

What the system says when one is reached ("Resource temporarily unavailable", "can't start new thread") names neither the
limit nor who sets it. Each place that starts a process or a thread, or tells its error, asks here for that.
"""

from __future__ import annotations

import errno
import os
import resource
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

CGROUP: Final = Path("/sys/fs/cgroup")
OWN_CGROUP: Final = Path("/proc/self/cgroup")
FILES_BASE: Final = 128
FILES_EACH_WORKER: Final = 16
"""Open files of the supervisor: connections, state and libraries, and for each worker links, memory and its successor's."""
FILES_LEAST_BASE: Final = 64
FILES_LEAST_EACH_WORKER: Final = 6
"""With less than that something of a member may not start or connect: measured are 35 and 5 for each worker. What is above
has room for many brokers, libraries and more: `doctor`, which is asked beforehand, wants it."""
TASKS_BASE: Final = 16
TASKS_EACH_WORKER: Final = 2
"""Processes and threads of a member without a JVM, measured at 2 cores: supervisor, forkserver and a loader that writes by
pyarrow; a worker has its reporter beside it. With less than that something of it cannot start; more cores want more."""
FILES_OF_A_START: Final = 16
"""What the start of a process has open meanwhile: pipes to it and to its error, and in the child those of the loop."""
CAUSES_MAX: Final = 8
"""Of an error, each the cause of the one before: what a library has raised may go in a circle."""
_NO_THREAD: Final = "can't start new thread"
Read = Callable[[str], str]
"""A file below /sys/fs/cgroup, empty where there is none."""


def read_cgroup(name: str) -> str:
    """As `Read`, of this machine."""
    try:
        return (CGROUP / name).read_text()
    except OSError:
        return ""


def own_cgroup() -> str:
    """The text of /proc/self/cgroup."""
    return OWN_CGROUP.read_text() if OWN_CGROUP.exists() else ""


def own_groups(text: str, controller: str) -> Iterator[tuple[bool, str]]:
    """The control groups of /proc/self/cgroup, whose `text` this is, that may have the controller: whether each is of
    version 1, and its path below the hierarchy's root, without a slash in front."""
    for line in text.splitlines():
        _, *named = line.split(":", 2)
        if len(named) == 2 and (not named[0] or controller in named[0].split(",")):
            yield bool(named[0]), named[1].lstrip("/")


def group_folders(text: str, controller: str) -> Iterator[tuple[bool, str]]:
    """As `own_groups`, with those above each: the folders of their files below /sys/fs/cgroup, with a slash at the end. In a
    container what is mounted there is the group itself, whatever path is named."""
    for version_1, path in own_groups(text, controller):
        folder = f"{controller}/" if version_1 else ""
        for part in ("", *path.split("/")):
            folder += f"{part}/" if part else ""
            yield version_1, folder


def files_max() -> int:
    """How many files this process may have open."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return limit if limit != resource.RLIM_INFINITY else 1 << 30


def check_start() -> None:
    """Raise OSError where there are too few descriptors to start a process. To be asked before uvloop (0.23) starts one: a
    start that fails half-way leaves open there what it had by then, and may have no errno (`Unknown error -1`)."""
    taken: list[int] = []
    try:
        while len(taken) < FILES_OF_A_START:
            taken.append(os.open("/", os.O_PATH | os.O_CLOEXEC))
    except OSError as error:
        raise OSError(error.errno, error.strerror) from None  # of no file
    finally:
        for descriptor in taken:
            os.close(descriptor)


def group_tasks_left(own: str, read: Read) -> int | None:
    """How many more processes and threads the control group of `own` (`own_cgroup`) may have; None where it may have any
    number. Pure but for `read`."""
    left: list[int] = []
    for _, folder in group_folders(own, "pids"):
        most, now = (read(f"{folder}pids.{name}").strip() for name in ("max", "current"))
        if most.isdigit() and now.isdigit():
            left.append(max(0, int(most) - int(now)))
    return min(left, default=None)


def user_tasks_max() -> int | None:
    """How many processes and threads this user may have, of all sessions; None for root, whom no limit holds."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    return None if limit == resource.RLIM_INFINITY or os.geteuid() == 0 else limit


def tasks_left() -> int | None:
    """How many more processes and threads there may be at most; None without a limit."""
    found = (group_tasks_left(own_cgroup(), read_cgroup), user_tasks_max())
    return min((each for each in found if each is not None), default=None)


def files_needed(workers: int) -> int:
    """How many files a supervisor of so many workers may have open at its busiest."""
    return FILES_BASE + FILES_EACH_WORKER * workers


def files_least(workers: int) -> int:
    """With fewer files a supervisor of so many workers is about to run short of them."""
    return FILES_LEAST_BASE + FILES_LEAST_EACH_WORKER * workers


def tasks_needed(workers: int) -> int:
    """Without so many processes and threads something of a member cannot start."""
    return TASKS_BASE + TASKS_EACH_WORKER * workers


def more_files(workers: int) -> str:
    """What is to be done where there are fewer files than needed."""
    return f"`ulimit -n {max(1024, 2 * files_needed(workers))}`, or LimitNOFILE of systemd"


MORE_TASKS: Final = (
    "raise the container's limit of processes (pids.max, podPidsLimit), TasksMax of systemd, or `ulimit -u`"
)

INTERRUPTED_ITSELF: Final = (
    "where nobody has sent SIGINT, a library that could not start its threads did so (OpenBLAS does, for one):"
    f" {MORE_TASKS}; or set OPENBLAS_NUM_THREADS=1"
)


def from_outside(number: int) -> str:
    """Of the end of a process by a signal that is no fault of its own: who may have sent it."""
    if number == signal.SIGINT:
        return f"from outside: look who sends that; {INTERRUPTED_ITSELF}"
    return "from outside: look who sends that; of SIGKILL the kernel's log says whether it was for want of memory"


def too_small(workers: int, files: int, tasks: int | None) -> Iterator[dict[str, object]]:
    """For a log: each limit that is too small for so many workers, where so many files may be open and so many processes and
    threads be had (`files_max`, `tasks_left`)."""
    if files < (needed := files_least(workers)):
        yield {"what": "open files", "limit": files, "needed": needed, "hint": more_files(workers)}
    if tasks is not None and tasks < (needed := tasks_needed(workers)):
        yield {"what": "processes and threads", "limit": tasks, "needed": needed, "hint": MORE_TASKS}


def is_no_thread(error: BaseException) -> bool:
    """Whether Python could not start a thread: it has no class for that."""
    return isinstance(error, RuntimeError) and str(error).startswith(_NO_THREAD)


def no_thread_left(address_space_max: int) -> str:
    """What is to be done where no thread can start. Its stack is address space: where that is limited (RLIMIT_AS, in bytes),
    nothing tells which limit it was."""
    if address_space_max == resource.RLIM_INFINITY:
        return f"no thread or process is left: {MORE_TASKS}"
    return (
        f"no address space is left for its stack: raise `ulimit -v` ({address_space_max >> 10} KiB), or LimitAS of systemd."
        f" Or no thread or process is left: {MORE_TASKS}"
    )


def used_up(error: BaseException) -> str:
    """Which limit the error has met, and what is to be done; "" where it has met none of these."""
    if is_no_thread(error):
        return no_thread_left(resource.getrlimit(resource.RLIMIT_AS)[0])
    if not isinstance(error, OSError):
        return ""
    match error.errno:
        case errno.EMFILE:
            return f"no file descriptor is left of {files_max()}: raise `ulimit -n`, or LimitNOFILE of systemd"
        case errno.ENFILE:
            return "this machine has no file descriptor left: raise fs.file-max (sysctl)"
        case errno.EAGAIN if error.filename is None and error.strerror == os.strerror(errno.EAGAIN):
            return f"if that was the start of a process, none is left: {MORE_TASKS}"
        case _:
            return ""


def remedy_of(error: BaseException) -> str:
    """As `used_up`, of what has led to an error: ours say what failed, in words, and have the system's as their cause. Not of
    EAGAIN, which is also what a lock says that somebody else has."""
    found: BaseException | None = error
    for _ in range(CAUSES_MAX):
        if found is None:
            break
        if getattr(found, "errno", None) != errno.EAGAIN and (remedy := used_up(found)):
            return remedy
        found = found.__cause__
    return ""


def with_remedy(error: BaseException) -> str:
    """The error's text, and of a limit that it has met what is to be done."""
    said = str(error) or repr(error)
    return f"{said} ({remedy})" if (remedy := used_up(error)) else said
