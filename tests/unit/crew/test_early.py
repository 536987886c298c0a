"""What a script says of the rows' columns is looked at before anything is started, as `rocketcrew run` does."""

from __future__ import annotations

import pytest

from rocketcrew import Crew
from rocketcrew.remoting.errors import UsageError
from rocketcrew.supervisor.consume import settings_from, spec_of

NAMED = "json:dumps"
ARGUMENTS = {"topics": "orders", "group": "g", "name_servers": "127.0.0.1:1"}


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"results.schema": "n bigintx"}, 'results.schema: unknown type "bigintx"'),
        ({"results.schema": "n bigint", "spark.partition_by": ["day"]}, "spark.partition_by names 'day'"),
    ],
)
def test_columns_that_cannot_be_are_refused_with_the_handler(columns: dict[str, object], said: str) -> None:
    settings = settings_from("consume", ARGUMENTS, columns, None)
    with pytest.raises(UsageError, match=said):
        spec_of(NAMED, settings)
    kept_nowhere = settings_from("consume", ARGUMENTS, columns | {"results.enabled": False}, None)
    assert spec_of(NAMED, kept_nowhere).name == NAMED


def test_a_crew_is_not_made_with_them() -> None:
    columns = {"results.schema": "n bigint", "spark.partition_by": ["day"]}
    with pytest.raises(UsageError, match=r"spark\.partition_by names 'day'"):
        Crew(NAMED, topics="orders", group="g", name_servers="127.0.0.1:1", settings=columns)
