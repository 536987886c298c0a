"""POP in a world of its own: one member's core, a model of a broker that pops, workers, an operator who unsubscribes.

The model is strict: an acknowledgement counts only with the message's newest check point and in time; a message whose time is
over is shown again. Answers are late or lost, and actions fail in ways that nobody expected; renewals and send-backs take so
long that messages end, and times run out, while they are under way. What must hold: no message is acknowledged before it is
finished and durable, none that was finished in time is shown again without having been acknowledged, or tried again while
there was time, none is popped of a topic that is not subscribed, no request names a check point that a renewal or a send-back
of the same record has replaced; when all is quiet every message is acknowledged, and nothing is kept. Another member pops
the same queue, acknowledges or dies; what this member says of that is in pop_ends.py. Now and then the broker loses its
newest messages, none of which this member has in hand, and gives their offsets to others. In every other seed it gives out
retries as they are stored, under their retry topic and without a check point of their own.

Whole runs die, and another one takes over what their slot has. In some seeds a message kills each run that handles it: it
becomes a dead letter in the end, and none that was never alone in hand does.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import asdict, replace
from itertools import pairwise
from typing import Any

from rocketcrew.remoting.check_points import CheckPoint, real_topic
from rocketcrew.remoting.codes import ResponseCode
from rocketcrew.remoting.pop_headers import PopResponse
from rocketcrew.remoting.properties import encode_properties
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.remoting.stored import StoredMessage, encode_message, record_info
from rocketcrew.supervisor.core import actions as act
from rocketcrew.supervisor.core import events as ev
from rocketcrew.supervisor.core.allocation import average
from rocketcrew.supervisor.core.blame import Death, End, InHand
from rocketcrew.supervisor.core.charges import Left
from rocketcrew.supervisor.core.chunks import Chunk
from rocketcrew.supervisor.core.decisions import Core
from rocketcrew.supervisor.core.failed_actions import action_failed
from rocketcrew.supervisor.core.popping import PopResult
from rocketcrew.supervisor.core.slab import UNIT_BYTES, Slab
from rocketcrew.supervisor.core.state import CoreConfig, Worker
from rocketcrew.workers.failures import asked

from .pop_ends import ELSEWHERE_MS, PopEnds
from .script import number_of
from .world import Violation, World

TOPIC, QUEUE = "T", MessageQueue("T", "broker-a", -1)
INVISIBLE_MS = 400
POLL_MS = 300
ACK_MS = 250
"""More than an acknowledgement takes that waits for a renewal."""
ASK_AGAIN_MS = 20
AGAIN_MS = 80
"""More than an acknowledgement takes that had no answer, and is tried once more."""
BATCH = 8
MESSAGES = 120
REST_MS = 60_000
DEATHS_MAX = 3
MAY_FAIL = (act.FetchAssignment, act.Pop, act.Ack, act.Renew, act.SendBack)
SEALED_MS = 200
KILLS_MAX = 2 * DEATHS_MAX + 1
"""Runs that one message kills before it is a dead letter; once more where its last attempt was cut short."""


class Message:
    """One message at the broker."""

    def __init__(self, number: int, tails: int) -> None:
        self.number = number
        self.unique_id = f"U{number}-{tails}"
        self.visible_from_ms = 0.0
        self.check: CheckPoint | None = None
        self.replaced: list[CheckPoint] = []
        """Check points since it was last shown that a renewal or a send-back has replaced."""
        self.shown = 0
        """The turn at which it was shown last; it is in the record's body."""
        self.retries = 0
        self.acked = False
        self.alone = 0
        """Deaths of runs at which nothing else was in hand."""


class PopWorker:
    """Runs chunk after chunk; rows wait for its seal."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.chunks: deque[Chunk] = deque()
        self.busy = False
        self.alive = True
        self.seq = 1
        self.unsealed: list[tuple[int, int]] = []
        """Number and showing of what it has finished, see `_finished`."""
        self.at = 0
        """The record in hand, of its first chunk."""


class PopSimulation:
    """One run of a seed; `make_core` may make one with a planted bug."""

    def __init__(self, seed: int, make_core: Callable[[CoreConfig, Slab, bytearray], Core] = Core) -> None:
        self.world = World(seed)
        random = self.world.random
        self.messages: list[Message] = []
        self.view = bytearray(64 * UNIT_BYTES)
        config = CoreConfig(
            "c1", "g", (TOPIC,), strategy=average, persist_interval_ms=random.choice([50, 250]), send_back_retry_ms=100,
            rebalance_interval_ms=700, pull_delay_on_error_ms=60, stop_deadline_ms=20_000,
            pop_threshold_for_queue=random.choice([4, 16, 96]), chunk_messages_max=random.choice([1, 4]),
            chunk_target_us=2_000, max_worker_deaths=DEATHS_MAX, pop_elsewhere_after_ms=ELSEWHERE_MS,
            pop_ask_again_ms=ASK_AGAIN_MS,
        )  # fmt: skip
        self._make_core = lambda: _begun(make_core(config, Slab(len(self.view)), self.view))
        self.core = self._make_core()
        self.charges = self.core.state.charges.to_json()
        """In the slot's folder."""
        self.counted: Counter[str] = Counter()
        """Of the runs before this one."""
        self.killer = random.randrange(MESSAGES // 2) if random.random() < 0.5 else -1
        """A message that kills each run that handles it."""
        self.kills = 0
        self.ends = PopEnds(TOPIC)
        self._run = 0
        self._tails = 0
        """How often the broker has lost its newest messages."""
        self._as_stored = seed % 2 == 1
        """It gives out retries so."""
        self._produces = True
        self.subscribed = True
        self.durable: set[int] = set()
        """Numbers of messages that are finished, their rows sealed."""
        self.dead: set[int] = set()
        """Numbers of those that are dead letters."""
        self.awaited: set[int] = set()
        """Numbers of those whose acknowledgement is to come."""
        self.workers: dict[str, PopWorker] = {}
        self.finished: act.Finished | None = None
        self._turn = self._born = 0
        self._tick_at = float("inf")
        self._slow = random.choice([0.0, 0.1, 0.3])
        self._failing = random.choice([0.0, 0.02, 0.1])
        """Share of actions that fail unexpectedly."""
        self._performs: dict[type, Callable[[Any], None]] = {
            act.FetchAssignment: self._assignment, act.Pop: self._pop, act.Ack: self._ack, act.Renew: self._renew,
            act.SendBack: self._send_back, act.Dispatch: self._dispatch, act.Seal: self._seal_asked,
            act.Finished: self._core_finished, act.Log: self._logged, act.ChargesChanged: self._write_charges,
            act.CountCellsAnew: lambda _: None,
        }  # fmt: skip

    def run(self, steps: int) -> None:
        world = self.world
        for _ in range(2):
            self._event(self._start_worker)
        self._event(self._hear, ev.Start())
        world.after(1, self._produce)
        world.after(100, self._operate)
        world.after(150, self._rival)
        world.after(SEALED_MS, self._seal_facts)
        while world.steps < steps:
            self._step()
        world.calm = True
        self._event(self._subscribe)
        until = world.now_ms + REST_MS
        while any(not message.acked for message in self.messages) or self.core.state.queues:
            if world.now_ms > until:
                left = [message.number for message in self.messages if not message.acked]
                raise Violation(
                    f"does not come to rest: {left} are not acknowledged, {len(self.core.state.queues)} in hand"
                )
            self._step()
        until = world.now_ms + 2 * ELSEWHERE_MS
        while world.now_ms < until:
            self._step()
        self.ends.check_end()
        self._event(self._hear, ev.Stop())
        while self.finished is None:
            self._step()
        self._check_end()

    def _check_end(self) -> None:
        state = self.core.state
        in_hand = sum(loop.in_hand for loop in self.core.popping.loops.values())
        kept = [state.queues, state.chunks, state.unsealed, state.redo, state.quarantine]
        if any(kept) or state.slab.used_units or in_hand:
            raise Violation(f"kept at the end: {kept}, {state.slab.used_units} units, {in_hand} popped")

    def _step(self) -> None:
        self.world.step()
        slab = self.core.state.slab
        if not 0 <= slab.used_units <= slab.units or self.core.state.counters.invariant_violations:
            raise Violation(f"slab: {slab.used_units} of {slab.units}")

    # --- the member's loop --------------------------------------------------------------------------------------

    def _event(self, what: Callable[..., None], *arguments: Any) -> None:
        what(*arguments)
        while todo := self.core.take_actions():
            for action in todo:
                perform = self._performs.get(type(action))
                if perform is not None and not self._fails(action):
                    perform(action)
        if self.ends.noted(self.core.state.outcomes.take("g"), self.durable, self.world.now_ms):
            self.world.note("what others had of a popped queue was said")
        due = self.core.next_timer()
        if due is not None and due * 1000 < self._tick_at:
            self._tick_at = due * 1000
            self.world.at(self._tick_at, self._tick, self._tick_at)

    def _fails(self, action: act.Action) -> bool:
        """Whether this one fails in a way that nobody expected: nothing is sent, and the core gets the event for that."""
        if type(action) not in MAY_FAIL or self.world.calm or not self.world.chance(self._failing):
            return False
        self.world.note(f"{type(action).__name__} failed")
        if isinstance(action, act.Ack):
            self.awaited.difference_update(check.offset for check in action.checks)
        action_failed(self.core, action, self.world.now)
        return True

    def _hear(self, event: Any) -> None:
        self.core.handle(event, self.world.now)

    def _tick(self, due_ms: float) -> None:
        if due_ms == self._tick_at:
            self._tick_at = float("inf")
            self._event(self.core.tick, self.world.now + 1e-9)

    def _later(self, most_ms: float, what: Callable[..., None], *arguments: Any) -> None:
        """Not after the end of this run."""
        self._after(0.1 + self.world.random.random() * most_ms, self._event, what, *arguments)

    def _after(self, ms: float, what: Callable[..., None], *arguments: Any) -> None:
        run = self._run
        self.world.after(ms, lambda: what(*arguments) if run == self._run else None)

    def _write_charges(self, _: act.ChargesChanged) -> None:
        self.charges = self.core.state.charges.to_json()

    def _lost(self) -> bool:
        return self.world.chance(0.05) and not self.world.calm

    def _logged(self, entry: act.Log) -> None:
        if entry.level == "critical":
            raise Violation(f"{entry.event} {entry.keys}")

    def _core_finished(self, action: act.Finished) -> None:
        self.finished = action

    # --- the broker ---------------------------------------------------------------------------------------------

    def _produce(self) -> None:
        for _ in range(self.world.random.choice([1, 3, 9])):
            self.messages.append(Message(len(self.messages), self._tails))
        self._produces = len(self.messages) < MESSAGES and not self.world.calm
        if self._produces:
            self.world.after(self.world.random.expovariate(1 / 40), self._produce)

    def _assignment(self, action: act.FetchAssignment) -> None:
        """Also after the topic was unsubscribed, where it was asked before."""
        self._later(30, lambda: self._hear(ev.Members(action.topic, None, None)))
        self._later(30, lambda: self._hear(ev.PopAssigned(action.topic, [QUEUE])))

    def _pop(self, action: act.Pop) -> None:
        if not self.subscribed:
            raise Violation("a topic that is not subscribed is popped")
        self._after(1, self._serve, action, self.world.now_ms + POLL_MS)

    def _serve(self, action: act.Pop, until_ms: float) -> None:
        now = self.world.now_ms
        found = [m for m in self.messages if not m.acked and m.visible_from_ms <= now][:BATCH]
        if not found and now < until_ms:
            self._after(15, self._serve, action, until_ms)
            return
        if not found:
            result = PopResult(ResponseCode.POLLING_TIMEOUT)
            self._later(1, lambda: self._hear(ev.Popped(action.handle, result)))
            return
        found.sort(key=lambda m: (m.retries > 0, m.number))
        body = b"".join(self._shown(message) for message in found)
        header = PopResponse(self._turn, INVISIBLE_MS, 0, 0, "0 0 0;1 0 1", None)
        if self._as_stored:
            for message in found:
                assert message.check is not None
                start = int(message.check.retry_mark)
                message.check = replace(message.check, start_offset=start, pop_time_ms=self._turn)
        if self._lost():
            self.world.note("a pop's answer was lost")
            self._later(500, lambda: self._hear(ev.NoAnswer(action.handle)))
        else:
            self._later(1, self._popped, action, header, body, [m.number for m in found if not m.retries], self._tails)

    def _shown(self, message: Message) -> bytes:
        if message.number in self.awaited:
            raise Violation(f"{message.number} was finished in time, and is shown again: nobody acknowledged it")
        self._turn += 1
        message.retries += message.check is not None
        message.replaced.clear()
        message.shown = self._turn
        message.visible_from_ms = self.world.now_ms + INVISIBLE_MS
        mark = "1" if message.retries else "0"
        self.ends.shown(message.number, self.world.now_ms)
        message.check = CheckPoint(
            message.number, self._turn, INVISIBLE_MS, 0, mark, QUEUE.broker_name, 0, message.number
        )
        properties, topic = {"UNIQ_KEY": message.unique_id}, TOPIC
        if not self._as_stored:
            properties["POP_CK"] = message.check.encode()
        elif message.retries:
            self.world.note("a retry was shown under its retry topic")
            topic = real_topic(TOPIC, "g", mark)
        return encode_message(
            StoredMessage(topic, b"%08d" % message.shown, encode_properties(properties).encode(),
                          queue_offset=message.number, reconsume_times=message.retries)
        )  # fmt: skip

    def _rival(self) -> None:
        """Another member of the group pops: what it takes it acknowledges, or never finishes."""
        if self.world.calm:
            return
        now = self.world.now_ms
        found = [m for m in self.messages if not m.acked and m.visible_from_ms <= now][:BATCH]
        for message in found:
            self._shown(message)
            message.acked = self.world.chance(0.7)
        if found:
            self.world.note("another member popped")
        self.world.after(self.world.random.expovariate(1 / 250), self._rival)

    def _seal_facts(self) -> None:
        self.ends.sealed()
        self.world.after(SEALED_MS, self._seal_facts)

    def _popped(self, action: act.Pop, header: PopResponse, body: bytes, new: list[int], tails: int) -> None:
        if tails != self._tails:
            self._hear(ev.NoAnswer(action.handle))
            return
        slot = self.core.room_for(action.handle, len(body))
        if slot is None:
            self._hear(ev.Popped(action.handle, PopResult(ResponseCode.SUCCESS, header, dropped=True)))
            return
        self.view[slot.start : slot.start + len(body)] = body
        if action.handle in self.core.popping.handles and not self.core.state.stopping:
            self.ends.came(new)
        self._hear(ev.Popped(action.handle, PopResult(ResponseCode.SUCCESS, header, len(body), slot)))

    def _holds(self, check: CheckPoint) -> Message | None:
        """The message of a check point that counts; whoever names one that was replaced meanwhile has not waited for it."""
        if check.offset >= len(self.messages):
            return None
        message = self.messages[check.offset]
        if check in message.replaced:
            raise Violation(f"{check.offset}: a request names a check point that another request had replaced")
        in_time = not message.acked and message.visible_from_ms > self.world.now_ms
        return message if in_time and message.check == check else None

    def _ack(self, action: act.Ack) -> None:
        for check in action.checks:
            if action.tries == 0 and check.offset not in self.durable | self.dead:
                raise Violation(f"{check.offset} is acknowledged before it is finished and durable")
        self._later(5, self._acked, action)

    def _acked(self, action: act.Ack) -> None:
        refused, unanswered = 0, [check for check in action.checks if self._lost()]
        for check in action.checks:
            message = self._holds(check)
            lost = check in unanswered
            if lost:
                self.world.note("an acknowledgement had no answer")
            if lost and self.world.chance(0.5):  # the request was lost
                if message is not None and message.visible_from_ms - self.world.now_ms <= AGAIN_MS:
                    self.awaited.discard(check.offset)
                continue
            self.awaited.discard(check.offset)
            refused += message is None and not lost
            if message is not None:
                message.acked = True
        self._hear(ev.Acked(action.handle, len(action.checks), refused, unanswered, action.tries))

    def _renew(self, action: act.Renew) -> None:
        self._later(150 if self.world.chance(0.5) else 3, self._renewed, action)

    def _renewed(self, action: act.Renew) -> None:
        lost = self._lost()
        check = None if lost else self._change(action.check, INVISIBLE_MS)
        self._hear(ev.Renewed(action.handle, action.offset, check, lost))

    def _change(self, check: CheckPoint, invisible_ms: float) -> CheckPoint | None:
        message = self._holds(check)
        if message is None:
            return None
        self._turn += 1
        message.replaced.append(check)
        message.visible_from_ms = self.world.now_ms + invisible_ms
        message.check = check.renewed(self._turn, int(invisible_ms), 0)
        return message.check

    def _send_back(self, action: act.SendBack) -> None:
        check = action.check
        if check is None:
            raise Violation("a popped message is handed back without its check point")

        if action.facts is not None:
            self._dead_letter(self.messages[check.offset])

        def changed() -> None:
            refused = self._lost()
            if refused:
                self.world.note("a popped message was not taken back")
            else:
                self._change(check, 80)
            self._hear(ev.SentBack(action.handle, action.chunk_id, action.index, not refused))

        self._later(150 if self.world.chance(0.3) else 5, changed)

    def _dead_letter(self, message: Message) -> None:
        if message.alone < DEATHS_MAX:
            raise Violation(
                f"{message.number} is a dead letter, and was alone in hand at {message.alone} deaths of runs"
            )
        self.world.note("a popped message that kills runs became a dead letter")
        message.acked = True
        self.dead.add(message.number)
        self.awaited.discard(message.number)

    # --- workers ------------------------------------------------------------------------------------------------

    def _start_worker(self) -> None:
        self._born += 1
        worker = self.workers[f"w{self._born}"] = PopWorker(f"w{self._born}")
        self._hear(ev.WorkerStarted(Worker(worker.name)))
        self._hear(ev.WorkerReady(worker.name))

    def _dispatch(self, action: act.Dispatch) -> None:
        worker = self.workers[action.worker_id]
        worker.chunks.append(action.chunk)
        self._go_on(worker)

    def _go_on(self, worker: PopWorker) -> None:
        if worker.chunks and not worker.busy:
            worker.busy = True
            slow = self.world.chance(self._slow) and not self.world.calm
            self._later(600 if slow else 4, self._ran, worker)

    def _ran(self, worker: PopWorker) -> None:
        if not worker.alive:
            return
        chunk, random = worker.chunks[0], self.world.random
        if self.killer in chunk.offsets:
            worker.at = chunk.offsets.index(self.killer)
            self.kills += 1
            if self.kills > KILLS_MAX:
                raise Violation(f"{self.killer} has killed {self.kills} runs, and is no dead letter")
            self._run_dies()
            return
        worker.chunks.popleft()
        fails = [random.random() < 0.1 and not self.world.calm for _ in chunk.offsets]
        shown = self._shown_in(chunk)
        done = [at for at, bad in zip(zip(chunk.offsets, shown, strict=True), fails, strict=True) if not bad]
        seq = worker.seq if done and random.random() < 0.7 else 0
        if seq:
            worker.unsealed += done
            self._after(60, self._seal, worker, worker.seq)
        else:
            self._finished(done)
        pq = self.core.state.queues.get(chunk.handle)
        if pq is not None:
            self.ends.finished(pq.mq.topic, [number for number, _ in done])
        failures = [(index, asked(0, "no")) for index, bad in enumerate(fails) if bad]
        self._hear(ev.Reported(worker.name, chunk.chunk_id, 0, chunk.count, seq, 10, 10, 0, failures))
        worker.busy = False
        self._go_on(worker)

    def _shown_in(self, chunk: Chunk) -> list[int]:
        """By which showing its messages came."""
        starts = [record_info(self.view, start, end).body_start for start, end in pairwise(chunk.positions)]
        return [number_of(bytes(self.view[at : at + 8])) for at in starts]

    def _finished(self, done: list[tuple[int, int]]) -> None:
        """These messages are durable, as they came by these showings. Those that were not shown again since, and have time
        left, are acknowledged, and never shown again."""
        self.durable.update(number for number, _ in done)
        for number, shown in done:
            message = self.messages[number]
            if message.shown == shown and message.visible_from_ms - self.world.now_ms > ACK_MS:
                self.awaited.add(number)

    def _seal_asked(self, action: act.Seal) -> None:
        worker = self.workers.get(action.worker_id)
        if worker is not None:
            self._after(5, self._seal, worker, worker.seq)

    def _seal(self, worker: PopWorker, seq: int) -> None:
        if worker.alive and worker.seq == seq and worker.unsealed:
            self._finished(worker.unsealed)
            worker.unsealed, worker.seq = [], seq + 1
            self._event(self._hear, ev.Sealed(worker.name, seq))

    def _die(self, worker: PopWorker) -> None:
        """What it had written is salvaged; the rest runs elsewhere."""
        worker.alive = False
        del self.workers[worker.name]
        self._hear(ev.WorkerDied(worker.name, Death(End.RETIRED)))
        if worker.unsealed:
            self._finished(worker.unsealed)
            self._hear(ev.Sealed(worker.name, worker.seq))
        self._hear(ev.SalvageComplete(worker.name))
        self._start_worker()

    def _run_dies(self) -> None:
        """Supervisor and workers at once; what is in the open segments is salvaged by the next run, and shown again. That one
        is there after a moment."""
        self.world.note("a whole run died")
        self.ends.died()
        self._run += 1
        hands = [worker for worker in self.workers.values() if worker.busy]
        left: list[Left] = []
        for worker in hands:
            chunk = worker.chunks[0]
            offset = chunk.offsets[worker.at]
            self.messages[offset].alone += len(hands) == 1
            mq = self.core.state.queues[chunk.handle].mq
            left.append(Left(mq, InHand(chunk.chunk_id, offset, offset, 1, mark=f"{self._run} {worker.name}"), {}))
        self.counted.update(asdict(self.core.state.counters))
        self.workers.clear()
        self.awaited.clear()
        self.core, self.subscribed, self._tick_at = self._make_core(), True, float("inf")
        charges = self.core.state.charges
        charges.add_json(self.charges, "deaths")
        charges.member_died(left, stopping=False)
        self.charges = charges.to_json()
        for _ in range(2):
            self._later(20, self._start_worker)
        self._later(20, self._hear, ev.Start())

    # --- an operator --------------------------------------------------------------------------------------------

    def _operate(self) -> None:
        if self.world.calm:
            return
        draw = self.world.random.random()
        if draw < 0.3:
            self._event(self._unsubscribe if self.subscribed else self._subscribe)
        elif draw < 0.5 and self.workers:
            self._event(self._die, self.world.random.choice(list(self.workers.values())))
        elif draw < 0.6:
            self._event(self._hear, ev.Pause())
            self._after(50, self._event, lambda: self._hear(ev.Resume()))
        elif draw < 0.63:
            self._event(self._run_dies)
        elif draw < 0.68:
            self._lose_tail()
        self.world.after(self.world.random.expovariate(1 / 120), self._operate)

    def _lose_tail(self) -> None:
        """The broker comes back without its newest messages: others get these offsets. An answer on its way is lost."""
        in_hand = [offset for q in self.core.popping.queues.values() for offset in q.checks]
        in_hand += [at for worker in self.workers.values() for chunk in worker.chunks for at in chunk.offsets]
        in_hand += [number for worker in self.workers.values() for number, _ in worker.unsealed]
        first = max([self.killer, *in_hand]) + 1
        if first >= len(self.messages):
            return
        self.world.note("a broker lost its newest messages")
        self._tails += 1
        del self.messages[first:]
        self.durable = {number for number in self.durable if number < first}
        self.awaited = {number for number in self.awaited if number < first}
        self.ends.lost(first)
        if not self._produces:
            self._produce()

    def _unsubscribe(self) -> None:
        self.world.note("a popped topic was unsubscribed")
        self.subscribed = False
        self._hear(ev.Unsubscribe(TOPIC))

    def _subscribe(self) -> None:
        if not self.subscribed:
            self.world.note("a popped topic was subscribed again")
            self.subscribed = True
            self._hear(ev.Subscribe(TOPIC))


def _begun(core: Core) -> Core:
    core.begin()
    return core
