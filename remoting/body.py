"""How typed bodies turn into JSON and back: one small machine under the declarations of `bodies.py`.

A body is a frozen dataclass whose annotations are made of str, int, float, bool, MessageQueue, other bodies,
`tuple[T, ...]`, `dict[K, V]` (keys str, int or MessageQueue) and `T | None`. The name in JSON is the attribute in camel case
unless the class's `WIRE` says otherwise. As with fastjson, names are written in alphabetical order, None is left out, unknown
names are ignored, and null for something that has a default is that default.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from types import NoneType, UnionType
from typing import Any, ClassVar, NamedTuple, Self, cast, get_args, get_origin, get_type_hints

from .errors import ProtocolError
from .fastjson import dumps, dumps_object_keys, is_array, is_object, is_sequence, loads, read_queue
from .fields import camel_case
from .queues import MessageQueue

_Reader = Callable[[Any], Any]


class _Bad(Exception):
    """A value cannot be read. `path` grows from the inside out while it is raised."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.path: list[str] = []


class _Member(NamedTuple):
    attribute: str
    wire: str
    read: _Reader
    default: Callable[[], Any] | None


class Body:
    """Base of typed bodies. Subclasses are frozen dataclasses."""

    __slots__ = ()
    WIRE: ClassVar[Mapping[str, str]] = {}
    # Whether `encode` quotes int keys, as a name server does for clients of version 401 and later.
    QUOTE_KEYS: ClassVar[bool] = False

    def to_json(self) -> dict[str, Any]:
        """This body as dicts, lists and scalars; int and MessageQueue keys stay what they are."""
        result: dict[str, Any] = {}
        for attribute, wire, _, _ in sorted(_members_of(type(self)), key=_wire_of):
            value = getattr(self, attribute)
            if value is not None:
                result[wire] = _to_json(value)
        return result

    def encode(self) -> bytes:
        """The bytes of this body. Raises UsageError when a value has no JSON form."""
        return dumps(self.to_json()) if self.QUOTE_KEYS else dumps_object_keys(self.to_json())

    @classmethod
    def prepare(cls, value: object) -> object:
        """A chance to bring another form of the same thing into the declared one, before it is read."""
        return value

    @classmethod
    def from_json(cls, value: object) -> Self:
        """The body in a value that `loads` gave. Raises ProtocolError naming the member."""
        try:
            return cast("Self", _read_body(cls, value))
        except _Bad as error:
            path = "".join(reversed(error.path)).lstrip(".")
            raise ProtocolError(f"{path} {error}" if path else str(error), f"{cls.__name__} body") from None

    @classmethod
    def decode(cls, data: bytes | bytearray | memoryview) -> Self:
        """The body in these bytes. Raises ProtocolError when they are no JSON, or other JSON than this."""
        return cls.from_json(loads(data, f"{cls.__name__} body"))


def _wire_of(member: _Member) -> str:
    return member.wire


def _to_json(value: Any) -> Any:
    if isinstance(value, Body):
        return value.to_json()
    if isinstance(value, MessageQueue):
        return value
    if is_object(value):
        return {name: _to_json(item) for name, item in value.items()}
    if is_sequence(value):
        return [_to_json(item) for item in value]
    return value


# What the declarations say, read once per class: a constant in effect, and as bounded as the number of classes.
_declared: dict[type[Body], tuple[_Member, ...]] = {}


def _members_of(cls: type[Body]) -> tuple[_Member, ...]:
    known = _declared.get(cls)
    if known is None:
        known = _declared[cls] = _read_declaration(cls)
    return known


def _read_declaration(cls: type[Any]) -> tuple[_Member, ...]:
    hints = get_type_hints(cls)
    result: list[_Member] = []
    for item in fields(cls):
        default: Callable[[], Any] | None = None
        if item.default is not MISSING:
            constant: Any = item.default
            default = _constant(constant)
        elif item.default_factory is not MISSING:
            default = item.default_factory
        wire = cls.WIRE.get(item.name, camel_case(item.name))
        result.append(_Member(item.name, wire, _reader_of(hints[item.name]), default))
    return tuple(result)


def _constant(value: Any) -> Callable[[], Any]:
    return lambda: value


def _read_body(cls: type[Body], value: object) -> Body:
    value = cls.prepare(value)
    if not is_object(value):
        raise _Bad(f"is a {_name(value)}, not an object")
    arguments: list[Any] = []
    for _, wire, read, default in _members_of(cls):
        item = value.get(wire)
        if item is None:
            if default is None:
                raise _Bad(f"lacks {wire}")
            arguments.append(default())
            continue
        try:
            arguments.append(read(item))
        except _Bad as error:
            error.path.append(f".{wire}")
            raise
    return cls(*arguments)


def _reader_of(hint: Any) -> _Reader:
    scalar = _SCALARS.get(hint)
    if scalar is not None:
        return scalar
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is UnionType:
        (inner,) = (argument for argument in arguments if argument is not NoneType)
        return _reader_of(inner)
    if origin is tuple:
        return _tuple_reader(_reader_of(arguments[0]))
    if origin is dict:
        return _dict_reader(_reader_of(arguments[0]), _reader_of(arguments[1]))
    if isinstance(hint, type) and issubclass(hint, Body):
        body = hint
        return lambda value: _read_body(body, value)
    raise TypeError(f"a body cannot have a member of type {hint}")


def _tuple_reader(read: _Reader) -> _Reader:
    def read_tuple(value: Any) -> tuple[Any, ...]:
        if not is_array(value):
            raise _Bad(f"is a {_name(value)}, not an array")
        result: list[Any] = []
        for item in value:
            try:
                result.append(read(item))
            except _Bad as error:
                error.path.append(f"[{len(result)}]")
                raise
        return tuple(result)

    return read_tuple


def _dict_reader(read_key: _Reader, read_value: _Reader) -> _Reader:
    def read_dict(value: Any) -> dict[Any, Any]:
        if not is_object(value):
            raise _Bad(f"is a {_name(value)}, not an object")
        result: dict[Any, Any] = {}
        for name, item in value.items():
            if item is None:
                continue
            try:
                result[read_key(name)] = read_value(item)
            except _Bad as error:
                error.path.append(f"[{name!r:.80}]")
                raise
        return result

    return read_dict


def _read_str(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    raise _Bad(f"is a {_name(value)}, not a string")


def _read_int(value: Any) -> int:
    if isinstance(value, str) and len(value) <= 20 and value.isascii() and value.removeprefix("-").isdigit():
        value = int(value)
    if type(value) is not int:
        raise _Bad(f"is a {_name(value)}, not an integer")
    if not -(1 << 63) <= value < 1 << 63:
        raise _Bad("is an integer of more than 64 bits")
    return value


def _read_float(value: Any) -> float:
    if type(value) is float or (type(value) is int and -(1 << 63) <= value < 1 << 63):
        return float(value)
    raise _Bad(f"is a {_name(value)}, not a number")


def _read_bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value in ("true", "false"):
        return value == "true"
    raise _Bad(f"is a {_name(value)}, not true or false")


def _read_message_queue(value: Any) -> MessageQueue:
    """A queue; also one written as a quoted key, as servers of other kinds do for the sake of standard JSON."""
    if isinstance(value, str) and value.startswith("{"):
        value = loads(value, "quoted message queue")
    queue = read_queue(value)
    if queue is None:
        raise _Bad(f"is a {_name(value)}, not a message queue (topic, brokerName, queueId)")
    return queue


def _name(value: object) -> str:
    return "null" if value is None else type(value).__name__


_SCALARS: dict[Any, _Reader] = {
    str: _read_str,
    int: _read_int,
    float: _read_float,
    bool: _read_bool,
    MessageQueue: _read_message_queue,
}
