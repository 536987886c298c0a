"""JSON for programs: all that JSON has no kind for, and what stdout's encoding does not have."""

from __future__ import annotations

import contextlib
import io
import json
from datetime import date
from decimal import Decimal
from enum import IntEnum
from typing import Any

import pytest

from rocketcrew.cli.json_text import escape_in, json_text


class Level(IntEnum):
    HIGH = 7


@pytest.mark.parametrize(
    ("value", "read"),
    [
        ([{"total": float("nan"), "most": float("inf"), "n": 1.5}], [{"total": "nan", "most": "inf", "n": 1.5}]),
        ({"rows": ({"least": [float("-inf")]},)}, {"rows": [{"least": ["-inf"]}]}),
        ({date(2026, 1, 31): 1}, {"2026-01-31": 1}),
        ({"at": date(2026, 1, 31), "price": Decimal("9.50")}, {"at": "2026-01-31", "price": "9.50"}),
        ({"level": Level.HIGH, "nan": float("nan"), "none": None}, {"level": 7, "nan": "nan", "none": None}),
        ({1: "ä€"}, {"1": "ä€"}),
        ({"nan": float("nan"), None: 1, True: 2}, {"nan": "nan", "null": 1, "true": 2}),
        ({float("nan"): 1, 1.5: 2, (1, 2): 3, Level.HIGH: 4}, {"nan": 1, "1.5": 2, "(1, 2)": 3, "7": 4}),
    ],
)
def test_what_json_lacks_is_a_text(value: object, read: object) -> None:
    def refuse(name: str) -> Any:
        raise AssertionError(f"{name} is no JSON")

    assert json.loads(json_text(value), parse_constant=refuse) == read


def test_characters_are_written_as_they_are() -> None:
    assert json_text({"name": "ä€"}) == '{"name": "ä€"}'
    assert json_text([1], indent=2) == "[\n  1\n]"


@pytest.mark.parametrize(
    ("encoding", "written"),
    [
        ("latin-1", b'"\\u00e4 \\u20ac \\ud83d\\ude00 \\ud83d"'),
        ("utf-8", '"ä € 😀 \\ud83d"'.encode()),
        ("UTF8", '"ä € 😀 \\ud83d"'.encode()),
    ],
)
def test_json_is_utf_8_on_a_stdout_of_any_encoding(encoding: str, written: bytes) -> None:
    into = io.BytesIO()
    stdout = io.TextIOWrapper(into, encoding=encoding)
    escape_in(stdout)
    with contextlib.redirect_stdout(stdout):
        stdout.write(json_text("ä € 😀 \ud83d"))
    stdout.flush()
    assert into.getvalue() == written
    assert json.loads(written.decode()) == "ä € 😀 \ud83d"


def test_people_read_what_the_encoding_of_stdout_has_and_else_escapes() -> None:
    into = io.BytesIO()
    stdout = io.TextIOWrapper(into, encoding="latin-1")
    escape_in(stdout)
    stdout.write("ä € 😀")
    stdout.flush()
    assert into.getvalue() == b"\xe4 \\u20ac \\ud83d\\ude00"


def test_a_stdout_that_is_none_of_this_process_stays_as_it_is() -> None:
    escape_in(None)
    escape_in(io.StringIO())
