"""What one worker is started with. Made by the supervisor, pickled once, frozen in the worker."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from ..client.access import Access
from ..conf.folders import FolderNames, folder_names
from ..conf.settings import SentrySettings, Settings
from ..conf.units import MINUTE_MS
from .failures import Attempts
from .link import Transport
from .loading import HandlerSpec
from .slab_memory import SharedFd, SlabHandle


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerBounds:
    """Bounds of one worker; the defaults are those of defaults.toml."""

    batch_messages_max: int = 1
    """Messages per call of a batch handler (`consumer.consume_message_batch_max_size`), >= 1."""
    consume_timeout_min: int = 15
    """Hooks are given TIME_OUT for calls that took longer (`consumer.consume_timeout_min`)."""
    ordered: bool = False
    """The configuration asks for an order, whatever the handler's decorator asks for."""
    flush_interval_us: int = 5_000
    """Reports of cheap calls wait so long while work goes on, others a few times as long (workers/unreported.py)."""
    seal_rows: int = 50_000
    seal_bytes: int = 16 * 1024 * 1024
    seal_idle_ms: int = 1_000
    """A segment is sealed when no row was added for this long, and at three times this age."""
    soft_time_limit_ms: int = 0
    hard_time_limit_ms: int = 15 * MINUTE_MS
    """Of one handler call, 0 = none; a handler's own limits go before these."""


def worker_bounds(s: Settings) -> WorkerBounds:
    """The bounds of one worker, as the settings have them."""
    return WorkerBounds(
        batch_messages_max=s.consumer.consume_message_batch_max_size,
        consume_timeout_min=s.consumer.consume_timeout_min,
        ordered=s.consumer.order in ("queue", "key"),
        flush_interval_us=s.workers.flush_interval_us,
        seal_rows=s.results.seal_rows,
        seal_bytes=s.results.seal_bytes_mib << 20,
        seal_idle_ms=s.results.seal_idle_ms,
        soft_time_limit_ms=s.workers.soft_time_limit_ms,
        hard_time_limit_ms=hard_limit_ms(s),
    )


def hard_limit_ms(s: Settings) -> int:
    """Of one call, where the handler says nothing else."""
    return s.workers.hard_time_limit_ms or s.consumer.consume_timeout_min * MINUTE_MS


class TableSpec(NamedTuple):
    """What rows are loaded into, as far as their columns go. `columns`: names and Spark types, none where it is new.
    `format`: `spark.format`, on which the names of folders depend. `new_maps_names`: Spark maps the names of
    columns of new Delta tables (`maps_new_names`)."""

    target: str
    columns: tuple[tuple[str, str], ...] = ()
    partition_by: tuple[str, ...] = ()
    format: str = ""
    new_maps_names: bool = False

    @property
    def folders(self) -> FolderNames:
        """Those that the table makes of values."""
        return folder_names(self.format, self.target, self.partition_by)


NEW_TABLE: Final = TableSpec("")
COLUMNS_FILE: Final = "columns.ddl"
"""Beside the slots: where inferred columns are frozen (inferring.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerBoot:
    """Everything a worker needs. The socket and the slab travel as duplicated descriptors.

    `worker_id` is unique among all workers that ever wrote into `segments_dir` (letters, digits, `.`, `_`, `-`).
    `segments_dir` None = results are off: rows are dropped. `salvage` are segments in `open/` whose workers are
    certainly dead; each is reported by SALVAGED packets, and their end by SALVAGE_DONE, before the handler
    is set up. `cells_path` is a file made by CellFile.
    """

    worker_id: str
    index: int
    handler: HandlerSpec
    link: socket.socket
    transport: Transport
    slab: SlabHandle | None
    group: str
    segments_dir: Path | None = None
    schema: str = ""
    """Columns as DDL; empty = the handler's own; "infer": these, or those of its first rows (inferring.py)."""
    columns_file: Path | None = None
    """Where inferred columns are frozen."""
    table: TableSpec = NEW_TABLE
    """What the rows are loaded into, which the handler's columns must fit (table_fit.py)."""
    salvage: tuple[Path, ...] = ()
    cells_path: Path | None = None
    cell_slot: int = 0
    capture_output: bool = False
    nice: int = 0
    cpu_affinity: str = "none"
    async_concurrency: int = 16
    """Calls of a coroutine handler at one time."""
    recycle_memory_mib: int = 0
    """It asks to be replaced above this resident memory; 0 = never."""
    stacks: SharedFd | None = None
    """Where it writes its stacks when asked, and when a signal that can be caught ends it (stack_dump.py)."""
    member: str = ""
    namespace: str = ""
    traces: bool = False
    """Message trace records are made and sent to the supervisor (`trace.enabled`)."""
    spans: bool = False
    """OpenTelemetry spans are made where its API is installed (`trace.spans`)."""
    sentry: SentrySettings | None = None
    """Where failed calls are sent; None = nowhere."""
    attempts: Attempts = field(default_factory=Attempts)
    """By which a failure is known to be the last one, for Sentry."""
    bounds: WorkerBounds = field(default_factory=WorkerBounds)
    access: Access | None = None
    """How messages out of the handler reach the brokers (sends.py); None where it sends none: it has no credentials then."""
    log_format: str = "auto"
    log_level: str = "info"
    log_file: str = ""
    """Empty = stderr."""
