"""What is sent to a worker about queues: before their first chunk, and no longer than twice as many as there are."""

from __future__ import annotations

from rocketcrew.supervisor.pool.child import KNOWN_QUEUES_MIN, KnownQueues


def test_a_year_of_rebalances_leaves_few() -> None:
    """Each gives new handles to the same ten queues; what the worker holds is followed by its packets."""
    known, there, most = KnownQueues(), set[int](), 0
    asked = 0

    def alive() -> set[int]:
        nonlocal asked
        asked += 1
        return set(range(first, first + 10))

    for first in range(0, 50_000, 10):
        for handle in range(first, first + 10):
            gone, new = known.meet((handle,), alive)
            there.difference_update(gone)
            assert new == [handle]
            assert handle not in there
            there.update(new)
            most = max(most, len(there))
            assert known.meet((handle,), alive) == ([], [])
    assert len(known) == len(there)
    assert most <= KNOWN_QUEUES_MIN
    assert asked <= 50_000 / (KNOWN_QUEUES_MIN - 10) + 1, "now and then, not with each"


def test_nothing_of_the_hand_over_itself_is_forgotten() -> None:
    known = KnownQueues()
    for handle in range(KNOWN_QUEUES_MIN):
        known.meet((handle,), set)
    gone, new = known.meet((3, 100, 101), set)
    assert new == [100, 101]
    assert 3 in known
    assert sorted({*gone, 3}) == list(range(KNOWN_QUEUES_MIN))


def test_many_living_queues_are_asked_for_seldom() -> None:
    known, asked = KnownQueues(), 0

    def alive() -> set[int]:
        nonlocal asked
        asked += 1
        return set(range(1_024))

    for handle in range(1_024):
        known.meet((handle,), alive)
    assert len(known) == 1_024
    assert asked <= 5
