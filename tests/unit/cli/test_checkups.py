"""What doctor makes of facts."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from rocketcrew.cli.checkup_facts import (
    broker_clock_ms,
    check_start,
    disk_facts,
    function_facts,
    handler_facts,
    log_facts,
    metrics_facts,
    popped_retries,
    refused,
    sentry_facts,
    table_facts,
    without_master,
)
from rocketcrew.cli.checkups import (
    BrokerFacts,
    DiskFacts,
    Facts,
    Finding,
    GroupFacts,
    HandlerFacts,
    Level,
    MachineFacts,
    MetricsFacts,
    NamedFacts,
    SentryFacts,
    SparkFacts,
    TableFacts,
    TopicFacts,
    check_exit_code,
    findings,
    version_of,
    worst,
)
from rocketcrew.conf.settings import load
from rocketcrew.durable.mounts import Mount
from rocketcrew.remoting.admin_bodies import OffsetWrapper
from rocketcrew.remoting.bodies import BrokerData, QueueData, TopicRouteData
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.workers.boot import TableSpec
from rocketcrew.workers.loading import HandlerSpec

ORDERS = TopicFacts("orders", True, 8, {"a": 6, "b": 6})
RETRY = TopicFacts("%RETRY%billing", True, 2, {"a": 6, "b": 6})
DEAD = TopicFacts("%DLQ%billing", True, 1, {"a": 6})
GROUP = GroupFacts("billing", known=True, members=("m1", "m2"))
HANDLER = HandlerFacts("shop:count", "", "key string", "", "/data/table", table_exists=True)
MACHINE = MachineFacts(4, 1024, 64, 4096, "shared with the workers")
OPEN = [("security.key_file", "/etc/keys")]
FINE = Facts(
    name_servers={"ns:9876": ""},
    topics=[ORDERS],
    retry=RETRY,
    dead=DEAD,
    group=GROUP,
    brokers=[BrokerFacts("a", "a:10911", "V5_3_1", 800)],
    handler=HANDLER,
    spark=SparkFacts("parquet", "pyspark 4.2.0, Java 17"),
    sentry=SentryFacts("sentry.example, project 7"),
    disks=[DiskFacts("state", "/data", True, 90_000, 64)],
    metrics=MetricsFacts("127.0.0.1, port 9911"),
    machine=MACHINE,
)


def of(facts: Facts) -> list[Finding]:
    return [one for one in findings(facts) if one.level is not Level.FINE]


def test_a_sound_cluster_and_machine_have_one_fine_line_a_check() -> None:
    found = findings(FINE)
    assert worst(found) is Level.FINE
    assert [one.check for one in found] == [
        "settings", "name server", "topic", "retry topic", "dead letters", "group", "client id", "subscriptions", "broker",
        "clock", "handler", "columns", "table format", "sentry", "disk", "metrics", "open files",
        "processes", "shared memory",
    ]  # fmt: skip
    assert not [one for one in found if one.todo]


def broker(**changes: object) -> dict[str, object]:
    return {"brokers": [replace(FINE.brokers[0], **changes)]}  # type: ignore[arg-type]


def group(**changes: object) -> dict[str, object]:
    return {"group": replace(GROUP, **changes)}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "level", "check", "says"),
    [
        ({"settings": "security.key_file k cannot be read"}, "fault", "settings", "cannot be read"),
        ({"name_servers": {"a:1": "refused"}}, "fault", "name server", "a:1 answers no question (refused)"),
        ({"sentry": SentryFacts(wrong="sentry-sdk is not installed")}, "fault", "sentry", "sentry-sdk is not installed"),
        ({"name_servers": {"a:1": "refused", "b:1": ""}}, "warning", "name server", "a:1"),
        ({"topics": [TopicFacts("ordes", exists=False, near=": did you mean orders?")]}, "warning", "topic",
         "ordes does not exist: did you mean orders? If not, create it"),
        ({"topics": [replace(ORDERS, queues=0)]}, "fault", "topic", "no queue that may be read"),
        ({"topics": [replace(ORDERS, perms={"a": 6, "b": 2})]}, "warning", "topic", "may not be read on b"),
        ({"topics": [replace(ORDERS, refused="no permission")]}, "fault", "topic", "(no permission)"),
        ({"retry": replace(RETRY, refused="no signature")}, "fault", "retry topic", "give this user the right SUB"),
        ({"named": [NamedFacts("hooks", "shop:f", "no module shop")]}, "fault", "hooks", "no module shop"),
        ({"retry": replace(RETRY, perms={"a": 2})}, "fault", "retry topic", "failed messages are not retried"),
        ({"retry": replace(RETRY, perms={"a": 4})}, "fault", "retry topic", "may not be read and written on a"),
        ({"dead": replace(DEAD, perms={"a": 4})}, "fault", "dead letters", "dead letters cannot be stored"),
        ({"dead": replace(DEAD, perms={"a": 2})}, "warning", "dead letters", "`rocketcrew dlq` shows nothing"),
        (group(own_id="m1"), "fault", "client id", "a member with our id m1 runs already"),
        (group(differences=("topic x is subscribed there, and not by us",)), "fault", "subscriptions", "topic x"),
        ({"topics": [replace(ORDERS, queues=2)]}, "warning", "queues",
         "orders has 2 queues for 3 members, with the one that starts here: 1 of them without work"),
        (broker(version="V4_8_0"), "warning", "broker", "older"),
        (broker(version="V4_9_7") | {"client_rebalance": False}, "fault", "broker", "client_rebalance = true"),
        (broker(unreachable="refused"), "fault", "broker", "a at a:10911 does not answer (refused)"),
        ({"masterless": {"a": 1}}, "warning", "broker", "a: no master, only replica 1"),
        ({"masterless": {"a": 0}}, "warning", "broker", "a: no master, only a slave that acts as one"),
        (broker(ahead_ms=61_000), "warning", "clock", "a's is 61 s ahead of ours"),
        (broker(ahead_ms=-61_000), "warning", "clock", "61 s late against ours"),
        ({"handler": replace(HANDLER, wrong="no function")}, "fault", "handler", "no function"),
        ({"handler": replace(HANDLER, misfit="key is int")}, "fault", "columns", "key is int"),
        ({"spark": SparkFacts("delta", wrong="no Java")}, "fault", "table format", "no Java"),
        ({"disks": [DiskFacts("state", "/", False, 9_000, 64)]}, "fault", "disk", "may not be written"),
        ({"disks": [DiskFacts("state", "/d", True, 9_000, 64, "is on NFS")]}, "fault", "disk", "is on NFS"),
        ({"disks": [DiskFacts("state", "/d", True, 10, 64)]}, "fault", "disk", "results.free_disk_min_mib = 64"),
        ({"disks": [DiskFacts("state", "/d", True, 200, 64)]}, "warning", "disk", "pulling stops, until 128 are free"),
        ({"metrics": MetricsFacts("", "is in use", taken=True)}, "warning", "metrics", "a member of this group"),
        ({"metrics": MetricsFacts("", "no such address")}, "fault", "metrics", "no such address"),
        ({"machine": replace(MACHINE, files_max=100)}, "fault", "open files", "need 192: `ulimit -n 1024`"),
        ({"machine": replace(MACHINE, tasks_left=23)}, "fault", "processes", "need 24: raise the container's limit"),
        ({"machine": replace(MACHINE, slab_mib=5000)}, "fault", "shared memory", "lower memory.pulled_bytes_mib"),
        ({"machine": replace(MACHINE, slab_mib=3000)}, "warning", "shared memory", "workers need memory too"),
        ({"machine": replace(MACHINE, shared="no memfd")}, "fault", "shared memory", "no memfd"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_line_with_what_to_do(
    changes: dict[str, object], level: str, check: str, says: str
) -> None:
    (found,) = of(replace(FINE, **changes))  # type: ignore[arg-type]
    assert (found.level.value, found.check) == (level, check)
    assert says in str(found)


DOWN = {"name_servers": {"a:1": "refused"}}
FULL = {"disks": [DiskFacts("state", "/d", True, 10, 64)]}
WRONG = {"handler": replace(HANDLER, misfit="key is int")}


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        (WRONG, 2),
        ({"disks": [DiskFacts("state", "/", False, 9_000, 64)]}, 2),
        (FULL, 1),
        (FULL | WRONG, 1),
        (group(own_id="m1"), 1),
        ({"table": TableFacts("s3://b/t", "does not answer", exit_code=1)}, 1),
        ({"metrics": MetricsFacts("", "no such address yet", exit_code=1)}, 1),
        (DOWN, 3),
        (DOWN | FULL | WRONG, 3),
        (broker(unreachable="refused"), 3),
    ],
)
def test_a_check_before_a_start_ends_as_the_start_would(changes: dict[str, object], code: int) -> None:
    assert check_exit_code(findings(replace(FINE, **changes))) == code  # type: ignore[arg-type]


def test_the_ports_of_metrics_are_tried() -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        found = metrics_facts(load({"metrics.port": port}, {}, None).metrics)
        assert found is not None
        assert found.taken
        assert f"metrics.port = {port}" in found.wrong
        more = metrics_facts(load({"metrics.port": port, "metrics.port_count": 100}, {}, None).metrics)
        assert more is not None
        assert not more.wrong
        assert port < int(more.place.rpartition(" ")[2]) < port + 100
    assert metrics_facts(load({}, {}, None).metrics) is None


def test_what_does_not_exist_yet_or_is_not_told_is_fine() -> None:
    new = replace(
        FINE,
        retry=TopicFacts("%RETRY%billing", exists=False),
        dead=TopicFacts("%DLQ%billing", exists=False),
        group=GroupFacts("billing", known=False),
        brokers=[BrokerFacts("a", "a:10911")],
        handler=replace(HANDLER, columns=""),
        spark=None,
    )
    assert not of(new)
    assert not of(replace(FINE, group=replace(GROUP, unknown="no permission")))
    assert not of(replace(FINE, broadcasting=True, retry=replace(RETRY, perms={"a": 0})))


@pytest.mark.parametrize(
    ("brokers", "perm", "acting", "masterless"),
    [({0: "a:1", 1: "a:2"}, 6, False, {}), ({2: "a:3", 1: "a:2"}, 6, False, {"a": 1}), ({0: "a:2"}, 4, True, {"a": 0}),
     ({0: "a:1"}, 4, False, {}), ({0: "a:1"}, 6, True, {})],
)  # fmt: skip
def test_a_broker_of_which_only_slaves_are_left_has_no_master(
    brokers: dict[int, str], perm: int, acting: bool, masterless: dict[str, int]
) -> None:
    """All was said to be fine, as the slave answered."""
    route = TopicRouteData((QueueData("a", 4, 4, perm),), (BrokerData("a", brokers, enable_acting_master=acting),))
    assert without_master([route]) == masterless


def test_while_a_slave_acts_as_master_no_topic_is_said_to_lack_the_right_to_write() -> None:
    """The name server takes it for so long: an operator was told to set it, though the topic has it. Locks are given, too."""
    acting = replace(
        FINE, masterless={"a": 0}, retry=replace(RETRY, perms={"a": 4}), dead=replace(DEAD, perms={"a": 4})
    )
    (told,) = of(acting)
    assert told.check == "broker"
    assert "locks" not in told.todo
    left = of(replace(acting, masterless={"a": 1}))  # it does not act: nobody has taken what is not there
    assert [finding.check for finding in left] == ["retry topic", "dead letters", "broker"]
    assert "locks" in left[-1].todo


def test_members_that_share_no_queues_may_be_more_than_those() -> None:
    assert not of(replace(FINE, topics=[replace(ORDERS, queues=1)], group=replace(GROUP, shares_queues=False)))


def test_what_members_that_popped_have_left_is_named() -> None:
    """A group that was switched from POP: members that pull do not read the retry topics of popped topics."""
    table = {
        MessageQueue(topic, broker, 0): OffsetWrapper(59, done)
        for topic, broker, done in [
            ("%RETRY%billing_orders", "a", 50), ("%RETRY%billing_orders", "b", -1), ("%RETRY%billing+tags", "a", 59),
            ("%RETRY%billing", "a", 0), ("orders", "a", 0),
        ]
    }  # fmt: skip
    left = popped_retries(table, "billing")
    assert left == {"%RETRY%billing_orders": 68}
    (found,) = of(replace(FINE, group=replace(GROUP, popped_retries=left)))
    assert (found.level, found.found) == (
        Level.WARNING,
        "68 messages of %RETRY%billing_orders, left by members that popped, which members that pull do not read",
    )


def test_a_named_member_counts_once_among_the_members() -> None:
    (found,) = of(replace(FINE, topics=[replace(ORDERS, queues=1)], group=replace(GROUP, members=("x",), own_id="y")))
    assert "for 2 members" in found.found


@pytest.mark.parametrize(
    ("runtime", "ran_s"),
    [("[ 1 days, 2 hours, 3 minutes, 4 seconds ]", 93_784), ("[ 1,000 days, 0 hours, 0 minutes, 1 seconds ]", 86_400_001),
     ("17 s", 17)],
)  # fmt: skip
def test_a_brokers_clock_is_its_start_and_how_long_it_ran(runtime: str, ran_s: int) -> None:
    assert broker_clock_ms({"bootTimestamp": "1700000000000", "runtime": runtime}) == 1_700_000_000_500 + ran_s * 1000


@pytest.mark.parametrize("table", [{}, {"runtime": "17 s"}, {"bootTimestamp": "1", "runtime": "long"}])
def test_a_clock_that_is_not_told_is_not_known(table: dict[str, str]) -> None:
    assert broker_clock_ms(table) is None


def test_versions_are_numbers() -> None:
    assert version_of("V5_5_0_ROCKETCREW") == (5, 5, 0)
    assert version_of("HIGHER_VERSION") is None


@pytest.mark.parametrize(
    ("named", "given", "words"),
    [
        (("or ders",), (), "illegal characters"),
        (("orders:SQL92:",), (), "has no expression"),
        (("orders", "refunds"), ("zzz",), "but the topics given"),
        (("orders", "orders:paid"), (), "twice"),
        (("orders:paid", "refunds"), (), ""),
        (("orders",), ("orders:paid",), ""),
        ((), ("orders",), ""),
        ((), (), ""),
    ],
)
def test_a_handler_that_run_refuses_for_its_topics_cannot_be_run(
    named: tuple[str, ...], given: tuple[str, ...], words: str
) -> None:
    settings = load({"consumer.topics": list(given)}, {}, None)
    check_start(settings)
    found = refused(settings, HandlerSpec("shop:count", subscriptions=named))
    assert words in found
    assert bool(found) is bool(words)


def test_the_tables_server_is_a_check_of_its_own() -> None:
    checks = {one.check: one for one in findings(replace(FINE, table=TableFacts("s3://bucket/table")))}
    assert checks["table"].level is Level.FINE
    away = replace(FINE, table=TableFacts("s3://bucket/table", "s3://bucket/table: the S3 server can't be asked"))
    (fault,) = of(away)
    assert (fault.level, fault.check) == (Level.FAULT, "table")
    (columns,) = [one for one in findings(away) if one.check == "columns"]
    assert "not compared" in columns.found


def test_a_topic_that_nobody_could_look_into_is_no_fault() -> None:
    (found,) = [each for each in of(replace(FINE, topics=[replace(ORDERS, unlooked="TOOLS_CONSUMER")])) if each.todo]
    assert (found.level, found.check) == (Level.WARNING, "topic")
    assert "not looked" in found.found


def test_where_failed_calls_are_sent_is_named_without_the_key() -> None:
    facts = sentry_facts(load({"sentry.dsn": "https://secret@sentry.example:9000/of/7"}, {}, None))
    assert facts == SentryFacts("sentry.example, project 7")
    assert sentry_facts(load({}, {}, None)) is None


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("http://127.0.0.1:1", "http://127.0.0.1:1 can't be used: ConnectionRefusedError: "),
        ("htp://127.0.0.1:1", "spark.options does not name an Iceberg catalog"),
        ("sqlite:////no/such/folder/catalog.db", ""),
    ],
)
def test_the_catalog_of_an_iceberg_table_is_asked_unless_it_is_a_file(tmp_path: Path, uri: str, said: str) -> None:
    kind = {} if uri.startswith("sqlite") else {"type": "rest"}
    given = {"spark.format": "iceberg", "spark.target": str(tmp_path / "t"), "spark.options": {"uri": uri, **kind}}
    settings = load(given, {}, None)
    found, _ = table_facts(settings, probe=True)
    assert (found.wrong if found else "").find(said) >= 0
    assert (found is None) == (said == "")
    assert table_facts(settings, probe=False)[0] is None
    assert list(tmp_path.iterdir()) == []


def test_a_shared_folder_is_a_fault_for_members_and_what_the_engine_needs(tmp_path: Path) -> None:
    settings = load({"supervisor.data_dir": str(tmp_path)}, {}, None)
    mounts = [Mount(str(tmp_path), "nfs4", "filer:/export")]
    assert "is on NFS" in disk_facts(settings, mounts=mounts)[0].shared
    assert disk_facts(settings, on_spark=True, mounts=mounts)[0].shared == ""


def test_a_handler_whose_import_somebody_ended_is_one_finding_of_several(tmp_path: Path) -> None:
    (tmp_path / "ended_import.py").write_text("import os\nos.kill(os.getpid(), 9)\n")
    settings = load({"supervisor.data_dir": str(tmp_path)}, {}, None)
    before = os.getcwd()
    os.chdir(tmp_path)
    try:
        found = handler_facts(settings, "ended_import", TableSpec(str(tmp_path / "table")))
    finally:
        os.chdir(before)
    assert "was ended by signal SIGKILL, from outside" in found.wrong


def test_functions_that_settings_name_are_imported_as_a_start_does(tmp_path: Path) -> None:
    assert function_facts(load({}, {}, None)) == []
    log = tmp_path / "app.log"
    named = {"hooks.on_start": "os.path:basename", "consumer.allocate_strategy": "nosuch:f", "log.file": str(log)}
    hooks, allocation = function_facts(load(named, {}, None))
    assert (hooks.check, hooks.wrong) == ("hooks", "")
    assert not log.exists()
    assert allocation.check == "allocation"
    assert allocation.wrong.startswith("consumer.allocate_strategy = 'nosuch:f': cannot find module \"nosuch\"")
    (hooks,) = function_facts(load({"hooks.on_dead_letter": "nosuch:f"}, {}, None))
    assert "cannot find module" in hooks.wrong
    alone = {"consumer.allocate_strategy": "nosuch:f", "consumer.message_model": "BROADCASTING"}
    assert function_facts(load(alone, {}, None)) == [], "nobody asks it"


def test_a_log_file_that_cannot_be_written_is_a_fault_and_none_is_made(tmp_path: Path) -> None:
    assert log_facts(load({}, {}, None)) == []
    for file, fine in (("app.log", True), ("nosuch/app.log", False), (".", False)):
        (found,) = log_facts(load({"log.file": str(tmp_path / file)}, {}, None))
        assert (found.check, found.wrong == "") == ("log file", fine)
        (line,) = [one for one in findings(replace(FINE, named=[found])) if one.check == "log file"]
        assert line.found.endswith("app.log can be written") == fine
    assert list(tmp_path.iterdir()) == []


def test_files_of_secrets_that_everybody_can_read_are_warnings() -> None:
    found = findings(replace(FINE, open_files=OPEN))
    assert [str(one) for one in found if one.level is Level.WARNING] == [
        "warning  secrets            everybody on this machine can read /etc/keys (security.key_file): `chmod 600 /etc/keys`"
    ]
