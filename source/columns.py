"""The columns of what is read, their Spark types and their Arrow types.

Spark checks each first batch against its own idea of the schema to the letter (`string`, not `large_string`; times in
microseconds, UTC), so both stand here side by side. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from ..remoting.errors import UsageError


@dataclass(frozen=True, slots=True)
class Column:
    """A column's type in Spark's words and in Arrow's."""

    ddl: str
    arrow: pa.DataType


_TEXT = Column("string", pa.string())
_TIME = Column("timestamp", pa.timestamp("us", tz="UTC"))

COLUMNS: dict[str, Column] = {
    "topic": _TEXT,
    "brokerName": _TEXT,
    "queueId": Column("int", pa.int32()),
    "queueOffset": Column("bigint", pa.int64()),
    "body": Column("binary", pa.binary()),
    "tags": _TEXT,
    "keys": _TEXT,
    "properties": Column("map<string,string>", pa.map_(pa.string(), pa.string())),
    "bornTimestamp": _TIME,
    "storeTimestamp": _TIME,
    "reconsumeTimes": Column("int", pa.int32()),
    "messageId": _TEXT,
    "record": Column("binary", pa.binary()),
}
ON_REQUEST = frozenset({"record"})
"""Only where the schema names them: the message as its broker stored it, for who decodes it himself."""


def default_columns(*, body: bool, properties: bool) -> list[str]:
    """The columns of a read without a schema of its own."""
    left_out = {name for name, wanted in (("body", body), ("properties", properties)) if not wanted}
    return [name for name in COLUMNS if name not in left_out | ON_REQUEST]


def ddl(names: Sequence[str]) -> str:
    """These columns as a schema in Spark's words."""
    return ", ".join(f"{name} {COLUMNS[name].ddl}" for name in names)


def check_columns(given: Sequence[tuple[str, str]]) -> list[str]:
    """The names of a schema of the user's, which may leave out and reorder columns. Raises UsageError."""
    for name, kind in given:
        known = COLUMNS.get(name)
        if known is None:
            raise UsageError(f"rocketmq: the schema has a column {name!r} that messages do not have: "
                             f"choose from {', '.join(COLUMNS)}")  # fmt: skip
        if kind != known.ddl:
            raise UsageError(f"rocketmq: the schema says {name} {kind}, and it is {name} {known.ddl}: "
                             "leave the schema out, or cast behind load()")  # fmt: skip
    return [name for name, _ in given]


def arrow_schema(names: Sequence[str]) -> pa.Schema:
    """These columns as Arrow has them."""
    return pa.schema([pa.field(name, COLUMNS[name].arrow) for name in names])
