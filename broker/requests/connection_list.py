"""GET_CONSUMER_CONNECTION_LIST 203, GET_PRODUCER_CONNECTION_LIST 204 and GET_ALL_PRODUCER_INFO 328
(BR/processor/AdminBrokerProcessor.java, BR/client/ProducerManager.getProducerTable). Members are written in rounds."""

from __future__ import annotations

from collections.abc import Generator, Iterable

from ...remoting.admin_bodies import ClientConnection, ConsumerConnections, ProducerInfo
from ...remoting.admin_headers import ConsumerConnectionRequest, ProducerConnectionRequest
from ...remoting.body import Body
from ...remoting.codes import Language, RequestCode, ResponseCode
from ...remoting.command import Command
from ...remoting.fastjson import dumps
from ..client_table import ClientChannel
from ..long_answers import Steps, refuse_too_large
from ..refusal import Refused
from ..state import BrokerState, Call

CODES = (
    RequestCode.GET_CONSUMER_CONNECTION_LIST,
    RequestCode.GET_PRODUCER_CONNECTION_LIST,
    RequestCode.GET_ALL_PRODUCER_INFO,
)


def handle(state: BrokerState, call: Call) -> Command | None:
    steps = {
        RequestCode.GET_CONSUMER_CONNECTION_LIST: _consumers,
        RequestCode.GET_PRODUCER_CONNECTION_LIST: _producers,
        RequestCode.GET_ALL_PRODUCER_INFO: _all_producers,
    }[RequestCode(call.command.code)]
    return state.long_answers.begin(call.channel, call.command, steps(state, call.command))


def _consumers(state: BrokerState, command: Command) -> Steps:
    name = ConsumerConnectionRequest.from_fields(command.fields).consumer_group
    group = state.clients.consumer_group(name)
    if group is None:
        raise Refused(ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{name}] not online")
    members = yield from _texts(map(connection, list(group.channels.values())))
    others = ConsumerConnections(
        (), dict(group.subscriptions), group.consume_type, group.message_model, group.consume_from_where
    ).encode()
    begin = b'{"connectionSet":['  # the first name of the alphabet
    return command.response(ResponseCode.SUCCESS, body=begin + members + others[len(begin) :])


def _producers(state: BrokerState, command: Command) -> Steps:
    name = ProducerConnectionRequest.from_fields(command.fields).producer_group
    members = state.clients.producers(name)
    if not members:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"the producer group[{name}] not exist")
    texts = yield from _texts(map(connection, members))
    return command.response(ResponseCode.SUCCESS, body=b'{"connectionSet":[%s]}' % texts)


def _all_producers(state: BrokerState, command: Command) -> Steps:
    groups: list[bytes] = []
    length_bytes = 0
    for name in state.clients.producer_groups():
        yield
        members = yield from _texts(map(producer, state.clients.producers(name)))
        if members:  # else they have left since the first round
            groups.append(b"%s:[%s]" % (dumps(name), members))
            length_bytes += len(groups[-1])
            refuse_too_large(length_bytes, "ask for the producers of one group")
    return command.response(ResponseCode.SUCCESS, body=b'{"data":{%s}}' % b",".join(groups))


def _texts(bodies: Iterable[Body]) -> Generator[None, None, bytes]:
    """The elements of an array, each made at its own step."""
    texts: list[bytes] = []
    length_bytes = 0
    for body in bodies:
        yield
        texts.append(body.encode())
        length_bytes += len(texts[-1])
        refuse_too_large(length_bytes, "the group has too many members")
    return b",".join(texts)


def connection(member: ClientChannel) -> ClientConnection:
    return ClientConnection(member.client_id, member.address, language(member), member.version)


def producer(member: ClientChannel) -> ProducerInfo:
    return ProducerInfo(member.client_id, f"/{member.address}", language(member), member.version, member.updated_ms)


def language(member: ClientChannel) -> str:
    known = member.language in Language.__members__.values()
    return Language(member.language).name if known else Language.OTHER.name
