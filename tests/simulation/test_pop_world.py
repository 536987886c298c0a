"""POP: every seed holds what it must, and each bug that was there is found again when it is planted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace

import pytest

from rocketcrew.durable.outcomes import ELSEWHERE, SETTLED
from rocketcrew.remoting.check_points import NORMAL, CheckPoint
from rocketcrew.remoting.pop_headers import PopResponse
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.supervisor.core.decisions import Core
from rocketcrew.supervisor.core.dispatching import Dispatching
from rocketcrew.supervisor.core.elsewhere import Shown
from rocketcrew.supervisor.core.popping import PopLoop, Popping, PopQueue
from rocketcrew.supervisor.core.process_queue import ProcessQueue
from rocketcrew.supervisor.core.state import State
from rocketcrew.supervisor.core.states import QueueEvent

from .pop_world import MAY_FAIL, PopSimulation
from .world import Violation

SEEDS, STEPS = 40, 1_500
PLANTED_SEEDS = 40
LOOKED_THROUGH = 40


@pytest.mark.parametrize("seed", range(SEEDS))
def test_nothing_popped_is_lost_or_kept(seed: int) -> None:
    PopSimulation(seed).run(STEPS)


def test_what_is_looked_for_happens() -> None:
    seen: set[str] = set()
    for seed in range(LOOKED_THROUGH):
        simulation = PopSimulation(seed)
        simulation.run(STEPS)
        simulation.counted.update(asdict(simulation.core.state.counters))
        seen |= {name for name, count in simulation.counted.items() if count}
        seen |= set(simulation.world.happened)
    assert seen >= {
        "a popped topic was unsubscribed", "a popped topic was subscribed again", "a pop's answer was lost", "pop_renewals",
        "pop_renewals_refused", "pop_acks", "pop_acks_refused", "sent_back_messages", "late_answers",
        "redispatched_messages", "a whole run died", "a popped message that kills runs became a dead letter",
        "a popped message was not taken back", "another member popped", "what others had of a popped queue was said",
        "a broker lost its newest messages", "an acknowledgement had no answer", "a retry was shown under its retry topic",
        *(f"{kind.__name__} failed" for kind in MAY_FAIL),
    }  # fmt: skip


class PopsOn(Core):
    """The loops of a topic that is unsubscribed go on."""

    class popping_class(Popping):
        def unsubscribed(self, topic: str) -> None:
            pass


class ForgetsWhatWaits(Core):
    """A persist takes what is finished for acknowledged, though it waits for the answer to a renewal."""

    class popping_class(Popping):
        def persist(self, pq: ProcessQueue, now: float) -> None:
            q = self.queues[pq.handle]
            for offset in [offset for offset in q.renewing if offset in pq.ledger.done and offset in q.checks]:
                del q.checks[offset]
                q.loop.in_hand -= 1
            super().persist(pq, now)


class RenewsBesideASendBack(Core):
    """Half of the invisible time is over while the send-back of a message is under way, and it is renewed all the same."""

    class popping_class(Popping):
        def going_back(self, pq: ProcessQueue, offset: int) -> None:
            pass


class SendsBackBesideARenewal(Core):
    """A failed message goes back with the check point that a renewal under way replaces."""

    class popping_class(Popping):
        def after_renewal(self, pq: ProcessQueue, offset: int, then: Callable[[], None]) -> bool:
            return False


class AcknowledgesTooEarly(Core):
    """What was finished is acknowledged when it is reported, its rows sealed or not."""

    class popping_class(Popping):
        def progress(self, pq: ProcessQueue, now: float) -> None:
            for token in list(pq.ledger.held):
                pq.ledger.release(token)
            super().progress(pq, now)


class AcknowledgesOnce(Core):
    """What had no answer counts as refused: nobody tries again."""

    class popping_class(Popping):
        def acked(
            self, handle: int, count: int, refused: int, unanswered: Sequence[CheckPoint], tries: int, now: float
        ) -> None:
            super().acked(handle, count, refused + len(unanswered), (), tries, now)


class TakesRetriesForNew(Core):
    """What comes without a check point of its own is taken for a message of the topic itself."""

    class popping_class(Popping):
        def _check_point(
            self, loop: PopLoop, position: int, header: PopResponse, starts: dict[tuple[str, int], int]
        ) -> CheckPoint | None:
            check = super()._check_point(loop, position, header, starts)
            return replace(check, retry_mark=NORMAL) if check is not None else None


class NeverCareful(Core):
    """What kills its whole run with others in hand is looked for among pulled messages only."""

    class popping_class(Popping):
        def _look_for_killers(self, q: PopQueue, positions: Sequence[int], offsets: Sequence[int]) -> None:
            pass


class KeepsTheirPlaces(Core):
    """A message that was handed back counts as in hand for ever."""

    class popping_class(Popping):
        def _end(self, q: PopQueue, event: QueueEvent) -> None:
            failed = q.loop.in_hand
            super()._end(q, event)
            q.loop.in_hand = failed + 1


class SaysTooEarly(Core):
    """What was shown to others counts as theirs at once."""

    class popping_class(Popping):
        def __init__(self, state: State, dispatching: Dispatching, ended: Callable[[], None]) -> None:
            super().__init__(state, dispatching, ended)
            self._shown = Shown(state.config.pop_elsewhere_after_ms / 10_000)


class SaysWhatIsInHand(Core):
    """What this member has in hand for long counts as somebody else's."""

    class popping_class(Popping):
        def _tell_elsewhere(self, now: float) -> None:
            queues, self.queues = self.queues, {}
            super()._tell_elsewhere(now)
            self.queues = queues


class NeverSaysIt(Core):
    """Holes between what this member got have no end."""

    class popping_class(Popping):
        def _show(self, mq: MessageQueue, start: int, end: int, now: float) -> None:
            pass


class SaysWhatItWasShown(Core):
    """Only from the first message on that the run was shown: what the run before had in hand has no end."""

    class popping_class(Popping):
        def _show(self, mq: MessageQueue, start: int, end: int, now: float) -> None:
            self.first = min(getattr(self, "first", end), end)
            super()._show(mq, start, end, now)

        def _tell_elsewhere(self, now: float) -> None:
            before = self.s.outcomes.take("g")
            super()._tell_elsewhere(now)
            after = self.s.outcomes.take("g").of_kind(ELSEWHERE)
            for kind, records in (*before.kinds.items(), (ELSEWHERE, after)):
                for key, offsets in records.queues.items():
                    for start, stop in offsets.pieces:
                        begin = max(start, self.first) if kind == ELSEWHERE else start
                        if begin < stop:
                            self.s.outcomes.add(kind, MessageQueue(key.topic, key.broker, key.queue_id), begin, stop)


class SaysTheSameOfNewMessages(Core):
    """What was shown of a queue before it went back is said of the messages that it has now."""

    class popping_class(Popping):
        def _show(self, mq: MessageQueue, start: int, end: int, now: float) -> None:
            super()._show(mq, 1 << 62, end, now)


class SettlesWhatIsReported(Core):
    """What is finished counts as settled before its rows are sealed."""

    class popping_class(Popping):
        def progress(self, pq: ProcessQueue, now: float) -> None:
            for start, stop in pq.ledger.done.pairs():
                self.s.outcomes.add(SETTLED, pq.mq, start, stop)
            super().progress(pq, now)


BUGS = (
    SaysTooEarly, SaysWhatIsInHand, NeverSaysIt, SaysWhatItWasShown, SaysTheSameOfNewMessages, SettlesWhatIsReported,
    PopsOn, ForgetsWhatWaits, RenewsBesideASendBack, SendsBackBesideARenewal, AcknowledgesTooEarly, KeepsTheirPlaces,
    AcknowledgesOnce, NeverCareful, TakesRetriesForNew,
)  # fmt: skip


@pytest.mark.parametrize("kind", BUGS)
def test_a_planted_bug_is_found(kind: type[Core]) -> None:
    for seed in range(PLANTED_SEEDS):
        try:
            PopSimulation(seed, kind).run(STEPS)
        except Violation:
            return
    pytest.fail(f"{kind.__name__} went through {PLANTED_SEEDS} seeds of {STEPS} steps and was not found")
