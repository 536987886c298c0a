"""What a member's core keeps, and why it may: whatever nobody answers for any more is a leak, however small.

Each thing in a line or a table must be there for a reason that is looked up here: a chunk is in a worker's hands or has a
failure that is not sent back yet; a segment is waited for because its worker has not sealed it; a queue is in a line once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from rocketcrew.supervisor.core.dispatching import BLOCK_WINDOW, CHEAP_WINDOW

from .world import Violation

if TYPE_CHECKING:
    from rocketcrew.supervisor.core.process_queue import ProcessQueue
    from rocketcrew.supervisor.core.state import State, Worker

    from .script import Script

ENDED_MAX = 40
"""Queues that have ended and stand in a line until its head is served, and pulls of them that are out."""
TIMERS_OF_A_QUEUE, TIMERS_OF_ITS_OWN = 20, 40


def check(state: State, script: Script) -> None:
    """Raise Violation where something is kept without a reason."""
    queues = script.queues + 1
    if len(state._timers) > TIMERS_OF_ITS_OWN + TIMERS_OF_A_QUEUE * queues:
        raise Violation(f"{len(state._timers)} timers for {queues} queues")
    for worker in state.workers.values():
        _check_hands(worker, script)
    _check_chunks(state)
    _check_lines(state)
    _check_segments(state)
    for pq in state.queues.values():
        _check_ledger(pq, state)
    outstanding = [handle for handle in state.reserved if handle not in state.queues]
    if len(outstanding) > ENDED_MAX:
        raise Violation(f"bytes are reserved for pulls of {len(outstanding)} queues that have ended")


def _check_hands(worker: Worker, script: Script) -> None:
    """No more than its window, or a block of rows. What a handler has not committed is bounded by flow control alone."""
    most = max(2 * CHEAP_WINDOW * script.chunk_messages_max, BLOCK_WINDOW + script.chunk_messages_max)
    has = sum(chunk.count for chunk in worker.in_flight.values())
    if has > most and script.auto_commit:
        raise Violation(f"{worker.worker_id} has {has} messages in hand, {most} are enough")


def _check_chunks(state: State) -> None:
    in_hand = {chunk_id for worker in state.workers.values() for chunk_id in worker.in_flight}
    for chunk_id, chunk in state.chunks.items():
        if chunk_id not in in_hand and not chunk.failed:
            raise Violation(f"chunk {chunk_id} is kept, though no worker has it and nothing of it has failed")
    if unknown := in_hand - state.chunks.keys():
        raise Violation(f"chunks {unknown} are in workers' hands, and their outcomes would find nothing")
    for mq, left in state.lingering.items():
        if not left <= in_hand:
            raise Violation(f"{mq} is not opened again because of {left - in_hand}, which no worker has")


def _check_lines(state: State) -> None:
    _check_line("ready", state.ready, state)
    _check_line("starved", (q.pq for q in state.starved), state)
    for q in state.starved:
        if not q.starved:
            raise Violation(f"{q.pq.mq} stands in the line for bytes and does not know it")
    waiting = [*state.redo, *state.quarantine]
    if len({id(chunk) for chunk in waiting}) < len(waiting):
        raise Violation("a chunk waits twice to be handed out again")
    again = Counter[int]()
    for chunk in waiting:
        again[chunk.handle] += chunk.count
    for handle, messages in again.items():
        pq = state.queues.get(handle)
        if pq is None or messages > pq.unfinished:
            raise Violation(f"{messages} messages of queue {handle} wait to be handed out again, it has {pq}")


def _check_line(name: str, line: Iterable[ProcessQueue], state: State) -> None:
    handles = [pq.handle for pq in line]
    ended = [handle for handle in handles if handle not in state.queues]
    if len(set(handles)) < len(handles) or len(ended) > ENDED_MAX:
        raise Violation(f"{name}: {handles}, of which {len(ended)} have ended")


def _check_segments(state: State) -> None:
    for token in state.unsealed:
        worker = state.workers.get(token[0])
        if token not in state.unloaded and (worker is None or token[1] <= worker.sealed_seq):
            raise Violation(f"{token} is waited for, and nobody will seal it")
    if strange := state.unsealed_messages.keys() - state.unsealed.keys():
        raise Violation(f"messages are counted for {strange}, which nobody waits for")


def _check_ledger(pq: ProcessQueue, state: State) -> None:
    """Open chunks have something unfinished that is not noted as finished; what is held, a segment holds."""
    for chunk in pq.open.values():
        if chunk.reported == chunk.count and not chunk.failed:
            raise Violation(f"chunk {chunk.chunk_id} of {pq.mq} is finished and kept")
        left = {*range(chunk.reported, chunk.count), *(chunk.failed or ())}
        if wrong := [chunk.offsets[index] for index in left if chunk.offsets[index] in pq.ledger.done]:
            raise Violation(f"{wrong} of {pq.mq} are noted as finished, and are open")
    for token in pq.ledger.held:
        if pq.handle not in state.unsealed.get(token, ()):
            raise Violation(f"{pq.mq} waits for {token}, and would not hear of its seal")
