"""Every error of rocketcrew: whose fault it is, and what can be done about it.

One base, then one class per *party at fault*, never one per code: ours or the user's (`UsageError`), the peer's bytes
(`ProtocolError`), the broker's refusal (`BrokerError`, its code as data), the network (`UnreachableError`). Whether trying
again may help is the function `retriable`, because it depends on the code and not on the class.

All of them survive pickling (their `args` are their constructor arguments), as they may cross process borders.
"""

from __future__ import annotations

from .codes import ResponseCode

# What Java's DefaultMQProducer retries on (CL/producer/DefaultMQProducer.java, retryResponseCodes), plus the two by which
# a server asks for patience: FLOW_CONTROL and GO_AWAY.
RETRIABLE_CODES = frozenset(
    {
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
        ResponseCode.FLOW_CONTROL,
        ResponseCode.GO_AWAY,
    }
)


class RocketcrewError(Exception):
    """Base of all errors that rocketcrew raises on purpose."""


class UsageError(RocketcrewError):
    """Our or the user's fault: arguments, configuration, use of a handler. The commands exit with 2."""


class ProtocolError(RocketcrewError):
    """The peer sent bytes that cannot be right. `what` is wrong, `where` says in which part of which thing."""

    def __init__(self, what: str, where: str) -> None:
        super().__init__(what, where)
        self.what = what
        self.where = where

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


class BrokerError(RocketcrewError):
    """The broker or name server said no. `code` is a `ResponseCode` where it is a known one."""

    def __init__(self, code: int, remark: str, request: str) -> None:
        super().__init__(code, remark, request)
        self.code = code
        self.remark = remark
        self.request = request

    def __str__(self) -> str:
        name = ResponseCode(self.code).name if self.code in _KNOWN_CODES else "unknown code"
        return f"{self.request} was refused: {self.code} {name}: {self.remark or 'no remark'}"


class UnreachableError(RocketcrewError):
    """Connecting failed, or the connection was lost before an answer came. `address` is "host:port"."""

    def __init__(self, address: str, reason: str = "cannot be reached") -> None:
        super().__init__(address, reason)
        self.address = address
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.address}: {self.reason}"


class TimedOutError(UnreachableError):
    """No answer within the deadline. What was asked may or may not have been done."""


_KNOWN_CODES = frozenset(int(code) for code in ResponseCode)


def retriable(error: BaseException) -> bool:
    """Whether the same request, to this broker later or to another one now, has a chance."""
    if isinstance(error, BrokerError):
        return error.code in RETRIABLE_CODES
    return isinstance(error, UnreachableError)
