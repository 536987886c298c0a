"""JSON as fastjson 1.x writes it, which is not always JSON.

What differs (alibaba/fastjson MapSerializer.java; the server's settings are in PR/RemotingSerializable.java):
- Map keys that are no strings are written raw: `{0:"a:1"}`, and object keys as objects: `{{"brokerName":"b",...}:7}`.
  Here an integer key is an int, a key with exactly topic, brokerName and queueId a `MessageQueue`, any other object key a
  sorted tuple of its items.
- A repeated reference to one object may be `{"$ref":"$.path"}`: replaced by a copy of what it points to.

Standard JSON goes through the C parser; only a text which that refuses is read by the parser here. Both ways the text's
size, the nesting and what references expand to are bounded, and every failure is one ProtocolError. Integers in keys have 64
bits as Java's do: of larger ones any number can have one hash in Python, and each key would be compared with all others.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn, TypeGuard

from .errors import ProtocolError, UsageError
from .queues import MessageQueue

SIZE_MAX_BYTES = 16 * 1024 * 1024
# RocketMQ's bodies nest six deep; C code of the interpreter would take hundreds.
DEPTH_MAX = 64
REFERENCE_NODES_MAX = 1_000_000
_REFERENCE_CHARS_MAX = 1_000
_LONG = range(-(1 << 63), 1 << 63)

_skip_space = re.compile(r"[ \t\r\n]*").match
_lone_surrogate = re.compile("[\ud800-\udfff]").search
_path_steps = re.compile(r"\.((?:[^.\[\\]|\\.)+)|\[(\d{1,9})\]")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


_decoder = json.JSONDecoder(parse_constant=_refuse_constant)
_write_text: Callable[[object], str] = json.JSONEncoder(ensure_ascii=False).encode


def loads(
    data: bytes | bytearray | memoryview | str, where: str = "JSON body", *, size_max_bytes: int = SIZE_MAX_BYTES
) -> Any:
    """The value of a JSON or fastjson text. Raises ProtocolError (with `where`) when it is neither.

    Maps become dicts with str, int, MessageQueue or tuple keys; a repeated key has its last value.
    """
    if len(data) > size_max_bytes:
        raise ProtocolError(f"{len(data)} bytes are more than {size_max_bytes}", where)
    try:
        text = data if isinstance(data, str) else str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise ProtocolError(f"not UTF-8: {error}", where) from None
    try:
        try:
            value = _decoder.decode(text)
        except json.JSONDecodeError:
            value = _Reader(text).document()
        if '"$ref"' in text:
            value = _References(value).resolve(value, (), 0)
        if "\\u" in text:
            _refuse_lone_surrogates(value)
    except RecursionError:
        raise ProtocolError(f"nested deeper than {DEPTH_MAX} levels", where) from None
    except ValueError as error:
        raise ProtocolError(f"not JSON: {error}", where) from None
    return value


def is_object(value: object) -> TypeGuard[dict[Any, Any]]:
    return isinstance(value, dict)


def is_array(value: object) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def is_mapping(value: object) -> TypeGuard[Mapping[object, object]]:
    return isinstance(value, Mapping)


def is_sequence(value: object) -> TypeGuard[Iterable[object]]:
    """Whatever is written as an array."""
    return isinstance(value, list | tuple | set | frozenset)


def dumps(value: object) -> bytes:
    """Compact standard JSON in UTF-8; int keys are quoted. Raises UsageError when the value has no such form."""
    return _encode(value, quote_keys=True)


def dumps_object_keys(value: object) -> bytes:
    """Compact JSON as fastjson writes it: int keys raw, MessageQueue keys as objects. Raises UsageError.

    Java parses an object-keyed map only in this form; a quoted key is not an object to it.
    """
    return _encode(value, quote_keys=False)


def read_queue(value: object) -> MessageQueue | None:
    """The MessageQueue in an object (or in one that `loads` made of a key), or None when it is something else."""
    if isinstance(value, MessageQueue):
        return value
    if not is_object(value):
        return None
    topic, broker_name, queue_id = value.get("topic"), value.get("brokerName"), value.get("queueId")
    if isinstance(topic, str) and isinstance(broker_name, str) and type(queue_id) is int and queue_id in _LONG:
        return MessageQueue(topic, broker_name, queue_id)
    return None


class _Reader:
    """Recursive descent over what the standard parser refused; scalars are still read by the standard parser."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0

    def document(self) -> Any:
        value = self.value(0)
        self.skip()
        if self.position != len(self.text):
            self.fail("extra text")
        return value

    def fail(self, what: str) -> NoReturn:
        raise ValueError(f"{what} at character {self.position}")

    def skip(self) -> str:
        """Skip white space; the character that follows, or nothing at the end."""
        match = _skip_space(self.text, self.position)
        self.position = match.end() if match else self.position
        return self.text[self.position : self.position + 1]

    def value(self, depth: int) -> Any:
        first = self.skip()
        if first == "{":
            return self.object(depth + 1)
        if first == "[":
            return self.array(depth + 1)
        value, self.position = _decoder.raw_decode(self.text, self.position)
        return value

    def enter(self, depth: int) -> None:
        if depth > DEPTH_MAX:
            self.fail(f"nested deeper than {DEPTH_MAX} levels")
        self.position += 1

    def array(self, depth: int) -> list[Any]:
        self.enter(depth)
        result: list[Any] = []
        if self.skip() == "]":
            self.position += 1
            return result
        while True:
            result.append(self.value(depth))
            if self.closes("]"):
                return result

    def object(self, depth: int) -> dict[Any, Any]:
        self.enter(depth)
        result: dict[Any, Any] = {}
        if self.skip() == "}":
            self.position += 1
            return result
        while True:
            key = self.key(depth)
            if self.skip() != ":":
                self.fail("no colon after a key")
            self.position += 1
            result[key] = self.value(depth)
            if self.closes("}"):
                return result

    def key(self, depth: int) -> Any:
        key = self.value(depth)
        if is_object(key):
            return _queue_key(key)
        if not isinstance(key, str) and type(key) is not int:
            self.fail(f"a key that is a {type(key).__name__}")
        return _bounded(key)

    def closes(self, bracket: str) -> bool:
        """Step over a comma (False) or the closing bracket (True)."""
        char = self.skip()
        if char != bracket and char != ",":
            self.fail(f"neither comma nor {bracket}")
        self.position += 1
        return char == bracket


def _queue_key(key: dict[Any, Any]) -> Any:
    """An object that is a key, in a form that can be one."""
    queue = read_queue(key) if len(key) == 3 else None
    return queue if queue is not None else _frozen(key)


def _frozen(value: Any) -> Any:
    if is_object(value):
        return tuple(sorted(((name, _frozen(item)) for name, item in value.items()), key=repr))
    if is_array(value):
        return tuple(_frozen(item) for item in value)
    return _bounded(value)


def _bounded(value: Any) -> Any:
    """A part of a key as it is. Raises ValueError for an integer that is no Java long."""
    if isinstance(value, int) and value not in _LONG:
        raise ValueError("an integer of more than 64 bits in a key")
    return value


class _References:
    """Replaces `{"$ref":"$.a.b[0]"}` by copies, with a budget of nodes so that a few references cannot become gigabytes."""

    def __init__(self, root: Any) -> None:
        self.root = root
        self.nodes = 0
        self.found: dict[str, Any] = {}

    def resolve(self, value: Any, active: tuple[str, ...], depth: int) -> Any:
        self.nodes += 1
        if self.nodes > REFERENCE_NODES_MAX:
            raise ValueError(f"references expand to more than {REFERENCE_NODES_MAX} values")
        if depth > DEPTH_MAX:
            raise ValueError(f"nested deeper than {DEPTH_MAX} levels")
        if is_array(value):
            return [self.resolve(item, active, depth + 1) for item in value]
        if not is_object(value):
            return value
        path = value.get("$ref")
        if len(value) != 1 or not isinstance(path, str):
            return {name: self.resolve(item, active, depth + 1) for name, item in value.items()}
        if path in active:
            raise ValueError(f"reference {path!r:.80} goes round in a circle")
        return self.resolve(self.look_up(path), (*active, path), depth + 1)

    def look_up(self, path: str) -> Any:
        if path not in self.found:
            self.found[path] = self.follow(path)
        return self.found[path]

    def follow(self, path: str) -> Any:
        value = self.root
        position = 1
        while path.startswith("$") and position < len(path) <= _REFERENCE_CHARS_MAX:
            step = _path_steps.match(path, position)
            if step is None:
                break
            name, index = step.groups()
            value = _member(value, re.sub(r"\\(.)", r"\1", name) if name is not None else int(index))
            position = step.end()
        if not path.startswith("$") or position != len(path):
            raise ValueError(f"reference {path!r:.80} cannot be followed")
        return value


def _member(value: Any, name: str | int) -> Any:
    if is_object(value):
        if name in value:
            return value[name]
        number = isinstance(name, str) and len(name) < 20 and name.isascii() and name.isdigit()
        other = int(name) if number else str(name)
        if other in value:
            return value[other]
    elif is_array(value) and isinstance(name, int) and name < len(value):
        return value[name]
    raise ValueError(f"reference to {name!r:.80}, which is not there")


def _refuse_lone_surrogates(value: Any) -> None:
    """Half of a surrogate pair, written as an escape, is no character: it would fail far from here when encoded."""
    if isinstance(value, str):
        if _lone_surrogate(value):
            raise ValueError("a string holds half of a surrogate pair")
    elif is_object(value):
        for name, item in value.items():
            _refuse_lone_surrogates(name)
            _refuse_lone_surrogates(item)
    elif is_sequence(value):
        for item in value:
            _refuse_lone_surrogates(item)


def _encode(value: object, *, quote_keys: bool) -> bytes:
    parts: list[str] = []
    try:
        _write(value, parts.append, quote_keys, 0)
        return "".join(parts).encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"a string cannot be written as JSON: {error}") from None


def _write(value: object, put: Callable[[str], None], quote_keys: bool, depth: int) -> None:
    if depth > DEPTH_MAX:
        raise UsageError(f"a value nested deeper than {DEPTH_MAX} levels cannot be written as JSON")
    if value is None or isinstance(value, str | bool | int | float):
        if isinstance(value, float) and not -1.8e308 < value < 1.8e308:
            raise UsageError(f"{value} is no JSON number")
        put(_write_text(value))
    elif isinstance(value, MessageQueue):
        put(_queue_text(value))
    elif is_mapping(value):
        comma = "{"
        for name, item in value.items():
            put(comma)
            put(_key_text(name, quote_keys))
            put(":")
            _write(item, put, quote_keys, depth + 1)
            comma = ","
        put("}" if comma == "," else "{}")
    elif is_sequence(value):
        comma = "["
        for item in value:
            put(comma)
            _write(item, put, quote_keys, depth + 1)
            comma = ","
        put("]" if comma == "," else "[]")
    else:
        raise UsageError(f"a {type(value).__name__} cannot be written as JSON")


def _key_text(name: object, quote_keys: bool) -> str:
    if isinstance(name, str):
        return _write_text(name)
    if isinstance(name, int):
        return f'"{name:d}"' if quote_keys else f"{name:d}"
    if isinstance(name, MessageQueue) and not quote_keys:
        return _queue_text(name)
    raise UsageError(f"a {type(name).__name__} cannot be a key {'in standard JSON' if quote_keys else 'in JSON'}")


def _queue_text(queue: MessageQueue) -> str:
    return (
        f'{{"brokerName":{_write_text(queue.broker_name)},'
        f'"queueId":{queue.queue_id:d},"topic":{_write_text(queue.topic)}}}'
    )
