"""Column declarations: Spark DDL text <-> Arrow schema, and what may be a result column at all.

DDL is what Spark users write (`"module string, line int not null, tags array<string>"`); the parser takes the types that
both Spark 4 and Arrow have. A pyarrow schema or a dataclass may be given instead and is brought to the same types, so that
the loader never meets a type that Spark reads differently: timestamps are microseconds in UTC, no unsigned 64 bit, no
views, no dictionaries. Names that start with an underscore belong to the key columns.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import re
import types
import typing
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ..conf.columns import BATCH_COLUMN, folded, named_twice
from ..remoting.errors import UsageError

if TYPE_CHECKING:
    Field = pa.Field[Any]

INFER: Final = "infer"
"""In place of a declaration: found from the first rows (inferring.py)."""
COLUMNS_MAX: Final = 2_000
DEPTH_MAX: Final = 20
TypeOf = Callable[[str], Any]
"""The Arrow type of the field of that name."""

_SIMPLE: Final[dict[str, Callable[[], pa.DataType]]] = {
    "boolean": pa.bool_,
    "tinyint": pa.int8,
    "byte": pa.int8,
    "smallint": pa.int16,
    "short": pa.int16,
    "int": pa.int32,
    "integer": pa.int32,
    "bigint": pa.int64,
    "long": pa.int64,
    "float": pa.float32,
    "real": pa.float32,
    "double": pa.float64,
    "string": pa.string,
    "binary": pa.binary,
    "date": pa.date32,
    "timestamp": lambda: pa.timestamp("us", tz="UTC"),
    "timestamp_ltz": lambda: pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": lambda: pa.timestamp("us"),
}
_NAMES: Final[dict[Any, str]] = {
    pa.bool_(): "boolean",
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.date32(): "date",
    pa.timestamp("us", tz="UTC"): "timestamp",
    pa.timestamp("us"): "timestamp_ntz",
}
_TOKEN = re.compile(r"\s*(?:(`(?:[^`]|``)+`)|('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|(\w+)|([<>(),:]))")
_PLAIN_NAME = re.compile(r"[A-Za-z]\w*")


def parse_ddl(text: str) -> pa.Schema:
    """Arrow schema of Spark DDL text (columns `name type [not null] [comment '…']`). Raises UsageError saying where."""
    return checked(_Parser(text).schema())


def table_schema(text: str) -> pa.Schema:
    """The columns of a whole table, with the key columns that no handler may name. Raises UsageError."""
    return _Parser(text).schema()


def to_ddl(schema: pa.Schema) -> str:
    """DDL text of a schema made by this module; `parse_ddl` gives the same schema back."""
    return ", ".join(_field_ddl(field, " ") for field in fields_of(schema))


def as_schema(declared: object) -> pa.Schema:
    """Schema of a declaration: DDL text, pyarrow schema or dataclass. Raises UsageError."""
    if isinstance(declared, str):
        return parse_ddl(declared)
    if isinstance(declared, pa.Schema):
        fields = [_normal_field(field, field.name) for field in fields_of(declared)]
        return checked(pa.schema(fields))
    if isinstance(declared, type) and dataclasses.is_dataclass(declared):
        return checked(pa.schema(_dataclass_fields(declared, 0)))
    raise UsageError(f"schema: {declared!r} is neither DDL text nor a pyarrow schema nor a dataclass")


def as_schema_with(declared: type[Any], undeclared: TypeOf) -> pa.Schema:
    """As `as_schema` of a dataclass, with the types of the fields whose annotations are none, as a bare `list`."""
    return as_schema(pa.schema(_dataclass_fields(declared, 0, undeclared)))


def fields_of(kind: Any) -> list[Field]:
    """The fields of a schema or struct type."""
    count: int = len(kind.names) if hasattr(kind, "names") else kind.num_fields
    return [kind.field(number) for number in range(count)]


def checked(schema: pa.Schema) -> pa.Schema:
    """`schema`, or UsageError for names that cannot be columns (Spark compares names without regard to case)."""
    if not len(schema) or len(schema) > COLUMNS_MAX:
        raise UsageError(f"schema: {len(schema)} columns, legal are 1 to {COLUMNS_MAX}")
    for name in schema.names:
        if name.startswith("_") or not name:
            raise UsageError(f'schema: column "{name}": names that start with "_" belong to the key columns; rename it')
        if folded(name) == BATCH_COLUMN:
            raise UsageError(f'schema: column "{name}" is one that every table has, the number of the batch: rename it')
    if twice := named_twice(schema):
        raise UsageError(f'schema: column "{twice}" is declared twice (names are compared without regard to case)')
    return schema


def _field_ddl(field: Field, separator: str) -> str:
    name = field.name if _PLAIN_NAME.fullmatch(field.name) else "`" + field.name.replace("`", "``") + "`"
    return f"{name}{separator}{_type_ddl(field.type)}{'' if field.nullable else ' not null'}"


def _type_ddl(kind: Any) -> str:
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_list(kind):
        return f"array<{_type_ddl(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"map<{_type_ddl(kind.key_type)},{_type_ddl(kind.item_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(_field_ddl(field, ': ') for field in fields_of(kind))}>"
    return _NAMES[kind]


class _Parser:
    """Recursive descent over the tokens; at most DEPTH_MAX types deep."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[tuple[str, int]] = []
        self._next = 0
        position = 0
        while text[position:].strip():
            match = _TOKEN.match(text, position)
            if match is None:
                raise UsageError(f'schema: unexpected "{text[position:].strip()[:20]}" in "{text}"')
            token = match.group().strip()
            self._tokens.append((token, match.end() - len(token)))
            position = match.end()

    def schema(self) -> pa.Schema:
        fields = self._fields(0, "")
        if self._peek():
            raise self._error('expected "," or the end')
        return pa.schema(fields)

    def _fields(self, depth: int, end: str) -> list[Field]:
        fields: list[Field] = []
        while self._peek() != end or not fields:
            if fields:
                self._expect(",")
            fields.append(self._field(depth))
        return fields

    def _field(self, depth: int) -> Field:
        name = self._peek()
        if name.startswith("`"):
            name = name[1:-1].replace("``", "`")
        elif not name or not (name[0].isalpha() or name[0] == "_"):
            raise self._error("expected a column name")
        self._next += 1
        if self._peek() == ":":
            self._next += 1
        kind = self._type(depth)
        nullable = True
        if self._peek().lower() == "not":
            self._next += 1
            self._expect("null")
            nullable = False
        if self._peek().lower() == "comment":
            self._next += 1
            if not self._peek().startswith(("'", '"')):
                raise self._error("expected the comment's text in quotes")
            self._next += 1
        return pa.field(name, kind, nullable=nullable)

    def _type(self, depth: int) -> pa.DataType:
        if depth > DEPTH_MAX:
            raise self._error(f"types nested deeper than {DEPTH_MAX}")
        word = self._peek().lower()
        self._next += 1
        if word in _SIMPLE:
            return _SIMPLE[word]()
        if word in ("decimal", "dec", "numeric"):
            return self._decimal()
        if word in ("varchar", "char", "character"):
            self._numbers()
            return pa.string()
        if word in ("array", "map", "struct"):
            return self._nested(word, depth)
        self._next -= 1
        raise self._error("expected a type" if word in ("", ",") else f'unknown type "{word}"')

    def _nested(self, word: str, depth: int) -> pa.DataType:
        self._expect("<")
        if word == "struct":
            kind: pa.DataType = pa.struct(self._fields(depth + 1, ">"))
        else:
            first = self._type(depth + 1)
            if word == "array":
                kind = pa.list_(first)
            else:
                self._expect(",")
                kind = pa.map_(first, self._type(depth + 1))
        self._expect(">")
        return kind

    def _decimal(self) -> pa.DataType:
        numbers = self._numbers() if self._peek() == "(" else []
        precision, scale = [*numbers, *(10, 0)[len(numbers) :]][:2]
        if not (1 <= precision <= 38 and 0 <= scale <= precision):
            raise self._error(f"decimal({precision},{scale}): legal are precision 1 to 38, scale 0 to precision")
        return pa.decimal128(precision, scale)

    def _numbers(self) -> list[int]:
        self._expect("(")
        numbers: list[int] = []
        while self._peek() != ")":
            if not self._peek().isdecimal():
                raise self._error("expected a number")
            numbers.append(int(self._peek()))
            self._next += 1
            if self._peek() == ",":
                self._next += 1
        self._next += 1
        return numbers

    def _peek(self) -> str:
        return self._tokens[self._next][0] if self._next < len(self._tokens) else ""

    def _expect(self, token: str) -> None:
        if self._peek().lower() != token:
            raise self._error(f'expected "{token}"')
        self._next += 1

    def _error(self, what: str) -> UsageError:
        if self._next >= len(self._tokens):
            return UsageError(f'schema: {what} at the end of "{self._text}"')
        token, position = self._tokens[self._next]
        return UsageError(f'schema: {what} at "{token}" (character {position + 1}) of "{self._text}"')


def _normal_field(field: Field, path: str) -> Field:
    return pa.field(field.name, _normal_type(field.type, path), nullable=field.nullable)


def _normal_type(kind: Any, path: str) -> pa.DataType:
    """The type of this module's set that holds every value of `kind`. Raises UsageError when there is none."""
    is_: Any = pa.types
    same: pa.DataType = kind
    if kind in _NAMES or is_.is_decimal128(kind):
        return same
    if is_.is_timestamp(kind):
        return pa.timestamp("us", tz="UTC") if kind.tz else pa.timestamp("us")
    widened: dict[Any, pa.DataType] = {
        pa.uint8(): pa.int16(),
        pa.uint16(): pa.int32(),
        pa.uint32(): pa.int64(),
        pa.date64(): pa.date32(),
    }
    if kind in widened:
        return widened[kind]
    if is_.is_float16(kind):
        return pa.float32()
    if is_.is_large_string(kind):
        return pa.string()
    if is_.is_large_binary(kind) or is_.is_fixed_size_binary(kind):
        return pa.binary()
    if is_.is_list(kind) or is_.is_large_list(kind) or is_.is_fixed_size_list(kind):
        return pa.list_(_normal_type(kind.value_type, f"{path}[]"))
    if is_.is_map(kind):
        return pa.map_(_normal_type(kind.key_type, f"{path} key"), _normal_type(kind.item_type, f"{path} value"))
    if is_.is_struct(kind):
        return pa.struct([_normal_field(field, f"{path}.{field.name}") for field in fields_of(kind)])
    raise UsageError(f'schema: column "{path}" is {kind}, which Spark does not have; use a signed or simpler type')


_PYTHON_TYPES: Final[dict[object, pa.DataType]] = {
    str: pa.string(),
    int: pa.int64(),
    float: pa.float64(),
    bool: pa.bool_(),
    bytes: pa.binary(),
    bytearray: pa.binary(),
    datetime.datetime: pa.timestamp("us", tz="UTC"),
    datetime.date: pa.date32(),
    decimal.Decimal: pa.decimal128(38, 18),
}


def _dataclass_fields(declared: type[Any], depth: int, undeclared: TypeOf | None = None) -> list[Field]:
    """`undeclared` gives the type of a field whose annotation is none."""
    if depth > DEPTH_MAX:
        raise UsageError(f"schema: dataclass {declared.__name__} is nested deeper than {DEPTH_MAX}")
    try:
        hints = typing.get_type_hints(declared)
    except Exception as error:
        raise UsageError(f"schema: the annotations of {declared.__name__} cannot be resolved: {error}") from error
    fields: list[Field] = []
    for field in dataclasses.fields(declared):
        try:
            kind: Any = _python_type(hints[field.name], f"{declared.__name__}.{field.name}", depth)
        except UsageError:
            if undeclared is None:
                raise
            kind = undeclared(field.name)
        fields.append(pa.field(field.name, kind))
    return fields


def _python_type(hint: Any, path: str, depth: int) -> pa.DataType:
    if hint in _PYTHON_TYPES:
        return _PYTHON_TYPES[hint]
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return pa.struct(_dataclass_fields(hint, depth + 1))
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        kinds = [argument for argument in arguments if argument is not type(None)]
        if len(kinds) == 1:
            return _python_type(kinds[0], path, depth)
    elif origin in (list, tuple, set, frozenset) and arguments:
        return pa.list_(_python_type(arguments[0], f"{path}[]", depth + 1))
    elif origin is dict and len(arguments) == 2:
        key = _python_type(arguments[0], f"{path} key", depth + 1)
        return pa.map_(key, _python_type(arguments[1], f"{path} value", depth + 1))
    raise UsageError(f"schema: {path} is annotated {hint!r}, which is no column type; give a DDL text instead")
