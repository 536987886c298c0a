"""Which code travels to executors."""

from __future__ import annotations

import json
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

from rocketcrew.engine.shipping import files_below, make_zip, root_of, ship
from rocketcrew.remoting.errors import UsageError


def module(name: str, file: Path | None) -> ModuleType:
    made = ModuleType(name)
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        made.__file__ = str(file)
    return made


def test_the_folder_that_a_module_was_found_in(tmp_path: Path) -> None:
    assert root_of(module("one", tmp_path / "one.py")) == tmp_path
    assert root_of(module("pkg.sub.mod", tmp_path / "pkg/sub/mod.py")) == tmp_path
    assert root_of(module("pkg", tmp_path / "pkg/__init__.py")) == tmp_path
    assert root_of(module("built_in", None)) is None
    assert root_of(module("lib", tmp_path / "x/site-packages/lib.py")) is None
    assert root_of(sys.modules["json"]) is None


def test_what_was_imported_from_that_folder_travels_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "app/pkg").mkdir(parents=True)
    (tmp_path / "app/pkg/__init__.py").touch()
    modules = [
        module("handlers", tmp_path / "app/handlers.py"), module("pkg.mod", tmp_path / "app/pkg/mod.py"),
        module("elsewhere", tmp_path / "elsewhere.py"), module("__main__", tmp_path / "app/script.py"), json,
        module("lib", tmp_path / "app/.venv/lib/site-packages/lib.py"), module("fast", tmp_path / "app/fast.so"),
    ]  # fmt: skip
    files = files_below(tmp_path / "app", modules)
    assert sorted(files) == ["handlers.py", "pkg/__init__.py", "pkg/mod.py"]
    made = make_zip(files, tmp_path / "ship")
    assert made is not None
    assert sorted(zipfile.ZipFile(made).namelist()) == sorted(files)
    content = made.read_bytes()
    made.write_bytes(b"of somebody else")
    made.with_suffix(".new").write_bytes(b"of a start that was killed")
    assert make_zip(files, tmp_path / "ship") == made
    assert made.read_bytes() == content, "what lay there under the name is not sent"
    (tmp_path / "app/handlers.py").write_text("x = 1")
    assert make_zip(files, tmp_path / "ship") != made
    assert make_zip({}, tmp_path / "ship") is None


def test_py_files_are_sent_and_must_be_there(tmp_path: Path) -> None:
    class Context:
        def __init__(self) -> None:
            self.sent: list[str] = []

        def addPyFile(self, file: str) -> None:  # noqa: N802 - Spark's name
            self.sent.append(file)

    extra = tmp_path / "more.zip"
    extra.touch()
    context = Context()
    assert ship(context, None, [str(extra), "hdfs://h/x.zip"], tmp_path) == [str(extra), "hdfs://h/x.zip"]
    assert context.sent == [str(extra), "hdfs://h/x.zip"]
    with pytest.raises(UsageError, match=r"missing\.zip does not exist"):
        ship(context, None, [str(tmp_path / "missing.zip")], tmp_path)
