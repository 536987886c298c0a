"""The columns that a Delta table has now, which others may have changed since the last batch: as its log has them."""

from __future__ import annotations

import json
from typing import Any, Final

from ..conf.columns import Column, quoted

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
