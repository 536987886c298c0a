"""The process of a crew: `rocketcrew.crew.process PARENT_PID` (conf/own_command.py), started by crew.py and by nobody else.

It is spoken to over two pipes. Standard input has an `Order` as a pickle and then GO; its end before GO means that nobody
wants the crew any more. What was standard output has the `Said` ones as pickles: the name servers (an embedded broker
listens by then), that workers are ready, and how it ended. What handlers print goes to the log, which is standard error.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from ..cli.embedded import EmbeddedBroker, start_broker
from ..conf.exit_codes import EXIT_ORPHAN
from ..conf.logging import log_stream, set_up
from ..conf.settings import Settings
from ..remoting.errors import RocketcrewError
from ..supervisor.service import Summary, Supervisor
from ..workers.loading import HandlerSpec

GO: Final = b"go\n"
BROKER_LOG: Final = "broker.log"
TAIL_BYTES: Final = 1 << 18


@dataclass(frozen=True, slots=True)
class Order:
    """What the process is to be."""

    settings: Settings
    handler: HandlerSpec
    embedded: bool
    search_path: list[str]
    """`sys.path` of the caller, so that workers find the modules that the caller has found."""


@dataclass(frozen=True, slots=True)
class Reached:
    """The name servers are known; the process waits for GO."""

    settings: Settings
    """With the name servers in them, and with what else leads to these."""


@dataclass(frozen=True, slots=True)
class Ready:
    """Workers are ready and the group is joined."""

    pid: int
    slot: Path
    run: str
    """With it begin the ids of the workers, and so the names of their segments."""


@dataclass(frozen=True, slots=True)
class Failed:
    """It did not start, or ended by an error. `traceback` has the frames of the user's handler, or is empty."""

    error: RocketcrewError
    traceback: str = ""


Said = Reached | Ready | Failed | Summary


def last_failure(log: Path) -> str:
    """Of the last call of a handler that failed, as its log has it: "; the last was: …", or nothing."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    for line in reversed(lines):
        if '"message_failed"' in line:
            with contextlib.suppress(ValueError, KeyError):  # the first may be cut off
                return f"; the last was: {json.loads(line)['error']}"
    return ""


def main() -> None:
    """See the module's text."""
    parent = os.pidfd_open(int(sys.argv[1]))
    _check_parent()
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what handlers print is no message
    try:
        said: Said = _run(parent, out)
    except RocketcrewError as error:
        said = Failed(error, getattr(error, "traceback", ""))
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        said = Failed(RocketcrewError(f"{error.strerror or error}{where}"))
    except Exception as error:  # noqa: BLE001  the last seam: the caller hears of it, the log has the traceback
        traceback.print_exc()
        said = Failed(RocketcrewError(f"this is a fault in rocketcrew, see the log: {error!r}"))
    _say(out, said)


def _check_parent() -> None:
    if os.getppid() != int(sys.argv[1]):
        os._exit(EXIT_ORPHAN)


def _say(out: IO[bytes], said: Said) -> None:
    with contextlib.suppress(BrokenPipeError):  # the caller has gone, or closed the crew without waiting
        pickle.dump(said, out)
        out.flush()


def _run(parent: int, out: IO[bytes]) -> Summary:
    order: Order = pickle.load(sys.stdin.buffer)  # noqa: S301  it comes from the process that started this one
    sys.path[:] = order.search_path
    wanted, group = order.settings.log, order.settings.consumer.group
    set_up(wanted.format, wanted.level, log_stream(wanted.file, sys.stderr), "crew", group=group)
    import uvloop

    with _reached(order) as (settings, broker):
        _say(out, Reached(settings))
        if sys.stdin.buffer.readline() != GO:
            sys.exit(EXIT_ORPHAN)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_supervise(settings, order.handler, broker, parent, out))


@contextlib.contextmanager
def _reached(order: Order) -> Generator[tuple[Settings, EmbeddedBroker | None]]:
    """The settings with name servers in them: the configured ones, or those of an embedded broker."""
    settings = order.settings
    if not order.embedded:
        yield settings, None
        return
    broker = start_broker(settings.broker, Path(settings.supervisor.data_dir) / BROKER_LOG, _check_parent)
    try:
        yield broker.reached_by(settings), broker
    finally:
        broker.close()


async def _supervise(
    settings: Settings, handler: HandlerSpec, broker: EmbeddedBroker | None, parent: int, out: IO[bytes]
) -> Summary:
    loop = asyncio.get_running_loop()

    def ready() -> None:
        found: dict[str, Any] = supervisor.picture()
        _say(out, Ready(os.getpid(), Path(found["slot"]).absolute(), found["run"]))

    def died() -> None:
        assert broker is not None
        loop.remove_reader(broker)
        broker.died()
        supervisor.stop()

    supervisor = Supervisor(settings, handler, on_ready=ready, own_broker="" if broker is None else broker.folder)
    loop.add_reader(parent, os.kill, os.getpid(), signal.SIGKILL)
    if broker is not None:
        loop.add_reader(broker, died)
    try:
        return await supervisor.run()
    finally:
        loop.remove_reader(parent)
        if broker is not None:
            loop.remove_reader(broker)


if __name__ == "__main__":
    # Pickles name classes by their module: here it would be __main__.
    from .process import main as run_as_module

    run_as_module()
