"""A handler that sets up OpenTelemetry itself, as a user's would: spans go to a file, one JSON object after another."""

from __future__ import annotations

import os

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter

from rocketcrew import Message, handler


def set_up() -> None:
    out = open(f"{os.environ['SPANS_FILE']}.{os.getpid()}", "a")  # noqa: SIM115  open as long as the worker lives
    provider = TracerProvider()
    exporter = ConsoleSpanExporter(out=out, formatter=lambda span: span.to_json(indent=None) + "\n")
    provider.add_span_processor(BatchSpanProcessor(exporter))  # what it keeps back is sent at the worker's end
    trace.set_tracer_provider(provider)


@handler(setup=set_up)
def number(message: Message) -> None:
    with trace.get_tracer("user").start_as_current_span("inside"):
        if message.reconsume_times == 0 and message.tags == "twice":
            raise ValueError("not yet")
