"""Rows of which a look is enough to know that they fit: in order, where that must be known before the next message."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketcrew.conf.folders import FolderNames
from rocketcrew.workers.ddl import parse_ddl
from rocketcrew.workers.fitting import Columns

PLAIN = [
    "bigint",
    "int",
    "smallint",
    "tinyint",
    "string",
    "boolean",
    "double",
    "float",
    "binary",
    "date",
    "bigint not null",
]
EDGES: st.SearchStrategy[Any] = st.one_of(
    st.none(), st.booleans(), st.text(), st.binary(), st.floats(), st.dates(), st.decimals(), st.integers(),
    st.sampled_from([edge + by for bits in (7, 15, 31, 63) for edge in (-(1 << bits), 1 << bits) for by in (-1, 0)]),
    st.sampled_from(["\ud800", "", "a" * (1 << 20), numpy.int64(3), numpy.float64(0.5), bytearray(b"x")]),
)  # fmt: skip


@given(st.lists(st.tuples(st.sampled_from(PLAIN), EDGES), min_size=1, max_size=4))
def test_what_is_sure_to_fit_is_converted_as_it_is(given_values: list[tuple[str, Any]]) -> None:
    columns = Columns(parse_ddl(", ".join(f"c{number} {kind}" for number, (kind, _) in enumerate(given_values))))
    row = tuple(value for _, value in given_values)
    if columns.sure(row):
        (found,) = columns.batch([row]).to_pylist()
        assert repr(tuple(found.values())) == repr(row)


@pytest.mark.parametrize("value", [1, None, -(1 << 63), (1 << 63) - 1, "text", b"\xff", True, 0.5], ids=repr)
def test_plain_values_are_sure(value: Any) -> None:
    kinds = {int: "bigint", str: "string", bytes: "binary", bool: "boolean", float: "double"}
    assert Columns(parse_ddl(f"a {kinds.get(type(value), 'string')}")).sure((value,))


def test_a_column_that_names_folders_is_looked_at_whole() -> None:
    folders = FolderNames(("day",))
    assert not Columns(parse_ddl("day string"), folders).sure(("monday",))
    assert Columns(parse_ddl("day string")).sure(("monday",))
