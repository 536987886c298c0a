"""Values of log lines: whatever they are, there is a text."""

from __future__ import annotations

import json
from datetime import date
from enum import Enum, IntEnum
from typing import Any

import numpy as np
import pytest

from rocketcrew.remoting.log_values import DEPTH_MAX, PARTS_MAX, Rendering, interpolated, plain, shown, text


class Colour(Enum):
    RED = 1


class Size(IntEnum):
    L = 3


class Shop(str, Enum):  # noqa: UP042  whose str() is another than its text
    NORTH = "north"


class Detached:
    def __repr__(self) -> str:
        raise RuntimeError("not bound to a Session")


class Changing(dict[str, int]):
    def items(self) -> Any:
        raise RuntimeError("dictionary changed size during iteration")


ITSELF: dict[str, object] = {"n": 1}
ITSELF["me"] = [ITSELF]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({date(2026, 1, 1): 3, np.int64(3): 4, ("a", 1): 5}, {"2026-01-01": 3, "3": 4, "('a', 1)": 5}),
        ({Colour.RED: Colour.RED, b"k": b"v"}, {"Colour.RED": "Colour.RED", "b'k'": "b'v'"}),
        ([float("nan"), float("-inf"), 1.5, True, None], ["nan", "-inf", 1.5, True, None]),
        ({"a": (1, Detached())}, {"a": [1, "<repr failed: RuntimeError>"]}),
        ({Detached(): 1}, {"<repr failed: RuntimeError>": 1}),
        ({"a": [np.float64(1.5), np.float64("nan"), Size.L, Shop.NORTH], Shop.NORTH: 1},
         {"a": [1.5, "nan", 3, "north"], "north": 1}),
        ({1: "a", "1": "b"}, {"1": "a", "1 (2)": "b"}),
        (ITSELF, {"n": 1, "me": ["..."]}),
        (Changing(a=1), "{'a': 1}"),
    ],
)  # fmt: skip
def test_what_json_does_not_have_is_a_text_and_a_number_is_one(value: object, expected: object) -> None:
    assert plain(value) == expected
    assert json.loads(json.dumps(plain(value), allow_nan=False)) == expected


def test_a_number_that_python_refuses_to_write_is_a_text() -> None:
    assert plain([10**5_000, 1 << 63]) == ["<repr failed: ValueError>", 1 << 63]


def test_what_is_deep_is_cut() -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    assert json.dumps(plain(deep)).count("[") == DEPTH_MAX


def test_what_lists_each_other_is_cut() -> None:
    nodes = [{"id": number, "near": list[object]()} for number in range(30)]
    for node in nodes:
        node["near"] = [other for other in nodes if other is not node]
    assert json.dumps(plain(nodes)).count("id") < PARTS_MAX
    assert shown(nodes) == repr(plain(nodes))


def test_what_is_wide_is_cut_at_its_end() -> None:
    wide: Any = plain([dict.fromkeys(range(PARTS_MAX)), [0] * PARTS_MAX])
    assert (len(wide), len(wide[0]), wide[0][str(PARTS_MAX - 2)]) == (1, PARTS_MAX - 1, "...")
    assert shown([0] * PARTS_MAX) == repr([*[0] * (PARTS_MAX - 1), "..."])
    assert shown({"a": (1, Size.L)}) == "{'a': (1, <Size.L: 3>)}"


def test_a_text_is_never_somebody_s_class() -> None:
    class Own(str):
        __slots__ = ()

    assert type(text(Own("a"))) is type(plain(Own("a"))) is str


@pytest.mark.parametrize(
    ("event", "args", "expected"),
    [
        ("%d of %s", (1, "a"), "1 of a"),
        ("%(n)d", {"n": 1}, "1"),
        ("%d", ("a",), "%d ('a',)"),
        ("order %r", (Detached(),), "order '<repr failed: RuntimeError>'"),
        ("%(n)s", {"m": Detached()}, "%(n)s {'m': '<repr failed: RuntimeError>'}"),
        (Detached(), (1,), "<repr failed: RuntimeError> (1,)"),
        (Detached(), (), "<repr failed: RuntimeError>"),
    ],
)
def test_arguments_that_do_not_fit_follow(event: object, args: Any, expected: str) -> None:
    assert interpolated(event, args) == expected


class Dropped(BaseException):
    """As structlog's DropEvent."""


def test_an_event_that_cannot_be_rendered_is_rendered_of_plain_values() -> None:
    asked: list[dict[str, Any]] = []

    def render(_logger: object, _name: str, event: Any) -> str:
        asked.append(dict(event))
        return f"{event.pop('event')} {event.pop('value')}"

    render_all = Rendering(Dropped, render)
    assert render_all(None, "info", {"event": "usual", "value": 1}) == "usual 1"
    given: dict[str, object] = {"event": "odd", "value": Detached(), "exc_info": ValueError("no")}
    assert render_all(None, "info", given) == "odd <repr failed: RuntimeError>"
    assert [list(event) for event in asked] == [
        ["event", "value"], ["event", "value", "exc_info"], ["event", "value", "exception"]
    ]  # fmt: skip
    assert asked[-1]["exception"] == "ValueError: no"


def test_the_error_of_a_line_is_the_caller_s_and_not_the_rendering_s() -> None:
    def render(_logger: object, _name: str, event: Any) -> str:
        return f"{event['value']} {event['exception']}"

    try:
        raise LookupError("gone")
    except LookupError:
        line = Rendering(Dropped, render)(None, "error", {"value": Detached(), "exc_info": True})
    assert line.endswith("LookupError: gone")
    assert line.count("Traceback") == 1
    assert Rendering(Dropped, str.format)("{}", "error", {}) == "error"


def test_a_renderer_that_wants_texts_gets_them_and_one_that_refuses_all_drops_the_line() -> None:
    def concatenated(_logger: object, _name: str, event: Any) -> str:
        return event["event"] + "\n" + event["stack"] + event["exception"] + event.get("count", "")

    render = Rendering(Dropped, concatenated)
    assert render(None, "info", {"event": "odd", "stack": ["a"], "exception": 5}) == "odd\n['a']5"
    assert render(None, "info", {"event": "odd", "stack": "a", "exception": "b", "count": 5}) == "odd\nab5"
    with pytest.raises(Dropped):
        render(None, "info", {"event": "none"})
