"""OpenTelemetry spans, where the API package is installed and a provider is set up; nothing otherwise, not even an import.

A send is a PRODUCER span whose context travels in the message's properties (`traceparent`); a handler's call is a CONSUMER
span that continues it, so that spans of the handler's own code stand below it. A batch has one span with a link to each of
its messages. Names and attributes are those of OpenTelemetry's semantic conventions for messaging.

A context that the user has put into a message's properties is kept, and the send's span links it, as these conventions ask:
what a table held until it was relayed belongs to the trace that it began in. But who copies the properties of the message in
hand wants no other trace for it: a context that the call under way continues or links is replaced.

Who sets up the provider: the program that sends; for workers the handler's module or its set-up hook. As long as nobody
has (the API's own provider is a proxy), a message costs one look at that.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from threading import Thread
from typing import Any, Final

from ..remoting.properties import divided_keys
from .outgoing import OutgoingMessage
from .send_result import SendResult

TRACER = "rocketcrew"
Attributes = dict[str, Any]
CONSUMED: Final = "rocketcrew-consumed"
"""In OpenTelemetry's context: where the messages of the call under way come from, as (trace id, span id)."""
BAGGAGE: Final = "baggage"
"""The property of W3C's baggage: what users say of a message, beside the context of its span."""
FLUSH_S: Final = 1.0
"""How long the end of a worker waits for what its providers have not sent; an exporter may wait for ever for its server."""
PROVIDERS: Final = (
    ("opentelemetry.trace", "get_tracer_provider"),
    ("opentelemetry.metrics", "get_meter_provider"),
    ("opentelemetry._logs", "get_logger_provider"),
)
"""Modules of the API, and the function that gives the provider."""


class SpanApi:
    """The parts of the API that are used. Made by `span_api`."""

    def __init__(self) -> None:
        self.context: Any = import_module("opentelemetry.context")
        self.trace: Any = import_module("opentelemetry.trace")
        self.propagate: Any = import_module("opentelemetry.propagate")

    @property
    def active(self) -> bool:
        """Somebody set up a provider that records."""
        trace = self.trace
        provider = trace.get_tracer_provider()
        return not isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider)

    def start(self, name: str, kind: str, attributes: Attributes, **more: Any) -> Any:
        """A context manager that makes the span current, and ends it; what is raised inside is recorded in it."""
        tracer = self.trace.get_tracer(TRACER)
        return tracer.start_as_current_span(
            name, kind=getattr(self.trace.SpanKind, kind), attributes=attributes, **more
        )

    def failed(self, span: Any, reason: str) -> None:
        span.set_status(self.trace.Status(self.trace.StatusCode.ERROR, reason))

    def carried_by(self, properties: Mapping[str, str]) -> Any:
        """The span's context in a message's properties; one that is not valid where they have none."""
        # Not the current one where they have none, hence a context of its own.
        found = self.propagate.extract(properties, self.context.Context())
        return self.trace.get_current_span(found).get_span_context()


def span_api(wanted: bool = True) -> SpanApi | None:
    """The API, None when it is not wanted or not installed."""
    if not wanted or find_spec("opentelemetry") is None or find_spec("opentelemetry.trace") is None:
        return None
    return SpanApi()


# Sending.


@dataclass(slots=True)
class Sending:
    """One send under its span: what to send, and where its result is noted."""

    messages: Sequence[OutgoingMessage]
    span: Any = None

    def sent(self, result: SendResult) -> SendResult:
        if self.span is not None:
            self.span.set_attribute("messaging.message.id", result.message_id)
            self.span.set_attribute("messaging.destination.partition.id", str(result.mq.queue_id))
        return result


class SendSpans:
    """Makes the spans of one producer."""

    def __init__(self, group: str, api: SpanApi | None) -> None:
        self._group = group
        self._api = api

    @contextlib.contextmanager
    def sending(self, *messages: OutgoingMessage, kind: str = "normal") -> Generator[Sending]:
        """A span around a send, if spans are wanted; its context is put into the messages."""
        api = self._api
        if api is None or not api.active or not messages:
            yield Sending(messages)
            return
        topic = messages[0].topic
        carried = [api.carried_by(message.properties) for message in messages]
        own = [context.is_valid and not _is_copied(api, context) for context in carried]
        links = [api.trace.Link(context) for context, kept in zip(carried, own, strict=True) if kept]
        attributes = send_attributes(messages, self._group, kind)
        with api.start(f"send {topic}", "PRODUCER", attributes, links=links) as span:
            carrier: dict[str, str] = {}
            api.propagate.inject(carrier)
            sent = [
                message if kept else _carrying(api, message, carrier, copied=context.is_valid)
                for message, context, kept in zip(messages, carried, own, strict=True)
            ]
            yield Sending(sent, span)


def _is_copied(api: SpanApi, context: Any) -> bool:
    """Whether it is that of a message of the call under way."""
    return (context.trace_id, context.span_id) in (api.context.get_value(CONSUMED) or ())


def _carrying(api: SpanApi, message: OutgoingMessage, carrier: Mapping[str, str], *, copied: bool) -> OutgoingMessage:
    """The message with the context among its properties, and with nothing left of one that was copied; baggage is no part of
    it."""
    others = set(api.propagate.get_global_textmap().fields) - {BAGGAGE}
    own = {name: value for name, value in message.properties.items() if name not in others}
    carried = {name: value for name, value in carrier.items() if value.strip()}
    if copied:  # and its baggage with it
        return replace(message, properties={**own, **carried})
    return replace(message, properties={**carried, **own})


def send_attributes(messages: Sequence[OutgoingMessage], group: str, kind: str) -> Attributes:
    first = messages[0]
    found: Attributes = {
        "messaging.system": "rocketmq",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": first.topic,
        "messaging.rocketmq.producer_group": group,
        "messaging.rocketmq.message.type": "delay" if first.is_delayed else kind,
    }
    if len(messages) > 1:
        return found | {"messaging.batch.message_count": len(messages)}
    found["messaging.message.body.size"] = len(first.body_bytes)
    if first.keys:
        found["messaging.rocketmq.message.keys"] = divided_keys(first.keys)
    if first.tags:
        found["messaging.rocketmq.message.tag"] = first.tags
    if first.delay_level:
        found["messaging.rocketmq.message.delay_time_level"] = first.delay_level
    return found


# Processing.


@contextlib.contextmanager
def process_span(
    api: SpanApi, topic: str, attributes: Attributes, carriers: Sequence[Mapping[str, str]]
) -> Generator[Any]:
    """The span of a handler's call: it continues the one message's context, or links those of several."""
    contexts = [context for carrier in carriers if (context := api.carried_by(carrier)).is_valid]
    if len(carriers) == 1:
        more = {"context": api.propagate.extract(carriers[0])}
    else:
        more = {"links": [api.trace.Link(context) for context in contexts]}
    consumed = frozenset((context.trace_id, context.span_id) for context in contexts)
    token = api.context.attach(api.context.set_value(CONSUMED, consumed))
    try:
        with api.start(f"process {topic}", "CONSUMER", attributes, **more) as span:
            yield span
    finally:
        api.context.detach(token)


def trace_id_of(span: Any) -> str:
    """As it stands in a log line."""
    return f"{span.get_span_context().trace_id:032x}"


def flush_providers(imported: Mapping[str, Any] = sys.modules, timeout_s: float = FLUSH_S) -> None:
    """At the end of a worker, whose process runs no atexit: have the user's providers send what they have kept back, within
    this time. Never raises. `imported`: the modules; what nobody has imported nobody has set up."""
    flushes: list[Any] = []
    for module, name in PROVIDERS:
        with contextlib.suppress(Exception):
            flushes.append(getattr(imported[module], name)().force_flush)
    if flushes:
        # The SDK's batches look at no time limit while they export: hence the thread, which the process's end cuts off.
        thread = Thread(target=_call_each, args=(flushes, timeout_s), name="rocketcrew-spans", daemon=True)
        with contextlib.suppress(RuntimeError):  # there are too many
            thread.start()
            thread.join(timeout_s)


def _call_each(flushes: Sequence[Any], timeout_s: float) -> None:
    for flush in flushes:
        with contextlib.suppress(Exception):
            flush(int(timeout_s * 1000))
