"""What a batch handler returned, as one result per message."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

from .api import BatchResult, Retry
from .fitting import RowError
from .message import Message


def batch_results(batch: list[Message], result: object) -> list[object]:
    """One result per message. Raises what was returned as an exception, RowError for an unusable result."""
    if result is None:
        return [None] * len(batch)
    if isinstance(result, BaseException):
        raise result
    if isinstance(result, BatchResult):
        return _spread(batch, result)
    if isinstance(result, list | tuple):
        results = list(cast("Sequence[object]", result))
        if len(results) != len(batch):
            raise RowError(f"the batch handler returned {len(results)} results for {len(batch)} messages")
        return results
    raise RowError(
        f"the batch handler returned {type(result).__name__}; "
        f"it may return None, a list with one result per message, or a BatchResult"
    )


def _spread(batch: list[Message], result: BatchResult) -> list[object]:
    """A BatchResult as one result per message: rows by their message, a Retry for each that is not acknowledged."""
    ack_index = len(batch) - 1 if result.ack_index is None else min(result.ack_index, len(batch) - 1)
    given: Any = result.rows
    rows: Any = list(given) if isinstance(result.rows, Iterator) else given
    results: list[object] = [None] * len(batch)
    if isinstance(rows, list | tuple) and any(map(_is_tagged, cast("Sequence[object]", rows))):
        results = _by_message(batch, cast("Sequence[object]", rows))
    elif rows is not None and not (isinstance(rows, list | tuple) and not rows):
        if ack_index < len(batch) - 1:
            raise RowError(
                f"untagged rows with ack_index {result.ack_index} of {len(batch)} messages: "
                f"give rows as (message, row), so that those of unfinished messages can be left out"
            )
        results[0] = rows
    refused = Retry(result.delay_level, f"not acknowledged: the batch handler's ack_index is {ack_index}")
    return [each if number <= ack_index else refused for number, each in enumerate(results)]


def _is_tagged(row: object) -> bool:
    return isinstance(row, tuple) and len(cast("tuple[object, ...]", row)) == 2 and isinstance(row[0], Message)


def _by_message(batch: list[Message], rows: Sequence[object]) -> list[object]:
    places = {id(message): number for number, message in enumerate(batch)}
    grouped: list[list[object]] = [[] for _ in batch]
    for pair in rows:
        if not _is_tagged(pair):
            raise RowError("some rows of the BatchResult are (message, row) and some are not")
        message, row = cast("tuple[Message, object]", pair)
        number = places.get(id(message))
        if number is None:
            raise RowError(f"a row of the BatchResult is tagged with {message!r}, which is not in this batch")
        grouped[number].append(row)
    return [each or None for each in grouped]
