"""Setting single offsets of a group at rest: shown first, asked for, read back. For `skip` and `clone-offsets`; `reset` finds
its offsets in its own way and moves groups that run too.

A member that runs commits its own offsets over what is set here, so members have to be stopped first.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

from ..client.access import Access
from ..client.cluster import Cluster
from ..client.operations import Operations
from ..conf.settings import Settings
from ..remoting.errors import UsageError
from ..remoting.queues import MessageQueue
from ..supervisor.member.access import access_of
from .asking import ask_cluster, client_ids, connections_of, is_set_broadcasting
from .changing import agrees
from .commands.reset import QUESTION, GroupOffsets, Move, note_skipped, report, resting_engine, show_moves
from .stagings import group_in_keys, staging_folders

Plan = Callable[[Cluster, Access], Awaitable[list[Move]]]
"""Where the group is to go on, queue by queue. Raises RocketcrewError for what cannot be."""


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

    async def planned(cluster: Cluster) -> tuple[list[str], list[Move]]:
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
            offsets.move(changed, "", 0, online=False)
            note_skipped(settings, staging_folders(settings), changed, access, command)
    report(moves, group, members, as_json=as_json, done=done)


async def committed_offsets(operations: Operations, group: str, queues: list[MessageQueue]) -> list[int | None]:
    """What the group has committed in each of the queues, None where nothing."""
    return [await operations.query_consumer_offset(group, mq, set_zero_if_not_found=False) for mq in queues]
