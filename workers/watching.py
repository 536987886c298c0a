"""What looks at every call of the handler: message traces, OpenTelemetry spans and Sentry, each only where it is asked for.

They wrap the handler's function once, at the start, so that a worker without them pays nothing. None changes what the
handler returns or raises, and none may fail a message: one that cannot be decoded is run unwatched (and fails by
itself).

Trace records wait here until the next flush, bounded: what does not fit is dropped and counted, never waited for. Their
fields are Java's (client/trace/hook/ConsumeMessageTraceHookImpl.java), with one difference: a message without a region,
as 4.9 brokers without a send hook store them, is traced under the default region, where Java drops its record.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Sequence
from copy import copy
from typing import Any

from ..client.spans import SpanApi, process_span, trace_id_of
from ..conf.units import NS_PER_MS
from ..remoting.errors import ProtocolError
from ..remoting.names import REGION_DEFAULT
from ..remoting.properties import PROPERTY_KEYS, PROPERTY_MSG_REGION, PROPERTY_TRACE_ON, divided_keys
from ..remoting.traces import ConsumeReturn, TracedMessage, TraceRecord, sub_after_record, sub_before_record
from .api import Handler
from .consume_hooks import CallResult, ConsumeHooks, return_type
from .message import Message, note_trace
from .sentry import SentryEvents
from .user_errors import describe_error, keep_last_raise

RECORDS_MAX = 2_048


class TraceLog:
    """Trace records of one worker since the last flush."""

    def __init__(
        self, *, now_ms: Callable[[], int], clock: Callable[[], int], next_id: Callable[[], str], ordered: bool = False
    ) -> None:
        """`now_ms` is the wall clock, `clock` monotonic in ns, `next_id` makes request ids."""
        self._ordered = ordered
        self._now_ms = now_ms
        self._clock = clock
        self._next_id = next_id
        self._records: deque[TraceRecord] = deque()
        self.dropped = 0

    def take(self) -> list[TraceRecord]:
        """The records, in order; they are the caller's now."""
        records = list(self._records)
        self._records.clear()
        return records

    @contextlib.contextmanager
    def around(self, group: str, messages: Sequence[Message]) -> Generator[CallResult]:
        """The handler's call, between its two records."""
        done = CallResult()
        region, seen = _traced(messages)
        if not seen:
            yield done
            return
        request_id = self._next_id()
        self._add(
            sub_before_record(
                timestamp_ms=self._now_ms(), region=region, group=group, request_id=request_id, messages=seen
            )
        )
        began_ns = self._clock()
        said: object = None
        try:
            yield done
            said = done.result
        except BaseException as error:
            said = error
            raise
        finally:
            cost_ms = (self._clock() - began_ns) // NS_PER_MS // len(messages)
            self._add(
                sub_after_record(
                    timestamp_ms=self._now_ms(),
                    group=group,
                    request_id=request_id,
                    cost_ms=cost_ms,
                    success=not isinstance(said, BaseException),
                    code=ConsumeReturn[return_type(said, ordered=self._ordered).name],
                    messages=seen,
                )
            )

    def _add(self, record: TraceRecord) -> None:
        if len(self._records) >= RECORDS_MAX:
            self.dropped += 1
            return
        self._records.append(record)


def _traced(messages: Sequence[Message]) -> tuple[str, list[TracedMessage]]:
    """The region, and those of the messages whose broker wants them traced; none when one cannot be decoded."""
    region, found = REGION_DEFAULT, list[TracedMessage]()
    try:
        for message in messages:
            properties = message.properties
            if properties.get(PROPERTY_TRACE_ON) == "false":
                continue
            region = properties.get(PROPERTY_MSG_REGION) or REGION_DEFAULT
            keys = properties.get(PROPERTY_KEYS, "")
            found.append(TracedMessage(message.message_id, keys, message.reconsume_times))
    except ProtocolError:
        return region, []
    return region, found


class ProcessSpans:
    """A span around every call."""

    def __init__(self, api: SpanApi, *, broadcasting: bool = False) -> None:
        self._api = api
        self._model = "broadcasting" if broadcasting else "clustering"

    @contextlib.contextmanager
    def around(self, group: str, messages: Sequence[Message]) -> Generator[CallResult]:
        """The handler's call, under its span, as soon as somebody has set up a provider."""
        done = CallResult()
        try:
            span = self._span(group, messages) if self._api.active else None
        except ProtocolError:
            span = None
        if span is None:
            yield done
            return
        with span as current:
            if current.get_span_context().is_valid:  # not where the SDK is disabled
                trace_id = trace_id_of(current)
                for message in messages:  # to its end: as before the first look the cell names none of a batch as taken
                    note_trace(message, trace_id)
            try:
                yield done
            except BaseException as error:
                keep_last_raise(error)  # before the span records it
                if not isinstance(
                    error, Exception
                ):  # the span itself takes these alone for an error: not the soft limit
                    current.record_exception(error)
                    self._api.failed(current, describe_error(error))
                raise
            if isinstance(done.result, BaseException):
                self._api.failed(current, str(done.result))

    def _span(self, group: str, messages: Sequence[Message]) -> Any:
        carriers = [message.properties for message in messages]
        attributes = process_attributes(group, messages) | {"messaging.rocketmq.consumption_model": self._model}
        return process_span(self._api, messages[0].topic, attributes, carriers)


def process_attributes(group: str, messages: Sequence[Message]) -> dict[str, Any]:
    """Raises ProtocolError for a message that cannot be decoded."""
    first = messages[0]
    found: dict[str, Any] = {
        "messaging.system": "rocketmq",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": first.topic,
        "messaging.destination.partition.id": str(first.queue_id),
        "messaging.consumer.group.name": group,
    }
    if len(messages) > 1:
        return found | {"messaging.batch.message_count": len(messages)}
    found["messaging.message.id"] = first.message_id
    found["messaging.rocketmq.reconsume_times"] = first.reconsume_times
    if first.tags:
        found["messaging.rocketmq.message.tag"] = first.tags
    keys = divided_keys(first.properties.get(PROPERTY_KEYS, ""))
    if keys:
        found["messaging.rocketmq.message.keys"] = keys
    return found


Watcher = TraceLog | ProcessSpans | ConsumeHooks | SentryEvents


def watched(handler: Handler, group: str, watchers: Sequence[Watcher]) -> Handler:
    """The handler with the watchers around it, the first one outermost; itself when there are none."""
    if not watchers:
        return handler
    wrapped = copy(handler)
    for watcher in reversed(watchers):
        wrapped.function = _around(wrapped.function, group, watcher, batch=handler.batch)
    wrapped.function.__module__, wrapped.function.__qualname__ = handler.name.split(":", 1)
    return wrapped


def _around(function: Callable[[Any], object], group: str, watcher: Watcher, *, batch: bool) -> Callable[[Any], object]:
    def call(given: Any) -> object:
        with watcher.around(group, given if batch else (given,)) as done:
            done.result = function(given)
            return done.result

    return call


def watched_async(handler: Handler, group: str, watchers: Sequence[Watcher]) -> Handler:
    """The same for a coroutine function: it is watched until its coroutine has ended."""
    function: Callable[[Any], Awaitable[object]] = handler.function

    async def call(given: Any) -> object:
        with contextlib.ExitStack() as stack:
            messages = given if handler.batch else (given,)
            calls = [stack.enter_context(watcher.around(group, messages)) for watcher in watchers]
            result = await function(given)
            for call in calls:
                call.result = result
            return result

    if not watchers:
        return handler
    wrapped = copy(handler)
    wrapped.function = call
    call.__module__, call.__qualname__ = handler.name.split(":", 1)
    return wrapped
