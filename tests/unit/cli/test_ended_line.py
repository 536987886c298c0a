"""What `run` says at its end."""

from __future__ import annotations

from rocketcrew.cli.running import ended_line, page_url
from rocketcrew.conf.settings import load
from rocketcrew.supervisor.service import Summary

NAMES: list[str] = ["done_messages", "failed_messages", "sent_back_messages", "filtered_messages", "worker_deaths"]
LOAD = "a command line"
COUNTERS = dict.fromkeys(NAMES, 0)


def test_what_is_not_durable_comes_again() -> None:
    assert ended_line(Summary(0, COUNTERS, 3, 4, 0), LOAD).endswith("; to come again 7")


def test_what_is_finished_for_good_comes_again_only_at_another_member() -> None:
    said = ended_line(Summary(0, COUNTERS, 0, 0, 40), LOAD)
    assert said.endswith(
        "; to come again 0; not committed 40, which come again only if another member takes over, or if they were popped"
    )


def test_rows_that_are_not_in_the_table_yet_are_told() -> None:
    """Their messages are committed, so that nothing else shows where they are."""
    said = ended_line(Summary(0, COUNTERS, 0, 0, 0, 2), LOAD)
    assert said.endswith("; to come again 0; 2 segments not in the table yet: the next run loads, or `a command line`")
    assert "table" not in ended_line(Summary(0, COUNTERS, 0, 0, 0), LOAD)


def test_the_page_of_an_ipv6_address_can_be_opened() -> None:
    given = {"metrics.host": "::1", "metrics.port": 8080, "metrics.page": True}
    assert page_url(load(given, {}, None).metrics, 8081) == "http://[::1]:8081/"
    assert page_url(load({**given, "metrics.host": "127.0.0.1"}, {}, None).metrics, 8081) == "http://127.0.0.1:8081/"
    assert page_url(load({**given, "metrics.page": False}, {}, None).metrics, 8081) == ""
