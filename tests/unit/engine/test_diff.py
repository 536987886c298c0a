"""By which columns a replay and a table are compared: those that both have; the others are named before Spark starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketcrew.conf.columns import BATCH_COLUMN, Column
from rocketcrew.engine.diff import shared_columns
from rocketcrew.remoting.errors import UsageError

TABLE = [Column("_group", "string"), Column("n", "bigint"), Column("text", "string"), Column(BATCH_COLUMN, "bigint")]


def test_what_both_have_is_compared_and_the_rest_is_named() -> None:
    found = shared_columns(Path("t"), [Column("_group", "string"), Column("n", "int"), Column("more", "date")], TABLE)
    assert found.columns == (Column("n", "int"),)
    assert found.not_compared == ("more (the replay's alone)", "text (the table's alone)")
    found = shared_columns(Path("t"), [Column("n", "string"), Column("text", "string")], TABLE)
    assert found.columns == (Column("text", "string"),)
    assert found.not_compared == ("n (string in the replay, bigint in the table)",)


@pytest.mark.parametrize(
    ("replayed", "table", "said"),
    [([Column("a", "int")], TABLE, "no column of one name"), ([Column("n", "int")], [], "no table of rocketcrew")],
)
def test_nothing_to_compare_is_refused(replayed: list[Column], table: list[Column], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        shared_columns(Path("t"), replayed, table)
