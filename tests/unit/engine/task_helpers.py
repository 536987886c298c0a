"""Messages as the source gives them to a task, and handlers for them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pyarrow

from rocketcrew import Message, Retry, handler
from rocketcrew.engine.spec import TaskSpec
from rocketcrew.remoting.properties import encode_properties
from rocketcrew.remoting.stored import StoredMessage, encode_message
from rocketcrew.workers.boot import WorkerBounds
from rocketcrew.workers.consume_hooks import ConsumeMessageContext
from rocketcrew.workers.loading import describe

pa: Any = pyarrow
SCHEMA: Any = pa.schema(
    [("topic", pa.string()), ("brokerName", pa.string()), ("queueId", pa.int32()), ("queueOffset", pa.int64()),
     ("record", pa.binary())]
)  # fmt: skip
CALLS: list[int] = []
HOOKS: list[str] = []


def record(offset: int, body: bytes, topic: str = "t", **properties: str) -> bytes:
    raw = encode_properties(properties).encode()
    return encode_message(
        StoredMessage(topic, body, raw, queue_id=1, queue_offset=offset, physical_offset=offset * 100)
    )


def batch(*records: tuple[int, bytes], topic: str = "t") -> Any:
    offsets = [offset for offset, _ in records]
    count = len(records)
    columns = [[topic] * count, ["a"] * count, [1] * count, offsets, [data for _, data in records]]
    return pa.RecordBatch.from_arrays(
        [pa.array(values, field.type) for values, field in zip(columns, SCHEMA, strict=True)], schema=SCHEMA
    )


def numbers(first: int, end: int, **properties: str) -> Any:
    return batch(*((at, record(at, b"%d" % at, **properties)) for at in range(first, end)))


@handler(schema="n bigint", setup=lambda: HOOKS.append("up"), teardown=lambda: HOOKS.append("down"))
def count(message: Message) -> dict[str, int] | None:
    """Numbers; 3 has no row, 5 fails, 6 asks for the dead letters."""
    value = int(message.body)
    CALLS.append(value)
    if value == 3:
        return None
    if value == 5:
        raise ValueError("five")
    if value == 6:
        raise Retry(-1, "six")
    return {"n": value}


@handler(schema="n bigint", batch=True)
def count_many(messages: list[Message]) -> list[dict[str, int]]:
    return [{"n": int(message.body)} for message in messages]


class Audit:
    """A hook around calls."""

    def hook_name(self) -> str:
        return "audit"

    def consume_message_before(self, context: ConsumeMessageContext) -> None:
        HOOKS.append("before")

    def consume_message_after(self, context: ConsumeMessageContext) -> None:
        HOOKS.append(context.status)


@handler(schema="n bigint", hooks=[Audit()])
async def count_later(message: Message) -> dict[str, int]:
    """Numbers, after others had their turn on the loop; 1 fails."""
    await asyncio.sleep(0)
    value = int(message.body)
    if value == 1:
        raise ValueError("one")
    return {"n": value}


@handler(schema="n int")
def too_large(message: Message) -> dict[str, int]:
    return {"n": int(message.body) + (1 << 40 if message.body == b"2" else 0)}


def set_up_badly() -> None:
    raise RuntimeError("no model")


@handler(schema="n int", setup=set_up_badly)
def never(message: Message) -> None:
    del message


def spec(function: Any, folder: Path, **more: Any) -> TaskSpec:
    folder.mkdir(parents=True, exist_ok=True)
    told: dict[str, Any] = {
        "handler": describe(function), "run": folder.name, "prefix": "e1.0", "folder": folder, "group": "g",
        "bounds": WorkerBounds(batch_messages_max=4, flush_interval_us=1_000_000, seal_idle_ms=1_000_000),
    }  # fmt: skip
    return TaskSpec(**{**told, **more})
