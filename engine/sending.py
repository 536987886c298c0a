"""Failed messages back to the brokers: what Java's client sends when a broker takes no send-back.

An ordinary send to the group's retry topic, with the message's body and properties and one attempt more; a broker puts it
into the dead letters when the attempts are used up, or were said to be (supervisor/member/send_back.py). It needs nothing
of the broker that the message came from, which may have lost it by now; a record that cannot be decoded goes by the
send-back all the same.

Sent from the driver, batch after batch and file after file, a count beside the file saying how far: after a crash at most
the last GROUP_MAX are sent twice, which gives two retry records, as every uncertain send-back may.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow
import structlog

from ..conf.settings import ConsumerSettings
from ..durable.files import write_atomically
from ..durable.intervals import IntervalSet, OffsetSet, QueueKey
from ..durable.outcomes import DEAD_LETTER, SENT_BACK, Outcomes
from ..remoting.errors import ProtocolError
from ..remoting.queues import MessageQueue
from ..remoting.stored import StoredMessage, decode_message, reconsume_times_of
from ..source.connections import Link
from ..spark.errors import StoppedError
from ..supervisor.core.actions import SendBack
from ..supervisor.member.send_back import SendBacks, has_room_for_retry
from ..workers.failures import Cause, Failure, Mode, is_last, is_used_up, level_of, mode_of

pa: Any = pyarrow

GROUP_MAX = 256
SENT_SUFFIX = ".sent"

_log = structlog.get_logger("rocketcrew.engine")


class FailureSender:
    """Sends what tasks have put into their files of failed messages."""

    def __init__(
        self, link: Link, group: str, consumer: ConsumerSettings, retry_ms: int, stopping: Callable[[], bool]
    ) -> None:
        """`group` as brokers know it. What no broker takes is tried again every `retry_ms`, until `stopping`."""
        self._link = link
        self._group = group
        self._retry_s = retry_ms / 1000
        self._stopping = stopping
        self._delay_level = consumer.delay_level_when_next_consume
        self._max_reconsume_times = consumer.max_reconsume_times
        self._send_backs = SendBacks(
            link.cluster, link.operations, group, consumer.max_reconsume_times, own_sends=True,
            errors=consumer.dead_letter_errors,
        )  # fmt: skip

    def send_file(self, path: Path) -> Outcomes:
        """Send all messages of the file, but those that were sent by an earlier run. Raises StoppedError."""
        beside = path.with_suffix(SENT_SUFFIX)
        sent = read_sent(beside)
        found: dict[tuple[str, QueueKey], list[int]] = {}
        at = 0
        with pa.memory_map(str(path)) as source:
            for batches in _grouped(pa.ipc.open_stream(source)):
                rows = [row for batch in batches for row in batch.to_pylist()]
                at += len(rows)
                if at > sent:
                    self._link.run(self._send(rows))
                    # Renamed and not synced it may be empty after a loss of power; one sync for GROUP_MAX sends costs little.
                    write_atomically(beside, str(at), durable=True)
                for row in rows:
                    key = QueueKey(self._group, row["topic"], row["broker"], row["queue_id"])
                    found.setdefault((self._kind(row), key), []).append(row["offset"])
        return Outcomes.of(
            (kind, OffsetSet.of([(key, IntervalSet.from_offsets(sorted(offsets)))]))
            for (kind, key), offsets in found.items()
        )

    def _kind(self, row: Mapping[str, Any]) -> str:
        message = _decoded(row["record"])
        return DEAD_LETTER if self._way(_failure(row), row["record"], message)[1] else SENT_BACK

    def _way(self, failure: Failure, record: bytes, message: StoredMessage | None) -> tuple[Mode, bool]:
        return way_back(failure, record, message, self._group, self._delay_level, self._max_reconsume_times)

    async def _send(self, rows: Sequence[Mapping[str, Any]]) -> None:
        await asyncio.gather(*(self._send_one(row) for row in rows))

    async def _send_one(self, row: Mapping[str, Any]) -> None:
        message = _decoded(row["record"])
        failure = _failure(row)
        mode, last = self._way(failure, row["record"], message)
        level = level_of(failure, mode, self._delay_level)
        mq = MessageQueue(row["topic"], row["broker"], row["queue_id"])
        told = 0.0
        for attempt in range(1 << 31):
            action = SendBack(
                0, 0, 0, mq, 0, 0, mode, level, attempt, facts=failure.facts, error=failure.error, last=last
            )  # fmt: skip
            if await self._send_backs.send(action, row["record"], message):
                return
            if self._stopping():
                raise StoppedError("failed messages could not be sent back before the stop; they are at the next start")
            if time.monotonic() - told > 10 * self._retry_s:
                _log.warning("send_back_waits", topic=row["topic"], offset=row["offset"], retry_s=self._retry_s)
                told = time.monotonic()
            await asyncio.sleep(self._retry_s)


def read_sent(path: Path) -> int:
    """How many messages of a file were sent. None, where that was not noted or cannot be read: sent twice is not lost."""
    try:
        return max(0, int(path.read_text()))
    except FileNotFoundError:
        return 0
    except ValueError as error:
        _log.warning("sent_not_read", file=str(path), error=str(error))
        return 0


def way_back(
    failure: Failure, record: bytes, message: StoredMessage | None, group: str, delay_level: int, max_reconsume_times: int
) -> tuple[Mode, bool]:  # fmt: skip
    """By which way it goes back, and whether it is a dead letter then. `message` None = it cannot be decoded.

    One without room for the properties of a retry is a dead letter at once: no broker would ever take it, and the stream,
    which has no handler beside it that could try again, would wait for that.
    """
    used_up = is_used_up(reconsume_times_of(record, 0), max_reconsume_times)
    mode = mode_of(failure, delay_level, used_up=used_up)
    if message is not None and not has_room_for_retry(message, group):
        mode = Mode.DEAD_LETTER
    return mode, is_last(mode, used_up=used_up)


def _failure(row: Mapping[str, Any]) -> Failure:
    facts = {"deaths": str(row["deaths"]), "cause": row["error"]} if row["deaths"] else None
    return Failure(Cause(row["cause"]), row["error"], row["level"], facts)


def _decoded(record: bytes) -> StoredMessage | None:
    try:
        return decode_message(record, 0, len(record))
    except ProtocolError:
        return None


def _grouped(batches: Any) -> Any:
    """Batches (of one row each, mostly) in groups of at least GROUP_MAX rows; always the same for the same file."""
    group: list[Any] = []
    rows = 0
    for batch in batches:
        group.append(batch)
        rows += batch.num_rows
        if rows >= GROUP_MAX:
            yield group
            group, rows = [], 0
    if group:
        yield group
