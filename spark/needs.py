"""What a format needs to have installed, asked at the start: before a message is pulled, not when the first batch is due."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Final

from ..conf.segment_format import FOLDER_FORMATS
from ..conf.settings import SparkSettings
from ..remoting.arguments import close_names
from ..remoting.errors import UsageError

DELTA_BUILDS: Final[Mapping[str, str]] = {"4.2": "io.delta:delta-spark_4.2_2.13:4.4.0"}
"""Delta's newest jar by the version of pyspark that it is built for. There is none for 4.3."""
ICEBERG_BUILDS: Final[Mapping[str, str]] = {
    f"4.{minor}": f"org.apache.iceberg:iceberg-spark-runtime-4.{minor}_2.13:1.11.0" for minor in (0, 1)
}
"""Iceberg's newest jar by the version of pyspark that it is built for. There is none for 4.2 and 4.3."""
SQLITE_DRIVER: Final = "org.xerial:sqlite-jdbc:3.53.4.0"
"""For the catalog that is a file beside the table."""
_WITHOUT_SPARK: Final[Mapping[str, str]] = {"delta": "deltalake", "parquet": "pyarrow", "iceberg-spark": "iceberg"}
"""Formats that make the same table without Spark and Java."""


def check_installed(
    format_: str, delta_jars: str = "", master: str = "", installed: Callable[[str], str] | None = None,
    iceberg_jars: str = "",
) -> None:  # fmt: skip
    """Raise UsageError, with what to install or to set, unless `format_` can be written here.

    `installed` gives a package's version, or "" where there is none; by default that of this Python.
    """
    installed = installed or installed_version
    if format_ in ("delta", "deltalake") and not installed("deltalake"):
        raise UsageError(f"spark.format = {format_} needs the deltalake package: pip install 'rocketcrew[delta]'")
    if format_ in ("iceberg", "iceberg-spark") and not installed("pyiceberg"):
        raise UsageError(f"spark.format = {format_} needs the pyiceberg package: pip install 'rocketcrew[{format_}]'")
    if not needs_spark(format_):
        return
    extra = {"delta": "delta-spark", "iceberg-spark": "iceberg-spark"}.get(format_, "spark")
    if not installed("pyspark"):
        other = _WITHOUT_SPARK.get(format_)
        instead = f"; or set spark.format = {other}: the same table, without Spark and Java" if other else ""
        meant = "" if format_ in FOLDER_FORMATS else close_names(format_, FOLDER_FORMATS)
        whose = f"{meant} Any other name is Spark's" if meant else " is written by Spark"
        raise UsageError(f"spark.format = {format_}{whose}, and pyspark is not installed here: pip install"
                         f" 'rocketcrew[{extra}]'{instead}")  # fmt: skip
    if format_ == "delta" and not delta_jars and not master.startswith("sc://"):  # such a server has jars of its own
        delta_package(installed("pyspark"))
    if format_ == "iceberg-spark" and not iceberg_jars:
        iceberg_packages(installed("pyspark"))


def check_writer(spark: SparkSettings) -> None:
    """`check_installed` for what the settings say."""
    check_installed(spark.format, spark.delta_jars, spark.master, iceberg_jars=spark.iceberg_jars)


def needs_spark(format_: str) -> bool:
    """Whether Spark, and so Java, writes that format."""
    return format_ not in _WITHOUT_SPARK.values()


def check_pyspark(what: str, installed: Callable[[str], str] | None = None, *, instead: str = "") -> None:
    """Raise UsageError when there is no pyspark for `what`, a command; `instead` says what does the same without Spark."""
    if not (installed or installed_version)("pyspark"):
        other = f"; or {instead}" if instead else ""
        raise UsageError(
            f"{what} needs Spark, and pyspark is not installed here: pip install 'rocketcrew[spark]'{other}"
        )


def delta_package(pyspark: str) -> str:
    """The coordinate of Delta's jar for that version of pyspark. Raises UsageError when there is none."""
    return _build_for(pyspark, "Delta", DELTA_BUILDS, "delta-spark", "delta", "spark.delta_jars")


def iceberg_packages(pyspark: str) -> str:
    """The coordinates of Iceberg's jar for that version of pyspark, and of SQLite's driver. Raises UsageError."""
    build = _build_for(pyspark, "Iceberg", ICEBERG_BUILDS, "iceberg-spark", "iceberg-spark", "spark.iceberg_jars")
    return f"{build},{SQLITE_DRIVER}"


def _build_for(pyspark: str, library: str, builds: Mapping[str, str], extra: str, format_: str, setting: str) -> str:
    build = builds.get(".".join(pyspark.split(".")[:2]))
    if build is None:
        raise UsageError(
            f"{library} has no build for Spark {pyspark}, but for {', '.join(builds)}: pip install 'rocketcrew[{extra}]'; or"
            f" set spark.format = {_WITHOUT_SPARK[format_]}, the same table without Spark; or name jars that fit in {setting}"
        )
    return build


def installed_version(package: str) -> str:
    """The version of an installed package; "?" for one that can be imported and does not say; "" when there is none."""
    if find_spec(package) is None:
        return ""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return "?"
