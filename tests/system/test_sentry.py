"""Failed calls of real workers are sent to a Sentry on 127.0.0.1; one that never answers holds up nobody."""

from __future__ import annotations

import contextlib
import gzip
import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from harness import WAIT_S, Broker, Crew, patient_producer, wait_until

from rocketcrew import OutgoingMessage

COUNT = 200
BAD = 120
"""More than the queue of the SDK takes."""


class Sentry:
    """Keeps the events it is sent; answers none before `answering` is set."""

    def __init__(self, *, answers: bool) -> None:
        self.events: list[dict[str, Any]] = []
        self.asked = threading.Event()
        self.answering = threading.Event()
        if answers:
            self.answering.set()
        sentry = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                sentry.asked.set()
                body = self.rfile.read(int(self.headers["Content-Length"]))
                sentry.answering.wait()
                text = gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
                sentry.events += [json.loads(line) for line in text.splitlines() if b'"exception"' in line]
                with contextlib.suppress(OSError):  # its worker may have left
                    self.send_response(200)
                    self.send_header("Content-Length", "0")
                    self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()
        self.dsn = f"http://key@127.0.0.1:{self.server.server_port}/1"

    def heard(self) -> bool:
        """As much as it hears before it is closed."""
        return bool(self.events) if self.answering.is_set() else self.asked.is_set()

    def close(self) -> None:
        self.answering.set()
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@contextlib.contextmanager
def sentry_at(*, answers: bool) -> Iterator[Sentry]:
    sentry = Sentry(answers=answers)
    try:
        yield sentry
    finally:
        sentry.close()


def consume(tmp_path: Path, sentry: Sentry, messages: list[OutgoingMessage]) -> str:
    """Consume them all, some at the second attempt, until Sentry was asked; the supervisor's log."""
    broker = Broker(tmp_path)
    try:
        crew = Crew(tmp_path, broker, "failing_handlers:number", "orders", load=False, **{"sentry.dsn": sentry.dsn})
        with patient_producer(broker) as producer:
            for message in messages:
                producer.send(message)
        crew.start()
        try:
            wait_until(
                lambda: crew.counter("done_messages") == len(messages) and crew.lag() == 0, WAIT_S, "all finished"
            )
            wait_until(sentry.heard, WAIT_S, "Sentry asked")
        finally:
            assert crew.stop() == 0
        return crew.child.log.read_text()
    finally:
        broker.stop()


def test_a_failed_message_is_one_event_with_its_names(tmp_path: Path) -> None:
    with sentry_at(answers=True) as sentry:
        sent = OutgoingMessage("orders", b"1", tags="bad", keys="customer-7")
        consume(tmp_path, sentry, [sent, OutgoingMessage("orders", b"2")])
        (event,) = sentry.events
    tags = event["tags"]
    assert {key: tags[key] for key in ("topic", "group", "handler", "reconsume_times", "last_attempt")} == {
        "topic": "orders", "group": "crew", "handler": "failing_handlers:number", "reconsume_times": "0",
        "last_attempt": "false",
    }  # fmt: skip
    assert {"broker", "queue_id", "offset", "msg_id", "worker"} <= tags.keys()
    assert event["exception"]["values"][0]["value"] == "not yet"
    assert "customer-7" not in json.dumps(event)


def test_a_sentry_that_never_answers_holds_up_neither_messages_nor_the_end(tmp_path: Path) -> None:
    with sentry_at(answers=False) as sentry:
        messages = [OutgoingMessage("orders", b"%d" % n, tags="bad" if n < BAD else "") for n in range(COUNT)]
        log = consume(tmp_path, sentry, messages)
        assert not sentry.events, "everything was done before it answered once"
    assert "worker_killed" not in log
