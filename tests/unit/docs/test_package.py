"""The package as installed is the checkout's, whole: on the built wheel this stands for the tests that do not run there."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import rocketcrew

ROOT = Path(__file__).resolve().parents[3]
PLACE = Path(rocketcrew.__file__).parent.parent
PACKAGES = ("rocketcrew", "pyspark_rocketmq", "pytest_rocketcrew")
LEFT_BY_RUNS = ("__pycache__", ".ipynb_checkpoints", ".rocketcrew")
NOT_INSTALLED = ("rocketcrew/examples/README.md", "rocketcrew/examples/crew.ipynb")
"""For those who read: the sdist has them, and no code asks for them."""


def files_below(place: Path) -> dict[str, bytes]:
    """Of the packages, by their names there; rooms may be links."""
    folders = [found for name in PACKAGES for found in (place / name, *(place / name).iterdir()) if found.is_dir()]
    return {
        str(folder.relative_to(place) / file.relative_to(folder)): file.read_bytes()
        for folder in folders
        if folder.name not in LEFT_BY_RUNS
        for file in folder.rglob("*")
        if file.is_file() and not set(LEFT_BY_RUNS) & set(file.relative_to(folder).parts)
    }


def modules() -> list[str]:
    """All, as the checkout names them; `__main__` is what the tests of the command run."""
    files = (name for name in files_below(ROOT / "src") if name.endswith(".py"))
    names = {name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in files}
    return sorted(name for name in names if not name.endswith("__main__"))


def differences(ours: dict[str, bytes], installed: dict[str, bytes]) -> list[str]:
    """Files that one of them lacks or has with other bytes, whatever their names end with."""
    names = sorted({*ours, *installed} - {*NOT_INSTALLED})
    return [name for name in names if ours.get(name) != installed.get(name)]


@pytest.mark.parametrize("name", ["rocketcrew/a.py", "rocketcrew/a.json", "rocketcrew/cli/a.txt", "rocketcrew/a"])
def test_a_file_that_is_more_or_less_or_another_is_found(name: str) -> None:
    both = {"rocketcrew/b.py": b"b", NOT_INSTALLED[0]: b"for readers"}
    one = {**both, name: b"a"}
    assert (differences(one, one), differences(one, both), differences(both, one)) == ([], [name], [name])
    assert differences(one, {**one, name: b""}) == [name]


def test_the_installed_files_are_those_of_the_checkout() -> None:
    """Byte by byte, all of them: none that the checkout does not have, and none that is left out but what nobody asks for."""
    ours = files_below(ROOT / "src")
    assert differences(ours, files_below(PLACE)) == []
    assert [name for name in NOT_INSTALLED if name not in ours] == []
    assert len(ours) > 300


def not_from_here(names: Iterable[str]) -> dict[str, str]:
    """The modules that do not import, or not from where the package is, and why."""
    wrong: dict[str, str] = {}
    for name in names:
        try:
            found = str(importlib.import_module(name).__file__)
        except Exception as error:  # noqa: BLE001  whatever a module raises: all others are still to be told of
            wrong[name] = f"{type(error).__name__}: {error}"
        else:
            if not Path(found).is_relative_to(PLACE):
                wrong[name] = found
    return wrong


def test_a_module_that_is_not_there_or_elsewhere_is_found() -> None:
    wrong = not_from_here(["rocketcrew", "rocketcrew.no_such_module", "importlib"])
    assert wrong == {
        "rocketcrew.no_such_module": "ModuleNotFoundError: No module named 'rocketcrew.no_such_module'",
        "importlib": importlib.__file__,
    }


def test_every_module_imports_from_where_the_package_is() -> None:
    """All in one: a test for each takes as long as all imports."""
    assert not_from_here(modules()) == {}


@pytest.mark.parametrize(("group", "name"), [("console_scripts", "rocketcrew"), ("pytest11", "rocketcrew")])
def test_entry_points_lead_into_the_package(group: str, name: str) -> None:
    (entry,) = {(found.module, found.attr) for found in entry_points(group=group, name=name)}
    module = importlib.import_module(entry[0])
    assert Path(str(module.__file__)).is_relative_to(PLACE)
    assert not entry[1] or callable(getattr(module, entry[1]))
