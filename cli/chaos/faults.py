"""The faults of `rocketcrew chaos`, by name: what each does, what must hold afterwards, and how many repeats it explains.

Every fault is done under load, and has passed when all workers are ready and a message that was sent *after* it has been
handled to its end. What it may repeat follows from what DESIGN promises: a killed process leaves what was in its hands;
what is asked to stop, to reload or to recycle leaves nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import psutil

from ...spark.status import LOADING
from ..children import ChildError
from .ground import CHUNK_MESSAGES_MAX, CHUNKS_IN_FLIGHT, SPECIAL, STOP_S, Ground
from .handler import EXIT, HANG
from .verdict import FaultRecord

STANDSTILL_S: Final = 1.0
LOADING_S: Final = 1.0
"""A batch takes about so long; a kill comes somewhere in it."""
RECOVER_MAX_S: Final = 120.0
IN_HAND: Final = CHUNK_MESSAGES_MAX * CHUNKS_IN_FLIGHT
"""Messages that one worker may have in its hands."""
RECYCLE_MESSAGES: Final = 500
NONE, A_WORKER, ALL_WORKERS = "none", "worker", "workers"


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind. `repeats`: whose messages in hand may run twice. `act` returns what beside the usual must come true."""

    text: str
    act: Callable[[Ground, random.Random], Awaitable[Callable[[], Awaitable[bool]] | None]]
    repeats: str = NONE
    needs_own_broker: bool = False
    stops: bool = False
    """It stops the supervisor in order: what failed and is held goes back to the broker."""
    asked_only: bool = False
    """Not among those that are done when none is named."""
    settings: Mapping[str, object] = field(default_factory=dict[str, object])
    """What the supervisor is started with for the whole run."""

    def repeats_max(self, workers: int) -> int:
        """How many messages one such fault may let run twice."""
        return {NONE: 0, A_WORKER: IN_HAND, ALL_WORKERS: IN_HAND * workers}[self.repeats]


async def _workers(ground: Ground) -> list[int]:
    """Those that are ready. There may be none in this moment, or nobody who answers: others are waited for."""
    found: list[int] = []

    async def some() -> bool:
        found[:] = await ground.worker_pids()
        return bool(found)

    await ground.until(some, RECOVER_MAX_S, "a worker")
    return found


async def _crew_ready(ground: Ground) -> bool:
    return len(await ground.worker_pids()) >= ground.workers_wanted


async def _kill_worker(ground: Ground, dice: random.Random) -> Callable[[], Awaitable[bool]]:
    victim = dice.choice(await _workers(ground))
    ground.signal_below(victim, signal.SIGKILL)

    async def replaced() -> bool:
        return victim not in await ground.worker_pids()

    return replaced


async def _stop_worker(ground: Ground, dice: random.Random) -> None:
    victim = dice.choice(await _workers(ground))
    ground.signal_below(victim, signal.SIGSTOP)
    await asyncio.sleep(STANDSTILL_S)
    ground.signal_below(victim, signal.SIGCONT)


async def _kill_forkserver(ground: Ground, _dice: random.Random) -> Callable[[], Awaitable[bool]]:
    victims: set[int] = set()

    async def killed() -> bool:
        victims.update(found := await _workers(ground))
        with contextlib.suppress(psutil.NoSuchProcess):  # it has left for its successor in this moment
            return ground.signal_below(psutil.Process(found[0]).ppid(), signal.SIGKILL)
        return False

    await ground.until(killed, RECOVER_MAX_S, "a process that starts workers")

    async def replaced() -> bool:
        return not victims & set(await ground.worker_pids())

    return replaced


async def _kill_supervisor(ground: Ground, _dice: random.Random) -> None:
    ground.signal_supervisor(signal.SIGKILL)
    ground.stop_supervisor()
    await ground.start_supervisor()


async def _stop_supervisor(ground: Ground, _dice: random.Random) -> None:
    ground.signal_supervisor(signal.SIGSTOP)
    await asyncio.sleep(STANDSTILL_S)
    ground.signal_supervisor(signal.SIGCONT)


async def _term(ground: Ground, _dice: random.Random) -> None:
    ground.signal_supervisor(signal.SIGTERM)
    assert ground.supervisor is not None
    supervisor = ground.supervisor
    await ground.until(lambda: supervisor.poll() is not None, STOP_S, "the supervisor to stop")
    if supervisor.poll() != 0:
        raise ChildError(f"TERM: the supervisor ended with {supervisor.poll()}:\n{supervisor.tail()}")
    await ground.start_supervisor()


async def _reload(ground: Ground, _dice: random.Random) -> Callable[[], Awaitable[bool]]:
    before = await _generation(ground)
    ground.signal_supervisor(signal.SIGHUP)

    async def reloaded() -> bool:
        status = await ground.status()
        return status is not None and {worker["generation"] for worker in status["workers"]}.isdisjoint({before})

    return reloaded


async def _generation(ground: Ground) -> int:
    status = await ground.status()
    return int(status["staff"]["generation"]) if status else 0


async def _recycle(ground: Ground, _dice: random.Random) -> Callable[[], Awaitable[bool]]:
    """Every worker leaves after so many messages all the time: wait until all of them were replaced."""
    before = set(await ground.worker_pids())

    async def replaced() -> bool:
        return not before & set(await ground.worker_pids())

    return replaced


async def _kill_broker(ground: Ground, _dice: random.Random) -> Callable[[], Awaitable[bool]]:
    """Over when the group's offsets that it had confirmed are there again: it dies with those of the last second."""
    before = await ground.offsets()
    _end_broker(ground)
    await ground.start_broker()
    return partial(ground.has_offsets, before)


async def _expire(ground: Ground, _dice: random.Random) -> Callable[[], Awaitable[bool]]:
    """The supervisor stands still while the broker forgets it: its connection, its membership and its locks."""
    before = await ground.offsets()
    ground.signal_supervisor(signal.SIGSTOP)
    try:
        _end_broker(ground)
        await ground.start_broker()
        await asyncio.sleep(STANDSTILL_S)
    finally:
        ground.signal_supervisor(signal.SIGCONT)
    return partial(ground.has_offsets, before)


def _end_broker(ground: Ground) -> None:
    assert ground.broker is not None
    assert ground.broker.poll() is None
    os.kill(ground.broker.pid, signal.SIGKILL)
    ground.broker.stop(STOP_S)


async def _exit_message(ground: Ground, _dice: random.Random) -> Callable[[], Awaitable[bool]]:
    before = -1

    async def counted() -> bool:
        nonlocal before
        before = await ground.dead_letters()
        return before >= 0

    async def buried() -> bool:
        return await ground.dead_letters() > before

    await ground.until(counted, RECOVER_MAX_S, "the number of dead letters")
    await ground.send_special(EXIT, dies=True)

    return buried


async def _hang_message(ground: Ground, _dice: random.Random) -> Callable[[], Awaitable[bool]]:
    number = await ground.send_special(HANG, dies=False)

    async def done() -> bool:
        return any(line.what == "END" and line.number == number for line in reversed(ground.lines()))

    return done


async def _kill_loader(ground: Ground, dice: random.Random) -> Callable[[], Awaitable[bool]]:
    """In the middle of a batch: mostly while Spark writes it, else while Spark starts. The next loader must get further."""
    while_it_writes = dice.random() < 0.7

    async def at_work() -> bool:
        status = ground.loader_status()
        return status is not None and status.state == LOADING and bool(status.jvm_pid or not while_it_writes)

    await ground.until(at_work, RECOVER_MAX_S, "the loader at work")
    await asyncio.sleep(dice.random() * LOADING_S)
    before = ground.loader_status()
    assert before is not None
    ground.signal_below(before.pid, signal.SIGKILL)

    async def loads_again() -> bool:
        now = ground.loader_status()
        return now is not None and now.pid != before.pid and now.batch_id > before.batch_id

    return loads_again


FAULTS: Final[dict[str, Fault]] = {
    "kill-worker": Fault("kill -9 of a worker", _kill_worker, A_WORKER),
    "stop-worker": Fault("stop a worker for a second", _stop_worker),
    "kill-forkserver": Fault("kill -9 of the process that starts workers", _kill_forkserver, ALL_WORKERS),
    "kill-supervisor": Fault("kill -9 of the supervisor, and its next start", _kill_supervisor, ALL_WORKERS),
    "stop-supervisor": Fault("stop the supervisor for a second", _stop_supervisor),
    "term": Fault("TERM to the supervisor, and its next start: nothing may run twice", _term, stops=True),
    "reload": Fault("HUP: all workers replaced one after another", _reload),
    "recycle": Fault("all through the run workers leave after 500 messages", _recycle, settings={
        "workers.recycle_messages": RECYCLE_MESSAGES, "workers.recycle_share_percent": 100}),
    "exit-message": Fault("a message that ends its process each time: a dead letter", _exit_message, A_WORKER),
    "hang-message": Fault("a message in an endless C loop, ended at its hard limit of 5 s", _hang_message, A_WORKER),
    "kill-broker": Fault("kill -9 of the broker, and its next start", _kill_broker, ALL_WORKERS, needs_own_broker=True),
    "expire": Fault("the broker forgets the member while that stands still", _expire, ALL_WORKERS, needs_own_broker=True),
    "kill-loader": Fault("kill -9 of the Spark loader while it loads", _kill_loader, asked_only=True, settings={
        "spark.load": "true", "spark.max_wait_ms": 1000, "spark.driver_memory": "700m"}),
}  # fmt: skip


async def endure(ground: Ground, name: str, dice: random.Random) -> FaultRecord:
    """Do one fault and wait until the service works again."""
    fault = FAULTS[name]
    loop = asyncio.get_running_loop()
    repeats_max = fault.repeats_max(ground.workers_wanted)
    await ground.until(lambda: _crew_ready(ground), RECOVER_MAX_S, "all workers")
    begin = loop.time()
    try:
        more = await fault.act(ground, dice)
        mark = ground.next_number
        assert mark < SPECIAL
        if more is not None:
            await ground.until(more, RECOVER_MAX_S, f"the end of {name}")
        await ground.until(lambda: ground.ended(mark), RECOVER_MAX_S, "a message sent after it")
        await ground.until(lambda: _crew_ready(ground), RECOVER_MAX_S, "all workers")
    except ChildError:
        if ground.supervisor is None or ground.supervisor.poll() is not None:
            raise  # there is nothing left to go on with
        return FaultRecord(name, None, repeats_max)
    return FaultRecord(name, loop.time() - begin, repeats_max)
