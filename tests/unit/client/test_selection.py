"""Selectors."""

from __future__ import annotations

from random import Random

import pytest

from rocketcrew.client.selection import by_key, by_machine_room, by_random, to_queue
from rocketcrew.remoting.errors import UsageError
from rocketcrew.remoting.queues import MessageQueue

QUEUES = [MessageQueue("t", broker, queue_id) for broker in ("hz@a", "sh@b", "plain") for queue_id in range(4)]


def test_by_key_is_javas_hash():
    assert [by_key(key)(QUEUES[:4]).queue_id for key in ("a", "b", "polygenelubricants")] == [1, 2, 0]


def test_by_random_reaches_every_queue():
    random = Random(1)
    assert {by_random(random.randrange)(QUEUES) for _ in range(300)} == set(QUEUES)


def test_by_machine_room_keeps_to_the_rooms():
    random = Random(2)
    select = by_machine_room({"hz"}, by_random(random.randrange))
    assert {select(QUEUES) for _ in range(100)} == set(QUEUES[:4])
    with pytest.raises(UsageError, match="no queue in the machine rooms bj, nj: brokers must be named room@name"):
        by_machine_room(["nj", "bj"], by_key("k"))(QUEUES)


def test_to_queue_wants_exactly_this_one():
    assert to_queue(QUEUES[3])(QUEUES) == QUEUES[3]
    with pytest.raises(UsageError, match="cannot be written"):
        to_queue(MessageQueue("t", "plain", 9))(QUEUES)
