from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any

import pytest

from rocketcrew.remoting.errors import UsageError
from rocketcrew.workers.api import BatchResult, Handler, Retry, as_handler, handler


def test_the_bare_decorator() -> None:
    @handler
    def count(message: bytes) -> int:
        """Counts."""
        return len(message)

    assert isinstance(count, Handler)
    assert count(b"abc") == 3
    assert count.__doc__ == "Counts."
    assert count.name.endswith(":test_the_bare_decorator.<locals>.count")
    assert not count.batch


def test_the_decorator_with_arguments() -> None:
    @dataclass
    class Row:
        a: int

    calls: list[str] = []

    @handler(schema=Row, batch=True, setup=lambda: calls.append("up"), teardown=lambda: calls.append("down"))
    def many(messages: list[Any]) -> None:
        return None

    assert many.schema is Row
    assert many.batch
    assert many.setup is not None
    many.setup()
    assert calls == ["up"]


def test_callables_of_any_kind_become_handlers() -> None:
    class Model:
        def __call__(self, message: object) -> str:
            return "called"

    assert as_handler(Model())(None) == "called"
    assert as_handler(len).name == "builtins:len"
    given = as_handler(lambda m: m)
    assert as_handler(given) is given


@pytest.mark.parametrize("wrong", [None, 3, "text"])
def test_what_cannot_be_called_is_refused(wrong: object) -> None:
    with pytest.raises(UsageError):
        as_handler(wrong)
    with pytest.raises(UsageError):
        Handler(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("level", [-1, 0, 18, 127])
def test_retry_levels(level: int) -> None:
    retry = Retry(level, "later")
    assert (retry.delay_level, str(retry)) == (level, "later")
    assert str(Retry())
    copy = pickle.loads(pickle.dumps(retry))
    assert (copy.delay_level, copy.reason) == (level, "later")


@pytest.mark.parametrize("level", [-2, 128])
def test_retry_levels_that_do_not_exist(level: int) -> None:
    with pytest.raises(UsageError, match="-1"):
        Retry(level)


def test_batch_result_defaults_to_all_done() -> None:
    assert BatchResult().ack_index is None


def test_a_class_method_made_of_a_handler_is_refused() -> None:
    class Space:
        @classmethod
        @handler
        def work(cls, message: object) -> None: ...

        @staticmethod
        @handler
        def fine(message: object) -> None: ...

        @classmethod
        def plain(cls, message: object) -> None: ...

    with pytest.raises(UsageError, match=r"Space\.work: @classmethod around @handler .* write @staticmethod"):
        as_handler(Space.work)
    assert as_handler(Space.fine) is Space.fine
    assert as_handler(Space.plain).function == Space.plain
