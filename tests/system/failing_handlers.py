"""A handler that fails on its message's word, imported by worker processes from this folder."""

from __future__ import annotations

from rocketcrew import Message


def number(message: Message) -> None:
    if message.tags == "bad" and message.reconsume_times == 0:
        raise ValueError("not yet")
