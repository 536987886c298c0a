"""The page of figures says what its file of figures holds, and each command that it names can be run."""

from __future__ import annotations

import json
import re
import shlex
import sys
from importlib import util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]


def proof() -> ModuleType:
    spec = util.spec_from_file_location("proof", ROOT / "tools/proof.py")
    assert spec is not None and spec.loader is not None
    module = util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


PROOF = proof()
FIGURES = json.loads((ROOT / "docs/proof.json").read_text())
KEPT = [run["command"] for entry in FIGURES["sections"].values() for run in entry["runs"]]


def unknown_words(command: str) -> list[str]:
    """Files, tests and options of a command that do not exist."""
    first, *words = shlex.split(command)
    assert first == "python"
    if words[:2] == ["-Im", "pytest"]:
        readers = [*(ROOT / "tests").rglob("conftest.py")]
        own = {
            "-q",
            "-s",
            "-n",
            "2",
            "--timeout=0",
            "--timeout=3600",
        }  # pytest's own, and those of the plug-ins of [dev]
        words = [word for word in words[2:] if word not in own]
    else:
        readers = [ROOT / words[0]]
    known = "".join(reader.read_text() for reader in readers if reader.exists())
    return [word for word in words if not exists(word, known)]


def exists(word: str, readers: str) -> bool:
    if word.startswith("-"):
        return f'"{word.partition("=")[0]}"' in readers
    file, _, name = word.partition("::")
    path = ROOT / file
    return path.is_file() and (not name or f"\ndef {name}(" in path.read_text())


def test_the_page_is_what_the_figures_say() -> None:
    assert (ROOT / "docs/proof.md").read_text() == PROOF.render(FIGURES), "run `tools/proof.py --render`"


@pytest.mark.parametrize("command", sorted({*PROOF.commands(PROOF.default_sizes()), *KEPT}))
def test_each_command_can_be_run(command: str) -> None:
    assert unknown_words(command) == []


def test_what_does_not_exist_is_found() -> None:
    assert unknown_words("python bench/kills.py --kills=1") == []
    assert unknown_words("python bench/kills.py --deaths=1") == ["--deaths=1"]
    assert unknown_words("python bench/" + "gone.py") == ["bench/" + "gone.py"]
    assert unknown_words("python -Im pytest -q tests/system/test_chaos.py::" + "test_gone") == [
        "tests/system/test_chaos.py::" + "test_gone"
    ]


def test_each_result_says_when_and_where_it_was_measured() -> None:
    assert list(FIGURES["sections"]) == [key for key in PROOF.SECTIONS if key in FIGURES["sections"]]
    for entry in FIGURES["sections"].values():
        assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC", entry["date"])
        assert re.fullmatch(r"[0-9a-f]{10}\+?", entry["commit"])
        assert set(entry["machine"]) == {"cores", "cpu", "memory_gib", "python", "system", "calibration_ms"}
        assert len(entry["load"]) == 2
        assert all(run["results"] for run in entry["runs"])


def test_a_failure_is_on_the_page() -> None:
    run = {"what": "kills", "command": "python bench/kills.py", "good": False, "seconds": 1}
    machine = {"cores": 2, "cpu": "c", "memory_gib": 1, "python": "3", "system": "s", "calibration_ms": 1.0}
    failed = {
        "date": "2026-01-01 00:00 UTC",
        "commit": "0123456789+",
        "machine": machine,
        "load": [1.0, 1.0],
        "runs": [{**run, "results": ["BAD: 1 lost | 2 twice"]}],
    }
    page = PROOF.render({"sections": {"kills": failed}})
    assert "**FAILED**: BAD: 1 lost \\| 2 twice" in page
    assert page.count("not measured yet") == len(PROOF.SECTIONS) - 1


def test_the_rows_of_a_benchmark_are_said_with_its_own_names() -> None:
    """A column that a benchmark has renamed is found here, and not after minutes of measuring."""
    benches = {
        run.command.split()[1]: run.rows for section in PROOF.SECTIONS.values() for run in section.runs if run.rows
    }
    for file, rows in benches.items():
        text = (ROOT / file).read_text()
        for name, form in rows.items():
            assert f'report("{name}"' in text
            for column in re.findall(r"\{(\w+)", form):
                assert f'"{column}"' in text, (file, column)


def entry(*results: str, command: str = f"{PROOF.PYTEST} tests/unit") -> dict[str, object]:
    run = {"what": "x", "command": command, "results": list(results), "good": PROOF.shows(command, results)}
    stamp = {"date": "now", "commit": "c", "machine": dict.fromkeys(("cores", "cpu", "memory_gib", "python", "system", "calibration_ms"), 1)}  # fmt: skip # noqa: E501
    return {**stamp, "load": [1, 1], "runs": [{**run, "seconds": 1}]}


def verdict(section: str, found: dict[str, object]) -> str:
    (row,) = [line for line in PROOF.render({"sections": {section: found}}).splitlines() if f"](#{section})" in line]
    return str(row.split("|")[2].strip())


def test_what_did_not_run_or_left_processes_behind_does_not_hold() -> None:
    assert verdict("simulation", entry("3 passed in 1 s")) == "holds"
    assert verdict("simulation", entry("1 skipped in 1 s")) == "**FAILED**"
    assert verdict("simulation", entry()) == "**FAILED**"
    assert verdict("kills", entry("BAD: 1 lost", command="python bench/kills.py")) == "**FAILED**"
    assert verdict("simulation", PROOF.blamed(entry("3 passed in 1 s"))) == "**FAILED**"


def test_a_ratio_is_measured_and_does_not_hold_or_fail() -> None:
    assert verdict("java", entry("ratio 0.10", command="python bench/java.py")) == "measured"
