"""Changes of Python files are acted on once, when they have come to rest."""

from __future__ import annotations

import os
from pathlib import Path

from rocketcrew.supervisor.file_watch import Settled, changed, picture


def test_python_files_are_seen_and_others_are_not(tmp_path: Path) -> None:
    for name in ("a.py", "b.txt", "sub/c.py", ".hidden/d.py", "__pycache__/e.py", "sub/site-packages/f.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    first = picture(tmp_path)
    assert [os.path.relpath(path, tmp_path) for path in sorted(first)] == ["a.py", "sub/c.py"]
    (tmp_path / "a.py").write_text("changed")
    (tmp_path / "sub/c.py").unlink()
    (tmp_path / "new.py").write_text("")
    names = [os.path.relpath(path, tmp_path) for path in changed(first, picture(tmp_path))]
    assert names == ["a.py", "new.py", "sub/c.py"]


def test_a_series_of_changes_is_acted_on_once_it_rests() -> None:
    settled = Settled({"a": (1, 1)})
    assert settled.look({"a": (1, 1)}) == []
    assert settled.look({"a": (2, 1)}) == []
    assert settled.look({"a": (2, 1), "b": (3, 1)}) == []
    assert settled.look({"a": (2, 1), "b": (3, 1)}) == ["a", "b"]
    assert settled.look({"a": (2, 1), "b": (3, 1)}) == []
    assert settled.look({"b": (3, 1)}) == []
    assert settled.look({"b": (3, 1)}) == ["a"]


def test_what_is_undone_at_once_is_no_change() -> None:
    settled = Settled({"a": (1, 1)})
    assert settled.look({}) == []
    assert settled.look({"a": (1, 1)}) == []
    assert settled.look({"a": (1, 1)}) == []
