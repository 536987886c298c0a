"""Where the log of a Delta table is, how its entries are named, what it says of properties, and whether columns are as in the files."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, overload

from ..conf.delta_names import COLUMN_MAPPING, NOT_MAPPED
from ..conf.formats import not_for_delta
from ..remoting.errors import UsageError
from .object_store import ObjectPath, Place

LOG_DIR: Final = "_delta_log"
PHYSICAL_NAME: Final = "delta.columnMapping.physicalName"
TRANSACTIONS_KEPT: Final = "delta.setTransactionRetentionDuration"
"""The property by which a table forgets transactions that are older, as if they had never been."""
KEPT_FOR_LONG: Final = "interval 5200 weeks"
"""What it may be: delta-rs (1.6) can set a property, and take none away."""
_CHECK: Final = "delta.constraints."


def is_delta(table: Place) -> bool:
    """Whether it is a Delta table; a session needs `session.delta_conf` to read it.

    A log without an entry makes none: Spark has its folder some seconds before the first one, and for good where it is killed
    then. In a bucket there are no empty folders.
    """
    log = table / LOG_DIR
    if not isinstance(log, Path):
        return log.is_dir()
    try:
        with os.scandir(log) as entries:  # one is enough, of many thousands
            return any(entry.name[:1].isdecimal() for entry in entries)
    except OSError:  # where it may not be listed, whoever reads it says so
        return log.is_dir()


def check_path(table: Place) -> None:
    """Raise UsageError for a folder that delta-rs, which follows links first, would take for another one."""
    if isinstance(table, Path) and (wrong := not_for_delta(str(table.resolve()))):
        raise UsageError(f"{table.resolve()} {wrong}")


@overload
def entry_of(table: Path, version: int) -> Path: ...
@overload
def entry_of(table: Path | ObjectPath, version: int) -> Path | ObjectPath: ...
@overload
def entry_of(table: Place, version: int) -> Place: ...
def entry_of(table: Place, version: int) -> Place:
    """The entry that makes a version."""
    return table / LOG_DIR / f"{version:020d}.json"


def actions_of(entry: bytes) -> list[dict[str, Any]]:
    """The actions of an entry of the log, one a line. Lines end in bytes: a text has more ends, such as U+2028, that JSON may
    have within its values. Raises ValueError."""
    return [json.loads(line) for line in entry.splitlines()]


def refuse_forgetting(table: Place, log: Any) -> None:
    """Raise UsageError for a table whose log, by delta-rs's snapshot, forgets which batches it has."""
    kept = log.metadata().configuration.get(TRANSACTIONS_KEPT, KEPT_FOR_LONG)
    if kept != KEPT_FOR_LONG:
        raise UsageError(
            f"the Delta table {table} has {TRANSACTIONS_KEPT} = {kept}, after which its log forgets which batches are loaded:"
            f" ALTER TABLE delta.`{table}` UNSET TBLPROPERTIES ('{TRANSACTIONS_KEPT}') in Spark, or"
            f" alter.set_table_properties({{'{TRANSACTIONS_KEPT}': '{KEPT_FOR_LONG}'}}) of the deltalake package's DeltaTable"
        )


def check_constraints(log: Any) -> list[str]:
    """The table's CHECK constraints by delta-rs's snapshot, each as its name and what rows must be."""
    properties: dict[str, str] = log.metadata().configuration
    found = ((name.removeprefix(_CHECK), said) for name, said in properties.items() if name.startswith(_CHECK))
    return [f"{name}: {said}" for name, said in sorted(found)]


def mapped_columns(log: Any) -> list[str]:
    """The columns, with those in nested ones, that the data files of delta-rs's snapshot may have under another name.

    Delta's protocol ("Column Mapping"): in mode `name` the schema notes that name, in mode `id` a number alone counts.
    """
    mode = column_mapping(log)
    return [] if mode == NOT_MAPPED else list(_renamed(json.loads(log.schema().to_json()), by_name=mode == "name"))


def column_mapping(log: Any) -> str:
    """How columns are found in the files of delta-rs's snapshot: by their own names (NOT_MAPPED), `name` or `id`."""
    return str(log.metadata().configuration.get(COLUMN_MAPPING, NOT_MAPPED))


def _renamed(kind: Any, *, by_name: bool, within: str = "") -> Iterator[str]:
    """Of a type as the log writes it: a text, or what has others in it."""
    if isinstance(kind, str):
        return
    fields: list[dict[str, Any]] = kind.get("fields", [])
    for field in fields:
        name = str(field["name"])
        if not by_name or field.get("metadata", {}).get(PHYSICAL_NAME, name) != name:
            yield within + name
        yield from _renamed(field["type"], by_name=by_name, within=f"{within}{name}.")
    for part in ("elementType", "keyType", "valueType"):
        yield from _renamed(kind.get(part, ""), by_name=by_name, within=within)
