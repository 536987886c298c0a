"""The facts that `rocketcrew doctor` and `run --check` judge (checkups.py), asked of name servers, brokers and this machine.

Nothing is changed by asking: no group is joined and none is made; an S3 server is asked to put one object beside the table
and to delete it. A group that a broker does not know yet is not named to it, for brokers make a group of whatever name
consumes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import psutil

from ..client.access import Access
from ..client.admin import Admin
from ..client.asking import ask, is_refusal
from ..client.clock import wall_ms
from ..client.cluster import Cluster
from ..client.identity import DEFAULT_INSTANCE_NAME
from ..client.key_files import is_open_to_all
from ..client.operations import Operations
from ..client.routes import is_final, refuse_static
from ..client.sync import run_with_cluster
from ..conf.delta_names import maps_new_names
from ..conf.formats import on_hdfs, on_s3
from ..conf.limits import files_max, tasks_left
from ..conf.redaction import masked_text
from ..conf.segment_format import FOLDER_FORMATS
from ..conf.settings import MetricsSettings, Settings, is_broadcasting, logs_as
from ..durable.files import free_bytes
from ..durable.mounts import Mount, check_local
from ..remoting.admin_bodies import KvTable, OffsetWrapper
from ..remoting.arguments import close_names
from ..remoting.bodies import TopicRouteData
from ..remoting.codes import PERM_READ, RequestCode, ResponseCode
from ..remoting.errors import BrokerError, RocketcrewError, UnreachableError, UsageError
from ..remoting.names import DLQ_PREFIX, MASTER_ID, RETRY_PREFIX, TOOLS_GROUP, is_popped_retry
from ..remoting.queues import MessageQueue
from ..source.searching import pull_request
from ..spark.errors import LoaderError
from ..spark.iceberg_catalog import ICEBERG, ICEBERG_SPARK, check_catalog
from ..supervisor.core.allocation import is_users_own
from ..supervisor.core.checks import check_consumer, subscriptions
from ..supervisor.core.slab import SLAB_BYTES_MIN
from ..supervisor.core.subscriptions import Subscriptions, differences
from ..supervisor.lifecycle import hooks_named, hooks_process
from ..supervisor.member.access import access_of, check_files, in_namespace, secret_files
from ..supervisor.member.user_process import UserProcess, UserProcessError
from ..supervisor.member.user_strategy import strategy_process
from ..supervisor.slot import NEEDS_LOCAL
from ..supervisor.wiring import available_cores, own_client_id, table_at, with_topics
from ..workers.boot import COLUMNS_FILE, TableSpec
from ..workers.link import Transport, choose_transport
from ..workers.loading import HandlerLoadError, HandlerSpec
from ..workers.sentry import sentry_place
from ..workers.trial_import import examine_rows
from .asking import known_topics
from .checkups import (
    BrokerFacts,
    DiskFacts,
    Facts,
    GroupFacts,
    HandlerFacts,
    MachineFacts,
    MetricsFacts,
    NamedFacts,
    SentryFacts,
    SparkFacts,
    TableFacts,
    TopicFacts,
)
from .exit_codes import exit_code
from .stagings import group_home, rows_go_to
from .surroundings import check_nothing_shadows
from .unread_queues import cure, group_config, unread_retries, unread_words
from .wording import in_words

TIMEOUT_MS: Final = 3_000
NO_QUEUE: Final = -1
"""A queue id that no topic has."""
_RUNTIME = re.compile(r"([\d,.' \u00a0\u202f]+?) (days|hours|minutes|seconds|s)\b")
_SECONDS: Final[Mapping[str, int]] = {"days": 86_400, "hours": 3_600, "minutes": 60, "seconds": 1, "s": 1}


def gather(settings: Settings, handler: str | None, env: Mapping[str, str], *, on_spark: bool = False) -> Facts:
    """Everything that can be found out; a cluster that does not answer leaves its part empty. `on_spark`: it is the engine
    that is to run. Raises UsageError for settings that name no cluster."""
    table, spec = table_facts(settings, probe=True)
    facts = Facts(
        client_rebalance=settings.consumer.client_rebalance,
        broadcasting=is_broadcasting(settings),
        handler=None if handler is None else handler_facts(settings, handler, spec),
        named=[*([] if on_spark else function_facts(settings)), *log_facts(settings)],
        open_files=[(name, file) for name, file in secret_files(settings) if is_open_to_all(file)],
        table=table,
        spark=spark_facts(settings, env),
        sentry=sentry_facts(settings),
        disks=disk_facts(settings, on_spark=on_spark),
        metrics=None if on_spark else metrics_facts(settings.metrics),
        machine=machine_facts(settings),
    )
    try:
        check_files(settings)
        if facts.handler is not None:
            named = HandlerSpec(facts.handler.name, subscriptions=facts.handler.subscriptions)
            settings = with_topics(settings, named)
        check_start(settings)
        settings = in_namespace(settings)
    except UsageError as error:
        return replace(facts, settings=str(error))
    servers = {address: _answers(settings, address) for address in settings.cluster.name_servers}
    facts = replace(facts, name_servers=servers)
    if servers and all(servers.values()):
        return facts
    access = access_of(settings)
    try:
        return run_with_cluster(access, lambda cluster: Looking(cluster, access, settings).into(facts))
    except RocketcrewError as error:
        where = ";".join(settings.cluster.name_servers) or settings.cluster.namesrv_domain
        return replace(facts, name_servers=servers | {where: in_words(error)})


def _answers(settings: Settings, address: str) -> str:
    """Why that name server does not answer, "" where it does."""
    access = replace(access_of(settings), name_servers=(address,))

    async def look(cluster: Cluster) -> str:
        try:
            await cluster.route(access.wrap(settings.consumer.topics[0]) if settings.consumer.topics else "TBW102")
        except BrokerError as error:
            return "it is a broker" if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED else ""
        except UnreachableError as error:
            return error.reason.rpartition("cannot connect: ")[2]
        return ""

    try:
        return run_with_cluster(access, look)
    except RocketcrewError as error:
        return str(error)


class Looking:
    """Questions to one cluster; `settings` with their namespace."""

    def __init__(self, cluster: Cluster, access: Access, settings: Settings) -> None:
        self._cluster = cluster
        self._access = access
        self._settings = settings
        self._group = settings.consumer.group
        self._operations = Operations(cluster)
        self._routes: dict[str, TopicRouteData] = {}

    async def into(self, facts: Facts) -> Facts:
        """`facts` with what the cluster says. Raises RocketcrewError when no name server answers any more."""
        wanted = list(subscriptions(self._settings.consumer.topics))
        retry, dead = (prefix + self._group for prefix in (RETRY_PREFIX, DLQ_PREFIX))
        for topic in (*wanted, *([retry, dead] if self._group else [])):
            try:
                self._routes[topic] = await self._cluster.route(topic)
            except BrokerError as error:
                if error.code != ResponseCode.TOPIC_NOT_EXIST:
                    raise
        facts = replace(facts, topics=[await self._topic(topic, reads=True) for topic in wanted])
        if self._group:
            facts = replace(
                facts,
                retry=await self._topic(retry, reads=True),
                dead=await self._topic(dead, reads=False),
                group=await self._group_facts(),
            )
        return replace(
            facts,
            brokers=[await self._broker(*broker) for broker in sorted((await self._addresses()).items())],
            masterless=without_master(self._routes.values()),
        )

    async def _addresses(self) -> dict[str, str]:
        """Of the brokers that have our topics, of all where there are none yet."""
        found = [data for route in self._routes.values() for data in route.broker_datas]
        if not found:
            try:
                found = list((await Admin(self._cluster).cluster_info()).broker_addr_table.values())
            except BrokerError:  # a proxy
                return {}
        return {
            data.broker_name: data.broker_addrs.get(MASTER_ID, min(data.broker_addrs.values()))
            for data in found
            if data.broker_addrs
        }

    async def _topic(self, topic: str, *, reads: bool) -> TopicFacts:
        name = self._access.unwrap(topic)
        route = self._routes.get(topic)
        if route is None:
            return TopicFacts(name, exists=False, near=await self._near(name) if not name.startswith("%") else "")
        try:
            refuse_static(name, route)
        except UsageError as error:
            return TopicFacts(name, exists=True, static=str(error), at_brokers=topic)
        perms = {data.broker_name: data.perm for data in route.queue_datas}
        readable = [data for data in route.queue_datas if data.perm & PERM_READ and data.read_queue_nums]
        refused = ""
        if reads and readable:
            refused = await self._refusal(topic, readable[0].broker_name)
        unlooked = ""
        if not self._known and TOOLS_GROUP in refused:  # of our group that says nothing
            refused, unlooked = "", refused
        queues = sum(data.read_queue_nums for data in readable)
        return TopicFacts(name, True, queues, perms, refused, unlooked=unlooked, at_brokers=topic)

    @property
    def _known(self) -> bool:
        """Whether the brokers know the group."""
        return RETRY_PREFIX + self._group in self._routes

    async def _near(self, name: str) -> str:
        try:
            return close_names(name, await known_topics(self._cluster, self._access))
        except RocketcrewError:
            return ""

    async def _refusal(self, topic: str, broker: str) -> str:
        """Why the group may not read there, "" where it may, or where nobody says.

        Asked by a pull of a queue that is not there: brokers look at rights first. One of a queue that is there would take an
        operator's reset along, which no member is told again (5.2), and make up a subscription to everything.
        """
        mq = MessageQueue(topic, broker, NO_QUEUE)
        group = self._group if self._known else TOOLS_GROUP
        try:
            address = await self._cluster.address_of(mq, only_this=False)
            answer = await self._operations.pull(address, pull_request(group, mq, 0, 1), timeout_ms=TIMEOUT_MS)
        except RocketcrewError:
            return ""  # that the broker does not answer is said of the broker
        return answer.remark or "no reason given" if is_refusal(answer.code, answer.remark or "") else ""

    async def _group_facts(self) -> GroupFacts:
        s = self._settings
        named = s.cluster.instance_name not in ("", DEFAULT_INSTANCE_NAME) or is_broadcasting(s)
        facts = GroupFacts(
            self._access.unwrap(self._group),
            known=self._known,
            own_id=own_client_id(s) if named else "",
            shares_queues=s.consumer.client_rebalance and not is_broadcasting(s),
            at_brokers=self._group,
        )
        if not is_broadcasting(s):
            unmade, dropped_at = await self._at_its_brokers()
            facts = replace(facts, unmade=unmade, dropped_at=dropped_at)
        if not facts.known:
            return facts
        if not is_broadcasting(s):
            facts = replace(facts, unread=await self._unread())
        if s.consumer.client_rebalance:
            facts = replace(facts, popped_retries=await self._popped_retries())
        try:
            there = await Admin(self._cluster, timeout_ms=TIMEOUT_MS).consumer_connections(self._group)
        except RocketcrewError as error:
            return replace(facts, unknown=in_words(error))
        if there is None:
            return facts
        ours = Subscriptions(subscriptions(s.consumer.topics), self._group, 0, broadcasting=is_broadcasting(s))
        found = differences(ours, there.subscription_table) if len(ours) > 1 else []
        members = tuple(sorted({one.client_id for one in there.connection_set}))
        return replace(facts, members=members, differences=tuple(map(self._access.unwrap, found)))

    async def _at_its_brokers(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Which of them lack the group and may not make it, and which drop what fails in it; none that does not tell."""
        unmade, dropped_at = list[str](), list[str]()
        for broker, address in sorted((await self._addresses()).items()):
            with contextlib.suppress(RocketcrewError):
                # From RocketMQ 5 on a broker that may make groups makes the one that it is asked about.
                if not self._known and await may_make_groups(self._cluster, address):
                    continue
                try:
                    if (await group_config(self._cluster, address, self._group)).retry_queue_nums <= 0:
                        dropped_at.append(broker)
                except BrokerError as error:
                    missing = error.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
                    if missing and not await may_make_groups(self._cluster, address):
                        unmade.append(broker)
        return tuple(unmade), tuple(dropped_at)

    async def _unread(self) -> tuple[str, str]:
        """What waits in queues of the retry topic that nobody reads, and what to do; nothing where nobody tells."""
        with contextlib.suppress(RocketcrewError):
            if found := await unread_retries(self._cluster, self._group):
                return unread_words(found), cure([one.mq for one in found])
        return "", ""

    async def _popped_retries(self) -> dict[str, int]:
        """The lag of the retry topics that the group's members read while they popped; nothing where nobody tells."""
        try:
            table = (await Admin(self._cluster, timeout_ms=TIMEOUT_MS).consume_stats(self._group)).offset_table
        except RocketcrewError:
            return {}
        return popped_retries(table, self._group)

    async def _broker(self, name: str, address: str) -> BrokerFacts:
        before_ms = wall_ms()
        code = RequestCode.GET_BROKER_RUNTIME_INFO
        try:
            answer = await ask(self._cluster.remoting, address, code, timeout_ms=TIMEOUT_MS)
            table = KvTable.decode(answer.body).table
        except UnreachableError as error:
            return BrokerFacts(name, address, unreachable=error.reason)
        except RocketcrewError:
            return BrokerFacts(name, address)  # a proxy, or a right that is missing
        now_ms = (before_ms + wall_ms()) / 2
        clock_ms = broker_clock_ms(table)
        ahead_ms = None if clock_ms is None else round(clock_ms - now_ms)
        return BrokerFacts(name, address, table.get("brokerVersionDesc", ""), ahead_ms)


def without_master(routes: Iterable[TopicRouteData]) -> dict[str, int]:
    """The brokers of these topics that have no master, and the id of the replica that serves for it (0: it acts as one)."""
    found: dict[str, int] = {}
    masters = set[str]()
    for route in routes:
        for data in route.broker_datas:
            first = min(data.broker_addrs, default=MASTER_ID)
            found[data.broker_name] = first
            if is_final(route, data.broker_name, data.broker_addrs.get(first, "")):
                masters.add(data.broker_name)
    return {name: first for name, first in sorted(found.items()) if name not in masters}


async def may_make_groups(cluster: Cluster, address: str) -> bool:
    """Whether the broker makes a group of whatever name consumes. Raises RocketcrewError where it does not say."""
    answer = await ask(cluster.remoting, address, RequestCode.GET_BROKER_CONFIG, timeout_ms=TIMEOUT_MS)
    return "autoCreateSubscriptionGroup=false" not in bytes(answer.body).decode("utf-8", "replace").split()


def popped_retries(table: Mapping[MessageQueue, OffsetWrapper], group: str) -> dict[str, int]:
    """By retry topic of a popped one, what the group has not read of it."""
    found: dict[str, int] = {}
    for mq, ends in table.items():
        lag = ends.broker_offset - max(0, ends.consumer_offset)
        if lag > 0 and is_popped_retry(mq.topic, group):
            found[mq.topic] = found.get(mq.topic, 0) + lag
    return found


def broker_clock_ms(table: Mapping[str, str]) -> float | None:
    """A broker's clock, to the second, from its start and how long it has run since (as the answer to 28 has them)."""
    runtime = _RUNTIME.findall(table.get("runtime", ""))
    started = table.get("bootTimestamp", "")
    if not runtime or not started.isdigit():
        return None
    ran_s = sum(int(re.sub(r"\D", "", number) or "0") * _SECONDS[unit] for number, unit in runtime)
    return int(started) + 1000 * ran_s + 500  # whole seconds: half of one is missing, in the mean


def check_start(settings: Settings) -> None:
    """Raise UsageError for what `run` would refuse a consumer for. A group and topics that are not named yet are no fault."""
    consumer = settings.consumer
    named = replace(consumer, group=consumer.group or "group", topics=consumer.topics or ("topic",))
    settings = in_namespace(replace(settings, consumer=named))
    check_consumer(settings, subscriptions(settings.consumer.topics))


def table_facts(settings: Settings, *, probe: bool) -> tuple[TableFacts | None, TableSpec]:
    """What is known of the table; the columns of one that cannot be read are not. `probe`: an S3 server is asked to put one
    object and to delete it, and the catalog of an Iceberg table to answer. None where no rows are kept, or only a folder of
    this host is looked at and can be read."""
    folder, target = group_home(settings) / "table", rows_go_to(settings)
    try:
        spec = table_at(settings, folder, probe=probe)
        is_iceberg = settings.spark.format in (ICEBERG, ICEBERG_SPARK) and not on_hdfs(target)
        if probe and settings.results.enabled and settings.spark.load and is_iceberg:
            check_catalog(Path(target).absolute(), settings.spark.options)
    except (UsageError, LoaderError) as error:
        mapped = maps_new_names(settings.spark.conf)
        spec = TableSpec(target, (), settings.spark.partition_by, settings.spark.format, mapped)
        return TableFacts(target, str(error), exit_code(error)), spec
    probed = probe and settings.results.enabled and settings.spark.load and on_s3(target)
    return TableFacts(target) if probed else None, spec


def handler_facts(settings: Settings, handler: str, table: TableSpec) -> HandlerFacts:
    """The handler looked at in a process of its own, its columns compared with the table, its topics with those given."""
    home = group_home(settings)
    keeps = settings.results.enabled
    try:
        check_nothing_shadows(Path.cwd(), sys.path)
        found = examine_rows(
            handler, settings.workers.boot_timeout_ms, schema=settings.results.schema, table=table,
            columns_file=home / COLUMNS_FILE,
        )  # fmt: skip
    except HandlerLoadError as error:
        last = error.traceback.strip().rpartition("\n")[2]
        return HandlerFacts(handler, wrong=str(error) + (f" ({last})" if last and last not in str(error) else ""))
    except RocketcrewError as error:
        return HandlerFacts(handler, wrong=str(error))
    wrong = refused(settings, found.spec)
    if wrong:
        return HandlerFacts(handler, wrong=wrong)
    return HandlerFacts(
        found.spec.name, "", found.columns, found.misfit, table.target, bool(table.columns), keeps,
        found.spec.subscriptions or (),
    )  # fmt: skip


def function_facts(settings: Settings) -> list[NamedFacts]:
    """The user's hooks and strategy, imported as a start imports them, in processes of their own. These log to stderr, as
    nothing is made by looking."""
    settings = replace(settings, log=replace(settings.log, file=""))
    found: list[NamedFacts] = []
    if hooks := hooks_named(settings):
        found.append(NamedFacts("hooks", ", ".join(hooks.values()), _not_started(hooks_process(settings))))
    strategy = settings.consumer.allocate_strategy
    if is_users_own(strategy) and not is_broadcasting(settings):
        wrong = _not_started(strategy_process(strategy, logs_as(settings)))
        found.append(
            NamedFacts("allocation", strategy, wrong and f"consumer.allocate_strategy = {strategy!r}: {wrong}")
        )
    return found


def _not_started(process: UserProcess) -> str:
    """Why it does not start, "" where it does; it has ended again."""

    async def start() -> None:
        await process.start()
        await process.kill()

    try:
        asyncio.run(start())
    except UserProcessError as error:
        return str(error)
    return ""


def log_facts(settings: Settings) -> list[NamedFacts]:
    """The log file, which is not made by looking."""
    if not settings.log.file:
        return []
    path = Path(settings.log.file).absolute()
    fine = (
        os.access(path, os.W_OK) and not path.is_dir() if path.exists() else os.access(path.parent, os.W_OK | os.X_OK)
    )
    wrong = "" if fine else f"log.file = {settings.log.file!r} cannot be written"
    todo = "name a file in a folder that is there and that this user may write to, or leave log.file empty"
    return [NamedFacts("log file", str(path), wrong, todo, "can be written")]


def refused(settings: Settings, handler: HandlerSpec) -> str:
    """Why `run` would refuse the topics that the handler names; "" where it would not. What is wrong without the handler is
    not the handler's."""
    if not handler.subscriptions:
        return ""
    try:
        check_start(with_topics(settings, handler))
    except UsageError as error:
        return str(error)
    return ""


def spark_facts(settings: Settings, env: Mapping[str, str]) -> SparkFacts | None:
    """What writing the table needs; None where no rows are loaded."""
    spark = settings.spark
    if not (settings.results.enabled and spark.load):
        return None
    from ..spark.errors import SparkStartError
    from ..spark.java import find_java
    from ..spark.needs import check_writer, installed_version, needs_spark

    try:
        check_writer(spark)
        if not needs_spark(spark.format):
            return SparkFacts(spark.format, "needs neither Spark nor Java")
        version = f"pyspark {installed_version('pyspark')}"
        if spark.master.startswith("sc://"):
            return SparkFacts(spark.format, f"{version}, by the Spark Connect server {masked_text(spark.master)}")
        java = find_java(spark.java_home, env)
    except (UsageError, SparkStartError) as error:
        return SparkFacts(spark.format, wrong=str(error))
    return SparkFacts(spark.format, f"{version}, Java {java.version} ({java.source})")


def sentry_facts(settings: Settings) -> SentryFacts | None:
    """Where failed calls are sent; None where nobody wants them. The server is not asked."""
    if not settings.sentry.dsn:
        return None
    try:
        return SentryFacts(sentry_place(settings.sentry))
    except UsageError as error:
        return SentryFacts(wrong=str(error))


def disk_facts(
    settings: Settings, *, on_spark: bool = False, mounts: Iterable[Mount] | None = None
) -> list[DiskFacts]:  # fmt: skip
    """The state's folder, and the table's where it is another. Members need theirs on this host; the engine, `on_spark`,
    needs one that its executors see. `mounts`: None for those of this process."""
    folders = {"state": Path(settings.supervisor.data_dir)}
    if (
        settings.results.enabled
        and settings.spark.load
        and settings.spark.format in FOLDER_FORMATS
        and settings.spark.target
        and not on_s3(settings.spark.target)
        and not on_hdfs(settings.spark.target)
    ):
        folders["the table"] = Path(settings.spark.target)
    found = [_disk(purpose, path.absolute(), settings.results.free_disk_min_mib) for purpose, path in folders.items()]
    if on_spark:
        return found
    try:
        doubt = check_local("supervisor.data_dir", settings.supervisor.data_dir, NEEDS_LOCAL, mounts)
        found[0] = replace(found[0], maybe_shared=doubt)
    except UsageError as error:
        found[0] = replace(found[0], shared=str(error))
    return found


def _disk(purpose: str, path: Path, free_min_mib: int) -> DiskFacts:
    while not path.exists():
        path = path.parent
    writable = path.is_dir() and os.access(path, os.W_OK | os.X_OK)
    return DiskFacts(purpose, str(path), writable, free_bytes(path) >> 20, free_min_mib)


def metrics_facts(metrics: MetricsSettings) -> MetricsFacts | None:
    """Whether `run` could listen there, tried by binding to the first free port; None where no metrics are wanted."""
    if not metrics.port:
        return None
    import uvloop

    from ..supervisor.web import PortsTakenError, listen  # brings prometheus_client

    async def bind() -> int:
        server = await listen(metrics, lambda _reader, _writer: None, start_serving=False)
        try:
            return int(server.sockets[0].getsockname()[1])
        finally:
            server.close()

    place = f"{metrics.host}, port"
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return MetricsFacts(f"{place} {runner.run(bind())}")
    except RocketcrewError as error:
        return MetricsFacts(place, str(error), isinstance(error, PortsTakenError), exit_code(error))


def machine_facts(settings: Settings) -> MachineFacts:
    """Limits of this process and host."""
    transport, shared = "", ""
    try:
        found = choose_transport(settings.workers.transport)
        transport = "shared with the workers" if found is Transport.SLAB else "sent to the workers by a stream"
        if found is Transport.SLAB:
            os.close(os.memfd_create("rocketcrew-check", os.MFD_CLOEXEC))
    except (UsageError, OSError) as error:
        shared = f"{error}"
    return MachineFacts(
        workers=settings.workers.count or available_cores(),
        files_max=files_max(),
        slab_mib=max(settings.memory.pulled_bytes_mib, SLAB_BYTES_MIN >> 20),
        available_mib=_available_mib(),
        transport=transport,
        shared=shared,
        tasks_left=tasks_left(),
    )


def _available_mib() -> int:
    """Of the host, or less where a control group says so."""
    available = psutil.virtual_memory().available
    try:
        text = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
        if text != "max":
            available = min(available, max(0, int(text) - used))
    except (OSError, ValueError):
        pass
    return available >> 20
