from __future__ import annotations

import functools
import importlib.util
import io
import os.path
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import dill
import pytest

from rocketcrew.remoting.errors import UsageError
from rocketcrew.workers.api import Handler, Retry, handler
from rocketcrew.workers.loading import (
    HandlerLoadError,
    HandlerSpec,
    describe,
    load,
    search_path,
)
from rocketcrew.workers.user_errors import describe_error, user_traceback


@pytest.fixture
def modules(tmp_path: Path) -> Iterator[Path]:
    """A folder on the Python path; what is imported from it is forgotten afterwards."""
    known = set(sys.modules)
    sys.path.insert(0, str(tmp_path))
    yield tmp_path
    sys.path.remove(str(tmp_path))
    for name in set(sys.modules) - known:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def write(folder: Path, name: str, text: str) -> None:
    (folder / f"{name}.py").write_text(text)


def test_an_import_string_is_not_imported_by_describe(modules: Path) -> None:
    write(modules, "lazy_module", "raise SystemExit('imported')")
    spec = describe("lazy_module:work")
    assert spec == HandlerSpec("lazy_module:work", import_path="lazy_module:work")
    assert spec.module == "lazy_module"
    assert "lazy_module" not in sys.modules


def test_an_import_string_is_loaded(modules: Path) -> None:
    write(
        modules,
        "good_module",
        "from rocketcrew.workers.api import handler\n"
        "def plain(m): return m\n"
        "class Space:\n    @staticmethod\n    def inner(m): return (m, m)\n"
        "@handler(schema='a int')\ndef decorated(m): return None\n",
    )
    assert load(describe("good_module:plain"))(3) == 3
    assert load(describe("good_module:Space.inner"))(3) == (3, 3)
    assert load(describe("good_module:decorated")).schema == "a int"


@pytest.mark.parametrize("text", ["", "module", "module:", ":f", "a b:c", "module:f()", "a/b.py:f", "m:f:g"])
def test_import_strings_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match="write it as package"):
        describe(text)


def test_a_module_that_is_not_there() -> None:
    with pytest.raises(HandlerLoadError, match='cannot find module "no_such_module') as caught:
        load(describe("no_such_module.sub:f"))
    assert str(Path.cwd()) in str(caught.value)
    assert caught.value.traceback == ""


def test_a_module_that_imports_something_that_is_not_there(modules: Path) -> None:
    write(modules, "needs_more", "x = 1\nimport not_installed_anywhere\n")
    with pytest.raises(HandlerLoadError, match="not_installed_anywhere") as caught:
        load(describe("needs_more:f"))
    assert "needs_more.py:2" in str(caught.value)
    assert "import not_installed_anywhere" in caught.value.traceback
    assert "importlib" not in caught.value.traceback
    assert "loading.py" not in caught.value.traceback


@pytest.mark.parametrize("text", ["1 / 0", "raise SystemExit(3)", "def broken(:", "raise KeyboardInterrupt"])
def test_a_module_that_fails(modules: Path, text: str) -> None:
    write(modules, "failing_module", f"\n\n{text}\n")
    with pytest.raises(HandlerLoadError, match='module "failing_module"') as caught:
        load(describe("failing_module:f"))
    assert caught.value.traceback


def test_a_function_that_is_not_there(modules: Path) -> None:
    write(modules, "near_module", "def handle_order(m): pass\nnumber = 3\n")
    with pytest.raises(HandlerLoadError, match='has no function "handle_orders"; did you mean "handle_order"'):
        load(describe("near_module:handle_orders"))
    with pytest.raises(HandlerLoadError, match="not callable"):
        load(describe("near_module:number"))


def test_an_importable_function_travels_by_its_path() -> None:
    assert describe(os.path.basename).import_path == "posixpath:basename"
    spec = describe(describe)
    assert spec == HandlerSpec(*["rocketcrew.workers.loading:describe"] * 2, subscriptions=(), sends=False)
    assert load(spec).function is describe


def main_module(text: str) -> ModuleType:
    """A `__main__` as a script or notebook has it."""
    module = ModuleType("__main__")
    exec(text, module.__dict__)
    return module


def test_lambdas_closures_and_partials_travel_by_value() -> None:
    factor = 3
    double = functools.partial(lambda a, b: a * b, 2)
    for target, expected in ((lambda m: m * factor, 12), (double, 8)):
        spec = describe(target)
        assert spec.import_path is None
        assert spec.module is None
        assert load(spec)(4) == expected


def test_what_travels_by_value_is_not_kept_beside_what_it_became() -> None:
    model = bytes(1_000_000)
    spec = describe(lambda _: len(model))
    assert spec.pickled is not None
    assert len(spec.pickled) > len(model)
    for _ in range(2):  # the driver of Spark's engine loads it, and then sends it to its tasks
        assert load(spec)(4) == len(model)
    spec.forget_pickled()
    assert not spec.pickled


def test_a_function_of_main_brings_the_globals_it_refers_to() -> None:
    module = main_module(
        "import math\n"
        "FACTOR = 5\n"
        "BIG = bytearray(10_000_000)\n"
        "class Helper:\n    def __init__(self, n): self.n = n\n"
        "def helper(n): return Helper(math.floor(n) * FACTOR)\n"
        "def handle(m): return helper(m).n\n"
    )
    spec = describe(module.handle)
    assert spec.name == "__main__:handle"
    assert spec.pickled is not None
    assert len(spec.pickled) < 10_000  # not BIG
    assert load(spec)(2.5) == 10


def test_a_module_that_no_worker_finds_by_its_name_travels_by_value(tmp_path: Path) -> None:
    file = tmp_path / "beside_everything.py"
    file.write_text("FACTOR = 7\ndef helper(n): return n * FACTOR\ndef handle(m): return helper(m)\n")
    found = importlib.util.spec_from_file_location("some.where.beside_everything", file)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    package = ModuleType("some.where")
    package.beside_everything = module
    there = {"some": ModuleType("some"), "some.where": package, module.__name__: module}
    sys.modules.update(there)
    try:
        spec = describe(module.handle)
        assert sys.modules[module.__name__] is package.beside_everything is module
    finally:
        for name in there:
            del sys.modules[name]
    assert spec.import_path is None
    assert load(spec)(3) == 21


def test_a_decorated_lambda_keeps_what_the_decorator_says() -> None:
    decorated = handler(schema="a int", batch=True)(lambda messages: len(messages) + 1)
    loaded = load(describe(decorated))
    assert isinstance(loaded, Handler)
    assert (loaded.schema, loaded.batch, loaded([1, 2])) == ("a int", True, 3)


def test_what_dill_refuses_is_said_with_the_way_out() -> None:
    generator = (n for n in range(3))
    with pytest.raises(UsageError, match="put it into a module"):
        describe(lambda m: next(generator))


def test_what_does_not_travel_is_named_by_its_variable() -> None:
    generator, number = (n for n in range(3)), 7
    with pytest.raises(
        UsageError, match=r"cannot pickle 'generator' object, in 'generator'\); make what it uses in its setup"
    ):
        describe(lambda m: next(generator) + number)


@pytest.mark.parametrize("mode", ["w", "a", "r", "rb", "r+b"])
def test_an_open_file_is_refused_and_keeps_what_it_holds(tmp_path: Path, mode: str) -> None:
    place = tmp_path / "out.txt"
    place.write_text("before")
    with place.open(mode) as file:
        if mode == "w":
            file.write("before")
            file.flush()
        with pytest.raises(UsageError, match=r"an open file, .*out.txt.*, in 'file'"):
            load(describe(lambda m: file.seek(0)))
    assert place.read_text() == "before"


def test_standard_streams_and_files_in_memory_travel() -> None:
    memory, stream = io.BytesIO(b"abc"), sys.__stderr__
    assert load(describe(lambda m: (memory.getvalue(), stream is not None)))(0) == (b"abc", True)


def test_a_lock_is_free_in_a_worker() -> None:
    again, condition, lock = threading.RLock(), threading.Condition(), threading.Lock()
    with again, condition, lock:
        taken = load(
            describe(lambda m: [each.acquire(blocking=False) for each in (again, condition, condition._lock, lock)])
        )
    assert taken(0) == [True, True, True, True]


def test_enumerations_travel_with_all_that_they_have() -> None:
    module = main_module(
        "import enum\n"
        "class Base(enum.Enum):\n    def word(self): return f'{self.name} of {type(self).__name__}'\n"
        "class Colour(Base):\n"
        "    RED = 'r'\n    PAIR = ('b', 2)\n    ALSO_RED = RED\n"
        "    @property\n    def other(self): return Colour.PAIR if self is Colour.RED else Colour.RED\n"
        "    @classmethod\n    def _missing_(cls, value): return cls.PAIR\n"
        "    def __str__(self): return 'a colour'\n"
        "class State(enum.StrEnum):\n    OPEN = enum.auto()\n"
        "class Kind(str, enum.Enum):\n    A = 'a'\n"
        "class Level(enum.IntEnum):\n    LOW = 1\n    HIGH = 2\n"
        "class Shown(enum.Enum):\n    A = 'a'\n    @property\n    def value(self): return 'shown ' + self._value_\n"
        "class Flag(enum.IntFlag, boundary=enum.KEEP):\n    ONE = 1\n    TWO = 2\n    BOTH = 3\n"
        "PRICES = {Colour.RED: 5}\n"
        "def handle(m): return [\n"
        "    Colour('r').word(), Colour('none').other is Colour.RED, Colour.ALSO_RED is Colour.RED, str(Colour.PAIR),\n"
        "    isinstance(Colour.RED, Base), list(Colour.__members__), PRICES[Colour('r')], Colour.PAIR.value,\n"
        "    State.OPEN == 'open', f'{State.OPEN}', f'{Kind.A}', repr(Kind('a')), Level.LOW < Level.HIGH, repr(Level(2)),\n"
        "    Shown.A.value, Shown('a').name, repr(Flag.ONE | Flag.TWO), repr(Flag(9)), Flag.BOTH.name,\n"
        "]\n"
    )
    found = load(describe(module.handle))(0)
    assert found == module.handle(0)
    assert found[:2] == ["RED of Colour", True]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import enum\nclass X(enum.Enum):\n    A = (1, 2)\n    def __init__(self, a, b): self.a = a\n", "enum 'X'"),
        ("import enum\nclass X(bytes, enum.Enum):\n    def __new__(cls, n): return bytes.__new__(cls, [n])\n    A = 1\n",
         "enum 'X'"),
        ("import datetime, enum\nclass X(datetime.date, enum.Enum):\n    A = 2026, 1, 2\n", "enum 'X'"),
        ("import enum\nclass X(enum.Enum):\n    A = 1\nX.A.label = 'a'\n", "enum 'X'"),
        ("import enum\nclass X(enum.Enum):\n    A = 1\nX.A._label = 'a'\n", "enum 'X'"),
        ("class X: pass\nX.only = X()\n", "X"),
        ("import typing\nX = typing.TypeVar('X')\n", "~X is of the main module, which workers do not have"),
        ("import typing\nX = typing.NewType('X', int)\n", "is of the main module"),
        ("import msgspec\nclass X(msgspec.Struct): a: int\n", "is a msgspec.Struct"),
    ],
)  # fmt: skip
def test_what_only_its_name_would_travel_of_is_refused(text: str, says: str) -> None:
    module = main_module(f"{text}def handle(m): return X\n")
    with pytest.raises(UsageError) as raised:
        describe(module.handle)
    assert says in str(raised.value)
    assert ", in 'X'); make what it uses in its setup or in itself, or put it into a module" in str(raised.value)


def test_pickled_nonsense() -> None:
    with pytest.raises(HandlerLoadError, match="handler x"):
        load(HandlerSpec("x", pickled=b"nonsense"))
    with pytest.raises(HandlerLoadError):
        load(HandlerSpec("x", pickled=dill.dumps(3)))


def raise_deep() -> None:
    raise ValueError("too deep")


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text for you")


def caught(error_type: type[BaseException], *arguments: object) -> BaseException:
    try:
        if error_type is ValueError and not arguments:
            raise_deep()
        raise error_type(*arguments)
    except error_type as error:
        return error


def test_errors_are_described_by_the_user_s_innermost_frame() -> None:
    line = raise_deep.__code__.co_firstlineno + 1
    assert describe_error(caught(ValueError)) == f"ValueError: too deep (test_loading.py:{line})"
    assert describe_error(caught(KeyError)).startswith("KeyError (test_loading.py:")
    assert describe_error(caught(UnprintableError)).startswith("UnprintableError: <str() failed>")
    assert describe_error(Retry(0, "never raised")) == "Retry: never raised"
    text = user_traceback(caught(ValueError))
    assert text.splitlines()[-1] == "ValueError: too deep"
    assert "raise_deep()" in text


def test_the_current_folder_can_be_imported_from() -> None:
    path = search_path()
    assert str(Path.cwd()) in path
    assert "" not in path
