"""`rocketcrew reconcile`: is every message of the group in the table, or is it known why not?"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from ...client.admin import Admin
from ...client.cluster import Cluster
from ...client.operations import Operations
from ...client.sync import run_with_cluster
from ...conf.exit_codes import EXIT_FAILURE
from ...conf.printed import SHAPE, command_line, counted, same_settings, shape_of
from ...conf.segment_format import FOLDER_FORMATS, LOADER_STATUS_FILE, READY_DIR, REASON_SUFFIX, SEGMENT_SUFFIX
from ...conf.settings import Settings, require
from ...durable.versions import LaterVersionError
from ...remoting.codes import ResponseCode
from ...remoting.errors import BrokerError, RocketcrewError, UnreachableError, UsageError
from ...remoting.names import DLQ_PREFIX, RETRY_PREFIX, is_of_group
from ...remoting.namespaces import unwrap
from ...remoting.queues import MessageQueue
from ...source.searching import exact_offset, store_times
from ...supervisor.member.access import access_of, namespace_of
from ..changing import changes
from ..json_text import json_text
from ..messages import tool_or
from ..options import FOLDER_THERE, table_place, with_settings
from ..program_lines import own_stdout
from ..stagings import check_staging, group_home, group_in_keys, staging_folders, topics_in_keys
from ..tables import seen
from ..unread_queues import cure, read_counts, unread_retries
from ..wording import in_words

if TYPE_CHECKING:
    from ...client.access import Access
    from ...durable.intervals import OffsetSet, QueueKey
    from ...spark.object_store import Place
    from ...spark.reconciling import Fate, QueueEnds, QueueReport, Report, Search, TableFacts, Times
    from ..rerunning import Rerun

    Look = tuple[Report, TableFacts, list[str]]
    Reset = Callable[..., str]
    Stored = tuple[dict[QueueKey, dict[int, int]], dict[QueueKey, str]]

NOTED_AFTER_S: Final = 1.0
"""How long a supervisor may take to write what it has noted."""

LOOKS_MAX: Final = 3
"""At what nobody explains: a machine that is busy notes late."""

QUESTIONS_MAX: Final = 16
"""To brokers at once."""

CLEANUP_POLICY: Final = "cleanup.policy"
COMPACTION: Final = "COMPACTION"
"""The attribute of a topic and its value (CO/TopicAttributes.java, CleanupPolicy.java)."""

NOT_AT_BROKERS: Final = (
    "  not known at the broker: no such topic, broker or queue is there now, and nobody can say what the group had not read"
    " of it"
)
NOT_COMPARED: Final = (
    "  not compared: whether the broker has the messages that the table has rows of was not answered: {}"
)
NOT_READ: Final = "  nobody can read this queue now: its topic has fewer queues, or is not for readers"

BATCHES_GONE: Final = (
    "UNEXPLAINED batches: the table is at batch {0}, and loaders of these folders have made {1}: it was removed, replaced or"
    " taken back, and what is said to be before, or waiting, may have been in it. {2}"
)
BATCHES_LOST: Final = (
    "lost with an earlier table: {0}. From the beginning of each queue on, what is unknown may have been in it, and what"
    " brokers have is brought by --rerun HANDLER, or after `{1}`. What nobody can bring any more stays unexplained, unless"
    " the folders' loader.json is deleted while no loader runs (it writes the file back): then nothing is known of that"
    " table, and the loader goes on without its records only by spark.on_gap = leave"
)

UNTOLD: Final = (
    "outcomes are gone of all or some of the batches {0}: the number of rows can't be compared, and what these batches"
    " have loaded and has no rows is unknown. Put the files back (_rocketcrew/outcomes/, or the folders of a Parquet table),"
    " or bring what is unknown by --rerun HANDLER"
)

NOT_ON_HDFS: Final = (
    "reconcile looks at every page of the table's files without Spark, and HDFS is reached by Spark's JVM only. Mount HDFS,"
    " and give the table's folder there as --target"
)


@click.command()
@click.option("-g", "--group", metavar="GROUP", help="The consumer group.")
@click.option("--target", metavar="PATH", help=f"The table's folder ({', '.join(FOLDER_FORMATS)}).")
@click.option("--staging", "stagings", metavar="DIR", multiple=True, type=FOLDER_THERE,
              help="A folder of segments; may be repeated. Otherwise all of the group in supervisor.data_dir.")  # fmt: skip
@click.option("--brokers/--no-brokers", default=True,
              help="Ask the brokers for their ends and the group's offsets (default), or not.")  # fmt: skip
@click.option("--rerun", metavar="HANDLER", help="Run what is missing through this handler, and load its rows.")
@changes(asks=False)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object: every queue, ranges as [from, to).")
@with_settings(group="consumer.group", target="spark.target")
@click.pass_context
def reconcile(
    context: click.Context,
    settings: Settings,
    stagings: tuple[Path, ...],
    brokers: bool,
    rerun: str | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Compare the table with the brokers, the group's offsets and the list of outcomes.

    Every offset is loaded, without rows, filtered, sent back (to which retry topic; it is looked at too), dead-lettered,
    compacted (its topic keeps the newest message of each key), recovered (finished just before a kill, which took the notes
    along, and the brokers cannot say how), forgotten (of long ago), waiting, skipped by a reset, lost (the broker had deleted
    it unread), elsewhere (popped by members that fill another table), or from before the first one that is known here of its
    queue: the group began later, or its other members (Java's) have finished it. What is none of these is named, also what
    a broker passed over though all is subscribed, and so is what is in the table twice: then the exit code is 1, and so it
    is where segments were set aside (quarantined) or files can't be read, and where the table has fewer batches than loaders
    of the folders have made. It is 1 too where the group has no folder of segments here and messages are from before all
    that is known: rows that were set aside would look so. Where a topic was made again and the group went on at its old
    offset, what it passed is unknown ("made again"), if the table has rows of records of before: a message of each queue is
    fetched to see that, five at most, and a few from the top. A queue whose broker does not answer that is named ("not
    compared"), and so is one that the table knows and no broker does: then the exit code is 1.
    So it is where --no-brokers finds nothing of the group, and records of others: its name may be wrong.
    Every page of the table is looked at. Needs no Spark. Run it while the consumer rests or runs; what is on its way counts
    as waiting.

    With --rerun the missing messages are pulled again, run through the handler in this process and loaded, each once; the
    group's offsets stay as they are.

    \b
    Examples:
      rocketcrew reconcile -g billing --target /data/billing
      rocketcrew reconcile -g billing --target /data/billing --rerun app:handle
    """
    from ...spark.rerun import only_rerun

    names = {"spark.target": "--target PATH", "consumer.group": "-g GROUP"}
    if brokers or rerun:
        names["cluster.name_servers"] = "-n HOST:PORT"
    require(settings, list(names), flag_names=names)
    table = table_place(settings, not_on_hdfs=NOT_ON_HDFS)
    for folder in stagings:
        check_staging(folder)
    folders, reset = list(stagings) or staging_folders(settings), partial(reset_line, settings, stagings)
    report, broken = _compare(settings, table, folders, brokers=brokers or rerun is not None)
    if not (brokers or rerun or group_home(settings).is_dir()):
        check_known(report, group_in_keys(settings), table)
    if rerun and dry_run:
        missing = report.to_run_again().count()
        click.echo(f"would run {counted(missing, 'message')} through {rerun}; nothing was done", err=True)
    elif rerun and report.to_run_again():
        if report.later:  # which may say what became of these messages
            raise LaterVersionError(report.later[0])
        check_begun(table, report, reset)
        with only_rerun(table) as folder:
            report, _ = _compare(settings, table, folders, brokers=True)
            with own_stdout(as_json=as_json):
                _run_again(settings, folder, report, rerun, folders)
            report, broken = _compare(settings, table, folders, brokers=True)
    if brokers:
        report = as_brokers_know(settings, report)
    nowhere = None if folders else group_home(settings)
    ended = ended_loaders(folders)
    shown = json_text(as_object(report, broken, nowhere, ended)) if as_json else None
    load = "" if report.batches is None else take_on_line(settings, table, folders)
    said = shown or seen("\n".join(as_lines(report, broken, nowhere, ended, reset, load)))
    click.echo(said)
    context.exit(0 if all_explained(report, broken, nowhere) else EXIT_FAILURE)


def take_on_line(settings: Settings, table: Place, folders: Sequence[Path]) -> str:
    """The command line by which a loader of these folders goes on with the table as it is."""
    from ...spark.rerun import how_written

    known = same_settings(settings, *SHAPE)
    if settings.origin["spark.format"] == "default" and isinstance(table, Path):
        known += shape_of(*how_written(table))
    stagings = [word for folder in folders for word in ("--staging", folder)]
    return command_line("load", "--table-replaced", *stagings, "--target", table, *known)


def _compare(settings: Settings, table: Place, folders: Sequence[Path], *, brokers: bool) -> tuple[Report, list[str]]:
    """The cluster is asked first: what was committed then is settled, and its rows are in a segment or in the table."""
    from ...spark.reconciling import Fate
    from ...spark.reconciling import reconcile as compare
    from ...spark.table_keys import table_facts

    def look() -> Look:
        ends = cluster_ends(settings) if brokers else None
        facts, broken = table_facts(table, folders)
        report = compare(facts, ends)
        if ends is not None and (unnamed := report.not_named(group_in_keys(settings))):
            ends |= run_with_cluster(access_of(settings), partial(ends_by_name, keys=unnamed))
            report = compare(facts, ends)
        return report, facts, broken

    noted_after_s = settings.consumer.persist_consumer_offset_interval_ms / 1000 + NOTED_AFTER_S
    report, facts, broken = looked_again(look, LOOKS_MAX if folders else 1, lambda: time.sleep(noted_after_s))
    if brokers and any(Fate.UNDELIVERED in queue.fates for queue in report.queues):
        report = report.as_told(run_with_cluster(access_of(settings), partial(compacted, report=report)))
    if brokers:
        report = with_made_again(partial(run_with_cluster, access_of(settings)), table, report, facts)
    return report, broken


def looked_again(look: Callable[[], Look], looks_max: int, wait: Callable[[], None]) -> Look:
    """The last of some looks, the first if nothing is unknown to it; of what is, only what all of them share is.

    A supervisor that runs writes down what has no rows every few seconds, and has messages in hand beyond the ends that
    brokers have told just before. So each look asks for these anew: what one knows, or did not see yet, is on its way.
    """
    from ...spark.reconciling import Fate

    report, facts, broken = look()
    unknown = report.unknown
    for _ in range(looks_max - 1):
        if not unknown:
            break
        wait()
        report, facts, broken = look()
        unknown &= report.unknown
    return report.as_told({Fate.WAITING: report.unknown - unknown}), facts, broken


async def compacted(cluster: Cluster, report: Report) -> dict[Fate, OffsetSet]:
    """Of what was not delivered, that of topics of which brokers keep the newest message of each key (5.0 and later). Where a
    broker does not answer, that is said on stderr, and what was not delivered stays unexplained."""
    from ...durable.intervals import OffsetSet
    from ...spark.reconciling import Fate

    async def is_compacted(topic: str) -> bool:
        try:
            configs = await Admin(cluster).topic_configs(topic)
        except BrokerError:
            return False  # a broker that does not know the question compacts nothing; a topic that is gone says nothing
        except UnreachableError as error:
            said = f"whether topic {topic} is a compacted one could not be asked: {in_words(error)}"
            click.echo(seen(said, err=True), err=True)
            return False
        return all(config.attributes.get(CLEANUP_POLICY) == COMPACTION for config in configs)

    undelivered = {one.key: one.fates[Fate.UNDELIVERED] for one in report.queues if Fate.UNDELIVERED in one.fates}
    topics = {topic: await is_compacted(topic) for topic in sorted({key.topic for key in undelivered})}
    return {Fate.COMPACTED: OffsetSet.of((key, gaps) for key, gaps in undelivered.items() if topics[key.topic])}


def with_made_again(ask: Callable[..., Any], table: Place, report: Report, facts: TableFacts) -> Report:
    """The report with what brokers have of topics that were made again: in place of records that the table has, where the
    group went on at its old offset, and at their beginning, where it has passed that. Queues whose broker gives no record to
    compare are counted on stderr; one that did not answer leaves its queues unexplained. `ask` runs with the cluster."""
    from ...spark.reconciling import Fate, made_again, passed_again, to_compare, to_compare_above, to_date, to_search
    from ...spark.table_keys import store_times as times_of_rows

    if begun := to_date(report, facts.tops):
        dated_ms, refused = ask(partial(stored, wanted=begun, own_us={}))
        report = report.with_not_compared(refused)
        if passed := passed_again(report, facts, dated_ms):
            report = report.as_told({Fate.UNKNOWN: passed})
    wanted = to_compare(report)
    if not wanted:
        return report
    above = to_compare_above(report, facts.tops)
    own_us = times_of_rows(table, {key: [*offsets, *above[key]] for key, offsets in wanted.items()})
    stored_ms, refused = ask(partial(stored, wanted=wanted, own_us=own_us))
    above = {key: tuple(sorted({*above[key]} - {*known})) for key, known in stored_ms.items()}
    more_ms, refused_above = ask(partial(stored, wanted=above, own_us=own_us, each=True))
    for key, more in more_ms.items():
        stored_ms[key] |= more
    report = report.with_not_compared(refused | refused_above)
    begins: dict[QueueKey, dict[int, int]] = {}
    if searches := to_search(report, facts.tops, stored_ms, own_us):
        begins = ask(partial(first_others, searches=searches))
    found = made_again(report, facts.tops, stored_ms, own_us, begins)
    return report.with_made_again(found, facts) if found else report


async def first_others(
    cluster: Cluster, searches: Mapping[QueueKey, Iterable[Search]]
) -> dict[QueueKey, dict[int, int]]:
    """Where brokers' other records begin, by `high`; nothing of those that do not answer."""
    operations = Operations(cluster)
    found: dict[QueueKey, dict[int, int]] = {}
    for key, wanted in searches.items():
        mq = MessageQueue(key.topic, key.broker, key.queue_id)
        times = partial(store_times, cluster, operations, tool_or(key.group), mq)
        for one in wanted:
            with suppress(RocketcrewError):
                near = await operations.search_offset(mq, one.since_ms)
                at = await exact_offset(near, one.low, one.high, one.since_ms, times)
                found.setdefault(key, {})[one.high] = at
    return found


async def stored(
    cluster: Cluster, wanted: Mapping[QueueKey, Iterable[int]], own_us: Times, *, each: bool = False
) -> Stored:
    """When brokers stored records of these, in ms since 1970: of each queue the first that its broker gives, and the next
    ones as long as the table has them with another time (`own_us`). Of how many queues none is given is told on stderr.
    `each`: of all that is given, and nothing is told. And of the queues whose broker gave no answer, why."""
    from ...spark.reconciling import is_same

    operations, turns = Operations(cluster), asyncio.Semaphore(QUESTIONS_MAX)
    found: dict[QueueKey, dict[int, int]] = {}
    refused: dict[QueueKey, str] = {}

    async def look(key: QueueKey, offsets: Iterable[int]) -> None:
        mq = MessageQueue(key.topic, key.broker, key.queue_id)
        for offset in offsets:
            try:
                async with turns:
                    times = await store_times(cluster, operations, tool_or(key.group), mq, offset, offset + 1)
            except RocketcrewError as error:
                refused[key] = in_words(error)
                return
            if offset in times:
                found.setdefault(key, {})[offset] = times[offset]
                if not each and is_same(times[offset], own_us.get(key, {}).get(offset)) is not False:
                    return

    await asyncio.gather(*(look(key, offsets) for key, offsets in wanted.items()))
    unknown = len(wanted.keys() - found.keys() - refused.keys())
    if unknown and not each:
        why = "brokers do not give the records that the table has"
        whose = f"{counted(unknown, 'queue')} of {len(wanted)}"
        click.echo(f"whether topics were made again is not known of {whose}: {why}", err=True)
    return found, refused


def cluster_ends(settings: Settings) -> dict[QueueKey, QueueEnds | None]:
    """What brokers say of the group's queues. Raises as `Admin.consume_stats`."""
    from ...durable.intervals import QueueKey
    from ...spark.reconciling import QueueEnds

    access = access_of(settings)
    group = group_in_keys(settings)

    async def ask(cluster: Cluster) -> dict[QueueKey, QueueEnds | None]:
        admin = Admin(cluster)
        stats = (await admin.consume_stats(group, None, topics_in_keys(settings))).offset_table
        found: dict[QueueKey, QueueEnds | None] = {}
        for topic in sorted({mq.topic for mq in stats}):
            try:
                ends = (await admin.topic_stats(topic)).offset_table
            except BrokerError as error:
                if error.code != ResponseCode.TOPIC_NOT_EXIST:
                    raise
                continue
            counts = read_counts(await cluster.route(topic))
            for mq, end in ends.items():
                committed = stats[mq].consumer_offset if mq in stats and stats[mq].consumer_offset >= 0 else None
                key = QueueKey(group, mq.topic, mq.broker_name, mq.queue_id)
                read = mq.queue_id < counts.get(mq.broker_name, 0)
                found[key] = QueueEnds(end.min_offset, end.max_offset, committed, read)
        for one in await unread_retries(cluster, group):
            found[QueueKey(group, *one.mq)] = QueueEnds(one.begin, one.end, one.committed, read=False)
        return found

    return run_with_cluster(access, ask)


async def ends_by_name(cluster: Cluster, keys: Sequence[QueueKey]) -> dict[QueueKey, QueueEnds | None]:
    """What brokers have of queues that they name no more, as those of a topic that was made to have fewer: asked for by its
    number, a broker tells of each that it has. None = the topic, its broker or the queue is gone. Raises UnreachableError
    where a broker of the topic's route does not answer."""
    turns = asyncio.Semaphore(QUESTIONS_MAX)

    async def one(key: QueueKey) -> QueueEnds | None:
        async with turns:
            try:
                return await _ends_of(cluster, key)
            except BrokerError:
                return None

    return dict(zip(keys, await asyncio.gather(*map(one, keys)), strict=True))


async def _ends_of(cluster: Cluster, key: QueueKey) -> QueueEnds | None:
    """Raises BrokerError."""
    from ...spark.reconciling import QueueEnds

    operations, mq = Operations(cluster), MessageQueue(key.topic, key.broker, key.queue_id)
    read = mq in await cluster.queues_to_read(key.topic)
    if cluster.broker_address(key.broker) is None:
        return None
    last = await operations.max_offset(mq)
    if last <= 0:
        return None
    first = max(0, await operations.min_offset(mq))
    committed = await operations.query_consumer_offset(key.group, mq, set_zero_if_not_found=False)
    return QueueEnds(first, last, committed, read)


def check_known(report: Report, group: str, table: Place) -> None:
    """Raise RocketcrewError where all that is known is of others: a name that is wrong would be found fine."""
    known = sorted({queue.key.group.partition("@")[0] for queue in report.queues})
    if known and group not in known:
        raise RocketcrewError(
            f"nothing in {table}, or in the folders of segments that were looked at, is of the group {group}: they have"
            f" records of {', '.join(known)}"
        )


def reset_line(
    settings: Settings | None, stagings: Sequence[Path], topics: Iterable[str], where: str, *more: str
) -> str:
    """The command line that sets the group back for these topics, as they are in keys; `more` are further options of it."""
    space, known = "", list[str]()
    if settings is not None:
        space = namespace_of(settings)
        known = same_settings(settings, "consumer.group", "cluster.name_servers", *["spark.target"] * bool(more))
    known += [word for folder in stagings for word in ("--staging", str(folder))]
    named = [word for topic in topics for word in ("-t", unwrap(space, topic))]
    return command_line("reset", *known, *named, "--to", where, *more)


def check_begun(table: Place, report: Report, reset: Reset) -> None:
    """Raise UsageError for a table without a batch: how it is to be written only its loader knows."""
    from ...spark.table_keys import table_state

    try:
        table_state(table)
    except UsageError as error:
        raise UsageError(
            f"{error}. --rerun adds to a table that its loader has begun; to have these messages in its first batch, stop the"
            f" members and go back to them: `{reset(own_topics(report), 'TIME')}`"
        ) from None


def as_brokers_know(settings: Settings, report: Report) -> Report:
    """The report with what became of failed messages by the brokers; as it is where one of them does not say."""
    from ..sent_on import told

    try:
        return report.as_told(run_with_cluster(access_of(settings), partial(told, report=report)))
    except RocketcrewError as error:
        click.echo(seen(f"rocketcrew: where failed messages went could not be asked: {error}", err=True), err=True)
        return report


def _run_again(settings: Settings, table: Path, report: Report, handler: str, folders: Sequence[Path]) -> None:
    """What gave no rows is noted beside the rows, or for the group's next batch when there are none."""
    from ...durable.outcomes import NO_ROWS, Outcomes
    from ...spark.rerun import how_written, load_again
    from ...spark.staging import Staging
    from ...spark.table_columns import table_columns
    from ...workers.boot import TableSpec
    from ...workers.loading import describe
    from ..rerunning import Rerun

    wanted = report.to_run_again()
    access = access_of(settings)
    format_, by = how_written(table)
    with tempfile.TemporaryDirectory(prefix="rocketcrew-rerun-") as folder:
        home = folders[0].parent.parent if folders else None
        rerun = Rerun(
            describe(handler), settings.results.schema, Path(folder), group_in_keys(settings), access.namespace,
            home=home, table=TableSpec(str(table), table_columns(table), by, format_),
        )  # fmt: skip
        with rerun:
            gone = _handle(access, wanted, rerun)
        finished = Outcomes.of([(NO_ROWS, rerun.finished())])
        Staging(Path(folder)).note("rerun", finished)
        rows = load_again(table, Path(folder), report.to_reopen(), report.rows_lost)
        if not rows and folders:
            Staging(folders[0]).note(f"{time.time_ns():020d}-rerun", finished)
    click.echo(f"run again: {counted(rerun.handled, 'message')}, {counted(rows, 'row')} loaded", err=True)
    for (key, offset), error in sorted(rerun.failed.items()):
        said = f"failed: {key.topic} {key.broker} {key.queue_id} offset {offset}: {error}"
        click.echo(seen(said, err=True), err=True)
    if gone:
        click.echo(f"no longer at the brokers: {counted(gone.count(), 'message')}", err=True)


def _handle(access: Access, wanted: OffsetSet, rerun: Rerun) -> OffsetSet:
    """Fetch and handle a part at a time, as many bytes as fit into memory; the records that no broker has any more."""
    from ...durable.intervals import OffsetSet
    from ..rerunning import fetch

    gone: list[OffsetSet] = []
    while wanted:
        fetched, lost, wanted = run_with_cluster(access, partial(fetch, wanted=wanted))
        rerun.run(fetched)
        gone.append(lost)
    return OffsetSet.union(gone)


def ended_loaders(folders: Sequence[Path]) -> list[str]:
    """What loaders have ended with whose segments wait."""
    from ...spark.status import FAILED, read_status

    found: list[str] = []
    for folder in folders:
        status = read_status(folder / LOADER_STATUS_FILE)
        if status is not None and status.state == FAILED and any((folder / READY_DIR).glob(f"[!.]*{SEGMENT_SUFFIX}")):
            found.append(f"{folder}: {status.error}")
    return found


def all_explained(report: Report, broken: Sequence[str], nowhere: Path | None) -> bool:
    """`nowhere`: the folder in which no staging folder of the group was found, None = there was one to look into."""
    return report.fine and not broken and (nowhere is None or not report.unseen)


def as_object(
    report: Report, broken: list[str], nowhere: Path | None = None, ended: Sequence[str] = ()
) -> dict[str, object]:
    """The report as JSON has it; `nowhere` as in `all_explained`, `ended` as `ended_loaders` has it."""
    from ...spark.reconciling import UNEXPLAINED

    queues = [
        {
            "group": one.key.group, "topic": one.key.topic, "broker": one.key.broker, "queue_id": one.key.queue_id,
            "epoch": one.key.epoch,
            "min": one.ends and one.ends.min, "max": one.ends and one.ends.max, "committed": one.ends and one.ends.committed,
            "counts": {fate.value: offsets.count() for fate, offsets in one.fates.items()},
            "sent_to": {fate.value: topic for fate, topic in sent_to(one).items()},
            "unexplained": {fate.value: one.fates[fate].pieces for fate in UNEXPLAINED if fate in one.fates},
            "cannot_be_run_again": one.gone.pieces,
            "made_again": one.made_again.pieces,
            "not_at_brokers": one.not_at_brokers,
            "not_compared": one.not_compared or None,
        }
        for one in report.queues
    ]  # fmt: skip
    rows = None if report.rows is None else {"found": report.rows[0], "loaded": report.rows[1]}
    batches = None if report.batches is None else {"found": report.batches[0], "loaded": report.batches[1]}
    return {
        "fine": all_explained(report, broken, nowhere),
        "lost": report.lost,
        "queues": queues,
        "rows_differ": rows,
        "batches_differ": batches,
        "batches_lost": report.batches_lost,
        "batches_without_outcomes": report.untold.pieces,
        "unreadable": broken,
        "may_be_deleted": list(report.needless),
        "no_segments_in": None if nowhere is None else str(nowhere),
        "ended_loaders": list(ended),
    }


def sent_to(queue: QueueReport) -> dict[Fate, str]:
    """The topics that messages of the queue went to, by their fate."""
    from ...spark.reconciling import Fate

    prefixes = {Fate.SENT_BACK: RETRY_PREFIX, Fate.DEAD_LETTER: DLQ_PREFIX}
    return {fate: prefix + queue.key.group for fate, prefix in prefixes.items() if fate in queue.fates}


def own_topics(report: Report) -> list[str]:
    """The topics in it that a group is set back for: what it has in retry topics comes of these."""
    return sorted({one.key.topic for one in report.queues if not is_of_group(one.key.topic)})


def as_lines(
    report: Report, broken: list[str], nowhere: Path | None = None, ended: Sequence[str] = (),
    reset: Reset | None = None, load: str = "",
) -> list[str]:  # fmt: skip
    """The report for people: counts by queue, then everything that is not explained; the rest as in `as_object`. `reset` is
    `reset_line` with what the command knows, `load` the command by which a loader takes the table on as it is."""
    reset = reset or partial(reset_line, None, ())
    from ...spark.gaps import compact
    from ...spark.reconciling import UNEXPLAINED, Fate

    lines: list[str] = []
    for one in report.queues:
        key = one.key
        member = key.group.partition("@")[2]
        where = f"{key.topic} {key.broker} {key.queue_id}" + (f" epoch {key.epoch}" if key.epoch else "")
        where += f" of the broadcasting member {member}" if member else ""
        where_to = {fate: f" (to {topic})" for fate, topic in sent_to(one).items()}
        counts = ", ".join(
            f"{offsets.count()} {fate.value.replace('_', ' ')}{where_to.get(fate, '')}"
            for fate, offsets in one.fates.items()
        )
        lines.append(f"{where}: {counts or 'nothing'}")
        lines += [
            f"  UNEXPLAINED {fate.value}: {compact(one.fates[fate])}" for fate in UNEXPLAINED if fate in one.fates
        ]
        if one.gone:
            lines.append(
                f"  cannot be run again: {compact(one.gone)} (no broker has it now, or a later epoch has begun)"
            )
        if one.made_again:
            lines.append(_made_again(one, report, reset))
        if one.not_at_brokers:
            lines.append(NOT_AT_BROKERS)
        if one.not_compared:
            lines.append(NOT_COMPARED.format(one.not_compared))
        if one.ends is not None and not one.ends.read and (Fate.WAITING in one.fates or one.gone):
            lines.append(_not_read(one, report))
    lines += _of_batches(report, reset, load)
    lines += [f"unreadable {name}" for name in broken]
    lines += [
        f"{name} was set aside, and the table has all its records by now: it may be deleted, with its {REASON_SUFFIX}"
        for name in report.needless
    ]
    if report.lost:
        lines.append(
            f"lost: {counted(report.lost, 'message')}, which the brokers had deleted before the group read them"
        )
    if report.elsewhere:
        elsewhere = counted(report.elsewhere, "message")
        lines.append(f"elsewhere: {elsewhere}, which the broker showed to other members or left out")
    if report.only_before:
        lines.append(
            f"before: {counted(report.only_before, 'message')} of queues of which nothing is known here: the group began"
            " after them, or other members of it, as Java's, have finished them"
        )
    lines += [f"what waits is not loaded: the loader has ended, {one}" for one in ended]
    if nowhere is not None:
        lines.append(_not_looked(nowhere, report.unseen))
    lines.append("everything is explained" if all_explained(report, broken, nowhere) else "not everything is explained")
    return lines


def _of_batches(report: Report, reset: Reset, load: str) -> Iterator[str]:
    from ...spark.errors import take_on
    from ...spark.gaps import compact

    if report.rows is not None:
        yield f"UNEXPLAINED rows: {report.rows[0]} are there, {report.rows[1]} were loaded"
    if report.untold:
        yield UNTOLD.format(compact(report.untold))
    if report.batches is not None:
        yield BATCHES_GONE.format(*report.batches, take_on(load, reset(own_topics(report), "earliest")))
    if report.batches_lost and (report.unknown or report.unseen_lost):
        lost = f"{report.batches_lost} batch{'es' * (report.batches_lost > 1)}"
        yield BATCHES_LOST.format(lost, reset(own_topics(report), "earliest"))


def _not_read(queue: QueueReport, report: Report) -> str:
    topic = queue.key.topic
    if topic != RETRY_PREFIX + queue.key.group:
        return NOT_READ
    its = [MessageQueue(topic, one.key.broker, one.key.queue_id) for one in report.queues if one.key.topic == topic]
    return f"{NOT_READ}. Brokers put what fails there (the group's retryQueueNums): {cure(its)}"


def _made_again(queue: QueueReport, report: Report, reset: Reset) -> str:
    from ...spark.gaps import compact

    topic = queue.key.topic
    since_ms = min(one.since_ms for one in report.queues if one.key.topic == topic and one.made_again)
    where = str(since_ms) if since_ms else "earliest"
    back = reset([topic], where, *["--reprocess"] * (not queue.newer))
    bring = f"stop the group's members, run `{back}` and start them again"
    if queue.newer:
        what = f"spark.on_recreated = epoch loads what waits; to have what is unknown too, {bring} with that setting"
    else:
        what = f"Their store times look older, so the loader cannot tell them: to have them, {bring}"
    when = "later than" if queue.newer else "at other times than"
    begins_with_own = queue.ends is not None and queue.made_again.pieces[0][0] > queue.ends.min
    name, why = "made again", "the topic was deleted and made again"
    if begins_with_own:
        name, why = "replaced", "a failover to a replica that lagged has replaced the end of the queue"
    return (
        f"  {name}: the broker stored its {compact(queue.made_again)}, at least, {when} what the table has of these"
        f" offsets, so {why}. {what}"
    )


def _not_looked(nowhere: Path, unseen: int) -> str:
    among = f", and {counted(unseen, 'message')} before the first that is known may be such" if unseen else ""
    return (
        f"no folder of segments in {nowhere}: rows that were set aside (quarantined) cannot be seen{among}. Name the run's"
        " own folder by --set supervisor.data_dir=DIR, or its segments by --staging DIR"
    )
