"""Messages for people and programs: bodies that are nearly JSON, and times that are none."""

from __future__ import annotations

import json

import pytest

from rocketcrew.cli.messages import body_of, facts_of, line_of, moment, text_of, when
from rocketcrew.remoting.stored import StoredMessage


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


@pytest.mark.parametrize(
    "body",
    [
        rb'{"name": "cut \ud83d"}', rb'{"cut \udc00": 1}', b'{"total": NaN}', b'{"most": [1e999]}', b"[-Infinity]",
        nested(101), nested(600), nested(200_000), b'{"a":' * 101 + b"1" + b"}" * 101,
    ],
)  # fmt: skip
def test_json_that_cannot_be_said_again_is_shown_as_text(body: bytes) -> None:
    message = StoredMessage("orders", body)
    for how in ("auto", "json"):
        assert body_of(message, how) == body.decode()
        facts = facts_of(message, "b", how)
        text_of(facts).encode()
        line_of(message, "b", how).encode()
        assert json.loads(json.dumps(facts, allow_nan=False))["body"] == body.decode()


@pytest.mark.parametrize("body", [rb'{"name": "whole \ud83d\ude00"}', nested(100), b'{"n": 1e3, "none": null}', b"7"])
def test_other_json_is_read(body: bytes) -> None:
    message = StoredMessage("orders", body)
    assert body_of(message, "auto") == json.loads(body)
    text_of(facts_of(message, "b")).encode()


def test_a_time_outside_of_the_calendar_is_its_number() -> None:
    assert when(1_700_000_000_123) == "2023-11-14T22:13:20.123Z"
    for at_ms in (253_402_300_800_000, 2**63 - 1, -(2**63)):
        assert when(at_ms) == str(at_ms)
        assert moment(at_ms) is None
    message = StoredMessage("orders", b"x", born_timestamp_ms=2**63 - 1)
    assert facts_of(message, "b")["born_at"] == str(2**63 - 1)
