"""One picture of the supervisor as plain data: for the control socket, the metrics page and the closing summary."""

from __future__ import annotations

from typing import Any

from ..remoting.queues import MessageQueue
from .core.decisions import Core
from .core.holding import doubt, rate_written, refusal
from .core.process_queue import ProcessQueue, PulledQueue
from .core.pulling import held_by_rates
from .core.slab import UNIT_BYTES
from .core.staffing import Staffing
from .core.state import State
from .core.states import ServiceState, WorkerState


def staffing_picture(staffing: Staffing) -> dict[str, Any]:
    """How many workers there should be, which code they run, and what happened to them."""
    return {
        "workers": staffing.policy.count,
        "generation": staffing.generation,
        "reload": staffing.reload.value,
        "last_reload": staffing.last_reload,
        "reloads_ended": staffing.reloads_ended,
        "reload_results": {str(number): result for number, result in staffing.reload_results.items()},
        "last_boot_error": staffing.last_boot_error,
        "counts": dict(sorted(staffing.counts.items())),
    }


def picture(
    core: Core, service: ServiceState, facts: dict[str, dict[str, object]], extra: dict[str, Any]
) -> dict[str, Any]:
    """Counters, queues, workers and memory at this instant; keys are stable, values JSON types only."""
    state = core.state
    return {
        "service": service.value,
        "stopping": state.stopping,
        "paused": sorted(state.paused),
        "group": state.config.group,
        "client_id": state.config.client_id,
        "counters": state.counters.as_dict(),
        "sent_back_levels": {str(level): count for level, count in sorted(state.sent_back_levels.items())},
        "worker_deaths_by_cause": {end.value: number for end, number in state.deaths.items()},
        "workers": [
            {
                "worker_id": worker.worker_id,
                "pid": 0,
                "state": worker.state.value,
                "chunks": len(worker.in_flight),
                "messages": sum(chunk.count - chunk.reported for chunk in worker.in_flight.values()),
                **facts.get(worker.worker_id, {}),
            }
            for worker in state.workers.values()
            if worker.state is not WorkerState.BOOTING or worker.worker_id in facts  # else its process is being made
        ],
        "queues": [_pulled(state, q) for q in state.pulled.values()],
        "popped": _popped(state),
        "popped_topics": core.popped_topics,
        "stats": state.stats.picture(),
        "memory": {
            "slab_bytes": state.slab.size_bytes,
            "slab_used_bytes": state.slab.used_units * UNIT_BYTES,
            "slab_peak_bytes": state.slab.peak_units * UNIT_BYTES,
            "slab_reserved_bytes": state.slab.reserved_units * UNIT_BYTES,
        },
        "rate_limits": _rate_limits(state),
        "ready_workers": sum(worker.state is WorkerState.READY for worker in state.workers.values()),
        "waiting_messages": state.waiting_messages,
        "open_send_backs": sum(len(chunk.failed or ()) for chunk in state.chunks.values()),
        "unsealed_segments": len(state.unsealed),
        "unsealed_messages": sum(pq.ledger.held_messages() for pq in state.queues.values()),
        "suspected_messages": len(state.charges),
        **extra,
    }


def _rate_limits(state: State) -> list[dict[str, object]]:
    """By topic ("" = all of the member): messages a second, the rate as written, and whether messages wait for it now."""
    limited = {name for pq in state.queues.values() for name in held_by_rates(state, pq)}
    return [
        {
            "topic": topic,
            "messages_per_second": rate,
            "written": rate_written(state, topic),
            "limited": topic in limited,
        }
        for topic, rate in sorted(state.config.rate_limits.items())
    ]


def _pulled(state: State, q: PulledQueue) -> dict[str, object]:
    pq = q.pq
    return {
        **_name(pq.mq),
        "state": pq.state.value,
        "next_offset": pq.next_offset,
        "committed": q.committed,
        "end_offset": max(q.end_offset, pq.next_offset),
        "lag": max(0, q.end_offset, pq.next_offset) - max(0, q.committed),
        "unfinished": pq.unfinished,
        "unfinished_bytes": pq.unfinished_bytes,
        "span": pq.span,
        "doubt": doubt(state, q),
        "refused": refusal(state, q),
    }


def _popped(state: State) -> list[dict[str, object]]:
    """By message queue: what was popped of it and is not finished."""
    found: dict[MessageQueue, list[ProcessQueue]] = {}
    for handle, pq in state.queues.items():
        if handle not in state.pulled:
            found.setdefault(pq.mq, []).append(pq)
    return [
        {
            **_name(mq),
            "unfinished": sum(pq.unfinished for pq in those),
            "unfinished_bytes": sum(pq.unfinished_bytes for pq in those),
        }
        for mq, those in found.items()
    ]


def _name(mq: MessageQueue) -> dict[str, object]:
    return {"topic": mq.topic, "broker": mq.broker_name, "queue_id": mq.queue_id}
