"""JSON orders to a Delta table: one message is one order, one row each of its lines.

    rocketcrew run orders:lines --topic orders --group orders --embedded \\
        --target tables/order_lines --set spark.format=deltalake --set spark.partition_by=country

"deltalake" (pip install 'rocketcrew[delta]') writes without a JVM, "delta" by Spark. An order that is not complete raises: it
is retried and becomes a dead letter, and `rocketcrew dlq group -g orders --by error` says what was wrong with how many.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from decimal import Decimal

from rocketcrew import Message, Retry, handler

SCHEMA = """
    order_id string, country string, ordered_at timestamp, line int, article string, quantity int,
    price decimal(12,2), total decimal(12,2)
"""


@handler(schema=SCHEMA)
def lines(message: Message) -> Iterator[dict[str, object]]:
    """The order's lines. One that waits for its payment comes again later, by RocketMQ's own delay levels."""
    order = json.loads(message.body, parse_float=Decimal)
    if order["state"] == "unpaid":
        raise Retry(reason="not paid yet")
    ordered_at = dt.datetime.fromisoformat(order["ordered_at"])
    if ordered_at.tzinfo is None:
        raise ValueError(f"ordered_at = {order['ordered_at']!r} has no time zone")
    for number, line in enumerate(order["lines"], 1):
        price = Decimal(line["price"])
        yield {
            "order_id": order["id"],
            "country": order["country"],
            "ordered_at": ordered_at,
            "line": number,
            "article": line["article"],
            "quantity": line["quantity"],
            "price": price,
            "total": price * line["quantity"],
        }
