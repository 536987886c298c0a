"""Values of log lines: whatever they are, there is a text."""

from __future__ import annotations

import json
from datetime import date
from enum import Enum
from typing import Any

import numpy as np
import pytest

from rocketcrew.remoting.log_values import DEPTH_MAX, Rendering, interpolated, plain, text


class Colour(Enum):
    RED = 1


class Detached:
    def __repr__(self) -> str:
        raise RuntimeError("not bound to a Session")


class Changing(dict[str, int]):
    def items(self) -> Any:
        raise RuntimeError("dictionary changed size during iteration")


ITSELF: dict[str, object] = {"n": 1}
ITSELF["me"] = [ITSELF]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ({date(2026, 1, 1): 3, np.int64(3): 4, ("a", 1): 5}, {"2026-01-01": 3, "3": 4, "('a', 1)": 5}),
        ({Colour.RED: Colour.RED, b"k": b"v"}, {"Colour.RED": "Colour.RED", "b'k'": "b'v'"}),
        ([float("nan"), float("-inf"), 1.5, True, None], ["nan", "-inf", 1.5, True, None]),
        ({"a": (1, Detached())}, {"a": [1, "<repr failed: RuntimeError>"]}),
        ({Detached(): 1}, {"<repr failed: RuntimeError>": 1}),
        (ITSELF, {"n": 1, "me": ["..."]}),
        (Changing(a=1), "{'a': 1}"),
    ],
)
def test_what_json_does_not_have_is_a_text(value: object, shown: object) -> None:
    assert plain(value) == shown
    json.dumps(plain(value), allow_nan=False)


def test_a_number_that_python_refuses_to_write_is_a_text() -> None:
    assert plain([10**5_000, 1 << 63]) == ["<repr failed: ValueError>", 1 << 63]


def test_what_is_deep_is_cut() -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    assert json.dumps(plain(deep)).count("[") == DEPTH_MAX


def test_a_text_is_never_somebody_s_class() -> None:
    class Own(str):
        __slots__ = ()

    assert type(text(Own("a"))) is type(plain(Own("a"))) is str


@pytest.mark.parametrize(
    ("event", "args", "shown"),
    [
        ("%d of %s", (1, "a"), "1 of a"),
        ("%(n)d", {"n": 1}, "1"),
        ("%d", ("a",), "%d ('a',)"),
        ("order %r", (Detached(),), "order '<repr failed: RuntimeError>'"),
        ("%(n)s", {"m": Detached()}, "%(n)s {'m': '<repr failed: RuntimeError>'}"),
        (Detached(), (1,), "<repr failed: RuntimeError> (1,)"),
    ],
)
def test_arguments_that_do_not_fit_follow(event: object, args: Any, shown: str) -> None:
    assert interpolated(event, args) == shown


def test_an_event_that_cannot_be_rendered_is_rendered_of_plain_values() -> None:
    asked: list[dict[str, Any]] = []

    def render(_logger: object, _name: str, event: Any) -> str:
        asked.append(dict(event))
        return f"{event.pop('event')} {event.pop('value')}"

    render_all = Rendering(render)
    assert render_all(None, "info", {"event": "usual", "value": 1}) == "usual 1"
    given: dict[str, object] = {"event": "odd", "value": Detached(), "exc_info": ValueError("no")}
    assert render_all(None, "info", given) == "odd <repr failed: RuntimeError>"
    assert [list(event) for event in asked] == [
        ["event", "value"], ["event", "value", "exc_info"], ["event", "value", "exception"]
    ]  # fmt: skip
    assert asked[-1]["exception"] == "ValueError: no\n"
