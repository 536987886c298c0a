"""Handlers of decoded bodies in `rocketcrew.testing.run`: rows of what fits, retries or dead letters of what does not."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from rocketcrew import handler
from rocketcrew.testing import message, run

pytest.importorskip("msgspec")


@dataclass
class Order:
    order_id: str
    total: float


@handler(schema="order_id string, total double")
def count(order: Order) -> dict[str, object]:
    return {"order_id": order.order_id, "total": order.total}


@handler(schema="order_id string", body_errors="dead_letter", batch=True)
def many(orders: list[Order]) -> list[dict[str, object]]:
    return [{"order_id": order.order_id} for order in orders]


GOOD, BAD = '{"order_id": "o-1", "total": 3}', '{"order_id": "o-2", "total": "3"}'
MISFIT = "the body is no Order: Expected `float`, got `str` - at `$.total`"


def test_a_body_that_does_not_fit_is_retried_as_any_failure() -> None:
    result = run(count, [message(GOOD), message(BAD)], seconds=0)
    assert result.rows == [{"order_id": "o-1", "total": 3.0}]
    assert [(retried.error, retried.level) for retried in result.retries] == [(MISFIT, 3)]
    (line,) = [line for line in result.log if line["event"] == "message_failed"]
    assert line["error"] == f"BodyError: {MISFIT}"
    assert "exception" not in line


def test_a_body_that_never_will_fit_goes_to_the_dead_letters_at_once() -> None:
    result = run(
        many, [message(GOOD), message(BAD), message(GOOD)], settings={"consumer.consume_message_batch_max_size": 8}
    )
    assert result.rows == [{"order_id": "o-1"}, {"order_id": "o-1"}]
    assert [dead.error for dead in result.dead_letters] == [MISFIT]
    assert (result.retries, result.unfinished) == ([], 0)
