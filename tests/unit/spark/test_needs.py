"""What a format needs to have installed: said at the start, with what to install and what works without."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from rocketcrew.cli.commands.query import BY_DUCKDB
from rocketcrew.remoting.errors import UsageError
from rocketcrew.spark.needs import check_installed, check_pyspark, delta_package, installed_version

ALL = {"pyspark": "4.2.0", "deltalake": "1.6.6"}


def check(format_: str, there: Mapping[str, str], jars: str = "") -> None:
    check_installed(format_, jars, installed=lambda package: there.get(package, ""))


@pytest.mark.parametrize("format_", ["parquet", "pyarrow", "delta", "deltalake", "foreach", "orc"])
def test_with_everything_there_every_format_works(format_: str) -> None:
    check(format_, ALL)


@pytest.mark.parametrize(
    ("format_", "there", "said"),
    [
        ("parquet", {}, ["pyspark is not installed", "rocketcrew[spark]", "spark.format = pyarrow"]),
        ("foreach", {}, ["pyspark is not installed", "rocketcrew[spark]"]),
        ("orc", {}, ["rocketcrew[spark]"]),
        ("pyarow", {}, ["spark.format = pyarow: did you mean pyarrow?"]),
        ("deltalake", {}, ["rocketcrew[delta]"]),
        ("delta", {"pyspark": "4.2.0"}, ["rocketcrew[delta]"]),
        ("delta", {"deltalake": "1.6.6"}, ["rocketcrew[delta-spark]", "spark.format = deltalake"]),
        ("delta", {**ALL, "pyspark": "4.3.0"}, ["Spark 4.3.0", "rocketcrew[delta-spark]", "spark.delta_jars"]),
    ],
)
def test_what_is_missing_is_said_with_the_ways_out(format_: str, there: Mapping[str, str], said: list[str]) -> None:
    with pytest.raises(UsageError) as refused:
        check(format_, there)
    for words in said:
        assert words in str(refused.value)


def test_what_needs_nothing_asks_for_nothing() -> None:
    check("pyarrow", {})
    check("deltalake", {"deltalake": "1.6.6"})
    check("delta", {**ALL, "pyspark": "4.3.0"}, jars="/jars")
    check_installed("delta", master="sc://host:15002", installed={**ALL, "pyspark": "4.3.0"}.__getitem__)


def test_a_command_says_what_does_the_same_without_spark() -> None:
    with pytest.raises(UsageError, match=r"replay needs Spark.*rocketcrew\[spark\]'$"):
        check_pyspark("replay", lambda _: "")
    with pytest.raises(UsageError, match=r"query needs Spark.*rocketcrew\[spark\]'; or .*rocketcrew\[duckdb\]"):
        check_pyspark("query", lambda _: "", instead=BY_DUCKDB)
    check_pyspark("query", ALL.__getitem__)


def test_versions_are_those_of_this_python() -> None:
    assert installed_version("deltalake")
    assert installed_version("no_such_package_anywhere") == ""
    assert delta_package("4.2.1").startswith("io.delta:delta-spark_4.2_")
