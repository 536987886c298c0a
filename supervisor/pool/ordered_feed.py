"""The ordered modes' packets at the edge: hand-overs and questions to workers, and what they give back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from ...conf.settings import ConsumerSettings, Settings
from ...remoting.queues import MessageQueue
from ...workers import ordered_packets as packets
from ...workers.link import LinkClosedError, Transport
from ...workers.packets import Ready
from ..core.actions import Classify, DispatchOrdered
from ..core.decisions import Core
from ..core.order import KEY, QUEUE, HandlerOrder, Order, check_limits, check_same, resolve
from .worker_pool import Pool

S_TO_NS = 1_000_000_000


def order_said(said: Ready | None) -> HandlerOrder:
    """The decorator's word, as a worker told it."""
    return HandlerOrder(said.order, said.key, said.key_function, said.auto_commit) if said else HandlerOrder()


class OrderKept:
    """The order of the running member, once it is known; workers of later code that say otherwise are refused."""

    def __init__(self, settings: Settings) -> None:
        self._consumer = settings.consumer
        self._limits = settings.workers.topic_concurrency
        self._order: Order | None = None

    def check(self, said: Ready) -> None:
        """Raises UsageError for a worker that is ready and keeps another order."""
        if self._order is not None:
            check_same(self._order, self._consumer, order_said(said))

    def begin(self, core: Core, said: Ready | None) -> Order:
        """The handler was imported, so its decorator's word is known. Raises UsageError for a contradiction."""
        order = self._order = resolve(self._consumer, order_said(said))
        check_limits(order, self._limits)
        core.set_order(order)
        _log_order(core, order, self._consumer)
        return order


def _log_order(core: Core, order: Order, consumer: ConsumerSettings) -> None:
    if order.order == KEY:
        core.state.log("info", "order_by_key", key=order.order_key or "function", on_failure=consumer.order_on_failure,
                       others_wait_after_offsets=consumer.consume_concurrently_max_span,
                       others_wait_after_messages=consumer.pull_threshold_for_queue)  # fmt: skip
    elif order.order == QUEUE:
        core.state.log("info", "order_by_queue", auto_commit=order.auto_commit, locks=order.locks)


class OrderedFeed:
    """Sends to the pool's workers. `slab` is the memory of pulled bodies."""

    def __init__(self, pool: Pool, slab: memoryview, transport: Transport) -> None:
        self._pool = pool
        self._loop = asyncio.get_running_loop()
        self._slab = slab
        self._inline = transport is Transport.STREAM
        self.performs: dict[type, Callable[[Any], None]] = {
            DispatchOrdered: self.dispatch, Classify: self.classify,
        }  # fmt: skip

    def _send(self, worker_id: str, queues: Mapping[int, MessageQueue], packet: bytes, bodies: list[slice]) -> None:
        """A packet, the queues it names before it, and on a stream its bodies behind it; a worker that is gone is noticed
        by its own event."""
        child = self._pool.children.get(worker_id)
        if child is None:
            return
        payload = b"".join(self._slab[body] for body in bodies) if self._inline else None
        with contextlib.suppress(LinkClosedError):
            self._pool.introduce(child, queues)
            if not child.link.send(packet, payload):
                self._loop.add_writer(child.link.fileno(), self._pool.writable, child)

    def dispatch(self, action: DispatchOrdered) -> None:
        """One hand-over. The core's clock is the monotonic one of this machine, which workers read too."""
        until = action.start_before
        start_before_ns = 0 if until == float("inf") else max(1, int(until * S_TO_NS))
        chunks = [
            packets.OrderedDescriptor(
                item.chunk.chunk_id, item.chunk.handle, item.chunk.positions[0],
                item.chunk.positions[-1] - item.chunk.positions[0], item.chunk.count, item.lane, item.tried,
            )
            for item in action.chunks
        ]  # fmt: skip
        queues = {item.chunk.handle: item.mq for item in action.chunks}
        bodies = [slice(chunk.slab_offset, chunk.slab_offset + chunk.length) for chunk in chunks]
        self._send(action.worker_id, queues, packets.encode_ordered(chunks, start_before_ns), bodies)

    def classify(self, action: Classify) -> None:
        """One question for keys."""
        question = packets.Classify(action.handle, action.start, action.end - action.start, action.count)
        packet = packets.encode_classify(question)
        self._send(action.worker_id, {action.handle: action.mq}, packet, [slice(action.start, action.end)])
