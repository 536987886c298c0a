"""Faults that a test plants in the embedded broker: requests that are refused, not answered, or late, by code and count.

    with rocketmq.faults.refuse("SEND_MESSAGE_V2", times=2) as fault:
        producer.send(...)              # the producer tries again
    assert fault.hits == 2

A fault is over when it has happened `times` times, when it is removed, or when its `with` block or the test ends.
"""

from __future__ import annotations

import difflib
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self, TypeVar

from ..broker.effects import SILENCE, Intercept, Later
from ..remoting.arguments import MILLISECONDS, NONE, SECONDS, TEXT, WHOLE, check, shown, whole
from ..remoting.codes import RequestCode, ResponseCode
from ..remoting.command import Command
from ..remoting.errors import UsageError

E = TypeVar("E", RequestCode, ResponseCode)

OF_NAME_SERVERS: Final = frozenset({RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.GET_BROKER_CLUSTER_INFO})
"""Requests that clients send to name servers."""


class Fault:
    """One planted fault; a context manager that removes it."""

    def __init__(
        self, code: RequestCode, times: int | None, answer: Callable[[Command], Command | Later],
        removed: Callable[[Fault], None],
    ) -> None:  # fmt: skip
        self.code = code
        self.hits = 0
        """How many requests it has met."""
        self._times = times
        self._answer = answer
        self._removed = removed
        self._met = threading.Condition()

    def __call__(self, command: Command) -> Command | Later | None:
        """As the broker's intercept."""
        if command.code != self.code or (self._times is not None and self.hits >= self._times):
            return None
        with self._met:
            self.hits += 1
            self._met.notify_all()
        return self._answer(command)

    def wait(self, hits: int = 1, timeout_s: float = 60.0) -> None:
        """Wait until it has met so many requests. Raises TimeoutError."""
        taken = check("wait", {"hits": hits, "timeout_s": timeout_s}, {"hits": WHOLE, "timeout_s": SECONDS})
        timeout_s = taken["timeout_s"]
        with self._met:
            if not self._met.wait_for(lambda: self.hits >= hits, timeout_s):
                raise TimeoutError(f"{self.code.name}: {self.hits} of {hits} requests came within {timeout_s:g} s")

    def remove(self) -> None:
        """It happens no more."""
        self._removed(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()


class Faults:
    """The faults of one broker and its name server. `code` is a name ("PULL_MESSAGE") or number of remoting/codes.py's
    RequestCode; `times` None = until it is removed."""

    def __init__(self, broker: list[Intercept], name_server: list[Intercept]) -> None:
        self._broker = broker
        self._name_server = name_server
        self._planted: list[Fault] = []

    def refuse(
        self,
        code: str | int,
        *,
        times: int | None = 1,
        response: str | int = "SYSTEM_BUSY",
        remark: str = "planted by a test",
    ) -> Fault:
        """Answer with an error, by the name or number of a ResponseCode."""
        answer = _member(ResponseCode, response, "response")
        check("refuse", {"remark": remark}, {"remark": TEXT})
        return self._plant(code, times, lambda command: command.response(answer, remark=remark))

    def drop(self, code: str | int, *, times: int | None = 1) -> Fault:
        """Do nothing and answer nothing: the client's time-out decides."""
        return self._plant(code, times, lambda _: SILENCE)

    def delay(self, code: str | int, *, delay_ms: int, times: int | None = 1) -> Fault:
        """Let the request arrive so much later. Raises UsageError for requests to name servers."""
        if _member(RequestCode, code, "code") in OF_NAME_SERVERS:
            raise UsageError(f"{code} is for name servers, whose answers cannot be delayed: refuse or drop it")
        taken = check("delay", {"delay_ms": delay_ms}, {"delay_ms": MILLISECONDS})
        return self._plant(code, times, lambda _: Later(taken["delay_ms"]))

    def clear(self) -> None:
        """Remove all."""
        for fault in list(self._planted):
            fault.remove()

    def _plant(self, code: str | int, times: int | None, answer: Callable[[Command], Command | Later]) -> Fault:
        wanted = _member(RequestCode, code, "code")
        check("a fault", {"times": times}, {"times": whole(1) | NONE})
        where = self._name_server if wanted in OF_NAME_SERVERS else self._broker
        fault = Fault(wanted, times, answer, lambda each: self._remove(where, each))
        self._planted.append(fault)
        where.append(fault)
        return fault

    def _remove(self, where: list[Intercept], fault: Fault) -> None:
        if fault in self._planted:
            self._planted.remove(fault)
            where.remove(fault)


def _member(kind: type[E], given: str | int, name: str) -> E:
    try:
        if isinstance(given, bool):
            raise ValueError
        return kind[given] if isinstance(given, str) else kind(given)
    except (KeyError, ValueError):
        near = difflib.get_close_matches(str(given).upper(), kind.__members__, n=1)
        hint = f"did you mean {near[0]}?" if near else "see remoting/codes.py"
        raise UsageError(f"{name}={shown(given)}: not a name or number of {kind.__name__}; {hint}") from None
