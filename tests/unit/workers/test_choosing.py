"""Which messages reach the handler: tags whose hashes collide, and the user's own filter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rocketcrew.remoting.errors import UsageError
from rocketcrew.remoting.hashing import java_hash
from rocketcrew.workers.api import handler
from rocketcrew.workers.boot import WorkerBounds
from rocketcrew.workers.cells import CLAIM, RECORDS, STATE, TAKEN
from rocketcrew.workers.ordered_packets import OrderedDescriptor, encode_ordered
from rocketcrew.workers.packets import QueueInfo

Make = Callable[..., Any]


def records(make_record: Make, bodies: str, tag: str = "") -> list[bytes]:
    properties = {"TAGS": tag} if tag else {}
    return [make_record(body.encode(), offset=offset, properties=properties) for offset, body in enumerate(bodies)]


def test_tags_that_a_broker_cannot_tell_apart_are_told_apart(bench: Make, make_record: Make, queue: QueueInfo) -> None:
    assert java_hash("Aa") == java_hash("BB")
    seen: list[str] = []
    b = bench(lambda message: seen.append(message.tags))
    b.queue(queue._replace(tags=("Aa",)), 2)
    b.chunk([*records(make_record, "a", "Aa"), *records(make_record, "b", "BB")], handle=2)
    b.steps(4)
    [outcome], failures = b.outcomes()
    assert (seen, outcome.records, outcome.filtered, failures) == (["Aa"], 2, 1, [])


def test_a_users_filter_keeps_messages_from_the_handler(bench: Make, make_record: Make) -> None:
    seen: list[bytes] = []

    @handler(filter=lambda message: message.body > b"b")
    def keep(message: Any) -> None:
        seen.append(message.body)

    b = bench(keep)
    b.chunk(records(make_record, "abcd"))
    b.steps(3)
    [outcome], failures = b.outcomes()
    assert (seen, outcome.records, outcome.filtered, failures) == ([b"c", b"d"], 4, 2, [])


@pytest.mark.parametrize("error", [ZeroDivisionError, SystemExit, KeyboardInterrupt])
@pytest.mark.parametrize("how", [{}, {"batch": True}, {"order": "queue"}, {"order": "queue", "batch": True}])
def test_a_filter_that_raises_wants_the_message(
    how: dict[str, Any], error: type[BaseException], bench: Make, make_record: Make
) -> None:
    seen: list[bytes] = []

    def choose(message: Any) -> bool:
        if message.body == b"b":
            raise error
        return True

    @handler(filter=choose, **how)
    def keep(given: Any) -> None:
        seen.extend(message.body for message in (given if "batch" in how else [given]))

    b = bench(keep)
    data = records(make_record, "abc")
    if "order" in how:
        whole = b"".join(data)
        b.link.send(encode_ordered([OrderedDescriptor(1, 1, 0, len(whole), 3, 0, ())], 0), whole)
    else:
        b.chunk(data)
    b.steps(3)
    entries, failures = b.outcomes()
    assert (seen, [entry.filtered for entry in entries if entry.filtered], failures) == ([b"a", b"b", b"c"], [], [])


def test_a_batch_has_only_what_the_filter_wants(bench: Make, make_record: Make) -> None:
    seen: list[list[bytes]] = []

    @handler(batch=True, filter=lambda message: message.body != b"b")
    def keep(messages: list[Any]) -> None:
        seen.append([message.body for message in messages])

    b = bench(keep, bounds=WorkerBounds(batch_messages_max=3))
    b.chunk(records(make_record, "abcd"))
    b.steps(3)
    entries, _ = b.outcomes()
    assert (seen, sum(entry.filtered for entry in entries)) == ([[b"a", b"c", b"d"]], 1)


@pytest.mark.parametrize("how", [{}, {"batch": True}, {"order": "queue"}, {"order": "queue", "batch": True}])
def test_a_record_is_in_hand_while_the_filter_looks_at_it(how: dict[str, Any], bench: Make, make_record: Make) -> None:
    """Else one that kills or stops its worker there would do so for ever."""
    seen: list[tuple[int, ...]] = []

    def note(message: Any) -> bool:
        cell = b.cell
        seen.append((message.queue_offset, cell[STATE] - 1, cell[RECORDS], cell[TAKEN], cell[CLAIM] & 0xFFFF))
        return bool(message.queue_offset % 2)

    @handler(filter=note, **how)
    def keep(given: Any) -> None:
        for message in given if "batch" in how else ():
            assert message.body

    b = bench(keep, bounds=WorkerBounds(batch_messages_max=2))
    data = records(make_record, "abcd")
    if "order" in how:
        whole = b"".join(data)
        b.link.send(encode_ordered([OrderedDescriptor(1, 1, 0, len(whole), 4, 0, ())], 0), whole)
    else:
        b.chunk(data)
    b.steps(3)
    b.packets()
    claimed = [1, 2, 3, 4] if how != {"order": "queue"} and "order" not in how else [0] * 4
    assert seen == [(offset, offset, 1, 0, claimed[offset]) for offset in range(4)]
    assert b.cell[STATE] == 0


def test_tags_come_before_the_filter(bench: Make, make_record: Make, queue: QueueInfo) -> None:
    asked: list[str] = []

    @handler(filter=lambda message: asked.append(message.tags))
    def keep(message: Any) -> None:
        raise AssertionError(message)

    b = bench(keep)
    b.queue(queue._replace(tags=("A",)), 2)
    b.chunk([*records(make_record, "a", "A"), *records(make_record, "b", "B")], handle=2)
    b.steps(4)
    [outcome], failures = b.outcomes()
    assert (asked, outcome.filtered, failures) == (["A"], 2, [])


def test_a_filter_that_cannot_be_called_is_refused() -> None:
    with pytest.raises(UsageError, match="filter=7 cannot be called"):
        handler(filter=7)(print)  # type: ignore[call-overload]
