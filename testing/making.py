"""Messages made by hand: real ones, encoded as a broker stores them."""

from __future__ import annotations

from collections.abc import Mapping

from ..client.validation import Keys, check_topic
from ..remoting.errors import UsageError
from ..workers.message import Message, make_message

START_MS = 1_700_000_000_000
"""When the clock of a test begins: 2023-11-14 22:13:20 UTC."""


def message(
    body: bytes | bytearray | memoryview | str = b"{}",
    *,
    topic: str = "TopicTest",
    tags: str | None = None,
    keys: Keys = None,
    properties: Mapping[str, str] | None = None,
    queue_id: int = 0,
    queue_offset: int = 0,
    broker_name: str = "broker-a",
    group: str = "test",
    reconsume_times: int = 0,
    store_timestamp_ms: int = START_MS,
) -> Message:
    """A message as a handler gets it: `handle(message(topic="orders", body=b"..."))`.

    `body` as str is encoded in UTF-8. `keys` are as those of an OutgoingMessage: one str, or several.
    `reconsume_times` is the number of attempts before this one. Raises UsageError for what no producer could have sent.
    """
    check_topic(topic)
    if isinstance(body, str):
        body = body.encode()
    if not isinstance(body, bytes | bytearray | memoryview):  # pyright: ignore[reportUnnecessaryIsInstance]  a user's mistake
        raise UsageError(
            f"message(body=...): {type(body).__name__} is neither bytes nor str; encode it, as by json.dumps"
        )
    return make_message(
        bytes(body), topic=topic, tags=tags, keys=keys, properties=properties, queue_id=queue_id,
        queue_offset=queue_offset, broker_name=broker_name, group=group, reconsume_times=reconsume_times,
        store_timestamp_ms=store_timestamp_ms,
    )  # fmt: skip
