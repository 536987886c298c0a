"""Postings to accounts, in order for each account: deposits before the withdrawals that need them.

    ACCOUNTS_DB=accounts.db rocketcrew run accounts:book --topic postings --group accounts --embedded

A posting is `{"account": "a-1", "number": 1, "amount": 100}`, with the account as property ACCOUNT; numbers count from 1 in
each account. One that is no posting (`{}`: KeyError) is tried again each second and holds the others of its account until
it is a dead letter (consumer.max_reconsume_times).

`order="key"` handles the postings of one account one after the other, in the order in which they were sent (send them with
`by_key`), and those of different accounts in parallel. The balances are in a database that all workers share, because an
account's next posting may be handled by another worker.

A posting may be delivered twice, as any message. The database has the number of each account's last posting, changed in the
same transaction as the balance, so the second delivery changes nothing and gives the same row.
"""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing

from rocketcrew import Message, handler

SCHEMA = "account string, number bigint, amount bigint, balance bigint, booked boolean"
TABLES = """
CREATE TABLE IF NOT EXISTS postings (
    account TEXT, number INTEGER, balance INTEGER, booked INTEGER, PRIMARY KEY (account, number)
) WITHOUT ROWID
"""
BUSY_S = 30.0
"""Writers of one SQLite file take turns."""


def connect() -> sqlite3.Connection:
    return sqlite3.connect(os.environ["ACCOUNTS_DB"], timeout=BUSY_S, isolation_level=None)


def make_tables() -> None:
    """In each worker, before its first message."""
    with closing(connect()) as connection:
        connection.execute("BEGIN IMMEDIATE")  # several workers start at once
        connection.execute(TABLES)
        connection.execute("COMMIT")


@handler(schema=SCHEMA, order="key", key="ACCOUNT", setup=make_tables)
def book(message: Message) -> dict[str, object]:
    """Book one posting; a withdrawal beyond the balance is refused, which is a row too."""
    posting = json.loads(message.body)
    account, number, amount = posting["account"], posting["number"], posting["amount"]
    with closing(connect()) as connection:
        connection.execute("BEGIN IMMEDIATE")
        known = connection.execute(
            "SELECT balance, booked FROM postings WHERE account = ? AND number = ?", (account, number)
        ).fetchone()
        if known is None:
            last, before = connection.execute(
                "SELECT number, balance FROM postings WHERE account = ? ORDER BY number DESC LIMIT 1", (account,)
            ).fetchone() or (0, 0)
            if number != last + 1:
                raise ValueError(f"posting {number} of account {account} came after {last}")
            booked = before + amount >= 0
            known = (before + amount if booked else before, booked)
            connection.execute("INSERT INTO postings VALUES (?, ?, ?, ?)", (account, number, *known))
        connection.execute("COMMIT")
    return {"account": account, "number": number, "amount": amount, "balance": known[0], "booked": bool(known[1])}
