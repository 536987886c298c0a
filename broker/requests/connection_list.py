"""GET_CONSUMER_CONNECTION_LIST 203, GET_PRODUCER_CONNECTION_LIST 204 and GET_ALL_PRODUCER_INFO 328
(BR/processor/AdminBrokerProcessor.java, BR/client/ProducerManager.getProducerTable)."""

from __future__ import annotations

from ...remoting.admin_bodies import (
    ClientConnection,
    ConsumerConnections,
    ProducerConnections,
    ProducerInfo,
    ProducerTable,
)
from ...remoting.admin_headers import ConsumerConnectionRequest, ProducerConnectionRequest
from ...remoting.codes import Language, RequestCode, ResponseCode
from ...remoting.command import Command
from ..client_table import ClientChannel
from ..refusal import Refused
from ..state import BrokerState, Call

CODES = (
    RequestCode.GET_CONSUMER_CONNECTION_LIST,
    RequestCode.GET_PRODUCER_CONNECTION_LIST,
    RequestCode.GET_ALL_PRODUCER_INFO,
)


def handle(state: BrokerState, call: Call) -> Command:
    command = call.command
    if command.code == RequestCode.GET_ALL_PRODUCER_INFO:
        clients = state.clients
        table = {name: tuple(map(producer, clients.producers(name))) for name in clients.producer_groups()}
        return command.response(ResponseCode.SUCCESS, body=ProducerTable(table).encode())
    if command.code == RequestCode.GET_PRODUCER_CONNECTION_LIST:
        name = ProducerConnectionRequest.from_fields(command.fields).producer_group
        members = state.clients.producers(name)
        if not members:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"the producer group[{name}] not exist")
        body = ProducerConnections(tuple(map(connection, members))).encode()
        return command.response(ResponseCode.SUCCESS, body=body)
    name = ConsumerConnectionRequest.from_fields(command.fields).consumer_group
    group = state.clients.consumer_group(name)
    if group is None:
        raise Refused(ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{name}] not online")
    body = ConsumerConnections(
        tuple(map(connection, group.channels.values())),
        dict(group.subscriptions),
        group.consume_type,
        group.message_model,
        group.consume_from_where,
    ).encode()
    return command.response(ResponseCode.SUCCESS, body=body)


def connection(member: ClientChannel) -> ClientConnection:
    return ClientConnection(member.client_id, member.address, language(member), member.version)


def producer(member: ClientChannel) -> ProducerInfo:
    return ProducerInfo(member.client_id, f"/{member.address}", language(member), member.version, member.updated_ms)


def language(member: ClientChannel) -> str:
    known = member.language in Language.__members__.values()
    return Language(member.language).name if known else Language.OTHER.name
