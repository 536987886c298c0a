"""What every request gets before it leaves: the namespace's fields, the signature, and perhaps the other port. Pure.

The order is Java's (client/impl/MQClientAPIImpl.java, constructor): first the fields of a namespace of the second version,
then the signature, which covers every field that is on the wire.

The signature (acl/common/AclClientRPCHook.java, AclUtils.java) is the Base64 of HMAC-SHA1 over the values of all fields in
the order of their names, then the body; names, code and opaque are not in it. Both eras take the same one: PlainAccess of
4.x and the authentication of 5.x. Name servers do not look at it, and get it all the same, as from Java.

The vip channel is a second port of each broker, two below the first (common/MixAll.java brokerVIPChannel): for all but
heartbeats, pulls, and what name servers answer. Off by default, as in Java since 4.x.
"""

from __future__ import annotations

import base64
import hmac

from ..remoting.codes import RequestCode
from ..remoting.command import Command, Serialization
from .access import Access, Credentials

ACCESS_KEY, SECURITY_TOKEN, SIGNATURE = "AccessKey", "SecurityToken", "Signature"
NAMESPACED, NAMESPACE = "nsd", "ns"
VIP_PORT_BELOW = 2

VIP_CODES = frozenset(
    {
        RequestCode.CHECK_CLIENT_CONFIG,
        RequestCode.CONSUMER_SEND_MSG_BACK,
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        RequestCode.GET_ALL_TOPIC_CONFIG,
        RequestCode.GET_BROKER_RUNTIME_INFO,
        RequestCode.GET_CONSUMER_CONNECTION_LIST,
        RequestCode.GET_CONSUMER_LIST_BY_GROUP,
        RequestCode.GET_CONSUMER_RUNNING_INFO,
        RequestCode.GET_CONSUME_STATS,
        RequestCode.GET_EARLIEST_MSG_STORETIME,
        RequestCode.GET_MAX_OFFSET,
        RequestCode.GET_MIN_OFFSET,
        RequestCode.GET_PRODUCER_CONNECTION_LIST,
        RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG,
        RequestCode.GET_TOPIC_CONFIG,
        RequestCode.GET_TOPIC_STATS_INFO,
        RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        RequestCode.LOCK_BATCH_MQ,
        RequestCode.QUERY_ASSIGNMENT,
        RequestCode.QUERY_CONSUMER_OFFSET,
        RequestCode.QUERY_MESSAGE,
        RequestCode.QUERY_TOPICS_BY_CONSUMER,
        RequestCode.QUERY_TOPIC_CONSUME_BY_WHO,
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SET_MESSAGE_REQUEST_MODE,
        RequestCode.UNLOCK_BATCH_MQ,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.UPDATE_CONSUMER_OFFSET,
        RequestCode.VIEW_MESSAGE_BY_ID,
    }
)
"""Requests that go through the vip channel: those whose methods in MQClientAPIImpl.java call brokerVIPChannel."""


class RequestRules:
    """The rules of one access, called with each request just before it is sent; `command.fields` is changed in place."""

    def __init__(self, access: Access) -> None:
        self._namespace_v2 = access.namespace_v2
        self._credentials = access.credentials
        self._vip = access.vip_channel_enabled

    def address_for(self, address: str, command: Command) -> str:
        """Where this request goes."""
        return vip_address(address) if self._vip and command.code in VIP_CODES else address

    def finish(self, command: Command) -> None:
        """Add what every request carries. A command that is sent again is signed anew."""
        if self._namespace_v2:
            command.fields[NAMESPACED] = "true"
            command.fields[NAMESPACE] = self._namespace_v2
        if self._credentials is not None:
            sign(command, self._credentials)


def sign(command: Command, credentials: Credentials) -> None:
    """Put the access key, the token if there is one, and the signature into the command's fields."""
    fields = command.fields
    fields[ACCESS_KEY] = credentials.access_key
    if credentials.security_token:
        fields[SECURITY_TOKEN] = credentials.security_token
    fields.pop(SIGNATURE, None)
    # Java sorts by UTF-16 units; names of fields are ASCII. An empty value of a binary header is read as null there,
    # and "null" is what the server then adds.
    empty = "null" if command.serialization == Serialization.ROCKETMQ else ""
    text = "".join(fields[name] or empty for name in sorted(fields))
    digest = hmac.new(credentials.secret_key.encode(), text.encode(), "sha1")
    digest.update(command.body)
    fields[SIGNATURE] = base64.b64encode(digest.digest()).decode("ascii")


def vip_address(address: str) -> str:
    """The address two ports below."""
    host, _, port = address.rpartition(":")
    return f"{host}:{int(port) - VIP_PORT_BELOW}"
