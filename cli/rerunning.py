"""Records of the brokers through a handler, in this process: what `reconcile --rerun` does with what a table has lost.

A record is one unit: of an inner batch all messages finish, or none. What the handler's own filter leaves out is finished
without rows, as in a worker.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

import structlog

from ..client.cluster import Cluster
from ..conf.formats import topic_of
from ..conf.segment_format import READY_DIR
from ..durable.intervals import IntervalSet, OffsetSet, QueueKey
from ..remoting.namespaces import wrap
from ..remoting.queues import MessageQueue
from ..remoting.stored import SYSFLAG_LOW_BYTE
from ..workers.api import BatchResult, Handler
from ..workers.boot import COLUMNS_FILE, NEW_TABLE, TableSpec
from ..workers.calls import Wants, batch_results, chooser
from ..workers.ddl import INFER, as_schema
from ..workers.inferring import Inferring, declared_columns
from ..workers.loading import HandlerSpec, load
from ..workers.message import INNER_BATCH_BIT, Message, expand_inner_batch
from ..workers.packets import QueueInfo
from ..workers.rows import RowBuffer
from ..workers.sealing import Sealer
from ..workers.segment import SegmentWriter
from ..workers.sends import sending
from ..workers.table_fit import check_fits
from ..workers.user_errors import describe_error
from .messages import records

SEAL_ROWS: Final = 50_000
SEAL_BYTES: Final = 64 << 20
FETCH_BYTES: Final = 64 << 20
"""Records that are in memory at a time, about."""


class Rerun:
    """Runs messages and seals their rows; `failed` says why of what gave none, by queue and last offset of its record."""

    def __init__(
        self, spec: HandlerSpec, declared: str, staging: Path, group: str, namespace: str, *,
        home: Path | None = None, table: TableSpec = NEW_TABLE,
    ) -> None:  # fmt: skip
        """`declared`: the columns of the configuration, empty = the handler's own. Raises UsageError.

        `home`: where the group's slots are, with the columns that were inferred; without it, or where none were, the first
        rows decide for this run alone. `table`: what the rows must fit.
        """
        self._handler: Handler = sending(load(spec), group, None)  # only its rows are wanted
        inferred = None if home is None else home / COLUMNS_FILE
        columns = declared_columns(declared, self._handler.schema, inferred)
        schema = as_schema(columns) if columns else None
        if schema is not None:
            check_fits(schema, table, None)
        infer = None
        if declared == INFER:
            staging.mkdir(parents=True, exist_ok=True)
            check = partial(check_fits, table=table, segments=None)
            infer = Inferring(staging / COLUMNS_FILE, structlog.get_logger("rocketcrew.rerun"), check)
        self._rows: RowBuffer[tuple[QueueKey, int]] = RowBuffer(schema, group, infer, table.folders)
        self._segments = SegmentWriter(
            staging, f"rerun-{time.time_ns():x}", self._rows.schema, seal_rows=SEAL_ROWS, seal_bytes=SEAL_BYTES,
            seal_idle_ms=1000, pause=_refuse,
        )  # fmt: skip
        self._rows.on_columns = lambda: self._segments.use(self._rows.schema)
        self._sealer = Sealer(staging / READY_DIR, pause=_refuse, waits=None)
        self._group = group
        self._namespace = namespace
        self._named = {wrap(namespace, topic_of(text)) for text in self._handler.subscriptions}
        self._loop = asyncio.new_event_loop()
        self.failed: dict[tuple[QueueKey, int], str] = {}
        self._ran: dict[tuple[QueueKey, int], tuple[int, int]] = {}
        """By the same, what the handler was done with: the record's first offset, and how many messages it took."""

    def __enter__(self) -> Self:
        """Run the handler's set-up hook."""
        self._hook(self._handler.setup)
        return self

    def __exit__(self, *failure: object) -> None:
        """Seal what is open, and run the tear-down hook."""
        if failure[0] is None:
            self._flush()
            self._seal()
        self._hook(self._handler.teardown)
        self._loop.close()

    def run(self, fetched: Iterable[tuple[QueueKey, bytes]]) -> None:
        """Handle fetched records, between `__enter__` and `__exit__`."""
        for key, record in fetched:
            # How it was read nobody noted. `%RETRY%group_topic` is the group's own, unless the handler names that very topic.
            popped = key.topic not in self._named
            info = QueueInfo(key.group, key.topic, key.broker, key.queue_id, None, self._namespace, popped)
            if record[SYSFLAG_LOW_BYTE] & INNER_BATCH_BIT:
                messages = expand_inner_batch(record, 0, len(record), info)
            else:
                messages = [Message(record, 0, info)]
            self._handle(key, messages, chooser(info, self._handler.filter, structlog.get_logger("rocketcrew.rerun")))
            if self._rows.full:
                self._flush()

    @property
    def handled(self) -> int:
        """Messages that the handler took and that did not fail."""
        return sum(count for owner, (_, count) in self._ran.items() if owner not in self.failed)

    def finished(self) -> OffsetSet:
        """What did not fail, rows or not."""
        return OffsetSet.of(
            (key, IntervalSet.of([(first, last + 1)]))
            for (key, last), (first, _) in self._ran.items()
            if (key, last) not in self.failed
        )

    def _handle(self, key: QueueKey, whole: list[Message], wants: Wants | None) -> None:
        owner = (key, whole[-1].queue_offset)
        messages = whole if wants is None else [message for message in whole if wants(message)]
        try:
            prepared = [
                self._rows.prepare(message, result, at_once=True)
                for message, result in zip(messages, self._called(messages), strict=True)
                if result is not None
            ]
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            self.failed[owner] = describe_error(error)
            return
        for one in prepared:
            if one is not None:
                self._rows.keep(owner, one)
        self._ran[owner] = (whole[0].queue_offset, len(messages))

    def _called(self, messages: list[Message]) -> Sequence[object]:
        """A result for each; failures are raised."""
        if not messages:
            return []
        results: Sequence[object]
        if self._handler.batch:
            answer = self._awaited(self._handler.plain(list(messages)))
            if (
                isinstance(answer, BatchResult)
                and answer.ack_index is not None
                and answer.ack_index < len(messages) - 1
            ):
                raise RuntimeError("the handler did not take all messages of the batch")
            results = batch_results(messages, answer)
        else:
            results = [self._awaited(self._handler.plain(message)) for message in messages]
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return results

    def _awaited(self, result: Any) -> Any:
        return self._loop.run_until_complete(result) if inspect.iscoroutine(result) else result

    def _hook(self, hook: Callable[[], Any] | None) -> None:
        if hook is not None:
            self._awaited(hook())

    def _flush(self) -> None:
        batch, misfits = self._rows.take()
        for owner, error in misfits:
            self.failed[owner] = str(error)
        if batch is not None:
            now_ns = time.monotonic_ns()
            self._segments.append(batch, b"[]", now_ns)
            if self._segments.due(now_ns):
                self._seal()

    def _seal(self) -> None:
        ended = self._segments.detach()
        if ended is not None:
            self._sealer.add(*ended)


def _refuse(what: str, error: OSError) -> None:
    """A worker waits for a disk; somebody at a terminal wants to know."""
    del what
    raise error


async def fetch(
    cluster: Cluster, wanted: OffsetSet, bytes_max: int = FETCH_BYTES
) -> tuple[list[tuple[QueueKey, bytes]], OffsetSet, OffsetSet]:
    """Stored records of `wanted`, of about `bytes_max`; those that no broker has any more; those not asked for yet."""
    found: list[tuple[QueueKey, bytes]] = []
    gone: list[tuple[QueueKey, IntervalSet]] = []
    rest: list[tuple[QueueKey, IntervalSet]] = []
    size = 0
    for key, offsets in sorted(wanted.queues.items()):
        for start, stop in offsets.pieces:
            at = start
            got: list[tuple[int, int]] = []
            mq = MessageQueue(key.topic, key.broker, key.queue_id)
            left = bytes_max - size
            async for first, end, record in records(cluster, mq, start, stop, or_group=key.group, bytes_max=left):
                found.append((key, record))
                got.append((first, end))
                size += len(record)
                at = end
            ended = size < bytes_max
            reached = stop if ended else at
            gone.append((key, IntervalSet.of([(start, reached)]) - IntervalSet.of(got)))
            rest.append((key, IntervalSet.of([(reached, stop)])))
    return found, OffsetSet.of(gone), OffsetSet.of(rest)
