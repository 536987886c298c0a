"""OpenTelemetry spans of real workers: below the sender's, above the handler's own."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from harness import WAIT_S, Broker, Crew, patient_producer, wait_until

from rocketcrew import OutgoingMessage

TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def test_a_handlers_span_continues_the_senders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPANS_FILE", str(tmp_path / "spans"))
    broker = Broker(tmp_path)
    try:
        crew = Crew(
            tmp_path, broker, "tracing_handler:number", "spans", load=False, **{"consumer.max_reconsume_times": 3}
        )
        with patient_producer(broker) as producer:
            properties = {"traceparent": f"00-{TRACE_ID}-{SPAN_ID}-01"}
            sent = producer.send(OutgoingMessage("spans", b"1", tags="twice", properties=properties))
        crew.start()
        try:
            wait_until(lambda: crew.counter("done_messages") == 1 and crew.lag() == 0, WAIT_S, "the message finished")
        finally:
            assert crew.stop() == 0
    finally:
        broker.stop()
    spans = [json.loads(line) for file in tmp_path.glob("spans.*") for line in file.read_text().splitlines()]
    calls = sorted(
        (span for span in spans if span["name"] == "process spans"), key=lambda span: str(span["start_time"])
    )
    assert [call["status"]["status_code"] for call in calls] == ["ERROR", "UNSET"]
    for call in calls:
        assert (call["kind"], call["parent_id"]) == ("SpanKind.CONSUMER", f"0x{SPAN_ID}")
        assert attributes(call)["messaging.message.id"] == sent.message_id
        assert inside(spans, call)["context"]["trace_id"] == f"0x{TRACE_ID}"
    assert [attributes(call)["messaging.rocketmq.reconsume_times"] for call in calls] == [0, 1]


def attributes(span: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = span["attributes"]
    return found


def inside(spans: list[dict[str, Any]], call: dict[str, Any]) -> dict[str, Any]:
    """The handler's own span."""
    return next(span for span in spans if span["parent_id"] == call["context"]["span_id"])
