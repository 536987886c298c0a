"""What a call of the handler gets, and what came of it: records of a chunk become messages, a result becomes one result per
message. Nothing here calls the handler.

*Which messages.* Brokers compare tags by their Java hash, so that "Aa" and "BB" are one to them
(PullAPIWrapper.processPullResult looks again). A user's filter comes after that, like Java's FilterMessageHook: what it does
not want counts as filtered, and is done. One that raises wants the message, as in Java: an error of a filter must not lose
anything. A record is one message, except an inner batch, whose messages are handled and finished as one.

*The list of a batch handler* notes in the cell which message the handler takes, where it takes them one by one. A worker that
dies in `for message in messages:` was most likely working on the message taken last. It is only most likely (a handler may
collect a few before it works on them), so the rest of the batch is looked at too, see quarantine.py. An iteration that came
to its end does not show which message is worked on, and is noted as such. The handler may sort the list, or take messages out
of it (batch_lists.py): each is noted as itself, and its result is its own.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from functools import cached_property
from typing import Any, SupportsIndex, cast

from ..remoting.errors import ProtocolError
from ..remoting.log_keys import place_keys
from ..remoting.stored import SYSFLAG_LOW_BYTE, record_info
from .api import BatchResult, Retry
from .cells import TAKEN, CellView
from .copying import holds_all, listed, to_the_end
from .fitting import NoRowError, RowError, check_ran
from .forks import end_if_forked
from .message import INNER_BATCH_BIT, HandedList, Message, expand_inner_batch
from .misfits import made_row
from .packets import QueueInfo
from .rows import rows_of_table, tables_in
from .run import Run
from .steps import call_under_way
from .user_errors import describe_error, is_soft_limit, user_traceback

Wants = Callable[[Message], bool]


def chooser(queue: QueueInfo, own: Callable[[Message], object] | None, log: Any) -> Wants | None:
    """Whether the handler gets a message of this queue; None = it gets all, and nothing is asked."""
    tags = None if queue.tags is None else frozenset(queue.tags)
    if own is None:
        return None if tags is None else lambda message: message.tags in tags

    pid = os.getpid()

    def wants(message: Message) -> bool:
        if tags is not None and message.tags not in tags:
            return False
        try:
            chosen = bool(own(message))
        except BaseException as error:  # noqa: BLE001  sys.exit() too: between calls it would end the worker, charged to nobody
            end_if_forked(pid, error)
            log.warning("filter_failed", **place_keys(queue, message.queue_offset),
                        error=describe_error(error), exception=user_traceback(error))  # fmt: skip
            return True
        end_if_forked(pid)
        return chosen

    return wants


# --- messages of a call ---------------------------------------------------------------------------------------------------


def open_unit(run: Run, index: int, data: bytes, position: int, end: int, wants: Wants | None) -> list[Message]:
    """The wanted messages of an inner batch; `run` learns which offsets it spans. Raises ProtocolError when damaged."""
    run.spans[index] = record_info(data, position, end).queue_offset
    messages = expand_inner_batch(data, position, end, run.queue)
    return [message for message in messages if wants is None or wants(message)]


def messages_of(
    run: Run, index: int, data: bytes, positions: list[int], wants: Wants | None
) -> tuple[list[Message], ProtocolError | None]:
    """The wanted messages of one record, or why it cannot be decoded."""
    position, end = positions[index], positions[index + 1]
    message = Message(data, position, run.queue)
    try:
        if data[position + SYSFLAG_LOW_BYTE] & INNER_BATCH_BIT:
            messages = open_unit(run, index, data, position, end, wants)
        else:
            messages = [message] if wants is None or wants(message) else []
        # A batch handler shall not fail as a whole for one damaged body.
        for each in messages:
            _ = each.body
    except ProtocolError as error:
        return [], error
    if not messages:
        run.filtered += 1
    return messages, None


class OneByOne(HandedList):
    """A list of messages; `offsets` are the queue offsets of their records. What the handler moves keeps its own."""

    def __init__(self, messages: Sequence[Message], offsets: Sequence[int], cell: CellView) -> None:
        super().__init__(messages)
        self._offsets = offsets
        self._cell = cell

    def __iter__(self) -> Iterator[Message]:
        cell, items = self._cell, super().__iter__()
        for first, offset, message in zip(self._handed, self._offsets, items, strict=False):
            cell[TAKEN] = offset + 1 if message is first else self._takens.get(id(message), 0)
            yield message
        for message in items:  # the list has grown
            cell[TAKEN] = self._takens.get(id(message), 0)
            yield message
        cell[TAKEN] = 0

    def __getitem__(self, index: SupportsIndex | slice, /) -> Any:
        found = super().__getitem__(index)
        if not isinstance(index, slice):
            self._cell[TAKEN] = self._takens.get(id(found), 0)
        return found

    @cached_property
    def _takens(self) -> dict[int, int]:
        """By message, what its being taken is noted as."""
        return {id(message): offset + 1 for message, offset in zip(self._handed, self._offsets, strict=True)}


# --- what a batch handler raised or returned ------------------------------------------------------------------------------


def raise_if_ours(error: BaseException | None = None) -> None:
    """End the call where its worker ends: whatever the handler makes of that is no failure, be it another cancellation in its
    clean-up or sys.exit(), which would end the loop too. For a coroutine only."""
    if isinstance(error, GeneratorExit):
        raise error
    call = call_under_way.get()
    if call is not None and call.ending:
        raise asyncio.CancelledError from error


def raise_if_of_all(error: BaseException, pid: int) -> None:
    """Raise what ends the whole call and not only the part of it that raised: the soft limit is that of the whole call, and a
    child that the handler forked must not go on with the other parts. `pid` is the process in which the call started."""
    if is_soft_limit(error) or os.getpid() != pid:
        raise error


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
    results = _of_each(batch, result.rows)
    ack_index = len(batch) - 1 if result.ack_index is None else min(result.ack_index, len(batch) - 1)
    if ack_index == len(batch) - 1:
        return results
    refused = Retry(result.delay_level, f"not acknowledged: the batch handler's ack_index is {ack_index}")
    return [each if number <= ack_index else refused for number, each in enumerate(results)]


def _of_each(batch: list[Message], given: Any) -> list[object]:
    """The rows of a BatchResult as one result per message. Raises RowError where nobody knows whose they are: a row that does
    not fit fails its own message alone, and one whose message is in the table already, be it by another batch, is dropped."""
    check_ran(given)
    if _names_message(given):
        raise _no_pair(given)
    if (tables := tables_in(given)) is not None:
        return _of_tables(batch, tables, type(given).__name__)
    rows = [] if given is None else iterated(given)
    if rows is None:
        if len(batch) == 1:
            return [given]
        raise NoRowError(given) if made_row(given) else _of_nobody(f"one {type(given).__name__}", batch)
    if any(map(is_tagged, rows)):
        return _by_message(batch, rows)
    if (wrong := next(filter(_names_message, rows), None)) is not None:
        raise _no_pair(wrong)
    if not rows:
        return [None] * len(batch)
    if len(batch) == 1:
        return rows if len(rows) == 1 else [_together(rows)]
    if len(rows) != len(batch):
        raise _of_nobody(f"{len(rows)} untagged {'row' if len(rows) == 1 else 'rows'}", batch)
    if isinstance(given, set | frozenset):
        raise _of_nobody("a set, which has no order,", batch)
    return rows


def _of_tables(batch: list[Message], tables: list[Any], what: str) -> list[object]:
    """Their rows are one message's, or one is each message's."""
    count = sum(table.num_rows for table in tables)
    if not count:
        return [None] * len(batch)
    if len(batch) == 1:
        return tables if len(tables) == 1 else [tables]
    if count != len(batch):
        raise _of_nobody(f"an Arrow {what} of {count} rows", batch)
    return [row for table in tables for row in rows_of_table(table)]


def iterated(given: Any) -> list[object] | None:
    """What is in an iterable, each as it was when it was given; None of what is itself a row or text."""
    if is_dataclass(given) or made_row(given):
        return None
    if not isinstance(given, Iterable) or isinstance(given, str | bytes | bytearray | memoryview | Mapping):
        return None
    several = cast("Iterable[object]", given)
    return list(
        several if isinstance(several, list | tuple) or holds_all(several) else map(_as_given, to_the_end(several))
    )


def _as_given(row: object) -> object:
    """A row that stays as it is now; in its place the error where there is no copy of it: its own message's failure."""
    try:
        return listed(iter((row,)))[0]
    except Exception as error:  # noqa: BLE001  the code of a value runs
        return (cast("tuple[object, ...]", row)[0], error) if is_tagged(row) else error


def is_tagged(row: object) -> bool:
    return isinstance(row, tuple) and len(cast("tuple[object, ...]", row)) == 2 and isinstance(row[0], Message)


def _names_message(row: object) -> bool:
    """Whether it is a message, or a pair or a dict with one, where it belongs in a tuple among others."""
    if isinstance(row, list | tuple | dict):
        row = next(iter(cast("Iterable[object]", row)), None)
    return isinstance(row, Message)


def _no_pair(row: object) -> RowError:
    return RowError(
        f"the BatchResult names a message by a {type(row).__name__}: give each row as a tuple (message, row), all in a list"
    )


def _of_nobody(what: str, batch: list[Message]) -> RowError:
    return RowError(
        f"the BatchResult has {what} for {len(batch)} messages, so that nobody knows whose rows they are: "
        f"give (message, row) for each row, or one result per message"
    )


def _by_message(batch: list[Message], rows: Sequence[object]) -> list[object]:
    places = {id(message): number for number, message in enumerate(batch)}
    grouped: list[list[object]] = [[] for _ in batch]
    for pair in rows:
        if not is_tagged(pair):
            raise RowError("some rows of the BatchResult are (message, row) and some are not")
        message, row = cast("tuple[Message, object]", pair)
        number = places.get(id(message))
        if number is None:
            raise RowError(f"a row of the BatchResult is tagged with {message!r}, which is not in this batch")
        grouped[number].append(row)
    return list(map(_together, grouped))


def _together(rows: list[object]) -> object:
    """The rows of one message as its result, which is the error among them where there is one."""
    return next((row for row in rows if isinstance(row, BaseException)), rows or None)
