from __future__ import annotations

import pickle
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from rocketcrew.workers.api import handler
from rocketcrew.workers.loading import describe, load
from rocketcrew.workers.shipment import packed, unpacked


def main_module(text: str, **more: object) -> ModuleType:
    """A `__main__` as a script or notebook has it."""
    module = ModuleType("__main__")
    vars(module).update(more)
    exec(text, vars(module))
    return module


@pytest.fixture
def modules(tmp_path: Path) -> Iterator[Path]:
    """A folder on the Python path, as of installed packages; what is imported from it is forgotten afterwards."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))
    forget(folder)


def forget(folder: Path) -> None:
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", "")).startswith(str(folder)):
            del sys.modules[name]


def test_what_a_set_up_hook_binds_the_handler_sees_and_its_helpers() -> None:
    module = main_module(
        "import functools\n"
        "model, calls = None, 0\n"
        "def setup():\n    global model\n    model = 'loaded'\n"
        "def count(*_):\n    global calls\n    calls += 1\n    return calls\n"
        "def logged(function):\n"
        "    @functools.wraps(function)\n    def wrapper(m): return [calls, *function(m)]\n"
        "    return wrapper\n"
        "class Step:\n"
        "    def run(self): return model\n"
        "    @classmethod\n    def run_class(cls): return model\n"
        "    @property\n    def shown(self): return model\n"
        "step = Step()\n"
        "@functools.lru_cache\ndef kept(): return model\n"
        "@logged\n"
        "def handle(m, default=lambda: model, given=functools.partial(count, 1)):\n"
        "    def inner(): return model\n"
        "    return [given(), count(), model, step.run(), Step.run_class(), step.shown, kept(), default(), inner()]\n"
    )
    spec = describe(handler(setup=module.setup)(module.handle))
    for _ in range(2):  # workers do not share it with each other
        loaded = load(spec)
        assert loaded.setup is not None
        assert loaded(0)[3] is None
        loaded.setup()
        assert loaded(0) == [2, 3, 4, *["loaded"] * 3, "loaded", None, "loaded", "loaded"]
    assert (module.model, module.calls) == (None, 0)


def test_a_name_that_is_made_when_it_is_first_needed_is_made_once() -> None:
    module = main_module(
        "made, model = [], None\n"
        "def get():\n    global model\n    if model is None:\n        made.append(1)\n        model = 'loaded'\n"
        "    return model\n"
        "def handle(m): return [get(), get(), model, len(made)]\n"
    )
    assert load(describe(module.handle))(0) == ["loaded", "loaded", "loaded", 1]


def test_handlers_of_one_list_share_their_globals() -> None:
    module = main_module(
        "from rocketcrew.workers.api import handler\n"
        "seen = 0\n"
        "@handler(topic='a')\ndef one(m):\n    global seen\n    seen += 1\n    return seen\n"
        "@handler(topic='b')\ndef other(m): return seen\n"
    )
    one, other = load(describe([module.one, module.other])).parts
    assert [other(0), one(0), other(0)] == [0, 1, 1]


def test_functions_and_classes_that_refer_to_each_other_in_a_circle_travel() -> None:
    module = main_module(
        "def even(n): return n == 0 or odd(n - 1)\n"
        "def odd(n): return n != 0 and even(n - 1)\n"
        "class Tree:\n"
        "    def __init__(self, *below): self.below = below\n"
        "    def size(self): return size_of(self)\n"
        "    def copy(self): return super().__new__(Tree)\n"
        "    def root(self): return ROOT\n"
        "def size_of(tree): return 1 + sum(each.size() for each in tree.below) if isinstance(tree, Tree) else 0\n"
        "ROOT = Tree(Tree(), Tree())\n"
        "def local():\n"
        "    def down(n): return n and up(n - 1)\n"
        "    def up(n): return n and down(n - 1)\n"
        "    return down\n"
        "down = local()\n"
        "def handle(m): return [even(4), odd(4), ROOT.size(), ROOT.root() is ROOT, type(ROOT.copy()) is Tree, down(3)]\n"
    )
    assert load(describe(module.handle))(0) == module.handle(0) == [True, False, 3, True, True, 0]


_REACHING_THEMSELVES = {
    "class in a table of its own": (
        "class A:\n    def make(self): return KINDS['a']()\n"
        "KINDS = {'a': A}\n"
        "def handle(m): return type(KINDS['a']().make()) is A\n"
    ),
    "base that makes its subclass": (
        "class A:\n    def make(self): return B()\nclass B(A): pass\ndef handle(m): return type(A().make()) is B\n"
    ),
    "states": (
        "class New:\n    def next(self): return STATES['done']()\n"
        "class Done:\n    def next(self): return STATES['new']()\n"
        "STATES = {'new': New, 'done': Done}\n"
        "def handle(m): return [type(New().next()) is Done, type(Done().next()) is New]\n"
    ),
    "objects in a list": (
        "class Rule:\n    def rest(self): return [each for each in RULES if each is not self]\n"
        "RULES = [Rule(), Rule()]\n"
        "def handle(m): return [len(Rule().rest()), type(Rule().rest()[0]) is Rule]\n"
    ),
    "frozen keys": (
        "from dataclasses import dataclass\n"
        "@dataclass(frozen=True)\nclass Unit:\n"
        "    name: str\n    def rate(self, other): return RATES[self, other]\n"
        "KG, G = Unit('kg'), Unit('g')\nRATES = {(KG, G): 1000}\n"
        "def handle(m): return [KG.rate(G), Unit('kg').rate(Unit('g'))]\n"
    ),
    "objects that a class has": (
        "class Part:\n    def total(self): return Whole.first.n + Whole.second.n\n"
        "    def __init__(self, n): self.n = n\n"
        "class Whole:\n    first, second = Part(1), Part(2)\n"
        "def handle(m): return [Part(3).total(), Whole.second.total()]\n"
    ),
    "defaults and attributes": (
        "class Settings:\n    n = 1\n    def load(self): return build()\n"
        "def build(given=Settings(), *, more=(Settings(), 1)): return given.n + more[0].n\n"
        "build.kept = [Settings()]\n"
        "def handle(m): return [Settings().load(), build.kept[0].load(), type(build.kept[0]) is Settings]\n"
    ),
    "setstate": (
        "class Item:\n    def all(self): return WHOLE\n"
        "class Link:\n"
        "    def __init__(self, at): self.at, self.whole = at, whole_of(at)\n"
        "    def __getstate__(self): return self.at\n    def __setstate__(self, at): self.__init__(at)\n"
        "    def item(self): return Item()\n"
        "def whole_of(at): return PREFIX + at\n"
        "PREFIX = 'p'\nWHOLE = {'item': Item(), 'link': Link('x')}\n"
        "def handle(m): return [Item().all()['link'].whole, WHOLE['link'].item().all() is WHOLE]\n"
    ),
    "set name": (
        "class Field:\n"
        "    def __set_name__(self, owner, name): self.name = NAMES[name]\n"
        "    def __get__(self, one, owner): return self.name\n"
        "NAMES = {'a': 1}\n"
        "class Row:\n    a = Field()\n"
        "def handle(m): return Row().a\n"
    ),
    "keys with a hash that reads a list": (
        "class Key:\n"
        "    def __init__(self, n): self.n = n\n"
        "    def __eq__(self, other): return self.n == other.n\n    def __hash__(self): return hash((self.n, *SALT))\n"
        "    def found(self): return KEYS[self]\n"
        "SALT = ['a', 1]\nKEYS = {Key(1): 2}\n"
        "def handle(m): return Key(1).found()\n"
    ),
    "init subclass": (
        "MADE = []\n"
        "class Base:\n    def __init_subclass__(cls): cls.tag = tag_of(cls)\n"
        "def tag_of(cls):\n    MADE.append(cls.__name__)\n    return cls.__name__.lower()\n"
        "class Below(Base): pass\n"
        "def handle(m): return [Below.tag, 'Below' in MADE]\n"
    ),
    "init subclass and table": (
        "class Base:\n    def __init_subclass__(cls): cls.tag = tag_of(cls)\n    def make(self): return KINDS['below']()\n"
        "def tag_of(cls): return cls.__name__.lower()\n"
        "class Below(Base): pass\n"
        "KINDS = {'below': Below}\n"
        "def handle(m): return Below().make().tag\n"
    ),
}


@pytest.mark.parametrize("text", _REACHING_THEMSELVES.values(), ids=_REACHING_THEMSELVES)
def test_classes_that_reach_themselves_through_something_else_travel(text: str) -> None:
    module = main_module(text)
    assert load(describe(module.handle))(0) == module.handle(0)


def test_what_functions_of_one_call_enclose_stays_theirs_together() -> None:
    module = main_module(
        "def make():\n    n = 0\n"
        "    def up():\n        nonlocal n\n        n += 1\n"
        "    def shown(): return n\n"
        "    return up, shown\n"
        "up, shown = make()\n"
        "def handle(m):\n    up()\n    return shown()\n"
    )
    loaded = load(describe(module.handle))
    assert [loaded(0), loaded(0)] == [1, 2]


def test_a_function_keeps_what_it_says_about_itself() -> None:
    def handle(m: object, a: int = 1, *, b: int = 2) -> list[int]:
        """Its text."""
        return [a, b]

    handle.version = 3  # type: ignore[attr-defined]
    found = load(describe(handle)).function
    for name in (
        "__name__",
        "__qualname__",
        "__doc__",
        "__defaults__",
        "__kwdefaults__",
        "__annotations__",
        "__module__",
    ):
        assert getattr(found, name) == getattr(handle, name)
    assert (found.version, found(0)) == (3, [1, 2])  # type: ignore[attr-defined]


def test_a_name_that_code_only_binds_brings_no_value() -> None:
    module = main_module(
        "db = (n for n in range(3))\ndef handle(m):\n    global db\n    db = 4\n    class db2: db = 5\n    return db2.db\n"
    )
    assert load(describe(module.handle))(0) == 5


def test_relative_imports_in_a_handler_of_a_script_find_its_package(modules: Path) -> None:
    (modules / "shop_of_test").mkdir()
    (modules / "shop_of_test" / "__init__.py").touch()
    (modules / "shop_of_test" / "prices.py").write_text("def double(n): return 2 * n\n")
    text = "def handle(m):\n    from .prices import double\n    return [double(m), __file__, __name__]\n"
    module = main_module(text, __package__="shop_of_test", __file__="app.py")
    assert load(describe(module.handle))(3) == [6, "app.py", "__main__"]


def test_submodules_that_code_reaches_by_attributes_are_imported_in_the_worker(modules: Path) -> None:
    package = modules / "shop_of_test"
    for folder in (package, package / "inner"):
        folder.mkdir()
        (folder / "__init__.py").touch()
    for name in ("deep", "given", "unused"):
        (package / "inner" / f"{name}.py").write_text("def double(n): return 2 * n\n")
    module = main_module(
        "import shop_of_test.inner.deep, shop_of_test.inner.given, shop_of_test.inner.unused, shop_of_test as shop\n"
        "def make(given):\n    return lambda n: given.given.double(n)\n"
        "helper = make(shop.inner)\n"
        "def handle(m): return [shop.inner.deep.double(m), (lambda: shop_of_test.inner.deep.double(m))(), helper(m)]\n"
    )
    spec = describe(module.handle)
    forget(modules)
    assert load(spec)(3) == [6, 6, 6]
    assert "shop_of_test.inner.unused" not in sys.modules


def test_names_that_nothing_defines_are_warned_of_when_the_handler_is_given() -> None:
    module = main_module("def helper(m): return not_yet\ndef handle(m): return helper(m)\n")
    with pytest.warns(
        RuntimeWarning, match="helper refers to .not_yet., which nothing defines.* may fail with a NameError"
    ):
        spec = describe(module.handle)
    with pytest.raises(NameError):
        load(spec)(0)


def test_names_that_code_binds_are_not_warned_of_nor_builtins_and_names_of_classes() -> None:
    module = main_module(
        "def setup():\n    global model\n    model = 1\n"
        "def handle(m):\n"
        "    class Row:\n        n: int = len(m)\n        twice = n * 2\n        where = __qualname__\n"
        "    return [model, Row.twice, __debug__, __name__]\n"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = load(describe(handler(setup=module.setup)(module.handle)))
    assert loaded.setup is not None
    loaded.setup()
    assert loaded("ab") == [1, 4, True, "__main__"]


def test_the_main_module_of_a_worker_gets_what_pickle_looks_for_there() -> None:
    module = main_module(
        "import pickle\nfrom json import dumps\n"
        "class Order: pass\ndef helper(): pass\nhelpers, LIMIT, other = [helper], 3, helper\n"
        "def handle(m): return [Order, helper, dumps, LIMIT, other, helpers, handle, pickle]\n"
    )
    main = ModuleType("__main__")
    own = dict(vars(main))
    found = unpacked(packed(module.handle).pickled, main)
    shown = {name: value for name, value in vars(main).items() if name not in own}
    assert shown == {name: found.__globals__[name] for name in ("Order", "helper", "handle")}  # type: ignore[attr-defined]
    assert {name: vars(main)[name] for name in own} == own
    assert pickle.dumps(found.__globals__["dumps"])  # type: ignore[attr-defined]
