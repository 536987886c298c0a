"""Which message queues belong to which member of the group: the strategies of client/consumer/rebalance/*.java.

All members of a group must use the same strategy on equally sorted lists, else queues are owned twice or by nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..remoting.errors import UsageError
from ..remoting.queues import MessageQueue

Strategy = Callable[[str, Sequence[MessageQueue], Sequence[str]], list[MessageQueue]]


def average(client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]) -> list[MessageQueue]:
    """Contiguous blocks, the first `n % c` members one queue more (AllocateMessageQueueAveragely.java)."""
    n, c, i = len(queues), len(members), members.index(client_id)
    rest = n % c
    size = 1 if n <= c else (n // c + 1 if i < rest else n // c)
    start = i * size if i < rest else i * size + rest
    return list(queues[start : start + max(0, min(size, n - start))])


def average_by_circle(client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]) -> list[MessageQueue]:
    """Every c-th queue (AllocateMessageQueueAveragelyByCircle.java)."""
    c, i = len(members), members.index(client_id)
    return [queue for k, queue in enumerate(queues) if k % c == i]


STRATEGIES: dict[str, Strategy] = {"AVG": average, "AVG_BY_CIRCLE": average_by_circle}


def strategy_named(name: str) -> Strategy:
    """The strategy of that name, as Java's getName() spells it; raises UsageError for an unknown one."""
    found = STRATEGIES.get(name)
    if found is None:
        raise UsageError(
            f"consumer.allocate_strategy = {name!r} is not known: use one of {', '.join(sorted(STRATEGIES))}"
        )
    return found


def allocate(
    strategy: Strategy, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
) -> list[MessageQueue] | None:
    """The queues of `client_id` after sorting both lists as Java does; None = no change this round.

    An empty list of members or queues means that a look-up failed, and changes nothing (RebalanceImpl.java). A member
    that does not find itself in the list owns nothing (its heartbeat has not arrived yet).
    """
    if not queues or not members:
        return None
    if client_id not in members:
        return []
    return strategy(client_id, sorted(queues), sorted(members))
