"""Rows as lines of text."""

from __future__ import annotations

from rocketcrew.cli.tables import lines


def test_numbers_stand_to_the_right_and_texts_to_the_left() -> None:
    assert list(lines([{"NAME": "a", "N": 1}, {"NAME": "long one", "N": 100}])) == [
        "NAME      N  ",
        "a           1",
        "long one  100",
    ]
    assert list(lines([])) == []


def test_an_error_of_many_lines_leaves_the_table_whole() -> None:
    """A handler's error may be pages of text."""
    found = list(lines([{"N": 2, "ERROR": "first\nsecond\r\nthird"}, {"N": 10, "ERROR": "x" * 500}], 40))
    assert found == ["N   ERROR".ljust(44), " 2  first\\nsecond\\nthird".ljust(44), "10  " + "x" * 39 + "…"]
