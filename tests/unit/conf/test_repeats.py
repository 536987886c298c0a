"""What repeats: the first line, then counted; of an outage one line a minute."""

from __future__ import annotations

import itertools

from rocketcrew.conf.repeats import DISTANCE_MAX_S, KINDS_MAX, QUIET_S, Outages, Repeats


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


def test_an_outage_is_a_line_for_each_server_and_then_one_a_minute_for_all() -> None:
    outages = Outages()
    said = []
    for tenth in range(1500):
        now = tenth / 10
        for event, server in (("pull_failed", "broker-a"), ("route_not_renewed", ""), ("name_server_failed", "ns:1"),
                              ("commit_failed", "broker-a")):  # fmt: skip
            if counts := outages.came(event, server, now):
                said.append((now, dict(counts)))
    assert [(now, len(counts)) for now, counts in said] == [(0, 1), (0, 1), (60, 4), (120, 4)]
    assert said[0][1] == {"pull_failed broker-a": 1}
    assert said[1][1] == {"name_server_failed ns:1": 1}
    assert sum(sum(counts.values()) for _, counts in said) == 4 * 1200 + 1  # all up to the last line that was said


def test_a_server_that_fails_later_has_its_first_line_then_and_moves_no_other() -> None:
    outages = Outages()
    assert outages.came("pull_failed", "broker-a", 0.0)
    assert not outages.came("pull_failed", "broker-a", 1.0)
    assert outages.came("pull_failed", "broker-b", 30.0) == {"pull_failed broker-b": 1}
    assert outages.came("pull_failed", "broker-b", 60.0) == {"pull_failed broker-a": 1, "pull_failed broker-b": 1}


def test_a_line_that_names_no_server_is_an_outage_of_its_own_where_there_is_no_other() -> None:
    outages = Outages()
    assert outages.came("route_not_renewed", "", 0.0) == {"route_not_renewed": 1}
    assert not outages.came("route_not_renewed", "", 1.0)


def test_an_outage_after_a_quiet_while_is_news() -> None:
    outages = Outages()
    assert outages.came("pull_failed", "broker-a", 0.0)
    assert not outages.came("pull_failed", "broker-a", 1.0)
    assert outages.came("pull_failed", "broker-a", 1.0 + QUIET_S) == {"pull_failed broker-a": 1}


def test_what_came_of_an_outage_after_its_last_line_is_not_counted_in_the_next_one() -> None:
    outages, later = Outages(), 12 * 3600.0
    for second in range(50):
        outages.came("pull_failed", "broker-a", float(second))
    assert outages.came("pull_failed", "broker-a", later) == {"pull_failed broker-a": 1}
    assert not outages.came("pull_failed", "broker-a", later + 1)
    assert outages.came("pull_failed", "broker-a", later + DISTANCE_MAX_S) == {"pull_failed broker-a": 2}


def test_an_outage_that_goes_on_at_another_server_keeps_its_counts() -> None:
    outages = Outages()
    outages.came("pull_failed", "broker-a", 0.0)
    outages.came("pull_failed", "broker-a", 1.0)
    assert outages.came("pull_failed", "broker-b", QUIET_S) == {"pull_failed broker-b": 1}
    counts = {"pull_failed broker-a": 1, "pull_failed broker-b": 1}
    assert outages.came("pull_failed", "broker-b", QUIET_S + 1) == counts


def test_of_so_many_servers_at_most_is_known() -> None:
    outages = Outages()
    for number in range(3 * KINDS_MAX):
        assert outages.came("pull_failed", str(number), 0.0)
    assert not outages.came("pull_failed", str(3 * KINDS_MAX - 1), 1.0)
