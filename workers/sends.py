"""Messages out of a handler: `Send` among what it returns or yields, with `@handler(sends=True)`.

    @handler(topic="orders", sends=True)
    def bill(order):
        return Send("invoices", order.body, keys=order.keys)

They are sent after the handler has returned and before its message is reported, so a message that is done has sent all of
its own. One that cannot be sent fails its message, which is retried. That is at least once: what a retry, or a worker that
was killed between the send and the report, sends again has the same unique key, made of the group, the id of the message and
the number of the Send among what was returned for it. A reader that remembers these keys can drop repeats.

What sends them is in outbox.py. A handler without `sends=True` is not wrapped, and pays nothing; a Send that it returns
fails its message.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol, Unpack, cast

from ..client.outgoing import Body, MessageFields, OutgoingMessage
from ..remoting.errors import RocketcrewError
from ..remoting.properties import PROPERTY_UNIQ_KEY
from .api import Commit, Handler
from .calls import batch_results
from .fitting import UNDECLARED, RowError
from .message import Message

KEY_DIGITS: Final = 32
_TIME: Final = slice(20, 28)
"""Of a unique key with an IPv4 address: when it was made, by which brokers narrow their search."""


class Send:
    """A message that the worker sends: topic, body and fields as those of `OutgoingMessage`. Raises UsageError."""

    __slots__ = ("message",)

    def __init__(self, topic: str, body: Body, **fields: Unpack[MessageFields]) -> None:
        self.message = OutgoingMessage(topic, body, **fields)
        self.message.check()

    def __repr__(self) -> str:
        return f"<Send to {self.message.topic}>"


class SendError(RocketcrewError):
    """A message out of a handler was not sent, or perhaps was: the message that it came from is retried."""


class Outgoing(Protocol):
    """Where messages out of a handler go."""

    def send(self, messages: Sequence[OutgoingMessage]) -> None:
        """Send all of them, in any order. Raises SendError."""
        ...

    async def send_awaited(self, messages: Sequence[OutgoingMessage]) -> None:
        """The same, for a loop that goes on meanwhile."""
        ...


def unique_key(message: Message, group: str, topic: str, number: int) -> str:
    """The unique key of the `number`-th message sent for this one, the same in all its attempts."""
    origin = message.properties.get(PROPERTY_UNIQ_KEY) or message.origin_message_id
    digest = hashlib.sha256("\0".join((group, origin, topic, str(number))).encode()).hexdigest().upper()
    made = origin[_TIME] if len(origin) == KEY_DIGITS else "0" * 8
    return f"{digest[:20]}{made}{digest[20:24]}"


# --- what a handler returned ----------------------------------------------------------------------------------------------


def sending(handler: Handler, group: str, outgoing: Outgoing | None) -> Handler:
    """The handler, with what it sends sent and taken out of its results; itself where it sends nothing.

    `outgoing` None: what it would send is left out, as in a run that only makes rows again.
    """
    if not handler.sends:
        return handler
    wrapped = copy.copy(handler)
    wrapped.plain = _Sending(handler.plain, group, None, batch=handler.batch).wrapped()
    wrapped.function = _Sending(handler.function, group, outgoing, batch=handler.batch).wrapped()
    for call in (wrapped.plain, wrapped.function):
        call.__module__, call.__qualname__ = handler.name.split(":", 1)
    return wrapped


class _Sending:
    """A handler's function with what is around its calls."""

    def __init__(self, function: Callable[[Any], Any], group: str, outgoing: Outgoing | None, *, batch: bool) -> None:
        self._function = function
        self._group = group
        self._outgoing = outgoing
        self._batch = batch

    def wrapped(self) -> Callable[[Any], Any]:
        function = self._function
        if inspect.iscoroutinefunction(function):

            async def awaited(given: Any) -> object:
                result = await function(given)
                return await (self._batch_awaited(given, result) if self._batch else self._one_awaited(given, result))

            return awaited
        if self._batch:
            return lambda messages: self._each(messages, function(messages))
        return lambda message: self._one(message, function(message))

    def _one(self, message: Message, result: object) -> object:
        if isinstance(result, Iterator):
            return self._rows_of(message, cast("Iterator[object]", result))
        rest, sends = parted(result)
        self._send(message, sends)
        return rest

    def _rows_of(self, message: Message, rows: Iterator[object]) -> Iterator[object]:
        """The rows of a generator, each when it is asked for; what it sends is sent when it has ended."""
        sends: list[Send] = []
        for row in rows:
            if isinstance(row, Send):
                sends.append(row)
            else:
                yield row
        self._send(message, sends)

    def _each(self, messages: Sequence[Message], result: object) -> list[object]:
        found: list[object] = []
        for message, own in zip(messages, batch_results(list(messages), result), strict=True):
            try:
                found.append(self._one(message, own))
            except RocketcrewError as error:
                found.append(error)
        return found

    async def _one_awaited(self, message: Message, result: object) -> object:
        rest, sends = parted(list(cast("Iterator[object]", result)) if isinstance(result, Iterator) else result)
        if sends and self._outgoing is not None:
            await self._outgoing.send_awaited(self._ready(message, sends))
        return rest

    async def _batch_awaited(self, messages: Sequence[Message], result: object) -> list[object]:
        found: list[object] = []
        for message, own in zip(messages, batch_results(list(messages), result), strict=True):
            try:
                found.append(await self._one_awaited(message, own))
            except RocketcrewError as error:
                found.append(error)
        return found

    def _send(self, message: Message, sends: Sequence[Send]) -> None:
        if sends and self._outgoing is not None:
            self._outgoing.send(self._ready(message, sends))

    def _ready(self, message: Message, sends: Sequence[Send]) -> list[OutgoingMessage]:
        return [
            with_unique_key(each.message, unique_key(message, self._group, each.message.topic, number))
            for number, each in enumerate(sends)
        ]


def with_unique_key(message: OutgoingMessage, key: str) -> OutgoingMessage:
    """The same message under this key."""
    return replace(message, system_properties={**message.system_properties, PROPERTY_UNIQ_KEY: key})


def parted(result: object) -> tuple[object, list[Send]]:
    """A result without what is to be sent, None where nothing else is in it; and that."""
    whole = result  # its type stays `object`
    if isinstance(result, Send):
        return None, [result]
    if isinstance(result, Commit):
        rows, sends = parted(result.rows)
        return (Commit(rows), sends) if sends else (result, [])
    if isinstance(result, list | tuple):
        given = cast("Sequence[object]", result)
        sends = [each for each in given if isinstance(each, Send)]
        if sends:
            return [each for each in given if not isinstance(each, Send)] or None, sends
    return whole, []


def run_out(result: object) -> None:
    """A result whose rows nobody wants: a generator runs to its end, as what the handler does is in it. Raises RowError for a
    Send: it would be lost."""
    for each in cast("Iterable[object]", result) if isinstance(result, list | tuple | Iterator) else (result,):
        if isinstance(each, Send):
            raise RowError(UNDECLARED)
