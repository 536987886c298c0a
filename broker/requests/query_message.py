"""QUERY_MESSAGE 12: messages of a topic by key or unique id (BR/processor/QueryMessageProcessor.queryMessage).

The index says where to look (key_index.py); each record is compared with the key, newest first. Of what waits in a topic of
the broker's own an account sees by key what it may read in the topic that it waits for.
"""

from __future__ import annotations

from ...remoting.codes import RequestCode, ResponseCode
from ...remoting.command import Command
from ...remoting.headers import QueryMessage, QueryMessageResponse
from ...remoting.properties import PROPERTY_KEYS, PROPERTY_UNIQ_KEY, find_property
from ...remoting.stored import decode_message, record_info
from ..acl import WAITING, Account
from ..refusal import Refused
from ..state import BrokerState, Call

CODES = (RequestCode.QUERY_MESSAGE,)
UNIQUE_ANSWERS_MAX = 32
ANSWERS_MAX = 64
BODY_MAX_BYTES = 4 << 20  # enough for the largest message, far below the largest frame


def handle(state: BrokerState, call: Call) -> Command:
    request = QueryMessage.from_fields(call.command.fields)
    count_max = UNIQUE_ANSWERS_MAX if request.unique_key_query else min(max(request.max_num, 1), ANSWERS_MAX)
    found: list[bytes] = []
    bytes_left = BODY_MAX_BYTES
    for record in state.store.find(request.topic, request.key, request.begin_timestamp, request.end_timestamp):
        if len(found) >= count_max or bytes_left <= 0:
            break
        has = has_key(record, request.key.encode(), bool(request.unique_key_query))
        if has and _is_shown(record, request.topic, call.account):
            found.append(record)
            bytes_left -= len(record)
    if not found:
        raise Refused(ResponseCode.QUERY_NOT_FOUND, "can not find message, maybe time range not correct")
    fields = QueryMessageResponse(call.now_ms, state.store.log_end).to_fields()
    return call.command.response(ResponseCode.SUCCESS, fields, b"".join(found))


def _is_shown(record: bytes, topic: str, account: Account | None) -> bool:
    return account is None or topic not in WAITING or account.may_see(decode_message(record, check_crc=False))


def has_key(record: bytes, key: bytes, unique: bool) -> bool:
    properties = record[record_info(record).properties_start :]
    if find_property(properties, PROPERTY_UNIQ_KEY.encode()) == key:
        return True
    keys = find_property(properties, PROPERTY_KEYS.encode())
    return not unique and keys is not None and key in keys.split(b" ")
