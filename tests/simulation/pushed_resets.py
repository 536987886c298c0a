"""Resets that brokers before 5.2 push to the members, once: what one member has heard holds, whatever it did at that moment.

Looked at where there is one slot: then each queue is that member's. A death of the member takes back what it has not
committed yet, and one of the broker what it has not saved. A stop commits it, or says that it could not.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, NamedTuple

from rocketcrew.broker.core import BrokerCore
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.supervisor.core.actions import Pull
from rocketcrew.supervisor.core.states import QueueState

from .world import Violation

if TYPE_CHECKING:
    from .member import SimMember


class Heard(NamedTuple):
    """Where the queue is to begin; of which assignment pulls may still be under way; and which run of the broker said it."""

    offset: int
    handle: int
    broker: BrokerCore | None


class PushedResets:
    """Those that one member has heard, and whose queues it has not pulled since."""

    def __init__(self, member: SimMember) -> None:
        self._member = member
        self._heard: dict[MessageQueue, Heard] = {}
        self._elsewhere: set[MessageQueue] = set()

    def heard(self, offsets: Mapping[MessageQueue, int]) -> None:
        """The member is told now."""
        for mq, offset in offsets.items():
            self._member.truth.reset((mq.topic, mq.queue_id), offset)
            if mq in self._elsewhere:
                self._member.truth.void_reset((mq.topic, mq.queue_id))
            elif self._member.script.members_max == 1:
                pq = self._member.core.state.by_mq.get(mq)
                handle = pq.handle if pq is not None and pq.state is not QueueState.OPENING else -1
                self._heard[mq] = Heard(offset, handle, self._member.broker.core)

    def pulls(self, action: Pull) -> None:
        """The first pull of the next assignment must begin there."""
        heard = self._heard.get(action.mq)
        if heard is None or heard.handle == action.handle:
            return
        del self._heard[action.mq]
        if self._member.broker.core is not heard.broker:
            return
        if action.offset != heard.offset:
            raise Violation(f"{action.mq} was reset to {heard.offset}, and goes on at {action.offset}")
        self._member.world.note("a pushed reset held")

    def looked_up(self, queues: Collection[MessageQueue], ours: Collection[MessageQueue]) -> None:
        """What a look-up has said. Some may be nobody's for a while: a dead member is in the list, or our old connection."""
        for mq in queues:
            if mq in ours:
                self._elsewhere.discard(mq)
            else:
                self._elsewhere.add(mq)
                if self._heard.pop(mq, None) is not None:  # it is the other's to reset, who may be dead
                    self._member.truth.void_reset((mq.topic, mq.queue_id))

    def given_up(self, mq: MessageQueue) -> None:
        """The member says that it could not commit it: the operator knows."""
        if self._heard.pop(mq, None) is not None:
            self._member.truth.void_reset((mq.topic, mq.queue_id))
            self._member.world.note("a pushed reset was given up aloud")

    def member_stopped(self) -> None:
        """Those of queues that it did not pull since are where the broker has the group now."""
        broker = self._member.broker
        for mq, heard in self._heard.items():
            if broker.core is None or broker.core is not heard.broker:
                continue
            committed = broker.committed((mq.topic, mq.queue_id))
            if committed != heard.offset:
                raise Violation(f"{mq} was reset to {heard.offset}, and a stop left it at {committed} without a word")
            self._member.world.note("a pushed reset was committed by a stop")
        self._heard.clear()

    def member_died(self) -> None:
        """Nobody else has heard of them."""
        for mq in self._heard:
            self._member.truth.void_reset((mq.topic, mq.queue_id))
            self._member.world.note("a pushed reset was ended by a death")
        self._heard.clear()
