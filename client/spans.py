"""OpenTelemetry spans, where the API package is installed and a provider is set up; nothing otherwise, not even an import.

A send is a PRODUCER span whose context travels in the message's properties (`traceparent`); a handler's call is a CONSUMER
span that continues it, so that spans of the handler's own code stand below it. A batch has one span with a link to each of
its messages. Names and attributes are those of OpenTelemetry's semantic conventions for messaging.

Who sets up the provider: the program that sends; for workers the handler's module or its set-up hook. As long as nobody
has (the API's own provider is a proxy), a message costs one look at that.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from .outgoing import OutgoingMessage
from .send_result import SendResult

TRACER = "rocketcrew"
Attributes = dict[str, Any]


class SpanApi:
    """The parts of the API that are used. Made by `span_api`."""

    def __init__(self) -> None:
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
        with api.start(f"send {topic}", "PRODUCER", send_attributes(messages, self._group, kind)) as span:
            carrier: dict[str, str] = {}
            api.propagate.inject(carrier)
            yield Sending([_carrying(message, carrier) for message in messages], span)


def _carrying(message: OutgoingMessage, carrier: Mapping[str, str]) -> OutgoingMessage:
    """The message with the context among its properties; what the user put there stays."""
    carried = {name: value for name, value in carrier.items() if value.strip()}
    return replace(message, properties={**carried, **message.properties})


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
    found["messaging.message.body.size"] = memoryview(first.body_bytes).nbytes
    if first.keys:
        found["messaging.rocketmq.message.keys"] = first.keys.split()
    if first.tags:
        found["messaging.rocketmq.message.tag"] = first.tags
    if first.delay_level:
        found["messaging.rocketmq.message.delay_time_level"] = first.delay_level
    return found


# Processing.


def process_span(api: SpanApi, topic: str, attributes: Attributes, carriers: Sequence[Mapping[str, str]]) -> Any:
    """The span of a handler's call, a context manager: it continues the one message's context, or links those of several."""
    if len(carriers) == 1:
        more = {"context": api.propagate.extract(carriers[0])}
    else:
        more = {"links": _links(api, carriers)}
    return api.start(f"process {topic}", "CONSUMER", attributes, **more)


def _links(api: SpanApi, carriers: Sequence[Mapping[str, str]]) -> list[Any]:
    contexts = [api.trace.get_current_span(api.propagate.extract(carrier)).get_span_context() for carrier in carriers]
    return [api.trace.Link(context) for context in contexts if context.is_valid]
