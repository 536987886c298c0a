"""What a handler sends in `rocketcrew.testing.run`: it is in the result, and in the broker."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest

from rocketcrew import Message, Send, handler
from rocketcrew.testing import message, run


@handler(topic="orders", schema="order_id string", sends=True)
def bill(order: Message) -> list[object]:
    return [{"order_id": order.keys}, Send("invoices", order.body, keys=order.keys, tags="new")]


@handler(topic="invoices", schema="order_id string")
def book(invoice: Message) -> dict[str, object]:
    return {"order_id": f"invoice of {invoice.keys}"}


def test_what_is_sent_is_in_the_result_and_consumed_where_it_is_subscribed() -> None:
    result = run([bill, book], [message("3 apples", topic="orders", keys="o-1")])
    [sent] = result.sent
    assert (sent.topic, sent.body, sent.keys, sent.tags) == ("invoices", b"3 apples", "o-1", "new")
    assert sorted(row["order_id"] for row in result.rows) == ["invoice of o-1", "o-1"]
    assert result.unfinished == 0


def test_an_attempt_that_fails_has_sent_nothing_and_repeats_have_the_same_keys() -> None:
    attempts: list[int] = []

    @handler(schema="size int", sends=True)
    def count(order: Message) -> object:
        attempts.append(order.reconsume_times)
        if len(attempts) == 1:
            raise ValueError("not yet")
        return [Send("counted", order.body), {"size": "no number" if len(attempts) == 2 else 3}]

    result = run(count, [message("x")])
    assert attempts == [0, 1, 2]
    assert len(result.sent) == 2  # the second attempt failed by its row, after it had sent
    assert len({each.message_id for each in result.sent}) == 1
    assert result.rows == [{"size": 3}]


@pytest.mark.parametrize("batch", [False, True])
def test_a_handler_without_columns_may_send_or_return_no_row(batch: bool) -> None:
    """Its generators were never run, and their messages dead letters."""

    def each(order: Message) -> Iterator[object]:
        if order.keys != "none":
            yield Send("counted", order.body)
        if order.keys == "row":
            yield {"size": 1}

    def one(order: Message) -> Iterable[object]:
        return [] if order.keys == "list" else each(order)

    count = handler(batch=batch, sends=True)(lambda given: list(map(one, given)) if batch else one(given))
    keys = ["send", "none", "list", "row"]
    result = run(count, [message(key, keys=key) for key in keys], seconds=0)
    assert result.done == 3
    assert [retried.message.keys for retried in result.retries] == ["row"]
    assert "no columns are declared" in result.retries[0].error
    assert [each.body for each in result.sent] == [b"send", b"row"][: 1 + batch]


@pytest.mark.parametrize("settings", [{}, {"results.enabled": False}])
def test_a_send_that_is_not_declared_fails_and_says_so(settings: dict[str, object]) -> None:
    @handler(schema="size int")
    def count(_: Message) -> object:
        return Send("counted", b"1")

    result = run(count, [message()], settings=settings, seconds=0)
    assert "not declared with @handler(sends=True)" in result.retries[0].error
    assert result.sent == []


def test_a_generator_runs_also_where_nobody_wants_its_rows() -> None:
    taken: list[bytes] = []

    @handler
    def rows(order: Message):  # type: ignore[no-untyped-def]
        taken.append(order.body)
        yield {"size": 1}

    assert run(rows, [message("x")], settings={"results.enabled": False}).done == 1
    assert taken == [b"x"]
