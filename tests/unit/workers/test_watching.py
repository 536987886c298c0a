"""What looks at handlers' calls: trace records, spans; and that neither changes anything."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import NoOpTracer, SpanKind, StatusCode

from rocketcrew.client.spans import SpanApi
from rocketcrew.remoting.errors import ProtocolError
from rocketcrew.remoting.properties import encode_properties
from rocketcrew.remoting.stored import StoredMessage, encode_message
from rocketcrew.remoting.traces import TraceRecord
from rocketcrew.workers.api import Handler, Retry, SoftTimeLimitExceeded
from rocketcrew.workers.calls import OneByOne
from rocketcrew.workers.cells import TAKEN, private_cell
from rocketcrew.workers.message import Message, message_keys
from rocketcrew.workers.ordered_packets import OrderedDescriptor, encode_ordered
from rocketcrew.workers.packets import TRACES, QueueInfo, decode_traces, encode_traces
from rocketcrew.workers.user_errors import usable
from rocketcrew.workers.watching import RECORDS_MAX, ProcessSpans, TraceLog, watched, watched_async

from ..remoting.trace_records import split_records

QUEUE = QueueInfo("group", "TopicTest", "broker-a", 3)
REGION = {"MSG_REGION": "here"}


def message(**properties: str) -> Message:
    stored = StoredMessage("TopicTest", b"body", encode_properties(properties).encode(), reconsume_times=1)
    return Message(encode_message(stored), 0, QUEUE)


class Clock:
    """Each look is 30 ms later."""

    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        self.now_ns += 30_000_000
        return self.now_ns


def trace_log() -> TraceLog:
    ids = itertools.count(1)
    return TraceLog(now_ms=lambda: 1_000, clock=Clock(), next_id=lambda: f"R{next(ids)}")


def run(log: TraceLog, function: Any, given: Any, batch: bool = False) -> tuple[object, list[list[str]]]:
    """What the watched handler returns or raises, and the records."""
    handler = watched(Handler(function, batch=batch), "group", [log])
    try:
        result: object = handler.function(given)
    except Exception as error:  # noqa: BLE001
        result = error
    return result, [fields for record in log.take() for fields in split_records(record.text)]


def test_a_call_has_a_record_before_and_after() -> None:
    result, records = run(trace_log(), lambda m: m.body, message(UNIQ_KEY="U1", KEYS="k1 k2", **REGION))
    assert result == b"body"
    assert records == [
        ["SubBefore", "1000", "here", "group", "R1", "U1", "1", "k1 k2"],
        ["SubAfter", "R1", "U1", "30", "true", "k1 k2", "0", "1000", "group"],
    ]


def raising(error: Exception) -> Any:
    def function(_: object) -> object:
        raise error

    return function


@pytest.mark.parametrize(
    ("function", "code"),
    [
        (raising(ValueError("no")), "2"),
        (raising(Retry(3)), "4"),
        (lambda _: Retry(3), "4"),
        (lambda _: None, "0"),
    ],
)
def test_how_it_ended(function: Any, code: str) -> None:
    _, records = run(trace_log(), function, message(UNIQ_KEY="U1"))
    assert records[1][4:7] == ["true" if code == "0" else "false", "null", code]
    assert records[0][2] == "DefaultRegion", "what a 4.9 broker stores has no region"


def test_a_batch_is_one_request() -> None:
    messages = [message(UNIQ_KEY="U1"), message(UNIQ_KEY="U2"), message(UNIQ_KEY="U3", TRACE_ON="false")]
    result, records = run(trace_log(), len, messages, batch=True)
    assert result == 3
    assert [(fields[0], fields[5 if fields[0] == "SubBefore" else 2]) for fields in records] == [
        ("SubBefore", "U1"), ("SubBefore", "U2"), ("SubAfter", "U1"), ("SubAfter", "U2")
    ]  # fmt: skip
    assert records[2][3] == "10", "per message"


@pytest.mark.parametrize("given", [message(TRACE_ON="false"), Message(b"\0" * 100, 0, QUEUE)])
def test_what_is_not_traced_runs_all_the_same(given: Message) -> None:
    result, records = run(trace_log(), lambda m: m, given)
    assert result is given
    assert records == []


def test_records_are_bounded() -> None:
    log = trace_log()
    handler = watched(Handler(lambda _: None), "group", [log])
    for _ in range(RECORDS_MAX):
        handler.function(message(UNIQ_KEY="U"))
    assert len(log.take()) == RECORDS_MAX
    assert log.dropped == RECORDS_MAX
    assert log.take() == []


def test_a_handler_without_watchers_is_itself() -> None:
    handler = Handler(len)
    assert watched(handler, "group", []) is handler
    assert watched(Handler(raising, batch=True), "group", [trace_log()]).name == Handler(raising).name


# Packets.


def test_packets_are_bounded() -> None:
    records = [TraceRecord("ü" * 300 + "\x02", (f"k{n}", "x")) for n in range(50)]
    packets = encode_traces([*records, TraceRecord("y" * 5_000, ())], 4_096)
    assert max(map(len, packets)) <= 4_096
    assert {packet[0] for packet in packets} == {TRACES}
    assert [record for packet in packets for record in decode_traces(packet)] == records
    assert encode_traces([]) == []


@pytest.mark.parametrize("damaged", [b"\x20[", b"\x20[[1]]", b"\x203"])
def test_damaged_packets_are_refused(damaged: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_traces(damaged)


# Spans.


class OwnProvider(SpanApi):
    """The API with a provider of the test's, so that nothing global is touched."""

    def __init__(self) -> None:
        super().__init__()
        self.spans = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.spans))
        self.tracer = provider.get_tracer("test")

    @property
    def active(self) -> bool:
        return True

    def start(self, name: str, kind: str, attributes: dict[str, Any], **more: Any) -> Any:
        return self.tracer.start_as_current_span(name, kind=getattr(SpanKind, kind), attributes=attributes, **more)


TRACE_ID, SPAN_ID = "1" * 32, "2" * 16
PARENT = {"traceparent": f"00-{TRACE_ID}-{SPAN_ID}-01"}


def test_a_call_continues_the_senders_trace() -> None:
    api = OwnProvider()

    def work(_: object) -> None:
        with api.tracer.start_as_current_span("inside"):
            pass

    watched(Handler(work), "group", [ProcessSpans(api)]).function(message(UNIQ_KEY="U1", TAGS="t", **PARENT))
    inside, span = api.spans.get_finished_spans()
    assert (span.name, span.kind) == ("process TopicTest", SpanKind.CONSUMER)
    assert span.parent is not None
    assert inside.parent is not None
    assert f"{span.parent.span_id:016x}" == SPAN_ID
    assert f"{inside.get_span_context().trace_id:032x}" == TRACE_ID
    assert inside.parent.span_id == span.get_span_context().span_id
    assert span.attributes is not None
    assert span.attributes["messaging.consumer.group.name"] == "group"
    assert span.attributes["messaging.message.id"] == "U1"
    assert span.attributes["messaging.rocketmq.message.tag"] == "t"


@pytest.mark.parametrize("model", ["clustering", "broadcasting"])
def test_a_call_has_the_model_of_its_member(model: str) -> None:
    api = OwnProvider()
    spans = ProcessSpans(api, broadcasting=model == "broadcasting")
    watched(Handler(lambda _: None), "group", [spans]).function(message())
    (span,) = api.spans.get_finished_spans()
    assert span.attributes is not None
    assert span.attributes["messaging.rocketmq.consumption_model"] == model


def test_what_is_logged_of_a_message_has_the_trace_of_its_call_also_when_that_is_over() -> None:
    api = OwnProvider()
    one, batch = message(**PARENT), [message(**PARENT), message()]
    assert "trace_id" not in message_keys(one)
    watched(Handler(lambda _: None), "group", [ProcessSpans(api)]).function(one)
    watched(Handler(lambda _: None, batch=True), "group", [ProcessSpans(api)]).function(batch)
    _, span = api.spans.get_finished_spans()
    assert message_keys(one)["trace_id"] == TRACE_ID
    assert {message_keys(each)["trace_id"] for each in batch} == {f"{span.get_span_context().trace_id:032x}"}


def test_a_call_whose_span_is_none_has_no_trace() -> None:
    """So it is where OTEL_SDK_DISABLED is set."""
    api = OwnProvider()
    api.tracer = NoOpTracer()
    one = message()
    watched(Handler(lambda _: None), "group", [ProcessSpans(api)]).function(one)
    assert "trace_id" not in message_keys(one)


@pytest.mark.parametrize("way", ["single", "batch", "in order", "rows"])
def test_the_line_of_a_failed_message_has_the_trace_of_its_call(
    bench: Any, make_record: Any, tmp_path: Path, way: str
) -> None:
    api = OwnProvider()
    result = (1 // n for n in (0,)) if way == "rows" else ValueError("no")
    target = watched(Handler(lambda _: result, batch=way == "batch"), "group", [ProcessSpans(api)])
    b = bench(target, schema="n long", folder=tmp_path)
    record = make_record(properties=PARENT)
    if way == "in order":
        b.link.send(encode_ordered([OrderedDescriptor(1, 1, 0, len(record), 1, 0, ())], 0), record)
    else:
        b.chunk([record])
    b.steps(3)
    assert [(line["event"], line["trace_id"]) for line in b.log.events] == [("message_failed", TRACE_ID)]


def test_of_a_batch_that_the_handler_has_not_looked_at_no_message_is_taken() -> None:
    cell, api = private_cell(), OwnProvider()
    given = OneByOne([message(), message()], [7, 8], cell)
    taken: list[int] = []
    watched(Handler(lambda _: taken.append(cell[TAKEN]), batch=True), "group", [ProcessSpans(api)]).function(given)
    assert taken == [0]


@pytest.mark.parametrize(
    "function", [raising(ValueError("no")), raising(SoftTimeLimitExceeded(1.0)), lambda _: Retry(reason="not yet")]
)
def test_a_failure_is_an_error(function: Any) -> None:
    api = OwnProvider()
    handler = watched(Handler(function), "group", [ProcessSpans(api)])
    with contextlib.suppress(ValueError, SoftTimeLimitExceeded):
        handler.function(message())
    (span,) = api.spans.get_finished_spans()
    assert span.status.status_code is StatusCode.ERROR


@pytest.mark.parametrize("error", [ValueError("no"), SoftTimeLimitExceeded(1.0)])
def test_a_span_of_an_error_that_is_raised_again_records_the_last_raise_only(error: BaseException) -> None:
    api = OwnProvider()

    def first(_: object) -> None:
        raise error

    def second(_: object) -> None:
        raise error

    for function in (first, second):
        with contextlib.suppress(ValueError, SoftTimeLimitExceeded):
            watched(Handler(function), "group", [ProcessSpans(api)]).function(message())
        usable(error)  # as the worker tells of it
    told = [str(event.attributes) for span in api.spans.get_finished_spans() for event in span.events]
    assert ["in first" in each for each in told] == [True, False]
    assert ["in second" in each for each in told] == [False, True]


def test_a_batch_links_its_messages() -> None:
    api = OwnProvider()
    handler = watched(Handler(lambda _: None, batch=True), "group", [ProcessSpans(api)])
    handler.function([message(**PARENT), message()])
    (span,) = api.spans.get_finished_spans()
    assert span.parent is None
    assert [f"{link.context.span_id:016x}" for link in span.links] == [SPAN_ID]
    assert span.attributes is not None
    assert span.attributes["messaging.batch.message_count"] == 2


def test_without_a_provider_the_handler_is_just_called() -> None:
    given = message()
    assert watched(Handler(lambda m: m), "group", [ProcessSpans(SpanApi())]).function(given) is given


def test_traces_and_spans_together() -> None:
    api, log = OwnProvider(), trace_log()
    watched(Handler(lambda _: None), "group", [log, ProcessSpans(api)]).function(message(UNIQ_KEY="U"))
    assert len(log.take()) == 2
    assert len(api.spans.get_finished_spans()) == 1


def test_a_coroutine_is_watched_to_its_end() -> None:
    api, log = OwnProvider(), trace_log()

    async def work(given: Message) -> str:
        await asyncio.sleep(0)
        with api.tracer.start_as_current_span("inside"):
            await asyncio.sleep(0)
        assert len(api.spans.get_finished_spans()) == 1, "its own span is still open"
        if given.tags == "bad":
            raise ValueError("no")
        return given.message_id

    handler = watched_async(Handler(work), "group", [log, ProcessSpans(api)])
    assert handler.name == Handler(work).name

    async def both() -> list[Any]:
        given = (message(UNIQ_KEY="U1", **PARENT), message(UNIQ_KEY="U2", TAGS="bad"))
        results: list[Any] = []
        for each in given:
            api.spans.clear()
            results += await asyncio.gather(handler.function(each), return_exceptions=True)
        return results

    good, bad = asyncio.run(both())
    assert good == "U1"
    assert isinstance(bad, ValueError)
    records = [fields for record in log.take() for fields in split_records(record.text)]
    assert [fields[6 if fields[0] == "SubAfter" else 5] for fields in records] == ["U1", "0", "U2", "2"]
    assert watched_async(handler, "group", []) is handler
