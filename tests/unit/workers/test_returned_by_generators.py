"""What a generator returns at its end: an exception means what a plain function's means, anything else fails the message."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from rocketcrew import BatchResult, Commit, Handler, Retry, Send, Suspend
from rocketcrew.testing import message, run
from rocketcrew.workers.boot import COLUMNS_FILE
from rocketcrew.workers.calls import batch_results
from rocketcrew.workers.ddl import parse_ddl
from rocketcrew.workers.fitting import RowError
from rocketcrew.workers.inferring import Inferring
from rocketcrew.workers.rows import RowBuffer
from rocketcrew.workers.sends import run_out, sending

LOST = "the handler's generator returned {}, which would be lost: yield rows"
ORDER = message(b"x", topic="orders")


def ending(returned: object, *rows: object) -> Iterator[Any]:
    yield from rows
    return returned


def sent_out(given: Any) -> None:
    """What sends it is asked at the end of a generator."""
    list(sending(Handler(lambda message: given, sends=True), "billing", None)(ORDER))


def takers(folder: Path) -> list[Callable[[Any], object]]:
    """Everything that goes through what a handler returned."""
    inferring = Inferring(folder / COLUMNS_FILE, structlog.get_logger("test"))
    return [
        lambda given: RowBuffer[int](parse_ddl("a int"), "g").prepare(ORDER, given),
        lambda given: RowBuffer[int](None, "g", inferring).prepare(ORDER, given),
        lambda given: batch_results([ORDER], BatchResult(given)),
        run_out,
        lambda given: run_out(Commit(given)),
        sent_out,
    ]


@pytest.mark.parametrize("returned", [{"a": 2}, [], Send("a", b"1"), Commit(), BatchResult()])
def test_what_is_no_exception_is_refused(returned: object, tmp_path: Path) -> None:
    for take in takers(tmp_path):
        with pytest.raises(RowError, match=LOST.format(type(returned).__name__)):
            take(ending(returned, {"a": 1}))


@pytest.mark.parametrize("returned", [Retry(3, "not yet"), Suspend(), ValueError("no")])
def test_an_exception_is_raised(returned: BaseException, tmp_path: Path) -> None:
    for take in takers(tmp_path):
        with pytest.raises(type(returned)) as raised:
            take(ending(returned, {"a": 1}))
        assert raised.value is returned


def test_nothing_is_what_a_generator_returns_otherwise(tmp_path: Path) -> None:
    for take in takers(tmp_path):
        take(ending(None, {"a": 1}))


def test_its_message_fails_and_others_are_done() -> None:
    def count(given: Any) -> Iterator[dict[str, str]]:
        if given.keys == "k1":
            yield {"a": "1"}
        else:
            return {"a": "2"}

    ran = run(Handler(count, schema="a string"), [message(b"x", topic="t", keys=key) for key in ("k1", "k2")])
    assert ran.rows == [{"a": "1"}]
    assert ran.done == 1
    assert any("generator returned dict" in str(line.get("error")) for line in ran.log)
