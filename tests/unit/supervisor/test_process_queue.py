"""One process queue under everything that can happen to its messages, against a model with one status per offset."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rocketcrew.remoting.codes import ResponseCode
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.remoting.stored import StoredMessage, encode_message
from rocketcrew.supervisor.core import actions as act
from rocketcrew.supervisor.core import events as ev
from rocketcrew.supervisor.core.allocation import average
from rocketcrew.supervisor.core.chunks import Chunk
from rocketcrew.supervisor.core.decisions import Core
from rocketcrew.supervisor.core.journal import JournalState
from rocketcrew.supervisor.core.pulling import PullResult
from rocketcrew.supervisor.core.slab import UNIT_BYTES, Slab
from rocketcrew.supervisor.core.state import CoreConfig, Worker
from rocketcrew.workers.failures import asked

MQ = MessageQueue("t", "b", 0)
OPENED_AT = 5


class QueueMachine(RuleBasedStateMachine):
    """Events in any order; `status` is None (not finished), "durable", or the segment its rows wait for."""

    @initialize(chunk=st.integers(1, 5), workers=st.integers(1, 3))
    def begin(self, chunk: int, workers: int) -> None:
        config = CoreConfig("me", "g", ("t",), average, chunk_messages_max=chunk, send_back_retry_ms=10)
        self.view = bytearray(64 * UNIT_BYTES)
        self.core = Core(config, Slab(len(self.view)), self.view)
        self.core.begin()
        self.core.state.sizer.tail_us = 200.0
        self.now = 0.0
        self.status: dict[int, tuple[str, int] | str | None] = {}
        self.failed: set[int] = set()
        self.journal = JournalState()
        self.hands: dict[str, list[Chunk]] = {}
        self.rows: dict[str, list[int]] = {}
        self.backs: list[act.SendBack] = []
        self.born = 0
        for _ in range(workers):
            self._worker()
        self.core.handle(ev.Members("t", [MQ], ["me"]), 0.0)
        self.core.handle(ev.Opened(1, OPENED_AT), 0.0)
        self.pull: act.Pull | None = None
        self._act()

    def _worker(self) -> None:
        self.born += 1
        name = f"w{self.born}"
        self.hands[name], self.rows[name] = [], []
        self.core.handle(ev.WorkerStarted(Worker(name)), self.now)
        self.core.handle(ev.WorkerReady(name), self.now)

    def _act(self) -> None:
        for action in self.core.take_actions():
            if isinstance(action, act.Pull):
                assert self.pull is None, "two pulls outstanding"
                self.pull = action
                assert action.commit_offset <= self._safe()
            elif isinstance(action, act.Dispatch):
                in_hand, sizer = self.hands[action.worker_id], self.core.state.sizer
                assert len(in_hand) < 2 or (
                    sizer.rows and sizer.takes(sum(chunk.count for chunk in in_hand), 10_000, 1)
                )
                self.hands[action.worker_id].append(action.chunk)
            elif isinstance(action, act.SendBack):
                self.backs.append(action)
            elif isinstance(action, act.Commit):
                assert action.offset <= self._safe(), "the commit passes what is not finished and durable"
                self.core.handle(ev.Committed(action.handle, action.offset, True), self.now)
            elif isinstance(action, (act.JournalDone, act.JournalSealed, act.JournalLost, act.JournalCommitted)):
                self.journal.apply(action)

    def _safe(self) -> int:
        """The smallest offset that may not be passed."""
        open_ = [at for at, status in self.status.items() if status != "durable"]
        return min(open_, default=self.core.state.queues[1].next_offset)

    @precondition(lambda self: self.pull is not None)
    @rule(gaps=st.lists(st.integers(0, 3), max_size=12), tail=st.integers(0, 3))
    def answer(self, gaps: list[int], tail: int) -> None:
        assert self.pull is not None
        at, offsets = self.pull.offset, []
        for gap in gaps:
            at += gap
            offsets.append(at)
            at += 1
        self.pull = None
        if not offsets:
            self.core.handle(ev.Pulled(1, PullResult(ResponseCode.PULL_NOT_FOUND, at + tail)), self.now)
        else:
            body = b"".join(encode_message(StoredMessage("t", b"x", queue_offset=offset)) for offset in offsets)
            slot = self.core.room_for(1, len(body))
            assert slot is not None
            self.view[slot.start : slot.start + len(body)] = body
            self.status.update(dict.fromkeys(offsets))
            self.core.handle(ev.Pulled(1, PullResult(ResponseCode.SUCCESS, at + tail, len(body), slot)), self.now)
        self._act()

    def _busy(self) -> list[str]:
        return [name for name, chunks in self.hands.items() if chunks]

    @precondition(lambda self: self._busy())
    @rule(data=st.data(), rows=st.booleans())
    def outcome(self, data: st.DataObject, rows: bool) -> None:
        """A worker reports the next messages of its first chunk, some failed; its segments count from 1."""
        name = data.draw(st.sampled_from(self._busy()))
        chunk = self.hands[name][0]
        start = chunk.reported
        count = data.draw(st.integers(1, chunk.count - start))
        failed = data.draw(st.sets(st.integers(start, start + count - 1)))
        seq = self.core.state.workers[name].sealed_seq + 1 if rows else 0
        for index in range(start, start + count):
            offset = chunk.offsets[index]
            if chunk.origin is not None:
                self.failed.remove(offset)  # a refused send-back: it runs here again
            assert self.status[offset] is None and offset not in self.failed, "run twice"
            if index in failed:
                self.failed.add(offset)
            else:
                self.status[offset] = (name, seq) if rows else "durable"
                if rows:
                    self.rows[name].append(offset)
        if start + count == chunk.count:
            self.hands[name].pop(0)
        reports = [(index, asked(0, "no")) for index in sorted(failed)]
        self.core.handle(ev.Reported(name, chunk.chunk_id, start, count, seq, 200 * count, 200, 0, reports), self.now)
        self._act()

    @precondition(lambda self: self.backs)
    @rule(data=st.data(), accepted=st.booleans())
    def send_back(self, data: st.DataObject, accepted: bool) -> None:
        back = self.backs.pop(data.draw(st.integers(0, len(self.backs) - 1)))
        chunk = self.core.state.chunks[back.chunk_id]
        offset = chunk.offsets[back.index]
        record = self.view[back.start : back.end]
        assert record[20:28] == offset.to_bytes(8, "big"), "the bytes of the failed message are gone"
        if accepted:
            self.failed.discard(offset)
            self.status[offset] = "durable"
        self.core.handle(ev.SentBack(1, back.chunk_id, back.index, accepted), self.now)
        self._act()

    def _with_rows(self) -> list[str]:
        return [name for name, rows in self.rows.items() if rows]

    @precondition(lambda self: self._with_rows())
    @rule(data=st.data())
    def seal(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self._with_rows()))
        for offset in self.rows[name]:
            self.status[offset] = "durable"
        self.rows[name] = []
        self.core.handle(ev.Sealed(name, self.core.state.workers[name].sealed_seq + 1), self.now)
        self._act()

    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        """With unreported rows in its segment, which is found whole; a new one comes."""
        name = data.draw(st.sampled_from(list(self.hands)))
        self.core.handle(ev.WorkerDied(name), self.now)
        unreported = [
            chunk.offsets[index] for chunk in self.hands[name][:1] for index in range(chunk.reported, chunk.count)
        ]
        written = unreported[: data.draw(st.integers(0, len(unreported)))]
        if written or self.rows[name]:
            records = [(offset, offset + 1) for offset in sorted([*self.rows[name], *written])]
            for offset in (*self.rows[name], *written):
                self.status[offset] = "durable"
                self.failed.discard(offset)
            self.core.handle(ev.Salvaged(name, self.core.state.workers[name].sealed_seq + 1, [(MQ, records)]), self.now)
        del self.hands[name], self.rows[name]
        self._worker()
        self.core.handle(ev.SalvageComplete(name), self.now)
        self._act()

    @rule(ms=st.integers(1, 6000))
    def later(self, ms: int) -> None:
        self.now += ms / 1000
        self.core.tick(self.now)
        self._act()

    @rule()
    def persist(self) -> None:
        self.core.handle(ev.Persist(), self.now)
        self._act()

    @invariant()
    def commits_are_exact_and_everything_is_counted(self) -> None:
        if not hasattr(self, "core"):
            return
        pq = self.core.state.queues[1]
        safe = self._safe()
        head = pq.head_offset
        assert OPENED_AT <= head <= safe
        if not self.core.state.unsealed:
            assert not [at for at in self.status if head <= at < safe], "finished messages hold the offset"
        unfinished = sum(status is None for status in self.status.values())
        assert pq.unfinished == unfinished
        assert self.core.state.waiting_messages == sum(run.count for run in pq.waiting)
        assert (self.core.state.slab.used_units == 0) == (unfinished == 0)
        assert self.core.state.counters.invariant_violations == 0
        known = self.journal.queues[MQ]
        durable = {at for at, status in self.status.items() if status == "durable"}
        assert {at for at in self.status if at < known.committed or at in known.durable} == durable

    def teardown(self) -> None:
        """Let everything finish: then all is committed, and nothing is held."""
        if not hasattr(self, "core"):
            return
        for _ in range(5000):
            if busy := self._busy():
                chunk = self.hands[busy[0]].pop(0)
                for index in range(chunk.reported, chunk.count):
                    self.status[chunk.offsets[index]] = "durable"
                start = chunk.reported
                self.core.handle(
                    ev.Reported(busy[0], chunk.chunk_id, start, chunk.count - start, 0, 200, 200, 0, ()), self.now
                )
            elif self.backs:
                back = self.backs.pop()
                self.status[self.core.state.chunks[back.chunk_id].offsets[back.index]] = "durable"
                self.core.handle(ev.SentBack(1, back.chunk_id, back.index, True), self.now)
            elif names := self._with_rows():
                for offset in self.rows[names[0]]:
                    self.status[offset] = "durable"
                self.rows[names[0]] = []
                self.core.handle(ev.Sealed(names[0], self.core.state.workers[names[0]].sealed_seq + 1), self.now)
            elif any(status is None for status in self.status.values()):
                self.now += 1.0
                self.core.tick(self.now)
            else:
                break
            self._act()
        self.core.handle(ev.Persist(), self.now)
        self._act()
        pq = self.core.state.queues[1]
        assert self.core.state.pulled[1].committed == pq.next_offset
        assert not self.core.state.chunks and not self.core.state.unsealed and not pq.open
        assert (self.core.state.slab.used_units, pq.unfinished_bytes) == (0, 0)


TestQueue = QueueMachine.TestCase
TestQueue.settings = settings(max_examples=60, stateful_step_count=50)
