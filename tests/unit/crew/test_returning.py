"""What waits for its delay is found by how far the broker's levels are, whoever else uses them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rocketcrew.crew.crew import Levels, Returning
from rocketcrew.remoting.errors import UnreachableError

A3, B3 = ("broker-a", 3), ("broker-b", 3)


class Brokers:
    """Ends and progress of delay levels, moved by hand."""

    def __init__(self) -> None:
        self.end: dict[tuple[str, int], int] = {}
        self.reached: dict[tuple[str, int], int] = {}
        self.away = False

    def ends(self) -> Levels:
        if self.away:
            raise UnreachableError("broker-a", "away")
        return dict(self.end)

    def at(self, brokers: list[str]) -> Levels:
        return {level: offset for level, offset in self.reached.items() if level[0] in brokers}


def looks(returning: Returning, brokers: Brokers, sent_back: int) -> Iterator[int]:
    while True:
        yield returning.left({3: sent_back}, brokers.ends, brokers.at)


def test_what_was_never_sent_back_is_not_waited_for() -> None:
    brokers = Brokers()
    brokers.end[A3] = 9  # of others
    assert Returning().left({}, brokers.ends, brokers.at) == 0


def test_it_waits_until_the_level_has_come_to_what_was_sent_back_and_one_look_more() -> None:
    brokers, returning = Brokers(), Returning()
    brokers.end, brokers.reached = {A3: 5}, {A3: 3}
    look = looks(returning, brokers, 2)
    assert [next(look) for _ in range(4)] == [1, 2, 2, 2]
    brokers.reached[A3] = 4
    assert next(look) == 1
    brokers.reached[A3] = 5
    assert [next(look) for _ in range(3)] == [1, 0, 0]


def test_what_others_add_afterwards_is_not_waited_for() -> None:
    brokers, returning = Brokers(), Returning()
    brokers.end, brokers.reached = {A3: 1, B3: 4}, {B3: 4}
    look = looks(returning, brokers, 1)
    assert [next(look) for _ in range(3)] == [1, 1, 1]
    brokers.end, brokers.reached = {A3: 50, B3: 60}, {A3: 1, B3: 4}
    assert [next(look) for _ in range(2)] == [1, 0]


def test_what_comes_back_of_others_does_not_end_the_wait() -> None:
    """Retries of others are before ours in the level, or in another one: neither is ours."""
    brokers, returning = Brokers(), Returning()
    brokers.end, brokers.reached = {A3: 8, B3: 3}, {A3: 0, B3: 0}
    look = looks(returning, brokers, 1)
    next(look), next(look)
    brokers.reached = {A3: 7, B3: 3}
    assert [next(look) for _ in range(3)] == [1, 1, 1]


def test_what_is_sent_back_later_is_waited_for_too() -> None:
    brokers, returning = Brokers(), Returning()
    brokers.end, brokers.reached = {A3: 1}, {A3: 1}
    look = looks(returning, brokers, 1)
    assert [next(look) for _ in range(3)] == [1, 1, 0]
    brokers.end[A3] = 2
    look = looks(returning, brokers, 2)
    assert [next(look) for _ in range(3)] == [1, 1, 1]
    brokers.reached[A3] = 2
    assert [next(look) for _ in range(2)] == [1, 0]


def test_an_end_that_is_shown_a_moment_late_is_seen_by_the_second_look() -> None:
    brokers, returning = Brokers(), Returning()
    brokers.end = {A3: 0}
    look = looks(returning, brokers, 1)
    assert next(look) == 1
    brokers.end = {A3: 1}
    assert [next(look) for _ in range(3)] == [1, 1, 1]


def test_a_level_that_is_not_named_has_delivered_nothing() -> None:
    brokers, returning = Brokers(), Returning()
    brokers.end = {A3: 2}
    look = looks(returning, brokers, 2)
    assert [next(look) for _ in range(2)] == [1, 2]


def test_brokers_that_do_not_say_are_left_to_the_count() -> None:
    brokers, returning = Brokers(), Returning()
    look = looks(returning, brokers, 1)
    assert [next(look) for _ in range(3)] == [1, 1, 0]


def test_a_look_that_failed_does_not_count() -> None:
    brokers, returning = Brokers(), Returning()
    brokers.end, brokers.away = {A3: 1}, True
    for _ in range(3):
        with pytest.raises(UnreachableError):
            returning.left({3: 1}, brokers.ends, brokers.at)
    brokers.away = False
    assert [returning.left({3: 1}, brokers.ends, brokers.at) for _ in range(3)] == [1, 1, 1]


def test_levels_that_the_crew_has_not_used_are_not_waited_for() -> None:
    """A stranger's message of two hours is there before the first look."""
    brokers, returning = Brokers(), Returning()
    brokers.end, brokers.reached = {A3: 1, ("broker-a", 18): 1, ("broker-b", 1): 4}, {A3: 1}
    brokers.reached["broker-b", 1] = 4
    look = looks(returning, brokers, 1)
    assert [next(look) for _ in range(3)] == [1, 1, 0]


def test_a_broker_with_fewer_levels_has_it_in_its_last() -> None:
    brokers, returning = Brokers(), Returning()
    brokers.end = {("broker-a", 1): 7, ("broker-a", 2): 5, A3: 0}
    look = looks(returning, brokers, 1)
    assert [next(look) for _ in range(3)] == [1, 1, 1]
    brokers.reached = {("broker-a", 2): 5}
    assert [next(look) for _ in range(2)] == [1, 0]


def test_what_is_sent_back_at_another_level_leaves_the_noted_ends() -> None:
    brokers, returning = Brokers(), Returning()
    brokers.end, brokers.reached = {A3: 1}, {A3: 0}
    for _ in range(2):
        returning.left({3: 1}, brokers.ends, brokers.at)
    brokers.end, brokers.reached = {A3: 50, ("broker-a", 4): 1}, {A3: 1, ("broker-a", 4): 1}  # the others are not ours
    assert [returning.left({3: 1, 4: 1}, brokers.ends, brokers.at) for _ in range(3)] == [1, 1, 0]
