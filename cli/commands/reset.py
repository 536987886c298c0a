"""`rocketcrew reset`: where a group goes on, and whether what it loaded before is loaded once more."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from ...client.admin import Admin
from ...client.cluster import Cluster
from ...client.operations import Operations
from ...client.sync import run_with_cluster
from ...conf.segment_format import EPOCH_FILE, FOLDER_FORMATS
from ...conf.settings import Settings, require
from ...durable.files import remove_tree, try_lock
from ...engine.home import CHECKPOINT_DIR, ENGINE_DIR, LOCK_FILE
from ...remoting.errors import UsageError
from ...remoting.queues import MessageQueue
from ...source.reading import TOOLS_GROUP
from ...source.searching import exact_offset, store_times
from ...supervisor.member.access import access_of
from ..options import FOLDER, table_folder, with_settings
from ..stagings import group_in_keys, staging_folders

if TYPE_CHECKING:
    from ...durable.intervals import QueueKey

EARLIEST: Final = "earliest"
LATEST: Final = "latest"


@click.command()
@click.option("-g", "--group", metavar="GROUP", help="The consumer group. No member of it may run.")
@click.option("-t", "--topic", "topics", multiple=True, metavar="TOPIC", required=True, help="May be repeated.")
@click.option("--to", "where", metavar="earliest|latest|TIME", required=True,
              help="The first message to consume: the oldest, the next that comes, or the first stored at TIME (ISO 8601,"
                   " or milliseconds since 1970).")  # fmt: skip
@click.option("--reprocess", is_flag=True, help="Load the rows once more, in a new epoch (column _epoch).")
@click.option("--target", metavar="PATH", help="The table's folder, for --reprocess.")
@click.option("--staging", "stagings", metavar="DIR", multiple=True, type=FOLDER,
              help="For --reprocess: a folder of segments. Otherwise all of the group in supervisor.data_dir.")  # fmt: skip
@with_settings(group="consumer.group", target="spark.target")
def reset(settings: Settings, topics: tuple[str, ...], where: str, reprocess: bool, stagings: tuple[Path, ...]) -> None:
    """Set the group's offsets, while no member of it runs.

    What is consumed again is dropped where it is in the table already: each message is in it once. With --reprocess its rows
    are loaded beside the first ones, with the number of the new epoch in the column _epoch (null is the first). Segments that
    were sealed before belong to the epoch before. Where members have their state on several hosts, name all of their folders.

    Of `run --engine spark` the checkpoint in supervisor.data_dir is removed, so that its next start begins at the offsets
    that are set here, for its other topics at what it has reported; what it had sealed stays.

    \b
    Examples:
      rocketcrew reset -g billing -t orders --to 2026-05-01T00:00:00+00:00
      rocketcrew reset -g billing -t orders --to earliest --reprocess --target /data/billing
    """
    names = {"consumer.group": "-g GROUP", "cluster.name_servers": "-n HOST:PORT"}
    if reprocess:
        names["spark.target"] = "--target PATH"
        if settings.spark.format not in FOLDER_FORMATS:
            raise UsageError(
                f"--reprocess needs a table that knows its epochs, not spark.format = {settings.spark.format}"
            )
    require(settings, list(names), flag_names=names)
    time_ms = _time_ms(where)
    access, group = access_of(settings), settings.consumer.group

    async def find(cluster: Cluster) -> dict[MessageQueue, int]:
        wanted = [access.wrap(topic) for topic in topics]
        online = await Admin(cluster).consumer_connections(access.wrap(group), wanted[0])
        if online is not None and online.connection_set:
            members = ", ".join(sorted(one.client_id for one in online.connection_set))
            raise UsageError(f"group {group} has members that run ({members}): stop them first, or their offsets win")
        operations = Operations(cluster)
        queues = [mq for topic in wanted for mq in await cluster.queues_to_read(topic, refresh=True)]
        return {mq: await _offset(cluster, operations, mq, where, time_ms) for mq in queues}

    async def move(cluster: Cluster) -> None:
        operations = Operations(cluster)
        for mq, offset in sorted(offsets.items()):
            await operations.update_consumer_offset(access.wrap(group), mq, offset)

    with resting_engine(Path(settings.supervisor.data_dir), group_in_keys(settings)) as checkpoint:
        offsets = run_with_cluster(access, find)
        if reprocess:
            _ask_for_epochs(settings, list(stagings) or staging_folders(settings), sorted(offsets))
        if checkpoint is not None:
            remove_tree(checkpoint)  # before the offsets move: in between it would begin where it stands
            click.echo(f"removed {checkpoint}: the engine begins at the group's offsets", err=True)
        run_with_cluster(access, move)
    for mq, offset in sorted(offsets.items()):
        click.echo(f"{access.unwrap(mq.topic)} {mq.broker_name} {mq.queue_id}: {offset}")


@contextlib.contextmanager
def resting_engine(data_dir: Path, group: str) -> Generator[Path | None]:
    """The checkpoint of the group's engine here, None without one; the engine cannot start meanwhile.

    Raises UsageError while it runs: it goes on at its checkpoint, whatever the group's offsets are.
    """
    root = data_dir / group / ENGINE_DIR
    if not root.is_dir():
        yield None
        return
    lock = try_lock(root / LOCK_FILE)
    if lock is None:
        raise UsageError(f"`run --engine spark` of group {group} works in {root}: stop it first")
    try:
        checkpoint = root / CHECKPOINT_DIR
        yield checkpoint if checkpoint.is_dir() else None
    finally:
        os.close(lock)


def _time_ms(where: str) -> int:
    if where in (EARLIEST, LATEST):
        return 0
    if where.isdigit():
        return int(where)
    try:
        when = datetime.fromisoformat(where)
    except ValueError:
        raise UsageError(
            f"--to {where!r} is neither {EARLIEST}, {LATEST} nor a time as 2026-05-01T00:00:00+00:00"
        ) from None
    if when.tzinfo is None:
        raise UsageError(f"--to {where!r} has no time zone: add one, such as +00:00")
    return int(when.timestamp() * 1000)


async def _offset(cluster: Cluster, operations: Operations, mq: MessageQueue, where: str, time_ms: int) -> int:
    if where == EARLIEST:
        return await operations.min_offset(mq)
    if where == LATEST:
        return await operations.max_offset(mq)
    low, high = await operations.min_offset(mq), await operations.max_offset(mq)

    async def times(start: int, end: int) -> dict[int, int]:
        return await store_times(cluster, operations, TOOLS_GROUP, mq, start, end)

    return await exact_offset(await operations.search_offset(mq, time_ms), low, high, time_ms, times)


def _ask_for_epochs(settings: Settings, folders: list[Path], queues: list[MessageQueue]) -> None:
    """Written before the offsets go back: an epoch without a reset only holds what comes next."""
    from ...durable.files import write_atomically
    from ...durable.intervals import QueueKey
    from ...spark.epochs import EpochRequest
    from ...spark.staging import Staging

    if not folders:
        raise UsageError("no folder of segments was found: name them with --staging")
    epochs = _table_epochs(table_folder(settings))
    keys = [QueueKey(group_in_keys(settings), mq.topic, mq.broker_name, mq.queue_id) for mq in queues]
    stagings = [Staging(folder) for folder in folders]
    for staging in stagings:
        if staging.epoch_request().segments & staging.unloaded_names():
            raise UsageError(
                f"{staging.root} holds segments from before the last reset: load them first (rocketcrew load)"
            )
    asked = {key for staging in stagings for key in staging.epoch_request().queues}
    pending = {key.in_epoch(0): key.epoch for key in sorted(asked)}
    wanted = [key.in_epoch(max(epochs.get(key, 0), pending.get(key, 0)) + 1) for key in keys]
    others = [key for key in sorted(asked) if key.in_epoch(0) not in keys]
    for staging in stagings:
        request = EpochRequest((*others, *wanted), frozenset(staging.unloaded_names()))
        write_atomically(staging.root / EPOCH_FILE, request.to_json(), durable=True)


def _table_epochs(table: Path) -> dict[QueueKey, int]:
    from ...spark.table_keys import table_state

    return table_state(table).epochs
