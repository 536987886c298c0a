"""The package as installed is the checkout's, whole: on the built wheel this stands for the tests that do not run there."""

from __future__ import annotations

import importlib
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import rocketcrew

ROOT = Path(__file__).resolve().parents[3]
PLACE = Path(rocketcrew.__file__).parent.parent
PACKAGES = ("rocketcrew", "pyspark_rocketmq", "pytest_rocketcrew")
LEFT_BY_PYTHON = ("__pycache__", ".ipynb_checkpoints")
DATA = (".py", ".toml", ".properties", ".sh", ".html", ".typed")
"""What [tool.setuptools.package-data] names, and code."""


def files_below(place: Path) -> dict[str, bytes]:
    """Of the packages, by their names there; rooms may be links."""
    folders = [found for name in PACKAGES for found in (place / name, *(place / name).iterdir()) if found.is_dir()]
    return {
        str(folder.relative_to(place) / file.relative_to(folder)): file.read_bytes()
        for folder in folders
        if folder.name not in LEFT_BY_PYTHON
        for file in folder.rglob("*")
        if file.is_file() and not set(LEFT_BY_PYTHON) & set(file.relative_to(folder).parts)
    }


def modules() -> list[str]:
    """All, as the checkout names them; `__main__` is what the tests of the command run."""
    files = (name for name in files_below(ROOT / "src") if name.endswith(".py"))
    names = {name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in files}
    return sorted(name for name in names if not name.endswith("__main__"))


def test_the_installed_files_are_those_of_the_checkout() -> None:
    """Byte by byte, with the files that code reads; and none that the checkout does not have."""
    ours = {name: text for name, text in files_below(ROOT / "src").items() if name.endswith(DATA)}
    installed = files_below(PLACE)
    assert [name for name in ours if name not in installed] == []
    assert [name for name in installed if name.endswith(DATA) and installed[name] != ours.get(name)] == []
    assert len(ours) > 300


@pytest.mark.parametrize("name", modules())
def test_every_module_imports_from_where_the_package_is(name: str) -> None:
    found = importlib.import_module(name).__file__
    assert found is not None
    assert Path(found).is_relative_to(PLACE)


@pytest.mark.parametrize(("group", "name"), [("console_scripts", "rocketcrew"), ("pytest11", "rocketcrew")])
def test_entry_points_lead_into_the_package(group: str, name: str) -> None:
    (entry,) = {(found.module, found.attr) for found in entry_points(group=group, name=name)}
    module = importlib.import_module(entry[0])
    assert Path(str(module.__file__)).is_relative_to(PLACE)
    assert not entry[1] or callable(getattr(module, entry[1]))
