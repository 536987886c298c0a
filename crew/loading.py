"""`load`: sealed segments into a table, by the Spark session of a notebook or a job, or without Spark."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ..conf.exit_codes import EXIT_USAGE
from ..conf.segment_format import FOLDER_FORMATS, READY_DIR
from ..remoting.arguments import FILLED, NONE, PATH, TABLE, TEXT, TEXTS, Rule, check
from ..remoting.errors import UsageError
from ..spark.config import ARROW, DELTA_RS, LoaderConfig
from ..spark.errors import LoaderError
from ..spark.guest import GuestWriter, session_of
from ..spark.iceberg_catalog import ICEBERG
from ..spark.object_store import absolute
from ..spark.targets.making import make_writer
from ..spark.work import Work
from .reading import SESSION

WITHOUT_SPARK = (ARROW, DELTA_RS, ICEBERG)
_RULES: Final = {
    "staging": FILLED | PATH | Rule("a list of these", lambda value: isinstance(value, list | tuple | set)),
    "target": TEXT | PATH,
    "spark": SESSION,
    "format": FILLED,
    "partition_by": TEXTS,
    "options": TABLE | NONE,
    "function": TEXT,
}


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a `load` has put into the table."""

    batches: int
    rows: int


def load(
    staging: str | Path | Iterable[str | Path],
    target: str | Path,
    *,
    spark: Any = None,
    format: str = "parquet",
    partition_by: Sequence[str] = (),
    options: Mapping[str, str] | None = None,
    function: str = "",
) -> Loaded:
    """Load what is sealed in the folder `staging` (`<data_dir>/<group>/<slot>/segments`; or in several) into the table
    `target`, each record once, and return when it is in it. It may fail or be interrupted at any moment, and be called again.

    `spark` is the session to write with; None: the active one. It keeps its settings and goes on afterwards. The formats
    pyarrow, deltalake and iceberg ask no Spark. `format`, `partition_by`, `options` and `function` are as in `[spark]`.

    Raises UsageError for what the caller can mend, LoaderError when it fails; the segments stay then.
    """
    given = {
        "staging": staging, "target": target, "spark": spark, "format": format, "partition_by": partition_by,
        "options": options, "function": function,
    }  # fmt: skip
    check("load", given, _RULES)
    named = [staging] if isinstance(staging, str | Path) else list(staging)
    for one in named:
        check("load", {"staging": one}, {"staging": FILLED | PATH})
    folders = [Path(folder).absolute() for folder in named]
    for folder in folders:
        if not (folder / READY_DIR).is_dir():
            raise UsageError(
                f"{folder} has no {READY_DIR}: it is no folder of segments (<data_dir>/<group>/<slot>/segments)"
            )
    if not folders:
        raise UsageError("load: name at least one folder of segments")
    session = None if format in WITHOUT_SPARK else session_of(spark)
    config = LoaderConfig(
        staging=folders[0], more_stagings=tuple(folders[1:]), format=format, function=function, options=options or {},
        target=absolute(str(target)) if format in FOLDER_FORMATS else str(target), partition_by=tuple(partition_by),
        master="local[2]" if session is None else str(session.sparkContext.master), env=os.environ,
    )  # fmt: skip
    writer = make_writer(config) if session is None else GuestWriter(session, folders[0] / "spark", config.partition_by)
    work = Work(config, writer)
    if code := work.run():
        raise UsageError(work.error) if code == EXIT_USAGE else LoaderError(work.error)
    return Loaded(work.batches, work.rows)
