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
import dataclasses
import hashlib
import inspect
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any, Final, Protocol, TypeGuard, Unpack, cast

from ..client.outgoing import Body, MessageFields, OutgoingMessage
from ..remoting.arguments import FILLED, check
from ..remoting.errors import RocketcrewError
from ..remoting.properties import PROPERTY_SHARDING_KEY, PROPERTY_UNIQ_KEY
from .api import Commit, Handler, Rollback
from .calls import batch_results, raise_if_of_all
from .copying import IMMUTABLE, listed, to_the_end
from .fitting import NESTED, UNDECLARED, UNORDERED, NoRowError, RowError, check_ran
from .forks import end_if_forked
from .message import Message
from .routing import combine
from .rows import TABLES

FAILED_BEFORE: Final = (
    "a message was not sent, as one before it in its batch has failed: in order, that is retried first"
)
KEY_DIGITS: Final = 32
_TIME: Final = slice(20, 28)
"""Of a unique key with an IPv4 address: when it was made, by which brokers narrow their search."""


class Send:
    """A message that the worker sends: topic, body and fields as those of `OutgoingMessage`, as they are when
    it is made: a buffer and a dict are copied. Raises UsageError.

    `order_key`: messages with one of it go one after another into one queue, that which `by_key` chooses, also in a retry. It
    is the property __SHARDINGKEY, as that of a message group of RocketMQ 5's clients. That property alone, as it comes with a
    message that is passed on, asks for nothing."""

    __slots__ = ("message", "order_key")

    def __init__(
        self, topic: str, body: Body, *, order_key: str | None = None, **fields: Unpack[MessageFields]
    ) -> None:
        made = OutgoingMessage(topic, body, **fields)
        properties = dict(made.properties)
        if order_key is not None:
            given = check("Send", {"order_key": order_key}, {"order_key": FILLED})
            properties[PROPERTY_SHARDING_KEY] = order_key = given["order_key"]
        body = bytes(body) if isinstance(body, bytearray | memoryview) else body
        self.order_key = order_key
        self.message = replace(made, body=body, properties=properties)
        self.message.check()

    def under(self, key: str) -> Send:
        """The same under this unique key."""
        found = copy.copy(self)
        marks = {**self.message.system_properties, PROPERTY_UNIQ_KEY: key}
        found.message = replace(self.message, system_properties=marks)
        return found

    def __repr__(self) -> str:
        return f"<Send to {self.message.topic}>"


class SendError(RocketcrewError):
    """A message out of a handler was not sent, or perhaps was: the message that it came from is retried."""

    def __init__(self, text: str, each: Sequence[Exception | None] = ()) -> None:
        super().__init__(text)
        self.each = each
        """Of several that were sent together, why each was not, None where it was; empty = none was."""


class Outgoing(Protocol):
    """Where messages out of a handler go."""

    def send(self, sends: Sequence[Send]) -> None:
        """Send all of them, those of one order key in their order. Raises SendError, which names those that were not sent."""
        ...

    async def send_awaited(self, sends: Sequence[Send]) -> None:
        """The same, for a loop that goes on meanwhile."""
        ...


def unique_key(message: Message, group: str, topic: str, number: int) -> str:
    """The unique key of the `number`-th message sent for this one, the same in all its attempts."""
    origin = message.properties.get(PROPERTY_UNIQ_KEY) or message.origin_message_id
    named = [group, origin, topic, str(number)]
    if message.part and not message.properties.get(PROPERTY_UNIQ_KEY):
        named.append(str(message.part))  # the id is that of its record, which others are in, too
    digest = hashlib.sha256("\0".join(named).encode()).hexdigest().upper()
    made = origin[_TIME] if len(origin) == KEY_DIGITS else "0" * 8
    return f"{digest[:20]}{made}{digest[20:24]}"


# --- what a handler returned ----------------------------------------------------------------------------------------------


def sending(
    handler: Handler, group: str, outgoing: Outgoing | None, *, ordered: bool = False, rows: bool = True
) -> Handler:
    """The handler, with what it sends sent and taken out of its results; itself where it sends nothing.

    `outgoing` None: what it would send is left out, as in a run that only makes rows again. `ordered`: the configuration asks
    for an order, as handlers may. `rows`: somebody wants them.
    """
    if not handler.sends:
        return handler
    if not all(part.sends for part in handler.parts):
        parts = [part if part.sends else _wrapped(part, group, _Undeclared(), rows=rows) for part in handler.parts]
        handler = combine(parts)
    return _wrapped(handler, group, outgoing, ordered=ordered or handler.is_ordered, rows=rows)


def _wrapped(handler: Handler, group: str, outgoing: Outgoing | None, *, rows: bool, ordered: bool = False) -> Handler:
    wrapped = copy.copy(handler)
    wrapped.plain = _Sending(handler, handler.plain, group, None, rows=rows).wrapped()
    wrapped.function = _Sending(handler, handler.function, group, outgoing, ordered=ordered, rows=rows).wrapped()
    for call in (wrapped.plain, wrapped.function):
        call.__module__, call.__qualname__ = handler.name.split(":", 1)
    return wrapped


class _Sending:
    """A handler's function with what is around its calls."""

    def __init__(
        self, handler: Handler, function: Callable[[Any], Any], group: str, outgoing: Outgoing | None, *,
        rows: bool, ordered: bool = False,
    ) -> None:  # fmt: skip
        self._function = function
        self._group = group
        self._outgoing = outgoing
        self._batch = handler.batch
        self._auto_commit = handler.auto_commit
        self._ordered = ordered
        self._rows = rows

    def wrapped(self) -> Callable[[Any], Any]:
        function = self._function
        if inspect.iscoroutinefunction(function):

            async def awaited(given: Any) -> object:
                pid = os.getpid()
                result = await function(given)
                end_if_forked(pid)  # before generators run, which are the handler's own code
                return await (self._batch_awaited(given, result) if self._batch else self._one_awaited(given, result))

            return awaited
        if self._batch:

            def call(messages: Sequence[Message]) -> list[object]:
                pid = os.getpid()
                result = function(messages)
                end_if_forked(pid)  # as above
                return self._each(messages, result)

            return call
        return lambda message: self._one(message, function(message))

    def _one(self, message: Message, result: object) -> object:
        rest, sends = self._taken(message, result)
        self._send(message, sends)
        return rest

    def _taken(self, message: Message, result: object) -> tuple[object, list[Send]]:
        """As `parted`; a generator sends its own at its end."""
        rows = result.rows if isinstance(result, Commit) else result
        if holds_rows(rows) and not isinstance(rows, Collection):
            lazy = self._rows_of(message, rows)
            return (Commit(lazy) if isinstance(result, Commit) else lazy), []
        return parted(result, rows=self._rows)

    def _rows_of(self, message: Message, rows: Iterable[object]) -> Iterator[object]:
        """The rows of a generator, each when it is asked for; what it sends is sent when it has ended."""
        sends: list[Send] = []
        for row in to_the_end(rows):
            if isinstance(row, Send):
                sends.append(row)
            else:
                yield row
        self._send(message, sends)

    def _each(self, messages: Sequence[Message], result: object) -> list[object]:
        found, ready = self._gathered(messages, result)
        if ready and self._outgoing is not None:
            try:
                self._outgoing.send([each for _, each in ready])
            except Exception as error:  # noqa: BLE001  those fail whose own was not sent
                _put_errors(found, ready, error)
        return found

    def _gathered(self, messages: Sequence[Message], result: object) -> tuple[list[object], list[tuple[int, Send]]]:
        """A result per message; and what is to be sent for all of them, each with the place of its message. Generators come
        to their end here: else theirs would be sent after that of later messages. In order, nothing is sent of a message
        after one that has failed: both are given back, and the failed one sends first."""
        found: list[object] = []
        ready: list[tuple[int, Send]] = []
        pid, held = os.getpid(), False
        results = batch_results(list(messages), result)
        end_if_forked(pid)  # in a generator of a BatchResult
        for message, own in zip(messages, results, strict=True):
            try:
                rest, sends = parted(own, rows=self._rows)
                end_if_forked(pid)
                if sends and held:
                    raise SendError(FAILED_BEFORE)
                ready += [(len(found), each) for each in self._ready(message, sends)]
            except BaseException as error:  # noqa: BLE001  it is the handler's, and its own message's failure
                raise_if_of_all(error, pid)
                rest = error
            found.append(rest)
            held = held or (self._ordered and self._outgoing is not None and self._has_failed(rest))
        return found, ready

    def _has_failed(self, rest: object) -> bool:
        """With auto commit a Rollback is a success, as in Java."""
        said = rest.rows if isinstance(rest, Commit) else rest
        return isinstance(said, BaseException) and not (self._auto_commit and isinstance(said, Rollback))

    async def _one_awaited(self, message: Message, result: object) -> object:
        rest, sends = parted(result, rows=self._rows)
        if sends and self._outgoing is not None:
            await self._outgoing.send_awaited(self._ready(message, sends))
        return rest

    async def _batch_awaited(self, messages: Sequence[Message], result: object) -> list[object]:
        found, ready = self._gathered(messages, result)
        if ready and self._outgoing is not None:
            try:
                await self._outgoing.send_awaited([each for _, each in ready])
            except Exception as error:  # noqa: BLE001  as above
                _put_errors(found, ready, error)
        return found

    def _send(self, message: Message, sends: Sequence[Send]) -> None:
        if sends and self._outgoing is not None:
            self._outgoing.send(self._ready(message, sends))

    def _ready(self, message: Message, sends: Sequence[Send]) -> list[Send]:
        return [
            each.under(unique_key(message, self._group, each.message.topic, number))
            for number, each in enumerate(sends)
        ]


def _put_errors(found: list[object], ready: Sequence[tuple[int, Send]], error: Exception) -> None:
    """The messages fail whose own was not sent."""
    each = (isinstance(error, SendError) and error.each) or [error] * len(ready)
    for (place, _), why in zip(ready, each, strict=True):
        if why is not None:
            found[place] = why


class _Undeclared:
    """For a handler without `sends=True` beside others with it: what it would send fails its message."""

    def send(self, sends: Sequence[Send]) -> None:
        raise RowError(UNDECLARED)

    async def send_awaited(self, sends: Sequence[Send]) -> None:
        raise RowError(UNDECLARED)


def parted(result: object, *, rows: bool = True) -> tuple[object, list[Send]]:
    """A result without what is to be sent, None where nothing else is in it; and that. Raises RowError. `rows`: somebody
    wants them."""
    if isinstance(result, Send):
        return None, [result]
    if isinstance(result, Commit):
        rest, sends = parted(result.rows, rows=rows)
        return (result if rest is result.rows else Commit(rest)), sends
    if holds_rows(result):
        given = result if isinstance(result, Collection) else _run_to_the_end(result, rows=rows)
        sends = [each for each in given if isinstance(each, Send)]
        if sends:
            if isinstance(given, AbstractSet):
                raise RowError(UNORDERED)
            return [each for each in given if not isinstance(each, Send)] or None, sends
        return given, []
    return result, []


def _run_to_the_end(result: Iterable[object], *, rows: bool) -> list[object]:
    """What a generator has yielded: where nobody wants its rows, the Sends alone, as they may be many. Raises RowError for
    what is neither a row nor a Send: nothing is sent of a message that fails by it, and its generator is closed before
    another message's runs."""
    given, pid = to_the_end(result), os.getpid()
    try:
        if rows:
            return listed(map(_row_or_send, given))
        sends: list[object] = []
        for each in given:
            if isinstance(each, Send):
                sends.append(each)
            else:
                run_out(each, 1)
        return sends
    except BaseException:
        try:
            given.close()
        except BaseException as error:  # noqa: BLE001  the message has its failure: what ends its generator says is no other
            raise_if_of_all(error, pid)
        raise


def _row_or_send(each: object) -> object:
    if isinstance(each, (Send, dict, *TABLES)) or (dataclasses.is_dataclass(each) and not isinstance(each, type)):
        return each  # pyright: ignore[reportUnknownVariableType]
    raise NoRowError(each)


def holds_rows(result: Any) -> TypeGuard[Iterable[object]]:
    """Whether it is an iterable of rows; neither a row itself, nor text, an Arrow batch or another array of values."""
    if not isinstance(result, Iterable) or isinstance(result, (str, bytes, bytearray, memoryview, Mapping)):
        return False
    known: Any = result  # pyright: ignore[reportUnknownVariableType]
    return not (dataclasses.is_dataclass(known) or hasattr(known, "__array__") or inspect.isawaitable(known))


def run_out(result: object, depth: int = 0) -> None:
    """A result whose rows nobody wants: what is iterated runs to its end, as what the handler does is in it. Raises RowError
    for what would be lost: a Send at any depth, a coroutine, an async generator, what a generator returns."""
    if result.__class__ in IMMUTABLE:
        return
    check_ran(result)
    if isinstance(result, Send):
        raise RowError(UNDECLARED if depth < 2 else NESTED)
    if isinstance(result, Commit):
        run_out(result.rows, depth)
    elif isinstance(result, Mapping):
        for value in cast("Mapping[object, object]", result).values():
            run_out(value, 2)
    elif holds_rows(result) and not (isinstance(result, list | tuple) and IMMUTABLE.issuperset(map(type, result))):
        for each in to_the_end(result):
            run_out(each, depth + 1)
