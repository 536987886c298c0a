"""The extras of the package: what pip would choose of each is what the code runs on, alone and together."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from rocketcrew.spark.needs import DELTA_BUILDS, ICEBERG_BUILDS

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


def test_iceberg_by_spark_has_the_newest_pyspark_that_iceberg_is_built_for() -> None:
    found = allowed("iceberg-spark", "pyspark", SPARKS)
    assert {".".join(version.split(".")[:2]) for version in found} == {max(ICEBERG_BUILDS)}
    assert EXTRAS["iceberg-spark"].keys() == EXTRAS["spark"].keys() | EXTRAS["iceberg"].keys()


def wheel(folder: Path, name: str, version: str, *metadata: str) -> None:
    """An empty wheel of that name."""
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as made:
        lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *metadata]
        made.writestr(f"{info}/METADATA", "\n".join(lines) + "\n")
        made.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        made.writestr(f"{info}/RECORD", "")


@pytest.mark.parametrize(
    ("extras", "installed"),
    [("delta-spark", "pyspark-4.2.7"), ("iceberg-spark", "pyspark-4.1.4"), ("delta-spark,iceberg-spark", "")],
)
def test_pip_refuses_delta_by_spark_beside_iceberg_by_spark(tmp_path: Path, extras: str, installed: str) -> None:
    """pip itself chooses, among empty wheels; of what the extras ask for only pyspark is there to choose."""
    for version in SPARKS:
        wheel(tmp_path, "pyspark", version)
    names = [name for name, wanted in EXTRAS.items() if "pyspark" in wanted and name != "dev"]
    needs = [f'Requires-Dist: {EXTRAS[name]["pyspark"]}; extra == "{name}"' for name in names]
    wheel(tmp_path, "rocketcrew", "0", *(f"Provides-Extra: {name}" for name in names), *needs)
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--no-index", "--find-links"]
    ran = subprocess.run(
        [*command, str(tmp_path), f"rocketcrew[{extras}]"], capture_output=True, text=True, check=False, timeout=120
    )
    if installed:
        assert f"Would install {installed} rocketcrew" in ran.stdout, ran.stderr
    else:
        assert ran.returncode != 0
        assert "conflicting dependencies" in ran.stderr


def test_delta_without_spark_brings_none() -> None:
    assert EXTRAS["delta"].keys() == {"deltalake"}


def test_all_extras_but_iceberg_by_spark_go_together() -> None:
    """Of each package that several ask for, one version is right for all of them; that of the constraints file is."""
    pinned = dict(
        line.strip().partition("==")[::2]
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line and not line.startswith("#")
    )
    for extra, wanted in EXTRAS.items():
        for name, requirement in wanted.items():
            if name in pinned and (extra, name) != ("iceberg-spark", "pyspark"):
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
