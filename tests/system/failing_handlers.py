"""A handler that fails on its message's word, imported by worker processes from this folder."""

from __future__ import annotations

from rocketcrew import Message, Retry, handler


def number(message: Message) -> None:
    if message.tags == "bad" and message.reconsume_times == 0:
        raise ValueError("not yet")


@handler(schema="number bigint")
def ends_as_it_says(message: Message) -> dict[str, int] | None:
    """By the number's remainder: a row, no row, a row at the second attempt, a dead letter."""
    number = int(message.body)
    if number % 4 == 3:
        raise Retry(delay_level=-1)
    if number % 4 == 2 and message.reconsume_times == 0:
        raise ValueError("not yet")
    return None if number % 4 == 1 else {"number": number}
