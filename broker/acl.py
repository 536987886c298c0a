"""Who may do what: RocketMQ's plain ACL (acl/plain/PlainAccessValidator.java, PlainPermissionManager.java). Pure.

Every request to the broker must be signed by an account, as AclClientRPCHook does it. A topic needs PUB to send and SUB to
read, a group SUB. An account's own list counts before its defaults; without both all is denied, and administrators may do
everything. The name server answers routes to everybody, as the genuine one does; what changes it needs an administrator.

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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from ..client.access import Credentials
from ..client.request_rules import ACCESS_KEY, SIGNATURE, sign
from ..remoting.bodies import HeartbeatData
from ..remoting.codes import RequestCode, ResponseCode
from ..remoting.command import Command
from ..remoting.errors import UsageError
from ..remoting.fastjson import is_array, is_object
from ..remoting.names import RETRY_PREFIX
from ..remoting.pop_headers import BatchAckBody
from .refusal import Refused

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
}


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


class Acl:
    """The accounts of one broker."""

    def __init__(self, accounts: Mapping[str, Account]) -> None:
        self._accounts = accounts

    def check_broker(self, command: Command) -> None:
        """Raises Refused unless the request is signed, and its account may do it; ProtocolError for a body that is none."""
        account = self._account(command)
        if account.is_admin:
            return
        _refuse_unless(command.code not in ADMIN_CODES, _admin_remark(command, account))
        for need in needs_of(command):
            own = (account.groups if need.is_group else account.topics).get(need.name)
            default = account.default_group if need.is_group else account.default_topic
            name = RETRY_PREFIX + need.name if need.is_group else need.name
            if own is None:
                _refuse_unless(need.permission in default, f"No default permission for {name}")
            else:
                _refuse_unless(need.permission in own, f"No permission for {name}")

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
            yield _topic(ack.topic, SUB)
    elif topic := fields.get(_SENT_TO.get(code, "")):
        yield _topic(topic, PUB)
    if code in _TOPIC_READ and (topic := fields.get("topic")):
        yield _topic(topic, SUB)
    if group := fields.get(_GROUP_READ.get(code, "")):
        yield Need(True, group, SUB)


def _topic(name: str, permission: str) -> Need:
    """A retry topic is its group's: who may read for the group may send there."""
    if name.startswith(RETRY_PREFIX):
        return Need(True, name.removeprefix(RETRY_PREFIX), SUB)
    return Need(False, name, permission)


def _admin_remark(command: Command, account: Account) -> str:
    return (
        f"Need admin permission for request code={command.code}, but accessKey={account.credentials.access_key} is not"
    )


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
        _permissions(entry.get("topicPerms", []), f"{at}: topicPerms"),
        _permissions(entry.get("groupPerms", []), f"{at}: groupPerms"),
    )


def _permission(value: object, at: str) -> frozenset[str]:
    if not isinstance(value, str) or value.strip() not in PERMISSIONS:
        raise UsageError(f"{at} = {value!r}: one of {', '.join(PERMISSIONS)} is possible")
    return PERMISSIONS[value.strip()]


def _permissions(value: object, at: str) -> dict[str, frozenset[str]]:
    if not is_array(value):
        raise UsageError(f'{at} must be a list, each "name=permission"')
    found: dict[str, frozenset[str]] = {}
    for item in value:
        name, equals, permission = str(item).partition("=")
        if not equals or not name.strip():
            raise UsageError(f'{at}: {item!r} must be "name=permission"')
        found[name.strip()] = _permission(permission, f"{at}: {name.strip()}")
    return found
