"""From the configuration to the target, and to what writes for it."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from functools import partial
from pathlib import Path

from ..remoting.errors import UsageError
from .columns import Column
from .config import DELTA, DELTA_RS, FOREACH, PARQUET, LoaderConfig
from .connect import is_remote
from .delta_target import DeltaTarget, append_by_delta_rs, append_by_spark
from .ledger_target import LedgerTarget, deliver_by_format, deliver_by_function
from .parquet_target import ParquetTarget
from .session import SessionSettings, delta_conf
from .spark_writer import SparkWriter
from .target import Target, Writer

LEDGER_DIR = "ledger"


class NoWriter:
    """For targets that commit in this process: nothing to start, nothing that dies."""

    def check(self) -> None:
        """There is nothing that could be missing."""

    def start(self) -> None:
        """There is nothing to start."""

    def write(self, files: Sequence[Path], output: Path, columns: Sequence[Column], bytes_in: int) -> None:
        """Never asked for."""
        raise RuntimeError(
            f"nothing here writes {len(files)} files of {len(columns)} columns, {bytes_in} bytes to {output}"
        )

    def cancel(self) -> None:
        """A commit of delta-rs is not interrupted: it is short."""

    def close(self) -> None:
        """There is nothing to end."""


def spark_writer(config: LoaderConfig) -> Writer:
    """The writer that `config` describes. Nothing is started yet."""
    if config.format == DELTA_RS:
        return NoWriter()
    # A Connect server has its jars and extensions from its own start.
    with_jars = config.format == DELTA and not is_remote(config.master)
    conf = {**(delta_conf(config.delta_jars) if with_jars else {}), **config.conf}
    settings = SessionSettings(
        folder=config.staging.absolute() / "spark",
        master=config.master,
        driver_memory=config.driver_memory,
        java_home=config.java_home,
        conf=conf,
        env=config.env,
        app_name="rocketcrew-loader",
    )
    return SparkWriter(settings, config.jvm_timeout_ms)


def make_target(config: LoaderConfig, writer: Writer, threads: Executor) -> Target:
    """The target of `config`. Raises UsageError when it can't be."""
    if config.format == PARQUET:
        return ParquetTarget(config.folder, writer, threads)
    if config.format == DELTA_RS:
        return DeltaTarget(
            config.folder, partial(append_by_delta_rs, file_bytes=config.target_file_bytes), lambda: None
        )
    if not isinstance(writer, SparkWriter):
        raise UsageError(f"format {config.format} can only be written by Spark")
    if config.format == DELTA:
        return DeltaTarget(config.folder, append_by_spark(writer), writer.start)
    ledger = config.staging / LEDGER_DIR
    if config.format == FOREACH:
        deliver = deliver_by_function(config.function)
    else:
        deliver = deliver_by_format(config.format, str(config.target), config.options)
    return LedgerTarget(ledger, config.identity, writer, deliver)
