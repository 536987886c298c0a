"""The loader process's configuration, checked whole before anything starts."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..conf.columns import BATCH_COLUMN
from ..conf.formats import metastore_name, not_a_table, not_registered, on_hdfs, on_s3
from ..conf.printed import command_line, shape_of
from ..conf.redaction import HIDDEN, masked_repr, masked_text, sounds_secret
from ..conf.segment_format import FOLDER_FORMATS
from ..conf.settings import SparkSettings
from ..remoting.errors import UsageError
from .connect import is_local, is_remote
from .convert import FILE_BYTES
from .errors import SETTINGS_FILE
from .iceberg_catalog import ICEBERG_SPARK
from .loader import POINTS
from .object_store import Place, absolute, place_of
from .plan import PlanBounds, Trigger

PARQUET, ARROW, DELTA, DELTA_RS, FOREACH = "parquet", "pyarrow", "delta", "deltalake", "foreach"
PLAN_TRIGGERS = 8
"""A plan takes up to this many times `max_bytes`, and never more than `max_rows`: after a backlog, fewer and larger commits
are cheaper, while the copies on disk and the time until a stop takes effect stay bounded."""
BYTES_TRIGGERS = 4
"""`max_bytes` alone makes no batch due, as few large rows may not be worth a commit; so many times as much does."""
HIGH_WATER_SHARE = 2
"""Or the high-water mark divided by this: above the mark nothing is pulled, and the rows that are missed never come."""
CLUSTER_CORES = 8
"""Tasks at once that are assumed of a master that does not say how many it has."""
_LOCAL_CORES = re.compile(r"local(?:\[(\*|\d+)(?:\s*,\s*\d+)?\])?")
_MEMORY = re.compile(r"\d+[kmgt]", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class LoaderConfig:
    """One run of the loader. Times in milliseconds, sizes in bytes; raises UsageError naming all that is wrong.

    `follow`: go on until asked to stop; else load what is sealed, and end. `stop_deadline_ms`: what a running batch may
    still take after TERM before it is cancelled. `watch_stdin`: end when stdin does, as the parent is gone then, and
    obey the lines `drain` (load everything sealed, then end) and `load` (load now); None: if stdin is a pipe or socket.
    `target`: a folder, or a table in a bucket, for the formats of `FOLDER_FORMATS`, else what `df.write` saves to.
    `function` is for `foreach`.
    `high_water_bytes`: of sealed segments, above which whoever seals them stops; 0 = never.
    `env`: the environment, for JAVA_HOME and PATH. `crash_point`: for tests, a name of `POINTS`, with `:n` its n-th time.
    """

    staging: Path
    target: Path | str
    follow: bool = False
    format: str = "parquet"
    function: str = ""
    options: Mapping[str, str] = field(default_factory=dict[str, str])
    partition_by: tuple[str, ...] = ()
    delta_jars: str = ""
    iceberg_jars: str = ""
    master: str = "local[2]"
    driver_memory: str = "1g"
    java_home: str = ""
    conf: Mapping[str, str] = field(default_factory=dict[str, str])
    max_rows: int = 1_000_000
    max_bytes: int = 256 * 1024 * 1024
    high_water_bytes: int = 0
    max_wait_ms: int = 30_000
    target_file_bytes: int = FILE_BYTES
    jvm_timeout_ms: int = 60_000
    epoch_on_recreated: bool = False
    leave_gaps: bool = False
    keep_outcomes_s: float = 30 * 86_400.0
    vacuum: bool = False
    table: str = ""
    merge_files: bool = False
    quarantine: bool = False
    """Segments that do not fit the table when we start are set aside; else they end the loader before it loads anything."""
    table_replaced: bool = False
    """Batches that the table has not any more are noted as lost, and it is filled on, with the gaps that they leave; else
    they end the loader."""
    more_stagings: tuple[Path, ...] = ()
    """Further staging folders that the same loader loads from: those of other supervisors."""
    poll_interval_ms: int = 200
    stop_deadline_ms: int = 30_000
    watch_stdin: bool | None = None
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    crash_point: str = ""

    def __repr__(self) -> str:
        return masked_repr(self)

    def __post_init__(self) -> None:
        problems = [problem for problem in self._problems() if problem]
        if problems:
            raise UsageError("the loader can't be run so: " + "; ".join(problems))

    def _problems(self) -> list[str]:
        point, _, nth = self.crash_point.partition(":")
        return [
            "" if self.format else "spark.format is empty; for example parquet",
            ""
            if bool(self.function) == (self.format == FOREACH)
            else "spark.function goes with spark.format = foreach only",
            "" if self.target or self.format not in FOLDER_FORMATS else f"format {self.format} needs a target",
            f"the target {masked_text(str(self.target))!r} {wrong}"
            if self.format in FOLDER_FORMATS and (wrong := not_a_table(str(self.target), self.format))
            else "",
            "spark.partition_by does not go with spark.format = foreach"
            if self.partition_by and self.format == FOREACH
            else "",
            *(
                f"spark.partition_by: {name} is no column of the rows, but one that rocketcrew adds"
                for name in self.partition_by
                if name.startswith("_") or name == BATCH_COLUMN
            ),
            *self._registration_problems(),
            "" if self.master else "spark.master is empty; for example local[2], spark://host:7077 or sc://host:15002",
            ""
            if _MEMORY.fullmatch(self.driver_memory)
            else f"spark.driver_memory is {self.driver_memory!r}, not as 1g",
            _range("max_rows", self.max_rows, 1, 100_000_000),
            _range("max_bytes", self.max_bytes, 1, 1 << 36),
            _range("max_wait_ms", self.max_wait_ms, 0, 3_600_000),
            _range("target_file_bytes", self.target_file_bytes, 1, 1 << 36),
            _range("jvm_timeout_ms", self.jvm_timeout_ms, 0, 3_600_000),
            _range("poll_interval_ms", self.poll_interval_ms, 1, 60_000),
            _range("stop_deadline_ms", self.stop_deadline_ms, 0, 3_600_000),
            "" if point in ("", *POINTS) and (not nth or nth.isdigit()) else f"no crash point {self.crash_point!r}",
            *(
                _nested(staging, self.folder)
                for staging in self.stagings
                if self.format in FOLDER_FORMATS and not on_s3(self.target) and not on_hdfs(self.target)
            ),
            f"the target {masked_text(str(self.target))} is on HDFS, which is asked through Spark's JVM, and with a Spark"
            f" Connect server ({masked_text(self.master)}) there is none here: use another spark.master"
            if on_hdfs(self.target) and self.format in FOLDER_FORMATS and is_remote(self.master)
            else "",
            "spark.format = iceberg-spark asks Iceberg through Spark's JVM, and with a Spark Connect server"
            f" ({masked_text(self.master)}) there is none here: use another spark.master, or spark.format = iceberg"
            if self.format == ICEBERG_SPARK and is_remote(self.master)
            else "",
            ""
            if len({staging.resolve() for staging in self.stagings}) == len(self.stagings)
            else "a staging folder is named twice",
        ]

    def _registration_problems(self) -> list[str]:
        if not self.table:
            return []
        problems = [f"spark.table = {self.table}: {why}"] if (why := not_registered(self.format)) else []
        try:
            metastore_name(self.table)
        except ValueError as error:
            problems.append(f"spark.table {error}")
        return problems

    @property
    def stagings(self) -> tuple[Path, ...]:
        """All folders to load from."""
        return (self.staging, *self.more_stagings)

    @property
    def folder(self) -> Path:
        """The target as a folder of this file system."""
        return Path(self.target)

    @property
    def place(self) -> Place:
        """Where a table of `FOLDER_FORMATS` is. Raises UsageError for `options` that a bucket does not take."""
        return place_of(str(self.target), self.options)

    @property
    def identity(self) -> str:
        """What is loaded into, in one line: a table that is known by its path keeps it wherever we are started from."""
        return self._named_with(self.options)

    @property
    def shown_identity(self) -> str:
        """The same as it may be shown: without the secrets of `options`."""
        return self._named_with({name: HIDDEN if sounds_secret(name) else masked_text(value)
                                 for name, value in self.options.items()})  # fmt: skip

    def _named_with(self, options: Mapping[str, str]) -> str:
        if self.format in FOLDER_FORMATS:
            return absolute(str(self.target))
        told = "".join(f" {name}={value}" for name, value in sorted(options.items()))
        return " ".join(word for word in (self.format, self.function, str(self.target)) if word) + told

    @property
    def trigger(self) -> Trigger:
        """When a batch is due."""
        size = min(self.max_bytes * BYTES_TRIGGERS, self.bounds.bytes_max)
        if self.high_water_bytes:
            size = min(size, self.high_water_bytes // HIGH_WATER_SHARE)
        return Trigger(self.max_rows, size, self.max_wait_ms)

    @property
    def bounds(self) -> PlanBounds:
        """What one batch takes at most; rows that may have to travel over a connection are in memory meanwhile."""
        triggers = PLAN_TRIGGERS if is_local(self.master) else 1
        return PlanBounds(self.max_rows, self.max_bytes * triggers)

    def load_line(self, *options: str) -> str:
        """The command that loads the same with these options. What names a catalog or a cluster may be long, or secret: it
        stays in its file, and without it another table would be filled."""
        file = ("-c", SETTINGS_FILE) if self.options or self.conf or self.table else ()
        folders = [word for folder in self.stagings for word in ("--staging", folder)]
        return command_line(
            "load", *file, *options, *folders, "--target", self.target, *shape_of(self.format, self.partition_by)
        )

    @property
    def cores(self) -> int:
        """How many tasks Spark runs at once."""
        match = _LOCAL_CORES.fullmatch(self.master)
        if match is None:
            return CLUSTER_CORES
        if match[1] == "*":
            return os.cpu_count() or 1
        return max(1, int(match[1] or 1))


def loader_config(
    spark: SparkSettings, staging: Path, target: Path | str, env: Mapping[str, str], high_water_mib: int = 0
) -> LoaderConfig:
    """What the settings say. Raises UsageError."""
    return LoaderConfig(
        staging=staging, target=target, format=spark.format, function=spark.function, options=spark.options,
        partition_by=spark.partition_by, delta_jars=spark.delta_jars, iceberg_jars=spark.iceberg_jars,
        master=spark.master, java_home=spark.java_home,
        driver_memory=spark.driver_memory, conf=spark.conf, max_rows=spark.max_rows, max_bytes=spark.max_bytes_mib << 20,
        max_wait_ms=spark.max_wait_ms, target_file_bytes=spark.target_file_mib << 20, jvm_timeout_ms=spark.jvm_timeout_ms,
        epoch_on_recreated=spark.on_recreated == "epoch", leave_gaps=spark.on_gap == "leave", env=env,
        high_water_bytes=high_water_mib << 20, keep_outcomes_s=spark.keep_outcomes_days * 86_400.0, vacuum=spark.vacuum,
        table=spark.table,
        merge_files=spark.merge_files,
    )  # fmt: skip


def _range(name: str, value: int, least: int, greatest: int) -> str:
    return "" if least <= value <= greatest else f"{name} is {value}, it can be {least} to {greatest}"


def _nested(staging: Path, target: Path) -> str:
    inside, outside = (Path(os.path.realpath(one)) for one in (target, staging))
    if inside == outside or outside in inside.parents or inside in outside.parents:
        return f"the table {target} and the staging folder {staging} lie one in the other"
    return ""
