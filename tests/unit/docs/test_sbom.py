"""The list of what an installation consists of: each component with its licence, and what needs what from the package on."""

from __future__ import annotations

import json
import sys
from email.message import Message
from importlib import util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]


def tool() -> ModuleType:
    spec = util.spec_from_file_location("sbom", ROOT / "tools/sbom.py")
    assert spec is not None and spec.loader is not None
    module = util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


SBOM = tool()


def metadata_of(**fields: str | list[str]) -> Message:
    made = Message()
    for name, values in fields.items():
        for value in [values] if isinstance(values, str) else values:
            made[name.replace("_", "-")] = value
    return made


BSD, MIT = "License :: OSI Approved :: BSD License", "License :: OSI Approved :: MIT License"


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"License_Expression": "MIT"}, [{"license": {"id": "MIT"}}]),
        ({"License_Expression": "MIT OR Apache-2.0"}, [{"expression": "MIT OR Apache-2.0"}]),
        ({"License_Expression": "MIT", "Classifier": [BSD]}, [{"license": {"id": "MIT"}}]),
        ({"License": "MPL-2.0 AND MIT", "Classifier": [MIT]}, [{"expression": "MPL-2.0 AND MIT"}]),
        ({"License": "mit"}, [{"license": {"id": "MIT"}}]),
        ({"License": "A licence of three clauses"}, [{"license": {"name": "A licence of three clauses"}}]),
        (
            {"License": "Dual", "Classifier": ["Framework :: Pytest", BSD, MIT]},
            [{"license": {"name": each}} for each in ("Dual", "BSD License", "MIT License")],
        ),
        ({"License": "MIT License", "Classifier": [MIT]}, [{"license": {"name": "MIT License"}}]),
        ({"License": "Redistribution and use\nare permitted", "Classifier": [BSD]}, [{"license": {"name": "BSD License"}}]),
        ({"License": "Permission is hereby granted " * 9, "Classifier": [BSD]}, [{"license": {"name": "BSD License"}}]),
        ({"License": "UNKNOWN", "Classifier": []}, []),
        ({}, []),
    ],
)  # fmt: skip
def test_a_licence_is_an_expression_alone_or_ids_and_names(
    fields: dict[str, str | list[str]], found: list[dict[str, Any]]
) -> None:
    assert SBOM.licences(metadata_of(**fields)) == found


def test_a_component_without_a_licence_is_named() -> None:
    made = {"components": [{"name": "one", "licenses": [{"license": {"id": "MIT"}}]}, {"name": "two"}]}
    assert SBOM.without_licence(made) == ["two"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    file = tmp_path_factory.mktemp("sbom") / "sbom.json"
    assert SBOM.main(file) == 0
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def test_each_component_has_its_licence_and_says_what_it_is(made: dict[str, Any]) -> None:
    assert len(made["components"]) > 50
    assert SBOM.without_licence(made) == []
    assert [each["name"] for each in made["components"] if "requirements line" in each["description"]] == []


def test_the_package_needs_what_it_asks_for_and_everything_is_needed_by_something(made: dict[str, Any]) -> None:
    names = {component["bom-ref"]: component["name"] for component in made["components"]}
    root = made["metadata"]["component"]["bom-ref"]
    graph = {each["ref"]: each["dependsOn"] for each in made["dependencies"]}
    assert graph.keys() == {root, *names}
    asked = {names[ref] for ref in graph[root]}
    assert {"click", "pyarrow", "structlog", "pyspark", "pyiceberg", "duckdb", "sentry-sdk"} <= asked
    assert not asked & {"py4j", "pytest", "mkdocs"}, "what comes by others, and what only the checkout needs"
    assert "py4j" in {names[ref] for ref in graph[next(ref for ref, name in names.items() if name == "pyspark")]}
    reached, waiting = set[str](), [root]
    while waiting:
        ref = waiting.pop()
        if ref not in reached:
            reached.add(ref)
            waiting += graph[ref]
    assert reached == graph.keys()
