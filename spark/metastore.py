"""What a metastore has to be told of a table: by what it knows, and by what the table has. Pure; registration.py acts.

A Delta table is one statement for ever: Delta reads columns and files from the table's own log. A Parquet folder is an
external table whose columns and partitions the metastore keeps; each batch is a partition of it, or one for each folder of
`spark.partition_by` below it. So a batch is told when it is committed, and taken back when a compaction has merged it away.

Nothing is ever dropped but a partition whose folder is gone, and only of an external table, of which a metastore deletes no
file.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from ..conf.columns import BATCH_COLUMN, Column, ddl, quoted

PARTITIONS_MAX: Final = 200
"""Partitions in one statement: a first one over years of batches is no text of megabytes."""
NULL_FOLDER: Final = "__HIVE_DEFAULT_PARTITION__"
_DETAILS: Final = "# Detailed Table Information"
_PARTITIONING: Final = "# Partition Information"
_NO_TYPES: Final = ("", "data_type")
"""What headings and blank lines have where a column has its type; a column may be named as a heading is."""
_TRACKED: Final = "Catalog"

Values = tuple[str | None, ...]
"""A partition: its values, of the outermost folder first."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The table as the metastore is to know it. `location` as Spark takes it; the rest is of Parquet folders alone."""

    database: str
    name: str
    provider: str
    location: str
    columns: tuple[Column, ...] = ()
    partition_by: tuple[str, ...] = ()

    @property
    def full_name(self) -> str:
        """Its name in a statement."""
        return f"{quoted(self.database)}.{quoted(self.name)}"

    @property
    def partition_columns(self) -> tuple[str, ...]:
        """Outermost folder first."""
        return (BATCH_COLUMN, *self.partition_by)


@dataclass(frozen=True, slots=True)
class Known:
    """What a metastore says of a table. `tracked`: it keeps the partitions, so each has to be told; `created`: when."""

    kind: str
    provider: str
    location: str
    columns: tuple[str, ...]
    partition_columns: tuple[str, ...]
    tracked: bool
    created: str = ""


def known_of(described: Iterable[tuple[str, str]]) -> Known:
    """From the first two columns of DESCRIBE TABLE EXTENDED."""
    columns: list[str] = []
    partition_columns: list[str] = []
    details: dict[str, str] = {}
    names, in_details = columns, False
    for name, told in described:
        if in_details:
            details.setdefault(name, told)
        elif told not in _NO_TYPES:
            names.append(name)
        elif name == _DETAILS:
            in_details = True
        elif name == _PARTITIONING:
            names = partition_columns
    return Known(
        details.get("Type", ""), details.get("Provider", "").lower(), details.get("Location", ""), tuple(columns),
        tuple(partition_columns), details.get("Partition Provider") == _TRACKED, details.get("Created Time", ""),
    )  # fmt: skip


def same_place(one: str, other: str) -> bool:
    """Whether two locations are one, as Spark, Hadoop and people write them."""
    return _plain(one) == _plain(other)


def _plain(location: str) -> str:
    path = location.removeprefix("file:")
    local = path != location or path.startswith("/")
    return ("/" + path.lstrip("/") if local else path).rstrip("/")


def why_not_ours(wanted: Wanted, known: Known) -> str:
    """What is in the way of the name, empty when nothing is."""
    if known.kind != "EXTERNAL":
        what = {"VIEW": "a view", "MANAGED": "a managed table, whose files the metastore owns"}.get(known.kind)
        return f"is {what or known.kind or 'something else'}"
    if not same_place(known.location, wanted.location):
        return f"is the table at {known.location}"
    if known.provider != wanted.provider:
        return f"is registered as a table of {known.provider or 'another kind'}, and not of {wanted.provider}"
    folders = tuple(name.casefold() for name in wanted.partition_columns)
    if wanted.provider == "parquet" and tuple(name.casefold() for name in known.partition_columns) != folders:
        there = ", ".join(known.partition_columns) or "none"
        return f"is registered with the partition columns {there}, and the table's are {', '.join(folders)}"
    return ""


def to_create(wanted: Wanted) -> str:
    """The statement that makes the table known."""
    if wanted.provider != "parquet":
        return f"CREATE TABLE {wanted.full_name} USING {wanted.provider} LOCATION {literal(wanted.location)}"
    columns = ddl([*wanted.columns, Column(BATCH_COLUMN, "bigint")])
    by = ", ".join(map(quoted, wanted.partition_columns))
    return (
        f"CREATE TABLE {wanted.full_name} ({columns}) USING parquet PARTITIONED BY ({by})"
        f" LOCATION {literal(wanted.location)}"
    )


def to_widen(wanted: Wanted, known: Known) -> Iterator[str]:
    """The statement for columns that came after the table was registered, if there are any."""
    there = {name.casefold() for name in known.columns}
    new = [column for column in wanted.columns if column.name.casefold() not in there]
    if new and wanted.provider == "parquet":
        yield f"ALTER TABLE {wanted.full_name} ADD COLUMNS ({ddl(new)})"


def to_add(wanted: Wanted, parts: Mapping[Values, str], known: Collection[Values]) -> Iterator[str]:
    """The statements for partitions that the metastore does not know yet; `parts` with the location of each."""
    for some in _some([values for values in parts if values not in known]):
        told = " ".join(f"{_spec(wanted, values)} LOCATION {literal(parts[values])}" for values in some)
        yield f"ALTER TABLE {wanted.full_name} ADD IF NOT EXISTS {told}"


def to_drop(wanted: Wanted, parts: Collection[Values], known: Iterable[Values]) -> Iterator[str]:
    """The statements for partitions whose folder is gone."""
    for some in _some([values for values in known if values not in parts]):
        told = ", ".join(_spec(wanted, values) for values in some)
        yield f"ALTER TABLE {wanted.full_name} DROP IF EXISTS {told}"


def _some(values: Sequence[Values]) -> Iterator[Sequence[Values]]:
    return (values[at : at + PARTITIONS_MAX] for at in range(0, len(values), PARTITIONS_MAX))


def _spec(wanted: Wanted, values: Sequence[str | None]) -> str:
    told = (
        f"{quoted(name)} = {'null' if value is None else literal(value)}"
        for name, value in zip(wanted.partition_columns, values, strict=True)
    )
    return f"PARTITION ({', '.join(told)})"


def values_of(folders: str) -> Values:
    """The partition whose folders are `folders`, such as batch_id=1/day=2026-01-01; whoever has made them, and as SHOW
    PARTITIONS names them."""
    values = (unquote(one.partition("=")[2]) for one in folders.split("/"))
    return tuple(None if value == NULL_FOLDER else value for value in values)


def literal(text: str) -> str:
    """A text as Spark SQL has it."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
