"""Spans of sends, with the SDK's exporter in memory. The provider is global, hence one for the whole module."""

from __future__ import annotations

import contextlib
import threading
import types

import pytest
from opentelemetry import trace
from opentelemetry.baggage import set_baggage
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from rocketcrew.broker.server import EmbeddedBroker
from rocketcrew.client.admin import Admin
from rocketcrew.client.outgoing import OutgoingMessage
from rocketcrew.client.producer import Producer
from rocketcrew.client.spans import PROVIDERS, SpanApi, flush_providers, process_span, span_api
from rocketcrew.client.sync import SyncProducer
from rocketcrew.remoting.errors import UsageError

TOPIC = "orders"


class OwnProvider(SpanApi):
    """The API with a provider of the test's, so that nothing global is touched."""

    def __init__(self):
        super().__init__()
        self.spans = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.spans))
        self.tracer = self.provider.get_tracer("test")

    @property
    def active(self):
        return True

    def start(self, name, kind, attributes, **more):
        return self.tracer.start_as_current_span(name, kind=getattr(SpanKind, kind), attributes=attributes, **more)


@contextlib.asynccontextmanager
async def sending():
    api = OwnProvider()
    async with (
        EmbeddedBroker() as broker,
        Producer(broker.name_server, "senders") as producer,
    ):
        producer._spans._api = api
        yield producer, api, Admin(producer.cluster)


async def test_a_send_has_a_span_whose_context_travels():
    async with sending() as (producer, api, admin):
        with api.tracer.start_as_current_span("request") as parent:
            result = await producer.send(
                OutgoingMessage(TOPIC, b"body", tags="t", keys="a b", properties={"mine": "1"})
            )
        stored = await admin.view_message(result.offset_message_id)
    span, _ = api.spans.get_finished_spans()
    assert (span.name, span.kind) == (f"send {TOPIC}", SpanKind.PRODUCER)
    assert span.parent.span_id == parent.get_span_context().span_id
    context = span.get_span_context()
    assert stored.properties["traceparent"].startswith(f"00-{context.trace_id:032x}-{context.span_id:016x}-")
    assert stored.properties["mine"] == "1"
    assert dict(span.attributes) == {
        "messaging.system": "rocketmq",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": TOPIC,
        "messaging.destination.partition.id": str(result.mq.queue_id),
        "messaging.message.id": result.message_id,
        "messaging.message.body.size": 4,
        "messaging.rocketmq.producer_group": "senders",
        "messaging.rocketmq.message.type": "normal",
        "messaging.rocketmq.message.tag": "t",
        "messaging.rocketmq.message.keys": ("a", "b"),
    }


TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
OF_ANOTHER = {"traceparent": f"00-{TRACE_ID}-{SPAN_ID}-01", "mine": "1"}


@pytest.mark.parametrize("batch", [False, True])
async def test_a_context_that_is_copied_of_the_message_in_hand_is_replaced(batch):
    carriers = [OF_ANOTHER, {}] if batch else [OF_ANOTHER]
    async with sending() as (producer, api, admin):
        with process_span(api, "in", {}, carriers):
            result = await producer.send(OutgoingMessage(TOPIC, b"body", properties=OF_ANOTHER))
        stored = await admin.view_message(result.offset_message_id)
    span, call = api.spans.get_finished_spans()
    assert span.parent.span_id == call.get_span_context().span_id
    assert not span.links
    sent = span.get_span_context()
    assert stored.properties["traceparent"].startswith(f"00-{sent.trace_id:032x}-{sent.span_id:016x}-")
    assert stored.properties["mine"] == "1"


async def test_a_context_of_the_user_s_own_is_kept_and_linked():
    """As a relay does that sends what a table holds; OpenTelemetry's conventions call it a custom creation context."""
    async with sending() as (producer, api, admin):
        with process_span(api, "in", {}, [{"traceparent": f"00-{TRACE_ID}-{'1' * 16}-01"}]):
            result = await producer.send(OutgoingMessage(TOPIC, b"body", properties=OF_ANOTHER))
        stored = await admin.view_message(result.offset_message_id)
    span, _ = api.spans.get_finished_spans()
    assert stored.properties["traceparent"] == OF_ANOTHER["traceparent"]
    assert [f"{link.context.span_id:016x}" for link in span.links] == [SPAN_ID]


async def test_nothing_of_another_context_goes_with_the_new_one():
    copied = {**OF_ANOTHER, "tracestate": "vendor=old", "baggage": "a=1"}
    async with sending() as (producer, api, admin):
        with process_span(api, "in", {}, [copied, {}]):
            result = await producer.send(OutgoingMessage(TOPIC, b"body", properties=copied))
        stored = await admin.view_message(result.offset_message_id)
    assert stored.properties["traceparent"] != copied["traceparent"]
    assert "tracestate" not in stored.properties
    assert (stored.properties["baggage"], stored.properties["mine"]) == ("a=1", "1")


@pytest.mark.parametrize(("carried", "kept"), [({}, "a=1"), (OF_ANOTHER, "b=2")], ids=["own", "copied"])
async def test_baggage_of_the_user_s_own_is_kept_where_no_context_was_copied_with_it(carried, kept):
    async with sending() as (producer, api, admin):
        with process_span(api, "in", {}, [OF_ANOTHER]):
            token = api.context.attach(set_baggage("b", "2"))
            result = await producer.send(OutgoingMessage(TOPIC, b"x", properties={**carried, "baggage": "a=1"}))
            api.context.detach(token)
        stored = await admin.view_message(result.offset_message_id)
    assert stored.properties["baggage"] == kept
    assert stored.properties["traceparent"] != OF_ANOTHER["traceparent"]


class Kept:
    """A provider, and what it does when it is asked to send what it has kept back."""

    def __init__(self, flush):
        self.force_flush = flush


@contextlib.contextmanager
def providers(**found):
    """Modules of OpenTelemetry with these providers, in the place of what this process has imported."""
    modules = {name: types.ModuleType(name) for name, _ in PROVIDERS}
    for name, function in PROVIDERS:
        setattr(modules[name], function, lambda name=name: found.get(name.rpartition(".")[2]))
    yield modules


def test_at_its_end_a_worker_has_all_providers_send_what_they_have_kept():
    asked = []

    def refuses(_millis):
        asked.append("trace")
        raise ValueError

    with providers(trace=Kept(refuses), metrics=Kept(asked.append)) as modules:
        flush_providers(modules, timeout_s=20)
    assert asked == ["trace", 20_000], "and one that has none, or fails, is no reason not to ask the next one"
    flush_providers({})


def test_an_exporter_that_waits_for_its_server_holds_up_no_end():
    ends = threading.Event()
    with providers(trace=Kept(lambda _millis: ends.wait())) as modules:
        flush_providers(modules, timeout_s=0.01)
    ends.set()


async def test_a_failure_is_the_spans():
    async with sending() as (producer, api, _):
        with pytest.raises(UsageError):
            await producer.send(OutgoingMessage(TOPIC, b""))
    (span,) = api.spans.get_finished_spans()
    assert span.status.status_code is StatusCode.ERROR
    assert span.events[0].name == "exception"


async def test_a_batch_has_one_span():
    async with sending() as (producer, api, admin):
        result = await producer.send_batch([OutgoingMessage(TOPIC, b"a"), OutgoingMessage(TOPIC, b"b")])
        stored = [await admin.view_message(message_id) for message_id in result.offset_message_id.split(",")]
    (span,) = api.spans.get_finished_spans()
    assert span.attributes["messaging.batch.message_count"] == 2
    assert len({message.properties["traceparent"] for message in stored}) == 1


def test_without_a_provider_nothing_is_done():
    api = span_api()
    assert api is not None
    assert isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)
    assert not api.active
    assert span_api(wanted=False) is None


@pytest.mark.parametrize("background", [False, True])
def test_blocking_sends_stand_below_the_callers_span(broker_thread, background):
    api = OwnProvider()
    with SyncProducer(broker_thread(), "senders", background=background) as producer:
        producer._producer._spans._api = api
        with api.tracer.start_as_current_span("request") as parent:
            producer.send(OutgoingMessage(TOPIC, b"x"))
    span = api.spans.get_finished_spans()[0]
    assert span.parent.span_id == parent.get_span_context().span_id
