"""The house rules that a machine can keep. Each failure says what to do.

Read off the files themselves, with `ast` where a rule is about code: comments and docstrings may say what they like.
"""

from __future__ import annotations

import ast
import functools
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src/rocketcrew"

FLOORS = {
    "remoting": 1,
    "conf": 2,
    "client": 2,
    "broker": 3,
    "workers": 3,
    "spark": 3,
    "source": 3,
    "supervisor": 4,
    "engine": 5,
    "cli": 6,
}
"""Imports go down only; rooms of one floor do not know each other."""

OTHER_CODE = ("examples", "bench", "tools")
FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 700
TEST_FILE_LINES_MAX = 600
"""A test file is a list that is read entry by entry; a module is read whole."""

EDGES: dict[str, frozenset[str]] = {
    "remoting": frozenset(),
    "broker": frozenset({"disk", "edge", "server"}),
    "source": frozenset(
        {
            "access_options",
            "batch_reader",
            "connections",
            "default_source",
            "looking",
            "pulling",
            "searching",
            "stream_reader",
            "writers",
        }
    ),
    "supervisor": frozenset(
        {
            "access",
            "acting",
            "backlog",
            "broker_assignment",
            "charges_file",
            "commits",
            "client_lock",
            "left_locks",
            "consume",
            "control",
            "direct",
            "file_watch",
            "hearing",
            "group_watch",
            "heartbeats",
            "journal_file",
            "launching",
            "leftovers",
            "loader_child",
            "local_offsets",
            "look_ups",
            "member",
            "offset_store",
            "metrics",
            "operating",
            "pool",
            "pool_member",
            "pops",
            "ordered_feed",
            "post_mortem",
            "pulls",
            "queue_locks",
            "requests",
            "outcome_files",
            "route_keeper",
            "send_back",
            "service",
            "slot",
            "stacks",
            "taking_back",
            "user_strategy",
            "watching",
            "wiring",
        }
    ),
}
"""Rooms that decide in pure code, and the modules in them that act. Every other module there is pure, new ones too."""

PURE_MODULES: dict[str, frozenset[str]] = {
    "conf": frozenset({"formats", "rules", "schema"}),
    "client": frozenset(
        {"access", "address", "faults", "outgoing", "request_rules", "routes", "selection", "send_result", "validation"}
    ),
    "workers": frozenset({"api", "ddl", "message", "packets", "ranges", "rows"}),
    "engine": frozenset({"fitting", "options", "spec", "window"}),
    "spark": frozenset(
        {"columns", "costs", "epochs", "errors", "intervals", "outcomes", "plan", "reconciling", "reports"}
    ),
}
"""Pure modules of rooms that mostly act."""

IMPURE = frozenset(
    {
        "asyncio", "concurrent", "ctypes", "fcntl", "mmap", "multiprocess", "os", "queue", "random", "secrets", "select",
        "selectors", "shutil", "signal", "socket", "subprocess", "tempfile", "threading", "time",
    }
)  # fmt: skip
"""What a pure module imports nothing of: it gets the clock, the bytes and the dice handed in."""

CLOCK_READERS = frozenset({"now", "utcnow", "today"})


def room_files(room: str) -> list[Path]:
    return sorted((ROOT / room).glob("*.py"))


def all_files() -> list[Path]:
    """Every Python file of the project, by its real path."""
    folders = [*FLOORS, *OTHER_CODE, "tests"]
    found = [file for folder in folders for file in (ROOT / folder).rglob("*.py") if "__pycache__" not in file.parts]
    return sorted([*found, *PACKAGE.glob("*.py")])


@functools.cache
def tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"), filename=str(file))


def name_of(file: Path) -> str:
    return str(file.relative_to(ROOT))


def imports_of(file: Path) -> Iterator[tuple[int, int, str, str]]:
    """Line, level (number of dots), module and imported name of every import of a file, also inside functions."""
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, 0, alias.name, ""
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield node.lineno, node.level, node.module or "", alias.name


# Rooms.


def test_every_room_is_linked_into_the_package() -> None:
    for room in FLOORS:
        link = PACKAGE / room
        remedy = (
            f"src/rocketcrew/{room} is not a symbolic link to ../../{room}. If git made a small text file of it: "
            "`git config core.symlinks true`, then `git checkout -- src/rocketcrew`"
        )
        assert link.is_symlink(), remedy
        assert Path(os.readlink(link)) == Path("../..") / room, remedy
        assert (ROOT / room / "__init__.py").is_file(), f"{room}/ is no package"


def test_rooms_are_flat_and_have_a_floor() -> None:
    for entry in PACKAGE.iterdir():
        if entry.is_dir() and (entry / "__init__.py").exists() and entry.name not in OTHER_CODE:
            assert entry.name in FLOORS, f"src/rocketcrew/{entry.name} is a room without a floor in tests/test_tidy.py"
    for room in FLOORS:
        nested = [child.name for child in (ROOT / room).iterdir() if child.is_dir() and child.name != "__pycache__"]
        assert not nested, f"{room}/ has folders {nested}; rooms are flat, so that `..` always means the next room"


@pytest.mark.parametrize("room", FLOORS)
def test_imports_go_down_only(room: str) -> None:
    wrong: list[str] = []
    for file in room_files(room):
        for line, level, module, name in imports_of(file):
            place = f"{name_of(file)}:{line}"
            first = module.partition(".")[0]
            if level == 0 and first in FLOORS:
                wrong.append(f"{place} imports {module} bare; write `from ..{module} import ...`")
            elif level == 0 and first == "rocketcrew":
                wrong.append(f"{place} imports {module} absolutely; write `from ..{module[11:]} import ...`")
            elif level == 1 and "." in module:
                wrong.append(f"{place}: rooms are flat")
            elif level == 2 and first not in FLOORS:
                wrong.append(f"{place} imports {name} from the package itself; rooms import rooms")
            elif level == 2 and FLOORS[first] >= FLOORS[room]:
                wrong.append(f"{place}: {room} (floor {FLOORS[room]}) may not import {first} (floor {FLOORS[first]})")
            elif level > 2:
                wrong.append(f"{place}: more than two dots leave the package")
    assert not wrong, "\n".join(wrong)


def test_pyspark_is_imported_in_its_rooms_alone() -> None:
    wrong = [
        f"{name_of(file)}:{line}"
        for room in FLOORS
        if room not in ("spark", "source", "engine")
        for file in room_files(room)
        for line, level, module, _ in imports_of(file)
        if level == 0 and module.partition(".")[0] in ("pyspark", "py4j")
    ]
    assert not wrong, f"only spark/, source/ and engine/ import pyspark: {wrong}"


def pure_files() -> list[Path]:
    found = [file for room, edges in EDGES.items() for file in room_files(room) if file.stem not in edges]
    return found + [ROOT / room / f"{name}.py" for room, names in PURE_MODULES.items() for name in sorted(names)]


@pytest.mark.parametrize("file", pure_files(), ids=name_of)
def test_pure_modules_touch_nothing(file: Path) -> None:
    assert file.is_file(), f"{name_of(file)} is listed in tests/test_tidy.py and is not there"
    wrong: list[str] = []
    for line, level, module, name in imports_of(file):
        first = module.partition(".")[0]
        # The class alone is the type of a generator that somebody else seeded.
        if level == 0 and first in IMPURE and (module, name) != ("random", "Random"):
            wrong.append(f"line {line}: imports {module}")
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "open":
            wrong.append(f"line {node.lineno}: opens a file")
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CLOCK_READERS:
            wrong.append(f"line {node.lineno}: reads the clock")
    assert not wrong, f"{name_of(file)} decides and does not act (hand it in, or move it to an edge module): {wrong}"


def test_edges_exist() -> None:
    for room, edges in EDGES.items():
        missing = edges - {file.stem for file in room_files(room)}
        assert not missing, f"{room}: {sorted(missing)} are listed as edges in tests/test_tidy.py and are not there"


# Size.


def test_functions_are_short() -> None:
    long = [
        f"{name_of(file)}:{node.lineno} {node.name}: {node.end_lineno - node.lineno + 1} lines"
        for file in all_files()
        for node in ast.walk(tree_of(file))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and node.end_lineno is not None
        and node.end_lineno - node.lineno + 1 > FUNCTION_LINES_MAX
    ]
    assert not long, f"functions have at most {FUNCTION_LINES_MAX} lines:\n" + "\n".join(long)


def test_files_are_short() -> None:
    long: list[str] = []
    for file in all_files():
        lines = len(file.read_text(encoding="utf-8").splitlines())
        limit = TEST_FILE_LINES_MAX if "tests" in file.relative_to(ROOT).parts else FILE_LINES_MAX
        if lines > limit:
            long.append(f"{name_of(file)}: {lines} lines, at most {limit}")
    assert not long, "split these by what they are about:\n" + "\n".join(long)


# What is left to do, and tests that wait or patch.


def test_nothing_is_left_to_do() -> None:
    # Put together here, so that this file does not find itself.
    marks = re.compile(r"\b(" + "|".join(["TO" + "DO", "FIX" + "ME", "X" + "XX", "NotImplemented" + "Error"]) + r")\b")
    found = [
        f"{name_of(file)}:{number}: {line.strip()[:80]}"
        for file in all_files()
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
        if marks.search(line)
    ]
    assert not found, "\n".join(found)


def test_unit_and_simulation_tests_wait_for_nothing_and_patch_nothing() -> None:
    found: list[str] = []
    for file in all_files():
        if file.relative_to(ROOT).parts[:2] not in (("tests", "unit"), ("tests", "simulation")):
            continue
        for node in ast.walk(tree_of(file)):
            place = f"{name_of(file)}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.Call) and _sleeps(node):
                found.append(f"{place} sleeps; pass the clock, or wait for the event")
            if isinstance(node, ast.arg) and node.arg in ("monkeypatch", "mocker"):
                found.append(f"{place} patches; pass what is to be different")
        for line, _, module, name in imports_of(file):
            if "mock" in (*module.split("."), name) or name in ("MonkeyPatch", "patch"):
                found.append(f"{name_of(file)}:{line} imports {module} {name}")
    assert not found, "\n".join(found)


def _sleeps(call: ast.Call) -> bool:
    """`sleep(x)` of anything; `asyncio.sleep(0)` is one turn of the loop and waits for nothing."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name != "sleep":
        return False
    return not (len(call.args) == 1 and isinstance(call.args[0], ast.Constant) and call.args[0].value == 0)


# The architecture page.


def test_every_file_of_every_room_stands_in_the_file_map() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    assert "\n## File map\n" in page, "ARCHITECTURE.md has no section `## File map`"
    section = page.partition("\n## File map\n")[2].partition("\n## ")[0]
    mapped = set(re.findall(r"^- `([a-z_]+/[\w.]+)`", section, re.MULTILINE))
    there = {
        f"{room}/{file.name}"
        for room in (*FLOORS, "bench", "tools")
        for file in (ROOT / room).iterdir()
        if file.is_file() and file.name != "__init__.py"
    }
    remedy = "run `.venv/bin/python tools/file_map.py`"
    assert not there - mapped, f"not in ARCHITECTURE.md's file map, {remedy}: {sorted(there - mapped)}"
    assert not mapped - there, f"in ARCHITECTURE.md's file map and not there, {remedy}: {sorted(mapped - there)}"
