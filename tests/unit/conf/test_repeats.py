"""Lines of an outage: the first, then counted at growing distance."""

from __future__ import annotations

import itertools

from rocketcrew.conf.repeats import DISTANCE_MAX_S, KINDS_MAX, QUIET_S, Repeats


def test_an_outage_of_ten_minutes_is_some_lines_that_count_everything() -> None:
    repeats = Repeats()
    said = [(now, times) for now in range(600) if (times := repeats.came("pull_failed", float(now)))]
    assert [now for now, _ in said] == [0, 5, 15, 35, 75, 135, 195, 255, 315, 375, 435, 495, 555]
    assert sum(times for _, times in said) == 556  # all up to the last line that was said
    gaps = [later - sooner for (sooner, _), (later, _) in itertools.pairwise(said)]
    assert max(gaps) == DISTANCE_MAX_S


def test_kinds_are_counted_apart() -> None:
    repeats = Repeats()
    assert repeats.came("a", 0.0) == repeats.came("b", 0.0) == 1
    assert repeats.came("a", 1.0) == 0


def test_after_a_quiet_while_it_is_news() -> None:
    repeats = Repeats()
    repeats.came("a", 0.0)
    assert repeats.came("a", 1.0) == 0
    assert repeats.came("a", 1.0 + QUIET_S) == 1


def test_so_many_kinds_at_most() -> None:
    repeats = Repeats()
    for kind in range(3 * KINDS_MAX):
        assert repeats.came(kind, 0.0) == 1
    assert repeats.came(3 * KINDS_MAX - 1, 1.0) == 0
