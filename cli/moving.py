"""How a group's offsets are set: what moves, shown first, asked for, read back. `reset` finds the offsets by time, and moves
groups that run too; `skip` and `clone-offsets` set those of a group at rest (`carry_out`).

A member that runs commits its own offsets over what is set here, so members have to be stopped first, or be told by the
brokers.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import click

from ..client.access import Access
from ..client.admin import Admin
from ..client.cluster import Cluster
from ..client.operations import Operations
from ..conf.printed import counted
from ..conf.settings import Settings
from ..durable.files import try_lock
from ..engine.home import CHECKPOINT_DIR, ENGINE_DIR, LOCK_FILE
from ..remoting.admin_bodies import ConsumerConnections, SubscriptionGroupConfig
from ..remoting.codes import ResponseCode
from ..remoting.errors import BrokerError, RocketcrewError, UsageError
from ..remoting.names import RETRY_PREFIX, TOOLS_GROUP
from ..remoting.queues import MessageQueue
from ..source.searching import exact_offset, store_times
from ..supervisor.member.access import access_of
from .asking import (
    ask_cluster,
    broadcasts,
    client_ids,
    committed_offsets,
    connections_of,
    is_set_broadcasting,
    known_topics,
)
from .changing import agrees, asks, so_far
from .json_text import json_text
from .stagings import group_in_keys, staging_folders
from .tables import lines
from .wording import no_such_group, with_hint

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
QUESTION: Final = "Set these offsets?"
TOLD: Final = "the brokers have the offsets: a member that they move goes on there when what it has in hand is finished"
ONE_MEMBER: Final = (
    "is BROADCASTING: each member keeps its own offsets, and none is known here. Brokers from 5.2 on move of each queue only"
    " the member that pulls first, older ones all members that run"
)
AS_BEFORE: Final = "the offsets are as they were: no queue moves"
ONCE_MORE: Final = "nothing was changed; the same command shows what moves now"
NAMED_MAX: Final = 8
"""Queues in one sentence."""
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
    def skipped(self) -> int | None:
        """Messages that will never be consumed; None where nothing was committed, and so nobody knows."""
        return None if self.old is None else max(0, self.new - self.old)

    @property
    def repeated(self) -> int | None:
        """Messages that will be consumed once more; None as of `skipped`."""
        return None if self.old is None else max(0, self.old - self.new)

    def __str__(self) -> str:
        return f"{self.topic} {self.broker} {self.queue_id}"


REPEATED: Final = (
    "A record whose rows are in the table is not loaded again. But a message that fails when it is repeated comes again as a"
    " new record of the retry topic, whose rows are added (the view `latest` has one set for each message); --reprocess loads"
    " all in a new epoch."
)

Planned = tuple[list[str], list[Move]]
"""The members that run, and what moves."""
Plan = Callable[[Cluster, Access], Awaitable[list[Move]]]
"""Where the group is to go on, queue by queue. Raises RocketcrewError for what cannot be."""


class GroupOffsets:
    """Where a group is in some topics, and how it is moved."""

    def __init__(self, access: Access, group: str, topics: tuple[str, ...], *, broadcasting: bool) -> None:
        """`broadcasting`: the settings say so of the group."""
        self.access = access
        self._broadcasting = broadcasting
        self._group = access.wrap(group)
        self._topics = list(dict.fromkeys(map(access.wrap, topics)))

    def plan(self, where: str, time_ms: int, *, new_group: bool, again: bool = False) -> Planned:
        """The members that run, and each queue's move. Raises UnknownNameError for a topic or group that is not there.
        `again`: it was shown before, and is not warned of once more."""
        return ask_cluster(self.access, lambda cluster: self._plan(cluster, where, time_ms, new_group, again))

    async def _plan(self, cluster: Cluster, where: str, time_ms: int, new_group: bool, again: bool) -> Planned:
        online = await Admin(cluster).consumer_connections(self._group, self._topics[0])
        if online is None:
            self.refuse_broadcasting(online)
        elif broadcasts(online) and not again:
            click.echo(f"warning: group {self.access.unwrap(self._group)} {ONE_MEMBER}", err=True)
        operations = Operations(cluster)
        moves: list[Move] = []
        for topic in self._topics:
            queues = await cluster.queues_to_read(topic, refresh=True)
            for mq, old in zip(queues, await committed_offsets(operations, self._group, queues), strict=True):
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

    def move(
        self, moves: list[Move], where: str, time_ms: int, *, online: bool, note: Callable[[list[Move]], None]
    ) -> None:
        """Set the offsets, and read them back where nobody consumes meanwhile. Raises RocketcrewError when they differ.

        What an error or Ctrl-C leaves set is named. `note` gets the moves that were made, in any case."""
        made: list[Move] = []

        async def set_each(cluster: Cluster) -> None:
            if online:
                await self._tell_members(cluster, where, time_ms, moves, made)
                return
            operations = Operations(cluster)
            wrong: list[str] = []
            for move in moves:
                mq = self._queue(move)
                await self._set(cluster, operations, mq, move.new)
                made.append(move)
                found = await operations.query_consumer_offset(self._group, mq, set_zero_if_not_found=False)
                if found != move.new:
                    made.remove(move)
                    wrong.append(f"{move} is at {found}, not {move.new}")
            if wrong:
                raise RocketcrewError(f"the brokers have other offsets than were set: {'; '.join(wrong)}")

        with so_far(lambda: made_in_words(made, moves)):
            try:
                ask_cluster(self.access, set_each)
            finally:
                note(made)

    def _queue(self, move: Move) -> MessageQueue:
        return MessageQueue(self.access.wrap(move.topic), move.broker, move.queue_id)

    async def _set(self, cluster: Cluster, operations: Operations, mq: MessageQueue, offset: int) -> None:
        """Brokers from 5.2 on keep no offset of an unknown group: it is made there, as a first heartbeat would."""
        try:
            await operations.update_consumer_offset(self._group, mq, offset)
        except BrokerError as error:
            if error.code != ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
                raise
            await Admin(cluster).create_group(await cluster.address_of(mq), SubscriptionGroupConfig(self._group))
            await operations.update_consumer_offset(self._group, mq, offset)

    async def _tell_members(
        self, cluster: Cluster, where: str, time_ms: int, moves: list[Move], made: list[Move]
    ) -> None:
        timestamp = {EARLIEST: 0, LATEST: -1}.get(where, time_ms)
        for topic in self._topics:
            await Admin(cluster).reset_offsets(self._group, topic, timestamp)
            made += [move for move in moves if self.access.wrap(move.topic) == topic]


def check_unchanged(shown: Planned, now: Planned) -> None:
    """Planned again after a question, which takes its time. Members that run change their offsets all the while: of them it
    matters who they are. Raises RocketcrewError."""
    (members, moves), (members_now, moves_now) = shown, now
    if members_now != members:
        raise RocketcrewError(
            f"the group has other members than were shown ({', '.join(members_now) or 'none'}): {ONCE_MORE}"
        )
    olds = {str(move): move.old for move in moves_now}
    changed = [str(move) for move in moves if olds.get(str(move), -1) != move.old]
    if changed and not members:
        raise RocketcrewError(f"others moved the group meanwhile, in {some_of(changed)}: {ONCE_MORE}")


def made_in_words(made: list[Move], moves: list[Move]) -> str:
    """What was done of the moves; empty where that is nothing. Queues whose offset is the same are not counted."""
    moved, all_moved = ([move for move in each if move.old != move.new] for each in (made, moves))
    return f"{len(moved)} of {counted(len(all_moved), 'queue')} were set ({some_of(moved)})" if moved else ""


def some_of(queues: Sequence[object]) -> str:
    """The first of them, and how many more there are."""
    more = f" and {len(queues) - NAMED_MAX} more" if len(queues) > NAMED_MAX else ""
    return ", ".join(map(str, queues[:NAMED_MAX])) + more


def show_moves(moves: list[Move], group: str, members: list[str], *, reprocess: bool = False) -> None:
    """A row a queue, and a sentence with the sums; `members` are those that run and will be told."""
    rows = [
        {
            "TOPIC": move.topic,
            "BROKER": move.broker,
            "QUEUE": move.queue_id,
            "OLD": "-" if move.old is None else move.old,
            "NEW": move.new,
            "SKIPPED": "-" if move.skipped is None else move.skipped,
            "REPEATED": "-" if move.repeated is None else move.repeated,
        }
        for move in moves
    ]
    click.echo("\n".join(lines(rows)))
    skipped, repeated = sum(move.skipped or 0 for move in moves), sum(move.repeated or 0 for move in moves)
    new = sum(move.old is None for move in moves)
    unknown = f"; {counted(new, 'queue')} without an offset" if new else ""
    run = "1 member runs" if len(members) == 1 else f"{len(members)} members run"
    online = f" {run}: the brokers tell them." if members else ""
    click.echo(f"group {group}: {counted(skipped, 'message')} skipped, {repeated} repeated{unknown}.{online}")
    if repeated and not reprocess:
        click.echo(REPEATED)


def report(moves: list[Move], group: str, members: list[str], *, as_json: bool, done: bool) -> None:
    """What was done, or that nothing was."""
    if as_json:
        queues = [asdict(move) | {"skipped": move.skipped, "repeated": move.repeated} for move in moves]
        click.echo(json_text({"group": group, "members": members, "done": done, "queues": queues}))
    else:
        set_in_words = "the offsets are set" if any(move.old != move.new for move in moves) else AS_BEFORE
        click.echo((TOLD if members else set_in_words) if done else "nothing was changed", err=True)


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


async def _offset(cluster: Cluster, operations: Operations, mq: MessageQueue, where: str, time_ms: int) -> int:
    if where == EARLIEST:
        return await operations.min_offset(mq)
    if where == LATEST:
        return await operations.max_offset(mq)
    low, high = await operations.min_offset(mq), await operations.max_offset(mq)
    times = partial(store_times, cluster, operations, [TOOLS_GROUP], mq)
    return await exact_offset(await operations.search_offset(mq, time_ms), low, high, time_ms, times)


def note_skipped(settings: Settings, folders: list[Path], moves: list[Move], access: Access, command: str) -> None:
    """Note what the command skips, so that `reconcile` can name it. Members that run note it themselves."""
    from ..durable.intervals import IntervalSet, OffsetSet, QueueKey
    from ..durable.outcomes import SKIPPED, Outcomes
    from ..spark.staging import Staging

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


def carry_out(
    settings: Settings, group: str, plan: Plan, *, command: str, dry_run: bool, yes: bool, as_json: bool,
    new_group: bool | None = None,
) -> None:  # fmt: skip
    """Show the moves of `group`, and make them unless nobody agrees. Raises UsageError while members run, and RocketcrewError
    when the brokers have other offsets afterwards. `command` is its name in what is noted of skipped messages;
    `new_group`: the group need not be known, None = the command has no such option."""
    broadcasting = is_set_broadcasting(settings, group)
    settings = replace(settings, consumer=replace(settings.consumer, group=group))
    access = access_of(settings)
    offsets = GroupOffsets(access, group, (), broadcasting=broadcasting)

    async def planned(cluster: Cluster) -> Planned:
        online = await connections_of(cluster, access.wrap(group))
        offsets.refuse_broadcasting(online)
        members = client_ids(online)
        if members and not dry_run:  # said first: while they run, the offsets change under every plan
            raise UsageError(
                f"group {group} has members that run ({', '.join(members)}) and commit their own offsets: stop them first"
            )
        if new_group is None:  # of a group that never ran, every queue seems unfinished
            await offsets.check_known(cluster, has_option=False)
        moves = await plan(cluster, access)
        if new_group is False:
            await offsets.check_known(cluster, has_option=True)
        return members, moves

    with resting_engine(Path(settings.supervisor.data_dir), group_in_keys(settings)) as checkpoint:
        if checkpoint is not None:
            raise UsageError(
                f"group {group} is run by `run --engine spark`, whose checkpoint {checkpoint} has its offsets: use"
                " `rocketcrew reset`, which removes it"
            )
        members, moves = ask_cluster(access, planned)
        if not as_json:
            show_moves(moves, group, [])
        changed = [move for move in moves if move.old != move.new]
        done = bool(changed) and not dry_run and agrees(QUESTION, yes=yes)
        if done:
            if asks(yes=yes):
                check_unchanged((members, moves), ask_cluster(access, planned))
            folders = staging_folders(settings)
            offsets.move(
                changed, "", 0, online=False,
                note=lambda made: note_skipped(settings, folders, made, access, command),
            )  # fmt: skip
    report(moves, group, members, as_json=as_json, done=done)
