"""What is wrong with our place in the lists of members that brokers give: we are not in it, or we are not alone.

**A member that is not listed**: brokers answer its heartbeats with success, and give it nothing.
A broker that may not make groups (autoCreateSubscriptionGroup = false) passes over the heartbeat of a group that it does not
know, from RocketMQ 5 on (ClientManageProcessor.heartBeat), and its list of members is empty. Nothing is refused, so nothing
else would say why no queue comes. For a moment that may be by chance: a broker forgets us with the connection. What is still
so LOOK_AGAIN_S after a heartbeat is said once; heartbeats and looks go on so often until we are listed, so it begins when the
group is made, or until nobody has answered so for FORGOTTEN_S, as of a topic that was deleted.

**Two members with one client id**: both take the shares of both, so each message is consumed twice.
Brokers know members by their connections, and their list of a group names the client id of each
(BR/client/ConsumerManager.java, ConsumerGroupInfo.getAllClientId). An id that stands there twice may be one member, whose
last connection has ended unseen: its broker drops that when it has been silent for 120 s, by a scan each 10 s
(BR/client/ClientHousekeepingService.java), and the share of such a place is ours (allocation.py). What lasts longer is
another process. Nothing is refused: only whoever set the two knows which one is to have the name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from .actions import Heartbeat
from .events import Members
from .state import State

LOOK_AGAIN_S: Final = 5.0
FORGOTTEN_S: Final = 60.0
SAID_AGAIN_S: Final = 600.0
"""One of several brokers may lack the group, and each look asks another."""
SHARED_S: Final = 150.0
"""A silent connection's 120 s, the scan, and a look-up each 20 s."""


class Unlisted:
    """`look_up` asks for a topic's queues and members."""

    def __init__(self, state: State, look_up: Callable[[str, float], None]) -> None:
        self._s = state
        self._look_up = look_up
        self._topics: dict[str, tuple[float, float]] = {}
        """Whose broker did not list us at the last look: when it was so first and last, in a row."""
        self._said_at = float("-inf")
        self._armed = False

    def looked_up(self, answer: Members, now: float) -> None:
        """The answer of one look-up."""
        if not answer.unlisted:
            if answer.members:
                self._topics.pop(answer.topic, None)
            return
        if self._s.stopping or answer.topic not in self._s.topics:
            return
        first, _ = self._topics.get(answer.topic, (now, now))
        self._topics[answer.topic] = first, now
        if answer.topic in self.topics and now - self._said_at >= SAID_AGAIN_S:
            self._said_at = now
            self._say(answer.topic)
        self._arm(now)

    def _say(self, topic: str) -> None:
        group = self._s.config.group
        reason = (
            "a broker answers our heartbeats and does not list us as a member of the group, so no queue is ours: it does not"
            " know the group, and may not make it (autoCreateSubscriptionGroup=false)"
        )
        hint = f"`mqadmin updateSubGroup -g {group} -c CLUSTER`; it is looked for every {LOOK_AGAIN_S:g} s"
        self._s.log("warning", "member_not_listed", topic=topic, group=group, reason=reason, hint=hint)

    @property
    def topics(self) -> list[str]:
        """Of which a broker has left us out for LOOK_AGAIN_S or longer."""
        return sorted(topic for topic, (first, last) in self._topics.items() if last >= first + LOOK_AGAIN_S)

    def _arm(self, now: float) -> None:
        if not self._armed:
            self._armed = True
            self._s.at(now + LOOK_AGAIN_S, self._again)

    def _again(self, now: float) -> None:
        self._armed = False
        self._topics = {
            topic: (first, last)
            for topic, (first, last) in self._topics.items()
            if topic in self._s.topics and now < last + FORGOTTEN_S
        }
        if self._s.stopping or not self._topics:
            return
        self._s.out.append(Heartbeat())
        for topic in self._topics:
            self._look_up(topic, now)
        self._arm(now)  # also where no broker answers this look


class SharedId:
    """Of one member."""

    def __init__(self, state: State) -> None:
        self._s = state
        self._since: dict[str, float] = {}
        """Topics whose broker named us more than once at the last look, and since when, in a row."""
        self._said = False

    def looked_up(self, answer: Members, now: float) -> None:
        """The answer of one look-up."""
        if self._s.stopping or not answer.members:
            return
        client_id = self._s.config.client_id
        if answer.members.count(client_id) > 1:
            self._since.setdefault(answer.topic, now)
        else:
            self._since.pop(answer.topic, None)
        self._since = {topic: since for topic, since in self._since.items() if topic in self._s.topics}
        if not self._said and any(now - since >= SHARED_S for since in self._since.values()):
            self._said = True
            reason = "brokers have two members with this client id: each consumes all that the other does"
            hint = "give each a cluster.instance_name of its own, or leave it at DEFAULT; or a cluster.client_ip of its own"
            self._s.log("warning", "client_id_shared", client_id=client_id, reason=reason, hint=hint)
        elif self._said and not self._since:
            self._said = False
            self._s.log("info", "client_id_shared_no_more", client_id=client_id)
