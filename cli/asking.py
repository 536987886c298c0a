"""Questions to a cluster by a command: names that the cluster does not know are answered with the nearest that it has."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, TypeVar, cast

import click

from ..client.access import Access
from ..client.admin import Admin
from ..client.cluster import Cluster
from ..client.operations import Operations
from ..client.sync import run_with_cluster
from ..client.validation import SYSTEM_TOPIC_PREFIX
from ..conf.settings import Settings, is_broadcasting
from ..conf.sources import environment_name, read_file
from ..remoting.admin_bodies import ConsumerConnections
from ..remoting.bodies import BROADCASTING
from ..remoting.codes import ResponseCode
from ..remoting.errors import BrokerError, RocketcrewError, UnreachableError, UsageError
from ..remoting.names import SYSTEM_TOPICS
from ..remoting.queues import MessageQueue
from .surroundings import surroundings
from .wording import no_such_name, unknown_topic

T = TypeVar("T")

REPLY_TOPIC_SUFFIX = "_REPLY_TOPIC"
"""Behind the cluster's name, of request-reply."""

NO_BROKER: Final = (
    "no broker is registered at this name server. Are its brokers running, and with this one as their namesrvAddr?"
)

OWN_OFFSETS: Final = "broadcasting: each member keeps its own offsets, see `rocketcrew status`"


def ask_cluster(access: Access, work: Callable[[Cluster], Awaitable[T]]) -> T:
    """Open the cluster, await `work(cluster)`, close it; what it returns.

    Raises UnknownNameError, with names that are near, for a topic or group that the name server does not know.
    """

    async def asked(cluster: Cluster) -> T:
        try:
            return await work(cluster)
        except BrokerError as error:
            topic = unknown_topic(error)
            if topic is None:
                raise
            known: list[str] = []
            with contextlib.suppress(RocketcrewError):  # near names are a help, and not the answer
                known = await known_topics(cluster, access)
            raise no_such_name(access.unwrap(topic), known) from error

    return run_with_cluster(access, asked)


async def known_topics(cluster: Cluster, access: Access) -> list[str]:
    """Names of the cluster's topics, retry and dead-letter topics too, without those that the cluster made for itself.

    Raises UnreachableError when no name server answers or no broker is registered there, BrokerError when it does not say (a
    proxy of 5.x)."""
    admin = Admin(cluster)
    own: set[str] = set()
    with contextlib.suppress(BrokerError):  # those are left out by their names then
        own = set(await admin.system_topics())
    known = [access.unwrap(topic) for topic in await admin.topic_list() if topic not in own and not _is_own(topic)]
    if not known and not (await admin.cluster_info()).broker_addr_table:
        raise UnreachableError(cluster.name_servers.where, NO_BROKER)
    return known


def _is_own(topic: str) -> bool:
    """One of the brokers' own, which they do not all call so: of transactions, timers, traces, replies."""
    by_name = topic.lower().startswith(SYSTEM_TOPIC_PREFIX) or topic.endswith(REPLY_TOPIC_SUFFIX)
    return by_name or topic in SYSTEM_TOPICS


async def connections_of(cluster: Cluster, group: str) -> ConsumerConnections | None:
    """The members that run; None where there are none, and of a group that the cluster does not know."""
    try:
        return await Admin(cluster).consumer_connections(group)
    except BrokerError as error:
        if error.code != ResponseCode.TOPIC_NOT_EXIST:
            raise
        return None


async def committed_offsets(operations: Operations, group: str, queues: list[MessageQueue]) -> list[int | None]:
    """What the group has committed in each of the queues, None where nothing."""
    return [await operations.query_consumer_offset(group, mq, set_zero_if_not_found=False) for mq in queues]


def client_ids(online: ConsumerConnections | None) -> list[str]:
    """Those of the members that run, sorted."""
    return [] if online is None else sorted(one.client_id for one in online.connection_set)


def is_set_broadcasting(settings: Settings, group: str) -> bool:
    """Whether the settings say so of this group. What a file or the environment says is not of another group than it names
    itself, as by -g; what is said on the command line is of this command's."""
    if not is_broadcasting(settings) or settings.consumer.group != group:
        return False
    return _group_beside(*settings.origin["consumer.message_model"].split(" ", 1)) in (None, "", group)


def _group_beside(source: str, where: str = "") -> object:
    """The group that a source of settings names itself, None or "" = none; a value of another source may hold instead."""
    context = click.get_current_context(silent=True)
    if source == "environment" and context is not None:
        return surroundings(context).env.get(environment_name("consumer.group"))
    if source == "file":
        with contextlib.suppress(UsageError):  # it was read a moment ago
            return cast("dict[str, object]", read_file(Path(where)).get("consumer", {})).get("group")
    return None


def broadcasts(online: ConsumerConnections | None, *, configured: bool = False) -> bool:
    """Whether each member gets everything and keeps its own offsets: those that brokers have of the group mean nothing. As
    its members say that run, else as the settings do (`configured`)."""
    return configured if online is None else online.message_model == BROADCASTING
