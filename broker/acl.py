"""Who may do what: RocketMQ's plain ACL (acl/plain/PlainAccessValidator.java, PlainPermissionManager.java). Pure.

Every request to the broker must be signed by an account, as AclClientRPCHook does it. A topic needs PUB to send and SUB to
read, a group SUB. An account's own list counts before its defaults; without both all is denied, and administrators may do
everything. The name server answers routes to everybody, as the genuine one does; what changes it needs an administrator.

Beyond the genuine checks: whoever names a message by its place in the log (33, 36, 309) needs SUB on its topic, whoever ends
a transaction (37) PUB on the topic of its message, and producers are asked after a transaction (39) only over connections
whose account has that. Replies (324, 325) and recalls need PUB on their topic; locks of queues, running info and direct
consumption SUB on the group. Any account may ask about topics, groups, offsets and members; that shows no message. A reply
goes to whatever client it names, whoever that is. What waits in a topic of the broker's own (delayed, timed and half
messages) only administrators read there, whatever an account's default is: it is of all topics, also of denied ones. Whoever
asks for a delayed message by its unique key (12) is shown it where the account has SUB on the topic that it waits for.

The accounts are a TOML file, with the names of RocketMQ's plain_acl.yml:

    [[accounts]]
    accessKey = "crew"
    secretKey = "a long secret"
    admin = false
    defaultTopicPerm = "DENY"
    defaultGroupPerm = "SUB"
    topicPerms = ["orders=PUB|SUB"]
    groupPerms = ["audit=DENY"]
"""

from __future__ import annotations

import hmac
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from ..client.access import Credentials
from ..client.request_rules import ACCESS_KEY, SIGNATURE, sign
from ..remoting.bodies import HeartbeatData, LockBatch
from ..remoting.codes import RequestCode, ResponseCode
from ..remoting.command import Command
from ..remoting.errors import UsageError
from ..remoting.fastjson import is_array, is_object
from ..remoting.headers import ConsumeDirectly, EndTransaction, QueryMessage, SendBack, ViewMessage
from ..remoting.ids import parse_offset_message_id
from ..remoting.names import RETRY_PREFIX, SCHEDULE_TOPIC
from ..remoting.pop_headers import BatchAckBody
from ..remoting.properties import PROPERTY_FIRST_POP_TIME, PROPERTY_REAL_TOPIC
from ..remoting.stored import StoredMessage
from .refusal import Refused
from .topic_table import TIMER_TOPIC
from .transactions import GIVEN_UP_TOPIC, HALF_TOPIC, OP_TOPIC

ADMIN_CODES = frozenset(
    {
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
        RequestCode.UPDATE_BROKER_CONFIG,
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        RequestCode.SET_MESSAGE_REQUEST_MODE,
        RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE,
        RequestCode.CLEAN_UNUSED_TOPIC,
        RequestCode.DELETE_EXPIRED_COMMITLOG,
    }
)
"""What only administrators may ask of the broker: the genuine list, and what else changes the broker for everybody."""

NAME_SERVER_ADMIN_CODES = frozenset(
    {
        RequestCode.PUT_KV_CONFIG,
        RequestCode.DELETE_KV_CONFIG,
        RequestCode.DELETE_TOPIC_IN_NAMESRV,
        RequestCode.WIPE_WRITE_PERM_OF_BROKER,
        RequestCode.ADD_WRITE_PERM_OF_BROKER,
        RequestCode.REGISTER_BROKER,
        RequestCode.UNREGISTER_BROKER,
    }
)

PUB, SUB = "PUB", "SUB"
PERMISSIONS = {
    "DENY": frozenset[str](),
    "PUB": frozenset({PUB}),
    "SUB": frozenset({SUB}),
    "PUB|SUB": frozenset({PUB, SUB}),
    "SUB|PUB": frozenset({PUB, SUB}),
}
Permissions = Mapping[str, frozenset[str]]

# Names of the fields with a topic to send to, with a topic to read, and with a group.
_SENT_TO: dict[int, str] = {
    RequestCode.SEND_MESSAGE: "topic",
    RequestCode.SEND_MESSAGE_V2: "b",
    RequestCode.SEND_BATCH_MESSAGE: "b",
    RequestCode.SEND_REPLY_MESSAGE: "topic",
    RequestCode.SEND_REPLY_MESSAGE_V2: "b",
    RequestCode.RECALL_MESSAGE: "topic",
}
_TOPIC_READ = frozenset(
    {
        RequestCode.PULL_MESSAGE,
        RequestCode.LITE_PULL_MESSAGE,
        RequestCode.QUERY_MESSAGE,
        RequestCode.UPDATE_CONSUMER_OFFSET,
        RequestCode.POP_MESSAGE,
        RequestCode.ACK_MESSAGE,
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
    }
)
_GROUP_READ: dict[int, str] = {
    RequestCode.PULL_MESSAGE: "consumerGroup",
    RequestCode.LITE_PULL_MESSAGE: "consumerGroup",
    RequestCode.UPDATE_CONSUMER_OFFSET: "consumerGroup",
    RequestCode.POP_MESSAGE: "consumerGroup",
    RequestCode.ACK_MESSAGE: "consumerGroup",
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: "consumerGroup",
    RequestCode.UNREGISTER_CLIENT: "consumerGroup",
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: "consumerGroup",
    RequestCode.CONSUMER_SEND_MSG_BACK: "group",
    RequestCode.GET_CONSUMER_RUNNING_INFO: "consumerGroup",
    RequestCode.CONSUME_MESSAGE_DIRECTLY: "consumerGroup",
}
WAITING = frozenset({SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC, GIVEN_UP_TOPIC})
"""Topics with messages of others."""
_OF_ADMINISTRATORS = WAITING | {OP_TOPIC}
_IN_FLIGHT = frozenset({RequestCode.ACK_MESSAGE, RequestCode.CHANGE_MESSAGE_INVISIBLETIME})

MessageAt = Callable[[int], StoredMessage | None]
"""The message at a position of the log, None when there is none. Raises StorageError."""


class Need(NamedTuple):
    """A permission that a request needs."""

    is_group: bool
    name: str
    permission: str


@dataclass(frozen=True, slots=True)
class Account:
    """One of the file. What the lists do not name has the default."""

    credentials: Credentials
    is_admin: bool = False
    default_topic: frozenset[str] = frozenset()
    default_group: frozenset[str] = frozenset()
    topics: Permissions = field(default_factory=dict[str, frozenset[str]])
    groups: Permissions = field(default_factory=dict[str, frozenset[str]])

    def has(self, need: Need) -> bool:
        if _is_of_administrators(need):
            return self.is_admin
        own = (self.groups if need.is_group else self.topics).get(need.name)
        default = self.default_group if need.is_group else self.default_topic
        return self.is_admin or need.permission in (default if own is None else own)

    def may_send(self, topic: str) -> bool:
        return self.has(_topic(topic, PUB))

    def may_see(self, message: StoredMessage) -> bool:
        return self.has(_topic(_real_topic(message), SUB))


class Acl:
    """The accounts of one broker."""

    def __init__(self, accounts: Mapping[str, Account]) -> None:
        self._accounts = accounts

    def check_broker(self, command: Command, message_at: MessageAt = lambda _: None) -> Account:
        """The account that signed the request. Raises Refused unless it is signed and the account may do it, ProtocolError
        for a header or body that is none; StorageError of `message_at`, which finds messages that are named by their place.
        """
        account = self._account(command)
        if account.is_admin:
            return account
        _refuse_unless(command.code not in ADMIN_CODES, _admin_remark(command, account))
        for need in (*needs_of(command), *needs_of_named(command, message_at)):
            name = RETRY_PREFIX + need.name if need.is_group else need.name
            _refuse_unless(not _is_of_administrators(need), f"Need admin permission for topic {name}")
            is_default = need.name not in (account.groups if need.is_group else account.topics)
            _refuse_unless(account.has(need), f"No {'default ' * is_default}permission for {name}")
        return account

    def check_name_server(self, command: Command) -> None:
        """Raises Refused for what changes the name server and is not signed by an administrator."""
        if command.code in NAME_SERVER_ADMIN_CODES:
            account = self._account(command)
            _refuse_unless(account.is_admin, _admin_remark(command, account))

    def _account(self, command: Command) -> Account:
        """The account that signed it."""
        key = command.fields.get(ACCESS_KEY)
        _refuse_unless(bool(key), "No accessKey is configured")
        account = self._accounts.get(key or "")
        if account is None:
            raise Refused(ResponseCode.NO_PERMISSION, f"No acl config for {key}")
        signed = replace(command, fields=dict(command.fields))
        sign(signed, replace(account.credentials, security_token=command.fields.get("SecurityToken", "")))
        told = command.fields.get(SIGNATURE, "")
        is_right = hmac.compare_digest(signed.fields[SIGNATURE].encode(), told.encode())
        _refuse_unless(is_right, f"Check signature failed for accessKey={key}")
        return account


def needs_of(command: Command) -> Iterator[Need]:
    """What an account that is no administrator needs for a request. Raises ProtocolError for a body that is none."""
    code, fields = command.code, command.fields
    if code == RequestCode.HEART_BEAT:
        for consumer in HeartbeatData.decode(command.body).consumer_data_set:
            yield Need(True, consumer.group_name, SUB)
            for subscription in consumer.subscription_data_set:
                yield _topic(subscription.topic, SUB)
    elif code == RequestCode.BATCH_ACK_MESSAGE:
        for ack in BatchAckBody.decode(command.body).acks:
            yield Need(True, ack.consumer_group, SUB)
            yield _popped(ack.topic, ack.consumer_group)
    elif code in (RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ):
        yield Need(True, LockBatch.decode(command.body).consumer_group, SUB)
    elif topic := fields.get(_SENT_TO.get(code, "")):
        yield _topic(topic, PUB)
    if code in _TOPIC_READ and (topic := fields.get("topic")) and not _is_filtered(command, topic):
        yield _popped(topic, fields.get("consumerGroup", "")) if code in _IN_FLIGHT else _topic(topic, SUB)
    if group := fields.get(_GROUP_READ.get(code, "")):
        yield Need(True, group, SUB)


def _is_filtered(command: Command, topic: str) -> bool:
    """Whether the answer has only what the account may see (requests/query_message.py)."""
    is_query = command.code == RequestCode.QUERY_MESSAGE and topic == SCHEDULE_TOPIC
    return is_query and bool(QueryMessage.from_fields(command.fields).unique_key_query)


def needs_of_named(command: Command, message_at: MessageAt) -> Iterator[Need]:
    """What is needed besides for the message that a request names by its place. Raises ProtocolError, StorageError."""
    code, fields, group = command.code, command.fields, ""
    if code == RequestCode.END_TRANSACTION:
        half = message_at(EndTransaction.from_fields(fields).commit_log_offset)
        if half is not None:
            yield _topic(_real_topic(half), PUB)
        return
    if code == RequestCode.VIEW_MESSAGE_BY_ID:
        place = ViewMessage.from_fields(fields).offset
    elif code == RequestCode.CONSUMER_SEND_MSG_BACK:
        request = SendBack.from_fields(fields)
        place, group = request.offset, request.group
    elif code == RequestCode.CONSUME_MESSAGE_DIRECTLY:
        direct = ConsumeDirectly.from_fields(fields)
        place, group = parse_offset_message_id(direct.msg_id or "").physical_offset, direct.consumer_group
    else:
        return
    message = message_at(place)
    if message is not None:
        topic = _real_topic(message)
        yield _popped(topic, group) if PROPERTY_FIRST_POP_TIME in message.properties else _topic(topic, SUB)


def _real_topic(message: StoredMessage) -> str:
    """Where the message belongs; one that waits (a half, delayed or timed message) stands in a topic of the broker's own."""
    return message.properties.get(PROPERTY_REAL_TOPIC, message.topic) if message.topic in WAITING else message.topic


def _popped(topic: str, group: str) -> Need:
    """For what a group has popped from a topic, or from the retry topic of both (V1 `%RETRY%group_topic`, V2 with a plus);
    SUB on the group is needed besides."""
    for separator in "_+":
        prefix = f"{RETRY_PREFIX}{group}{separator}"
        if group and topic.startswith(prefix):
            return Need(False, topic.removeprefix(prefix), SUB)
    return _topic(topic, SUB)


def _topic(name: str, permission: str) -> Need:
    """A retry topic is its group's: who may read for the group may send there."""
    if name.startswith(RETRY_PREFIX):
        return Need(True, name.removeprefix(RETRY_PREFIX), SUB)
    return Need(False, name, permission)


def _admin_remark(command: Command, account: Account) -> str:
    return (
        f"Need admin permission for request code={command.code}, but accessKey={account.credentials.access_key} is not"
    )


def _is_of_administrators(need: Need) -> bool:
    return not need.is_group and need.name in _OF_ADMINISTRATORS


def _refuse_unless(is_fine: bool, remark: str) -> None:
    if not is_fine:
        raise Refused(ResponseCode.NO_PERMISSION, remark)


# The file

_KEYS = {"accessKey", "secretKey", "admin", "defaultTopicPerm", "defaultGroupPerm", "topicPerms", "groupPerms"}


def parse_acl(text: str, where: str) -> Acl:
    """The accounts of a file's `text`. Raises UsageError, naming `where` and what is wrong in it, and no secret."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"ACL file {where} is no TOML: {error}") from None
    entries: object = document.get("accounts")
    if document.keys() != {"accounts"} or not is_array(entries) or not entries:
        raise UsageError(f"ACL file {where} needs [[accounts]], each with accessKey and secretKey, and nothing else")
    accounts: dict[str, Account] = {}
    for number, entry in enumerate(entries, 1):
        at = f"ACL file {where}, account {number}"
        if not is_object(entry):
            raise UsageError(f"{at} is no table: write [[accounts]]")
        account = _account_in(entry, at)
        key = account.credentials.access_key
        if key in accounts:
            raise UsageError(f"{at}: accessKey {key} is there already")
        accounts[key] = account
    return Acl(accounts)


def _account_in(entry: dict[Any, Any], at: str) -> Account:
    unknown = sorted(entry.keys() - _KEYS)
    if unknown:
        raise UsageError(f"{at}: {unknown[0]} is not known here; known are {', '.join(sorted(_KEYS))}")
    for name in ("accessKey", "secretKey"):
        if not isinstance(entry.get(name), str) or len(entry[name]) <= 6:
            raise UsageError(f"{at}: {name} must be a text of more than 6 characters, as in RocketMQ")
    admin: object = entry.get("admin", False)
    if not isinstance(admin, bool):
        raise UsageError(f"{at}: admin must be true or false")
    return Account(
        Credentials(entry["accessKey"], entry["secretKey"]),
        admin,
        _permission(entry.get("defaultTopicPerm", "DENY"), f"{at}: defaultTopicPerm"),
        _permission(entry.get("defaultGroupPerm", "DENY"), f"{at}: defaultGroupPerm"),
        _permissions(entry.get("topicPerms", []), f"{at}: topicPerms", of_topics=True),
        _permissions(entry.get("groupPerms", []), f"{at}: groupPerms", of_topics=False),
    )


def _permission(value: object, at: str) -> frozenset[str]:
    if not isinstance(value, str) or value.strip() not in PERMISSIONS:
        raise UsageError(f"{at} = {value!r}: one of {', '.join(PERMISSIONS)} is possible")
    return PERMISSIONS[value.strip()]


def _permissions(value: object, at: str, *, of_topics: bool) -> dict[str, frozenset[str]]:
    if not is_array(value):
        raise UsageError(f'{at} must be a list, each "name=permission"')
    found: dict[str, frozenset[str]] = {}
    for item in value:
        name, equals, permission = str(item).partition("=")
        if not equals or not name.strip():
            raise UsageError(f'{at}: {item!r} must be "name=permission"')
        if name.strip().startswith(RETRY_PREFIX):
            group = name.strip().removeprefix(RETRY_PREFIX)
            raise UsageError(
                f'{at}: a retry topic is its group\'s: use groupPerms = ["{group}=SUB"] for {name.strip()}'
            )
        found[name.strip()] = _permission(permission, f"{at}: {name.strip()}")
        if found[name.strip()] and name.strip() in _OF_ADMINISTRATORS and of_topics:
            raise UsageError(
                f"{at}: {name.strip()} has messages of all topics: only administrators read it (admin = true)"
            )
    return found
