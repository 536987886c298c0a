"""One message handed to the handler because an administrator asked for it (CONSUME_MESSAGE_DIRECTLY).

It runs as any other, between two chunks, and the result is reported in RocketMQ's words (CMResult.java). Its rows are looked
at, so that rows which do not fit show, and thrown away: the table has this record already, or will have it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..conf.units import NS_PER_MS
from ..remoting.errors import ProtocolError
from ..remoting.log_keys import queue_keys
from ..remoting.stored import SYSFLAG_LOW_BYTE, record_info
from .api import BatchResult, Handler, Retry
from .calls import batch_results
from .message import INNER_BATCH_BIT, Message, expand_inner_batch
from .packets import LATER, SUCCESS, THROW_EXCEPTION, DirectResult, QueueInfo, clip
from .rows import RowBuffer
from .sends import run_out
from .user_errors import describe_error, user_traceback


def offset_of(record: bytes) -> int:
    """Its queue offset; 0 of one that cannot be read; its run reports the error."""
    try:
        return record_info(record, 0, len(record)).queue_offset
    except ProtocolError:
        return 0


class DirectRunner:
    """Runs single records through the handler. `clock` is monotonic, in ns; `rows` None = results are off."""

    def __init__(self, handler: Handler, rows: RowBuffer[Any] | None, clock: Callable[[], int], log: Any) -> None:
        self._function: Callable[[Any], object] = handler.plain
        self._batch = handler.batch
        self._rows = rows
        self._clock = clock
        self._log = log

    def run(self, request: int, queue: QueueInfo, record: bytes) -> DirectResult:
        """What the handler makes of the record; never raises."""
        started = self._clock()
        try:
            result, remark = self._consume(queue, record), ""
        except Retry as error:
            result, remark = LATER, str(error)
        except BaseException as error:  # noqa: BLE001  whatever it is, it is the answer
            result, remark = THROW_EXCEPTION, describe_error(error)
            self._log.warning("consumed_directly_failed", **queue_keys(queue), error=clip(remark),
                              exception=user_traceback(error))  # fmt: skip
        spent_ms = (self._clock() - started) // NS_PER_MS
        self._log.info("consumed_directly", **queue_keys(queue), outcome=result, duration_ms=spent_ms)
        return DirectResult(request, result, spent_ms, clip(remark))

    def _consume(self, queue: QueueInfo, record: bytes) -> str:
        if len(record) <= SYSFLAG_LOW_BYTE:
            raise ProtocolError(f"{len(record)} bytes are no message", "message to be consumed directly")
        if record[SYSFLAG_LOW_BYTE] & INNER_BATCH_BIT:
            messages = expand_inner_batch(record, 0, len(record), queue)
        else:
            messages = [Message(record, 0, queue)]
        if self._batch:
            answer = self._function(list(messages))
            if (
                isinstance(answer, BatchResult)
                and answer.ack_index is not None
                and answer.ack_index < len(messages) - 1
            ):
                return LATER
            results = batch_results(messages, answer)
        else:
            results = [self._function(message) for message in messages]
        for message, result in zip(messages, results, strict=True):
            self._look_at(message, result)
        return SUCCESS

    def _look_at(self, message: Message, result: object) -> None:
        """Raise what was returned as an exception, and RowError for rows that would not fit."""
        if isinstance(result, BaseException):
            raise result
        if self._rows is None or result is None:
            run_out(result)
            return
        prepared = self._rows.prepare(message, result)
        if prepared is not None:
            self._rows.check(prepared)
