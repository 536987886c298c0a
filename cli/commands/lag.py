"""`rocketcrew lag`: how far a consumer group is behind."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import sys
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Final, TypeVar

import click

from ...client.access import Access
from ...client.admin import Admin
from ...client.cluster import Cluster
from ...conf.settings import Settings, require
from ...remoting.arguments import near
from ...remoting.codes import ResponseCode
from ...remoting.errors import BrokerError, RocketcrewError
from ...remoting.names import RETRY_PREFIX, is_of_group
from ...remoting.queues import MessageQueue
from ...supervisor import control
from ...supervisor.member.access import access_of
from ..asking import OWN_OFFSETS, ask_cluster, broadcasts, connections_of, is_set_broadcasting, known_topics
from ..controlling import running_slots
from ..group_members import delayed, in_hand, members_of, owners
from ..json_text import json_text
from ..live_line import duration
from ..options import Dependent, with_settings
from ..stagings import topics_in_keys
from ..tables import lines, seen
from ..times import Seconds
from ..unread_queues import cure, unread_retries, unread_words
from ..watch import QueueLag
from ..wording import UnknownNameError, unknown_topic, with_hint

BEYOND = (
    "COMMITTED is beyond MAX: {}. A slave that lags answers for its master, or a failover has cost the broker the end of"
    " these queues: what it gets up to there is no lag, and members that run look for it (docs/delivery.md)"
)
CLEAR: Final = "\x1b[H\x1b[2J"
TRY_EVERY_S: Final = 0.5
KNOWN_AFTER_TRIES: Final = 60
"""Half a minute: a supervisor looks for a topic that is missing each second."""
OFFSETS_ONLY: Final = "Offsets that were set for a group which has not run yet are shown with -t TOPIC"

T = TypeVar("T")


@click.command()
@click.option("-g", "--group", metavar="GROUP", help="The consumer group.")
@click.option("-t", "--topic", "topics", multiple=True, metavar="TOPIC",
              help="Only this topic; may be repeated. Otherwise all of the group's, its retry topic too.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object: every queue, and the total.")
@click.option("--watch", is_flag=True, help="Look again and again, with each queue's owner and rate, until Ctrl-C.")
@click.option("--interval", type=Seconds(0.1, 3600), default=2.0, show_default=True, metavar="S",
              cls=Dependent, needs="--watch", help="With --watch: seconds between two looks.")  # fmt: skip
@click.option(
    "--count",
    type=click.IntRange(0),
    default=0,
    metavar="N",
    cls=Dependent,
    needs="--watch",
    help="With --watch: end after N looks; 0: never.",
)
@with_settings(group="consumer.group")
def lag(
    settings: Settings, topics: tuple[str, ...], as_json: bool, watch: bool, interval: float,
    count: int,
) -> None:  # fmt: skip
    """Show how far a group is behind, queue by queue.

    MAX is the offset that the queue's next message will get, COMMITTED the first that the group has not finished, LAG the
    difference. Finished messages whose offset is not committed yet (every 5 s by default) still count as lag. With --watch,
    IN HAND is what the queue's OWNER has pulled and not finished. DELAYED are messages that came from this queue, failed, and
    wait for the delay of their retry: they are in no queue of the group until then, and no lag. Members count them from
    their start on, by RocketMQ's default delays. A group that brokers do not know yet is waited for, up to
    half a minute, while a supervisor of it runs on this host. Members of a broadcasting group keep their own offsets: nothing
    is known of its lag here. Exits with 3 when no name server or broker can be reached.

    \b
    Examples:
      rocketcrew lag -g billing
      rocketcrew lag -g billing -t orders -n 10.0.0.5:9876 --json
      rocketcrew lag -g billing --watch
    """
    flags = {"cluster.name_servers": "-n HOST:PORT", "consumer.group": "-g GROUP"}
    require(settings, flags, flag_names=flags)

    access = access_of(settings)

    configured = is_set_broadcasting(settings, settings.consumer.group)
    wanted, group = tuple(access.wrap(topic) for topic in topics), access.wrap(settings.consumer.group)

    async def look_on(cluster: Cluster) -> None:
        await check_known(cluster, wanted)
        look = Looks(access, settings.consumer.group, wanted, topics_in_keys(settings), broadcasting=configured)
        await look.go_on(cluster, interval, count, lambda: starts_here(cluster, access, group), as_json=as_json)

    async def ask(cluster: Cluster) -> tuple[list[QueueLag], bool]:
        await check_known(cluster, wanted)
        found = await queue_lags(cluster, group, wanted, topics_in_keys(settings))
        return found, broadcasts(await connections_of(cluster, group), configured=configured)

    if watch:
        ask_cluster(access, look_on)
        return
    try:
        found, broadcasting = ask_cluster(
            access, lambda cluster: once_known(group, lambda: ask(cluster), lambda: starts_here(cluster, access, group))
        )
    except UnknownNameError as error:
        raise error if topics else with_hint(error, OFFSETS_ONLY) from None
    total = None if broadcasting else sum(queue.lag for queue in found)
    for note in notes(found, broadcasting=broadcasting):
        click.echo(seen(note, err=True), err=True)
    found = [unwrapped(access, queue) for queue in found]
    if as_json:
        queues = [as_json_row(queue, broadcasting=broadcasting) for queue in found]
        answer = {"group": settings.consumer.group, "total": total, "queues": queues}
        click.echo(json_text(answer))
    else:
        click.echo(seen(table(found, total)))


async def check_known(cluster: Cluster, topics: Collection[str]) -> None:
    """Raise BrokerError for one that does not exist: brokers that know the group say nothing of it."""
    for topic in topics:
        await cluster.route(topic)


async def starts_here(cluster: Cluster, access: Access, group: str) -> bool:
    """Whether a supervisor of the group, named with its namespace, runs on this host.

    Raises RocketcrewError when none of its topics exists: the brokers do not hear of the group before one does."""
    slots = [slot for slot in running_slots() if slot.parent.name == group]
    if slots:
        topics: list[str] = []
        with contextlib.suppress(RocketcrewError):  # it starts, and does not answer yet
            found = await control.ask(slots[0], "status")
            topics = [topic for topic in sorted(found["subscriptions"]) if not topic.startswith(RETRY_PREFIX)]
        missing = [topic for topic in topics if not await _exists(cluster, access.wrap(topic))]
        if missing == topics != []:
            names = [access.unwrap(topic) for topic in missing]
            raise waits_for(access.unwrap(group), names, await known_topics(cluster, access))
    return bool(slots)


async def _exists(cluster: Cluster, topic: str) -> bool:
    try:
        await cluster.route(topic, refresh=True)
    except BrokerError as error:
        if unknown_topic(error) is None:
            raise
        return False
    return True


def waits_for(group: str, missing: Sequence[str], known: Collection[str]) -> RocketcrewError:
    """The error for a group that runs, and none of whose topics is among the cluster's `known` ones."""
    names = [name for name in known if not is_of_group(name)]
    which = f"the topic {missing[0]}" if len(missing) == 1 else f"any of the topics {', '.join(missing)}"
    near_one = near(missing[0], names) if len(missing) == 1 else ""
    said = f"the group {group} runs, and the cluster does not know {which}{near_one}"
    return RocketcrewError(str(with_hint(said, "The first message makes a topic, where brokers allow that")))


async def once_known(
    group: str, ask: Callable[[], Awaitable[T]], starts: Callable[[], Awaitable[bool]],
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> T:  # fmt: skip
    """What `ask()` gives. A group that `starts` is not known before its first heartbeat, and before brokers have announced
    its retry topic: it is asked for again, KNOWN_AFTER_TRIES times. Raises what `ask` and `starts` raise."""
    for _ in range(KNOWN_AFTER_TRIES):
        try:
            return await ask()
        except BrokerError as error:
            if unknown_topic(error) != RETRY_PREFIX + group or not await starts():
                raise
            await sleep(TRY_EVERY_S)
    return await ask()


class Looks:
    """The group's queues again and again."""

    def __init__(
        self, access: Access, group: str, topics: tuple[str, ...], likely_topics: Sequence[str], *,
        broadcasting: bool = False,
    ) -> None:  # fmt: skip
        """`broadcasting`: the settings say so of the group."""
        self._access = access
        self._group = group
        self._topics = topics
        self._likely = likely_topics
        self._broadcasting = broadcasting

    async def go_on(
        self, cluster: Cluster, interval_s: float, count: int, starts: Callable[[], Awaitable[bool]], *, as_json: bool
    ) -> None:
        """Look and print, `count` times (0 = for ever). A group that is not known at first is waited for, as `once_known`."""
        group = self._access.wrap(self._group)
        before: tuple[float, list[QueueLag]] | None = None
        looks = 0
        while True:
            look = functools.partial(queue_lags, cluster, group, self._topics, self._likely)
            found = await (look() if looks else once_known(group, look, starts))
            members, online = await members_of(cluster, group, self._topics[0] if self._topics else None)
            broadcasting = broadcasts(online, configured=self._broadcasting)
            now = time.monotonic()
            earlier = None if before is None else (now - before[0], before[1])
            rows = watched(found, earlier, owners(members), in_hand(members), delayed(members))
            unknown = dict.fromkeys(("committed", "lag", "per_second", "seconds_left")) if broadcasting else {}
            rows = [row | unknown | {"topic": self._access.unwrap(row["topic"])} for row in rows]
            if as_json:
                click.echo(json_text({"group": self._group, "queues": rows}))
            else:
                shown = [*lines([for_people(row) for row in rows]), *notes(found, broadcasting=broadcasting)]
                click.echo((CLEAR if sys.stdout.isatty() else "") + seen("\n".join(shown)))
            before, looks = (now, found), looks + 1
            if looks == count:
                return
            await asyncio.sleep(interval_s)


def watched(
    found: list[QueueLag], before: tuple[float, list[QueueLag]] | None, owner: Mapping[MessageQueue, str],
    held: Mapping[MessageQueue, int], waits: Mapping[MessageQueue, int] | None,
) -> list[dict[str, Any]]:  # fmt: skip
    """Each queue with its owner, the messages that are in hand there (`held`), those that wait for the delay of their retry
    (`waits`), its rate and the seconds until its lag is 0, which are None where nothing is known.

    `before` is the look before, and how many seconds ago it was.
    """
    earlier = {} if before is None else {one.mq: one.committed or 0 for one in before[1]}
    rows: list[dict[str, Any]] = []
    for one in found:
        rate = None
        if before is not None and one.mq in earlier:
            rate = ((one.committed or 0) - earlier[one.mq]) / before[0]
        left = one.lag / rate if rate and rate > 0 else None
        later = None if waits is None else waits.get(one.mq, 0)
        rows.append({**as_json_row(one), "in_hand": held.get(one.mq), "delayed": later, "owner": owner.get(one.mq),
                     "per_second": rate, "seconds_left": left})  # fmt: skip
    return rows


def unwrapped(access: Access, one: QueueLag) -> QueueLag:
    """With the topic as the user wrote it."""
    return one._replace(mq=one.mq._replace(topic=access.unwrap(one.mq.topic)))


def as_json_row(one: QueueLag, *, broadcasting: bool = False) -> dict[str, Any]:
    """As --json has it; of a broadcasting group nobody says what it has read."""
    topic, broker, queue_id = one.mq
    committed, lag = (None, None) if broadcasting else (one.committed, one.lag)
    return {"topic": topic, "broker": broker, "queue_id": queue_id, "max": one.end, "committed": committed,
            "lag": lag}  # fmt: skip


def for_people(row: Mapping[str, Any]) -> dict[str, object]:
    """A watched queue as a row of a table."""
    rate, left = row["per_second"], row["seconds_left"]
    return {
        "TOPIC": row["topic"],
        "BROKER": row["broker"],
        "QUEUE": row["queue_id"],
        "MAX": row["max"],
        "COMMITTED": "-" if row["committed"] is None else row["committed"],
        "LAG": "-" if row["lag"] is None else row["lag"],
        "IN HAND": "-" if row["in_hand"] is None else row["in_hand"],
        "DELAYED": "-" if row["delayed"] is None else row["delayed"],
        "PER S": "-" if rate is None else round(rate, 1),
        "LEFT": "-" if left is None or not row["lag"] else duration(left),
        "OWNER": row["owner"] or "-",
    }


def _cell(number: int | None) -> str:
    return "-" if number is None else str(number)


def notes(found: Sequence[QueueLag], *, broadcasting: bool = False) -> list[str]:
    """What is to be said below the queues."""
    if broadcasting:
        return [OWN_OFFSETS]
    said: list[str] = []
    if unread := [one for one in found if one.unread]:
        said.append(f"{unread_words(unread)}. {cure([one.mq for one in unread])} gives them readers")
    if beyond := [one for one in found if (one.committed or 0) > one.end]:
        said.append(
            BEYOND.format(", ".join(f"{one.mq.topic} {one.mq.broker_name} {one.mq.queue_id}" for one in beyond))
        )
    return said


async def queue_lags(
    cluster: Cluster, group: str, topics: tuple[str, ...], likely_topics: Sequence[str] = ()
) -> list[QueueLag]:
    """Every queue of `topics` (none given: of all that the group consumes), sorted, and those of its retry topic that nobody
    reads and that have messages; `likely_topics` as `consume_stats`."""
    admin = Admin(cluster)
    found: dict[MessageQueue, QueueLag] = {}
    for topic in topics or (None,):
        stats = await admin.consume_stats(group, topic, likely_topics)
        for mq, offsets in stats.offset_table.items():
            end = offsets.broker_offset
            committed = offsets.consumer_offset if offsets.consumer_offset >= 0 else None
            found[mq] = QueueLag(mq, end, committed)
    if not topics:
        for mq, end in (await _ends_of_begun(admin, group, {mq.topic for mq in found})).items():
            found[mq] = QueueLag(mq, end, None)
    if not topics or RETRY_PREFIX + group in topics:
        found |= {one.mq: one for one in await unread_retries(cluster, group)}
    return [found[mq] for mq in sorted(found)]


async def _ends_of_begun(admin: Admin, group: str, known: Collection[str]) -> dict[MessageQueue, int]:
    """The end of every queue of the topics that the group's members subscribe, but for those of `known`: a broker counts only
    topics of which the group has committed something."""
    ends: dict[MessageQueue, int] = {}
    members = await admin.consumer_connections(group)
    for topic in sorted(set(members.subscription_table if members is not None else ()).difference(known)):
        try:
            stats = await admin.topic_stats(topic)
        except BrokerError as error:
            if error.code != ResponseCode.TOPIC_NOT_EXIST:
                raise
            continue
        ends |= {mq: offsets.max_offset for mq, offsets in stats.offset_table.items()}
    return ends


def table(queues: list[QueueLag], total: int | None) -> str:
    """The queues as text in columns: names to the left, numbers to the right. `total` None: no lag is known."""
    head = ("TOPIC", "BROKER", "QUEUE", "MAX", "COMMITTED", "LAG")
    numbers = [(q.end, None, None) if total is None else (q.end, q.committed, q.lag) for q in queues]
    rows = [(*q.mq[:2], str(q.mq.queue_id), *map(_cell, each)) for q, each in zip(queues, numbers, strict=True)]
    rows.append(("total", "", "", "", "", _cell(total)))
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i < 2 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in [head, *rows]
    )
