"""Enrichment: each order comes in with the number of its customer, and goes out to another topic with name and country.

    CUSTOMERS=customers.csv rocketcrew run enrich:complete --topic orders --group enrichment --embedded

CUSTOMERS is a file of the columns customer, name and country. Each worker reads it once; `rocketcrew reload` reads it again.
An order is done when a broker has stored what was made of it. So each is sent at least once. A repeat has the same unique key
(`message_id`), by which a reader can drop it. On a cluster that creates no topics, create the two first.
"""

from __future__ import annotations

import csv
import json
import os
from functools import cache

from rocketcrew import Message, Send, handler

ENRICHED = "orders-enriched"
UNKNOWN = "orders-without-customer"


@cache
def customers() -> dict[str, dict[str, str]]:
    """By customer: name and country."""
    with open(os.environ["CUSTOMERS"], encoding="utf-8", newline="") as file:
        return {row["customer"]: {"name": row["name"], "country": row["country"]} for row in csv.DictReader(file)}


@handler(sends=True, setup=customers)
def complete(message: Message) -> Send:
    """The order with its customer's fields, the country as tag; an order of nobody goes to a topic of its own, unchanged."""
    order = json.loads(message.body)
    customer = customers().get(order["customer"])
    if customer is None:
        return Send(UNKNOWN, message.body, keys=message.keys, properties={"CUSTOMER": order["customer"]})
    return Send(ENRICHED, json.dumps({**order, **customer}), keys=message.keys, tags=customer["country"])
