"""In which form a table can be read."""

from __future__ import annotations

import pytest

from rocketcrew.crew.reading import check_form
from rocketcrew.remoting.errors import UsageError


@pytest.mark.parametrize(
    ("form", "latest", "spark", "pandas", "said"),
    [
        ("csv", False, False, True, "none of arrow, dataset, pandas, spark"),
        ("spark", False, False, True, "needs a session"),
        ("pandas", False, True, True, "read without Spark"),
        ("dataset", True, False, True, "has every row"),
        ("pandas", True, False, False, "pip install pandas"),
    ],
)
def test_a_form_that_cannot_be_had_is_refused(form: str, latest: bool, spark: bool, pandas: bool, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        check_form(form, latest=latest, spark=spark, pandas=pandas)


@pytest.mark.parametrize("form", ["arrow", "dataset"])
def test_without_pandas_and_spark_there_are_arrow_s_forms(form: str) -> None:
    check_form(form, latest=False, spark=False, pandas=False)
    check_form("arrow", latest=True, spark=True, pandas=False)
