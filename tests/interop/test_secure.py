"""Servers that let nobody in without a certificate and a signature: who has both consumes, who lacks one reads which."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructType

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "system"))

from guarded import CREW, Papers, as_crew, run_guarded
from harness import HANDLERS, WAIT_S, Crew, target_of, wait_until
from needs import need_jars
from ordered_trace import traced
from reading import wait_until_readable
from servers import VERSIONS, Servers, answers

from rocketcrew.cli.children import Child
from rocketcrew.client.cluster import Cluster
from rocketcrew.client.outgoing import OutgoingMessage
from rocketcrew.client.sync import SyncProducer, run_with_cluster
from rocketcrew.remoting.errors import RocketcrewError
from rocketcrew.source.connections import shared
from rocketcrew.source.default_source import DefaultSource
from rocketcrew.source.writers import Sending

Guarded = tuple[Servers, Papers]
ON_BOTH = pytest.mark.parametrize("guarded", VERSIONS, ids=str, indirect=True, scope="module")
QUEUES = 4
NUMBERS = range(100, 400)
SEND_TIMEOUT_MS = 30_000
"""Servers that have just started, in TLS, on a machine that does other things too."""
ATTEMPTS = {number: 2 * (number % 50 == 7) for number in NUMBERS}


@pytest.fixture(scope="module")
def guarded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    kind = request.param
    need_jars(kind.version)
    with run_guarded(kind, tmp_path_factory.mktemp(f"guarded-{kind}")) as found:
        yield found


def settings_of(servers: Servers) -> dict[str, object]:
    """The settings that make the access of these servers."""
    access = servers.access
    assert access is not None
    found: dict[str, object] = {
        "cluster.namespace": access.namespace,
        "cluster.namespace_v2": access.namespace_v2,
        "cluster.vip_channel_enabled": access.vip_channel_enabled,
    }
    if access.credentials is not None:
        found["security.access_key"] = access.credentials.access_key
        found["security.secret_key"] = access.credentials.secret_key
    if access.tls is not None:
        found["security.tls_enable"] = True
        found["security.tls_trust_cert_path"] = access.tls.trust_cert_path
        found["security.tls_cert_path"] = access.tls.cert_path
        found["security.tls_key_path"] = access.tls.key_path
    return found


def rocketcrew(servers: Servers, *words: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """One command of ours against these servers."""
    given = [word for name, value in settings_of(servers).items() for word in ("--set", f"{name}={value}")]
    command = [sys.executable, "-m", "rocketcrew", *words, "-n", servers.name_server, *given]
    return subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False, cwd=folder)


def consume_all(servers: Servers, folder: Path, topic: str) -> Crew:
    """Send the numbers and consume them, with retries; nothing is lost and nothing comes twice."""
    crew = Crew(folder, servers, "numbers_handler:number", topic, load=False, group=f"{topic}-group",
                **{"consumer.max_reconsume_times": 3, **settings_of(servers)})  # fmt: skip
    crew.start()
    try:
        with SyncProducer(target_of(servers), send_timeout_ms=SEND_TIMEOUT_MS) as producer:
            producer.send_many(OutgoingMessage(topic, str(number).encode()) for number in NUMBERS)
        wait_until(lambda: crew.counter("done_messages") >= len(NUMBERS), WAIT_S, "all messages finished")
        wait_until(lambda: crew.lag() == 0, WAIT_S, "all offsets committed")
    finally:
        code = crew.stop()
    assert code == 0
    rows = crew.staged_rows()
    found = list(zip(rows.column("number").to_pylist(), rows.column("attempt").to_pylist(), strict=True))
    assert sorted(found) == sorted(ATTEMPTS.items())
    return crew


@ON_BOTH
def test_with_key_and_certificate_everything_works(guarded: Guarded, tmp_path: Path) -> None:
    servers, papers = guarded
    servers.create_topic("guarded", QUEUES)
    # With the second port and the fields of a namespace, which the signature covers.
    user = as_crew(servers, papers, namespace_v2="space", vip_channel_enabled=True)
    crew = consume_all(user, tmp_path, "guarded")
    lag = rocketcrew(as_crew(servers, papers), "lag", "-g", crew.group, "--json")
    assert '"total": 0' in lag.stdout or "NO_PERMISSION" in lag.stderr, lag.stderr
    sent = rocketcrew(as_crew(servers, papers), "send", "-t", "guarded", "one more", "--json")
    assert '"status": "SEND_OK"' in sent.stdout, sent.stderr
    log = crew.child.log.read_text()
    assert CREW.secret_key not in log


@ON_BOTH
def test_an_ordered_message_at_its_limit_is_a_dead_letter_by_the_rights_of_its_group(
    guarded: Guarded, tmp_path: Path
) -> None:
    """4.9 asks for the rights of the producer's group that a send to a retry topic names."""
    servers, papers = guarded
    topic = "guarded-order"
    servers.create_topic(topic, 1)
    user = as_crew(servers, papers)
    crew = Crew(tmp_path, user, "ordered_handlers:stubborn", topic, load=False, group=f"{topic}-group",
                **{"consumer.max_reconsume_times": 1, **settings_of(user)})  # fmt: skip
    with traced(tmp_path / "trace"):
        crew.start()
        try:
            with SyncProducer(target_of(user), send_timeout_ms=SEND_TIMEOUT_MS) as producer:
                for number in range(5):
                    producer.send(OutgoingMessage(topic, str(number).encode()))
            wait_until(lambda: crew.counter("done_messages") >= 4, WAIT_S, "those after the one that fails")
            wait_until(lambda: crew.counter("dead_letter_messages") == 1, WAIT_S, "the dead letter")
        finally:
            code = crew.stop()
    assert code == 0
    assert not crew.logged("resend_failed")


@ON_BOTH
def test_what_is_missing_is_said_in_one_line(guarded: Guarded, tmp_path: Path) -> None:
    servers, papers = guarded
    servers.create_topic("refused", QUEUES)
    cases = {
        "a wrong secret": (
            as_crew(servers, papers, credentials=replace(CREW, secret_key="wrong-secret-1")),
            "(?i)16|signature",
        ),
        "no key at all": (as_crew(servers, papers, credentials=None), "(?i)16|accesskey|username"),
        "no TLS": (as_crew(servers, papers, tls=None), "set security.tls_enable"),
        "an unknown authority": (
            as_crew(servers, papers, tls=papers.options(ca="other-ca")),
            "its certificate is not trusted",
        ),
        "a stranger's certificate": (
            as_crew(servers, papers, tls=papers.options(client="stranger")),
            "client certificate",
        ),
    }
    for what, (access, says) in cases.items():
        done = rocketcrew(access, "send", "-t", "refused", "x", "--log-level", "error")
        assert done.returncode in (1, 3), (what, done.stderr)
        assert re.search(says, done.stderr), (what, done.stderr)
        assert len(done.stderr.strip().splitlines()) == 1, (what, done.stderr)
        assert "wrong-secret" not in done.stderr


def source_options(servers: Servers, **more: str) -> dict[str, str]:
    """The same access as options of `format("rocketmq")`."""
    found = settings_of(servers)
    names = {
        "security.access_key": "accessKey", "security.secret_key": "secretKey", "security.tls_enable": "tlsEnable",
        "security.tls_trust_cert_path": "tlsTrustCertPath", "security.tls_cert_path": "tlsCertPath",
        "security.tls_key_path": "tlsKeyPath",
    }  # fmt: skip
    told = {
        option: str(found[name]).lower() if found[name] is True else str(found[name]) for name, option in names.items()
    }
    return {"nameServer": servers.name_server, "numRetries": "0", **told, **more}


@ON_BOTH
def test_sparks_source_and_sink_with_key_and_certificate(guarded: Guarded) -> None:
    servers, papers = guarded
    topic = "guarded-spark"
    servers.create_topic(topic, QUEUES)
    user = as_crew(servers, papers)
    rows = pa.RecordBatch.from_pydict({"body": [str(number) for number in NUMBERS], "tags": ["x"] * len(NUMBERS)})
    write = source_options(user, topic=topic, sendTimeoutMs=str(SEND_TIMEOUT_MS))
    columns = [("body", "string"), ("tags", "string")]
    try:
        assert Sending.of(write, columns).send(iter([rows]), "job-0-0", shared).messages == len(NUMBERS)
        wait_until_readable(servers.target, topic, len(NUMBERS))
        schema = StructType().add("body", BinaryType())
        for choice in ({"subscribe": topic}, {"subscribePattern": "guarded-s.*"}):
            reader: Any = DefaultSource(source_options(user, **choice)).reader(schema)
            bodies = [
                int(row["body"])
                for part in reader.partitions()
                for batch in reader.read(part)
                for row in batch.to_pylist()
            ]
            assert sorted(bodies) == list(NUMBERS)
        wrong = as_crew(servers, papers, credentials=replace(CREW, secret_key="wrong-secret-1"))
        with pytest.raises(RocketcrewError, match=r"(?i)16|signature") as refused:
            DefaultSource(source_options(wrong, subscribe=topic)).reader(schema).partitions()
        assert "wrong-secret" not in str(refused.value)
        stranger = as_crew(servers, papers, tls=papers.options(client="stranger"))
        with pytest.raises(RocketcrewError, match="client certificate"):
            Sending.of(source_options(stranger, topic=topic), columns).send(iter([rows]), "job-1-0", shared)
    finally:
        shared.close()


@ON_BOTH
def test_a_consumer_that_nobody_lets_in_does_not_start(guarded: Guarded, tmp_path: Path) -> None:
    servers, papers = guarded
    servers.create_topic("refused-consumer", QUEUES)
    wrong = as_crew(servers, papers, credentials=replace(CREW, secret_key="wrong-secret-1"))
    words = ["numbers_handler:number", "-t", "refused-consumer", "-g", "refused-group", "--log-level", "error"]
    state = ["--set", f"supervisor.data_dir={tmp_path}", "--set", "spark.load=false"]
    done = rocketcrew(wrong, "run", *words, *state, folder=HANDLERS)
    assert done.returncode == 1, done.stderr
    assert re.search("(?i)(signature|16 ).*HEART_BEAT|HEART_BEAT.*(signature|16 )", done.stderr), done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr


@pytest.mark.parametrize("guarded", VERSIONS[:1], ids=str, indirect=True, scope="module")
def test_our_broker_registers_with_a_name_server_that_wants_certificates_and_leaves_it(
    guarded: Guarded, tmp_path: Path
) -> None:
    """Signed too, as everything is that goes there; without a certificate it is not known, and says why."""
    servers, _ = guarded
    words = ["broker", "--set", "broker.name=ours", "--set", "broker.name_server_port=0", "--set", "broker.port=0",
             "--set", f"broker.register_with={servers.name_server}"]  # fmt: skip
    settings = [word for name, value in settings_of(servers).items() for word in ("--set", f"{name}={value}")]

    def brokers() -> set[str]:
        async def ask(cluster: Cluster) -> set[str]:
            return {data.broker_name for data in (await cluster.route("TBW102")).queue_datas}

        return run_with_cluster(servers.target, ask)

    stranger = Child(
        "stranger", [*words, "--set", f"broker.dir={tmp_path / 'stranger'}"], log=tmp_path / "stranger.log"
    )
    try:
        wait_until(
            lambda: "broker.not_registered" in (tmp_path / "stranger.log").read_text(), WAIT_S, "the stranger's refusal"
        )
    finally:
        stranger.stop(WAIT_S)
    assert brokers() == {"broker-a"}
    ours = Child("ours", [*words, *settings, "--set", f"broker.dir={tmp_path / 'ours'}"], log=tmp_path / "ours.log")
    try:
        wait_until(
            lambda: answers(lambda: brokers() == {"broker-a", "ours"}), WAIT_S, "our broker in the guarded cluster"
        )
    finally:
        ours.stop(WAIT_S)
    wait_until(lambda: answers(lambda: brokers() == {"broker-a"}), WAIT_S, "our broker out of it")
