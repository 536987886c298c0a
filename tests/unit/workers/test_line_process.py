"""A user's code at the end of a pipe: one JSON line in, one out, and whatever it raises is the error's text."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from rocketcrew.remoting.errors import UsageError
from rocketcrew.workers.lifecycle import hooks_at
from rocketcrew.workers.line_process import Answer, serve
from rocketcrew.workers.strategy import strategy_at

HERE = __name__
heard: list[Any] = []


def hears(event: Any) -> None:
    heard.append(event)


def raises(event: Any) -> None:
    raise ValueError(f"no {event['what']}")


def leaves(event: Any) -> None:
    sys.exit(f"{event}")


async def later(event: Any) -> None:
    del event


def two(event: Any, more: Any) -> None:
    del event, more


def yields(event: Any) -> Iterator[Any]:
    yield event


def hidden(event: Any) -> Any:
    return later(event)


def hidden_too(event: Any) -> Any:
    return yields(event)


NO_FUNCTION = 3


def said(load: Any, *questions: object) -> list[dict[str, Any]]:
    out = io.StringIO()
    serve(load, io.StringIO("".join(json.dumps(question) + "\n" for question in questions)), out)
    return [json.loads(line) for line in out.getvalue().splitlines()]


def of(hook: str, **event: object) -> dict[str, object]:
    return {"hook": hook, "event": event}


def test_each_question_has_one_answer() -> None:
    def load() -> Answer:
        return hooks_at([f"on_start={HERE}:hears", f"on_rebalance={HERE}:raises", f"on_dead_letter={HERE}:leaves"])

    answers = said(load, of("on_start", a=1), of("on_rebalance", what="way"), of("on_dead_letter"), of("on_start", a=2))
    assert answers[0] == {"ready": True}
    assert answers[1] == answers[4] == {"done": "on_start"}
    assert "ValueError: no way" in answers[2]["error"]
    assert "SystemExit" in answers[3]["error"]
    assert sys.modules[HERE].heard == [{"a": 1}, {"a": 2}]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nosuch", "nosuch"),
        ("later", "plain function"),
        ("two", "one argument"),
        ("yields", "without yield"),
        ("NO_FUNCTION", "NO_FUNCTION is no function, but of type int"),
    ],
)
def test_what_cannot_be_called_is_said_first_and_alone(name: str, words: str) -> None:
    (answer,) = said(lambda: hooks_at([f"on_start={HERE}:{name}"]), of("on_start"))
    assert words in answer["error"]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("name", "kind"), [("hidden", "coroutine"), ("hidden_too", "generator")])
def test_a_hook_of_which_nothing_ran_has_failed(name: str, kind: str) -> None:
    ready, answer = said(lambda: hooks_at([f"on_start={HERE}:{name}"]), of("on_start"))
    assert ready == {"ready": True}
    assert f"it returned a {kind}, which nobody runs" in answer["error"]


def test_a_strategy_that_is_no_function_is_named_as_such() -> None:
    (answer,) = said(lambda: strategy_at(f"{HERE}:NO_FUNCTION"), {})
    assert answer["error"] == f"{HERE}:NO_FUNCTION is no function, but of type int"


def test_a_user_error_needs_no_hook() -> None:
    def load() -> Answer:
        raise UsageError("no such thing")

    assert said(load) == [{"error": "no such thing"}]
