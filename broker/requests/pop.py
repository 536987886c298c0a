"""POP_MESSAGE 200050, NOTIFICATION 200054 and POLLING_INFO 200055
(BR/processor/{PopMessageProcessor,NotificationProcessor,PollingInfoProcessor}.java).

A pop takes messages from the queues of a topic, any of them first, and from the group's retry topic: that one first in one of
five pops, else last. Which, is drawn: a counter that topics and groups share would always serve the same queues of clients
that take turns. What it takes is in flight from then on (pop_table.py). A retried message is given out under the topic that
was asked for, its check point in its properties; that of the others the client puts together from the answer's header. A pop
that finds nothing is held, and executed again when something arrives; at its deadline it is answered that there is nothing.

Only what keeps no order is popped: a pop that asks for order is refused (remoting clients pop without, in Java too).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace

from ...remoting.admin_bodies import TopicConfig
from ...remoting.check_points import NORMAL, RETRY_V1, CheckPoint
from ...remoting.codes import RequestCode, ResponseCode
from ...remoting.command import Command
from ...remoting.errors import ProtocolError, UsageError
from ...remoting.pop_headers import (
    INIT_MIN,
    NotificationRequest,
    NotificationResponse,
    PollingInfo,
    PollingInfoResponse,
    PopRequest,
    PopResponse,
)
from ...remoting.properties import PROPERTY_POP_CK, encode_properties
from ...remoting.stored import decode_messages, encode_message, walk
from ..effects import Reply
from ..fetched import Fetched, GetStatus
from ..held_pops import ANY_QUEUE, HeldPop, News
from ..message_store import QueueRebuilding
from ..pop_table import Key, begun, popped
from ..pops import pop_retry_topic
from ..readable_log import is_of_a_place
from ..refusal import Refused
from ..state import BrokerState, Call
from ..storage import StorageError
from ..topic_table import illegal_topic
from ..wanted import EVERYTHING, Wanted, by_text
from .pull import check_queue, consuming_group, readable_topic

CODES = (RequestCode.POP_MESSAGE, RequestCode.NOTIFICATION, RequestCode.POLLING_INFO)
POP_MAX = 32  # messages of one pop
POP_BYTES_MAX = (
    8 << 20
)  # of one pop's messages, unless its first queue alone has more; an answer of above 16 MiB cannot be sent
RETRY_FIRST_EVERY = 5  # popFromRetryProbability = 20 %


def handle(state: BrokerState, call: Call) -> Command | None:
    """Answer, or None when the request is held."""
    code, fields = call.command.code, call.command.fields
    if code == RequestCode.POLLING_INFO:
        asked = PollingInfo.from_fields(fields)
        count = state.pops.held.count(asked.topic, asked.consumer_group, asked.queue_id)
        return call.command.response(ResponseCode.SUCCESS, PollingInfoResponse(count).to_fields())
    request = request_of(call.command)
    if request.order:
        raise Refused(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "this broker pops in no order: pull orderly instead")
    if isinstance(request, PopRequest) and request.max_msg_nums > POP_MAX:
        remark = f"the broker[{state.config.name}] pop message's num is greater than {POP_MAX}"
        raise Refused(ResponseCode.INVALID_PARAMETER, remark)
    poll_ms = min(max(request.poll_time, 0), state.config.hold_timeout_max_ms)
    held = HeldPop(
        call.channel,
        call.command,
        wanted_of(request),
        call.now_ms + poll_ms,
        request.topic,
        request.consumer_group,
        pop_retry_topic(request.topic, request.consumer_group),
        max(request.queue_id, ANY_QUEUE),
    )
    return execute(state, held, call.now_ms)


def request_of(command: Command) -> PopRequest | NotificationRequest:
    header = PopRequest if command.code == RequestCode.POP_MESSAGE else NotificationRequest
    return header.from_fields(command.fields)


def wanted_of(request: PopRequest | NotificationRequest) -> Wanted:
    if isinstance(request, NotificationRequest) or not request.exp:
        return EVERYTHING
    try:
        return by_text(request.exp_type, request.exp)
    except UsageError as error:
        remark = f"parse the consumer's subscription failed: {error}"
        raise Refused(ResponseCode.SUBSCRIPTION_PARSE_FAILED, remark) from None


def check(state: BrokerState, request: PopRequest | NotificationRequest) -> TopicConfig:
    """The topic that is popped. Raises Refused."""
    topic = readable_topic(state, request.topic, "peeking")
    if request.queue_id >= 0:  # else any queue
        check_queue(topic, request.queue_id, request.consumer_group)
    consuming_group(state, request.consumer_group)
    refusal = state.offset_refusal(request.topic, request.consumer_group)
    if refusal is not None:
        raise refusal
    check_retry_topic(state, pop_retry_topic(request.topic, request.consumer_group))
    return topic


def check_retry_topic(state: BrokerState, retry_topic: str) -> None:
    """What is popped must have a place where it is shown again. Raises Refused."""
    if retry_topic in state.topics:
        return
    wrong = illegal_topic(retry_topic)
    if wrong is not None:
        remark = f"{wrong} It is the retry topic {retry_topic}: pop with a shorter topic or group, or pull"
        raise Refused(ResponseCode.INVALID_PARAMETER, remark)
    full = state.room.refusal(state.now_ms, retry_topic)
    if full is not None:
        raise Refused(ResponseCode.SYSTEM_BUSY, full)


@dataclass(slots=True)
class Taken:
    """What one pop took so far."""

    changes: list[bytes] = field(default_factory=list[bytes])
    starts: list[str] = field(default_factory=list[str])
    offsets: list[str] = field(default_factory=list[str])
    bodies: list[bytes] = field(default_factory=list[bytes])
    count: int = 0
    length_bytes: int = 0
    rest: int = 0
    passed_over: bool = False
    rebuilding: list[Key] = field(default_factory=list[Key])
    is_full: bool = False


def execute(state: BrokerState, held: HeldPop, now_ms: int, news: News | None = None) -> Command | None:
    """The answer now; None when there is nothing yet, and the request is held (again). Raises as handlers do.

    With `news`, it looks into these queues only: all others were empty before.
    """
    request = request_of(held.command)
    topic = check(state, request)
    waiting = state.pops.held
    if isinstance(request, PopRequest):
        taken = pop(state, held, request, topic, now_ms, news)
        found = taken.count > 0
        goes_on = taken.rest > 0 and (found or taken.passed_over)
        full = len(state.pops.table) >= state.config.pops_in_flight_max
    else:
        taken, goes_on, full = Taken(), False, False
        keys = keys_of(state, held, topic, 0, retries_first=False) if news is None else keys_in(held, news.asked(held))
        found = any(has_message(state, key) for key, _ in keys)
    if not found and not full and now_ms < held.deadline_ms:
        full = not waiting.has_room(held)
        if not full:
            waiting.hold(held)
    if goes_on:  # more is there for another one; or for this one, where nothing that is wanted could be read yet
        waiting.wake(held.topic, held.group, held.queue_id)
    for key in taken.rebuilding:
        waiting.wake_when_rebuilt((key.topic, key.queue_id), held.topic, held.group)
    if not found and not full and now_ms < held.deadline_ms:
        return None
    return answer(held, request, taken, now_ms, found=found, full=full)


def answer(
    held: HeldPop, request: PopRequest | NotificationRequest, taken: Taken, now_ms: int, *, found: bool, full: bool
) -> Command:
    if not isinstance(request, PopRequest):
        return held.command.response(ResponseCode.SUCCESS, NotificationResponse(found, full).to_fields())
    code, status = ResponseCode.SUCCESS, GetStatus.FOUND
    if not found:
        code = ResponseCode.POLLING_FULL if full else ResponseCode.POLLING_TIMEOUT
        status = GetStatus.NO_MESSAGE_IN_QUEUE
    header = PopResponse(now_ms, request.invisible_time, 0, taken.rest, ";".join(taken.starts), ";".join(taken.offsets))
    return held.command.response(code, header.to_fields(), b"".join(taken.bodies), status.value)


def keys_of(
    state: BrokerState, held: HeldPop, topic: TopicConfig, first: int, *, retries_first: bool
) -> Iterator[tuple[Key, str]]:
    """The queues that are asked for, from the queue `first` on, and those of the retry topic, each with its retry mark."""
    retry = state.topics.get(held.retry_topic) if held.retry_topic != held.topic else None
    retries = [
        (Key(held.retry_topic, held.group, queue), RETRY_V1) for queue in range(retry.read_queue_nums if retry else 0)
    ]
    if retries_first:
        yield from retries
    queues = topic.read_queue_nums
    for at in range(queues) if held.queue_id == ANY_QUEUE else (held.queue_id,):
        queue_id = (first + at) % queues if held.queue_id == ANY_QUEUE else at
        yield Key(held.topic, held.group, queue_id), NORMAL
    if not retries_first:
        yield from retries


def pop(
    state: BrokerState, held: HeldPop, request: PopRequest, topic: TopicConfig, now_ms: int, news: News | None
) -> Taken:
    """Take what is there, at most what was asked for. Raises StorageError, and then nothing was taken; also when nothing but
    what the disk cannot read is there."""
    taken = Taken()
    if held.channel in state.full or len(state.pops.table) >= state.config.pops_in_flight_max:
        return taken
    keys = keys_drawn(state, held, topic) if news is None else keys_in(held, news.take(held))
    looked: list[Key] = []
    unread: dict[Key, StorageError] = {}
    try:
        for key, mark in keys:
            looked.append(key)
            before = taken.rest
            try:
                take(state, request, key, mark, held.wanted, now_ms, taken)
            except QueueRebuilding:
                taken.rebuilding.append(key)
                continue  # the others need not wait for it
            except StorageError as error:
                if not is_of_a_place(error):
                    raise
                unread[key] = error
                continue
            if news is not None and taken.rest > before:
                news.put_back(*key)
                break  # there is no room for more
        state.pops.write(taken.changes, max(taken.count, 1))
        if unread and not taken.count:  # nobody would wake it when they are given up, or can be read
            raise next(iter(unread.values()))
    except Exception:  # nothing was taken: what woke it is there for those that wait beside it
        put_back(news, looked)
        if held.number:  # it waited itself
            state.pops.held.wake_group(held.topic, held.group)
        raise
    put_back(news, unread)
    state.count_got(held.topic, held.group, taken.count)
    return taken


def put_back(news: News | None, keys: Iterable[Key]) -> None:
    """What is there is left to the others that wait."""
    if news is not None:
        for key in keys:
            news.put_back(*key)


def keys_in(held: HeldPop, queues: Iterable[tuple[str, int]]) -> Iterator[tuple[Key, str]]:
    """These queues as `keys_of` gives them."""
    return ((Key(topic, held.group, at), NORMAL if topic == held.topic else RETRY_V1) for topic, at in queues)


def keys_drawn(state: BrokerState, held: HeldPop, topic: TopicConfig) -> Iterator[tuple[Key, str]]:
    """`keys_of` in an order that is drawn."""
    first, fifth = divmod(state.random.randrange(max(topic.read_queue_nums, 1) * RETRY_FIRST_EVERY), RETRY_FIRST_EVERY)
    return keys_of(state, held, topic, first, retries_first=fifth == 0)


def take(
    state: BrokerState, request: PopRequest, key: Key, mark: str, wanted: Wanted, now_ms: int, taken: Taken
) -> None:
    """Take from one queue what there is room for: all that one read gives, or nothing.

    Raises QueueRebuilding, and then nothing was taken.
    """
    store = state.store
    start, change = start_of(state, key, request.init_mode)
    if change is None and start == store.max_offset(key.topic, key.queue_id):
        return
    changes = [] if change is None else [change]
    known = state.pops.table.next_offset(key) if change is None else start
    assert known is not None  # else there is a change
    room = max(request.max_msg_nums, 1) - taken.count
    if room <= 0 or taken.is_full:
        taken.rest += max(store.max_offset(key.topic, key.queue_id) - start, 0)
        return
    fetched = store.get(key.topic, key.queue_id, start, room, wanted)
    if start != fetched.next_offset and fetched.status not in (GetStatus.FOUND, GetStatus.NO_MATCHED_MESSAGE):
        # It was below what is kept, or above the end; then what is in flight is above it too, or popped once more.
        if fetched.next_offset < start:
            floor = state.pops.table.floor(key)
            known = start = fetched.next_offset if floor is None else min(fetched.next_offset, floor)
            changes.append(begun(key, start))
        else:
            start = fetched.next_offset
            changes.append(popped(key, known, start, now_ms, 0, ()))
            known = start
        fetched = store.get(key.topic, key.queue_id, start, room, wanted)
    if taken.count and taken.length_bytes + len(fetched.body) > POP_BYTES_MAX:
        taken.is_full = True
        taken.rest += max(fetched.max_offset - start, 0)
        taken.changes += changes
        return
    if fetched.status is GetStatus.FOUND:
        offsets, body = walk(fetched.body)[1], fetched.body
        changes.append(
            popped(key, known, fetched.next_offset, now_ms, invisible_ms(state, request.invisible_time), offsets)
        )
        if mark != NORMAL:
            offsets, body = under_topic(state, request, start, fetched, now_ms)
        if offsets:
            taken.starts.append(f"{mark} {key.queue_id} {start}")
            taken.offsets.append(f"{mark} {key.queue_id} {','.join(map(str, offsets))}")
            taken.bodies.append(body)
            taken.count += len(offsets)
            taken.length_bytes += len(body)
        else:
            taken.passed_over = True
    elif fetched.status is GetStatus.NO_MATCHED_MESSAGE:
        changes.append(popped(key, known, fetched.next_offset, now_ms, 0, ()))
        taken.passed_over = True
    taken.changes += changes
    taken.rest += max(fetched.max_offset - fetched.next_offset, 0)


def start_of(state: BrokerState, key: Key, init_mode: int) -> tuple[int, bytes | None]:
    """Where the group pops next in a queue, and the change that says so where nothing does yet."""
    known = state.pops.table.next_offset(key)
    low, high = state.store.min_offset(key.topic, key.queue_id), state.store.max_offset(key.topic, key.queue_id)
    reset = state.take_reset(key.topic, key.group, key.queue_id)
    if reset is not None:
        return min(reset, high), begun(key, min(reset, high))
    committed = state.offsets.query(key.topic, key.group, key.queue_id)
    if committed is not None:
        committed = min(committed, high)  # nobody can have come further
    if known is not None:
        return max(known, committed or 0), None
    if committed is not None:
        return committed, begun(key, committed)
    if init_mode == INIT_MIN or low == 0 or key.topic == pop_retry_topic(key.topic, key.group):
        return low, begun(key, low)
    last = max(high - 1, low)  # of an old topic, the last message
    return last, begun(key, last)


def invisible_ms(state: BrokerState, asked_ms: int) -> int:
    """An invisible time within bounds; beyond retention there is nothing to show again."""
    return min(max(asked_ms, 0), state.config.retention_ms)


def under_topic(
    state: BrokerState, request: PopRequest, start: int, fetched: Fetched, now_ms: int
) -> tuple[list[int], bytes]:
    """Retried messages as they are given out, and their queue offsets: under the topic asked for, each with its check point.

    One whose properties have no room for it, or are no UTF-8, is left out. It is in flight: when its time is over it is a
    dead letter, or is tried again.
    """
    offsets: list[int] = []
    records: list[bytes] = []
    for message in decode_messages(fetched.body):
        check_point = CheckPoint(
            start,
            now_ms,
            request.invisible_time,
            0,
            RETRY_V1,
            state.config.name,
            message.queue_id,
            message.queue_offset,
        )
        try:
            raw = encode_properties({**message.properties, PROPERTY_POP_CK: check_point.encode()}).encode()
            records.append(encode_message(replace(message, topic=request.topic, raw_properties=raw, magic=0)))
        except (UsageError, ProtocolError):
            continue
        offsets.append(message.queue_offset)
    return offsets, b"".join(records)


def has_message(state: BrokerState, key: Key) -> bool:
    """Whether there is something to pop in a queue."""
    next_offset = state.pops.table.next_offset(key)
    committed = state.offsets.query(key.topic, key.group, key.queue_id)
    known = [offset for offset in (next_offset, committed) if offset is not None]
    start = max(known) if known else state.store.min_offset(key.topic, key.queue_id)
    return state.store.max_offset(key.topic, key.queue_id) > start


# Second pass


def repeat(state: BrokerState, held: Iterable[HeldPop], now_ms: int, news: News | None = None) -> list[Reply]:
    """Execute requests that were held, woken by `news` or for anything.

    What fails in one of them is its own answer; nobody else's request fails by it.
    """
    replies: list[Reply] = []
    for each in held:
        response = execute_again(state, each, now_ms, news)
        if response is not None:
            replies.append(Reply(each.channel, response))
    return replies


def wake_rebuilt(state: BrokerState) -> None:
    """Those who wait for queues that can be read again are to look into them."""
    waiting = state.pops.held
    for topic, queue_id in list(waiting.rebuilding):
        with suppress(QueueRebuilding):
            state.store.get(topic, queue_id, -1, 1)  # below what is kept: nothing is read
            waiting.rebuilt((topic, queue_id))


def time_out(held: Iterable[HeldPop], now_ms: int) -> list[Reply]:
    """Answer requests whose deadline has passed that there is nothing.

    Nobody looks once more: what arrives wakes, the client asks again at once, and of many that are due at the same time
    each would look into all queues.
    """
    return [
        Reply(each.channel, answer(each, request_of(each.command), Taken(), now_ms, found=False, full=False))
        for each in held
    ]


def execute_again(state: BrokerState, held: HeldPop, now_ms: int, news: News | None) -> Command | None:
    try:
        return execute(state, held, now_ms, news)
    except Refused as refused:
        return held.command.response(refused.code, refused.fields, remark=refused.remark)
    except QueueRebuilding as error:
        return held.command.response(ResponseCode.SYSTEM_BUSY, remark=str(error))
    except StorageError as error:
        return held.command.response(ResponseCode.SERVICE_NOT_AVAILABLE, remark=f"service not available now: {error}")
    except Exception as error:  # noqa: BLE001  whoever sent the message that woke it has nothing to do with it
        state.faults.append(f"a held pop of group {held.group} failed: {error!r:.500}")
        return held.command.response(ResponseCode.SYSTEM_ERROR, remark=f"{error!r:.500}")
