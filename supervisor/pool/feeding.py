"""What workers are sent: chunks and what they need to know about their queues, over the links.

A worker that is gone is noticed by its own event, so what can't be sent to it is dropped. What a link does not take at once
waits there, and is written when the link has room again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from ...conf.units import NS_PER_S
from ...remoting.queues import MessageQueue
from ...workers import ordered_packets, packets
from ...workers.link import LinkClosedError, Transport
from ...workers.packets import QueueInfo
from ..core.actions import Classify, Dispatch, DispatchOrdered
from ..core.decisions import Core
from .child import Child


class Feeding:
    """Sends to `children`, by worker id. `slab` is the memory of pulled bodies; on a stream they travel with their packet."""

    def __init__(
        self, core: Core, children: Mapping[str, Child], slab: memoryview, transport: Transport,
        queue_info: Callable[[int, MessageQueue], QueueInfo],
    ) -> None:  # fmt: skip
        self._core = core
        self._children = children
        self._slab = slab
        self._inline = transport is Transport.STREAM
        self._queue_info = queue_info
        self._loop = asyncio.get_running_loop()
        self.performs: dict[type, Callable[[Any], None]] = {
            Dispatch: self._dispatch, DispatchOrdered: self._dispatch_ordered, Classify: self._classify,
        }  # fmt: skip

    def send(self, child: Child, packet: bytes, payload: memoryview | bytes | None = None) -> None:
        """`payload` goes along where the transport is a stream; it must stay as it is until the packet was taken."""
        with contextlib.suppress(LinkClosedError):
            self._write(child, packet, payload)

    def _write(self, child: Child, packet: bytes, payload: memoryview | bytes | None) -> None:
        if not child.link.send(packet, payload if self._inline else None):
            self._loop.add_writer(child.link.fileno(), self._writable, child)

    def _writable(self, child: Child) -> None:
        """Its link has room again for what it did not take."""
        try:
            if not child.link.flush():
                return
        except LinkClosedError:
            pass
        if not child.ended:
            self._loop.remove_writer(child.link.fileno())

    def _dispatch(self, action: Dispatch) -> None:
        """Send a chunk."""
        child = self._children.get(action.worker_id)
        if child is None:
            return
        chunk = action.chunk
        child.chunks_sent += 1
        handle = action.info_handle
        start, end = chunk.positions[0], chunk.positions[-1]
        packet = packets.encode_chunk(
            chunk.chunk_id, handle, start, end - start, chunk.count, window_open=action.window_open,
            journalled=action.journalled,
        )  # fmt: skip
        try:  # not `suppress`, which is three calls
            if handle not in child.known_queues:
                self._introduce(child, {handle: action.mq})
            self._write(child, packet, self._slab[start:end] if self._inline else None)
        except LinkClosedError:
            pass

    def _introduce(self, child: Child, queues: Mapping[int, MessageQueue]) -> None:
        """Send which queues these handles mean, before their first chunk; and now and then, which ones to forget.

        The worker reads packets in their order, so it is done with every chunk of a queue that it is to forget; one that
        comes later (popped ones keep their handle) is introduced again. Raises LinkClosedError.
        """
        gone, new = child.known_queues.meet(queues, self._core.known_handles)
        for packet in packets.encode_forget(gone):
            child.link.send(packet)
        for handle in new:
            child.link.send(packets.encode_queue(handle, self._queue_info(handle, queues[handle])))

    def _dispatch_ordered(self, action: DispatchOrdered) -> None:
        """Send chunks in their order. The core's clock is the monotonic one of this machine, which workers read too."""
        child = self._children.get(action.worker_id)
        if child is None:
            return
        child.chunks_sent += 1
        until = action.start_before
        start_before_ns = 0 if until == float("inf") else max(1, int(until * NS_PER_S))
        chunks = [
            ordered_packets.OrderedDescriptor(
                item.chunk.chunk_id, item.chunk.handle, item.chunk.positions[0],
                item.chunk.positions[-1] - item.chunk.positions[0], item.chunk.count, item.lane, item.tried,
            )
            for item in action.chunks
        ]  # fmt: skip
        queues = {item.chunk.handle: item.mq for item in action.chunks}
        bodies = [slice(chunk.slab_offset, chunk.slab_offset + chunk.length) for chunk in chunks]
        self._send_ordered(child, queues, ordered_packets.encode_ordered(chunks, start_before_ns), bodies)

    def _classify(self, action: Classify) -> None:
        """Ask for the keys of one pull."""
        child = self._children.get(action.worker_id)
        if child is None:
            return
        question = ordered_packets.Classify(action.handle, action.start, action.end - action.start, action.count)
        packet = ordered_packets.encode_classify(question)
        self._send_ordered(child, {action.handle: action.mq}, packet, [slice(action.start, action.end)])

    def _send_ordered(
        self, child: Child, queues: Mapping[int, MessageQueue], packet: bytes, bodies: list[slice]
    ) -> None:
        """The queues that the packet names, then the packet; on a stream its bodies follow it."""
        with contextlib.suppress(LinkClosedError):
            self._introduce(child, queues)
            self._write(child, packet, b"".join(self._slab[body] for body in bodies) if self._inline else None)
