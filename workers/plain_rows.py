"""Rows of Arrow tables as a handler returns them: Arrow gives a map as a list of pairs, and a handler a dict."""

from __future__ import annotations

from typing import Any

import pyarrow

from .ddl import fields_of

# The stubs' generics ask for value types, which only the run knows here.
pa: Any = pyarrow


def plain_rows(table: Any) -> list[dict[str, Any]]:
    """The rows of a `pyarrow.Table` as dicts."""
    rows: list[dict[str, Any]] = table.to_pylist()
    for field in table.schema:
        if _has_map(field.type):
            for row in rows:
                row[field.name] = _plain(row[field.name], field.type)
    return rows


def _has_map(kind: Any) -> bool:
    if pa.types.is_map(kind):
        return True
    if pa.types.is_struct(kind):
        return any(_has_map(field.type) for field in fields_of(kind))
    return _is_list(kind) and _has_map(kind.value_type)


def _is_list(kind: Any) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _plain(value: Any, kind: Any) -> Any:
    if value is None or not _has_map(kind):
        return value
    if pa.types.is_map(kind):  # a key may be a struct, of which a dict is none
        return {key: _plain(one, kind.item_type) for key, one in value}
    if _is_list(kind):
        return [_plain(one, kind.value_type) for one in value]
    return {field.name: _plain(value[field.name], field.type) for field in fields_of(kind)}
