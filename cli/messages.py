"""Stored messages for people and programs: read from a queue, decoded, and shown."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any, Final

from ..client.cluster import Cluster
from ..client.operations import Operations, PullStatus, parse_pull
from ..remoting.errors import ProtocolError
from ..remoting.properties import PROPERTY_KEYS, PROPERTY_TAGS
from ..remoting.queues import MessageQueue
from ..remoting.stored import StoredMessage, decode_message, record_info, walk
from ..source.reading import TOOLS_GROUP
from ..source.searching import pull_request

PULL_MESSAGES: Final = 32
"""By default brokers bring no more at once."""
BODY_FORMATS: Final = ("auto", "text", "json", "hex", "base64", "none")
SHOWN_CHARS: Final = 200
"""Of a body in a table's row."""


async def records(
    cluster: Cluster, mq: MessageQueue, start: int, stop: int, *, group: str = TOOLS_GROUP, bytes_max: int | None = None
) -> AsyncIterator[tuple[int, int, bytes]]:
    """Records that have an offset in `[start, stop)`: their first offset, the one after their last, and their bytes.

    Ends early when `bytes_max` are reached; nothing is asked for when there are none left.
    """
    left = bytes_max
    if left is not None and left <= 0:
        return
    operations = Operations(cluster)
    address = await cluster.address_of(mq, only_this=False)
    at = start
    while at < stop:
        header = pull_request(group, mq, at, min(PULL_MESSAGES, stop - at))
        result = parse_pull(await operations.pull(address, header), address)
        if result.status is not PullStatus.FOUND:
            if result.header.next_begin_offset <= at:
                return
            at = result.header.next_begin_offset
            continue
        body = bytes(result.body)
        positions, lasts = walk(body)
        for place, last in enumerate(lasts):
            record = body[positions[place] : positions[place + 1]]
            first = record_info(record).queue_offset
            at = max(at, last + 1)
            if last >= start and first < stop:
                yield first, last + 1, record
                if left is not None:
                    left -= len(record)
                    if left <= 0:
                        return
        at = max(at, result.header.next_begin_offset)


async def messages(cluster: Cluster, mq: MessageQueue, start: int, stop: int) -> AsyncIterator[StoredMessage]:
    """The messages of a queue from `start` until before `stop`. Raises ProtocolError for a record that is damaged."""
    async for _, _, record in records(cluster, mq, start, stop):
        yield decode_message(record)


def body_of(message: StoredMessage, how: str) -> Any:
    """The body in one of BODY_FORMATS: text where it is text, parsed JSON, hexadecimal, base64, or None.

    `auto`: JSON where it parses, else text where it is UTF-8, else base64 with that prefix. Compressed bodies are opened; one
    that cannot be is shown as it is stored, in base64.
    """
    if how == "none":
        return None
    try:
        data = message.decompressed_body()
    except ProtocolError:
        return f"base64:{base64.b64encode(message.body).decode()}"
    if how == "hex":
        return data.hex()
    if how == "base64":
        return base64.b64encode(data).decode()
    if how in ("auto", "json"):
        try:
            return json.loads(data)
        except ValueError:
            pass
    try:
        return data.decode()
    except UnicodeDecodeError:
        return f"base64:{base64.b64encode(data).decode()}" if how == "auto" else data.decode("utf-8", "replace")


def when(at_ms: int) -> str:
    """Milliseconds since 1970 as ISO 8601 in UTC, to the millisecond."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def facts_of(message: StoredMessage, broker: str, how: str = "auto") -> dict[str, Any]:
    """A message as one JSON object: ids, place, times, properties and body."""
    properties = dict(message.properties)
    return {
        "message_id": message.message_id,
        "offset_message_id": message.offset_message_id,
        "topic": message.topic,
        "broker": broker,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "stored_at": when(message.store_timestamp_ms),
        "born_at": when(message.born_timestamp_ms),
        "keys": properties.get(PROPERTY_KEYS, ""),
        "tags": properties.get(PROPERTY_TAGS, ""),
        "reconsume_times": message.reconsume_times,
        "properties": properties,
        "body_bytes": len(message.body),
        "body": body_of(message, how),
    }


def text_of(facts: dict[str, Any]) -> str:
    """The same for people: a line a fact, properties indented, the body last and whole."""
    properties = "".join(f"\n  {name} = {value}" for name, value in sorted(facts["properties"].items()))
    names = [name for name in facts if name not in ("properties", "body")]
    width = max(map(len, names))
    head = "\n".join(f"{name.replace('_', ' ').ljust(width)}  {facts[name]}" for name in names)
    return f"{head}\nproperties{properties}\n\n{shown(facts['body'], None)}".rstrip()


def shown(body: Any, chars_max: int | None = SHOWN_CHARS) -> str:
    """A body as text: JSON on one line in a table, over several where there is room."""
    if body is None:
        return ""
    text = body if isinstance(body, str) else json.dumps(body, ensure_ascii=False, indent=None if chars_max else 2)
    if chars_max is None:
        return text
    flat = " ".join(text.split())
    return flat if len(flat) <= chars_max else flat[: chars_max - 1] + "…"
