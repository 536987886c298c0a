"""What goes to workers: the chunks of one step together, and everything in the order in which the core wanted it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from rocketcrew.supervisor.core import actions as act
from rocketcrew.supervisor.pool.child import Child
from rocketcrew.supervisor.pool.feeding import Feeding
from rocketcrew.workers.link import LinkClosedError, Transport
from rocketcrew.workers.packets import CHUNK, CHUNK_STRUCT, QUEUE, SEAL, QueueInfo, encode_seal

if TYPE_CHECKING:
    from .conftest import Bench


class Link:
    """Takes what is sent, or fails."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.error: Exception | None = None

    def send(self, packet: bytes, payload: object = None) -> bool:
        del payload
        if self.error is not None:
            raise self.error
        self.sent.append(packet)
        return True

    def kinds(self) -> list[int]:
        return [packet[0] for packet in self.sent]

    def chunks(self) -> list[list[int]]:
        """The ids of the chunks in each packet of them."""
        return [[each[1] for each in CHUNK_STRUCT.iter_unpack(packet)] for packet in self.sent if packet[0] == CHUNK]


def feed(bench: Bench, transport: Transport, use: Callable[[Feeding, dict[str, Child]], None], *names: str) -> None:
    """`use` it with these workers, of which each has a link."""

    async def main() -> None:
        children: dict[str, Child] = {}
        for name in names:
            bench.worker(name)
            nothing = cast("Any", None)
            children[name] = Child(bench.core.state.workers[name], 0, nothing, cast("Any", Link()), nothing)
        info = QueueInfo("g", "t", "b", 0)
        use(Feeding(bench.core, children, memoryview(bench.view), transport, lambda _: info), children)

    asyncio.run(main())


def link(child: Child) -> Link:
    return cast("Link", child.link)


def dispatches(bench: Bench, queues: int) -> list[act.Dispatch]:
    """A message of each of so many queues, given out."""
    for handle in bench.open(*range(queues)):
        bench.found(handle, [0])
    return bench.take(act.Dispatch)


def test_the_chunks_of_one_step_are_one_packet_for_each_worker(bench: Bench) -> None:
    def use(feeding: Feeding, children: dict[str, Child]) -> None:
        given = dispatches(bench, 4)
        for action in given:
            feeding.performs[act.Dispatch](action)
        feeding.send_chunks()
        assert {action.worker_id for action in given} == {"a", "b"}
        for name, child in children.items():
            link(child).sent.clear()  # with the introductions of their queues
            for action in given:
                if action.worker_id == name:
                    feeding.performs[act.Dispatch](action)
            assert link(child).sent == []
        feeding.send_chunks()
        for name, child in children.items():
            assert link(child).chunks() == [[action.chunk.chunk_id for action in given if action.worker_id == name]]

    feed(bench, Transport.SLAB, use, "a", "b")


def test_what_is_sent_after_a_chunk_arrives_after_it(bench: Bench) -> None:
    def use(feeding: Feeding, children: dict[str, Child]) -> None:
        first, second = dispatches(bench, 2)
        feeding.performs[act.Dispatch](first)
        feeding.send(children["a"], encode_seal())
        feeding.performs[act.Dispatch](second)
        feeding.send_chunks()
        assert link(children["a"]).kinds() == [QUEUE, CHUNK, SEAL, QUEUE, CHUNK]
        assert children["a"].chunks_sent == 2

    feed(bench, Transport.SLAB, use, "a")


def test_on_a_stream_each_chunk_leaves_at_once_with_its_payload(bench: Bench) -> None:
    def use(feeding: Feeding, children: dict[str, Child]) -> None:
        for action in dispatches(bench, 2):
            feeding.performs[act.Dispatch](action)
        assert link(children["a"]).kinds() == [QUEUE, CHUNK, QUEUE, CHUNK]

    feed(bench, Transport.STREAM, use, "a")


def test_a_worker_that_cannot_be_given_its_chunks_is_killed_and_one_that_is_gone_costs_nothing(bench: Bench) -> None:
    def use(feeding: Feeding, children: dict[str, Child]) -> None:
        first, second = dispatches(bench, 2)
        for error, killed in ((LinkClosedError("gone"), []), (OverflowError("too many wait"), ["a"])):
            for action in (first, second):
                feeding.performs[act.Dispatch](action)
            link(children["a"]).error = error
            feeding.send_chunks()
            assert [kill.worker_id for kill in bench.take(act.KillWorker)] == killed
            link(children["a"]).error = None
        feeding.send_chunks()
        assert link(children["a"]).chunks() == [[first.chunk.chunk_id]]

    feed(bench, Transport.SLAB, use, "a")
