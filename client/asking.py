"""One request with a typed header, its answer judged: the step that every operation is made of."""

from __future__ import annotations

from collections.abc import Collection

from ..remoting.codes import RequestCode, ResponseCode
from ..remoting.command import Command
from ..remoting.errors import BrokerError, UnreachableError
from ..remoting.fields import Header
from .connection import name_of_request
from .pending import BodySink
from .remoting_client import Remoting

_SUCCESS = frozenset({int(ResponseCode.SUCCESS)})
_TAKES_NOTHING = frozenset({ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE})
"""How slaves refuse what is sent to them (SendMessageProcessor.java, rejectRequest and handlePutMessageResult)."""


async def ask(
    remoting: Remoting,
    address: str,
    code: RequestCode,
    header: Header | None = None,
    *,
    body: bytes = b"",
    timeout_ms: float,
    accept: Collection[int] = _SUCCESS,
    body_sink: BodySink | None = None,
) -> Command:
    """Ask `address`; the answer if its code is one of `accept`.

    Raises BrokerError with any other code, UnreachableError (TimedOutError) when there is no answer.
    """
    command = Command(int(code), header.to_fields() if header is not None else {}, body)
    answer = await remoting.request(address, command, timeout_ms=timeout_ms, body_sink=body_sink)
    if answer.code not in accept:
        raise refusal(answer, code, address)
    return answer


def refusal(answer: Command, code: int, address: str) -> BrokerError:
    """The error that this answer means; its request says what was asked of whom."""
    return BrokerError(answer.code, answer.remark or "", f"{name_of_request(code)} at {address}")


def is_refusal(code: int, remark: str) -> bool:
    """Whether a broker's answer says that the account, or the group, may not do what was asked."""
    # 4.9 answers what its access control refuses with code 1 and the exception's name.
    return code == ResponseCode.NO_PERMISSION or "AclException" in remark


def may_be_elsewhere(error: BaseException) -> bool:
    """Whether the master that was asked, to store something, may have another address by now."""
    return isinstance(error, UnreachableError) or (isinstance(error, BrokerError) and error.code in _TAKES_NOTHING)


def is_missing_topic(error: BaseException) -> bool:
    """Whether it is the answer that there is no such topic, or no longer."""
    return isinstance(error, BrokerError) and error.code == ResponseCode.TOPIC_NOT_EXIST
