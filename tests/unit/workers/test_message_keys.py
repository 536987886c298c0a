"""What a log line says of a message that failed."""

from __future__ import annotations

from rocketcrew.testing import message
from rocketcrew.workers.runner import message_keys


def test_a_message_is_named_by_its_place() -> None:
    keys = message_keys(message(topic="orders", keys="o-1"))
    assert keys["topic"] == "orders"
    assert keys["keys"] == "o-1"
    assert {"broker", "queue_id", "offset", "message_id"} <= keys.keys()
    assert "origin_topic" not in keys
