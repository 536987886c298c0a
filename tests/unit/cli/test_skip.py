"""Which queue is skipped in, and to where."""

from __future__ import annotations

import pytest

from rocketcrew.cli.commands.skip import QueueState, chosen, move_of
from rocketcrew.remoting.errors import UsageError


def queue(queue_id: int, committed: int | None, *, begin: int = 0, end: int = 9, broker: str = "a") -> QueueState:
    return QueueState("orders", broker, queue_id, begin, end, committed)


def test_the_only_queue_with_a_lag_is_meant() -> None:
    queues = [queue(0, 9), queue(1, 4), queue(2, 9)]
    assert chosen(queues, None, None).queue_id == 1
    assert chosen(queues, None, 2).queue_id == 2
    assert chosen([queue(0, 9)], None, None).queue_id == 0


@pytest.mark.parametrize(
    ("queues", "broker", "queue_id", "says"),
    [
        ([queue(0, 1), queue(1, 4)], None, None, "say which, --broker a --queue 0, --broker a --queue 1"),
        ([queue(0, 1), queue(0, 4, broker="b")], None, 0, "say which, --broker a --queue 0, --broker b --queue 0"),
        ([queue(0, 9), queue(1, 9)], None, None, "there is nothing to skip"),
        ([queue(0, 9)], "b", None, "no such queue; it has --broker a --queue 0"),
        ([queue(number, 0) for number in range(12)], None, None, "--queue 7 and 4 more"),
    ],
)
def test_a_queue_that_is_not_clear_is_asked_for(
    queues: list[QueueState], broker: str | None, queue_id: int | None, says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        chosen(queues, broker, queue_id)


@pytest.mark.parametrize(
    ("committed", "begin", "to", "old", "new"),
    [(4, 0, None, 4, 5), (4, 0, 9, 4, 9), (None, 3, None, 3, 4), (1, 3, None, 3, 4), (8, 0, None, 8, 9)],
)
def test_a_skip_goes_one_message_on_or_to_an_offset(
    committed: int | None, begin: int, to: int | None, old: int, new: int
) -> None:
    move = move_of(queue(0, committed, begin=begin), to)
    assert (move.old, move.new, move.skipped, move.repeated) == (old, new, new - old, 0)


@pytest.mark.parametrize(
    ("committed", "to", "says"),
    [(9, None, "nothing that the group has not finished"), (4, 4, "offset 4 is no skip"),
     (4, 3, "`rocketcrew reset` goes back"), (4, 10, "the queue ends at 9")],
)  # fmt: skip
def test_what_is_no_skip_is_refused(committed: int, to: int | None, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        move_of(queue(0, committed), to)
