"""The house rules that a machine can keep. Each failure says what to do.

Read off the files themselves, with `ast` where a rule is about code: comments and docstrings may say what they like.
"""

from __future__ import annotations

import ast
import functools
import gc
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src/rocketcrew"

FLOORS = {
    "remoting": 1,
    "conf": 2,
    "durable": 2,
    "client": 2,
    "broker": 3,
    "workers": 3,
    "spark": 3,
    "source": 3,
    "supervisor": 4,
    "engine": 5,
    "testing": 5,
    "cli": 6,
    "crew": 7,
}
"""Imports go down only; rooms of one floor do not know each other."""

PARTS: dict[str, dict[str, frozenset[str]]] = {
    "supervisor": {"core": frozenset(), "member": frozenset({"core"}), "pool": frozenset({"core"})},
}
"""Folders of a room where other rules hold, each with the ones beside it that it may import. The room itself may import all
of them, and they nothing of it."""

TABLES: dict[str, frozenset[str]] = {
    "broker": frozenset({"requests"}),
    "cli": frozenset({"commands", "chaos"}),
    "spark": frozenset({"targets"}),
}
"""Folders that are a table of equal siblings: one request code, command or kind of table a file."""

OTHER_CODE = ("examples", "bench", "tools")
FUNCTION_LINES_MAX = 70
Function = ast.FunctionDef | ast.AsyncFunctionDef
FILE_LINES_MAX = 700
TEST_FILE_LINES_MAX = 700
"""A test file is a list that is read entry by entry; a module is read whole."""

EDGES: dict[str, frozenset[str]] = {
    "remoting": frozenset(),
    "broker": frozenset(
        {"converting", "disk", "edge", "kernel_sync", "refused_folders", "registering", "server", "syncing", "tls"}
    ),
    "source": frozenset(
        {
            "access_options",
            "batch_reader",
            "connections",
            "default_source",
            "looking",
            "pulling",
            "searching",
            "sending",
            "stream_reader",
            "writers",
        }
    ),
}
"""Rooms that decide in pure code, and the modules in them that act. Every other module there is pure, new ones too."""

PURE_MODULES: dict[str, frozenset[str]] = {
    "durable": frozenset({"facts", "intervals", "outcomes"}),
    "conf": frozenset({"formats", "repeats", "rules", "schema"}),
    "client": frozenset(
        {"access", "address", "faults", "outgoing", "request_rules", "routes", "selection", "send_result", "validation"}
    ),
    "workers": frozenset({"api", "ddl", "message", "packets", "ranges", "rows"}),
    "engine": frozenset({"fitting", "options", "planned", "spec"}),
    "spark": frozenset({"costs", "epochs", "errors", "merging", "metastore", "plan", "reconciling", "reports"}),
}
"""Pure modules of rooms that mostly act."""

IMPURE = frozenset(
    {
        "asyncio", "concurrent", "ctypes", "fcntl", "mmap", "multiprocess", "os", "queue", "random", "secrets", "select",
        "selectors", "shutil", "signal", "socket", "structlog", "subprocess", "tempfile", "threading", "time",
    }
)  # fmt: skip
"""What a pure module imports nothing of: it gets the clock, the bytes and the dice handed in."""

CLOCK_READERS = frozenset({"now", "utcnow", "today"})
DISK_READERS = frozenset(
    {
        "chmod", "cwd", "exists", "expanduser", "glob", "hardlink_to", "home", "is_dir", "is_file", "is_mount", "is_symlink",
        "iterdir", "lstat", "mkdir", "read_bytes", "read_text", "readlink", "rglob", "rmdir", "samefile", "stat",
        "symlink_to", "touch", "unlink", "write_bytes", "write_text",
    }
)  # fmt: skip
"""What a path does on the disk. Not `open`, `rename`, `replace` and `resolve`, which other things do, too."""


def room_files(room: str) -> list[Path]:
    return sorted(file for file in (ROOT / room).rglob("*.py") if "__pycache__" not in file.parts)


def all_files() -> list[Path]:
    """Every Python file of the project, by its real path."""
    folders = [*FLOORS, *OTHER_CODE, "tests"]
    found = [file for folder in folders for file in (ROOT / folder).rglob("*.py") if "__pycache__" not in file.parts]
    return sorted([*found, *PACKAGE.glob("*.py")])


def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"), filename=str(file))


@functools.cache
def tree_of(file: Path) -> ast.Module:
    """For the files of rooms, which many rules are about. All files together are gigabytes."""
    return parsed(file)


@pytest.fixture(autouse=True, scope="module")
def trees() -> Iterator[None]:
    """They are millions of objects, none of them in a circle: no collection looks at them, and none stays for later tests."""
    gc.disable()
    yield
    tree_of.cache_clear()
    imports_of.cache_clear()
    targets_of.cache_clear()
    gc.enable()


def name_of(file: Path) -> str:
    return str(file.relative_to(ROOT))


@functools.cache
def imports_of(file: Path) -> list[tuple[int, int, str, str]]:
    return list(imports_in(tree_of(file)))


def imports_in(tree: ast.Module) -> Iterator[tuple[int, int, str, str]]:
    """Line, level (number of dots), module and imported name of every import of a file: also inside functions, for type
    checkers only, and by `import_module` of a literal name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, 0, alias.name, ""
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield node.lineno, node.level, node.module or "", alias.name
        elif isinstance(node, ast.Call) and (literal := _imported_by_name(node)):
            name = literal.lstrip(".")
            yield node.lineno, len(literal) - len(name), name, ""


def _imported_by_name(call: ast.Call) -> str:
    """The literal that `import_module` is called with, "" for anything else."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    first = call.args[0] if call.args else None
    literal = name == "import_module" and isinstance(first, ast.Constant) and isinstance(first.value, str)
    return first.value if literal and isinstance(first, ast.Constant) else ""


@functools.cache
def targets_of(file: Path) -> list[tuple[int, Path]]:
    return list(_targets_of(file))


def _targets_of(file: Path) -> Iterator[tuple[int, Path]]:
    """Line and file of every module of the project that a module of a room imports."""
    for line, level, module, name in imports_of(file):
        if level == 0:
            continue
        folder = file.parent
        for _ in range(level - 1):
            folder = folder.parent
        at = folder.joinpath(*module.split(".")) if module else folder
        for found in (at / f"{name}.py", at.with_suffix(".py"), at / "__init__.py"):
            if found.is_file() and (name or found != at / ".py"):
                yield line, found
                break


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


def nested_of(room: str) -> frozenset[str]:
    return frozenset(PARTS.get(room, ())) | TABLES.get(room, frozenset())


def part_of(file: Path) -> tuple[str, str]:
    """Room and nested folder of a file, the latter "" for a file of the room itself."""
    room, *folders = file.relative_to(ROOT).parts[:-1]
    return room, "/".join(folders)


def test_rooms_have_a_floor_and_only_the_folders_that_are_named_here() -> None:
    for entry in PACKAGE.iterdir():
        if entry.is_dir() and (entry / "__init__.py").exists() and entry.name not in OTHER_CODE:
            assert entry.name in FLOORS, f"src/rocketcrew/{entry.name} is a room without a floor in tests/test_tidy.py"
    for room in FLOORS:
        there = {file.parent.relative_to(ROOT / room).as_posix() for file in room_files(room)} - {"."}
        assert there == nested_of(room), f"{room}/ has the folders {sorted(there)}, see PARTS and TABLES"


@pytest.mark.parametrize("room", FLOORS)
def test_imports_are_relative(room: str) -> None:
    wrong = [
        f"{name_of(file)}:{line} imports {module}; write it with dots"
        for file in room_files(room)
        for line, level, module, _ in imports_of(file)
        if level == 0 and module.partition(".")[0] in {*FLOORS, "rocketcrew"}
        and (module != "rocketcrew" or room != "workers")
    ]  # fmt: skip
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("room", FLOORS)
def test_imports_go_down_only(room: str) -> None:
    wrong: list[str] = []
    for file in room_files(room):
        for line, target in targets_of(file):
            place = f"{name_of(file)}:{line}"
            if not target.is_relative_to(ROOT) or target.is_relative_to(PACKAGE):
                wrong.append(f"{place} imports from the package itself; rooms import rooms")
                continue
            here, part = part_of(file)
            there, other = part_of(target)
            if there != here and FLOORS[there] >= FLOORS[here]:
                wrong.append(f"{place}: {here} (floor {FLOORS[here]}) may not import {there} (floor {FLOORS[there]})")
            parts = PARTS.get(here, {})
            if there == here and part in parts and other != part and other not in parts[part]:
                wrong.append(f"{place}: {here}/{part} may not import {there}/{other or target.name}")
    assert not wrong, "\n".join(wrong)


def test_commands_do_not_import_each_other() -> None:
    """What two of them share is a file in cli/: else a change of one command is a change of another."""
    commands = ROOT / "cli/commands"
    wrong = [
        f"{name_of(file)}:{line} imports {name_of(target)}"
        for file in room_files("cli")
        for line, target in targets_of(file)
        if target.parent == commands and target != file
    ]
    assert not wrong, f"move what they share into cli/: {wrong}"


def test_nothing_imports_in_circles() -> None:
    graph = {file: {target for _, target in targets_of(file)} - {file} for room in FLOORS for file in room_files(room)}
    circles = [sorted(map(name_of, circle)) for circle in _circles(graph)]
    assert not circles, f"modules that import each other, also for types or in functions: {circles}"


def _circles(graph: dict[Path, set[Path]]) -> list[set[Path]]:
    """What is left when, again and again, whatever imports nothing of the rest and is imported by nothing of it is gone."""
    rest = {file: set(targets) & graph.keys() for file, targets in graph.items()}
    while True:
        imported = set().union(*rest.values()) if rest else set()
        gone = {file for file, targets in rest.items() if not targets or file not in imported}
        if not gone:
            break
        rest = {file: targets - gone for file, targets in rest.items() if file not in gone}
    return [set(rest)] if rest else []


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
    found += [file for file in room_files("supervisor") if part_of(file)[1] == "core"]
    return found + [ROOT / room / f"{name}.py" for room, names in PURE_MODULES.items() for name in sorted(names)]


TYPES_ALONE = {("random", "Random"), ("os", "PathLike"), ("os", "fspath")}
"""The class is the type of a generator that somebody else seeded; the others are of paths as they are written."""


def acts_of(tree: ast.Module) -> Iterator[str]:
    """What the code does to files and asks of the clock; named is as good as called: it may be handed on."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id == "open":
            yield f"line {node.lineno}: opens a file"
        if isinstance(node, ast.Attribute) and node.attr in DISK_READERS:
            yield f"line {node.lineno}: {node.attr} of a path"
        called = node.func if isinstance(node, ast.Call) else node
        if isinstance(called, ast.Attribute) and called.attr in CLOCK_READERS:
            whose = ast.unparse(called.value).rpartition(".")[2]
            if called is not node or whose in ("date", "datetime"):
                yield f"line {node.lineno}: reads the clock"


@pytest.mark.parametrize(
    "code",
    [
        "open(name)", "each(open, names)", "path.read_text()", "Path(name).iterdir()", "map(Path.exists, paths)",
        "datetime.now()", "datetime.datetime.now(UTC)", "field(default_factory=datetime.now)", "clock.now()", "date.today()",
    ],
)  # fmt: skip
def test_what_acts_is_noticed(code: str) -> None:
    assert list(acts_of(ast.parse(code)))


@pytest.mark.parametrize("code", ["storage.open(name)", "text.replace(a, b)", "state.now", "path.parent / name"])
def test_what_only_has_a_name_like_that_may_stay(code: str) -> None:
    assert not list(acts_of(ast.parse(code)))


@pytest.mark.parametrize("file", pure_files(), ids=name_of)
def test_pure_modules_touch_nothing(file: Path) -> None:
    assert file.is_file(), f"{name_of(file)} is listed in tests/test_tidy.py and is not there"
    wrong: list[str] = []
    for line, level, module, name in imports_of(file):
        first = module.partition(".")[0]
        if level == 0 and first in IMPURE and (module, name) not in TYPES_ALONE:
            wrong.append(f"line {line}: imports {module}")
    wrong += [f"line {line}: reads the clock" for line, target in targets_of(file) if name_of(target) == CLOCK]
    wrong += sorted(set(acts_of(tree_of(file))))
    assert not wrong, f"{name_of(file)} decides and does not act (hand it in, or move it to an edge module): {wrong}"


CLOCK = "client/clock.py"


def test_the_wall_clock_is_read_in_milliseconds_by_its_function() -> None:
    """One spelling of it, and one place to look at for what a step of the clock does."""
    wrong = [
        f"{name_of(file)}:{node.lineno}"
        for room in FLOORS
        for file in room_files(room)
        if name_of(file) != CLOCK
        for node in ast.walk(tree_of(file))
        if isinstance(node, ast.BinOp) and re.match(r"time\.(time_ns\(\) //|time\(\) \*) ", ast.unparse(node))
    ]
    assert not wrong, f"use wall_ms of {CLOCK}: {wrong}"


def test_edges_exist() -> None:
    for room, edges in EDGES.items():
        missing = edges - {file.stem for file in room_files(room)}
        assert not missing, f"{room}: {sorted(missing)} are listed as edges in tests/test_tidy.py and are not there"


ONCE = (
    "RETRY_PREFIX", "DLQ_PREFIX", "DEFAULT_TOPIC", "INNER_PRODUCER_GROUP", "REGION_DEFAULT", "MASTER_ID", "BROADCASTING",
    "OUTCOMES_DIR", "HOSTS_V6", "SYSFLAG_LOW_BYTE", "BNAME", "SEND_BACK_TIMEOUT_MS", "DELAY_LEVELS_MAX", "SYSTEM_TOPICS",
    "REPEATED_WITHIN_S",
)  # fmt: skip
"""Words of the protocol, names on disk and rules: each has one definition."""

TOGETHER = (
    (re.compile(r"EXIT_"), "conf/exit_codes.py"),
    (re.compile(r"(NS|US|MS|S)_(PER|TO)_(NS|US|MS|S|MINUTE|HOUR|DAY)$|(MINUTE|HOUR|DAY)_MS$"), "conf/units.py"),
)
"""Names of exit codes and of factors between units, with the one file that gives them their numbers."""

ELSEWHERE = {
    "spark/java_shim.py EXIT_ORPHAN": "a script that loads nothing else",
    "workers/spawn.py EXIT_UNKNOWN": "in place of an exit code that nobody has read",
}
"""Numbers that are TOGETHER with no others, each with the reason."""


def definitions_of(file: Path) -> Iterator[tuple[int, str, ast.expr | None]]:
    """Line, name without underscores before it and value of every assignment of a module."""
    for node in tree_of(file).body:
        if not isinstance(node, ast.Assign | ast.AnnAssign):
            continue
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            names = target.elts if isinstance(target, ast.Tuple) else [target]
            values = node.value.elts if isinstance(node.value, ast.Tuple) and len(names) > 1 else [node.value]
            for name, value in zip(names, values * len(names) if len(values) == 1 else values, strict=True):
                if isinstance(name, ast.Name):
                    yield node.lineno, name.id.strip("_"), value


def test_words_of_the_protocol_are_defined_once() -> None:
    found: dict[str, list[str]] = {}
    for room in FLOORS:
        for file in room_files(room):
            for line, name, _ in definitions_of(file):
                if name in ONCE:
                    found.setdefault(name, []).append(f"{name_of(file)}:{line}")
    assert found.keys() == set(ONCE), f"not defined any more: {set(ONCE) - found.keys()}"
    twice = {name: places for name, places in found.items() if len(places) > 1}
    assert not twice, f"defined more than once; import the first: {twice}"


def names_taken(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Module, by the last part of its name, and name of what a file imports or reads of a module that it imports."""
    modules: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                modules[alias.asname or alias.name] = alias.name
                yield (node.module or "").rpartition(".")[2], alias.name
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            yield modules[node.value.id], node.attr


def test_what_a_module_assigns_is_used() -> None:
    """Of `remoting` not: its tables are the protocol's, whole."""
    taken = {pair for file in all_files() for pair in names_taken(parsed(file))}
    unused: list[str] = []
    for file in (file for room in FLOORS if room != "remoting" for file in room_files(room)):
        own = {
            node.id for node in ast.walk(tree_of(file)) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
        }
        module = file.parent.name if file.name == "__init__.py" else file.stem
        for node in tree_of(file).body:
            for target in node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]:
                if isinstance(target, ast.Name) and target.id not in own and (module, target.id) not in taken:
                    unused += [f"{name_of(file)}:{node.lineno} {target.id}"] * (not target.id.startswith("__"))
    assert not unused, f"nobody uses them, remove them: {unused}"


def test_exit_codes_and_factors_between_units_are_together() -> None:
    found = {
        f"{name_of(file)} {name}": home
        for room in FLOORS
        for file in room_files(room)
        for _, name, value in definitions_of(file)
        for names, home in TOGETHER
        if names.match(name) and isinstance(value, ast.Constant) and name_of(file) != home
    }
    remedy = "import them from there, or argue in ELSEWHERE; or they are in ELSEWHERE and are there no more"
    strange = found.keys() ^ ELSEWHERE.keys()
    assert not strange, f"numbers of {sorted({home for _, home in TOGETHER})}: {remedy}: {sorted(strange)}"


def test_seconds_are_made_nanoseconds_by_a_factor_with_a_name() -> None:
    bare = [
        f"{name_of(file)}:{node.lineno}"
        for room in FLOORS
        for file in room_files(room)
        for node in ast.walk(tree_of(file))
        if isinstance(node, ast.BinOp)
        and any(isinstance(side, ast.Constant) and side.value == 1e9 for side in (node.left, node.right))
    ]
    assert not bare, f"write NS_PER_S of conf/units.py: {bare}"


# Size.


def functions_in(statements: Iterable[ast.stmt | ast.ExceptHandler | ast.match_case]) -> Iterator[Function]:
    """Statements alone, which are few: no expression has a function with a name in it."""
    for node in statements:
        if isinstance(node, Function):
            yield node
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            yield from functions_in(getattr(node, field, ()))


def test_functions_of_all_statements_are_found() -> None:
    places = [
        "def f(): ...", "async def f(): ...", "class A:\n def f(self): ...", "def g():\n def f(): ...",
        "while 1:\n def f(): ...",
        "if a: ...\nelse:\n def f(): ...", "for a in b: ...\nelse:\n async def f(): ...", "with a:\n def f(): ...",
        "try:\n def f(): ...\nfinally: ...", "try: ...\nexcept A:\n def f(): ...", "try: ...\nfinally:\n def f(): ...",
        "try: ...\nexcept* A:\n def f(): ...", "match a:\n case 1:\n  def f(): ...",
    ]  # fmt: skip
    assert all("f" in {found.name for found in functions_in(ast.parse(code).body)} for code in places)


def test_functions_are_short() -> None:
    long = [
        f"{name_of(file)}:{node.lineno} {node.name}: {node.end_lineno - node.lineno + 1} lines"
        for file in all_files()
        if file.read_bytes().count(b"\n") >= FUNCTION_LINES_MAX
        for node in functions_in(parsed(file).body)
        if node.end_lineno is not None and node.end_lineno - node.lineno + 1 > FUNCTION_LINES_MAX
    ]
    assert not long, f"functions have at most {FUNCTION_LINES_MAX} lines:\n" + "\n".join(long)


SMALL_LINES = 60
SMALL: dict[str, str] = {
    "source/lags.py": "pure, and the part that users import in a listener of their own",
    "source/progress.py": "pure, beside pulling.py that talks to brokers",
    "spark/iceberg_rest.py": "a class of pyiceberg's, which is imported where a table is in a REST catalog",
    "workers/lifecycle.py": "the main module of a process of its own, started by its name",
    "workers/strategy.py": "the main module of a process of its own, started by its name",
}
"""Small modules that one other imports, each with the reason why it is not part of that one."""


def test_a_small_file_with_one_importer_is_part_of_that_one() -> None:
    importers: dict[Path, set[Path]] = {}
    for file in (*(file for room in FLOORS for file in room_files(room)), *PACKAGE.glob("*.py")):
        for _, target in targets_of(file):
            importers.setdefault(target.resolve(), set()).add(file)
    small: list[str] = []
    for room in FLOORS:
        for file in room_files(room):
            lines = len(file.read_text(encoding="utf-8").splitlines())
            if lines < SMALL_LINES and file.name != "__init__.py" and part_of(file)[1] not in TABLES.get(room, ()):
                small += [name_of(file)] if len(importers.get(file, ())) <= 1 else []
    strange = sorted(set(small) ^ SMALL.keys())
    remedy = (
        "move them into the module that imports them, or argue in SMALL; or they are in SMALL and are small no more"
    )
    assert not strange, f"below {SMALL_LINES} lines and imported by one module: {remedy}: {strange}"


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
        if marks.search(file.read_text(encoding="utf-8"))
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
        if marks.search(line)
    ]
    assert not found, "\n".join(found)


def test_unit_and_simulation_tests_wait_for_nothing_and_patch_nothing() -> None:
    found: list[str] = []
    for file in all_files():
        if file.relative_to(ROOT).parts[:2] not in (("tests", "unit"), ("tests", "simulation")):
            continue
        if not re.search("(?i)sleep|patch|mock", file.read_text(encoding="utf-8")):
            continue
        tree = parsed(file)
        for node in ast.walk(tree):
            place = f"{name_of(file)}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.Call) and _sleeps(node):
                found.append(f"{place} sleeps; pass the clock, or wait for the event")
            if isinstance(node, ast.arg) and node.arg in ("monkeypatch", "mocker"):
                found.append(f"{place} patches; pass what is to be different")
        for line, _, module, name in imports_in(tree):
            if "mock" in (*module.split("."), name) or name in ("MonkeyPatch", "patch"):
                found.append(f"{name_of(file)}:{line} imports {module} {name}")
    assert not found, "\n".join(found)


def _sleeps(call: ast.Call) -> bool:
    """`sleep(x)` of anything; `asyncio.sleep(0)` is one turn of the loop and waits for nothing."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name != "sleep":
        return False
    return not (len(call.args) == 1 and isinstance(call.args[0], ast.Constant) and call.args[0].value == 0)


# Documents.


def test_documents_and_files_that_are_named_are_there() -> None:
    """Whoever has only this repository must find what its comments and pages name."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    names = {page.name for page in pages}
    rooms = "|".join((*FLOORS, "docs", "tests", "bench", "tools"))
    named = re.compile(rf"(?<![\w/.])[A-Z][A-Z_]+\.md\b|(?<![\w/.-])(?P<path>(?:{rooms})/[\w/-]+\.(?:py|md|toml))\b")
    wrong: list[str] = []
    for file in (*all_files(), *pages):
        text = file.read_text(encoding="utf-8")
        for found in named.finditer(text):
            name, path = found[0], found["path"]
            if not (ROOT / path).exists() if path else name not in names:
                number = text.count("\n", 0, found.start()) + 1
                wrong.append(f"{name_of(file)}:{number} names {name}")
    assert not wrong, "documents and files that are not in the repository:\n" + "\n".join(wrong)


def test_files_that_run_first_are_there() -> None:
    names = (ROOT / "tests/longest_first.txt").read_text().split()
    gone = [name for name in names if not (ROOT / "tests" / name).is_file()]
    assert not gone, (
        f"tests/longest_first.txt names {gone}, which are not there: take them out, or write their new names"
    )
    assert len(set(names)) == len(names)
