"""One message looked for by whatever its owner knows of it: an id, a key, or its place in a queue."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from ..client.access import Access
from ..client.asking import ask
from ..client.cluster import Cluster
from ..client.operations import Operations
from ..remoting.arguments import INT64_MAX
from ..remoting.codes import RequestCode, ResponseCode
from ..remoting.errors import BrokerError, ProtocolError, RocketcrewError, UnreachableError, UsageError
from ..remoting.headers import QueryMessage, ViewMessage
from ..remoting.ids import OffsetId, parse_offset_message_id
from ..remoting.names import MASTER_ID, host_and_port
from ..remoting.properties import PROPERTY_KEYS, PROPERTY_UNIQ_KEY, divided_keys
from ..remoting.queues import MessageQueue
from ..remoting.stored import StoredMessage, decode_message, decode_messages
from .asking import known_topics
from .messages import messages

TIMEOUT_MS: Final = 5_000
ANSWERS_MAX: Final = 64
"""A broker gives no more for a key."""
QUESTIONS_MAX: Final = 16
"""At once: every topic is asked at every broker of it."""


@dataclass(frozen=True, slots=True)
class Found:
    """A message, the broker that has it, and by what it was found: message id, unique key, key or offset."""

    broker: str
    message: StoredMessage
    by: str

    @property
    def place(self) -> tuple[int, str, str, int, int]:
        """By which answers are sorted, and told apart."""
        message = self.message
        return message.store_timestamp_ms, self.broker, message.topic, message.queue_id, message.queue_offset


@dataclass(frozen=True, slots=True)
class Clue:
    """What may be meant by a word: all that it can be is tried."""

    text: str
    offset_id: OffsetId | None
    place: tuple[str, str, int, int] | None
    """Topic (empty = those that are asked), broker, queue and offset."""


def read_clue(text: str) -> Clue:
    """`32 or 56 hexadecimal digits` may be an offset id or a unique one, `[topic/]broker/queue/offset` a place; each may be a
    key too. A topic may have no slash in its name."""
    try:
        offset_id = parse_offset_message_id(text)
    except ProtocolError:
        offset_id = None
    parts = text.split("/")
    place = None
    if len(parts) in (3, 4) and all(part.isascii() and part.isdigit() for part in parts[-2:]):
        place = (parts[0] if len(parts) == 4 else "", parts[-3], int(parts[-2]), int(parts[-1]))
    return Clue(text, offset_id, place)


def matches(message: StoredMessage, text: str) -> str:
    """By what `text` names the message: `unique key`, `key` or nothing. Indexes go by a hash: an answer may have neither."""
    properties = message.properties
    if properties.get(PROPERTY_UNIQ_KEY) == text:
        return "unique key"
    return "key" if text in divided_keys(properties.get(PROPERTY_KEYS, "")) else ""


class Search:
    """One search in a cluster. `topics` as users write them; none = all that there are, retry and dead-letter topics too."""

    def __init__(self, cluster: Cluster, access: Access, topics: Iterable[str]) -> None:
        self._cluster = cluster
        self._access = access
        self._topics = [access.wrap(topic) for topic in topics]
        self._turns = asyncio.Semaphore(QUESTIONS_MAX)
        self.silent: list[str] = []
        """Brokers that did not answer, with the reason: what they have was not seen."""
        self.away: dict[str, str] = {}
        """Names that may be an offset message id, and the address in it, at which nobody answers."""

    async def all_of(self, text: str) -> list[Found]:
        """Everything that `text` may name, by the time it was stored."""
        clue = read_clue(text)
        topics = self._topics or [self._access.wrap(topic) for topic in await known_topics(self._cluster, self._access)]
        tries = [self._by_offset_id(text, clue.offset_id)] if clue.offset_id is not None else []
        tries += [self._by_place(clue.place, topics)] if clue.place is not None else []
        tries += [self._by_key(topic, text) for topic in topics]
        found = {one.place: one for part in await asyncio.gather(*tries) for one in part}
        return [found[place] for place in sorted(found)]

    async def _by_offset_id(self, text: str, wanted: OffsetId) -> list[Found]:
        address = host_and_port(wanted.host, wanted.port)
        try:
            answer = await ask(
                self._cluster.remoting, address, RequestCode.VIEW_MESSAGE_BY_ID, ViewMessage(wanted.physical_offset),
                timeout_ms=TIMEOUT_MS,
            )  # fmt: skip
            return [Found(address, decode_message(answer.body), "message id")]
        except UnreachableError:
            self.away[text] = address
            return []
        except RocketcrewError:
            return []  # a unique id may look so: then there is no such broker, or no such record

    async def _by_place(self, place: tuple[str, str, int, int], topics: list[str]) -> list[Found]:
        topic, broker, queue_id, offset = place
        found: list[Found] = []
        for name in [self._access.wrap(topic)] if topic else topics:
            try:
                queues = await self._cluster.queues_to_read(name)
            except BrokerError:
                continue  # made and deleted meanwhile, or no topic of that name
            except UsageError:
                if topic or self._topics:
                    raise
                continue  # one of all topics, and static
            mq = MessageQueue(name, broker, queue_id)
            if mq not in queues or not 0 <= offset < await Operations(self._cluster).max_offset(mq):
                continue
            found += [Found(broker, one, "offset") async for one in messages(self._cluster, mq, offset, offset + 1)]
        return found

    async def _by_key(self, topic: str, text: str) -> list[Found]:
        try:
            route = await self._cluster.route(topic)
        except BrokerError as error:
            if error.code == ResponseCode.TOPIC_NOT_EXIST and len(self._topics) == 0:
                return []
            raise
        masters = [(data.broker_name, data.broker_addrs[MASTER_ID]) for data in route.broker_datas
                   if MASTER_ID in data.broker_addrs]  # fmt: skip
        parts = await asyncio.gather(
            *(
                self._indexed(topic, text, broker, address, unique)
                for broker, address in masters
                for unique in (True, False)
            )
        )
        return [one for part in parts for one in part]

    async def _indexed(self, topic: str, text: str, broker: str, address: str, unique: bool) -> list[Found]:
        header = QueryMessage(topic, text, ANSWERS_MAX, 0, INT64_MAX, unique)
        accept = (int(ResponseCode.SUCCESS), int(ResponseCode.QUERY_NOT_FOUND))
        async with self._turns:
            try:
                answer = await ask(
                    self._cluster.remoting,
                    address,
                    RequestCode.QUERY_MESSAGE,
                    header,
                    timeout_ms=TIMEOUT_MS,
                    accept=accept,
                )
            except RocketcrewError as error:
                self.silent.append(f"{broker} ({error})")
                return []
        listed = decode_messages(answer.body) if answer.code == ResponseCode.SUCCESS else []
        return [Found(broker, one, by) for one in listed if (by := matches(one, text))]
