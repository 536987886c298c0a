"""Messages made by hand: real ones, encoded as a broker stores them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, cast

from ..client.validation import Keys, check_topic
from ..remoting.arguments import INT32, NONE, TEXT, WHOLE, check, plain, refuse, shown
from ..remoting.errors import UsageError
from ..remoting.properties import PROPERTY_KEYS, PROPERTY_TAGS
from ..workers.message import Message, make_message

START_MS = 1_700_000_000_000
"""When the clock of a test begins: 2023-11-14 22:13:20 UTC."""
_RULES: Final = {
    "tags": TEXT | NONE,
    "queue_id": INT32,
    "queue_offset": WHOLE,
    "broker_name": TEXT,
    "group": TEXT,
    "reconsume_times": INT32,
    "store_timestamp_ms": WHOLE,
}
_HAVE_ARGUMENTS: Final = {PROPERTY_KEYS: "keys", PROPERTY_TAGS: "tags"}


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
    `reconsume_times` is the number of attempts before this one; `properties` may have those that brokers and clients
    set, such as `DLQ_ORIGIN_TOPIC`. Raises UsageError for what no producer could have sent.
    """
    given = {
        "tags": tags, "queue_id": queue_id, "queue_offset": queue_offset, "broker_name": broker_name, "group": group,
        "reconsume_times": reconsume_times, "store_timestamp_ms": store_timestamp_ms,
    }  # fmt: skip
    taken = check("message", given, _RULES)
    own = _checked_properties(properties)
    check_topic(topic)
    if isinstance(body, str):
        body = body.encode()
    if not isinstance(body, bytes | bytearray | memoryview):  # pyright: ignore[reportUnnecessaryIsInstance]  a user's mistake
        raise UsageError(
            f"message(body=...): {type(body).__name__} is neither bytes nor str; encode it, as by json.dumps"
        )
    return make_message(
        bytes(body), topic=plain(topic), keys=keys, properties=own, tags=taken["tags"], queue_id=taken["queue_id"],
        queue_offset=taken["queue_offset"], broker_name=taken["broker_name"], group=taken["group"],
        reconsume_times=taken["reconsume_times"], store_timestamp_ms=taken["store_timestamp_ms"],
    )  # fmt: skip


def _checked_properties(properties: object) -> dict[str, str]:
    """Raise UsageError for what is no property of a message, or is an argument of its own."""
    if properties is None:
        return {}
    if not isinstance(properties, Mapping):
        refuse("message", "properties", properties, "a dict of str to str")
    found: dict[str, str] = {}
    for name, value in cast("Mapping[object, object]", properties).items():
        where = f"message(properties=...): {shown(name)}"
        if not (isinstance(name, str) and isinstance(value, str)):
            raise UsageError(f"{where} with {shown(value)}: both must be str")
        if name in _HAVE_ARGUMENTS:
            raise UsageError(f"{where} has an argument of its own: give {_HAVE_ARGUMENTS[name]}={shown(value)}")
        if not name.strip() or not value.strip():
            raise UsageError(f"{where} with {shown(value)}: neither name nor value may be blank, leave it out")
        found[plain(name)] = plain(value)
    return found
