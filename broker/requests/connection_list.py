"""GET_CONSUMER_CONNECTION_LIST 203 and GET_PRODUCER_CONNECTION_LIST 204 (BR/processor/AdminBrokerProcessor.java)."""

from __future__ import annotations

from ...remoting.admin_bodies import ClientConnection, ConsumerConnections, ProducerConnections
from ...remoting.admin_headers import ConsumerConnectionRequest, ProducerConnectionRequest
from ...remoting.codes import Language, RequestCode, ResponseCode
from ...remoting.command import Command
from ..client_table import ClientChannel
from ..refusal import Refused
from ..state import BrokerState, Call

CODES = (RequestCode.GET_CONSUMER_CONNECTION_LIST, RequestCode.GET_PRODUCER_CONNECTION_LIST)


def handle(state: BrokerState, call: Call) -> Command:
    command = call.command
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
    known = member.language in Language.__members__.values()
    language = Language(member.language).name if known else Language.OTHER.name
    return ClientConnection(member.client_id, member.address, language, member.version)
