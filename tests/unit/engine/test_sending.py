"""How far a file of failed messages was sent, over restarts and losses of power."""

from __future__ import annotations

from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from rocketcrew.conf.settings import load
from rocketcrew.durable.intervals import QueueKey
from rocketcrew.durable.outcomes import SENT_BACK
from rocketcrew.engine.sending import GROUP_MAX, SENT_SUFFIX, FailureSender, read_sent
from rocketcrew.engine.task import FAILURE_SCHEMA, ArrowFile
from rocketcrew.remoting.stored import StoredMessage, encode_message
from rocketcrew.workers.failures import Cause

RECORD = encode_message(StoredMessage("t", b"x"))
MESSAGES = 2 * GROUP_MAX + 3


class Sends:
    """In place of a link to brokers: counts how often a group is sent."""

    cluster = operations = None

    def __init__(self) -> None:
        self.groups = 0

    def run(self, send: Coroutine[Any, Any, None]) -> None:
        send.close()
        self.groups += 1


@pytest.fixture
def failures(tmp_path: Path) -> Path:
    path = tmp_path / "0.failed"
    file = ArrowFile(path, FAILURE_SCHEMA)
    for at in range(MESSAGES):
        told = {
            "topic": "t", "broker": "b", "queue_id": 0, "offset": at, "cause": int(Cause.FAILED), "level": 0, "error": "no",
            "deaths": 0, "record": RECORD,
        }  # fmt: skip
        file.write([[told[name]] for name in FAILURE_SCHEMA.names])
    file.end()
    return path


def sent_groups(failures: Path) -> int:
    sends = Sends()
    link: Any = sends
    sender = FailureSender(link, "g", load({}, {}, None).consumer, 1, lambda: True)
    outcomes = sender.send_file(failures)
    assert outcomes.of_queue(SENT_BACK, QueueKey("g", "t", "b", 0)).pieces == ((0, MESSAGES),)
    assert read_sent(failures.with_suffix(SENT_SUFFIX)) == MESSAGES
    return sends.groups


def test_what_was_sent_by_an_earlier_run_is_not_sent_again(failures: Path) -> None:
    assert sent_groups(failures) == 3
    assert sent_groups(failures) == 0
    failures.with_suffix(SENT_SUFFIX).write_text(str(GROUP_MAX))
    assert sent_groups(failures) == 2


@pytest.mark.parametrize("left", [b"", b"\0\0\0", b"1x", b"\xff", b"-5"])
def test_a_count_that_cannot_be_read_ends_no_stream_and_counts_as_nothing_sent(failures: Path, left: bytes) -> None:
    """Empty or of zeros, as the power's failure leaves what was renamed and not synced."""
    failures.with_suffix(SENT_SUFFIX).write_bytes(left)
    with capture_logs() as logs:
        assert sent_groups(failures) == 3
    assert [line["event"] for line in logs] == ([] if left == b"-5" else ["sent_not_read"])
