"""SEND_MESSAGE 10, SEND_MESSAGE_V2 310, SEND_BATCH_MESSAGE 320 (BR/processor/SendMessageProcessor.java).

A topic that does not exist is made on first use when the request names a default topic that lends its settings; a
`%RETRY%` topic is made with one queue. A message for `%RETRY%group` is a retry that the client counts itself: past the
limit, or when the group consumes in order (it holds queue locks), it goes to `%DLQ%group` instead.

A batch becomes one record per message, all in one queue; the header's properties (WAIT and the batch's own UNIQ_KEY)
are not mixed into the messages' own, as 5.5.0 does not either. It has at most as many messages as our producers put into
one, and none without a body: each of them takes a while, and nobody else is served meanwhile.
"""

from __future__ import annotations

from ...client.outgoing import BATCH_MAX
from ...remoting.admin_bodies import TopicConfig
from ...remoting.batch import decode_batch
from ...remoting.codes import (
    PERM_INHERIT,
    SYSFLAG_INNER_BATCH,
    SYSFLAG_MULTI_TAGS,
    SYSFLAG_NEED_UNWRAP,
    SYSFLAG_TRANSACTION_MASK,
    RequestCode,
    ResponseCode,
)
from ...remoting.command import Command
from ...remoting.errors import UsageError
from ...remoting.headers import SendRequest, SendRequestV2, SendResponse
from ...remoting.ids import offset_message_id
from ...remoting.names import RETRY_PREFIX
from ...remoting.properties import (
    PROPERTIES_MAX_BYTES,
    PROPERTY_CLUSTER,
    PROPERTY_DELAY,
    PROPERTY_MSG_REGION,
    PROPERTY_POP_CK,
    PROPERTY_TRACE_ON,
    PROPERTY_UNIQ_KEY,
    decode_properties,
    encode_properties,
)
from ...remoting.stored import StoredMessage
from ..delay import delay_level
from ..refusal import FAQ, Refused
from ..state import BrokerState, Call
from ..timers import asks_for_timer
from ..topic_table import CLOSED_TOPICS, illegal_topic, writable
from ..transactions import is_half
from .recall import handle_of

REGION = "DefaultRegion"
VERSION_3_4_9 = 121  # from here on the header's maxReconsumeTimes counts
CODES = (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)


def handle(state: BrokerState, call: Call) -> Command:
    command = call.command
    kind = SendRequest if command.code == RequestCode.SEND_MESSAGE else SendRequestV2
    request = kind.from_fields(command.fields)
    topic, queue_id = place_to_send(state, call, request)
    if request.sys_flag & (SYSFLAG_NEED_UNWRAP | SYSFLAG_INNER_BATCH):
        raise Refused(
            ResponseCode.MESSAGE_ILLEGAL,
            f"sysFlag {request.sys_flag:#x} says that the body is an inner batch; only a broker with batch queues makes one",
        )
    try:
        if command.code == RequestCode.SEND_BATCH_MESSAGE or request.batch:
            return send_batch(state, call, request, topic, queue_id)
        return send_one(state, call, request, topic, queue_id)
    except UsageError as error:  # no record can hold it, as REAL_TOPIC of a delayed one comes on top
        raise Refused(ResponseCode.MESSAGE_ILLEGAL, f"the message is illegal: {error}") from None


def place_to_send(state: BrokerState, call: Call, request: SendRequest) -> tuple[TopicConfig, int]:
    """Topic and queue. The topic is made on first use, if it has the queue that is asked for: else whoever is refused that
    would leave topics without messages. Raises Refused when the topic may not be sent to or cannot be made, or has no such
    queue."""
    name = request.topic
    if name in CLOSED_TOPICS:
        raise Refused(ResponseCode.NO_PERMISSION, f"Sending message to topic[{name}] is forbidden.")
    topic = state.topics.get(name)
    if topic is None:
        wrong = illegal_topic(name)
        if wrong is not None:
            raise Refused(ResponseCode.INVALID_PARAMETER, wrong)
        topic = on_first_use(state, request)
    if topic is None:
        raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist, apply first please!{FAQ}")
    if not writable(topic):
        raise Refused(ResponseCode.NO_PERMISSION, f"the topic[{name}] sending message is forbidden")
    queue_id = queue_to_send(state, call, request, topic)
    return state.make_topic(call.now_ms, topic, ResponseCode.TOPIC_NOT_EXIST), queue_id


def on_first_use(state: BrokerState, request: SendRequest) -> TopicConfig | None:
    """TopicConfigManager.createTopicInSendMessageMethod: as many queues as wished, at most as the default topic has."""
    default = state.topics.get(request.default_topic)
    if default is not None and default.perm & PERM_INHERIT and request.default_topic_queue_nums > 0:
        queues = min(request.default_topic_queue_nums, default.write_queue_nums, state.config.default_queues_max)
        perm = default.perm & ~PERM_INHERIT
        return TopicConfig(request.topic, queues, queues, perm, default.topic_filter_type)
    return TopicConfig(request.topic, 1, 1) if request.topic.startswith(RETRY_PREFIX) else None


def queue_to_send(state: BrokerState, call: Call, request: SendRequest, topic: TopicConfig) -> int:
    """The queue asked for, a random one for -1. Raises Refused when there is no such queue."""
    if request.queue_id >= max(topic.read_queue_nums, topic.write_queue_nums):
        raise Refused(
            ResponseCode.INVALID_PARAMETER,
            f"request queueId[{request.queue_id}] is illegal, {topic} Producer: {call.address}",
        )
    return request.queue_id if request.queue_id >= 0 else state.random.randrange(topic.write_queue_nums)


def send_one(state: BrokerState, call: Call, request: SendRequest, topic: TopicConfig, queue_id: int) -> Command:
    command = call.command
    body = bytes(command.body)
    check_sizes(state, len(body), request.properties or "")
    properties = decode_properties(request.properties or "")
    half = is_half(properties) and not is_retried(request, properties)
    refuse_half_beyond_bound(state, half)
    message = new_message(call, request, topic, queue_id, body)
    if request.topic.startswith(RETRY_PREFIX):
        to_dlq_past_limit(state, call, request, message, properties)
    unique = add_broker_properties(state, call, properties)
    message.raw_properties = encoded(properties)
    if half:
        stored = state.accept_half(call.now_ms, message, properties)
    else:
        stored = state.accept(call.now_ms, message, properties)
    fields = {  # as SendResponse would write it, in a tenth of its time
        "msgId": offset_message_id(stored.store_host, stored.store_port, stored.physical_offset),
        "queueId": str(queue_id),
        "queueOffset": str(stored.queue_offset),
        "transactionId": unique,
    }
    recall = handle_of(state, stored, unique)
    if recall is not None:
        fields["recallHandle"] = recall
    fields["MSG_REGION"] = REGION
    fields["TRACE_ON"] = "true"
    return command.response(ResponseCode.SUCCESS, fields)


def send_batch(state: BrokerState, call: Call, request: SendRequest, topic: TopicConfig, queue_id: int) -> Command:
    command = call.command
    body = bytes(command.body)
    check_sizes(state, len(body), request.properties or "")
    refuse_batch_beyond_bound(body)
    entries = decode_batch(body)
    if not entries or request.topic.startswith(RETRY_PREFIX):
        raise Refused(ResponseCode.MESSAGE_ILLEGAL, "batch request does not support retry group, nor an empty batch")
    if not all(entry.body for entry in entries):
        raise Refused(ResponseCode.MESSAGE_ILLEGAL, "the batch is illegal: one of its messages has no body")
    parsed = [decode_properties(entry.properties) for entry in entries]
    for properties in parsed:
        if is_half(properties):
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, "batch request does not support transaction messages")
        if delay_level(properties) > 0 or asks_for_timer(properties):
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, "batch request does not support delayed messages")
    messages: list[StoredMessage] = []
    for entry, properties in zip(entries, parsed, strict=True):
        message = new_message(call, request, topic, queue_id, entry.body)
        message.flag = entry.flag
        add_broker_properties(state, call, properties)
        message.raw_properties = encoded(properties)
        messages.append(message)
    state.accept_all(call.now_ms, messages)  # all or, when it is refused, none
    response = SendResponse(
        msg_id=",".join(
            offset_message_id(stored.store_host, stored.store_port, stored.physical_offset) for stored in messages
        ),
        queue_id=queue_id,
        queue_offset=messages[0].queue_offset,
        transaction_id=decode_properties(request.properties or "").get(PROPERTY_UNIQ_KEY),
        region_id=REGION,
        trace_on=True,
    )
    return command.response(ResponseCode.SUCCESS, response.to_fields())


def refuse_batch_beyond_bound(body: bytes) -> None:
    """Looks at the size that each message begins with, and at no more messages than a batch may have; sizes that make no
    sense are found when the batch is read."""
    position = count = 0
    while position < len(body):
        if count == BATCH_MAX:
            remark = f"the batch is illegal: it has more than {BATCH_MAX} messages; send it in parts"
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, remark)
        size = int.from_bytes(body[position : position + 4], "big", signed=True)
        if size <= 0:
            return
        position += size
        count += 1


def new_message(call: Call, request: SendRequest, topic: TopicConfig, queue_id: int, body: bytes) -> StoredMessage:
    host, _, port = call.address.rpartition(":")
    multi_tags = SYSFLAG_MULTI_TAGS if topic.topic_filter_type == "MULTI_TAG" else 0
    return StoredMessage(
        topic=request.topic,
        body=body,
        queue_id=queue_id,
        flag=request.flag,
        sysflag=request.sys_flag & ~SYSFLAG_TRANSACTION_MASK | multi_tags,  # TRAN_MSG alone makes a half message
        born_timestamp_ms=request.born_timestamp,
        born_host=host,
        born_port=int(port),
        reconsume_times=request.reconsume_times or 0,
    )


def check_sizes(state: BrokerState, body_bytes: int, properties: str) -> None:
    config = state.config
    properties_bytes = len(properties.encode())
    if not body_bytes or body_bytes > config.body_max_bytes or properties_bytes > config.properties_max_bytes:
        raise Refused(
            ResponseCode.MESSAGE_ILLEGAL,
            "the message is illegal, maybe msg body or properties length not matched. msg body length limit "
            f"{config.body_max_bytes}B, msg properties length limit {config.properties_max_bytes}B.",
        )


def encoded(properties: dict[str, str]) -> bytes:
    """Properties as they are stored, the broker's own among them. Raises Refused when they do not fit into a record."""
    raw = encode_properties(properties).encode()
    if len(raw) > PROPERTIES_MAX_BYTES:
        raise Refused(
            ResponseCode.MESSAGE_ILLEGAL,
            f"the message is illegal: with the broker's own its properties have {len(raw)} bytes, {PROPERTIES_MAX_BYTES} fit",
        )
    return raw


def is_retried(request: SendRequest, properties: dict[str, str]) -> bool:
    """A message that its consumer sends again keeps TRAN_MSG, but its transaction is long over."""
    return (request.reconsume_times or 0) > 0 and delay_level(properties) > 0


def refuse_half_beyond_bound(state: BrokerState, half: bool) -> None:
    if half and len(state.transactions) >= state.config.transactions_max:
        raise Refused(ResponseCode.SYSTEM_BUSY, f"{len(state.transactions)} transactions are open already")


def add_broker_properties(state: BrokerState, call: Call, properties: dict[str, str]) -> str:
    """What the broker puts into a message of its own; returns its unique id, made when the producer gave none."""
    properties.pop(PROPERTY_POP_CK, None)
    unique = properties.get(PROPERTY_UNIQ_KEY)
    if unique is None:
        unique = properties[PROPERTY_UNIQ_KEY] = state.ids.next(call.now_ms)
    properties[PROPERTY_MSG_REGION] = REGION
    properties[PROPERTY_TRACE_ON] = "true"
    properties[PROPERTY_CLUSTER] = state.config.cluster
    return unique


def to_dlq_past_limit(
    state: BrokerState, call: Call, request: SendRequest, message: StoredMessage, properties: dict[str, str]
) -> None:
    """SendMessageProcessor.handleRetryAndDLQ: `>` here, `>=` when the broker counts (send-back)."""
    name = request.topic[len(RETRY_PREFIX) :]
    group = state.groups.get(name)
    if group is None:
        raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {name} {FAQ}")
    reconsume_max = group.retry_max_times
    if call.command.version >= VERSION_3_4_9 and request.max_reconsume_times is not None:
        reconsume_max = request.max_reconsume_times
    if (request.reconsume_times or 0) <= reconsume_max and not state.locks.any_valid(call.now_ms, name):
        return
    message.topic = state.dlq_topic(call.now_ms, name).topic_name
    message.queue_id = 0
    properties[PROPERTY_DELAY] = "-1"
