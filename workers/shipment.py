"""A function that travels by value, and what it brings with it. dill packs it; here is what dill would get wrong.

The functions and methods of one module share their globals in a worker, as they do here: a name that one of them binds (a
set-up hook, a counter, what is made when it is first needed) is bound for all. dill gives each function globals of its own.
Only the names that code refers to travel, and the submodules that it reaches by attributes, as `xml.dom.minidom`, are
imported again: naming the package alone does not load them.

A function is made first and given its names afterwards, so functions may refer to each other in a circle. A class is made by
dill when all that it consists of is there: what refers to one that is not finished (`_postproc` has these) is bound then.
A class that its own code reaches through something else, as a table of classes or a subclass, dill does not find. Then all
is packed once more, `late`: what may hold an unfinished class is bound when the outermost one is made. Not at first: code
that runs while a class is made, as `__set_name__` and `__init_subclass__`, would miss it.
"""

from __future__ import annotations

import builtins
import contextlib
import dis
import enum
import importlib
import io
import pickle
import sys
import threading
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any, Final, cast

import dill


@dataclass(frozen=True, slots=True)
class Packet:
    """`unbound`: names that code in it reads, which nothing binds, each with the function that reads it."""

    pickled: bytes
    unbound: dict[str, str]


def packed(found: object) -> Packet:
    """Raises what dill or a `__reduce__` raises, for what cannot travel."""
    with contextlib.suppress(dill.PicklingWarning):
        return _packed(found, late=False)
    return _packed(found, late=True)


def _packed(found: object, late: bool) -> Packet:
    packet = io.BytesIO()
    with warnings.catch_warnings():
        # dill warns of a class that it cannot take apart and only names, and goes on. No worker would find it.
        warnings.simplefilter("error", dill.PicklingWarning)
        shipment = _Shipment(packet, late)
        shipment.dump((found, _All(shipment.globals)))
    return Packet(packet.getvalue(), shipment.unbound())


def unpacked(pickled: bytes, main: ModuleType | None = None) -> object:
    """What was packed. `main`: the main module of a process that has no program of its own. It gets what was found in the
    sender's, under the same names, as that is where `pickle` looks for classes and functions of a script or a notebook."""
    found, all_globals = dill.loads(pickled)  # noqa: S301  it comes from our own supervisor
    for names in all_globals:
        if main is not None and names["__name__"] == "__main__":
            vars(main).update({name: value for name, value in names.items() if _is_of_main(value, name)})
    return found


def _is_of_main(value: object, name: str) -> bool:
    return getattr(value, "__module__", None) == "__main__" and getattr(value, "__qualname__", None) == name


@dataclass(frozen=True, slots=True, eq=False)
class _Globals:
    """The globals of a module, of which the named ones travel. In the worker it is a dict."""

    here: dict[str, Any]
    module: str
    read: dict[str, str] = field(default_factory=dict[str, str])
    """What code reads, each with the function that does."""
    bound: set[str] = field(default_factory=set[str])

    def unbound(self) -> dict[str, str]:
        known = self.here.keys() | vars(builtins).keys() | self.bound
        return {
            name: reader
            for name, reader in self.read.items()
            if name not in known and not (name.startswith("__") and name.endswith("__"))
        }


@dataclass(frozen=True, slots=True, eq=False)
class _All:
    """Of a packet: what all its functions have as globals, in the worker a list of dicts."""

    found: dict[int, _Globals]


class _Shipment(dill.Pickler):
    """What dill would get wrong without a word, or with one that names nobody."""

    _postproc: dict[int, list[tuple[Callable[..., Any], tuple[Any, ...]]]]
    """dill's: what is to be done when the class with that id is made, for those that are under way, from the outermost."""

    def __init__(self, packet: io.BytesIO, late: bool) -> None:
        # recurse: the globals that the function refers to travel with it, not the whole of its module.
        super().__init__(packet, recurse=True)
        self._late: Final = late
        self.globals: Final[dict[int, _Globals]] = {}

    def unbound(self) -> dict[str, str]:
        return {name: reader for found in self.globals.values() for name, reader in found.unbound().items()}

    def persistent_id(self, obj: Any) -> None:
        """dill opens a file anew where it is unpickled, which empties one that is open for writing, once in each worker."""
        is_file = isinstance(obj, (io.TextIOWrapper, io.BufferedIOBase, io.RawIOBase)) and not isinstance(
            obj, io.BytesIO
        )
        if is_file and obj not in (sys.__stdin__, sys.__stdout__, sys.__stderr__):
            name: object = getattr(cast("Any", obj), "name", None)
            raise TypeError(f"an open file, {name!r}, would be opened again by each worker")

    def reducer_override(self, obj: Any) -> Any:
        """dill makes an RLock that is held by a thread 0, and so never free, and a Lock that is held where it was here; of an
        enumeration a name that nobody has."""
        if type(obj) is FunctionType:
            return NotImplemented if _is_known_by_name(obj) else self._function_parts(obj)
        if type(obj) is CellType:
            return self._cell_parts(obj)
        if type(obj) is _Globals:
            kept = {name: obj.here[name] for name in _OF_A_MODULE if name in obj.here}
            return _globals_made, tuple({"__name__": obj.module, **kept}.items())
        if type(obj) is _All:
            return list, (list(obj.found.values()),)
        for lock in (threading.RLock, threading.Lock):
            if isinstance(obj, type(lock())):
                return lock, ()
        if type(obj) is enum.EnumMeta and not _is_known_by_name(obj):
            return _enum_parts(obj)
        if hasattr(obj, "__struct_config__") and isinstance(obj, type) and not _is_known_by_name(obj):
            raise pickle.PicklingError(f"{obj!r} is a msgspec.Struct, which cannot be taken apart")
        return NotImplemented

    def _function_parts(self, function: FunctionType) -> Any:
        here, code, used = function.__globals__, function.__code__, _names_in(function.__code__)
        module = here.get("__name__", function.__module__)
        shared = self.globals.setdefault(id(here), _Globals(here, module))
        shared.bound.update(used.bound)
        names: dict[str, Any] = {}
        for name in sorted(used.read):
            shared.read.setdefault(name, function.__qualname__)
            if name in _OF_A_MODULE or not (name in here or _is_added(name)):
                continue
            value = here[name] if name in here else getattr(builtins, name)
            unfinished = self._unfinished(value, self._late)
            if unfinished is None:
                names[name] = value
            else:
                unfinished.append((_globals_given, (shared, {name: value})))
        attributes: list[tuple[str, Any]] = []
        for name, value in _attributes(function, module):
            unfinished = self._unfinished(value, self._late)
            if unfinished is None:
                attributes.append((name, value))
            else:
                unfinished.append((setattr, (function, name, value)))
        parts = code, shared, function.__closure__
        state = names, attributes, sorted(_submodules(function, used))
        return _function_made, parts, state, None, None, _function_given

    def _cell_parts(self, cell: CellType) -> Any:
        try:
            value = cell.cell_contents
        except ValueError:
            return _empty_cell, ()
        unfinished = self._unfinished(value, late=True)
        if unfinished is None:
            return _empty_cell, (), (value,), None, None, _cell_given
        unfinished.append((_cell_given, (cell, (value,))))
        return _empty_cell, ()

    def _unfinished(self, value: object, late: bool) -> list[tuple[Callable[..., Any], tuple[Any, ...]]] | None:
        """What is to be done later, where the value is a class that is not finished, or an object of one. `late`: also where
        it may hold what refers to one."""
        if id(value) in self._postproc:
            return self._postproc[id(value)]
        if not late:
            return self._postproc.get(id(type(value)))
        if _is_plain(value) or (
            self._late and type(value) is FunctionType
        ):  # what a function holds is bound late itself
            return None
        return next(iter(self._postproc.values()), None)

    def save_global(self, obj: Any, name: str | None = None) -> None:
        """A worker's main module is another one. (Functions and classes of it do not come here: dill takes them apart.)"""
        if getattr(obj, "__module__", None) == "__main__":
            raise pickle.PicklingError(f"{obj!r} is of the main module, which workers do not have")
        super().save_global(obj, name)


_OF_A_MODULE: Final = ("__name__", "__package__", "__file__", "__builtins__")
"""Its own `__builtins__` a worker has. By `__package__` relative imports find what they name."""


def _is_plain(value: object, depth_max: int = 3) -> bool:
    """Whether it holds no class that dill takes apart. What is large or deep, or goes in a circle, is not looked through."""
    if isinstance(value, type):
        return _is_known_by_name(value)
    if type(value) in {tuple, list, set, frozenset, dict}:
        held = cast("Collection[object]", value)
        if len(held) > _LOOKED_THROUGH_MAX or depth_max == 0:
            return False
        values = cast("dict[object, object]", value).values() if isinstance(value, dict) else ()
        return all(_is_plain(each, depth_max - 1) for each in (*held, *values))
    return type(value) in {ModuleType, bool, int, float, str, bytes, type(None)}


_LOOKED_THROUGH_MAX: Final = 100
"""Members of a list or dict."""


def _is_added(name: str) -> bool:
    """Whether it is a builtin that a plain interpreter does not have: IPython's `display`, gettext's `_`."""
    value = getattr(builtins, name, None)
    plain = {"builtins", "io", "_io", "_sitebuiltins"}
    module = getattr(value, "__module__", None)
    return value is not None and (module if isinstance(module, str) else type(value).__module__) not in plain


def _globals_made(*named: tuple[str, object]) -> dict[str, Any]:
    return {**dict(named), "__builtins__": vars(builtins)}


def _globals_given(names: dict[str, Any], more: dict[str, Any]) -> None:
    names.update(more)


def _function_made(code: CodeType, names: dict[str, Any], closure: tuple[CellType, ...] | None) -> FunctionType:
    return FunctionType(code, names, closure=closure)


def _attributes(function: FunctionType, module: str) -> Iterator[tuple[str, Any]]:
    """What `_function_made` does not give it."""
    code = function.__code__
    made: dict[str, object] = {
        "__name__": code.co_name, "__qualname__": code.co_qualname, "__module__": module, "__doc__": None,
        "__defaults__": None, "__kwdefaults__": None, "__annotations__": {},
    }  # fmt: skip
    for name, given in made.items():
        value = getattr(function, name)
        if value != given:
            yield name, value
    yield from vars(function).items()


def _function_given(
    function: FunctionType,
    state: tuple[dict[str, Any], list[tuple[str, Any]], list[str]],
) -> None:
    names, attributes, submodules = state
    function.__globals__.update(names)
    for name, value in attributes:
        setattr(function, name, value)
    for name in submodules:
        importlib.import_module(name)


def _empty_cell() -> CellType:
    return CellType()


def _cell_given(cell: CellType, contents: tuple[object]) -> None:
    (cell.cell_contents,) = contents


@dataclass(frozen=True, slots=True)
class _Names:
    """Of a code and of those in it, as of functions and classes that it makes."""

    read: set[str] = field(default_factory=set[str])
    bound: set[str] = field(default_factory=set[str])
    chains: list[tuple[bool, list[str]]] = field(default_factory=list[tuple[bool, list[str]]])
    """`xml.dom.minidom` is three names; first whether the first is a global, else of an enclosing function."""


def _names_in(code: CodeType) -> _Names:
    found, own, chain = _Names(), set[str](), list[str]()
    for each in dis.get_instructions(code):
        kind, name = each.opname, each.argval
        if kind in {"LOAD_ATTR", "LOAD_METHOD"}:
            chain.append(name)
            continue
        if kind == "STORE_NAME":
            own.add(name)  # of a class
        elif kind == "STORE_GLOBAL":
            found.bound.add(name)
        elif "GLOBAL" in kind or kind == "LOAD_NAME":
            found.read.add(name)
        chain = [name]
        if kind.startswith("LOAD_") and ("GLOBAL" in kind or "NAME" in kind or "DEREF" in kind):
            found.chains.append(("DEREF" not in kind, chain))
    found.read.difference_update(own)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            more = _names_in(inner)
            found.read.update(more.read)
            found.bound.update(more.bound)
            found.chains.extend(more.chains)
    return found


def _submodules(function: FunctionType, used: _Names) -> Iterator[str]:
    enclosing: dict[str, object] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # nothing is in it
            enclosing[name] = cell.cell_contents
    for is_global, (first, *attributes) in used.chains:
        names: Mapping[str, object] = function.__globals__ if is_global else enclosing
        value = names.get(first)
        for attribute in attributes:
            if not isinstance(value, ModuleType):
                break
            name = f"{value.__name__}.{attribute}"
            value = sys.modules.get(name)
            if value is not None:
                yield name


def _enum_parts(found: enum.EnumMeta) -> Any:
    """How an enumeration is made in a worker: its members by their values, and then what else its class has, as functions
    there may refer to it. One that makes its members by a function of its own is left to dill, which refuses it."""
    members: dict[str, Any] = dict(found.__members__)
    parts = (
        found.__bases__, found.__name__, found.__module__, found.__qualname__,
        [(name, member._value_) for name, member in members.items()], getattr(found, "_boundary_", None),
    )  # fmt: skip
    if len(found.__bases__) > 2 or "__init__" in vars(found):
        return NotImplemented
    try:
        made = _enum_made(*parts)
    except Exception:  # noqa: BLE001  the code of a class that is mixed in runs: a date's, say
        return NotImplemented
    twin, again = vars(made), dict[str, Any](made.__members__)
    if [each._value_ for each in again.values()] != [each._value_ for each in members.values()]:
        return NotImplemented
    given: list[dict[str, object]] = [vars(member) for member in members.values()]
    of_twins: list[dict[str, object]] = [vars(member) for member in again.values()]
    known = {name for names in of_twins for name in names}
    if any(name not in known and not hasattr(found, name) for names in given for name in names):
        return NotImplemented  # to its members, afterwards
    if vars(found)["_new_member_"] is not twin["_new_member_"]:
        return NotImplemented
    more = {
        name: value
        for name, value in vars(found).items()
        if name not in twin or (name.startswith("__") and value is not twin[name] and name not in _OF_A_CLASS)
    }
    return _enum_made, parts, more, None, None, _give


_OF_A_CLASS: Final = frozenset({"__dict__", "__weakref__", "__module__", "__qualname__"})


def _enum_made(
    bases: tuple[Any, ...], name: str, module: str, qualname: str, members: list[tuple[str, object]], boundary: object
) -> enum.EnumMeta:
    *mixed_in, base = bases
    more: dict[str, object] = {} if boundary is None else {"boundary": boundary}
    made = base(name, members, module=module, qualname=qualname, type=mixed_in[0] if mixed_in else None, **more)
    return cast("enum.EnumMeta", made)


def _give(made: object, more: dict[str, object]) -> None:
    for name, value in more.items():
        setattr(made, name, value)


def _is_known_by_name(found: type | FunctionType) -> bool:
    """Whether a worker gets this very class or function by importing it."""
    return found.__module__ != "__main__" and named(sys.modules.get(found.__module__), found.__qualname__) is found


def named(module: object, name: str) -> object:
    """What the qualified name names there; None for nothing."""
    found = module
    for part in name.split("."):
        found = getattr(found, part, None)
    return found
