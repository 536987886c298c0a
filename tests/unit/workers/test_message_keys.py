"""What a log line says of a message that failed."""

from __future__ import annotations

from rocketcrew.testing import message
from rocketcrew.workers.message import message_keys


def test_a_message_is_named_by_its_place() -> None:
    keys = message_keys(message(topic="orders", keys="o-1"))
    assert keys["topic"] == "orders"
    assert keys["keys"] == "o-1"
    assert {"broker", "queue_id", "offset", "msg_id", "reconsume_times"} <= keys.keys()
    assert "origin_topic" not in keys
