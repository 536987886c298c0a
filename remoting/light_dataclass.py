"""`@dataclass(frozen=True, slots=True)` for modules with dozens of them: its methods are there when they are first called.

The standard one writes and compiles six methods for each class, which takes half a millisecond: nearly half of a command's
start, for headers and bodies that it never makes. Here fields and slots are the standard one's. The constructor is compiled
with the first object, to be as fast as that one's; all else is the same functions for all classes. To a type checker it is
the standard one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import Field, FrozenInstanceError, fields
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass  # noqa: PLC0414  to be imported from here
else:

    def dataclass(**options: bool) -> Callable[[type], type]:
        """With other options than these two it is the standard one."""
        return made_late if options == {"frozen": True, "slots": True} else dataclasses.dataclass(**options)


def made_late(cls: type) -> type:
    standard = dataclasses.dataclass(init=False, repr=False, eq=False, slots=True)
    made = cast("type", standard(cls))
    assert all(one.init for one in fields(made)), f"{cls.__name__} has a field that its constructor does not take"
    for name, method in {"__init__": _constructor(made), **_METHODS}.items():
        if name not in vars(cls):
            setattr(made, name, method)
    return made


def _constructor(made: Any) -> Callable[..., None]:
    """Makes the true one, puts it into its place and calls it."""

    def first(self: object, *arguments: Any, **named: Any) -> None:
        hook = getattr(made, "__post_init__", None)
        donor: Any = dataclasses.make_dataclass(
            made.__name__, [(one.name, one.type, _again(one)) for one in fields(made)],
            namespace={"__doc__": made.__name__, **({"__post_init__": hook} if hook else {})},
            frozen=True, repr=False, eq=False,
        )  # fmt: skip
        made.__init__ = donor.__init__
        made.__init__(self, *arguments, **named)

    return first


def _again(one: Field[Any]) -> Any:
    """The same field for another class."""
    options: Any = {"default": one.default, "default_factory": one.default_factory}
    return dataclasses.field(init=one.init, kw_only=bool(one.kw_only), **options)


def _values(self: Any, wanted: Callable[[Field[Any]], bool]) -> tuple[Any, ...]:
    return tuple(getattr(self, one.name) for one in fields(self) if wanted(one))


def _repr(self: Any) -> str:
    shown = ", ".join(f"{one.name}={getattr(self, one.name)!r}" for one in fields(self) if one.repr)
    return f"{type(self).__qualname__}({shown})"


def _eq(self: object, other: object) -> Any:
    if other.__class__ is not self.__class__:
        return NotImplemented
    return _values(self, lambda one: one.compare) == _values(other, lambda one: one.compare)


def _hash(self: object) -> int:
    return hash(_values(self, lambda one: one.compare if one.hash is None else one.hash))


def _set(_self: object, name: str, _value: object) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _delete(_self: object, name: str) -> None:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _state(self: object) -> tuple[Any, ...]:
    return _values(self, lambda _: True)


def _restore(self: Any, state: tuple[Any, ...]) -> None:
    for one, value in zip(fields(self), state, strict=True):
        object.__setattr__(self, one.name, value)


_METHODS: dict[str, Callable[..., Any]] = {
    "__repr__": _repr, "__eq__": _eq, "__hash__": _hash, "__setattr__": _set, "__delattr__": _delete,
    "__getstate__": _state, "__setstate__": _restore,
}  # fmt: skip
