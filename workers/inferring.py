"""Columns that nobody declares, found from the first rows that a handler returns: `results.schema = "infer"`.

The first worker of the group on this host that has rows decides. What it finds is frozen in a file beside the slots
(`columns.ddl`) by one exclusive step, so that all workers, and every later start, have the same columns; the log names them.
From then on it is a declaration like any other: what does not fit is that message's failure, with the column named. Members
on other hosts find their own; where handlers return now this and now that, declare the columns.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, cast

import pyarrow

from ..remoting.errors import UsageError
from .copying import ENDLESS, NUMPY, endless, listed, plain, refused
from .ddl import INFER, as_schema, as_schema_with, fields_of, parse_ddl, to_ddl
from .fitting import NoRowError, RowError, check_ran
from .misfits import CONVERSION_ERRORS

pa: Any = pyarrow

NESTED_MAX: Final = 100
"""Lists, dicts and the like in each other, of values whose type is to be found: of one that contains itself, Arrow ends the
process."""
_DICT_VALUES: Final[type[Any]] = type(dict[Any, Any]().values())


def declared_columns(setting: str, own: object, file: Path | None) -> object:
    """What the columns are declared by: the setting, else the handler's own, else what was frozen; None: not known yet."""
    if setting != INFER:
        return setting or own
    if own is not None:
        return own
    return None if file is None else frozen(file)


def frozen(file: Path) -> str | None:
    """The columns that were found before. Raises UsageError for a file that is none of ours."""
    try:
        text = file.read_text(encoding="utf-8").strip()
        parse_ddl(text)
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError, UsageError) as error:
        raise UsageError(f"{file}, the columns that were inferred, can't be read ({error}): delete it, or declare them "
                         "with results.schema") from None  # fmt: skip
    return text


class Inferring:
    """Finds the columns once. `log` gets one event when they are known. `check` raises UsageError where they don't fit."""

    def __init__(self, file: Path, log: Any, check: Callable[[pyarrow.Schema], None] = lambda _: None) -> None:
        self._file = file
        self._log = log
        self._check = check

    def __call__(self, rows: list[Any]) -> pyarrow.Schema:
        """The columns: those that are frozen, else those of `rows` (at least one). Raises RowError, OSError."""
        try:
            text = frozen(self._file) or self._freeze(self._found(rows))
            hint = "frozen: declare them with results.schema, or delete the file to have them inferred anew"
            self._log.info("columns_inferred", columns=text, file=str(self._file), hint=hint)
            return parse_ddl(text)
        except UsageError as error:
            raise RowError(str(error)) from None

    def _found(self, rows: list[Any]) -> str:
        schema = columns_of(rows)
        self._check(schema)
        text = to_ddl(schema)
        try:
            parse_ddl(text)  # or what is frozen could not be read at the next start
        except UsageError as error:
            raise RowError(f"the columns cannot be inferred ({error}): declare results.schema") from None
        return text

    def _freeze(self, text: str) -> str:
        """Write the file, whole or not at all; what another worker has frozen meanwhile goes before."""
        draft = self._file.with_name(f".{self._file.name}.{os.getpid()}")
        try:
            with draft.open("w", encoding="utf-8") as file:
                file.write(text + "\n")
                file.flush()
                os.fsync(file.fileno())
            with contextlib.suppress(FileExistsError):
                os.link(draft, self._file)
        finally:
            draft.unlink(missing_ok=True)
        return frozen(self._file) or text


def as_rows(result: object) -> list[Any] | None:
    """The rows in a handler's result, to be looked at more than once; None where it is no rows at all.

    Raises RowError for what did not run.
    """
    if isinstance(result, dict | pa.RecordBatch | pa.Table) or _is_dataclass(result):
        return [result]
    check_ran(result)
    if isinstance(result, Iterable) and not isinstance(result, str | bytes | bytearray | memoryview):
        rows: Iterable[Any] = result  # pyright: ignore[reportUnknownVariableType]
        return listed(rows)
    return None


def columns_of(rows: Sequence[Any]) -> pyarrow.Schema:
    """The columns of rows: an Arrow batch's or a dataclass's own, else by the values, as those of its fields whose annotation
    does not say what is in them. Raises UsageError, RowError."""
    first: Any = rows[0]
    if isinstance(first, pa.RecordBatch | pa.Table):
        return as_schema(pa.schema([_plain(field) for field in first.schema]))
    if _is_dataclass(first):
        alike = [row for row in rows if row.__class__ is first.__class__]
        return as_schema_with(first.__class__, lambda name: _kind_of(name, [_attribute(row, name) for row in alike]))
    dicts: list[dict[Any, Any]] = [row for row in rows if isinstance(row, dict)]
    if not dicts:
        raise NoRowError(first)
    fields: list[Any] = []
    for name in dict.fromkeys(name for row in dicts for name in row):
        if not isinstance(name, str):
            raise RowError(f"a column's name is a string, not {name!r}: return {{{str(name)!r}: …}}")
        fields.append(pa.field(name, _kind_of(name, [row.get(name) for row in dicts])))
    return as_schema(pa.schema(fields))


def _attribute(row: Any, name: str) -> Any:
    try:
        return plain(getattr(row, name, None))
    except RecursionError as error:
        raise endless(row, plain) from error


def _kind_of(name: str, values: list[Any]) -> Any:
    """The type of a column by its values. Raises RowError."""
    if any(_is_deeper(value, NESTED_MAX) for value in values):
        raise RowError(f'column "{name}": {ENDLESS}')
    try:
        kind: Any = pa.array(values).type
    except CONVERSION_ERRORS as error:
        words = f'the type of column "{name}" cannot be inferred ({error}): declare results.schema'
        raise refused(words, error) from None
    if kind == pa.null():
        raise RowError(
            f'column "{name}" is null in the first rows, so its type cannot be inferred: declare results.schema'
        )
    return kind


def _is_deeper(value: Any, levels: int) -> bool:
    parts = _parts(value)
    return parts is not None and (not levels or any(_is_deeper(part, levels - 1) for part in parts))


def _parts(value: Any) -> Iterable[Any] | None:
    """What Arrow looks at to find the value's type, and in its way: past methods of subclasses. None: at the value alone."""
    kind = type(cast("object", value))
    if issubclass(kind, dict):
        return dict[Any, Any].values(value)
    if issubclass(kind, list):
        return list[Any].__iter__(value)
    if issubclass(kind, tuple):
        return tuple[Any, ...].__iter__(value)
    if issubclass(kind, (deque, set, _DICT_VALUES)):
        return cast("Iterable[Any]", value)
    if NUMPY is not None and issubclass(kind, NUMPY.ndarray) and value.dtype.hasobject:
        return cast("Iterable[Any]", NUMPY.ndarray.flat.__get__(value))
    return None


def _plain(field: Any) -> Any:
    """Of pandas' categories the column is what they are."""
    return field.with_type(_plain_type(field.type))


def _plain_type(kind: Any) -> Any:
    if pa.types.is_dictionary(kind):
        return _plain_type(kind.value_type)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_plain(kind.value_field))
    if pa.types.is_struct(kind):
        return pa.struct([_plain(field) for field in fields_of(kind)])
    if pa.types.is_map(kind):
        return pa.map_(_plain(kind.key_field), _plain(kind.item_field))
    return kind


def _is_dataclass(value: object) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)
