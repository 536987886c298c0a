"""The folders of a partitioned table: how values become their names, and which values can't. Pure, without Arrow."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import quote

from .formats import on_s3

FOLDER_BYTES_MAX = 255
"""Of a folder's name, on the file systems of Linux and on HDFS."""
KEY_BYTES_MAX = 900
"""The same in a bucket, where a key has 1,024 bytes at most, and the names of table and file are part of it."""
_HIVE_ESCAPED = re.compile("[\x00-\x1f\"#%'*/:=?\\\\\x7f{\\[\\]^]")
"""What Spark and Hive escape in the name of a partition's folder (Spark's ExternalCatalogUtils.escapePathName), and NUL."""


def in_folder_name(text: str) -> str:
    """`text` as Spark and Hive have it in the name of a partition's folder: characters beyond ASCII are written as they are,
    and Spark reads them only so."""
    return _HIVE_ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)


class FolderNames(NamedTuple):
    """The columns whose values name a table's folders, and how: as Spark does, or (`percent`) as URLs do, where each byte
    beyond ASCII becomes three."""

    columns: tuple[str, ...] = ()
    percent: bool = False
    bytes_max: int = FOLDER_BYTES_MAX

    def fault(self, column: str, value: str | None) -> str:
        """Why a table can have no folder for the `value`; empty: it can."""
        if value is None:
            return ""
        if "\0" in value and not self.percent:
            return (
                "its value names a folder (spark.partition_by), which has no NUL character in its name: leave that out"
            )
        name = f"{column}={quote(value, safe='') if self.percent else in_folder_name(value)}"
        count = len(name.encode())
        if count <= self.bytes_max:
            return ""
        return (
            f"its value names a folder (spark.partition_by), whose name would have {count} bytes, at most"
            f" {self.bytes_max} are possible: return a shorter one"
        )


NO_FOLDERS = FolderNames()
_AS_URLS = ("deltalake", "iceberg", "iceberg-spark")
"""Formats whose writers name folders so."""


def folder_names(format_: str, target: str, partition_by: Sequence[str]) -> FolderNames:
    """The folders that a table has for values of the columns `partition_by`."""
    return FolderNames(tuple(partition_by), format_ in _AS_URLS, KEY_BYTES_MAX if on_s3(target) else FOLDER_BYTES_MAX)
