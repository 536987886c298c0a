"""PULL_MESSAGE 11 and LITE_PULL_MESSAGE 361 (BR/processor/{PullMessageProcessor,DefaultPullMessageResultHandler}.java).

Checks in the genuine order, each with its code (PROTOCOL §5.1), then the read, then: found -> 0, nothing newer -> hold if
the client asked for it (19 if not), only others' tags -> 20, an offset outside of the queue -> 21.

A held pull is executed again when a message arrived, at its deadline, or at a sweep. The second pass never holds and never
commits the offset that came with the pull, as it would be old by then.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from ...remoting.admin_bodies import SubscriptionGroupConfig, TopicConfig
from ...remoting.bodies import SubscriptionData
from ...remoting.codes import (
    FORBIDDEN_BROADCASTING,
    FORBIDDEN_GROUP,
    FORBIDDEN_TOPIC,
    PULL_COMMIT_OFFSET,
    PULL_SUBSCRIPTION,
    PULL_SUSPEND,
    RequestCode,
    ResponseCode,
)
from ...remoting.command import Command
from ...remoting.errors import UsageError
from ...remoting.headers import PullRequest
from ..client_table import ConsumerGroup
from ..effects import Reply
from ..fetched import Fetched, GetStatus
from ..held_pulls import HeldPull
from ..message_store import QueueRebuilding
from ..refusal import FAQ, Refused
from ..state import BrokerState, Call
from ..topic_table import readable
from ..wanted import Wanted, by_expression, by_text

ROUND_BYTES_MAX = 1 << 20  # of answers to held pulls of one connection, before it has to read

CODES = (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)

# How the status of a read becomes an answer; that of an empty queue depends on the offset asked for.
ANSWERS = {
    GetStatus.FOUND: ResponseCode.SUCCESS,
    GetStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.OFFSET_RESET: ResponseCode.PULL_OFFSET_MOVED,
}


def handle(state: BrokerState, call: Call) -> Command | None:
    """Answer, or None when the pull is held."""
    request = PullRequest.from_fields(call.command.fields)
    wanted = check(state, request)
    fetched = fetch(state, request, wanted, call.channel)
    code = answer_code(fetched, request.queue_offset)
    topic, group = request.topic, request.consumer_group
    if request.sys_flag & PULL_COMMIT_OFFSET and state.offset_refusal(topic, group) is None:
        state.offsets.commit(topic, group, request.queue_id, request.commit_offset)
    if code == ResponseCode.PULL_NOT_FOUND and request.sys_flag & PULL_SUSPEND:
        config = state.config
        asked_ms = request.suspend_timeout_millis if config.long_polling_enable else config.short_polling_ms
        wait_ms = min(max(asked_ms, 0), config.hold_timeout_max_ms)
        held = HeldPull(call.channel, call.command, wanted, call.now_ms + wait_ms, request)
        if state.held.hold(held):
            return None
    return answer(call.command, fetched, code)


def known_topic(state: BrokerState, name: str) -> TopicConfig:
    """The topic. Raises Refused."""
    topic = state.topics.get(name)
    if topic is None:
        raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist, apply first please! {FAQ}")
    return topic


def readable_topic(state: BrokerState, name: str, doing: str) -> TopicConfig:
    """The topic, of which messages may be read; `doing`: how, in the words of the genuine remark. Raises Refused."""
    topic = known_topic(state, name)
    if not readable(topic):
        remark = f"the topic[{name}] {doing} message is forbidden"
        raise Refused(ResponseCode.NO_PERMISSION, remark, {"forbiddenType": str(FORBIDDEN_TOPIC)})
    return topic


def check_queue(
    topic: TopicConfig, queue_id: int, group: str, code: ResponseCode = ResponseCode.INVALID_PARAMETER
) -> None:
    """Raises Refused with `code` unless the topic has such a queue to read."""
    if not 0 <= queue_id < topic.read_queue_nums:
        remark = (
            f"queueId[{queue_id}] is illegal, topic:[{topic.topic_name}] "
            f"topicConfig.readQueueNums:[{topic.read_queue_nums}] consumer:[{group}]"
        )
        raise Refused(code, remark)


def consuming_group(state: BrokerState, name: str) -> SubscriptionGroupConfig:
    """The group, which may consume. Raises Refused."""
    group = state.groups.get(name)
    if group is None:
        raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group [{name}] does not exist, {FAQ}")
    if not group.consume_enable:
        remark = f"subscription group no permission, {name}"
        raise Refused(ResponseCode.NO_PERMISSION, remark, {"forbiddenType": str(FORBIDDEN_GROUP)})
    return group


def check(state: BrokerState, request: PullRequest) -> Wanted:
    """What the pull is for. Raises Refused."""
    group = consuming_group(state, request.consumer_group)
    topic = readable_topic(state, request.topic, "pulling")
    check_queue(topic, request.queue_id, request.consumer_group)
    if request.sys_flag & PULL_SUBSCRIPTION:
        return wanted_in_request(request)
    members = state.clients.consumer_group(request.consumer_group)
    if members is None:
        raise Refused(ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's group info not exist{FAQ}")
    if not group.consume_broadcast_enable and members.is_broadcasting:
        remark = f"the consumer group[{request.consumer_group}] can not consume by broadcast way"
        raise Refused(ResponseCode.NO_PERMISSION, remark, {"forbiddenType": str(FORBIDDEN_BROADCASTING)})
    return wanted_of_group(members, request)


def wanted_in_request(request: PullRequest) -> Wanted:
    try:
        return by_text(request.expression_type, request.subscription or "*")
    except UsageError as error:
        remark = f"parse the consumer's subscription failed: {error}"
        raise Refused(ResponseCode.SUBSCRIPTION_PARSE_FAILED, remark) from None


def wanted_of_group(members: ConsumerGroup, request: PullRequest) -> Wanted:
    subscription = members.subscriptions.get(request.topic)
    if subscription is None:
        raise Refused(ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's subscription not exist{FAQ}")
    if subscription.sub_version < request.sub_version:
        raise Refused(ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest")
    wanted = members.wanted.get(request.topic)
    if wanted is None:
        wanted = members.wanted[request.topic] = wanted_by(subscription)
    return wanted


def wanted_by(subscription: SubscriptionData) -> Wanted:
    """What a subscription of a heartbeat wants. Raises Refused."""
    try:
        return by_expression(subscription.expression_type, subscription.sub_string, subscription.code_set)
    except UsageError as error:
        raise Refused(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error)) from None


def fetch(state: BrokerState, request: PullRequest, wanted: Wanted, channel: int) -> Fetched:
    """Read from the queue, unless an operator's reset of the offset waits for this pull. Raises StorageError."""
    queue = request.topic, request.consumer_group, request.queue_id
    reset = state.offsets.pending_reset(*queue)
    if reset is not None:
        if not state.offsets.is_followed(*queue, request.queue_offset, channel):
            low = state.store.min_offset(request.topic, request.queue_id)
            high = state.store.max_offset(request.topic, request.queue_id)
            return Fetched(GetStatus.OFFSET_RESET, reset, low, high)
        state.take_reset(*queue)
    fetched = state.store.get(request.topic, request.queue_id, request.queue_offset, request.max_msg_nums, wanted)
    state.count_got(request.topic, request.consumer_group, fetched.count)
    return fetched


def answer_code(fetched: Fetched, offset: int) -> ResponseCode:
    if fetched.status is GetStatus.NO_MESSAGE_IN_QUEUE:
        return ResponseCode.PULL_OFFSET_MOVED if offset else ResponseCode.PULL_NOT_FOUND
    return ANSWERS[fetched.status]


def answer(command: Command, fetched: Fetched, code: ResponseCode) -> Command:
    fields = {
        "suggestWhichBrokerId": "0",
        "groupSysFlag": "0",
        "nextBeginOffset": str(fetched.next_offset),
        "maxOffset": str(fetched.max_offset),
        "minOffset": str(fetched.min_offset),
        "topicSysFlag": "0",
    }
    return command.response(code, fields, fetched.body, fetched.status.value)


# Second pass


def wake_parked(state: BrokerState, channel: int, count_max: int) -> list[Reply]:
    """Answer pulls of a connection that has room again: some ROUND_BYTES_MAX. The others stay parked, in their order."""
    replies: list[Reply] = []
    sent_bytes = 0
    for pull in islice(state.held.unparked(channel), count_max):
        response = execute_again(state, pull)
        replies.append(Reply(channel, response))
        sent_bytes += len(response.body)
        if sent_bytes > ROUND_BYTES_MAX:
            break
    return replies


def wake_ready(state: BrokerState, now_ms: int, count_max: int) -> list[Reply]:
    """Answer pulls that need not wait any longer."""
    return repeat(state, state.held.ready(now_ms, count_max))


def repeat(state: BrokerState, pulls: Iterable[HeldPull]) -> list[Reply]:
    """Answers of pulls that were held. What fails in one of them is its own answer; nobody else's request fails by it.

    A connection that does not read gets nothing more, and each some ROUND_BYTES_MAX in one round; the rest is parked, and so
    are those that come after parked ones.
    """
    replies: list[Reply] = []
    sent_bytes: dict[int, int] = {}
    for pull in pulls:
        channel = pull.channel
        if channel in state.full or channel in state.held.parked or sent_bytes.get(channel, 0) > ROUND_BYTES_MAX:
            state.held.park(pull)
            continue
        response = execute_again(state, pull)
        sent_bytes[channel] = sent_bytes.get(channel, 0) + len(response.body)
        replies.append(Reply(channel, response))
    return replies


def execute_again(state: BrokerState, pull: HeldPull) -> Command:
    try:
        wanted = check(state, pull.request)
        fetched = fetch(state, pull.request, wanted, pull.channel)
        return answer(pull.command, fetched, answer_code(fetched, pull.request.queue_offset))
    except Refused as refused:
        return pull.command.response(refused.code, refused.fields, remark=refused.remark)
    except QueueRebuilding as error:
        return pull.command.response(ResponseCode.SYSTEM_BUSY, remark=str(error))
    except Exception as error:  # noqa: BLE001  whoever sent the message that woke it has nothing to do with it
        state.faults.append(f"a held pull of group {pull.request.consumer_group} failed: {error!r:.500}")
        return pull.command.response(ResponseCode.SYSTEM_ERROR, remark=f"{error!r:.500}")
