"""The extras of the package: what pip would choose of each is what the code runs on, alone and together."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from rocketcrew.spark.needs import DELTA_BUILDS

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, dict[str, Requirement]] = {
    extra: {Requirement(line).name: Requirement(line) for line in lines}
    for extra, lines in PROJECT["optional-dependencies"].items()
}
SPARKS = ("4.0.3", "4.1.4", "4.2.0", "4.2.7", "4.3.0", "4.4.0", "5.0.0")


def allowed(extra: str, package: str, versions: tuple[str, ...]) -> set[str]:
    wanted = EXTRAS[extra].get(package)
    return {version for version in versions if wanted is None or Version(version) in wanted.specifier}


def test_delta_by_spark_has_a_pyspark_that_delta_is_built_for_and_no_other() -> None:
    found = allowed("delta-spark", "pyspark", SPARKS)
    assert found
    assert {".".join(version.split(".")[:2]) for version in found} == set(DELTA_BUILDS)


@pytest.mark.parametrize("extra", ["spark", "connect"])
def test_sparks_that_are_supported_and_none_beside_them(extra: str) -> None:
    assert allowed(extra, "pyspark", SPARKS) == {"4.2.0", "4.2.7", "4.3.0"}


def test_delta_without_spark_brings_none() -> None:
    assert EXTRAS["delta"].keys() == {"deltalake"}


def test_all_extras_go_together() -> None:
    """Of each package that several ask for, one version is right for all of them; that of the constraints file is."""
    pinned = dict(
        line.strip().partition("==")[::2]
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line and not line.startswith("#")
    )
    for extra, wanted in EXTRAS.items():
        for name, requirement in wanted.items():
            if name in pinned:
                assert Version(pinned[name].split()[0]) in requirement.specifier, (extra, name)
    assert "pyspark" in pinned


def test_delta_by_spark_is_spark_and_delta() -> None:
    both = EXTRAS["spark"].keys() | EXTRAS["delta"].keys()
    assert EXTRAS["delta-spark"].keys() == both


@pytest.mark.parametrize(
    "file", ["README.md", "conf/defaults.toml", "spark/needs.py", "spark/connect.py", "spark/session.py"]
)
def test_extras_that_are_named_exist(file: str) -> None:
    text = (ROOT / file).read_text()
    named = {name for found in re.findall(r"rocketcrew\[([a-z,-]+)\]", text) for name in found.split(",")}
    assert named <= EXTRAS.keys()
