"""Starting workers: one forkserver per generation of user code, preloaded, and a handle for each worker.

The forkserver of `multiprocess` is used as it is, with four differences from `Process.start()`:
- a server object of our own, so that two generations of user code can run side by side;
- its socket has a path only until it is bound: it is reached by a descriptor, so nobody who clears up the folder of
  temporary files can cut it off, and a supervisor that is killed leaves nothing there;
- the program's `__main__` is not run again in the worker (handlers of `__main__` come by dill), which keeps a start
  at a few milliseconds and spares scripts the `if __name__ == "__main__"` guard;
- workers are not in multiprocess' list of children, which it would join at exit for as long as a handler runs.

A spare is a worker that was forked before it is needed and waits for its boot (entry.py): a death is made good in half the
time, since forking and the copies of pages after it are over.

Start the forkserver from the main thread, before any other thread exists: its parent-death signal belongs to the thread
that starts it. A forkserver that died is started again by the next `start_worker`; its workers died with it.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import select
import signal
import site
import socket
import tempfile
import threading
from collections.abc import Generator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import multiprocess
from multiprocess import context, popen_forkserver, reduction, spawn, util
from multiprocess.forkserver import ForkServer, read_signed
from multiprocess.process import BaseProcess, current_process
from multiprocess.resource_tracker import ensure_running as ensure_tracker

from ..conf.exit_codes import EXIT_FAILURE, EXIT_HANDLER
from ..conf.held_signals import held
from ..conf.limits import with_remedy
from ..conf.own_command import PACKAGE_ROOT
from ..remoting.errors import RocketcrewError
from .boot import WorkerBoot
from .entry import LENGTH, run_spare, run_worker
from .loading import search_path
from .parent_death import CONTROL_SIGNALS
from .preload import ENVIRONMENT_KEY, use_path
from .slab_memory import SharedFd
from .stack_dump import StackFile

PRELOAD_MODULE: Final = "rocketcrew.workers.preload"
START_TIMEOUT_MS: Final = 60_000
"""Time for the forkserver to import the handler's module before its first fork."""
DYING_TIMEOUT_MS: Final = 1_000
"""Time for a forkserver that refused a connection, or a spare that was killed, to be dead."""
SPARE_TIMEOUT_S: Final = 1.0
"""A spare that does not take its boot within this is ended, and a worker is forked as usual."""
CRASHES: Final = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE})
EXIT_UNKNOWN: Final = 255
"""Exit code of a worker whose forkserver died too."""
PIDFD_SIGNAL_PROCESS_GROUP: Final = 4
"""A flag of pidfd_send_signal, from Linux 6.9 on."""


class WorkerStartError(RocketcrewError):
    """A worker process could not be made."""

    by_handler = False
    """The handler's module has crashed the process that imports it: it will do so again."""


FOUND_IN: Final = (PACKAGE_ROOT, os.path.dirname(os.path.dirname(multiprocess.__file__)))
"""The folders of this package and of multiprocess."""


class WorkerProcess:
    """One started worker. Not a child of this process: the forkserver reaps it and reports the exit code."""

    def __init__(self, popen: _Popen, worker_id: str) -> None:
        self.worker_id = worker_id
        self.pid: int = popen.pid
        self._popen = popen

    @property
    def sentinel(self) -> int:
        """Descriptor that becomes readable when the worker is dead."""
        return self._popen.sentinel

    @property
    def exitcode(self) -> int | None:
        """None while it lives; then its exit code, -N for signal N, EXIT_UNKNOWN when the forkserver died as well."""
        return self._popen.poll()

    @property
    def unattended(self) -> bool:
        """Its forkserver died before it, or with it: how it ended is not known."""
        self._popen.poll()
        return self._popen.unattended

    def wait(self, timeout_ms: int | None = None) -> int | None:
        """Wait for its death; the exit code, or None when the time is over."""
        poll = select.poll()
        poll.register(self.sentinel, select.POLLIN)
        poll.poll(timeout_ms)
        return self.exitcode

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal; nothing happens when it is dead. Never hits another process that got the same pid."""
        with contextlib.suppress(ProcessLookupError):
            if self._popen.pidfd >= 0:
                signal.pidfd_send_signal(self._popen.pidfd, number)
            elif self.exitcode is None:
                os.kill(self.pid, number)

    def signal_group(self, number: int) -> bool:
        """Send a signal to the process group that it leads or has led; False when nobody is left in it. 0 only asks.

        The descriptor names the group for good, also when the worker was reaped. Older kernels know the group's number alone.
        No new process gets that as long as anybody is left in the group; so one that has it proves that nobody is.
        """
        with contextlib.suppress(OSError):
            if self._popen.pidfd >= 0:
                try:
                    signal.pidfd_send_signal(self._popen.pidfd, number, None, PIDFD_SIGNAL_PROCESS_GROUP)
                except ProcessLookupError:
                    return False
                return True
        if self._given_anew:
            return False
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            return False
        except OSError:  # who is left runs as another user
            return True
        return True

    @property
    def _given_anew(self) -> bool:
        """Another process has its number: one that the forkserver has reaped has it no more."""
        if self.exitcode is None or self.unattended:
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except OSError:
            pass
        return True

    def close(self) -> None:
        """Release the descriptors now (after its death); else the garbage collector does."""
        self._popen.poll()
        self._popen.pidfd = -1
        self._popen.close()


class _Spare:
    """A forked process that waits for its WorkerBoot."""

    def __init__(self, process: WorkerProcess, link: socket.socket) -> None:
        self.process = process
        self._link = link

    def take_over(self, boot: WorkerBoot) -> WorkerProcess | None:
        """Make it this worker; None when it is dead or does not listen."""
        data, fds = _boot_bytes(boot)
        try:
            if self.process.exitcode is None:
                self._link.settimeout(SPARE_TIMEOUT_S)
                socket.send_fds(self._link, [LENGTH.pack(len(data))], fds)
                self._link.sendall(data)
                self.process.worker_id = boot.worker_id
                return self.process
        except OSError:
            pass
        finally:
            self._link.close()
        self.end()
        return None

    def end(self) -> None:
        """It is not needed. Its forkserver has the time to reap it: should that end first, and we be PID 1, nobody would."""
        self._link.close()
        self.process.kill()
        self.process.wait(DYING_TIMEOUT_MS)
        self.process.close()


class _ServerEnd(NamedTuple):
    """How a forkserver has ended."""

    text: str
    by_module: bool = False
    """By what the handler's module does, and not by what it lacks."""


class _Server(ForkServer):
    """multiprocess' own, but only the main thread starts a process: its parent-death signal is that thread's. And its socket
    has no path any more once it runs.

    Other threads connect to it. The main thread ends it when it likes: then their descriptors are closed only when they are
    done with them, as the numbers would be those of other files, of another generation's forkserver at worst.
    """

    def __init__(self) -> None:
        super().__init__()
        self._socket_fd: int | None = None
        self._in_use = threading.RLock()
        """Held while somebody connects. That takes no time, or fails, once the process is killed."""

    @property
    def alive(self) -> bool:
        """Whether its process runs."""
        return self._forkserver_pid is not None and self.ended() is None

    def ended(self) -> _ServerEnd | None:
        """None while it lives, and where there is none. It is not reaped here."""
        pid = self._forkserver_pid
        try:
            end = None if pid is None else os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return _ServerEnd("it ended")
        if end is None:
            return None
        if end.si_code == os.CLD_EXITED:
            text, module = (
                f"it ended with exit code {end.si_status}",
                "The handler's module may have ended it (os._exit)",
            )
            if end.si_status == EXIT_FAILURE:  # by an error for which the system had nothing to give
                return _ServerEnd(text)
            if end.si_status != EXIT_HANDLER:
                return _ServerEnd(f"{text}. {module}, or a library of its")
            return _ServerEnd(
                f"{text}. {module}, or changed what others use too (socket, os, builtins)", by_module=True
            )
        text = f"it was ended by signal {end.si_status} ({signal.strsignal(end.si_status)})"
        if end.si_status in CRASHES:
            return _ServerEnd(f"{text}. The handler's module may have crashed it", by_module=True)
        return _ServerEnd(f"{text}. Lack of memory may do that" if end.si_status == signal.SIGKILL else text)

    def connect_to_new_process(self, fds: Sequence[int]) -> tuple[int, int]:
        with self._in_use:
            return super().connect_to_new_process(fds)

    def ensure_running(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            if self._forkserver_pid is None:
                raise OSError("the forkserver is gone")
        elif not self.alive:
            self.end()
            try:
                self._start()
            except BaseException:
                self.end()
                raise

    def _start(self) -> None:
        with _short_lived_folder():
            with held(CONTROL_SIGNALS):  # multiprocess' tracker keeps them so: what it does for us must not stop
                ensure_tracker()
            with held(CONTROL_SIGNALS):  # INT and TERM anew, which that has let go: until the forkserver has handlers
                super().ensure_running()
            # What connects looks up the file that the descriptor holds, also when it has no name any more (Linux).
            self._socket_fd = os.open(str(self._forkserver_address), os.O_PATH | os.O_CLOEXEC)
            self._forkserver_address = f"/proc/self/fd/{self._socket_fd}"

    def end(self) -> None:
        """End it at once. multiprocess' own way ends with an error where the socket's path is gone.

        Programs that the user's module has started at its import get TERM: nobody else could end them. No KILL, which would
        also hit multiprocessing's resource tracker, before it has removed the shared memory of who is killed here.
        """
        if self._forkserver_pid is None:
            return
        # It is our child, so the number is its own until it is reaped below. One that is just starting leads no group.
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._forkserver_pid, signal.SIGKILL)  # first: it would warn of each of the others that it reaps
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._forkserver_pid, signal.SIGTERM)
        with self._in_use:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self._forkserver_pid, 0)
            _close_all([fd for fd in (self._forkserver_alive_fd, self._socket_fd) if fd is not None])
            self._forkserver_pid = self._forkserver_alive_fd = self._forkserver_address = self._socket_fd = None


@contextlib.contextmanager
def _short_lived_folder() -> Generator[None]:
    """Within this multiprocess makes its sockets in a folder that goes at the end, whatever has become of an earlier one.
    Raises OSError when none can be made."""
    process: Any = current_process()
    config: dict[str, Any] = process._config
    with tempfile.TemporaryDirectory(prefix="rocketcrew-", ignore_cleanup_errors=True) as folder:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        # A Unix socket's path has 107 bytes, and that of a folder may have more.
        before, config["tempdir"] = config.get("tempdir"), f"/proc/self/fd/{fd}"
        try:
            yield
        finally:
            config["tempdir"] = before
            os.close(fd)


class Forkserver:
    """The process that workers are forked from. `modules` (the handler's) are imported in it."""

    def __init__(
        self, modules: Sequence[str] = (), *, start_timeout_ms: int = START_TIMEOUT_MS,
        log: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        """`log` has `format`, `level` and `file` of what the modules log meanwhile, and keys of each such line."""
        self._server = _Server()
        self._warm_pid: int | None = None
        self._spare: _Spare | None = None
        self.stack_file: StackFile | None = None
        """Where it writes its stacks when asked; None before the start and after stop()."""
        self._server.set_forkserver_preload([PRELOAD_MODULE])
        self._modules = list(modules)
        self._log = None if log is None else dict(log)
        self._start_timeout_ms = start_timeout_ms

    @property
    def pid(self) -> int | None:
        """Process id, None before the start and after stop()."""
        return self._server._forkserver_pid  # pyright: ignore[reportPrivateUsage]

    @property
    def warm(self) -> bool:
        """It has started a worker and lives: the next one takes milliseconds. (Else it may be importing.)"""
        return self.pid is not None and self.pid == self._warm_pid and self._server.alive

    @property
    def spare_pid(self) -> int | None:
        """Process id of the worker that is forked ahead, None when there is none."""
        spare = self._spare
        return None if spare is None else spare.process.pid

    def start(self) -> None:
        """Start it unless it runs; returns before its imports are done. Call from the main thread."""
        with self._environment():
            self._server.ensure_running()

    def start_worker(self, boot: WorkerBoot) -> WorkerProcess:
        """Start a worker; takes over `boot.link`, which is closed here. Starts the forkserver when there is none.

        Returns when the process exists, before it is READY. Raises WorkerStartError.
        """
        ctx = multiprocess.get_context("forkserver")
        process = ctx.Process(target=run_worker, args=(boot,), name=f"rocketcrew-{boot.worker_id}")
        try:
            spare, self._spare = self._spare, None
            if spare is not None and (taken := spare.take_over(boot)) is not None:
                return taken
            try:
                return self._launch(process, boot.worker_id)
            except (ConnectionError, EOFError):
                # A forkserver that is just dying refuses before its death can be seen; the next one is asked once.
                if not self._ends_soon():
                    raise
                return self._launch(process, boot.worker_id)
        except (OSError, EOFError) as error:
            raise self._failed(boot.worker_id, error) from error
        finally:
            boot.link.close()

    def _failed(self, worker_id: str, error: Exception) -> WorkerStartError:
        """Of a forkserver that has ended the error says only that it refuses connections."""
        if isinstance(error, ConnectionError | EOFError):
            self._ends_soon()  # its end may be seen a moment after those of its connections
        end, why = self._server.ended(), with_remedy(error)
        if end is not None:
            why = f"the forkserver, which imports the handler, is gone: {end.text}; what it wrote is on standard error"
        failed = WorkerStartError(f"worker {worker_id} could not be started: {why}")
        failed.by_handler = end is not None and end.by_module
        return failed

    def make_spare(self) -> None:
        """Have a worker forked that the next `start_worker` uses, unless there is one. Takes a few milliseconds, and may be
        called from any thread. Raises OSError, EOFError when the forkserver is gone."""
        if self._spare is not None:
            return
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            ctx = multiprocess.get_context("forkserver")
            process = ctx.Process(target=run_spare, args=(SharedFd(theirs.fileno()),), name="rocketcrew-spare")
            self._spare = _Spare(self._launch(process, ""), ours)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()

    def _launch(self, process: BaseProcess, worker_id: str) -> WorkerProcess:
        with self._environment():
            worker = WorkerProcess(_Popen(process, self._server, self._start_timeout_ms), worker_id)
        self._warm_pid = self.pid
        return worker

    def _ends_soon(self) -> bool:
        """Whether it has ended; one that lives is given DYING_TIMEOUT_MS for it."""
        pid = self.pid
        if pid is None or not hasattr(os, "pidfd_open"):
            return True
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            return True
        try:
            poll = select.poll()
            poll.register(pidfd, select.POLLIN)
            return bool(poll.poll(DYING_TIMEOUT_MS))
        finally:
            os.close(pidfd)

    def stop(self) -> None:
        """End it at once, and with it any worker that is left."""
        spare, self._spare = self._spare, None
        if spare is not None:
            spare.end()
        self._server.end()
        stacks, self.stack_file = self.stack_file, None
        if stacks is not None:
            stacks.close()

    @contextlib.contextmanager
    def _environment(self) -> Generator[None]:
        """A forkserver that is started inside finds its settings in the environment (see preload.py)."""
        if threading.current_thread() is not threading.main_thread():
            yield  # none is started here, and the environment is everybody's
            return
        if self.stack_file is None:
            self.stack_file = StackFile()
        paths = path_of_forkserver(os.environ)
        setup = {
            "supervisor_pid": os.getpid(), "sys_path": search_path(), "modules": self._modules,
            "stacks": self.stack_file.path, "log": self._log, **paths,
        }  # fmt: skip
        os.environ[ENVIRONMENT_KEY] = json.dumps(setup)
        use_path(paths["path"])
        try:
            yield
        finally:
            del os.environ[ENVIRONMENT_KEY]
            use_path(paths["own_path"])


class _Popen(popen_forkserver.Popen):
    """multiprocess' launch of one forkserver child, on a server of our own and with a time limit."""

    def __init__(self, process: BaseProcess, server: ForkServer, timeout_ms: int) -> None:
        self._server = server
        self._timeout_ms = timeout_ms
        self.pidfd = -1
        """Names the process for good, where the kernel has such descriptors; else -1."""
        self.unattended = False
        """The forkserver died, so the exit code is unknown."""
        super().__init__(process)

    def poll(self, flag: int = os.WNOHANG) -> int | None:
        """The exit code, None while it lives. As multiprocess has it, but an exit code of 255 and none are different."""
        ready = select.poll()
        ready.register(self.sentinel, select.POLLIN)
        if self.returncode is None and ready.poll(0 if flag == os.WNOHANG else None):
            try:
                self.returncode = read_signed(self.sentinel)
            except (OSError, EOFError):
                self.returncode, self.unattended = EXIT_UNKNOWN, True
        return self.returncode

    def _launch(self, process_obj: BaseProcess) -> None:
        preparation = spawn.get_preparation_data(process_obj.name)
        for key in ("init_main_from_name", "init_main_from_path"):
            preparation.pop(key, None)
        data = io.BytesIO()
        context.set_spawning_popen(self)
        try:
            reduction.dump(preparation, data)
            reduction.dump(process_obj, data)
        finally:
            context.set_spawning_popen(None)
        self.sentinel, write_end = self._server.connect_to_new_process(self._fds)
        # The child watches the pipe it was fed by: it is open as long as this process lives.
        kept = [os.dup(write_end), self.sentinel]
        self.finalizer = util.Finalize(self, _close_all, (kept,))
        with open(write_end, "wb", closefd=True) as pipe:
            pipe.write(data.getbuffer())
        poll = select.poll()
        poll.register(self.sentinel, select.POLLIN)
        if not poll.poll(self._timeout_ms):
            raise OSError(f"the forkserver did not answer within {self._timeout_ms} ms (the handler's module may hang)")
        self.pid = read_signed(self.sentinel)
        if hasattr(os, "pidfd_open"):
            with contextlib.suppress(OSError):
                self.pidfd = os.pidfd_open(self.pid)
                kept.append(self.pidfd)


_forkserver_popen: Any = popen_forkserver.Popen


class _Collector:
    """Stands where multiprocess expects the process that is being started: descriptors are collected, not sent."""

    DupFd = _forkserver_popen.DupFd

    def __init__(self) -> None:
        self.fds: list[int] = []

    def duplicate_for_child(self, fd: int) -> int:
        self.fds.append(fd)
        return len(self.fds) - 1


def _boot_bytes(boot: WorkerBoot) -> tuple[bytes, list[int]]:
    """The boot pickled, and the descriptors that go with it."""
    collector, data = _Collector(), io.BytesIO()
    popen: Any = collector
    context.set_spawning_popen(popen)
    try:
        reduction.dump(boot, data)
    finally:
        context.set_spawning_popen(None)
    return data.getvalue(), collector.fds


def path_of_forkserver(environment: Mapping[str, str], folders: Sequence[str] = FOUND_IN) -> dict[str, str | None]:
    """PYTHONPATH by which a forkserver finds what this process has found in `folders`, "path", and the one of `environment`,
    "own_path". They are the same unless a `sys.path` of its own led this process there; then the standard library goes first.
    """
    own = environment.get("PYTHONPATH")
    known = {*site.getsitepackages(), site.getusersitepackages(), *(own or "").split(os.pathsep)}
    found = [folder for folder in folders if folder not in known]
    if not found:
        return {"path": own, "own_path": own}
    library = os.path.dirname(os.__file__)
    found = [library, os.path.join(library, "lib-dynload"), *found, *([own] if own else [])]
    return {"path": os.pathsep.join(found), "own_path": own}


def _close_all(fds: list[int]) -> None:
    util.close_fds(*fds)
