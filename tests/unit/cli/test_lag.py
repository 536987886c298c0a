from __future__ import annotations

from rocketcrew.cli.commands.lag import QueueLag, for_people, table, watched
from rocketcrew.remoting.queues import MessageQueue


def test_a_table_for_people() -> None:
    queues = [QueueLag("orders", "broker-a", 0, 1200, 1000, 200), QueueLag("%RETRY%g", "broker-a", 0, 3, None, 3)]
    assert table(queues, 203).splitlines() == [
        "TOPIC     BROKER    QUEUE   MAX  COMMITTED  LAG",
        "orders    broker-a      0  1200       1000  200",
        "%RETRY%g  broker-a      0     3          -    3",
        "total                                       203",
    ]


def test_a_watched_queue_has_an_owner_a_rate_and_an_end() -> None:
    before = [QueueLag("orders", "a", 0, 100, 10, 90), QueueLag("orders", "a", 1, 5, None, 5)]
    now = [QueueLag("orders", "a", 0, 120, 30, 90), QueueLag("orders", "a", 1, 5, None, 5)]
    first, second = watched(now, (2.0, before), {MessageQueue("orders", "a", 0): "c1"})
    assert (first["owner"], first["per_second"], first["seconds_left"]) == ("c1", 10.0, 9.0)
    assert (second["owner"], second["per_second"], second["seconds_left"]) == (None, 0.0, None)
    assert for_people(first)["LEFT"] == "9 s"
    assert for_people(second) | {"TOPIC": ""} == {
        "TOPIC": "", "BROKER": "a", "QUEUE": 1, "COMMITTED": "-", "LAG": 5, "PER S": 0.0, "LEFT": "-", "OWNER": "-",
    }  # fmt: skip


def test_the_first_look_has_no_rates() -> None:
    (row,) = watched([QueueLag("orders", "a", 0, 100, 10, 90)], None, {})
    assert row["per_second"] is None
    assert for_people(row)["PER S"] == "-"
