"""Failed messages go back to their broker; a refused send-back goes out as an ordinary send to the retry topic.

DefaultMQPushConsumerImpl.sendMessageBack (docs/protocol.md). An answer that is lost leaves it uncertain whether the
broker has the retry record; it is sent again, because two retry records are repeats and none is a loss.

A broker notes in the first retry record which topic the message was in (RETRY_TOPIC), and leaves what stands there. So what a
group has of another group's retries or dead letters would come again as a message of that group's topic, for which it has a
different handler or none: that goes out by an ordinary send, which notes the topic anew.

The last attempt of an ordered message goes out by an ordinary send first, as with Java's orderly service. Where no queue may
be written, or it is refused twice, its broker is asked for the dead letter by a send-back, as its queue waits for that.

A retry has more properties than the message that failed, and no record holds more than 32767 bytes of them. A message that is
nearly there is refused in both ways, by genuine brokers too, and Java's client tries for ever. Here the handler gets it again
(core/retries.py) until its attempts are used up; then it is a dead letter without its longest properties, which it names.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct

import structlog

from ...client.asking import ask, may_be_elsewhere
from ...client.clock import wall_ms
from ...client.cluster import Cluster
from ...client.operations import SEND_BACK_TIMEOUT_MS, Operations
from ...client.send_result import STORED_CODES
from ...remoting.codes import (
    SYSFLAG_COMPRESSED,
    SYSFLAG_COMPRESSION_MASK,
    SYSFLAG_MULTI_TAGS,
    RequestCode,
    ResponseCode,
)
from ...remoting.errors import BrokerError, RocketcrewError, UnreachableError
from ...remoting.headers import SendBack, SendRequestV2
from ...remoting.log_keys import queue_keys
from ...remoting.names import RETRY_PREFIX, is_of_group
from ...remoting.properties import PROPERTIES_MAX_BYTES, decode_properties, encode_properties
from ...remoting.queues import MessageQueue
from ...remoting.stored import StoredMessage, decode_message
from ...workers.failures import DEAD_LETTER_LEVEL, Mode, reconsume_limit, resend_level
from ..core.actions import SendBack as SendBackAction

_KEPT_FLAGS = SYSFLAG_COMPRESSED | SYSFLAG_COMPRESSION_MASK | SYSFLAG_MULTI_TAGS
"""What describes the body and tags; host families and transactions belong to the old record."""
FACT_PREFIX = "ROCKETCREW_"
_OF_THE_END = ("RECONSUME_TIME", "MAX_RECONSUME_TIMES", "DELAY", "DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID")
"""Properties of a dead letter that its next first attempt does not have."""
PROPERTIES_BYTES_MAX = 30_000
"""A broker takes 32767 bytes of properties and adds some of its own."""
BROKERS_OWN_BYTES = 512
"""At most, of what brokers add to a retry besides the name of its topic: REAL_QID, CLUSTER, MSG_REGION, a checksum."""
CUT = FACT_PREFIX + "CUT"
"""The property of a dead letter that names the properties that it lacks."""
CUT_NAMES_MAX = 10
_NEVER_CUT = frozenset(
    {*_OF_THE_END, "RETRY_TOPIC", "ORIGIN_MESSAGE_ID", "UNIQ_KEY", "WAIT", "MSG_REGION", "TRACE_ON", "CLUSTER", "REAL_TOPIC",
     "REAL_QID"}
)  # fmt: skip
_PHYSICAL_OFFSET = Struct(">28xq")

log = structlog.get_logger("rocketcrew.send_back")


class _UnwritableError(UnreachableError):
    """No queue of the retry topic may be written: nothing was sent."""


class SendBacks:
    """Sends failed messages back for the group; `max_reconsume_times` -1 = 16 as in Java."""

    def __init__(
        self, cluster: Cluster, operations: Operations, group: str, max_reconsume_times: int, *, locks: bool = False,
        own_sends: bool = False, errors: bool = False,
    ) -> None:  # fmt: skip
        """`locks`: the group locks its queues. Brokers from 5.1 on put what such a group sends to the retry topic by itself
        straight into the dead-letter topic, so only what is to be a dead letter goes that way (§5.4). `own_sends`: what can
        be decoded goes by ordinary sends only, whether or not the broker that it came from is there. `errors`: dead letters
        say why they failed."""
        self._own_sends = own_sends
        self._errors = errors
        self._locks = locks
        self._cluster = cluster
        self._operations = operations
        self._group = group
        self._max = reconsume_limit(max_reconsume_times)

    async def send(self, action: SendBackAction, record: bytes, message: StoredMessage | None) -> bool:
        """True when a broker has accepted it. `message` None = `record` cannot be decoded."""
        facts = self.dead_letter_facts(action)
        if facts is not None and message is not None:
            try:
                await self.to_dead_letters(facts, message)
                return True
            except RocketcrewError as error:
                log.warning("dead_letter_refused", **queue_keys(action.mq), error=str(error), attempt=action.attempt)
        own = message is not None and (self._own_sends or goes_anew(action, message, self._group, locks=self._locks))
        if not own and await self._taken_by_its_broker(action, record, message):
            return True
        if message is None or action.facts is not None or (self._locks and not action.last):
            return False
        try:
            await self._to_retry_topic(action, message)
            return True
        except RocketcrewError as error:
            log.warning("resend_failed", **queue_keys(action.mq), error=str(error), attempt=action.attempt)
            by_send_back = action.mode is Mode.LAST_ATTEMPT and await self._is_for_its_broker(action, message, error)
        return by_send_back and await self._taken_by_its_broker(action, record, message)

    async def _is_for_its_broker(self, action: SendBackAction, message: StoredMessage, error: RocketcrewError) -> bool:
        """Whether a last attempt, whose queue stands still until it is a dead letter, is to be one by a send-back, as its
        ordinary send failed so. Not what may be one already, nor what would come out with the note of another topic. And at
        first not what was refused: that may pass, and what is sent says why it failed."""
        if _loses_topic(message, self._group):
            return False
        if not isinstance(error, _UnwritableError) and not (isinstance(error, BrokerError) and action.attempt > 0):
            return False
        try:
            route = await self._cluster.route(RETRY_PREFIX + self._group)
        except RocketcrewError:
            return False
        # Without a retry queue (retryQueueNums 0) a broker says yes to a send-back and stores nothing.
        here = (each for each in route.queue_datas if each.broker_name == action.mq.broker_name)
        return any(each.write_queue_nums > 0 for each in here)

    async def _taken_by_its_broker(self, action: SendBackAction, record: bytes, message: StoredMessage | None) -> bool:
        try:
            await self._to_its_broker(action, record, message)
        except RocketcrewError as error:
            log.warning("send_back_failed", **queue_keys(action.mq), error=str(error), attempt=action.attempt)
            return False
        return True

    def dead_letter_facts(self, action: SendBackAction) -> Mapping[str, str] | None:
        """What a record that becomes a dead letter now is to say of its end; None for another, or where nothing is known.

        A send-back carries no properties, so the broker's own dead letters do not say why they failed. A last attempt, which
        is a send, has the error in any case.
        """
        if (
            action.facts is None
            and action.last
            and action.mode is not Mode.LAST_ATTEMPT
            and action.error
            and self._errors
        ):
            return {"error": action.error}
        return action.facts

    def _last_error(self, action: SendBackAction, message: StoredMessage) -> dict[str, str]:
        """The property of a last attempt; the broker makes a dead letter of what it comes with."""
        if action.mode is not Mode.LAST_ATTEMPT or not (action.error and self._errors):
            return {}
        return crash_properties({"error": action.error}, len(message.raw_properties))

    async def replay(self, message: StoredMessage) -> None:
        """A dead letter to the group's retry topic, its attempts counted anew: this group alone gets it again."""
        await self._send(message, first_attempt(message), 0, max(self._max, 1))

    async def _to_its_broker(self, action: SendBackAction, record: bytes, message: StoredMessage | None) -> None:
        address = await self._cluster.address_of(action.mq)
        header = SendBack(
            offset=_PHYSICAL_OFFSET.unpack_from(record)[0],
            group=self._group,
            # Its own count may be below ours, where attempts were made here since a send-back was refused.
            delay_level=DEAD_LETTER_LEVEL if action.last else action.delay_level,
            origin_msg_id=message.message_id if message is not None else None,
            origin_topic=_origin_topic(message) if message is not None else action.mq.topic,
            max_reconsume_times=self._max,
            broker_name=action.mq.broker_name,
        )
        await self._operations.send_back(address, header, timeout_ms=SEND_BACK_TIMEOUT_MS)

    async def _to_retry_topic(self, action: SendBackAction, message: StoredMessage) -> None:
        """What Java's inner producer sends, but with a limit by which each broker does what was decided here: 4.9 makes a
        dead letter of what has as many attempts, 5.x of what has more (SendMessageProcessor.handleRetryAndDLQ)."""
        times = message.reconsume_times + action.tried + 1
        properties = {
            **of_a_retry(message, self._group),
            **self._last_error(action, message),
            "RECONSUME_TIME": str(times),
            "MAX_RECONSUME_TIMES": str(self._max),
            "DELAY": str(resend_level(action.delay_level, times)),
        }
        if action.last:  # Java's client asks for one more attempt here
            await self._send_dead_letter(message, properties, times, min(times - 1, self._max))
            return
        try:
            await self._send(message, properties, times, max(times + 1, self._max))
        except BrokerError as error:
            if not is_too_long(error, properties):
                raise
            remark = (
                f"{error.remark}; its properties have {properties_bytes(properties)} bytes with those of a retry, and no "
                f"broker takes more than {PROPERTIES_MAX_BYTES} with its own: the handler gets it again here until its "
                "attempts are used up, and its dead letter will lack the longest properties"
            )
            raise BrokerError(error.code, remark, error.request) from None

    async def to_dead_letters(self, facts: Mapping[str, str], message: StoredMessage) -> None:
        """An ordinary send to the retry topic with its attempts used up: the broker puts it into %DLQ%, which it makes when
        it is not there (SendMessageProcessor.handleRetryAndDLQ); only so do properties of ours come along."""
        times = message.reconsume_times + 1
        properties = {
            **of_a_retry(message, self._group),
            "RECONSUME_TIME": str(times),
            "MAX_RECONSUME_TIMES": str(message.reconsume_times),
            **crash_properties(facts, sum(len(name) + len(value) + 2 for name, value in message.properties.items())),
        }
        await self._send_dead_letter(message, properties, times, message.reconsume_times)

    async def _send_dead_letter(
        self, message: StoredMessage, properties: Mapping[str, str], times: int, max_reconsume_times: int
    ) -> None:
        """Whole if a broker takes it so, else without the longest properties: it must not hold up its queue for ever."""
        try:
            await self._send(message, properties, times, max_reconsume_times)
        except BrokerError as error:
            if not is_too_long(error, properties):
                raise
            kept = cut_to_fit(properties)
            await self._send(message, kept, times, max_reconsume_times)
            log.warning(
                "dead_letter_properties_cut", topic=message.topic, msg_id=message.message_id, cut=kept.get(CUT),
                properties_bytes=properties_bytes(properties), whole_message=message.offset_message_id,
            )  # fmt: skip

    async def _send(
        self, message: StoredMessage, properties: Mapping[str, str], times: int, max_reconsume_times: int
    ) -> None:
        """To the retry topic. Where no broker takes it, it is asked where their masters are, for what comes later."""
        topic = RETRY_PREFIX + self._group
        try:
            await self._to_a_queue_of(topic, message, properties, times, max_reconsume_times)
        except RocketcrewError as error:
            if may_be_elsewhere(error):
                self._cluster.look_again(topic)
            raise

    async def _to_a_queue_of(
        self, topic: str, message: StoredMessage, properties: Mapping[str, str], times: int, max_reconsume_times: int
    ) -> None:
        """With the message's body and birth flags."""
        queues = await self._cluster.queues_to_write(topic)
        if not queues:
            raise _UnwritableError(topic, "the route of this topic names no broker that can be written")
        mq = self._cluster.random.choice(queues)
        address = await self._cluster.address_of(mq)
        header = SendRequestV2(
            producer_group=self._group,  # 4.9's ACL asks for its rights (PlainAccessResource); the inner producer's has none
            topic=mq.topic,
            default_topic="TBW102",
            default_topic_queue_nums=4,
            queue_id=mq.queue_id,
            sys_flag=message.sysflag & _KEPT_FLAGS,
            born_timestamp=wall_ms(),
            flag=message.flag,
            properties=encode_properties(properties),
            reconsume_times=times,
            unit_mode=self._cluster.access.unit_mode,
            max_reconsume_times=max_reconsume_times,
            batch=False,
            broker_name=mq.broker_name,
        )
        code = RequestCode.SEND_MESSAGE_V2
        await ask(
            self._cluster.remoting, address, code, header, body=message.body, timeout_ms=SEND_BACK_TIMEOUT_MS,
            accept=STORED_CODES,
        )  # fmt: skip


def decoded(record: bytes, mq: MessageQueue) -> StoredMessage | None:
    """The message in the record, its properties decoded too; None when it was damaged on the way, or its properties are no
    UTF-8: the broker finds its own copy by the offset that can still be read."""
    try:
        message = decode_message(record)
        decode_properties(message.raw_properties)
    except RocketcrewError as error:
        log.error("failed_message_not_decodable", **queue_keys(mq), error=str(error))
        return None
    return message


def crash_properties(facts: Mapping[str, str], others_bytes: int) -> dict[str, str]:
    """The facts as ROCKETCREW_* properties, the long ones cut where the message's own `others_bytes` leave no room.

    A control character would be taken for a separator.
    """
    room = PROPERTIES_BYTES_MAX - others_bytes
    found: dict[str, str] = {}
    for name, value in sorted(facts.items(), key=lambda fact: len(fact[1])):
        clean = "".join(char if char >= " " or char in "\n\t" else " " for char in value)
        room -= len(FACT_PREFIX) + len(name) + 2
        text = clean.encode("utf-8", "replace")[: max(room, 0)].decode("utf-8", "ignore")
        if text:
            found[FACT_PREFIX + name.upper()] = text
            room -= len(text.encode())
    return found


def properties_bytes(properties: Mapping[str, str]) -> int:
    """Length of the property string."""
    return sum(len(name.encode()) + len(value.encode()) + 2 for name, value in properties.items())


def is_too_long(error: BrokerError, properties: Mapping[str, str]) -> bool:
    """Whether a send was refused for the length of its properties; brokers have one code for that and for bad bodies."""
    return error.code == ResponseCode.MESSAGE_ILLEGAL and properties_bytes(properties) > PROPERTIES_BYTES_MAX


def has_room_for_retry(message: StoredMessage, group: str) -> bool:
    """Whether a retry topic can hold the message with what client and broker add to it."""
    most = {**of_a_retry(message, group), "RECONSUME_TIME": "99", "MAX_RECONSUME_TIMES": str(1 << 31), "DELAY": "18"}
    most["REAL_TOPIC"] = RETRY_PREFIX + group
    return properties_bytes(most) + BROKERS_OWN_BYTES <= PROPERTIES_MAX_BYTES


def cut_to_fit(properties: Mapping[str, str]) -> dict[str, str]:
    """The properties within PROPERTIES_BYTES_MAX: without the longest, which are named in one of ours."""
    kept, cut = dict(properties), list[str]()
    left = properties_bytes(properties)
    lengths = {name: properties_bytes({name: value}) for name, value in properties.items() if name not in _NEVER_CUT}
    for name in sorted(lengths, key=lengths.__getitem__, reverse=True):
        if left <= PROPERTIES_BYTES_MAX:
            break
        left -= lengths[name]
        del kept[name]
        cut.append(f"{name[:100]} ({lengths[name]} bytes)")
    if cut:
        more = f" and {len(cut) - CUT_NAMES_MAX} more" if len(cut) > CUT_NAMES_MAX else ""
        kept[CUT] = ", ".join(cut[:CUT_NAMES_MAX]) + more
    return kept


def first_attempt(message: StoredMessage) -> dict[str, str]:
    """The properties of a dead letter as its next first attempt has them."""
    return {
        name: value
        for name, value in _noted(message, _origin_topic(message)).items()
        if name not in _OF_THE_END and not name.startswith(FACT_PREFIX)
    }


def of_a_retry(message: StoredMessage, group: str) -> dict[str, str]:
    """The properties that every record after the first has."""
    return _noted(message, message.topic if _is_of_another(message, group) else _origin_topic(message))


def _noted(message: StoredMessage, topic: str) -> dict[str, str]:
    origin = message.properties.get("ORIGIN_MESSAGE_ID") or message.properties.get("DLQ_ORIGIN_MESSAGE_ID")
    properties = {
        **message.properties,
        "ORIGIN_MESSAGE_ID": origin or message.offset_message_id,
        "RETRY_TOPIC": topic,
    }
    properties.pop("TRAN_MSG", None)
    return properties


def _is_of_another(message: StoredMessage, group: str) -> bool:
    """Another group's retry, or a dead letter of any."""
    return is_of_group(message.topic) and message.topic != RETRY_PREFIX + group


def goes_anew(action: SendBackAction, message: StoredMessage, group: str, *, locks: bool) -> bool:
    """Whether it goes by an ordinary send though its broker may be there: a last attempt, as with Java's orderly service, and
    what a broker's send-back would leave the note of another topic of than the one that this group has it of. That is left
    where the group `locks` its queues and the message is to come again: what such a group sends is a dead letter."""
    return action.mode is Mode.LAST_ATTEMPT or (_loses_topic(message, group) and (action.last or not locks))


def _loses_topic(message: StoredMessage, group: str) -> bool:
    return _is_of_another(message, group) and message.properties.get("RETRY_TOPIC", message.topic) != message.topic


def _origin_topic(message: StoredMessage) -> str:
    return message.properties.get("RETRY_TOPIC") or message.properties.get("DLQ_ORIGIN_TOPIC") or message.topic
