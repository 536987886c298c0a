"""What why-lag says to people."""

from __future__ import annotations

from typing import Any

import pytest

from rocketcrew.cli.commands.why_lag import HOLDS, explained, text_of, top_of
from rocketcrew.supervisor.pool.stacks import ProcessStack, Running

STACK = """Thread 0x00007f (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 327 in wait

Current thread 0x00007e (most recent call first):
  File "/home/me/shop.py", line 7 in slow
  File "/home/me/shop.py", line 12 in count
  File "/x/rocketcrew/workers/main.py", line 80 in worker_main
"""


def queue(**changes: Any) -> dict[str, Any]:
    made: dict[str, Any] = {
        "topic": "orders", "broker": "a", "queue_id": 2, "state": "assigned", "committed": 3, "next_offset": 9, "lag": 6,
        "unfinished": 6, "holds": "worker", "offset": 3, "worker": "w1", "error": "", "rules": [],
        "doubt": None,
    }  # fmt: skip
    return made | changes


def worker(offset: int | None = 3) -> dict[str, Any]:
    running = {"topic": "orders", "broker": "a", "queue_id": 2, "offset": offset, "seconds": 12.34}
    return {"process": "worker", "name": "w1", "pid": 77, "running": running if offset is not None else None,
            "stack": STACK, "note": ""}  # fmt: skip


def text(
    *queues: dict[str, Any],
    workers: list[dict[str, Any]] | None = None,
    blocked: dict[str, Any] | None = None,
    **more: Any,
) -> str:
    told = [explained(one, workers or [], blocked or {}) for one in queues]
    return text_of(
        {
            "group": "billing",
            "queues": told,
            "popped": [],
            "processes": workers or [],
            "missing_topics": [],
            "unlisted_topics": [],
        }
        | more
    )


def test_a_message_that_runs_is_named_with_process_time_and_place() -> None:
    assert text(queue(rules=["paused by operator"]), workers=[worker()]).splitlines() == [
        "orders a 2: lag 6, committed 3, 6 unfinished here",
        "  offset 3 runs in worker w1 (pid 77) for 12.3 s, in slow at shop.py:7",
        "  not pulled: paused by operator",
    ]


def test_a_message_behind_another_names_that() -> None:
    said = text(queue(), workers=[worker(8)])
    assert (
        "offset 3 is with worker w1 (pid 77), which runs orders a 2 offset 8 for 12.3 s, in slow at shop.py:7" in said
    )
    several = Running(None, None, None, None, 12.34, calls=16)
    coroutines = ProcessStack("worker", "w1", 77, several, STACK).as_dict()
    assert "which runs 16 calls at once, the oldest for 12.3 s" in text(queue(), workers=[coroutines])
    assert "which is between two messages" in text(queue(), workers=[worker(None)])
    assert "offset 3 is with worker w1, which" in text(queue())  # it ended meanwhile


@pytest.mark.parametrize("holds", HOLDS)
def test_whatever_else_holds_is_a_sentence(holds: str) -> None:
    (_, said) = text(queue(holds=holds, worker=None, error="ValueError: no")).splitlines()
    assert HOLDS[holds] in said
    assert said.endswith("(ValueError: no)")


def test_a_worker_that_cannot_write_its_segment_is_the_reason() -> None:
    full = {"w1": {"error": "No space left on device", "seconds": 40.2}}
    cannot = "worker w1 (pid 77), which cannot write its segment: No space left on device, for 40 s"
    assert f"offset 3 is with {cannot}" in text(queue(), workers=[worker(None)], blocked=full)
    assert "which runs orders a 2 offset 8" in text(queue(), workers=[worker(8)], blocked=full), "it goes on beside"
    said = text(queue(holds="rows"), workers=[worker(None)], blocked=full)
    assert f"offset 3 is finished, and its rows are with {cannot}" in said
    assert HOLDS["table"] in text(queue(holds="table"), workers=[worker(None)], blocked=full), "its rows are sealed"


def test_without_a_lag_one_line() -> None:
    quiet = queue(lag=0, unfinished=0, holds="nothing", worker=None)
    assert text(quiet, quiet) == "group billing: no lag in 2 queues"
    assert text() == "group billing: this member has no queues"


@pytest.mark.parametrize(
    ("waits_for", "withheld", "said"),
    [
        ("members", True, "waits to hear who the group's members are; it is not committed before"),
        ("lock", True, "waits to hear that its lock is ours; it is not committed before"),
        ("offset", False, "waits to hear where the group is with it; commits look at the group's offset first"),
    ],
)
def test_a_queue_in_doubt_is_shown_though_it_has_no_lag(waits_for: str, withheld: bool, said: str) -> None:
    doubt = {"seconds": 12.34, "waits_for": waits_for, "withheld": withheld}
    quiet = queue(lag=0, unfinished=0, holds="nothing", worker=None, doubt=doubt)
    line = f"  in doubt for 12 s, as another member may have had it: {said}"
    assert text(quiet).splitlines()[-1] == line
    assert text(quiet | {"doubt": None}) == "group billing: no lag in 1 queue"


def test_popped_messages_are_counted() -> None:
    popped = [{"topic": "orders", "broker": "a", "queue_id": 0, "unfinished": 4}]
    assert text(popped=popped).startswith("orders a 0: 4 popped messages are not finished")


def test_the_top_of_a_stack_is_the_main_threads() -> None:
    assert top_of(STACK) == "slow at shop.py:7"
    assert top_of("") == ""


def test_a_group_that_a_broker_may_not_make_is_the_reason_for_no_queues() -> None:
    said = text(unlisted_topics=["orders"])
    assert said.startswith(
        "topic orders: a broker answers our heartbeats and does not list us as a member of the group"
    )
    assert said.endswith("`mqadmin updateSubGroup -g billing -c CLUSTER`")


def test_a_topic_that_does_not_exist_is_the_reason_for_no_queues() -> None:
    assert text(missing_topics=["orders"]) == "topic orders does not exist: it is consumed as soon as it does"
    assert text(missing_topics=[]) == "group billing: this member has no queues"
    assert text(queue(), missing_topics=["refunds"]).splitlines()[-1].startswith("topic refunds does not exist")
