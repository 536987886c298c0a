"""`load`: sealed segments into a table, by the Spark session of a notebook or a job, or without Spark."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ..conf.current_folder import current_folder_named
from ..conf.exit_codes import EXIT_USAGE
from ..conf.segment_format import FOLDER_FORMATS, READY_DIR
from ..remoting.arguments import FILLED, NONE, PATH, TABLE, TEXT, TEXTS, Filename, check, list_of
from ..remoting.errors import UsageError
from ..spark.config import ARROW, DELTA_RS, FOREACH, LoaderConfig
from ..spark.errors import LoaderError
from ..spark.guest import GuestWriter, session_of
from ..spark.iceberg_catalog import ICEBERG
from ..spark.object_store import absolute
from ..spark.targets.making import make_writer
from ..spark.work import Work
from .reading import SESSION

WITHOUT_SPARK = (ARROW, DELTA_RS, ICEBERG)
_RULES: Final = {
    "staging": PATH | list_of(PATH, "a list of these"),
    "target": PATH,
    "spark": SESSION,
    "format": FILLED,
    "partition_by": TEXTS,
    "options": TABLE | NONE,
    "function": TEXT,
    "table": TEXT,
}


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a `load` has put into the table."""

    batches: int
    rows: int


@current_folder_named()
def load(
    staging: Filename | Iterable[Filename],
    target: Filename,
    *,
    spark: Any = None,
    format: str = "parquet",
    partition_by: Iterable[str] = (),
    options: Mapping[str, str] | None = None,
    function: str = "",
    table: str = "",
) -> Loaded:
    """Load what is sealed in the folder `staging` (`<data_dir>/<group>/<slot>/segments`; or in several) into the table
    `target`, each record once, and return when it is in it. It may fail or be interrupted at any moment, and be called again.

    `spark` is the session to write with; None: the active one. It keeps its settings and goes on afterwards. The formats
    pyarrow, deltalake and iceberg ask no Spark. `format`, `partition_by`, `options`, `function` and `table` are as in
    `[spark]`.

    Raises UsageError for what the caller can mend, LoaderError when it fails; the segments stay then.
    """
    given = {
        "staging": staging, "target": target, "spark": spark, "format": format, "partition_by": partition_by,
        "options": options, "function": function, "table": table,
    }  # fmt: skip
    rules = _RULES if format != FOREACH else {**_RULES, "target": TEXT | PATH}
    taken = check("load", given, rules)
    named, table = taken["staging"], taken["target"]
    folders = [Path(folder).absolute() for folder in ((named,) if isinstance(named, str) else named)]
    for folder in folders:
        if not (folder / READY_DIR).is_dir():
            raise UsageError(
                f"{folder} has no {READY_DIR}: it is no folder of segments (<data_dir>/<group>/<slot>/segments)"
            )
    if not folders:
        raise UsageError("load: name at least one folder of segments")
    session = None if format in WITHOUT_SPARK else session_of(spark)
    config = LoaderConfig(
        staging=folders[0], more_stagings=tuple(folders[1:]), format=taken["format"], function=taken["function"],
        options=taken["options"] or {}, target=absolute(table) if format in FOLDER_FORMATS else table,
        partition_by=taken["partition_by"], table=taken["table"],
        master="local[2]" if session is None else str(session.sparkContext.master), env=os.environ,
    )  # fmt: skip
    writer = make_writer(config) if session is None else GuestWriter(session, folders[0] / "spark", config.partition_by)
    work = Work(config, writer)
    if code := work.run():
        raise UsageError(work.error) if code == EXIT_USAGE else LoaderError(work.error)
    return Loaded(work.batches, work.rows)
