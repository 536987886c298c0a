"""`rocketcrew reset`: where a group goes on, and whether what it loaded before is loaded once more."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Generator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from ...client.access import Access
from ...client.admin import Admin
from ...client.cluster import Cluster
from ...client.operations import Operations
from ...conf.segment_format import EPOCH_FILE, FOLDER_FORMATS
from ...conf.settings import Settings, require
from ...durable.files import remove_tree, try_lock
from ...engine.home import CHECKPOINT_DIR, ENGINE_DIR, LOCK_FILE
from ...engine.window import parse_time
from ...remoting.admin_bodies import ConsumerConnections, SubscriptionGroupConfig
from ...remoting.codes import ResponseCode
from ...remoting.errors import BrokerError, RocketcrewError, UsageError
from ...remoting.names import RETRY_PREFIX
from ...remoting.queues import MessageQueue
from ...source.reading import TOOLS_GROUP
from ...source.searching import exact_offset, store_times
from ...supervisor.member.access import access_of
from ..asking import ask_cluster, broadcasts, client_ids, is_set_broadcasting, known_topics
from ..changing import agrees, changes
from ..options import FOLDER_THERE, Dependent, table_place, with_settings
from ..stagings import group_in_keys, staging_folders
from ..tables import counted, lines
from ..wording import no_such_group, with_hint

if TYPE_CHECKING:
    from ...durable.intervals import QueueKey
    from ...spark.object_store import Place
    from ...spark.staging import Staging

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
QUESTION: Final = "Set these offsets?"
TOLD: Final = "the brokers have the offsets: a member that they move goes on there when what it has in hand is finished"
ONE_MEMBER: Final = (
    "is BROADCASTING: each member keeps its own offsets, and none is known here. Brokers from 5.2 on move of each queue only"
    " the member that pulls first, older ones all members that run"
)
NEW_GROUP: Final = "To set where a group that never ran will start, add --new-group"
WAY_OUT: Final = (
    "is BROADCASTING: each member keeps its own offsets in a file, and those of the brokers move none. To begin elsewhere,"
    " stop each member, remove its folder CLIENT_ID/GROUP in consumer.local_offset_store_dir (where that is empty:"
    " ~/.rocketmq_offsets) and start it with the consumer.consume_from_where that you want"
)


@dataclass(frozen=True, slots=True)
class Move:
    """One queue: where the group is (None: it has committed nothing there) and where it will go on."""

    topic: str
    broker: str
    queue_id: int
    old: int | None
    new: int

    @property
    def skipped(self) -> int:
        """Messages that will never be consumed. Not known, and 0, where nothing was committed."""
        return 0 if self.old is None else max(0, self.new - self.old)

    @property
    def repeated(self) -> int:
        """Messages that will be consumed once more."""
        return 0 if self.old is None else max(0, self.old - self.new)


REPEATED: Final = (
    "A record whose rows are in the table is not loaded again. But a message that fails when it is repeated comes again as a"
    " new record of the retry topic, whose rows are added (the view `latest` has one set for each message); --reprocess loads"
    " all in a new epoch."
)
NOT_ON_HDFS: Final = (
    "--reprocess reads the table's epochs without Spark, and HDFS is reached by Spark's JVM only. Mount HDFS, and give the"
    " table's folder there as --target"
)


@click.command()
@click.option("-g", "--group", metavar="GROUP", help="The consumer group.")
@click.option("-t", "--topic", "topics", multiple=True, metavar="TOPIC", required=True, help="May be repeated.")
@click.option("--to", "where", metavar="earliest|latest|TIME", required=True,
              help="The first message to consume: the oldest, the next that comes, or the first stored at TIME:"
                   " 2026-01-31T08:00 (local time unless it names a zone), milliseconds since 1970, or how long"
                   " ago, as 2h or 30m.")  # fmt: skip
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
    time_ms = time_of(where, time.time_ns() // 1_000_000)
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
        if reprocess:
            queues = [MessageQueue(offsets.access.wrap(move.topic), move.broker, move.queue_id) for move in moves]
            _ask_for_epochs(settings, list(stagings) or staging_folders(settings), queues)
        if checkpoint is not None:
            remove_tree(checkpoint)  # before the offsets move: in between it would begin where it stands
            click.echo(f"removed {checkpoint}: the engine begins at the group's offsets", err=True)
        offsets.move(moves, where, time_ms, online=bool(members))
        if not (members or reprocess):
            note_skipped(settings, list(stagings) or staging_folders(settings), moves, offsets.access, "reset")
    report(moves, group, members, as_json=as_json, done=True)


class GroupOffsets:
    """Where a group is in some topics, and how it is moved."""

    def __init__(self, access: Access, group: str, topics: tuple[str, ...], *, broadcasting: bool) -> None:
        """`broadcasting`: the settings say so of the group."""
        self.access = access
        self._broadcasting = broadcasting
        self._group = access.wrap(group)
        self._topics = [access.wrap(topic) for topic in topics]

    def plan(self, where: str, time_ms: int, *, new_group: bool) -> tuple[list[str], list[Move]]:
        """The members that run, and each queue's move. Raises UnknownNameError for a topic or group that is not there."""
        return ask_cluster(self.access, lambda cluster: self._plan(cluster, where, time_ms, new_group=new_group))

    async def _plan(
        self, cluster: Cluster, where: str, time_ms: int, *, new_group: bool
    ) -> tuple[list[str], list[Move]]:
        online = await Admin(cluster).consumer_connections(self._group, self._topics[0])
        if online is None:
            self.refuse_broadcasting(online)
        elif broadcasts(online):
            click.echo(f"warning: group {self.access.unwrap(self._group)} {ONE_MEMBER}", err=True)
        operations = Operations(cluster)
        moves: list[Move] = []
        for topic in self._topics:
            for mq in await cluster.queues_to_read(topic, refresh=True):
                old = await operations.query_consumer_offset(self._group, mq, set_zero_if_not_found=False)
                new = await _offset(cluster, operations, mq, where, time_ms)
                moves.append(Move(self.access.unwrap(topic), mq.broker_name, mq.queue_id, old, new))
        members = client_ids(online)
        if not (new_group or members) and not any(move.old for move in moves):
            await self.check_known(cluster, has_option=True)
        return members, sorted(moves, key=lambda move: (move.topic, move.broker, move.queue_id))

    def refuse_broadcasting(self, online: ConsumerConnections | None) -> None:
        """Raise UsageError where members keep their own offsets: as those say that run, else as the settings say."""
        if broadcasts(online, configured=self._broadcasting):
            raise UsageError(f"group {self.access.unwrap(self._group)} {WAY_OUT}")

    async def check_known(self, cluster: Cluster, *, has_option: bool) -> None:
        """A group is known by its retry topic: brokers make it at the first heartbeat. Old brokers answer 0 for the offset of
        a group that they never saw. `has_option`: the command has --new-group."""
        known = await known_topics(cluster, self.access)
        group = self.access.unwrap(self._group)
        if RETRY_PREFIX + group not in known:
            error = no_such_group(group, known)
            raise with_hint(error, NEW_GROUP) if has_option else error

    def move(self, moves: list[Move], where: str, time_ms: int, *, online: bool) -> None:
        """Set the offsets, and read them back where nobody consumes meanwhile. Raises RocketcrewError when they differ."""

        async def set_each(cluster: Cluster) -> None:
            if online:
                await self._tell_members(cluster, where, time_ms)
                return
            operations = Operations(cluster)
            wrong: list[str] = []
            for move in moves:
                mq = MessageQueue(self.access.wrap(move.topic), move.broker, move.queue_id)
                await self._set(cluster, operations, mq, move.new)
                found = await operations.query_consumer_offset(self._group, mq, set_zero_if_not_found=False)
                if found != move.new:
                    wrong.append(f"{move.topic} {move.broker} {move.queue_id} is at {found}, not {move.new}")
            if wrong:
                raise RocketcrewError(f"the brokers have other offsets than were set: {'; '.join(wrong)}")

        ask_cluster(self.access, set_each)

    async def _set(self, cluster: Cluster, operations: Operations, mq: MessageQueue, offset: int) -> None:
        """Brokers from 5.2 on keep no offset of an unknown group: it is made there, as a first heartbeat would."""
        try:
            await operations.update_consumer_offset(self._group, mq, offset)
        except BrokerError as error:
            if error.code != ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
                raise
            await Admin(cluster).create_group(await cluster.address_of(mq), SubscriptionGroupConfig(self._group))
            await operations.update_consumer_offset(self._group, mq, offset)

    async def _tell_members(self, cluster: Cluster, where: str, time_ms: int) -> None:
        timestamp = {EARLIEST: 0, LATEST: -1}.get(where, time_ms)
        for topic in self._topics:
            await Admin(cluster).reset_offsets(self._group, topic, timestamp)


def show_moves(moves: list[Move], group: str, members: list[str], *, reprocess: bool = False) -> None:
    """A row a queue, and a sentence with the sums; `members` are those that run and will be told."""
    rows = [
        {
            "TOPIC": move.topic,
            "BROKER": move.broker,
            "QUEUE": move.queue_id,
            "OLD": "-" if move.old is None else move.old,
            "NEW": move.new,
            "SKIPPED": move.skipped,
            "REPEATED": move.repeated,
        }
        for move in moves
    ]
    click.echo("\n".join(lines(rows)))
    skipped, repeated = sum(move.skipped for move in moves), sum(move.repeated for move in moves)
    run = "1 member runs" if len(members) == 1 else f"{len(members)} members run"
    online = f" {run}: the brokers tell them." if members else ""
    click.echo(f"group {group}: {counted(skipped, 'message')} skipped, {repeated} repeated.{online}")
    if repeated and not reprocess:
        click.echo(REPEATED)


def report(moves: list[Move], group: str, members: list[str], *, as_json: bool, done: bool) -> None:
    """What was done, or that nothing was."""
    if as_json:
        queues = [asdict(move) | {"skipped": move.skipped, "repeated": move.repeated} for move in moves]
        click.echo(json.dumps({"group": group, "members": members, "done": done, "queues": queues}))
    else:
        done_in_words = TOLD if members else "the offsets are set"
        click.echo(done_in_words if done else "nothing was changed", err=True)


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


def time_of(where: str, now_ms: int) -> int:
    """Milliseconds since 1970 of `--to`; 0 where it is no time. Raises UsageError."""
    return 0 if where in (EARLIEST, LATEST) else parse_time(f"--to ({EARLIEST}, {LATEST} or a time)", where, now_ms)


async def _offset(cluster: Cluster, operations: Operations, mq: MessageQueue, where: str, time_ms: int) -> int:
    if where == EARLIEST:
        return await operations.min_offset(mq)
    if where == LATEST:
        return await operations.max_offset(mq)
    low, high = await operations.min_offset(mq), await operations.max_offset(mq)

    async def times(start: int, end: int) -> dict[int, int]:
        return await store_times(cluster, operations, TOOLS_GROUP, mq, start, end)

    return await exact_offset(await operations.search_offset(mq, time_ms), low, high, time_ms, times)


def note_skipped(settings: Settings, folders: list[Path], moves: list[Move], access: Access, command: str) -> None:
    """Note what the command skips, so that `reconcile` can name it. Members that run note it themselves."""
    from ...durable.intervals import IntervalSet, OffsetSet, QueueKey
    from ...durable.outcomes import SKIPPED, Outcomes
    from ...spark.staging import Staging

    group = group_in_keys(settings)
    skipped = OffsetSet.of(
        (
            QueueKey(group, access.wrap(move.topic), move.broker, move.queue_id),
            IntervalSet.of([(move.old, move.new)]),
        )
        for move in moves
        if move.old is not None
    )
    if skipped and folders:
        Staging(folders[0]).note(f"{time.time_ns():020d}-{command}", Outcomes.of([(SKIPPED, skipped)]))


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
            raise UsageError(
                f"{staging.root} holds segments from before the last reset: load them first (rocketcrew load)"
            )
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
