"""What `rocketcrew doctor` decides: facts in, one finding a check out. Pure; checkup_facts.py gathers the facts.

A fault keeps `run` from working, or loses messages. A warning costs something, or will. What could not be found out (a broker
that does not tell, a right that is missing for the question) is fine, and says so: a doctor that cries is switched off.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from ..conf.exit_codes import EXIT_FAILURE, EXIT_UNREACHABLE, EXIT_USAGE
from ..conf.limits import MORE_TASKS, files_needed, more_files, tasks_needed
from ..conf.printed import counted
from ..conf.settings import ROOM_SHARE
from ..remoting.codes import PERM_READ, PERM_WRITE
from ..remoting.names import DLQ_PREFIX, RETRY_PREFIX
from .times import SKEW_MAX_MS

OLDEST_TRIED: Final = (4, 9)
DISK_COMFORT_MIB: Final = 1024


class Level(Enum):
    FINE = "fine"
    WARNING = "warning"
    FAULT = "fault"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: what was looked at, how it is, what is to be done (empty where nothing is)."""

    level: Level
    check: str
    found: str
    todo: str = ""
    exit_code: int = EXIT_USAGE
    """Of a fault: what `run --check` ends with. Service managers start nothing again after EXIT_USAGE: what may pass by
    itself has another."""

    def __str__(self) -> str:
        return f"{self.level.value:<7}  {self.check:<17}  {self.found}" + (f": {self.todo}" if self.todo else "")


class Typed:
    """What brokers know by `at_brokers`, where that is another name: administrators type it."""

    __slots__ = ()
    name: str
    at_brokers: str

    @property
    def typed(self) -> str:
        return self.at_brokers or self.name


@dataclass(frozen=True, slots=True)
class TopicFacts(Typed):
    """A topic by its route. `queues` may be read; `perms` by broker; `refused`: why the group may not read it.
    `unlooked`: why nobody could look whether it may; both empty where it may."""

    name: str
    exists: bool
    queues: int = 0
    perms: Mapping[str, int] = field(default_factory=dict[str, int])
    refused: str = ""
    near: str = ""
    """`: did you mean x?` of a topic that does not exist; "" where no name is near."""
    unlooked: str = ""
    static: str = ""
    """Why a start refuses it by its route, and what to do; "" where it does not."""
    at_brokers: str = ""


@dataclass(frozen=True, slots=True)
class BrokerFacts:
    """`version` as V5_3_1, "" where it does not say; `ahead_ms`: its clock less ours, None where it is not known."""

    name: str
    address: str
    version: str = ""
    ahead_ms: int | None = None
    unreachable: str = ""


@dataclass(frozen=True, slots=True)
class GroupFacts(Typed):
    """The group at its brokers. `members` are client ids; `differences` of their subscriptions from ours, in words."""

    name: str
    known: bool
    members: tuple[str, ...] = ()
    differences: tuple[str, ...] = ()
    own_id: str = ""
    """The client id that a start here will have; "" where each start makes its own."""
    shares_queues: bool = True
    """Members share the queues: it is no broadcasting group, and the brokers do not assign."""
    unknown: str = ""
    """Why the brokers did not tell of it."""
    popped_retries: Mapping[str, int] = field(default_factory=dict[str, int])
    """By retry topic that members which pop read, what of it no member has had, where ours is to pull."""
    unread: tuple[str, str] = ("", "")
    """What waits in queues of its retry topic that nobody reads, and what to do."""
    unmade: tuple[str, ...] = ()
    """Brokers that do not know it, and may not make it."""
    dropped_at: tuple[str, ...] = ()
    """Brokers that drop what failed in it: its retryQueueNums is 0 there."""
    at_brokers: str = ""


@dataclass(frozen=True, slots=True)
class HandlerFacts:
    """`wrong`: why it cannot be run, `misfit`: why its rows do not go into `table`; empty where all is well."""

    name: str
    wrong: str = ""
    columns: str = ""
    misfit: str = ""
    table: str = ""
    table_exists: bool = False
    keeps_rows: bool = True
    subscriptions: tuple[str, ...] = ()
    """Topics with filters that it names itself."""


@dataclass(frozen=True, slots=True)
class NamedFacts:
    """What a start begins with beside the handler, where settings name it. `wrong`: why it cannot be used, "" where it
    can: as `fine` says."""

    check: str
    name: str
    wrong: str = ""
    todo: str = ""
    fine: str = "can be imported"


@dataclass(frozen=True, slots=True)
class TableFacts:
    """The table `target`. `wrong`: why it cannot be read, or why its S3 server or catalog cannot be used; "" where it can."""

    target: str
    wrong: str = ""
    exit_code: int = EXIT_USAGE
    """Of what is wrong."""


@dataclass(frozen=True, slots=True)
class SparkFacts:
    """`needs`: what the table's format needs, in words; `wrong`: why it is not there."""

    format: str
    needs: str = ""
    wrong: str = ""


@dataclass(frozen=True, slots=True)
class SentryFacts:
    """`place`: host and project that events go to; `wrong`: why they cannot."""

    place: str = ""
    wrong: str = ""


@dataclass(frozen=True, slots=True)
class DiskFacts:
    """A folder, or the nearest one above it that is there."""

    purpose: str
    path: str
    writable: bool
    free_mib: int
    free_min_mib: int = 0
    shared: str = ""
    """Why it is no disk of this host, where it has to be one."""
    maybe_shared: str = ""
    """What to warn of, where that is not known."""


@dataclass(frozen=True, slots=True)
class MetricsFacts:
    """Where metrics would be served. `wrong`: why they cannot be, of ports that are all `taken` as well."""

    place: str
    wrong: str = ""
    taken: bool = False
    exit_code: int = EXIT_USAGE
    """Of what is wrong."""


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """Limits of this machine and process. `shared` is "" where workers.transport can be had, else why not; `tasks_left` are
    processes and threads, None without a limit."""

    workers: int
    files_max: int
    slab_mib: int
    available_mib: int
    transport: str
    shared: str = ""
    tasks_left: int | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """All that was found out; what was not looked at is None or empty."""

    settings: str = ""
    """Why the settings cannot be used, "" where they can."""
    name_servers: Mapping[str, str] = field(default_factory=dict[str, str])
    """By address: why it does not answer, "" where it does."""
    topics: Sequence[TopicFacts] = ()
    retry: TopicFacts | None = None
    dead: TopicFacts | None = None
    group: GroupFacts | None = None
    brokers: Sequence[BrokerFacts] = ()
    masterless: Mapping[str, int] = field(default_factory=dict[str, int])
    """Brokers that have no master, and the id of the replica that serves for it (0: it acts as one)."""
    client_rebalance: bool = True
    broadcasting: bool = False
    handler: HandlerFacts | None = None
    named: Sequence[NamedFacts] = ()
    open_files: Sequence[tuple[str, str]] = ()
    """With secrets, for everybody to read: the setting, and its file."""
    table: TableFacts | None = None
    spark: SparkFacts | None = None
    sentry: SentryFacts | None = None
    disks: Sequence[DiskFacts] = ()
    metrics: MetricsFacts | None = None
    machine: MachineFacts | None = None


def findings(facts: Facts) -> list[Finding]:
    """Every check, in the order in which a start meets them."""
    found = [_settings(facts), *map(_open_file, facts.open_files), *_name_servers(facts.name_servers)]
    found += [_topic(topic) for topic in facts.topics]
    if facts.group is not None:
        found += [*_retries(facts), *_group(facts.group, facts.topics)]
    found += [_masterless(*one) for one in facts.masterless.items()]
    for broker in facts.brokers:
        found += _broker(broker, client_rebalance=facts.client_rebalance or facts.broadcasting)
    if facts.handler is not None:
        found += _handler(facts.handler, known=facts.table is None or not facts.table.wrong)
    found += [_named(one) for one in facts.named]
    if facts.table is not None:
        found.append(_table(facts.table))
    if facts.spark is not None:
        found.append(_spark(facts.spark))
    if facts.sentry is not None:
        found.append(_sentry(facts.sentry))
    found += [_disk(disk) for disk in facts.disks]
    if facts.metrics is not None:
        found.append(_metrics(facts.metrics))
    if facts.machine is not None:
        found += [_files(facts.machine), _tasks(facts.machine), _memory(facts.machine)]
    return found


def worst(found: Iterable[Finding]) -> Level:
    """The gravest of all levels."""
    levels = {finding.level for finding in found}
    return next((level for level in (Level.FAULT, Level.WARNING) if level in levels), Level.FINE)


def check_exit_code(found: Iterable[Finding]) -> int:
    """What `run --check` ends with because of the faults, of which there is one: what may pass by itself comes first."""
    codes = {finding.exit_code for finding in found if finding.level is Level.FAULT}
    return next((code for code in (EXIT_UNREACHABLE, EXIT_FAILURE) if code in codes), EXIT_USAGE)


def _fine(check: str, found: str) -> Finding:
    return Finding(Level.FINE, check, found)


def _settings(facts: Facts) -> Finding:
    if facts.settings:
        return Finding(Level.FAULT, "settings", facts.settings, "`rocketcrew config show` says where each comes from")
    return _fine("settings", "complete, files that they name can be read")


def _open_file(one: tuple[str, str]) -> Finding:
    setting, file = one
    return Finding(
        Level.WARNING, "secrets", f"everybody on this machine can read {file} ({setting})", f"`chmod 600 {file}`"
    )


def _name_servers(servers: Mapping[str, str]) -> Iterator[Finding]:
    answering = [address for address, wrong in servers.items() if not wrong]
    for address, wrong in servers.items():
        if not wrong:
            yield _fine("name server", f"{address} answers")
        else:
            level = Level.WARNING if answering else Level.FAULT
            yield Finding(level, "name server", f"{address} answers no question ({wrong})",
                          "start it, or correct cluster.name_servers (-n HOST:PORT)", EXIT_UNREACHABLE)  # fmt: skip


def _topic(topic: TopicFacts) -> Finding:
    check = "topic"
    if not topic.exists:
        todo = "create it, or send its first message where brokers create topics; until then nothing is consumed"
        meant = f"{topic.near.removeprefix(': ')} If not, " if topic.near else ""
        return Finding(Level.WARNING, check, f"{topic.name} does not exist", meant + todo)
    if topic.static:
        what, _, todo = topic.static.rpartition(": ")
        return Finding(Level.FAULT, check, what, todo)
    if topic.refused:
        return _refused(check, topic)
    if not topic.queues:
        return Finding(Level.FAULT, check, f"{topic.name} has no queue that may be read",
                       f"let it be read: `mqadmin updateTopicPerm -t {topic.typed} -p 6`")  # fmt: skip
    closed = _without(topic, PERM_READ)
    if closed:
        return Finding(Level.WARNING, check, f"{topic.name} may not be read on {', '.join(closed)}",
                       f"its messages there wait; `mqadmin updateTopicPerm -t {topic.typed} -p 6`")  # fmt: skip
    if topic.unlooked:
        return Finding(Level.WARNING, check, f"{topic.name}: not looked whether the group may read it ({topic.unlooked})",
                       "until the brokers know the group, this is asked as TOOLS_CONSUMER: give this user SUB on that group,"
                       " or look again when a member has run")  # fmt: skip
    return _fine(check, f"{topic.name}: {counted(topic.queues, 'queue')} on {counted(len(topic.perms), 'broker')}")


def _refused(check: str, topic: TopicFacts) -> Finding:
    return Finding(Level.FAULT, check, f"{topic.name} may not be read ({topic.refused})",
                   "give this user the right SUB on topic and group, or let the group consume again")  # fmt: skip


def _without(topic: TopicFacts, perm: int) -> list[str]:
    return sorted(broker for broker, perms in topic.perms.items() if not perms & perm)


def _retries(facts: Facts) -> Iterator[Finding]:
    if facts.broadcasting or facts.retry is None or facts.dead is None:
        return
    for topic, check, needed in ((facts.retry, "retry topic", PERM_READ | PERM_WRITE), (facts.dead, "dead letters", 0)):
        if not topic.exists:
            when = "the first heartbeat" if topic.name.startswith(RETRY_PREFIX) else "the first dead letter"
            yield _fine(check, f"{topic.name} is made by the brokers with {when}")
            continue
        needed = needed or PERM_WRITE
        closed = set(_without(topic, PERM_READ)) if needed & PERM_READ else set[str]()
        # From a broker whose slave acts as master the name server takes that right (RouteInfoManager.java, registerBroker).
        closed.update(broker for broker in _without(topic, PERM_WRITE) if facts.masterless.get(broker) != 0)
        todo = f"`mqadmin updateTopicPerm -t {topic.typed} -p 6`"
        if topic.refused:
            yield _refused(check, topic)
        elif closed:
            lost = "failed messages are not retried" if check == "retry topic" else "dead letters cannot be stored"
            words = "may not be read and written" if needed & PERM_READ else "may not be written"
            yield Finding(Level.FAULT, check, f"{topic.name} {words} on {', '.join(sorted(closed))}, so {lost}", todo)
        elif topic.name.startswith(DLQ_PREFIX) and _without(topic, PERM_READ):
            yield Finding(
                Level.WARNING, check, f"{topic.name} may not be read, so `rocketcrew dlq` shows nothing", todo
            )
        else:
            yield _fine(check, f"{topic.name}: {counted(sum(1 for _ in topic.perms), 'broker')}")


def _membership(group: GroupFacts) -> Finding:
    if group.unmade:
        return Finding(Level.FAULT, "group", f"{group.name} is not known to {', '.join(group.unmade)}, which may not make"
                       " groups (autoCreateSubscriptionGroup=false): a member would get no queues, and no error",
                       f"`mqadmin updateSubGroup -g {group.typed} -c CLUSTER`")  # fmt: skip
    if not group.known:
        return _fine("group", f"{group.name} is new: the brokers know it with its first heartbeat")
    if not group.members:
        return _fine("group", f"{group.name} has no members that run")
    return _fine("group", f"{group.name} has {counted(len(group.members), 'member')}")


def _group(group: GroupFacts, topics: Sequence[TopicFacts]) -> Iterator[Finding]:
    if group.dropped_at:
        yield Finding(Level.WARNING, "retries", f"{group.name} has retryQueueNums 0 on {', '.join(group.dropped_at)}: what is"
                      " sent back there is answered with success and dropped, so failed messages have no retry and no dead"
                      " letter", f"`mqadmin updateSubGroup -g {group.typed} -q 1 -c CLUSTER`")  # fmt: skip
    if group.unknown:
        yield _fine("group", f"{group.name}: not looked at, {group.unknown}")
        return
    yield _membership(group)
    if not group.own_id:
        yield _fine("client id", "each start makes its own")
    elif group.own_id in group.members:
        yield Finding(Level.FAULT, "client id", f"a member with our id {group.own_id} runs already: two of one id get the"
                      " same queues", "give each a cluster.instance_name of its own, or leave it empty; brokers"
                      " forget one that was killed after two minutes", EXIT_FAILURE)  # fmt: skip
    else:
        yield _fine("client id", f"{group.own_id}: no other member has it")
    if group.differences:
        yield Finding(Level.FAULT, "subscriptions", "; ".join(group.differences) + " (the brokers filter by the newest"
                      " subscription for the whole group: messages get lost)",
                      "give all members the same topics and filters, or another group")  # fmt: skip
    elif group.members:
        yield _fine("subscriptions", "the group's members have the same")
    for topic, lag in sorted(group.popped_retries.items()):
        yield Finding(Level.WARNING, "retries", f"{counted(lag, 'message')} of {topic}, left by members that popped, which"
                      " members that pull do not read",
                      "set the group to POP again (mqadmin setConsumeMode) until it has no lag there")  # fmt: skip
    if group.unread[0]:
        yield Finding(Level.WARNING, "retries", *group.unread)
    yield from _shares(group, topics)


def _shares(group: GroupFacts, topics: Sequence[TopicFacts]) -> Iterator[Finding]:
    """Queues against members, the one that is to start among them."""
    members = len({*group.members, group.own_id} - {""}) + (not group.own_id)
    if not group.shares_queues:
        return
    for topic in topics:
        if topic.queues and topic.queues < members:
            yield Finding(Level.WARNING, "queues", f"{topic.name} has {counted(topic.queues, 'queue')} for"
                          f" {counted(members, 'member')}, with the one that starts here: {members - topic.queues} of them"
                          " without work", "have more workers in one member, or more queues of the topic")  # fmt: skip


def version_of(text: str) -> tuple[int, int, int] | None:
    """The numbers of V4_9_7 and the like."""
    found = re.match(r"V(\d+)_(\d+)_(\d+)", text)
    return (int(found[1]), int(found[2]), int(found[3])) if found else None


def _masterless(name: str, replica: int) -> Finding:
    there = f"only replica {replica}" if replica else "only a slave that acts as one"
    locks = " its queues get no locks (consumer.order)," if replica else ""
    return Finding(Level.WARNING, "broker", f"{name}: no master, {there}, which may lack its newest messages and offsets",
                   f"start its master: until then nothing can be sent to it or sent back,{locks} and no offset can be"
                   " reset")  # fmt: skip


def _broker(broker: BrokerFacts, *, client_rebalance: bool) -> Iterator[Finding]:
    who = f"{broker.name} at {broker.address}"
    if broker.unreachable:
        yield Finding(Level.FAULT, "broker", f"{who} does not answer ({broker.unreachable})",
                      "start it, or open the way to its port; brokers announce their own address (brokerIP1)",
                      EXIT_UNREACHABLE)  # fmt: skip
        return
    version = version_of(broker.version)
    if version is None:
        yield _fine("broker", f"{who} answers, and does not tell its version")
    elif version[:2] < OLDEST_TRIED:
        yield Finding(Level.WARNING, "broker", f"{who} is {broker.version}, older than what rocketcrew is tried with",
                      "4.9 and later are")  # fmt: skip
    elif version[0] < 5 and not client_rebalance:
        yield Finding(Level.FAULT, "broker", f"{who} is {broker.version}, which assigns no queues to members",
                      "set consumer.client_rebalance = true")  # fmt: skip
    else:
        quirk = ", which knows no POP and no delay but its levels" if version[0] < 5 else ""
        yield _fine("broker", f"{who} is {broker.version}{quirk}")
    if broker.ahead_ms is None:
        return
    if abs(broker.ahead_ms) > SKEW_MAX_MS:
        way = "ahead of" if broker.ahead_ms > 0 else "late against"
        yield Finding(Level.WARNING, "clock", f"{broker.name}'s is {abs(broker.ahead_ms) / 1000:.0f} s {way} ours, so delays,"
                      " latencies and `reset --to TIME` are off by that", "let both hosts keep time by NTP")  # fmt: skip
    else:
        yield _fine("clock", f"{broker.name}'s and ours agree to the second")


def _handler(handler: HandlerFacts, *, known: bool) -> Iterator[Finding]:
    """`known`: what columns the table has."""
    if handler.wrong:
        yield Finding(Level.FAULT, "handler", handler.wrong)
        return
    yield _fine("handler", f"{handler.name} can be imported and takes a message")
    if not handler.keeps_rows:
        yield _fine("columns", "results.enabled = false: rows are dropped")
    elif handler.misfit:
        yield Finding(Level.FAULT, "columns", handler.misfit)
    elif not handler.columns:
        yield _fine("columns", "not declared: rows of the first messages would say, with results.schema = infer")
    elif not known:
        yield _fine("columns", f"{handler.columns}: not compared, as the table is not known")
    elif handler.table_exists:
        yield _fine("columns", f"{handler.columns}: the table {handler.table} takes them")
    else:
        yield _fine("columns", f"{handler.columns}; the table {handler.table} is made with them")


def _named(named: NamedFacts) -> Finding:
    if named.wrong:
        return Finding(Level.FAULT, named.check, named.wrong, named.todo)
    return _fine(named.check, f"{named.name} {named.fine}")


def _table(table: TableFacts) -> Finding:
    if table.wrong:
        return Finding(Level.FAULT, "table", table.wrong, exit_code=table.exit_code)
    return _fine("table", f"{table.target}: its server answers, and keeps conditional puts")


def _spark(spark: SparkFacts) -> Finding:
    if spark.wrong:
        return Finding(Level.FAULT, "table format", spark.wrong)
    return _fine("table format", f"{spark.format}: {spark.needs}")


def _sentry(sentry: SentryFacts) -> Finding:
    if sentry.wrong:
        return Finding(Level.FAULT, "sentry", sentry.wrong)
    return _fine("sentry", f"failed calls are sent to {sentry.place}; it was not asked")


def _disk(disk: DiskFacts) -> Finding:
    if disk.shared:
        return Finding(Level.FAULT, "disk", disk.shared)
    if disk.maybe_shared:
        return Finding(Level.WARNING, "disk", disk.maybe_shared)
    if not disk.writable:
        return Finding(Level.FAULT, "disk", f"{disk.path}, for {disk.purpose}, may not be written",
                       "give this user the right to write there, or name another folder")  # fmt: skip
    resumes_mib = int(ROOM_SHARE * disk.free_min_mib)
    free = f"{disk.path}, for {disk.purpose}: {disk.free_mib} MiB free"
    if disk.free_mib < disk.free_min_mib:
        return Finding(Level.FAULT, "disk", f"{free}, less than results.free_disk_min_mib = {disk.free_min_mib}",
                       f"nothing would be pulled until {resumes_mib} MiB are free", EXIT_FAILURE)  # fmt: skip
    if disk.free_mib < disk.free_min_mib + DISK_COMFORT_MIB:
        return Finding(Level.WARNING, "disk", free,
                       f"below {disk.free_min_mib} MiB pulling stops, until {resumes_mib} are free")  # fmt: skip
    return _fine("disk", free)


def _metrics(metrics: MetricsFacts) -> Finding:
    if metrics.taken:
        return Finding(
            Level.WARNING, "metrics", metrics.wrong, "all is well if a member of this group has it, which runs already"
        )
    if metrics.wrong:
        return Finding(Level.FAULT, "metrics", metrics.wrong, exit_code=metrics.exit_code)
    return _fine("metrics", f"{metrics.place} is free")


def _files(machine: MachineFacts) -> Finding:
    needed = files_needed(machine.workers)
    found = f"{machine.files_max} may be open, {counted(machine.workers, 'worker')} and their supervisor need {needed}"
    if machine.files_max < needed:
        return Finding(Level.FAULT, "open files", found, more_files(machine.workers))
    return _fine("open files", found)


def _tasks(machine: MachineFacts) -> Finding:
    if machine.tasks_left is None:
        return _fine("processes", "no limit on processes and threads is set for this one")
    needed = tasks_needed(machine.workers)
    found = (
        f"{machine.tasks_left} more processes and threads are allowed, {counted(machine.workers, 'worker')}, their supervisor"
        f" and a loader without Spark need {needed}"
    )
    if machine.tasks_left < needed:
        return Finding(Level.FAULT, "processes", found, MORE_TASKS)
    return _fine("processes", found)


def _memory(machine: MachineFacts) -> Finding:
    if machine.shared:
        return Finding(Level.FAULT, "shared memory", machine.shared)
    found = (
        f"{machine.slab_mib} MiB for pulled messages ({machine.transport}), {machine.available_mib} MiB are available"
    )
    if machine.slab_mib > machine.available_mib:
        return Finding(
            Level.FAULT, "shared memory", found, "lower memory.pulled_bytes_mib, or have more memory", EXIT_FAILURE
        )
    if 2 * machine.slab_mib > machine.available_mib:
        return Finding(Level.WARNING, "shared memory", found, "workers need memory too: lower memory.pulled_bytes_mib")
    return _fine("shared memory", found)


def summary(found: Sequence[Finding]) -> str:
    """One line: how many of each."""
    faults, warnings = (sum(one.level is level for one in found) for level in (Level.FAULT, Level.WARNING))
    if not faults and not warnings:
        return f"{len(found)} checks, all fine"
    return f"{len(found)} checks: {counted(faults, 'fault')}, {counted(warnings, 'warning')}"
