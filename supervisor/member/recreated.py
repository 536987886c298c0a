"""Queues that are not what they were: topics deleted and made again, and brokers that lost the end of a queue.

Offsets of such a queue begin anew (or go back), and ours would pass messages that nobody has seen. Java does pass them: a
5.x broker corrects an offset beyond its end to that end, whatever came in since the queue was made again
(DefaultMessageStore.getMessage). Two signs are looked at:

- The name server has no route any more and the queue's broker says that it has no such topic: the topic was deleted, also
  if it is made again a moment later. Our queues begin at 0. (A route is also missing while a broker is down; then the broker
  does not answer, and nothing is concluded.)
- The broker corrects a pull's offset backwards, to below an end that is below it (else an operator has reset the group, which
  brokers tell in the same way since 5.2): the queue goes on at the first message that was stored since our last
  body, or before the first since it was opened (less CLOCKS_APART_MS, as that is this host's clock and not the broker's). Of
  a queue made again those are all; of one that lost its end, the new ones and at most one body, or those minutes, repeated.
  Where the table has the lost ones, new ones in one segment with repeated ones may be set aside (spark/epochs.py).

A topic that was deleted and refilled beyond our offset between two looks at the routes is not noticed, as in Java; nor is one
whose member was down meanwhile, where its broker kept the group's offsets (4.9 does at a deletion, 5.x forgets them). Its
first messages are passed, unless its broker was out of reach meanwhile (tails.py). `rocketcrew reconcile` names them, by the
store times of what the table has (spark/reconciling.py).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final

from ...client.asking import ask
from ...client.clock import wall_ms
from ...client.cluster import Cluster
from ...client.operations import Operations
from ...remoting.codes import RequestCode, ResponseCode
from ...remoting.errors import BrokerError, RocketcrewError
from ...remoting.queues import MessageQueue
from ...remoting.stored import RECORD_MIN_BYTES, store_timestamp_of
from ..core.process_queue import ProcessQueue
from ..core.states import QueueState

ASK_TIMEOUT_MS: Final = 3_000
CLOCKS_APART_MS: Final = 600_000
"""By how much this host's clock may be ahead of a broker's, at most."""


async def deleted_queues(cluster: Cluster, queues: Mapping[MessageQueue, ProcessQueue]) -> list[MessageQueue]:
    """Those of our queues whose topic was deleted since we read from them."""
    without_route = cluster.without_route
    suspects = [
        mq
        for mq, pq in queues.items()
        if mq.topic in without_route and pq.state is QueueState.ASSIGNED and pq.next_offset > 0
    ]
    gone: dict[tuple[str, str], bool] = {}
    for mq in suspects:
        key = (mq.topic, mq.broker_name)
        if key not in gone:
            gone[key] = await _is_deleted(cluster, mq)
    return [mq for mq in suspects if gone[mq.topic, mq.broker_name]]


async def _is_deleted(cluster: Cluster, mq: MessageQueue) -> bool:
    from ...remoting.admin_headers import TopicName  # rarely asked, and 15 ms of every start

    address = cluster.broker_address(mq.broker_name)
    if address is None:
        return False
    code = RequestCode.GET_TOPIC_STATS_INFO
    try:
        await ask(cluster.remoting, address, code, TopicName(mq.topic), timeout_ms=ASK_TIMEOUT_MS)
    except BrokerError as error:
        return error.code == ResponseCode.TOPIC_NOT_EXIST
    except RocketcrewError:
        pass
    return False


class LastBodies:
    """When the newest body of each queue was stored, by its first record; for offsets that are corrected backwards."""

    def __init__(self, operations: Operations, wall_ms: Callable[[], int] = wall_ms) -> None:
        """`wall_ms` is another clock in tests: milliseconds since 1970."""
        self._operations = operations
        self._wall_ms = wall_ms
        self._stored_ms: dict[MessageQueue, int] = {}

    def begin(self, mq: MessageQueue) -> None:
        """The queue is opened: all that is below its offset was stored before."""
        if mq not in self._stored_ms:
            self._stored_ms[mq] = self._wall_ms() - CLOCKS_APART_MS

    def passed(self, mq: MessageQueue) -> None:
        """The queue goes on behind messages that are passed over (an operator's reset, or deleted ones): all of them were
        stored before."""
        self._stored_ms[mq] = max(self._stored_ms.get(mq, 0), self._wall_ms() - CLOCKS_APART_MS)

    def note(self, mq: MessageQueue, body: bytes | bytearray | memoryview) -> None:
        """A body of this queue has come; one that is too short or damaged is somebody else's affair."""
        if len(body) >= RECORD_MIN_BYTES:
            self._stored_ms[mq] = store_timestamp_of(body, 0)

    def keep(self, ours: Collection[MessageQueue]) -> None:
        """Other queues are not ours any more: forget them."""
        for mq in self._stored_ms.keys() - ours:
            del self._stored_ms[mq]

    async def corrected(self, mq: MessageQueue, asked: int, answered: int, end: int) -> int:
        """Where to go on, after a broker answered the offset `asked` with another one; its queue ends at `end` (-1: it does
        not say). Raises what a look-up raises; then nobody knows, and the broker is to be asked again."""
        if asked <= end:
            self.passed(mq)
            return answered
        stored_ms = self._stored_ms.get(mq)
        if answered >= asked or stored_ms is None:
            return answered
        return min(answered, await self._operations.search_offset(mq, stored_ms))
