"""What tests and CI are installed from: each pinned version has its hashes, and nothing else is in the lock file."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[3]


def pins(text: str) -> dict[str, str]:
    """Name -> version."""
    return {canonicalize_name(name): version for name, version in re.findall(r"^([\w.-]+)==(\S+)", text, re.MULTILINE)}


def test_the_lock_has_the_versions_of_the_constraints_and_no_others() -> None:
    constraints = (ROOT / "constraints.txt").read_text()
    lock = (ROOT / "requirements.lock").read_text()
    assert len(pins(constraints)) > 100
    assert pins(lock) == pins(constraints), "run `make lock`"


def test_each_entry_of_the_lock_has_a_hash() -> None:
    entries = re.split(r"^(?=\w)", (ROOT / "requirements.lock").read_text(), flags=re.MULTILINE)[1:]
    assert len(entries) > 100
    assert [entry for entry in entries if not re.search(r"--hash=sha256:[0-9a-f]{64}$", entry, re.MULTILINE)] == []


def test_all_that_the_project_asks_for_is_locked_in_a_version_that_fits() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    locked = pins((ROOT / "requirements.lock").read_text())
    lines = [*project["build-system"]["requires"], *project["project"]["dependencies"]]
    extras = project["project"]["optional-dependencies"]
    # The pyspark of iceberg-spark goes with no other extra; its test installs it (tests/interop/spark_for_iceberg.py).
    lines += [
        line for name, extra in extras.items() for line in extra if (name, line[:7]) != ("iceberg-spark", "pyspark")
    ]
    asked = [Requirement(line) for line in lines]
    assert [one for one in asked if locked.get(canonicalize_name(one.name), "0") not in one.specifier] == []
