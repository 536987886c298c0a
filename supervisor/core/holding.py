"""What holds the committed offset of each queue, and which rule of flow control holds back its next pull: for `why-lag`.

Read off the state, which is not changed; looks at all that is open, so it is for questions and not for events. JSON types.

    holds       what it means
    worker      a worker has the message in hand, or has it behind another one
    send_back   it failed, and its send-back is not accepted yet
    again       it is to run again: its worker died
    alone       it may have killed a worker, and waits to be run with nothing else in hand
    order       it comes after one of its queue or key that is held (a failure, or one in hand)
    rate        its topic, or the member, has had as many messages as its rate allows
    room        what waits for the loader, or a disk that is nearly full, leaves no room for more rows
    waiting     no worker has had room for it yet
    rows        it is finished, and its rows are in a segment that is not sealed yet
    table       it is finished, and its rows are sealed and not in the table yet (commit_after = "loaded")
    commit      all before the offset is finished: the broker is told at the next persist
    pull        nothing is here: the broker has more, which was not pulled yet
    opening     the queue is being opened, and its offset is not known yet
    nothing     the group has all that the broker has
"""

from __future__ import annotations

from typing import Any

from .chunks import Chunk
from .doubts import WITHHELD_S
from .process_queue import ProcessQueue, PulledQueue
from .pulling import held_by_rates, thresholds
from .rate_limits import MEMBER
from .state import State
from .states import LIVING, QueueState, WorkerState

REMARK_MAX = 200
"""Characters of what a broker says."""


def holding(state: State) -> list[dict[str, Any]]:
    """Of each queue that is pulled: place, offsets, what holds the committed one, and what holds back its pulls. `lag` counts
    offsets from the committed one to the end that the broker told last."""
    found: list[dict[str, Any]] = []
    for q in sorted(state.pulled.values(), key=lambda q: q.pq.mq):
        pq = q.pq
        found.append(
            {
                "topic": pq.mq.topic,
                "broker": pq.mq.broker_name,
                "queue_id": pq.mq.queue_id,
                "state": pq.state.value,
                "committed": q.committed,
                "next_offset": pq.next_offset,
                "lag": max(0, q.end_offset, pq.next_offset) - max(0, q.committed),
                "unfinished": pq.unfinished,
                **_holder(state, q),
                "rules": rules(state, q),
                "doubt": doubt(state, q),
            }
        )
    return found


def _holder(state: State, q: PulledQueue) -> dict[str, Any]:
    pq = q.pq
    if pq.state is QueueState.OPENING:
        return _held("opening", -1)
    if pq.head_offset >= pq.next_offset:
        if q.committed < pq.head_offset:
            return _held("commit", pq.head_offset)
        return _held("pull" if q.end_offset > pq.next_offset else "nothing", pq.next_offset)
    if pq.head_offset < pq.ledger.first_open:
        return _rows(state, pq)
    chunk = min(pq.open.values(), key=lambda chunk: chunk.first_unfinished, default=None)
    waiting = pq.waiting[0].offsets[pq.waiting[0].at] if pq.waiting else None
    if chunk is None or (waiting is not None and waiting < chunk.first_unfinished):
        return _held(_unplaced(state, pq), pq.head_offset if waiting is None else waiting)
    return _of_chunk(state, pq, chunk)


def _rows(state: State, pq: ProcessQueue) -> dict[str, Any]:
    head = pq.head_offset
    for token, held in pq.ledger.held.items():
        if held.offsets and held.offsets.start == head:
            return _held("table" if token in state.unloaded else "rows", head, token[0])
    return _held("rows", head)


def _of_chunk(state: State, pq: ProcessQueue, chunk: Chunk) -> dict[str, Any]:
    offset = chunk.first_unfinished
    worker = state.workers.get(chunk.worker_id or "")
    if chunk.failed:
        failure = chunk.failed[min(chunk.failed)]
        return _held("send_back", offset, error=failure.error)
    if worker is not None and worker.state in LIVING and chunk.chunk_id in worker.in_flight:
        return _held("worker", offset, worker.worker_id)
    if chunk.alone or any(one is chunk for one in state.quarantine):
        return _held("alone", offset)
    dead = worker is not None and worker.state is WorkerState.DEAD
    if dead or any(one is chunk for one in state.redo):
        return _held("again", offset)
    if pq.order is None or _lane_is_free(pq, chunk):
        return _held(_unplaced(state, pq), offset)
    return _held("order", offset)


def _lane_is_free(pq: ProcessQueue, chunk: Chunk) -> bool:
    """The chunk is the next one of its lane, and nothing of that is under way."""
    lanes = pq.order.lanes.values() if pq.order is not None else ()
    return any(lane.free and lane.waiting and lane.waiting[0] is chunk for lane in lanes)


def _unplaced(state: State, pq: ProcessQueue) -> str:
    if state.rows_wait:
        return "room"
    return "rate" if held_by_rates(state, pq) else "waiting"


def _held(by: str, offset: int, worker: str | None = None, error: str = "") -> dict[str, Any]:
    return {"holds": by, "offset": offset, "worker": worker, "error": error}


def doubt(state: State, q: PulledQueue) -> dict[str, Any] | None:
    """Of a queue that another member may have had: for how long, what is waited for (the group's "members" or the queue's
    "lock", then the group's "offset"), and whether commits wait for it too. (One that opens or leaves waits for neither.)"""
    if not q.in_doubt or q.pq.state is not QueueState.ASSIGNED:
        return None
    seconds = state.now - q.doubted_at
    first = "lock" if state.config.locks else "members"
    waits_for = "offset" if q.position_asked else first
    return {"seconds": round(seconds, 3), "waits_for": waits_for, "withheld": seconds < WITHHELD_S}


def refusal(state: State, q: PulledQueue) -> dict[str, Any] | None:
    """Of a queue whose pull its broker refuses: the code, the first line of what it says, how often in a row, for how long.
    With bytes reserved, the next one is under way."""
    if q.refused_code == -1 or q.pq.handle in state.reserved:
        return None
    said = q.refused_remark.partition("\n")[0][:REMARK_MAX]  # code 16 alone has two cures
    seconds = round(state.now - q.refused_at, 3)
    return {"code": q.refused_code, "remark": said, "times": q.refusals, "seconds": seconds}


def rules(state: State, q: PulledQueue) -> list[str]:
    """Why the next pull of the queue is not sent, by the names of the settings; none where it is, or may be."""
    pq, config = q.pq, state.config
    found: list[str] = []
    if pq.state in (QueueState.DRAINING, QueueState.ENDED):
        found.append("the queue was taken away: it is finished, and not pulled any more")
    if not pq.locked:
        found.append("its lock at the broker is not ours")
    found += [f"paused by {reason}" for reason in sorted(state.paused)]
    messages_max, bytes_max = thresholds(state, pq)
    of_topic = config.pull_threshold_for_topic > 0
    if pq.unfinished > messages_max:
        name = "consumer.pull_threshold_for_topic" if of_topic else "consumer.pull_threshold_for_queue"
        found.append(f"{name}: {pq.unfinished} unfinished messages, more than {messages_max}")
    if pq.unfinished_bytes > bytes_max:
        of_topic = config.pull_threshold_size_for_topic_bytes > 0
        name = (
            "consumer.pull_threshold_size_for_topic_mib" if of_topic else "consumer.pull_threshold_size_for_queue_mib"
        )
        found.append(f"{name}: {pq.unfinished_bytes >> 20} MiB unfinished, more than {bytes_max >> 20}")
    if pq.is_wider(config.consume_concurrently_max_span):
        span = config.consume_concurrently_max_span
        found.append(
            f"consumer.consume_concurrently_max_span: {pq.span} offsets after the first unfinished, more than {span}"
        )
    found += [rate_named(state, name) for name in held_by_rates(state, pq)]
    if q.starved:
        found.append(f"memory.pulled_bytes_mib: waits for room, {len(state.starved)} queues are in line")
    if refused := refusal(state, q):
        code = f"{refused['code']} ({refused['remark']})" if refused["remark"] else f"{refused['code']}"
        found.append(f"the broker refuses the pull with code {code}, {refused['times']} times in a row")
    if q.stuck_waits and pq.handle not in state.reserved:
        found.append(
            f"the replica that answers has nothing at offset {pq.next_offset}, its queue ends at {q.stuck_end}:"
            f" asked {q.stuck_waits} times in a row, and again every {config.pull_delay_on_error_ms} ms"
        )
    if not any(worker.state is WorkerState.READY for worker in state.workers.values()):
        found.append("no worker is ready")
    return found


def rate_named(state: State, name: str) -> str:
    """A limit by the name of its setting; `name` as in CoreConfig.rate_limits."""
    written = rate_written(state, name)
    if name == MEMBER:
        return f"workers.rate_limit: {written}, all messages of this member"
    return f"workers.topic_rate_limit: {written}, messages of {name}"


def rate_written(state: State, name: str) -> str:
    """A limit as the settings have it."""
    return state.config.rates_written.get(name) or f"{state.config.rate_limits[name]:g}/s"
