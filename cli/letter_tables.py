"""Dead letters as a table: a folder of Parquet, or a Delta table, that Spark and all others read. No JVM is needed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow
import pyarrow.parquet

from ..remoting.errors import ProtocolError, UsageError
from ..remoting.properties import PROPERTY_KEYS, PROPERTY_TAGS
from ..remoting.stored import StoredMessage
from ..spark.targets.delta import delta_rs
from .letters import DELTA, Letter, whole
from .messages import moment

pa: Any = pyarrow
pq: Any = pyarrow.parquet

ROWS_PER_GROUP: Final = 10_000
SCHEMA: Final = pa.schema(
    {
        "place": pa.string(),
        "message_id": pa.string(),
        "origin_topic": pa.string(),
        "error": pa.string(),
        "line": pa.string(),
        "done": pa.string(),
        "broker": pa.string(),
        "queue_id": pa.int32(),
        "queue_offset": pa.int64(),
        "stored_at": pa.timestamp("us", "UTC"),
        "born_at": pa.timestamp("us", "UTC"),
        "reconsume_times": pa.int32(),
        "keys": pa.string(),
        "tags": pa.string(),
        "properties": pa.map_(pa.string(), pa.string()),
        "body": pa.binary(),
    }
)
"""Names are those of `dlq export` to a file. `body` is what was sent, decompressed; null where it is left out. So is a time
outside of the years 1 to 9999, which a producer may write."""


def table_of(letters: Sequence[Letter], *, with_body: bool) -> Any:
    """A pyarrow.Table of SCHEMA, a row for each letter, in order."""
    return pa.Table.from_pylist([_row(letter, with_body=with_body) for letter in letters], schema=SCHEMA)


def _row(letter: Letter, *, with_body: bool) -> dict[str, object]:
    message = letter.message
    properties = dict(message.properties)
    return {
        "place": letter.place,
        "message_id": message.message_id,
        "origin_topic": letter.topic,
        "error": letter.error,
        "line": letter.line,
        "done": letter.done,
        "broker": letter.mq.broker_name,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "stored_at": moment(message.store_timestamp_ms),
        "born_at": moment(message.born_timestamp_ms),
        "reconsume_times": message.reconsume_times,
        "keys": properties.get(PROPERTY_KEYS, ""),
        "tags": properties.get(PROPERTY_TAGS, ""),
        "properties": list(properties.items()),
        "body": _body(message) if with_body else None,
    }


def _body(message: StoredMessage) -> bytes:
    """As it was sent; as it is stored where it cannot be opened."""
    try:
        return message.decompressed_body()
    except ProtocolError:
        return message.body


def write(table: Any, folder: Path, kind: str) -> None:
    """Make `folder` a table of the kind PARQUET or DELTA. Whole or not at all. Raises UsageError for a folder that exists,
    RocketcrewError for one that cannot be written."""
    if folder.exists():
        raise UsageError(f"{folder} exists already: nothing was written")
    library = delta_rs() if kind == DELTA else None
    with whole(folder) as half:
        half.mkdir(parents=True)
        if library is not None:
            try:
                library.write_deltalake(str(half), table, mode="error")
            except library.exceptions.DeltaError as error:
                raise OSError(str(error)) from error  # what delta-rs raises for a disk, beside OSError
            return
        pq.write_table(
            table,
            half / "part-00000.parquet",
            row_group_size=ROWS_PER_GROUP,
            store_schema=False,
            write_page_checksum=True,
        )
