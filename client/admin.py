"""What tools ask of a cluster: topics, groups, statistics, single messages.

Sources: tools/admin/DefaultMQAdminExtImpl.java and client/impl/MQClientAPIImpl.java. Raises as operations.py says. Where
several brokers have a part of the answer all of them are asked, and the first that fails fails the whole: half a table
of offsets would look like a whole one. Only who asks for it learns instead which brokers did not answer. Statistics of a
broker without a master come from a slave, as Java's tools take them: the first that answers, by their ids.

RocketMQ 5's proxy passes on what clients need and knows nothing of statistics (RemotingProtocolServer.java): there each queue
is asked for its offsets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import TypeVar

from ..remoting.admin_bodies import (
    ClusterInfo,
    ConsumerConnections,
    ConsumeStats,
    OffsetWrapper,
    SubscriptionGroupConfig,
    TopicConfig,
    TopicList,
    TopicOffset,
    TopicStats,
)
from ..remoting.admin_headers import (
    ConsumerConnectionRequest,
    ConsumeStatsRequest,
    CreateTopic,
    DeleteGroup,
    TopicInNameServer,
    TopicName,
)
from ..remoting.bodies import BrokerData, ResetOffsetBody
from ..remoting.codes import RequestCode, ResponseCode
from ..remoting.command import Command
from ..remoting.errors import BrokerError, UnreachableError, UsageError
from ..remoting.fields import Header
from ..remoting.headers import ResetOffset, ViewMessage
from ..remoting.ids import parse_offset_message_id
from ..remoting.names import DEFAULT_TOPIC, MASTER_ID, RETRY_PREFIX, host_and_port
from ..remoting.queues import MessageQueue
from ..remoting.stored import StoredMessage, decode_message
from .asking import ask, refusal
from .cluster import Cluster
from .operations import Operations
from .validation import check_group, check_topic_to_create

ADMIN_TIMEOUT_MS = 5_000
QUESTIONS_MAX = 32
"""At once, where each queue is asked for by itself."""

T = TypeVar("T")


class Admin:
    """See the module's text."""

    def __init__(self, cluster: Cluster, *, timeout_ms: int = ADMIN_TIMEOUT_MS) -> None:
        self._cluster = cluster
        self._remoting = cluster.remoting
        self._timeout_ms = timeout_ms
        self._operations = Operations(cluster)

    # The cluster.

    async def cluster_info(self) -> ClusterInfo:
        """All brokers by name and by cluster, as the name server knows them."""
        code = RequestCode.GET_BROKER_CLUSTER_INFO
        answer = await self._cluster.name_servers.request(code, {})
        if answer.code != ResponseCode.SUCCESS:
            raise refusal(answer, code, self._cluster.name_servers.where)
        return ClusterInfo.decode(answer.body)

    async def topic_list(self) -> list[str]:
        """All topics that the name server knows, system and retry topics too, sorted."""
        return await self._topics(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)

    async def system_topics(self) -> list[str]:
        """The topics that the name server calls the cluster's own (the brokers' and clusters' names among them), sorted."""
        return await self._topics(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)

    async def _topics(self, code: RequestCode) -> list[str]:
        answer = await self._cluster.name_servers.request(code, {})
        if answer.code != ResponseCode.SUCCESS:
            raise refusal(answer, code, self._cluster.name_servers.where)
        return sorted(TopicList.decode(answer.body).topic_list)

    async def master_addresses(self) -> list[str]:
        """The masters of all brokers; UnreachableError when there is none."""
        info = await self.cluster_info()
        found = {
            data.broker_addrs[MASTER_ID] for data in info.broker_addr_table.values() if MASTER_ID in data.broker_addrs
        }
        if not found:
            raise UnreachableError(self._cluster.name_servers.where, "this name server knows no broker")
        return sorted(found)

    # Topics and groups.

    async def create_topic(self, address: str, config: TopicConfig) -> None:
        """Create or change a topic on one broker. UsageError for a name that Java refuses (Validators.java)."""
        check_topic_to_create(config.topic_name)
        attributes = ",".join(f"+{name}={value}" for name, value in config.attributes.items())
        header = CreateTopic(
            config.topic_name,
            DEFAULT_TOPIC,
            config.read_queue_nums,
            config.write_queue_nums,
            config.perm,
            config.topic_filter_type,
            config.order,
            config.topic_sys_flag,
            attributes or None,
        )
        code = RequestCode.UPDATE_AND_CREATE_TOPIC
        await ask(self._remoting, address, code, header, timeout_ms=self._timeout_ms)

    async def create_topic_everywhere(self, config: TopicConfig) -> list[str]:
        """Create or change a topic on every master; their addresses."""
        addresses = await self.master_addresses()
        for address in addresses:
            await self.create_topic(address, config)
        return addresses

    async def delete_topic(self, address: str, topic: str) -> None:
        """Delete a topic on one broker."""
        code = RequestCode.DELETE_TOPIC_IN_BROKER
        await ask(self._remoting, address, code, TopicName(topic), timeout_ms=self._timeout_ms)

    async def delete_route(self, topic: str) -> None:
        """Let the name server forget a topic; brokers that still have it announce it again."""
        code = RequestCode.DELETE_TOPIC_IN_NAMESRV
        fields = TopicInNameServer(topic).to_fields()
        answer = await self._cluster.name_servers.request(code, fields)
        if answer.code != ResponseCode.SUCCESS:
            raise refusal(answer, code, self._cluster.name_servers.where)

    async def delete_group(self, address: str, group: str) -> None:
        """Delete a consumer group's settings and its offsets on one broker."""
        code, header = RequestCode.DELETE_SUBSCRIPTIONGROUP, DeleteGroup(group, clean_offset=True, remove_offset=True)
        await ask(self._remoting, address, code, header, timeout_ms=self._timeout_ms)

    async def create_group(self, address: str, config: SubscriptionGroupConfig) -> None:
        """Create or change a consumer group's settings on one broker."""
        check_group(config.group_name)
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        await ask(self._remoting, address, code, body=config.encode(), timeout_ms=self._timeout_ms)

    async def topic_configs(self, topic: str) -> list[TopicConfig]:
        """The topic's settings at each of its masters. BrokerError 3 of brokers before 5.0, and of a proxy."""
        code = RequestCode.GET_TOPIC_CONFIG
        answers = [
            await ask(self._remoting, address, code, TopicName(topic), timeout_ms=self._timeout_ms)
            for address in await self._masters_of(topic)
        ]
        return [TopicConfig.decode(answer.body) for answer in answers]

    # Statistics.

    async def topic_stats(self, topic: str, silent: dict[str, UnreachableError] | None = None) -> TopicStats:
        """Offsets of every queue of the topic, from all its brokers. BrokerError 17 when it does not exist.

        Brokers that do not answer are put into `silent`, by address, where that is given, unless none answers.
        """
        try:
            return await self._topic_stats(topic, silent)
        except BrokerError as error:
            if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise

        async def one(mq: MessageQueue) -> TopicOffset:
            return TopicOffset(await self._operations.min_offset(mq), await self._operations.max_offset(mq))

        return TopicStats(await self._of_each_queue(topic, one))

    async def topic_stats_at(self, address: str, topic: str) -> TopicStats:
        """Offsets of the topic's queues on one broker: the numbers that each queue's own questions give
        (AdminBrokerProcessor.java, getTopicStatsInfo). BrokerError 17 where it does not have it, 3 of a proxy."""
        code = RequestCode.GET_TOPIC_STATS_INFO
        answer = await ask(self._remoting, address, code, TopicName(topic), timeout_ms=self._timeout_ms)
        return TopicStats.decode(answer.body)

    async def _topic_stats(self, topic: str, silent: dict[str, UnreachableError] | None) -> TopicStats:
        table: dict[MessageQueue, TopicOffset] = {}
        tps = 0.0
        brokers, unheard = await self._addresses_of(topic), dict[str, UnreachableError]()
        for addresses in brokers:
            try:
                answer = await self._ask_one(addresses, RequestCode.GET_TOPIC_STATS_INFO, TopicName(topic))
            except UnreachableError as error:
                unheard[addresses[0]] = error
                if silent is None or len(unheard) == len(brokers):
                    raise
                continue
            part = TopicStats.decode(answer.body)
            table.update(part.offset_table)
            tps += part.topic_put_tps
        if silent is not None:
            silent.update(unheard)
        return TopicStats(table, tps)

    async def consume_stats(
        self, group: str, topic: str | None = None, likely_topics: Iterable[str] = ()
    ) -> ConsumeStats:
        """How far the group is: per queue the broker's end and the committed offset, its retry topic's too when `topic`
        is None.

        Asked of the brokers of the group's retry topic (they know the group), else of the topic's. A proxy does not know
        which topics a group consumes: those that its members subscribe now, and `likely_topics`. Raises UsageError for none.
        A queue without a committed offset has -1 there.
        """
        try:
            return await self._consume_stats(group, topic)
        except BrokerError as error:
            if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise

        async def one(mq: MessageQueue) -> OffsetWrapper:
            committed = await self._operations.query_consumer_offset(group, mq, set_zero_if_not_found=False)
            return OffsetWrapper(await self._operations.max_offset(mq), -1 if committed is None else committed)

        table: dict[MessageQueue, OffsetWrapper] = {}
        for each in [topic] if topic is not None else await self._topics_of(group, likely_topics):
            try:
                table |= await self._of_each_queue(each, one)
            except BrokerError as error:
                if error.code != ResponseCode.TOPIC_NOT_EXIST or topic is not None:
                    raise
        return ConsumeStats(table)

    async def _topics_of(self, group: str, likely_topics: Iterable[str]) -> list[str]:
        members = await self.consumer_connections(group)
        retry_topic = f"{RETRY_PREFIX}{group}"
        found = {*likely_topics, *(members.subscription_table if members is not None else ())} - {retry_topic}
        if not found:
            raise UsageError(
                f"group {group} has no member now, and RocketMQ's proxy cannot say which topics it consumes: name them"
                " (-t TOPIC, or consumer.topics)"
            )
        return [*sorted(found), retry_topic]

    async def _of_each_queue(
        self, topic: str, ask_one: Callable[[MessageQueue], Awaitable[T]]
    ) -> dict[MessageQueue, T]:
        turns = asyncio.Semaphore(QUESTIONS_MAX)

        async def one(mq: MessageQueue) -> T:
            async with turns:
                return await ask_one(mq)

        queues = await self._cluster.queues_to_read(topic, refresh=True)
        return dict(zip(queues, await asyncio.gather(*map(one, queues)), strict=True))

    async def _consume_stats(self, group: str, topic: str | None) -> ConsumeStats:
        table: dict[MessageQueue, OffsetWrapper] = {}
        tps = 0.0
        for addresses in await self._brokers_of(group, topic):
            answer = await self._ask_one(addresses, RequestCode.GET_CONSUME_STATS, ConsumeStatsRequest(group, topic))
            part = ConsumeStats.decode(answer.body)
            table.update(part.offset_table)
            tps += part.consume_tps
        return ConsumeStats(table, tps)

    async def consumer_connections(self, group: str, topic: str | None = None) -> ConsumerConnections | None:
        """Who is in the group and what it subscribes; None when it is offline everywhere (code 206)."""
        offline = int(ResponseCode.CONSUMER_NOT_ONLINE)
        for addresses in await self._brokers_of(group, topic):
            code, header = RequestCode.GET_CONSUMER_CONNECTION_LIST, ConsumerConnectionRequest(group)
            answer = await self._ask_one(addresses, code, header, accept=(0, offline))
            if answer.code != offline:
                return ConsumerConnections.decode(answer.body)
        return None

    async def reset_offsets(self, group: str, topic: str, timestamp_ms: int) -> dict[MessageQueue, int]:
        """Let the brokers move a group whose members run: to the first message stored at that time, 0 for the oldest, -1
        for the end. Returns the offset of every queue that the brokers have set.

        Raises BrokerError 206 where no member is connected to a broker of the topic; UnreachableError where a broker has no
        master, before any is asked.
        """
        table: dict[MessageQueue, int] = {}
        for address in await self._masters_of(topic):
            code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
            header = ResetOffset(topic, group, timestamp_ms, is_force=True)
            answer = await ask(self._remoting, address, code, header, timeout_ms=self._timeout_ms)
            table.update(ResetOffsetBody.decode(answer.body).offset_table)
        return table

    # Messages.

    async def view_message(self, message_id: str, topic: str | None = None) -> StoredMessage:
        """The record of an offset message id, asked of the broker that the id names.

        Raises ProtocolError when it is no offset id (a unique id is none, though it may look like one), BrokerError 1
        when the broker has no such record.
        """
        host, port, physical_offset = parse_offset_message_id(message_id)
        return await self.view_record(host_and_port(host, port), physical_offset, topic)

    async def view_record(self, address: str, physical_offset: int, topic: str | None = None) -> StoredMessage:
        """The record at an offset of a broker's commit log."""
        header = ViewMessage(physical_offset, topic)
        code = RequestCode.VIEW_MESSAGE_BY_ID
        answer = await ask(self._remoting, address, code, header, timeout_ms=self._timeout_ms)
        return decode_message(answer.body)

    async def _ask_one(
        self, addresses: Sequence[str], code: RequestCode, header: Header, accept: Collection[int] = (0,)
    ) -> Command:
        """The answer of the first of one broker's addresses that gives one. Raises as `ask`, where none does with what was
        wrong with the first."""
        unheard: list[UnreachableError] = []
        for address in addresses:
            try:
                return await ask(self._remoting, address, code, header, timeout_ms=self._timeout_ms, accept=accept)
            except UnreachableError as error:
                unheard.append(error)
        raise unheard[0]

    async def _addresses_of(self, topic: str) -> list[tuple[str, ...]]:
        """Of each of the topic's brokers: its master's, or those of its slaves by their ids where it has none."""
        found: set[tuple[str, ...]] = set()
        for data in await self._broker_datas(topic):
            by_id = tuple(address for _, address in sorted(data.broker_addrs.items()))
            found.add(by_id[:1] if MASTER_ID in data.broker_addrs else by_id)
        return sorted(found)

    async def _masters_of(self, topic: str) -> list[str]:
        """Raises UnreachableError where one of the topic's brokers has none."""
        masters: set[str] = set()
        for data in await self._broker_datas(topic):
            if MASTER_ID not in data.broker_addrs:
                raise UnreachableError(data.broker_name, f"this broker of topic {topic} has no master now")
            masters.add(data.broker_addrs[MASTER_ID])
        return sorted(masters)

    async def _broker_datas(self, topic: str) -> Sequence[BrokerData]:
        found = (await self._cluster.route(topic)).broker_datas
        if not found:
            raise UnreachableError(topic, "the route of this topic names no broker")
        return found

    async def _brokers_of(self, group: str, topic: str | None) -> list[tuple[str, ...]]:
        topics = [f"{RETRY_PREFIX}{group}", *([topic] if topic is not None else [])]
        return await _first_known(topics, self._addresses_of)


async def _first_known(topics: list[str], find: Callable[[str], Awaitable[T]]) -> T:
    """What `find` gives for the first topic that exists; BrokerError 17 of the last when none does."""
    for topic in topics[:-1]:
        try:
            return await find(topic)
        except BrokerError as error:
            if error.code != ResponseCode.TOPIC_NOT_EXIST:
                raise
    return await find(topics[-1])
