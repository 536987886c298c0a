"""What delta-rs's snapshot of a Delta table says: its columns, which others may have changed since the last batch, whether
they have those names in the files, and its properties."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from ..conf.columns import Column, quoted
from ..conf.delta_names import COLUMN_MAPPING, NOT_MAPPED
from ..remoting.errors import UsageError
from .object_store import Place

PHYSICAL_NAME: Final = "delta.columnMapping.physicalName"
TRANSACTIONS_KEPT: Final = "delta.setTransactionRetentionDuration"
"""The property by which a table forgets transactions that are older, as if they had never been."""
KEPT_FOR_LONG: Final = "interval 5200 weeks"
"""What it may be: delta-rs (1.6) can set a property, and take none away."""
_CHECK: Final = "delta.constraints."
_SPARK_TYPES: Final = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint"}
"""Types that the log writes in another way than Spark SQL (conf/columns.py)."""


def columns_of_log(log: Any) -> list[Column]:
    """The columns that the table has by delta-rs's snapshot."""
    fields: list[dict[str, Any]] = json.loads(log.schema().to_json())["fields"]
    return [Column(str(field["name"]), _spark_type(field["type"])) for field in fields]


def _spark_type(kind: Any) -> str:
    if isinstance(kind, str):
        return _SPARK_TYPES.get(kind, kind)
    if kind["type"] == "array":
        return f"array<{_spark_type(kind['elementType'])}>"
    if kind["type"] == "map":
        return f"map<{_spark_type(kind['keyType'])},{_spark_type(kind['valueType'])}>"
    return "struct<" + ",".join(f"{quoted(one['name'])}:{_spark_type(one['type'])}" for one in kind["fields"]) + ">"


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
