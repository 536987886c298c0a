"""Which files of a Delta table the loader may delete, and what of a table it does not know. It deletes none itself.

delta-rs (1.6) takes everything in the folder for a file of nobody's that no version names as its data: also deletion
vectors that the newest version needs, Iceberg's metadata of a UniForm table, change data, and notes that somebody has put
there. So its list is only a proposal. Of it goes what has the name and the place that delta-rs and Spark give a file of rows,
and of a table with a feature that is not known here nothing goes at all: such a feature may have files that only its own
readers know of.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from .errors import LoaderError

LEAST_HOURS: Final = 7 * 24
"""A file is deleted no earlier, whatever the table's own property says: another loader may be about to commit it."""
PLAIN_FEATURES: Final = frozenset(
    {
        "appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns", "identityColumns",
        "timestampNtz", "columnDefaults", "allowColumnDefaults", "inCommitTimestamp", "domainMetadata",
    }
)  # fmt: skip
"""Those under which a version's rows are in the Parquet files that its log names, and in nothing else."""
PLAIN_READER: Final = (1, 3)
"""Reader versions: 2 maps columns, and 3 names its features."""
_FOREIGN_PROPERTIES: Final = ("delta.universalFormat.", "delta.enableIcebergCompat", "delta.enableDeletionVectors")
_ROWS: Final = re.compile(
    r"part-\d{5,}-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?:[-.]c\d{3,})?(?:\.[a-z0-9]+)?\.parquet"
)


def unneeded(open_log: Callable[[], Any]) -> list[str]:
    """Files of rows that no version of the table needs, and that are old enough, as paths below it.

    Asked twice, for the table's own age and for ours: what counts is the longer one, and a log that was read anew.

    Raises delta-rs's errors, and LoaderError for a table of which nothing may be deleted.
    """
    log = open_log()
    metadata = log.metadata()
    if why := why_not(log.protocol(), metadata.configuration):
        raise LoaderError(why)
    aged = set(log.vacuum(dry_run=True, full=True))
    old = open_log().vacuum(LEAST_HOURS, dry_run=True, enforce_retention_duration=False, full=True)
    return deletable(aged.intersection(old), metadata.partition_columns)


def why_not(protocol: Any, properties: Mapping[str, str]) -> str:
    """Why nothing of a table with this protocol is deleted; empty when something may be."""
    foreign = foreign_to(protocol, properties)
    if not foreign:
        return ""
    return (
        f"the table has {', '.join(foreign)}, whose files only Delta's own VACUUM knows: run that, and set spark.vacuum ="
        " false"
    )


def foreign_to(protocol: Any, properties: Mapping[str, str], also: frozenset[str] = frozenset()) -> list[str]:
    """What of a table with this protocol is not known here, by its names in Delta; `also`: features that count as unknown."""
    features = {*(protocol.reader_features or ()), *(protocol.writer_features or ())}
    foreign = sorted(features - (PLAIN_FEATURES - also))
    if protocol.min_reader_version not in PLAIN_READER:
        foreign.append(f"reader version {protocol.min_reader_version}")
    return foreign + sorted(
        name
        for name, value in properties.items()
        if name.startswith(_FOREIGN_PROPERTIES) and str(value).lower() != "false"
    )


def deletable(names: Iterable[str], partition_columns: Sequence[str]) -> list[str]:
    """Those of `names`, below the table's folder, that are files of rows by name and place."""
    return sorted(name for name in names if _is_of_rows(name, partition_columns))


def _is_of_rows(name: str, partition_columns: Sequence[str]) -> bool:
    *folders, file = name.split("/")
    return (
        len(folders) == len(partition_columns)
        and all(folder.startswith(f"{column}=") for folder, column in zip(folders, partition_columns, strict=True))
        and _ROWS.fullmatch(file) is not None
    )
