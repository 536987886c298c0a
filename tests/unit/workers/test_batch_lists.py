"""The list of a batch handler is its own to sort, to take from and to empty; no result goes to another message for that."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import inspect
import random
from collections.abc import Callable
from typing import Any, cast

import pyarrow
import pytest

from rocketcrew import BatchResult, Message, Retry, handler
from rocketcrew.testing import message, run
from rocketcrew.workers.api import Handler
from rocketcrew.workers.calls import OneByOne, batch_results
from rocketcrew.workers.cells import TAKEN, private_cell
from rocketcrew.workers.fitting import RowError
from rocketcrew.workers.loading import ready
from rocketcrew.workers.message import make_message
from rocketcrew.workers.sends import sending
from rocketcrew.workers.watching import TraceLog, watched

pa: Any = pyarrow
Batch = list[Message]

BODIES = (b"c", b"a", b"b")
CHANGED = "the batch handler sorted its list, took from it, added to it or moved an item in it"


def batch() -> Batch:
    return [make_message(body, queue_offset=number) for number, body in enumerate(BODIES)]


def by_body(each: Message) -> bytes:
    return each.body


def row(each: Message) -> dict[str, str]:
    return {"b": each.body.decode()}


def called(function: Callable[..., Any], given: Batch | None = None) -> list[Any]:
    """A result per message."""
    messages = batch() if given is None else given
    answer = ready(Handler(function, batch=True)).function(messages)
    answer = asyncio.run(answer) if inspect.isawaitable(answer) else answer
    return batch_results(batch(), answer)


def refused(function: Callable[..., Any]) -> None:
    with pytest.raises(RowError, match=CHANGED):
        called(function)


# --- results by place, of a list whose messages have other places ---------------------------------------------------------


def sorted_list(messages: Batch) -> object:
    messages.sort(key=by_body)
    return [row(each) for each in messages]


def made_before_sorting(messages: Batch) -> object:
    rows = [row(each) for each in messages]
    messages.sort(key=by_body)
    return rows


async def sorted_awaited(messages: Batch) -> object:
    return sorted_list(messages)


def sorted_untagged(messages: Batch) -> object:
    messages.sort(key=by_body)
    return BatchResult(row(each) for each in messages)


def sorted_in_generator(messages: Batch) -> object:
    def rows() -> Any:
        messages.sort(key=by_body)
        yield from map(row, messages)

    return BatchResult(rows())


def sorted_lazily(messages: Batch) -> object:
    def of(place: int) -> Any:
        yield row(messages[place])

    messages.sort(key=by_body)
    return [of(place) for place in range(len(messages))]


def sorted_in_arrow(messages: Batch) -> object:
    messages.reverse()
    rows = pa.record_batch({"n": [each.queue_offset for each in messages]})
    return BatchResult(pa.RecordBatchReader.from_batches(rows.schema, iter([rows])))


def acknowledged_and_sorted(messages: Batch) -> object:
    messages.sort(key=by_body)
    return BatchResult(ack_index=1)


def taken_out(messages: Batch) -> object:
    rows: list[Any] = []
    while messages:
        rows.append(row(messages.pop()))
    return rows


def replaced_by_another(messages: Batch) -> object:
    messages[0] = messages[1]
    return [row(each) for each in messages]


def sorted_and_replaced(messages: list[Any]) -> object:
    """No message is left that would show the sort."""
    messages.sort(key=by_body)
    for place, each in enumerate(messages):
        messages[place] = row(each)
    return messages


def rows_in_their_places(messages: list[Any]) -> object:
    for place, each in enumerate(messages):
        messages[place] = row(each)
    return messages


def swapped_and_replaced(messages: list[Any]) -> object:
    messages[0], messages[-1] = messages[-1], messages[0]
    return rows_in_their_places(messages)


def shuffled_and_replaced(messages: list[Any]) -> object:
    random.Random(1).shuffle(messages)
    return rows_in_their_places(messages)


def sorted_without_its_method(messages: list[Any]) -> object:
    list.sort(messages, key=by_body)
    return rows_in_their_places(messages)


def sorted_without_its_method_then_a_slice(messages: list[Any]) -> object:
    list.sort(messages, key=by_body)
    messages[:2] = [row(each) for each in messages[:2]]
    messages[2] = row(messages[2])
    return messages


def reversed_by_a_slice(messages: list[Any]) -> object:
    messages[::-1] = messages
    messages[:] = [row(each) for each in messages]
    return messages


def shorter_for_a_while(messages: list[Any]) -> object:
    messages[:2] = [row(messages[1])]
    messages.append(None)
    messages[1] = None
    return messages


async def all_replaced(messages: list[Any]) -> object:
    messages[:] = sorted(messages, key=by_body)
    messages[:] = [row(each) for each in messages]
    return messages


def acknowledged(messages: Batch) -> object:
    del messages[0]
    return BatchResult(ack_index=0)


def in_a_table(messages: Batch) -> object:
    messages.clear()
    return BatchResult(pa.table({"n": [1, 2, 3]}))


@pytest.mark.parametrize(
    "function",
    [
        sorted_list, made_before_sorting, sorted_awaited, sorted_untagged, sorted_in_generator, sorted_lazily,
        sorted_in_arrow, acknowledged_and_sorted, taken_out, replaced_by_another,
        sorted_and_replaced, swapped_and_replaced, shuffled_and_replaced, sorted_without_its_method,
        sorted_without_its_method_then_a_slice, reversed_by_a_slice, shorter_for_a_while, all_replaced,
        acknowledged, in_a_table,
    ],
)  # fmt: skip
def test_results_by_place_of_messages_that_were_moved_fail_the_call(function: Any) -> None:
    refused(function)


def test_the_error_says_in_which_order_results_are_understood() -> None:
    """Not only to work on a copy: results in the order of a sorted copy would be those of other messages."""
    with pytest.raises(RowError, match=r"in the order in which the messages came, also where it sorts a copy; or give"):
        called(sorted_list)


def sorted_tagged(messages: Batch) -> object:
    messages.sort(key=by_body)
    return BatchResult([(each, row(each)) for each in messages])


def emptied_tagged(messages: Batch) -> object:
    rows: list[Any] = []
    while messages:
        each = messages.pop()
        rows.append((each, row(each)))
    return BatchResult(rows)


@pytest.mark.parametrize("function", [sorted_tagged, emptied_tagged])
def test_tagged_rows_are_those_of_their_messages_whatever_became_of_the_list(function: Any) -> None:
    assert [each[0] for each in called(function)] == [{"b": "c"}, {"b": "a"}, {"b": "b"}]


@pytest.mark.parametrize("error", [Retry(), ValueError("no")])
def test_what_a_handler_returns_as_an_error_is_that_of_all(error: Exception) -> None:
    def function(messages: Batch) -> object:
        messages.clear()
        return error

    with pytest.raises(type(error)):
        called(function)


@pytest.mark.parametrize("result", [None, [None] * 3, (None,) * 3, BatchResult(), BatchResult(ack_index=2)])
def test_a_list_of_work_that_is_done_is_done(result: object) -> None:
    def function(messages: Batch) -> object:
        while messages:
            messages.pop()
        return result

    assert called(function) == [None] * 3


def test_of_a_batch_that_is_not_acknowledged_at_all_nothing_is_in_doubt() -> None:
    def function(messages: Batch) -> object:
        messages.clear()
        return BatchResult(ack_index=-1)

    assert all(isinstance(each, Retry) for each in called(function))


def test_the_only_message_of_a_call_may_be_taken_out() -> None:
    given = [make_message(b"a")]
    assert ready(Handler(taken_out, batch=True)).function(given) == [{"b": "a"}]


# --- results by place, of a list in whose places something else stands ----------------------------------------------------


def in_a_result(messages: list[Any]) -> object:
    return BatchResult(cast("list[Any]", rows_in_their_places(messages)))


async def in_their_places_awaited(messages: list[Any]) -> object:
    return rows_in_their_places(messages)


def freed(messages: list[Any]) -> object:
    rows: list[Any] = []
    for place, each in enumerate(messages):
        rows.append(row(each))
        messages[place] = None
    return rows


def in_a_slice(messages: list[Any]) -> object:
    messages[:] = map(row, messages)
    return messages


def in_slices(messages: list[Any]) -> object:
    rows = [row(each) for each in messages]
    messages[0:1] = messages[0:1]
    messages[::2] = rows[::2]
    messages[1:] = [None] * len(messages[1:])
    return rows


def from_the_end(messages: list[Any]) -> object:
    for place in range(-1, -len(messages) - 1, -1):
        each, messages[place] = messages[place], None
        messages[place] = each
        messages[place] = row(each)
    return messages


@pytest.mark.parametrize(
    "function",
    [rows_in_their_places, in_a_result, in_their_places_awaited, freed, in_a_slice, in_slices, from_the_end],
)
@pytest.mark.parametrize("count", [1, 3])
def test_rows_of_messages_that_were_replaced_in_their_places_go_by_place(function: Any, count: int) -> None:
    answer = ready(Handler(function, batch=True)).function(batch()[:count])
    answer = asyncio.run(answer) if inspect.isawaitable(answer) else answer
    assert batch_results(batch()[:count], answer) == [{"b": "c"}, {"b": "a"}, {"b": "b"}][:count]


class Equal:
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


def test_what_stands_for_a_message_is_not_asked_whether_it_is_one() -> None:
    def function(messages: Batch) -> object:
        messages[0] = Equal()  # type: ignore[call-overload]
        del messages[1]
        return [1, 2, 3]

    refused(function)


@pytest.mark.parametrize("function", [lambda messages: messages.clear(), lambda messages: (messages.clear(), 1 / 0)])
def test_the_list_is_there_again_when_the_call_ends(function: Any) -> None:
    given = batch()
    came = given.copy()
    with contextlib.suppress(ZeroDivisionError):
        ready(Handler(function, batch=True)).function(given)
    assert given == came


# --- what is around a call ------------------------------------------------------------------------------------------------


def emptied(messages: Batch) -> None:
    while messages:
        messages.pop()


def test_a_handler_that_empties_its_list_may_be_traced() -> None:
    log = TraceLog(now_ms=lambda: 0, clock=lambda: 0, next_id=lambda: "1")
    assert watched(ready(Handler(emptied, batch=True)), "g", [log]).function(batch()) is None
    assert len(log.take()) == 2


def test_a_handler_that_empties_its_list_may_send() -> None:
    own = sending(ready(Handler(emptied, batch=True, sends=True)), "g", None)
    assert own.function(batch()) == [None] * 3


def typed_emptied(messages: list[Message], bodies: list[int]) -> None:
    while messages:
        messages.pop()
        bodies.pop()


def both_sorted(messages: list[Message], bodies: list[int]) -> object:
    messages.sort(key=by_body)
    bodies.sort()
    return [{"b": str(each)} for each in bodies]


def bodies_sorted(bodies: list[int]) -> object:
    bodies.sort()
    return [{"b": str(each)} for each in bodies]


def sorted_and_made_anew(bodies: list[int]) -> object:
    bodies.sort()
    for place, each in enumerate(bodies):
        bodies[place] = 1_000 + each
    return [{"b": str(each)} for each in bodies]


def swapped_and_made_anew(bodies: list[int]) -> object:
    bodies[0], bodies[-1] = bodies[-1], bodies[0]
    return one_by_one(bodies)


def heaped_and_made_anew(bodies: list[int]) -> object:
    heapq.heapify(bodies)
    return one_by_one(bodies)


def made_anew(bodies: list[int]) -> object:
    bodies[:] = [1_000 + each for each in bodies]
    return [{"b": str(each)} for each in bodies]


def median_of(messages: list[Message], bodies: list[int]) -> object:
    rows = [{"b": str(each)} for each in bodies]
    bodies.sort()
    return rows


def stored(function: Any, bodies: tuple[bytes, ...]) -> Any:
    return run(
        handler(batch=True, schema="b string")(function),
        [message(topic="t", body=body) for body in bodies],
        seconds=0,
        settings={"consumer.consume_message_batch_max_size": 8},
    )


@pytest.mark.parametrize(
    "function",
    [both_sorted, bodies_sorted, sorted_and_made_anew, swapped_and_made_anew, heaped_and_made_anew, median_of],
)
def test_results_by_place_of_decoded_bodies_that_were_moved_fail_the_call(function: Any) -> None:
    found = stored(function, (b"3", b"1", b"1"))
    assert not found.rows
    assert all("so that nobody knows which message" in each.error for each in found.retries)


def one_by_one(bodies: list[int]) -> object:
    for place, each in enumerate(bodies):
        bodies[place] = each + 1_000
    return [{"b": str(each)} for each in bodies]


@pytest.mark.parametrize("function", [one_by_one, made_anew])
def test_decoded_bodies_may_be_replaced_in_their_places(function: Any) -> None:
    found = stored(function, (b"3", b"x", b"1", b"1"))
    assert [(each["_offset"], each["b"]) for each in found.table.to_pylist()] == [(0, "1003"), (2, "1001"), (3, "1001")]
    assert [each.message.body for each in found.retries] == [b"x"]


def test_decoded_bodies_and_messages_may_be_emptied() -> None:
    assert stored(typed_emptied, (b"3", b"1")).done == 2


def test_each_of_several_handlers_may_sort_its_own() -> None:
    one = handler(batch=True, schema="b string", topic="t")(sorted_tagged)
    other = handler(batch=True, schema="b string", topic="u")(sorted_tagged)
    sent = [message(topic=topic, body=body) for topic in ("t", "u") for body in BODIES]
    found = run([one, other], sent, seconds=0, settings={"consumer.consume_message_batch_max_size": 8})
    assert [each["b"] for each in found.table.sort_by([("_topic", "ascending"), ("_offset", "ascending")]).to_pylist()] == [
        "c", "a", "b", "c", "a", "b",
    ]  # fmt: skip


# --- which message was taken ----------------------------------------------------------------------------------------------


def taken_in(function: Callable[[Batch, Callable[[], int]], None]) -> None:
    cell = private_cell()
    function(OneByOne(batch(), [7, 8, 9], cell), lambda: cell[TAKEN] - 1)


def test_a_message_that_was_moved_is_taken_as_itself() -> None:
    def function(messages: Batch, taken: Callable[[], int]) -> None:
        messages.sort(key=by_body)
        assert [taken() for _ in messages] == [8, 9, 7]
        assert taken() == -1, "all were taken"
        assert messages[0].body == b"a"
        assert taken() == 8
        del messages[0]
        assert messages[-1].body == b"c"
        assert taken() == 7

    taken_in(function)


def test_what_is_put_into_the_list_takes_no_message() -> None:
    def function(messages: Batch, taken: Callable[[], int]) -> None:
        _ = messages[0]
        messages[1] = make_message(b"own")
        messages[1:] = messages[1:]
        assert taken() == 7

    taken_in(function)


def test_of_what_is_no_message_of_the_call_nothing_is_noted() -> None:
    def function(messages: Batch, taken: Callable[[], int]) -> None:
        messages.append(make_message(b"own"))
        assert [taken() for _ in messages] == [7, 8, 9, -1]
        assert messages[3].body == b"own"
        assert taken() == -1

    taken_in(function)
