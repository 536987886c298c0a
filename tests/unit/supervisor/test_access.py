"""From settings to how the cluster is reached."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path

import pytest
import structlog

from rocketcrew.client.access import Access, Credentials, TlsOptions
from rocketcrew.conf.settings import load
from rocketcrew.remoting.errors import UsageError
from rocketcrew.supervisor.member.access import access_of, in_namespace, secret_files, warn_of_open_files
from rocketcrew.supervisor.pool.child import NewWorker
from rocketcrew.supervisor.slot import take_slot
from rocketcrew.supervisor.wiring import Boots
from rocketcrew.workers.boot import WorkerBoot
from rocketcrew.workers.link import Transport
from rocketcrew.workers.loading import HandlerSpec
from rocketcrew.workers.stack_dump import StackFile


def access(**settings: object) -> Access:
    return access_of(load({name.replace("__", "."): value for name, value in settings.items()}, {}, None))


def test_the_defaults_are_java_s() -> None:
    found = access(cluster__name_servers="a:1;b:2")
    assert found == Access(("a:1", "b:2"), instance_name="DEFAULT")


def test_everything_arrives() -> None:
    found = access(
        cluster__unit_name="eu", cluster__unit_mode=True, cluster__namespace="n1", cluster__namespace_v2="n2",
        cluster__vip_channel_enabled=True, cluster__namesrv_domain="d", cluster__namesrv_domain_subgroup="s",
        security__access_key="me", security__secret_key="s", security__security_token="t",
        security__tls_enable=True, security__tls_auth_server=True, security__tls_trust_cert_path="ca.pem",
        security__tls_cert_path="c.pem", security__tls_key_path="k.pem", security__tls_key_password="p",
        security__tls_check_hostname=True, security__tls_server_name="broker",
    )  # fmt: skip
    assert (found.unit_name, found.unit_mode, found.namespace, found.namespace_v2) == ("eu", True, "n1", "n2")
    assert (found.vip_channel_enabled, found.namesrv_domain, found.namesrv_domain_subgroup) == (True, "d", "s")
    assert found.credentials == Credentials("me", "s", "t")
    files = [str(Path(name).absolute()) for name in ("ca.pem", "c.pem", "k.pem")]
    assert found.tls == TlsOptions(True, *files, "p", True, "broker")
    assert found.wrap("%RETRY%g") == "%RETRY%n1%g"


def test_a_key_file_is_used_unless_a_key_is_given(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("AccessKey=me\nSecretKey=s\n")
    assert access(security__key_file=str(file)).credentials == Credentials("me", "s")
    file.write_text("AccessKey=me\nSecretKey=s\n", encoding="utf-8-sig")
    assert access(security__key_file=str(file)).credentials == Credentials("me", "s"), "as Windows' editors write it"
    own = {"security__access_key": "other", "security__secret_key": "o"}
    assert access(security__key_file=str(file), **own).credentials == Credentials("other", "o")
    with pytest.raises(UsageError, match=r"key_file .*missing cannot be read: No such file"):
        access(security__key_file=str(tmp_path / "missing"))
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(UsageError, match=r"^security\.key_file [^ ]*fifo is no regular file$"):
        access(security__key_file=str(tmp_path / "fifo"))
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="is not UTF-8"):
        access(security__key_file=str(file))


def test_inside_a_namespace_group_and_topics_are_the_brokers() -> None:
    def consumer(namespace: str, group: str, topics: str) -> tuple[str, tuple[str, ...]]:
        settings = {"cluster.namespace": namespace, "consumer.group": group, "consumer.topics": topics}
        found = in_namespace(in_namespace(load(settings, {}, None))).consumer  # twice does no harm
        return found.group, found.topics

    assert consumer("", "g", "a,b:x || y") == ("g", ("a", "b:x || y"))
    assert consumer("n", "g", "a,b:x || y") == ("n%g", ("n%a", "n%b:x || y"))
    assert consumer("n", "n%g", "n%a") == ("n%g", ("n%a",))
    with pytest.raises(UsageError, match="more than 127 characters with the namespace"):
        consumer("n" * 60, "g", "t" * 100)


def test_an_instance_s_end_point_tells_its_namespace() -> None:
    """ClientConfigTest.java: the name of a cloud instance begins with its namespace."""
    point = "http://MQ_INST_1973_BX.cn-x.mq.example:80"
    found = access_of(load({"cluster.name_servers": point}, {}, None))
    assert (found.name_servers, found.namespace) == (("MQ_INST_1973_BX.cn-x.mq.example:80",), "MQ_INST_1973_BX")
    assert access_of(load({"cluster.name_servers": point, "cluster.namespace": "own"}, {}, None)).namespace == "own"
    assert access_of(load({"cluster.name_servers": f"{point};other:80"}, {}, None)).namespace == ""
    assert access_of(load({"cluster.name_servers": "MQ_INST_1.x:80"}, {}, None)).namespace == ""
    settings = load({"cluster.name_servers": point, "consumer.group": "g", "consumer.topics": "t"}, {}, None)
    inside = in_namespace(settings)
    assert (inside.consumer.group, inside.cluster.namespace) == ("MQ_INST_1973_BX%g", "MQ_INST_1973_BX")


def test_a_fixed_list_of_queues_is_in_the_namespace_too() -> None:
    flags = {"cluster.namespace": "n", "consumer.group": "g", "consumer.allocate_queues": ["a@r@b:1", "%RETRY%g@b:0"]}
    found = in_namespace(in_namespace(load(flags, {}, None)))
    assert found.consumer.allocate_queues == ("n%a@r@b:1", "%RETRY%n%g@b:0")


def boot_of(folder: Path, spec: HandlerSpec) -> WorkerBoot:
    """Of the first worker of a member with credentials."""
    settings = load({"security.access_key": "me", "security.secret_key": "s3cret"}, {}, None)
    ours, theirs = socket.socketpair()
    slot, stacks = take_slot(folder, "billing"), StackFile()
    try:
        with ours, theirs:
            new = NewWorker("w.1", 0, 0, theirs, stacks.shared, ())
            return Boots(settings, spec, slot, Transport.STREAM, None, "me@1")(new)
    finally:
        stacks.close()
        slot.release()


@pytest.mark.parametrize(("sends", "given"), [(False, False), (True, True), (None, True)])
def test_workers_get_what_opens_the_cluster_only_where_they_send(
    tmp_path: Path, sends: bool | None, given: bool
) -> None:
    boot = boot_of(tmp_path, HandlerSpec("shop:count", sends=sends))
    assert (boot.access is not None) is given
    if boot.access is not None:
        assert boot.access.credentials == Credentials("me", "s3cret")


@pytest.mark.parametrize(("text", "setting"), [
    ("[security]\naccess_key = 'me'\nsecret_key = 's'", "security.secret_key"),
    ("[metrics]\ntoken = 'abcdefghijklmnopqrstuvwxyz'", "metrics.token"),
    ("[spark.conf]\n'spark.hadoop.fs.s3a.secret.key' = 's'", "spark.conf"),
    ("[spark]\nmaster = 'sc://h:1/;token=s'", "spark.master"),
    ("[spark.conf]\n'spark.sql.shuffle.partitions' = '1'", ""),
    ("[consumer]\ngroup = 'g'\ntopics = ['t']\n[security]\nsecret_key = ''", ""),
])  # fmt: skip
def test_a_file_of_settings_is_one_of_secrets_where_a_value_in_it_must_not_be_shown(
    tmp_path: Path, text: str, setting: str
) -> None:
    file = tmp_path / "rocketcrew.toml"
    file.write_text(text)
    assert secret_files(load({}, {}, file)) == ([(setting, str(file))] if setting else [])
    assert secret_files(load({"metrics.token": "t" * 20}, {}, None)) == [], "a flag is in no file"


def test_files_of_secrets_that_everybody_can_read_are_warned_of(tmp_path: Path) -> None:
    keys, pem, both = (str(tmp_path / name) for name in ("keys", "key.pem", "both.pem"))
    for path in (keys, pem, both):
        Path(path).touch()
    tls = {"security.tls_enable": True, "security.tls_cert_path": both}
    two = {"security.key_file": keys, **tls, "security.tls_key_path": pem}

    def warned(mode: int, settings: Mapping[str, object]) -> list[tuple[str, str]]:
        for path in (keys, pem, both):
            Path(path).chmod(mode)
        with structlog.testing.capture_logs() as lines:
            warn_of_open_files(load(settings, {}, None))
        assert all(line["event"] == "secret_file_open_to_all" for line in lines)
        return [(line["setting"], line["file"]) for line in lines]

    assert warned(0o644, two) == [("security.key_file", keys), ("security.tls_key_path", pem)]
    assert warned(0o640, two) == []
    assert warned(0o644, tls) == [("security.tls_key_path", both)], "the key stands in the certificate's file"
    assert warned(0o644, {**tls, "security.tls_key_password": "p"}) == [], "nobody reads it without the password"
    assert warned(0o644, {"security.key_file": str(tmp_path / "none")}) == [], "said by who reads it"
