"""The table of request handlers: RequestCode -> function. A handler file names its codes; adding one is a line here."""

from __future__ import annotations

from collections.abc import Callable

from ...remoting.codes import RequestCode
from ...remoting.command import Command
from ..state import BrokerState, Call
from . import (
    assignment,
    broker_config,
    broker_info,
    client_config,
    connection_list,
    consume_stats,
    consumer_list,
    consumer_offset,
    consumer_status,
    end_transaction,
    forward,
    group_admin,
    heartbeat,
    maintenance,
    pop,
    pop_ack,
    pull,
    query_message,
    queue_lock,
    queue_offset,
    recall,
    reply,
    reset_offset,
    send,
    send_back,
    subscription_query,
    topic_admin,
    topic_stats,
    unregister,
    view_message,
    who_consumes,
)

Handler = Callable[[BrokerState, Call], Command | None]
"""Serves one request; None = no answer now (held, passed on). Raises Refused, ProtocolError, StorageError."""


def table_of(*entries: tuple[tuple[RequestCode, ...], Handler]) -> dict[int, Handler]:
    table: dict[int, Handler] = {}
    for codes, handler in entries:
        for code in codes:
            assert code not in table, f"two handlers for {code!r}"
            table[code] = handler
    return table


HANDLERS: dict[int, Handler] = table_of(
    (assignment.CODES, assignment.handle),
    (broker_config.CODES, broker_config.handle),
    (broker_info.CODES, broker_info.handle),
    (client_config.CODES, client_config.handle),
    (connection_list.CODES, connection_list.handle),
    (consume_stats.CODES, consume_stats.handle),
    (consumer_list.CODES, consumer_list.handle),
    (consumer_offset.CODES, consumer_offset.handle),
    (consumer_status.CODES, consumer_status.handle),
    (end_transaction.CODES, end_transaction.handle),
    (forward.CODES, forward.handle),
    (group_admin.CODES, group_admin.handle),
    (heartbeat.CODES, heartbeat.handle),
    (maintenance.CODES, maintenance.handle),
    (pop.CODES, pop.handle),
    (pop_ack.CODES, pop_ack.handle),
    (pull.CODES, pull.handle),
    (query_message.CODES, query_message.handle),
    (recall.CODES, recall.handle),
    (reply.CODES, reply.handle),
    (queue_lock.CODES, queue_lock.handle),
    (queue_offset.CODES, queue_offset.handle),
    (reset_offset.CODES, reset_offset.handle),
    (send.CODES, send.handle),
    (send_back.CODES, send_back.handle),
    (subscription_query.CODES, subscription_query.handle),
    (topic_admin.CODES, topic_admin.handle),
    (topic_stats.CODES, topic_stats.handle),
    (unregister.CODES, unregister.handle),
    (view_message.CODES, view_message.handle),
    (who_consumes.CODES, who_consumes.handle),
)
