"""`df.write.format("rocketmq")` and `writeStream`: each task sends its rows, and is done when brokers have them all.

At least once: what a failed task or batch has sent stays sent, and is sent again. outgoing_rows.py says by which key repeats
are known. A batch write's key begins with an id made on the driver or the option writeId, a stream's with the query's id,
which stays the same through restarts from one checkpoint, and the batch's number.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from ..client.access import Access
from ..client.logs import get_logger
from ..client.validation import check_group
from ..remoting.errors import UsageError
from ..remoting.names import DEFAULT_TOPIC
from .access_options import access_of
from .connections import Connections, shared
from .options import WRITE, parse_options, refuse
from .outgoing_rows import RowForm, RowKeys, messages_of, row_form, write_key
from .reading import retries_of
from .sending import SendBounds, find_name_server, send_rows

if TYPE_CHECKING:
    import pyarrow as pa

SWITCHES_MAX = 2
"""How often one try goes on to another broker at once (retryTimesWhenSendFailed of Java's producer)."""
DEFAULT_GROUP = "rocketcrew_spark_sink"
FIRST_BATCH = "0"
QUERY_ID, BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"
"""Local properties by which Spark's tasks know the query and the batch (StreamExecution.scala, MicroBatchExecution.scala)."""

_log = get_logger("rocketcrew.source")


@dataclass
class Sent(WriterCommitMessage):
    """What one task has sent."""

    messages: int


@dataclass(frozen=True)
class Sending:
    """What a task needs to send its rows; travels to executors."""

    access: Access
    form: RowForm
    group: str
    bounds: SendBounds
    write_id: str = ""

    @classmethod
    def of(cls, options: Mapping[str, str], schema: Sequence[tuple[str, str]], *, streaming: bool = False) -> Sending:
        """`streaming`: for a query's sink. Raises UsageError naming the option or the column."""
        found = parse_options(options, WRITE)
        group = found["group"] or DEFAULT_GROUP
        try:
            check_group(group)
        except UsageError as error:
            raise refuse("group", group, f"is wrong: {error}") from None
        access = access_of(options, WRITE)
        form = row_form(schema, found["topic"])
        retries = retries_of(found["numRetries"], streaming=streaming)
        bounds = SendBounds(
            found["sendsInFlight"], found["sendTimeoutMs"], retries, found["retryIntervalMs"],
            first_retries=retries_of(found["numRetries"], streaming=False),
        )  # fmt: skip
        return cls(access, form, group, bounds, found["writeId"])

    def send(
        self, batches: Iterator[pa.RecordBatch], key: str, connections: Connections, *, is_first: bool = False
    ) -> Sent:
        """Send all rows. `is_first`: of a new query, so that nobody knows yet whether there are name servers at these
        addresses. Raises UsageError naming a row, BrokerError, UnreachableError."""
        count, keys = 0, RowKeys(key)
        with connections.use(self.access) as link:
            producer = link.producer(self.group, min(self.bounds.retries, SWITCHES_MAX))
            for batch in batches:
                if is_first and not count:
                    topic = self.access.wrap(self.form.topic) if self.form.topic else DEFAULT_TOPIC
                    link.run(find_name_server(link.cluster, topic, self.bounds))
                link.run(send_rows(producer, messages_of(batch, self.form, keys, count), self.bounds))
                count += batch.num_rows
        return Sent(count)


class BatchWriter(DataSourceArrowWriter):
    """One write of a DataFrame; `job` names it in all keys."""

    def __init__(self, sending: Sending, job: str = "") -> None:
        self._sending = sending
        self._job = job or uuid.uuid4().hex

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Send one task's rows."""
        key = write_key(self._sending.write_id, self._job, *_stream())
        return self._sending.send(iterator, f"{key}-{_partition()}", shared)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Everything is at the brokers already."""
        _log.info("written", job=self._job, messages=_count(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """What was sent stays sent."""
        _log.warning("write_failed", job=self._job, messages_sent_at_least=_count(messages))


class StreamWriter(DataSourceStreamArrowWriter):
    """The sink of one streaming query."""

    def __init__(self, sending: Sending) -> None:
        self._sending = sending

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Send one task's rows of one batch."""
        query, batch = (told or default for told, default in zip(_stream(), ("query", FIRST_BATCH), strict=True))
        own = f"{self._sending.write_id}-" if self._sending.write_id else ""
        key = f"{own}{query}-{batch}-{_partition()}"
        return self._sending.send(iterator, key, shared, is_first=batch == FIRST_BATCH)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Everything is at the brokers already."""
        _log.info("written", batch=batchId, messages=_count(messages))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """What was sent stays sent, and is sent again with the same keys."""
        _log.warning("write_failed", batch=batchId, messages_sent_at_least=_count(messages))


def _stream() -> tuple[str | None, str | None]:
    """The streaming query and batch that this task is part of, also inside foreachBatch."""
    context = TaskContext.get()
    return (context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)) if context else (None, None)


def _partition() -> int:
    context = TaskContext.get()
    return context.partitionId() if context else 0


def _count(messages: Sequence[WriterCommitMessage | None]) -> int:
    return sum(message.messages for message in messages if isinstance(message, Sent))
