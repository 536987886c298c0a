"""Stored messages for people and programs: read from a queue, decoded, and shown."""

from __future__ import annotations

import base64
import contextlib
import functools
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, cast

import click

from ..client.cluster import Cluster
from ..client.operations import Operations, PullStatus
from ..remoting.errors import ProtocolError, UnreachableError, UsageError
from ..remoting.names import TOOLS_GROUP
from ..remoting.properties import PROPERTY_KEYS, PROPERTY_TAGS, divided_keys
from ..remoting.queues import MessageQueue
from ..remoting.stored import StoredMessage, decode_message, record_info, walk
from ..source.searching import look_at
from .json_text import json_text
from .tables import in_one_line, seen

PULL_MESSAGES: Final = 32
"""By default brokers bring no more at once."""
BODY_FORMATS: Final = ("auto", "text", "json", "hex", "base64", "none")
NESTED_MAX: Final = 100
"""Of lists and objects in each other: JSON of more is shown as text. Python's own bound is that of its stack."""
SHOWN_CHARS: Final = 200
"""Of a body in a table's row."""

Show = Callable[[str, StoredMessage], None]
"""Shows a message; the first argument is its broker's name."""


async def records(
    cluster: Cluster, mq: MessageQueue, start: int, stop: int, *, or_group: str = "", bytes_max: int | None = None
) -> AsyncIterator[tuple[int, int, bytes]]:
    """Records that have an offset in `[start, stop)`: their first offset, the one after their last, and their bytes.

    Ends early when `bytes_max` are reached; nothing is asked for when there are none left. `or_group`: in whose name is asked
    where TOOLS_GROUP may not read.
    """
    left = bytes_max
    if left is not None and left <= 0:
        return
    operations = Operations(cluster)
    address = await cluster.address_of(mq, only_this=False)
    at, groups = start, tool_or(or_group)
    while at < stop:
        result = await look_at(operations, address, groups, mq, at, min(PULL_MESSAGES, stop - at))
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


async def messages(
    cluster: Cluster, mq: MessageQueue, start: int, stop: int, *, or_group: str = ""
) -> AsyncIterator[StoredMessage]:
    """The messages of a queue from `start` until before `stop`, otherwise as `records`. Raises ProtocolError for a record
    that is damaged."""
    async for _, _, record in records(cluster, mq, start, stop, or_group=or_group):
        yield decode_message(record)


async def nothing_until(cluster: Cluster, mq: MessageQueue, at: int, or_group: str) -> int:
    """Where the broker goes on when it has no message at the offset `at`; `at` itself where it has one, or does not say.
    `or_group` as in `records`."""
    address = await cluster.address_of(mq, only_this=False)
    result = await look_at(Operations(cluster), address, tool_or(or_group), mq, at, 1)
    return at if result.status is PullStatus.FOUND else max(at, result.header.next_begin_offset)


def tool_or(or_group: str) -> list[str]:
    """In whose name a command looks: its own as a tool, and that one's where a tool may not; "" = nobody's."""
    return [TOOLS_GROUP, or_group] if or_group else [TOOLS_GROUP]


def body_of(message: StoredMessage, how: str) -> Any:
    """The body in one of BODY_FORMATS: text where it is text, parsed JSON, hexadecimal, base64, or None.

    `auto`: JSON where it parses and can be said again in JSON, else text where it is UTF-8, else base64 with that prefix.
    Compressed bodies are opened; one that cannot be is shown as it is stored, in base64.
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
        with contextlib.suppress(ValueError):
            return _parsed(data)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return f"base64:{base64.b64encode(data).decode()}" if how == "auto" else data.decode("utf-8", "replace")


def _parsed(data: bytes) -> Any:
    """Raises ValueError for what is no JSON, and for what could not be written as JSON again: half a surrogate pair, NaN, a
    thousand lists in each other."""
    try:
        found = json.loads(data)
        json.dumps(found, ensure_ascii=False, allow_nan=False).encode()
    except RecursionError:
        raise ValueError("nested too deeply") from None
    level, depth = list[object]([found]), 0
    while level:
        level = [part for one in level for part in _parts(one)]
        depth += 1
    if depth > NESTED_MAX:
        raise ValueError("nested too deeply")
    return found


def _parts(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return cast("dict[str, object]", value).values()
    return cast("list[object]", value) if isinstance(value, list) else ()


def moment(at_ms: int) -> datetime | None:
    """Milliseconds since 1970 as a time in UTC; None outside of the years 1 to 9999: a producer may write any number."""
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def when(at_ms: int) -> str:
    """Milliseconds since 1970 as ISO 8601 in UTC, to the millisecond; the number where that has no such time."""
    at = moment(at_ms)
    return str(at_ms) if at is None else at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


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
    text = body if isinstance(body, str) else json_text(body, indent=None if chars_max else 2)
    if chars_max is None:
        return text
    flat = " ".join(text.split())
    return flat if len(flat) <= chars_max else flat[: chars_max - 1] + "…"


# --- which messages -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Filter:
    """Which messages are shown: all conditions hold; an empty one holds always."""

    tag: str = ""
    key: str = ""
    text: str = ""
    properties: tuple[tuple[str, str], ...] = ()

    def takes(self, message: StoredMessage) -> bool:
        """Whether it passes; `text` is looked for in the body as it was sent, capitals or not."""
        own = message.properties
        return (
            (not self.tag or own.get(PROPERTY_TAGS) == self.tag)
            and (not self.key or self.key in divided_keys(own.get(PROPERTY_KEYS, "")))
            and all(own.get(name) == value for name, value in self.properties)
            and (not self.text or self.text.lower() in str(body_of(message, "text")).lower())
        )


Silent = dict[str, UnreachableError]
"""Brokers that did not answer, by name: what they have was not seen."""
Stored = tuple[str, StoredMessage]
"""With its broker's name."""


async def newest(cluster: Cluster, topic: str, count: int, wanted: Filter, silent: Silent) -> list[Stored]:
    """The last `count` messages that pass, oldest first."""
    operations = Operations(cluster)

    async def look(mq: MessageQueue) -> list[Stored]:
        low, end = await operations.min_offset(mq), await operations.max_offset(mq)
        own: list[Stored] = []
        while end > low and len(own) < count:
            start = max(low, end - max(count, PULL_MESSAGES))
            own = [(mq.broker_name, one) async for one in messages(cluster, mq, start, end) if wanted.takes(one)] + own
            end = start
        return own[-count:]

    return (await of_each_queue(await cluster.queues_to_read(topic, refresh=True), look, silent))[-count:]


async def oldest_since(
    cluster: Cluster, topic: str, count: int, wanted: Filter, silent: Silent, from_ms: int
) -> list[Stored]:
    """The first `count` messages stored at `from_ms` or later that pass, oldest first."""
    operations = Operations(cluster)

    async def look(mq: MessageQueue) -> list[Stored]:
        low, high = await operations.min_offset(mq), await operations.max_offset(mq)
        # A broker's search is near the time, and may lie after it by a few messages of the same millisecond.
        start = max(low, min(high, await operations.search_offset(mq, from_ms)) - PULL_MESSAGES) if from_ms else low
        own: list[Stored] = []
        async for one in messages(cluster, mq, start, high):
            if one.store_timestamp_ms >= from_ms and wanted.takes(one):
                own.append((mq.broker_name, one))
                if len(own) == count:
                    break
        return own

    return (await of_each_queue(await cluster.queues_to_read(topic, refresh=True), look, silent))[:count]


async def of_each_queue(
    queues: Sequence[MessageQueue], look: Callable[[MessageQueue], Awaitable[list[Stored]]], silent: Silent
) -> list[Stored]:
    """What `look` finds, in the order of time; a broker that does not answer is put into `silent`, and one that is there is
    not asked. Raises UnreachableError where none has answered for one queue."""
    found: list[Stored] = []
    heard = False
    for mq in queues:
        if mq.broker_name not in silent:
            try:
                found += await look(mq)
                heard = True
            except UnreachableError as error:
                silent[mq.broker_name] = error
    if silent and not heard:
        raise next(iter(silent.values()))
    return sorted(found, key=_stored)


def _stored(one: Stored) -> tuple[int, str, int, int]:
    broker, message = one
    return message.store_timestamp_ms, broker, message.queue_id, message.queue_offset


def printer(how: str, *, as_json: bool) -> Show:
    """Prints a message as one line: JSON, or time, place, tag, keys and body."""

    def show(broker: str, message: StoredMessage) -> None:
        if as_json:
            click.echo(json_text(facts_of(message, broker, how)))
        else:
            click.echo(seen(line_of(message, broker, how)))

    return show


def line_of(message: StoredMessage, broker: str, how: str) -> str:
    """A message on one line, for people."""
    own = message.properties
    words = [when(message.store_timestamp_ms), f"{broker}/{message.queue_id}/{message.queue_offset}"]
    words += [
        f"{name}={in_one_line(own[given])}"
        for name, given in (("tag", PROPERTY_TAGS), ("key", PROPERTY_KEYS))
        if own.get(given)
    ]
    return "  ".join([*words, shown(body_of(message, how))]).rstrip()


def picking(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of a Filter and of how messages are shown: `wanted`, `how`, `as_json`."""

    @functools.wraps(function)
    def command(*arguments: Any, tag: str, key: str, text: str, properties: tuple[str, ...], **more: Any) -> None:
        pairs: list[tuple[str, str]] = []
        for given in properties:
            name, equals, value = given.partition("=")
            if not equals or not name:
                raise UsageError(f"--property {given!r} is not K=V")
            pairs.append((name, value))
        function(*arguments, wanted=Filter(tag, key, text, tuple(pairs)), **more)

    for option in reversed((
        click.option("--tag", default="", metavar="TAG", help="Only messages with this tag."),
        click.option("--key", default="", metavar="KEY", help="Only messages with this key."),
        click.option("--property", "properties", multiple=True, metavar="K=V",
                     help="Only messages with this property. May be repeated."),
        click.option("--grep", "text", default="", metavar="TEXT", help="Only messages whose body has this text."),
        click.option("--body", "how", type=click.Choice(BODY_FORMATS), default="auto", show_default=True,
                     help="How bodies are shown."),
        click.option("--json", "as_json", is_flag=True, help="Print one JSON object a message, on a line of its own."),
    )):  # fmt: skip
        command = option(command)
    return command
