"""A bench for the supervisor's core: events in by short methods, actions out by kind, time by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import pytest

from rocketcrew.durable.intervals import Intervals
from rocketcrew.remoting.batch import BatchEntry, encode_batch
from rocketcrew.remoting.codes import SYSFLAG_INNER_BATCH, SYSFLAG_NEED_UNWRAP, ResponseCode
from rocketcrew.remoting.properties import encode_properties
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.remoting.stored import StoredMessage, encode_message
from rocketcrew.supervisor.core import actions as act
from rocketcrew.supervisor.core import events as ev
from rocketcrew.supervisor.core.allocation import average
from rocketcrew.supervisor.core.chunks import Chunk
from rocketcrew.supervisor.core.decisions import Core
from rocketcrew.supervisor.core.process_queue import ProcessQueue
from rocketcrew.supervisor.core.pulling import PullResult
from rocketcrew.supervisor.core.slab import UNIT_BYTES, Slab
from rocketcrew.supervisor.core.state import CoreConfig, Worker
from rocketcrew.workers.failures import asked

TOPIC = "orders"
ME = "10.0.0.1@1#1"
A = TypeVar("A")


def record(
    queue_offset: int, body_bytes: int = 20, stored_ms: int = 0, properties: Mapping[str, str] | None = None
) -> bytes:
    message = StoredMessage(
        TOPIC, b"x" * body_bytes, encode_properties(properties or {}).encode(), queue_offset=queue_offset,
        store_timestamp_ms=stored_ms,
    )  # fmt: skip
    return encode_message(message)


def inner_batch(first: int, count: int) -> bytes:
    body = encode_batch([BatchEntry(0, b"m", b"") for _ in range(count)])
    return encode_message(
        StoredMessage(TOPIC, body, queue_offset=first, sysflag=SYSFLAG_INNER_BATCH | SYSFLAG_NEED_UNWRAP)
    )


class Bench:
    """One core with its slab, and everything it has asked for since the last look."""

    def __init__(
        self,
        *,
        units: int = 64,
        recovered: dict[MessageQueue, tuple[int, Intervals]] | None = None,
        **config: Any,
    ) -> None:
        values: dict[str, Any] = {"chunk_messages_max": 1, "topics": (TOPIC,)} | config
        self.config = CoreConfig(client_id=ME, group="g", strategy=average, **values)
        self.view = bytearray(units * UNIT_BYTES)
        self.slab = Slab(len(self.view))
        self.core = Core(self.config, self.slab, self.view, recovered)
        self.core.begin()
        self._now_ms = 0.0
        self._seen: list[act.Action] = []

    # --- what it asks for ---------------------------------------------------------------------------------------

    def take(self, kind: type[A]) -> list[A]:
        """Actions of one kind since they were last taken; the others stay."""
        self._seen += self.core.take_actions()
        found = [action for action in self._seen if isinstance(action, kind)]
        self._seen = [action for action in self._seen if not isinstance(action, kind)]
        return found

    def one(self, kind: type[A]) -> A:
        found = self.take(kind)
        assert len(found) == 1, f"{len(found)} of {kind.__name__}: {found}"
        return found[0]

    def none(self, *kinds: type) -> None:
        for kind in kinds:
            assert self.take(kind) == []

    def logged(self) -> list[str]:
        return [log.event for log in self.take(act.Log)]

    @property
    def counters(self) -> Any:
        return self.core.state.counters

    # --- time and assignment ------------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        return self._now_ms / 1000

    def pass_ms(self, ms: float) -> None:
        self._now_ms += ms
        self.core.tick(self.now)

    def queue(self, queue_id: int = 0) -> MessageQueue:
        return MessageQueue(TOPIC, "b", queue_id)

    def members(self, queues: Iterable[int], members: Sequence[str] = (ME,)) -> None:
        self.core.handle(ev.Members(TOPIC, [self.queue(q) for q in queues], members), self.now)

    def open(self, *queue_ids: int, offset: int = 0) -> list[int]:
        """Assign and open the queues, and confirm where they begin; their handles. The pulls are there to be taken."""
        self.members(queue_ids)
        fetches = self.take(act.FetchOffset)
        for fetch in fetches:
            self.core.handle(ev.Opened(fetch.handle, offset), self.now)
        self.persist()
        return [fetch.handle for fetch in fetches]

    def open_topic(self, topic: str) -> int:
        """One queue of another topic, opened at 0; its handle."""
        self.core.handle(ev.Members(topic, [MessageQueue(topic, "b", 0)], (ME,)), self.now)
        fetch = self.one(act.FetchOffset)
        self.core.handle(ev.Opened(fetch.handle, 0), self.now)
        return fetch.handle

    def revoke(self) -> None:
        """Another member, first in the list, takes everything."""
        self.members([0], ["0", ME])

    def pq(self, handle: int) -> ProcessQueue:
        return self.core.state.queues[handle]

    # --- pulls --------------------------------------------------------------------------------------------------

    def found(
        self, handle: int, offsets: Sequence[int], *, next_offset: int | None = None, body_bytes: int = 20,
        stored_ms: Sequence[int] = (), takes_all: bool = False, properties: Mapping[str, str] | None = None,
    ) -> bool:  # fmt: skip
        """Answer the queue's pull with these records; False when the body found no room."""
        times = stored_ms or [0] * len(offsets)
        body = b"".join(record(offset, body_bytes, at, properties) for offset, at in zip(offsets, times, strict=True))
        slot = self.core.room_for(handle, len(body))
        if slot is None:
            self.core.handle(ev.Pulled(handle, PullResult(ResponseCode.SUCCESS, 0, dropped=True)), self.now)
            return False
        self.view[slot.start : slot.start + len(body)] = body
        after = offsets[-1] + 1 if next_offset is None else next_offset
        result = PullResult(ResponseCode.SUCCESS, after, len(body), slot, takes_all=takes_all)
        self.core.handle(ev.Pulled(handle, result), self.now)
        return True

    def answer(
        self, handle: int, code: int, next_offset: int, *, takes_all: bool = False, deleted: bool = False
    ) -> None:
        result = PullResult(code, next_offset, takes_all=takes_all, deleted=deleted)
        self.core.handle(ev.Pulled(handle, result), self.now)

    # --- workers ------------------------------------------------------------------------------------------------

    def worker(self, *names: str) -> None:
        for name in names:
            self.core.handle(ev.WorkerStarted(Worker(name)), self.now)
            self.core.handle(ev.WorkerReady(name), self.now)

    def dispatched(self) -> list[Chunk]:
        return [action.chunk for action in self.take(act.Dispatch)]

    def done(
        self, chunk: Chunk, *, seq: int = 0, count: int | None = None, failures: Sequence[tuple[int, int, str]] = (),
        us: int = 100, wall_ms: int = 0,
    ) -> None:  # fmt: skip
        """The chunk's worker reports the next `count` (default: all) messages; failures as (index, level or -1, text)."""
        count = chunk.count - chunk.reported if count is None else count
        assert chunk.worker_id is not None
        self.core.handle(
            ev.Reported(
                chunk.worker_id,
                chunk.chunk_id,
                chunk.reported,
                count,
                seq,
                us * count,
                us,
                0,
                [(index, asked(level, text)) for index, level, text in failures],
                wall_ms,
            ),
            self.now,
        )

    def sealed(self, worker_id: str, seq: int) -> None:
        self.core.handle(ev.Sealed(worker_id, seq), self.now)

    def commits(self, ok: bool = True) -> list[int]:
        """Answer every open Commit; their offsets."""
        taken = self.take(act.Commit)
        for commit in taken:
            self.core.handle(ev.Committed(commit.handle, commit.offset, ok), self.now)
        return [commit.offset for commit in taken]

    def persist(self) -> list[int]:
        self.core.handle(ev.Persist(), self.now)
        return self.commits()


def noted(bench: Bench) -> dict[str, list[tuple[int, int]]]:
    """What became of messages of queue 0, as far as that was noted since the last look."""
    notes = bench.core.state.outcomes.take("g")
    return {kind: [*one.pieces] for kind, records in notes.kinds.items() for one in records.queues.values()}


@pytest.fixture
def make() -> Callable[..., Bench]:
    return Bench


@pytest.fixture
def bench() -> Bench:
    return Bench()
