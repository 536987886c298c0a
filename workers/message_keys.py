"""What identifies a message in a log line."""

from __future__ import annotations

from ..remoting.errors import ProtocolError
from ..remoting.properties import PROPERTY_KEYS
from .message import Message
from .run import Run


def message_keys(message: Message) -> dict[str, object]:
    """What identifies a message in a log line, as far as it can be decoded."""
    queue = message.queue
    keys: dict[str, object] = {"topic": queue.topic, "queue_id": queue.queue_id, "offset": message.queue_offset}
    try:
        keys["topic"] = message.topic
        keys["message_id"] = message.message_id
        keys["keys"] = message.properties.get(PROPERTY_KEYS)
    except ProtocolError as error:
        keys["undecodable"] = str(error)
    return keys


def place_keys(run: Run, index: int) -> dict[str, object]:
    """The same of a record that is known by its place in a run."""
    return {"topic": run.queue.topic, "queue_id": run.queue.queue_id, "offset": run.offsets[index]}
