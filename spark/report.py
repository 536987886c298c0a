"""Asking the table questions with Spark SQL: a session of its own, for as long as the questions last."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any

from .session import SessionSettings, open_session
from .views import register_views

Query = Callable[[str], list[dict[str, Any]]]
"""Runs one SQL statement; the rows as dicts, in order."""


@contextlib.contextmanager
def open_views(
    table: Path,
    *,
    master: str = "local[2]",
    driver_memory: str = "1g",
    java_home: str = "",
    env: Mapping[str, str] | None = None,
) -> Generator[Query]:
    """Start Spark and give a function that runs SQL on the views `results` and `latest` of `table`.

    `env` is where JAVA_HOME and PATH are looked up, by default the process's own. Takes 4 to 20 seconds before the first
    answer. Raises UsageError when the table is empty, SparkStartError when Spark can't start.
    """
    with tempfile.TemporaryDirectory(prefix="rocketcrew-report-") as folder:
        session = open_session(
            SessionSettings(
                folder=Path(folder),
                master=master,
                driver_memory=driver_memory,
                java_home=java_home,
                env=os.environ if env is None else env,
                app_name="rocketcrew-report",
            )
        )
        try:
            register_views(session.spark, table)
            spark: Any = session.spark

            def query(sql: str) -> list[dict[str, Any]]:
                return [row.asDict(recursive=True) for row in spark.sql(sql).collect()]

            yield query
        finally:
            session.close()
