"""Rows of a table to messages, each with a key that is the same when the batch is written again. Pure.

A write is at least once: Spark repeats tasks and batches, and brokers do not know what they have already. So each message
has the property SPARK_ROW_KEY, `<query or job>-<batch>-<partition>-<digest>-<number>`: who reads it can drop what it saw.
The digest is that of the row's columns, the number tells equal rows apart. So it is the same for a batch that is repeated
with the same rows in the same partitions, in whatever order: a task behind a shuffle gets them as they arrive. Rows that
come in another partition (round robin over rows that differ from run to run) have other keys: such messages come twice, and
none is taken for another. A batch write is a job of its own each time it runs, unless option `writeId` says which one it
is: then it has the same keys again, and inside foreachBatch those of the query's batch. Messages whose row gives no keys
get it as their key as well, so that tools find it.

Rows with a sharding key go to the queue of that key (as `by_key` of Java's and our producers), rows with a queue id to that
queue. Of one task's rows those of one queue are sent one after the other, in their order.
"""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from ..client.outgoing import OutgoingMessage
from ..client.selection import by_key
from ..remoting.errors import UsageError
from ..remoting.properties import PROPERTY_SHARDING_KEY, RESERVED_PROPERTIES
from ..remoting.queues import MessageQueue
from .columns import COLUMNS

ROW_KEY = "SPARK_ROW_KEY"
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
MILLISECOND = datetime.timedelta(milliseconds=1)
DIGEST_BYTES = 12
ROWS_KNOWN_MAX = 1_000_000
"""Of one partition's different rows, about 100 MB."""


def write_key(write_id: str, job: str, query: str | None, batch: str | None) -> str:
    """What the keys of one write begin with. `query` and `batch`: of the stream that it is part of, None outside of one.

    Inside foreachBatch there may be several writes for one batch, and nothing but their `write_id` tells them apart: a write
    without one is a `job` of its own, for the same key on different rows would have readers drop one of them. With Spark
    Connect, and in threads that users start there, no task is told of the batch: then its number has to be in `write_id`.
    """
    if not write_id:
        return f"{job}-0"
    return f"{write_id}-{query}-{batch}" if query and batch else f"{write_id}-0"


_WRITTEN = {
    "body": ("binary", "string"),
    "topic": ("string",),
    "tags": ("string",),
    "keys": ("string",),
    "properties": ("map<string,string>",),
    "shardingKey": ("string",),
    "toBrokerName": ("string",),
    "toQueueId": ("int", "bigint"),
    "delayLevel": ("int", "bigint"),
    "delayMs": ("int", "bigint"),
    "deliverTimestamp": ("timestamp",),
}


@dataclass(frozen=True, slots=True)
class RowForm:
    """Which columns make a message; `topic`, if any, is that of all rows, whatever they name (as with Kafka's sink)."""

    columns: tuple[str, ...]
    topic: str


class OutgoingRow(NamedTuple):
    """A message and where in its topic it goes: to the queue of a key, to a queue by its id, or to any."""

    message: OutgoingMessage
    sharding_key: str = ""
    broker_name: str = ""
    queue_id: int | None = None

    @property
    def ordered(self) -> bool:
        """Whether its queue is chosen here."""
        return self.queue_id is not None or bool(self.sharding_key)

    def queue(self, queues: Sequence[MessageQueue]) -> MessageQueue:
        """Its queue among the topic's writable ones. Raises UsageError when there is none, or more than one."""
        if self.queue_id is None:
            return by_key(self.sharding_key)(queues)
        fits = [mq for mq in queues if mq.queue_id == self.queue_id and self.broker_name in ("", mq.broker_name)]
        where = f"queue {self.queue_id} of topic {self.message.topic}"
        if not fits:
            on = f" on broker {self.broker_name}" if self.broker_name else ""
            raise UsageError(f"rocketmq: column toQueueId: {where}{on} does not exist, or cannot be written")
        if len(fits) > 1:
            brokers = ", ".join(sorted(mq.broker_name for mq in fits))
            raise UsageError(f"rocketmq: column toQueueId: {where} is on several brokers ({brokers}): add toBrokerName")
        return fits[0]


def row_form(schema: Sequence[tuple[str, str]], topic: str | None) -> RowForm:
    """How rows of this schema become messages. Raises UsageError saying what is missing or too much.

    Other columns that a read of messages has (queueOffset …) are passed over, so that what was read can be written again.
    """
    kinds = dict(schema)
    for name, kind in schema:
        if name in _WRITTEN and kind not in _WRITTEN[name]:
            raise UsageError(f"rocketmq: column {name} is {kind}: cast it to {' or '.join(_WRITTEN[name])}")
        if name not in _WRITTEN and name not in COLUMNS:
            raise UsageError(f"rocketmq: column {name} is no part of a message: put it into body or properties, or drop it; "
                             f"messages have {', '.join(_WRITTEN)}")  # fmt: skip
    if "body" not in kinds:
        raise UsageError("rocketmq: there is no column body: select what is to be sent as body (string or binary)")
    if "topic" not in kinds and not topic:
        raise UsageError("rocketmq: where to? give option topic, or a column topic")
    return RowForm(tuple(name for name in _WRITTEN if name in kinds), topic or "")


class RowKeys:
    """The keys of one partition's rows; `partition` is what they begin with."""

    def __init__(self, partition: str, known_max: int = ROWS_KNOWN_MAX) -> None:
        self._partition = partition
        self._known_max = known_max
        self._seen: dict[bytes, int] = {}
        """By digest: the number of the next row that is equal."""
        self._first = 0
        """The number of a row that is none of these."""

    def of(self, row: Mapping[str, Any]) -> str:
        """A row's key: no two rows have the same."""
        body = row["body"] or b""
        told = repr([(name, value) for name, value in row.items() if name != "body"])
        digest = hashlib.blake2b(body.encode() if isinstance(body, str) else body, digest_size=DIGEST_BYTES)
        digest.update(f"{len(body)} {told}".encode(errors="surrogatepass"))
        found = digest.digest()
        number = self._seen.get(found, self._first)
        self._seen[found] = number + 1
        if len(self._seen) >= self._known_max:
            # From here on numbers are higher, so that a row which is not known any more has no other's key.
            self._first = max(self._seen.values())
            self._seen = {}
        return f"{self._partition}-{found.hex()}-{number}"


def messages_of(batch: pa.RecordBatch, form: RowForm, keys: RowKeys, first_row: int) -> Iterator[OutgoingRow]:
    """The messages of one Arrow batch. `keys` are those of the partition, `first_row` is the number of the batch's first row.

    Raises UsageError naming the row that cannot be sent.
    """
    columns: dict[str, list[Any]] = {name: batch.column(name).to_pylist() for name in form.columns}
    for at in range(batch.num_rows):
        row: dict[str, Any] = {name: values[at] for name, values in columns.items()}
        try:
            yield _message(row, form.topic, keys.of(row))
        except UsageError as error:
            raise UsageError(f"rocketmq: row {first_row + at} of its partition cannot be sent: {error}") from None


def _message(row: dict[str, Any], topic: str, row_key: str) -> OutgoingRow:
    body = row["body"]
    if body is None:
        raise UsageError("its body is null; RocketMQ knows no messages without a body: filter such rows out")
    pairs: list[tuple[str, str | None]] = row.get("properties") or []
    # The system's own are left out: they are those of the message that was read, and are set anew.
    properties = {name: value for name, value in pairs if value and name not in RESERVED_PROPERTIES}
    properties[ROW_KEY] = row_key
    sharding_key, deliver_at = row.get("shardingKey") or "", row.get("deliverTimestamp")
    if sharding_key:
        properties[PROPERTY_SHARDING_KEY] = sharding_key
    message = OutgoingMessage(
        topic or row.get("topic") or "",
        body.encode() if isinstance(body, str) else body,
        tags=row.get("tags") or "",
        keys=row.get("keys") or row_key,
        properties=properties,
        delay_level=row.get("delayLevel") or 0,
        delay_ms=row.get("delayMs") or 0,
        deliver_at_ms=0 if deliver_at is None else (deliver_at - EPOCH) // MILLISECOND,
    )
    if not message.topic:
        raise UsageError("its topic is null, and option topic is not given")
    message.check()
    return OutgoingRow(message, sharding_key, row.get("toBrokerName") or "", row.get("toQueueId"))
