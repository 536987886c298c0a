"""`rocketcrew reset`: where a group goes on, and whether what it loaded before is loaded once more."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from ...client.clock import wall_ms
from ...conf.segment_format import EPOCH_FILE, FOLDER_FORMATS
from ...conf.settings import Settings, require
from ...durable.files import remove_tree
from ...remoting.errors import UsageError
from ...remoting.names import RETRY_PREFIX
from ...remoting.queues import MessageQueue
from ...supervisor.member.access import access_of
from ..asking import is_set_broadcasting
from ..changing import agrees, asks, changes
from ..messages import when
from ..moving import (
    EARLIEST,
    LATEST,
    QUESTION,
    GroupOffsets,
    Move,
    check_unchanged,
    note_skipped,
    report,
    resting_engine,
    show_moves,
)
from ..options import FOLDER_THERE, Dependent, table_place, with_settings
from ..stagings import group_in_keys, load_line, staging_folders
from ..times import SKEW_MAX_MS, parse_time

if TYPE_CHECKING:
    from ...durable.intervals import QueueKey
    from ...spark.object_store import Place
    from ...spark.staging import Staging

NOT_ON_HDFS: Final = (
    "--reprocess reads the table's epochs without Spark, and HDFS is reached by Spark's JVM only. Mount HDFS, and give the"
    " table's folder there as --target"
)


@click.command()
@click.option("-g", "--group", metavar="GROUP", help="The consumer group.")
@click.option("-t", "--topic", "topics", multiple=True, metavar="TOPIC", required=True, help="May be repeated.")
@click.option("--to", "where", metavar="earliest|latest|TIME", required=True,
              help="The first message to consume: the oldest, the next that comes, or the first stored at TIME:"
                   " 2026-01-31T08:00 or 20260131080000 (local time unless it names a zone), milliseconds since"
                   " 1970, or how long ago, as 2h or 30m.")  # fmt: skip
@changes(asks=True)
@click.option("--new-group", is_flag=True, help="The group has never run: set where it will start.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object: every queue with old and new offset.")
@click.option("--reprocess", is_flag=True, help="Load the rows once more, in a new epoch (column _epoch).")
@click.option("--target", metavar="PATH", cls=Dependent, needs="--reprocess",
              help="With --reprocess: the table's folder.")  # fmt: skip
@click.option("--staging", "stagings", metavar="DIR", multiple=True, type=FOLDER_THERE,
              help="A folder of segments, where what is skipped or loaded once more is noted. Otherwise all of the group"
                   " in supervisor.data_dir.")  # fmt: skip
@with_settings(group="consumer.group", target="spark.target")
def reset(
    settings: Settings, topics: tuple[str, ...], where: str, dry_run: bool, yes: bool, new_group: bool, as_json: bool,
    reprocess: bool, stagings: tuple[Path, ...],
) -> None:  # fmt: skip
    """Set the group's offsets; every queue is shown with its old and its new one first.

    While members of the group run, the brokers tell them, as `mqadmin resetOffsetByTime` has it done, and the command does
    not wait until they have moved; else the offsets are set and read back. --reprocess needs the group at rest.

    What is consumed again is dropped where it is in the table already: each record is in it once. A message that fails anew
    goes to the retry topic as a new record, whose rows are added (the view `latest` shows one set for each message). With
    --reprocess its rows are loaded beside the first ones, with the number of the new epoch in the column _epoch (null is the
    first); so are those of messages of the re-run that fail and are retried. Segments that were sealed before belong to the
    epoch before. Where members have their state on several hosts, name all of their folders.

    Members of a broadcasting group keep their own offsets in a file. Of those that run, brokers from 5.2 on move only the one
    that pulls first, older ones all. While none runs it is refused, as consumer.message_model tells: without that setting the
    brokers' offsets are set, and move nobody.

    Of `run --engine spark` the checkpoint in supervisor.data_dir is removed, so that its next start begins at the offsets
    that are set here, for its other topics at what it has reported; what it had sealed stays.

    \b
    Examples:
      rocketcrew reset -g billing -t orders --to 2h --dry-run
      rocketcrew reset -g billing -t orders --to 2026-05-01T00:00:00+00:00
      rocketcrew reset -g billing -t orders --to earliest --reprocess \\
          --target /data/billing
    """
    names = {"consumer.group": "-g GROUP", "cluster.name_servers": "-n HOST:PORT"}
    if reprocess:
        names["spark.target"] = "--target PATH"
        if settings.spark.format not in FOLDER_FORMATS:
            raise UsageError(
                f"--reprocess needs a table that knows its epochs, not spark.format = {settings.spark.format}"
            )
    require(settings, list(names), flag_names=names)
    if reprocess:
        table_place(settings, not_on_hdfs=NOT_ON_HDFS)  # refused before anybody is asked
    time_ms = time_of(where, wall_ms())
    group = settings.consumer.group
    offsets = GroupOffsets(access_of(settings), group, topics, broadcasting=is_set_broadcasting(settings, group))
    with resting_engine(Path(settings.supervisor.data_dir), group_in_keys(settings)) as checkpoint:
        members, moves = offsets.plan(where, time_ms, new_group=new_group)
        if members and (reprocess or checkpoint is not None):
            raise UsageError(f"group {group} has members that run ({', '.join(members)}): stop them first")
        if not as_json:
            show_moves(moves, group, members, reprocess=reprocess)
        if dry_run or not agrees(QUESTION, yes=yes):
            report(moves, group, members, as_json=as_json, done=False)
            return
        if asks(yes=yes):
            check_unchanged((members, moves), offsets.plan(where, time_ms, new_group=new_group, again=True))
        if reprocess:
            queues = [MessageQueue(offsets.access.wrap(move.topic), move.broker, move.queue_id) for move in moves]
            _ask_for_epochs(settings, list(stagings) or staging_folders(settings), queues)
        if checkpoint is not None:
            remove_tree(checkpoint)  # before the offsets move: in between it would begin where it stands
            click.echo(f"removed {checkpoint}: the engine begins at the group's offsets", err=True)

        def note(made: list[Move]) -> None:
            if not (members or reprocess):
                note_skipped(settings, list(stagings) or staging_folders(settings), made, offsets.access, "reset")

        offsets.move(moves, where, time_ms, online=bool(members), note=note)
    report(moves, group, members, as_json=as_json, done=True)


def time_of(where: str, now_ms: int) -> int:
    """Milliseconds since 1970 of `--to`; 0 where it is no time. Raises UsageError, also for a time that is to come: it would
    skip all there is, as a mistyped year does."""
    if where in (EARLIEST, LATEST):
        return 0
    time_ms = parse_time(f"--to ({EARLIEST}, {LATEST} or a time)", where, now_ms)
    if time_ms > now_ms + SKEW_MAX_MS:
        raise UsageError(
            f"--to {where!r} is {when(time_ms)}, later than now: write {LATEST} to go on with the next message that comes"
        )
    return time_ms


def _ask_for_epochs(settings: Settings, folders: list[Path], queues: list[MessageQueue]) -> None:
    """Written before the offsets go back: an epoch without a reset only holds what comes next."""
    from ...durable.intervals import QueueKey
    from ...spark.staging import Staging

    if not folders:
        raise UsageError("no folder of segments was found: name them with --staging")
    epochs = _table_epochs(table_place(settings, not_on_hdfs=NOT_ON_HDFS))
    group = group_in_keys(settings)
    keys = [QueueKey(group, mq.topic, mq.broker_name, mq.queue_id) for mq in queues]
    # Also of the retry topic: a message of the re-run that fails comes again as a record there.
    known = {key for key in (key.in_epoch(0) for key in epochs) if key.topic == RETRY_PREFIX + group}
    keys += sorted(known | {QueueKey(group, RETRY_PREFIX + group, mq.broker_name, 0) for mq in queues})
    stagings = [Staging(folder) for folder in folders]
    for staging in stagings:
        if staging.epoch_request().segments & staging.unloaded_names():
            load = load_line(settings, staging.root)
            raise UsageError(f"{staging.root} holds segments from before the last reset: load them first by `{load}`")
    asked = {key for staging in stagings for key in staging.epoch_request().queues}
    pending = {key.in_epoch(0): key.epoch for key in sorted(asked)}
    # One number for all of them, so that a retried message's rows have that of its origin.
    newest = max(max(epochs.get(key, 0), pending.get(key, 0)) for key in keys)
    wanted = [key.in_epoch(newest + 1) for key in keys]
    others = [key for key in sorted(asked) if key.in_epoch(0) not in keys]
    write_request(stagings, (*others, *wanted))


def write_request(stagings: Sequence[Staging], queues: tuple[QueueKey, ...]) -> None:
    """Ask for these queues' epochs in all folders, of all but what any of them has: a slot may be taken over by another."""
    from ...durable.files import write_atomically
    from ...spark.epochs import EpochRequest

    request = EpochRequest(queues, frozenset[str]().union(*(staging.unloaded_names() for staging in stagings)))
    for staging in stagings:
        write_atomically(staging.root / EPOCH_FILE, request.to_json(), durable=True)


def _table_epochs(table: Place) -> dict[QueueKey, int]:
    from ...spark.table_keys import table_state

    return table_state(table).epochs
