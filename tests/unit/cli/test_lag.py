from __future__ import annotations

from rocketcrew.cli.commands.lag import QueueLag, table


def test_a_table_for_people() -> None:
    queues = [QueueLag("orders", "broker-a", 0, 1200, 1000, 200), QueueLag("%RETRY%g", "broker-a", 0, 3, None, 3)]
    assert table(queues, 203).splitlines() == [
        "TOPIC     BROKER    QUEUE   MAX  COMMITTED  LAG",
        "orders    broker-a      0  1200       1000  200",
        "%RETRY%g  broker-a      0     3          -    3",
        "total                                       203",
    ]
