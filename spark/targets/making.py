"""From the configuration to the target, to what writes for it, and to the loader between staging folder and target."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from pathlib import Path

from ...conf.formats import on_hdfs
from ...conf.segment_format import FOLDER_FORMATS
from ...remoting.errors import UsageError
from ..arrow_writer import ArrowWriter, NoWriter
from ..config import ARROW, DELTA, DELTA_RS, FOREACH, PARQUET, LoaderConfig
from ..convert import CopyDisk
from ..errors import RESET, take_on
from ..hdfs import Hdfs, HdfsPath
from ..iceberg_catalog import ICEBERG, ICEBERG_SPARK, catalog_of, hadoop_catalog_of
from ..iceberg_spark import JavaCatalog, SparkMerges, SparkRows
from ..loader import Loader
from ..merging import MergeBounds
from ..object_store import check_conditional_puts
from ..session import SessionSettings, format_conf
from ..spark_writer import SparkWriter
from ..staging import Staging
from .delta import DeltaTarget, append_by_delta_rs, append_by_spark
from .hdfs_folder import HdfsFolder
from .iceberg import IcebergTarget
from .ledger import LedgerTarget, deliver_by_format, deliver_by_function, ledger_of
from .local_folder import LocalFolder
from .parquet import ParquetTarget, TableFolder
from .target import Target, Writer


def make_writer(config: LoaderConfig) -> Writer:
    """The writer that `config` describes. Nothing is started yet."""
    if config.format in (DELTA_RS, ICEBERG):
        return NoWriter()
    if config.format == ARROW:
        return ArrowWriter(config.partition_by)
    conf = {**format_conf(config.format, config.delta_jars, config.iceberg_jars, config.master), **config.conf}
    settings = SessionSettings(
        folder=config.staging.absolute() / "spark",
        master=config.master,
        driver_memory=config.driver_memory,
        java_home=config.java_home,
        conf=conf,
        env=config.env,
        app_name="rocketcrew-loader",
    )
    return SparkWriter(settings, config.jvm_timeout_ms, config.partition_by)


def make_target(config: LoaderConfig, writer: Writer, threads: Executor) -> Target:
    """The target of `config`. Raises UsageError when it can't be."""
    by, keep_s = config.partition_by, config.keep_outcomes_s
    if config.format in (PARQUET, ARROW):
        return ParquetTarget(_folder(config, writer, threads), writer, by, keep_s)
    if config.format == DELTA_RS:
        append = partial(append_by_delta_rs, file_bytes=config.target_file_bytes, partition_by=by)
        place = config.place
        check_conditional_puts(place)
        return DeltaTarget(place, append, lambda: None, by, keep_s, config.vacuum, _merging(config))
    if config.format == ICEBERG:
        return _iceberg_here(config)
    if not isinstance(writer, SparkWriter):
        raise UsageError(f"format {config.format} can only be written by Spark")
    if config.format == ICEBERG_SPARK:
        return _iceberg_by_spark(config, writer)
    if config.format == DELTA:
        append_rows = append_by_spark(writer, by)
        return DeltaTarget(config.folder, append_rows, writer.start, by, keep_s, config.vacuum, _merging(config))
    ledger = ledger_of(config.stagings)
    if config.format == FOREACH:
        deliver = deliver_by_function(config.function)
    else:
        deliver = deliver_by_format(config.format, str(config.target), config.options, by)
    return LedgerTarget(
        ledger,
        config.identity,
        writer,
        deliver,
        str(config.target),
        keep_outcomes_s=keep_s,
        shown=config.shown_identity,
    )


def _merging(config: LoaderConfig) -> MergeBounds | None:
    return MergeBounds(config.target_file_bytes) if config.merge_files else None


def _iceberg_here(config: LoaderConfig, writer: SparkWriter | None = None) -> IcebergTarget:
    """A table on this host; `writer`: Spark writes the rows."""
    spec = catalog_of(config.folder, config.options)
    rows = None if writer is None else SparkRows(spec, str(config.folder.absolute().parent), writer)
    return IcebergTarget(
        config.folder, spec, config.partition_by, config.keep_outcomes_s, config.target_file_bytes, rows=rows,
        merge_files=config.merge_files, vacuum=config.vacuum,
    )  # fmt: skip


def _iceberg_by_spark(config: LoaderConfig, writer: SparkWriter) -> IcebergTarget:
    target, by, keep_s, merges = str(config.target), config.partition_by, config.keep_outcomes_s, config.merge_files
    if not on_hdfs(target):
        return _iceberg_here(config, writer)
    spec = hadoop_catalog_of(target, config.options)
    catalog = JavaCatalog(spec, writer.spark)
    return IcebergTarget(
        HdfsPath(Hdfs(target, writer.spark)), spec, by, keep_s, config.target_file_bytes,
        rows=SparkRows(spec, "", writer), java=catalog, merge_files=merges, spark_merges=SparkMerges(spec, writer, catalog),
    )  # fmt: skip


def _folder(config: LoaderConfig, writer: Writer, threads: Executor) -> TableFolder:
    """The table's folder on its file system; HDFS is asked through the writer's session, which is started for it."""
    if not on_hdfs(config.target):
        return LocalFolder(config.folder, threads)
    if not isinstance(writer, SparkWriter):
        raise UsageError(f"{config.target} is on HDFS, where only Spark writes: set spark.format = parquet")
    return HdfsFolder(HdfsPath(Hdfs(str(config.target), writer.spark)))


def make_loader(
    config: LoaderConfig,
    staging: Staging,
    target: Target,
    threads: Executor,
    on_point: Callable[[str], None] = lambda _: None,
    table_replaced: str = "",
    *,
    batches_lost: bool = False,
) -> Loader:
    """The loader of `config` from `staging`, one of its folders, into `target`; `table_replaced` as it has it, otherwise by
    `load`. `batches_lost`: the table lacks some that were loaded from there, whose records are gaps from then on."""
    table = config.place if config.format in FOLDER_FORMATS and not on_hdfs(config.target) else None
    return Loader(
        staging,
        target,
        config.trigger,
        config.bounds,
        threads=threads,
        cores=config.cores,
        new_id=lambda batch: f"{batch:08d}-{secrets.token_hex(6)}",
        on_point=on_point,
        file_bytes=config.target_file_bytes,
        epoch_on_recreated=config.epoch_on_recreated,
        leave_gaps=config.leave_gaps or config.table_replaced or batches_lost,
        epoch_column=config.format in FOLDER_FORMATS,
        exact=config.format in FOLDER_FORMATS,
        disk=CopyDisk(table.absolute() if isinstance(table, Path) else None),
        table_replaced=table_replaced or take_on(config.load_line("--table-replaced"), RESET),
    )
