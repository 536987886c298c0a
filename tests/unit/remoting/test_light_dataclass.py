"""Dataclasses whose methods are made late behave as the standard ones."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from dataclasses import FrozenInstanceError, dataclass, field
from typing import Any, ClassVar

import pytest

from rocketcrew.remoting import light_dataclass


@dataclass(frozen=True, slots=True)
class Standard:
    """One with all kinds of fields."""

    LIMIT: ClassVar[int] = 7
    name: str
    count: int = 3
    parts: list[int] = field(default_factory=list[int])
    secret: str = field(default="s", repr=False)
    note: str = field(default="", compare=False)
    at: float = field(default=0.5, kw_only=True)

    def __post_init__(self) -> None:
        if self.count > self.LIMIT:
            raise ValueError("too many")


@light_dataclass.dataclass(frozen=True, slots=True)
class Light:
    """The same."""

    LIMIT: ClassVar[int] = 7
    name: str
    count: int = 3
    parts: list[int] = field(default_factory=list[int])
    secret: str = field(default="s", repr=False)
    note: str = field(default="", compare=False)
    at: float = field(default=0.5, kw_only=True)

    def __post_init__(self) -> None:
        if self.count > self.LIMIT:
            raise ValueError("too many")


@light_dataclass.dataclass(frozen=True, slots=True)
class Longer(Light):
    """With one field more, and words of its own."""

    more: str = "more"

    def __repr__(self) -> str:
        return f"longer by {self.more}"


def test_its_objects_are_those_of_the_standard_one() -> None:
    each: list[tuple[Any, Any]] = [(("a",), {}), (("a", 5, [1]), {"at": 2.0}), (("a",), {"note": "n", "secret": "t"})]
    for arguments, named in each:
        standard: Any
        light: Any
        standard, light = Standard(*arguments, **named), Light(*arguments, **named)
        assert dataclasses.asdict(light) == dataclasses.asdict(standard)
        assert repr(light) == repr(standard).replace("Standard", "Light")
        assert light == Light(*arguments, **named)
        assert light != standard
    assert Light("a", note="x") == Light("a", note="y")
    assert Light("a").parts is not Light("a").parts
    no_list: Any = ()
    assert hash(Longer("a", parts=no_list)) == hash(Longer("a", parts=no_list, note="x"))
    assert dataclasses.replace(Light("a"), count=1).count == 1
    assert (repr(Longer("a", more="b")), Longer("a").count, Longer.__match_args__[-1]) == ("longer by b", 3, "more")


@pytest.mark.parametrize("kind", [Standard, Light])
def test_what_is_wrong_is_refused_as_by_the_standard_one(kind: Any) -> None:
    made = kind("a")
    for wrong in (kind, lambda: kind("a", 1, [], "", "", 2.0), lambda: kind("a", other=1)):
        with pytest.raises(TypeError):
            wrong()
    with pytest.raises(ValueError, match="too many"):
        kind("a", 8)
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'name'"):
        made.name = "b"
    with pytest.raises(FrozenInstanceError, match="cannot delete field 'name'"):
        del made.name
    assert not hasattr(made, "__dict__")


@pytest.mark.parametrize("kind", [Light, Longer])
def test_it_is_copied_and_pickled_also_before_the_first_call_of_its_constructor(kind: Any) -> None:
    made = kind("a", 1, [2], at=3.0)
    assert pickle.loads(pickle.dumps(made)) == made
    assert copy.deepcopy(made) == made
    assert copy.copy(made) is not made
