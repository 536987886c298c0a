"""Ports of the embedded broker, and what a child says when it is ready."""

from __future__ import annotations

import dataclasses
import socket
from pathlib import Path

import pytest

from rocketcrew.cli.children import Child, ChildError
from rocketcrew.cli.embedded import as_flags, choose_ports, is_taken, on_own_broker
from rocketcrew.conf.settings import BrokerSettings, load
from rocketcrew.supervisor.member.access import access_of

BROKER: BrokerSettings = load({}, {}, None).broker


def test_a_port_that_is_taken_means_two_free_ones() -> None:
    with socket.socket() as foreign, socket.socket() as other:
        foreign.bind(("127.0.0.1", 0))
        foreign.listen()
        port = foreign.getsockname()[1]
        other.bind(("127.0.0.1", 0))  # not listening: kept from nobody else meanwhile
        free = other.getsockname()[1]
        assert is_taken("127.0.0.1", port)
        settings = dataclasses.replace(BROKER, name_server_port=free, port=port)
        other.close()
        assert choose_ports(settings) == ((0, 0), port)
        assert choose_ports(dataclasses.replace(settings, port=0)) == ((free, 0), None)


@pytest.mark.parametrize("settings", [BROKER, dataclasses.replace(BROKER, register_with=("a:1", "b:2"), dir="a b")])
def test_the_child_has_every_setting_as_we_have_it(settings: BrokerSettings) -> None:
    words = as_flags(settings)
    assert words[::2] == ["--set"] * len(dataclasses.fields(settings))
    flags: dict[str, object] = dict(word.split("=", 1) for word in words[1::2])  # pyright: ignore[reportAssignmentType]
    assert load(flags, {"ROCKETCREW_BROKER_NAME": "other"}, None).broker == settings


INTO_A_CLUSTER = {
    "cluster.namesrv_domain": "ns.example", "cluster.vip_channel_enabled": True, "cluster.namespace": "shop",
    "security.tls_enable": True, "security.access_key": "a", "security.secret_key": "b", "security.security_token": "c",
}  # fmt: skip


def test_a_broker_of_ours_is_reached_without_what_the_way_into_a_cluster_needs() -> None:
    settings = load(INTO_A_CLUSTER, {}, None)
    for broker in (settings.broker, None):
        made = on_own_broker(settings, ("127.0.0.1:9876",), broker)
        assert made.cluster == dataclasses.replace(
            settings.cluster, name_servers=("127.0.0.1:9876",), namesrv_domain="", vip_channel_enabled=False
        )
        access = access_of(made)
        assert (access.tls, access.credentials, access.namespace) == (None, None, "shop")
    keyed = load({"security.key_file": "/nonexistent/key.conf"}, {}, None)
    assert access_of(on_own_broker(keyed, (), None)).credentials is None


def test_what_a_broker_of_ours_is_told_to_want_it_gets() -> None:
    settings = load({**INTO_A_CLUSTER, "broker.tls_cert_path": "c.pem", "broker.acl_file": "acl.toml"}, {}, None)
    access = access_of(on_own_broker(settings, (), settings.broker))
    assert (access.tls is not None, access.credentials is not None) == (True, True)
    access = access_of(on_own_broker(settings, (), None))
    assert (access.tls, access.credentials) == (None, None)


def test_any_free_port_is_never_taken() -> None:
    assert choose_ports(dataclasses.replace(BROKER, name_server_port=0, port=0)) == ((0, 0), None)


def test_a_child_says_who_it_is(tmp_path: Path) -> None:
    words = ["broker", "--json", "--name-server-port", "0", "--port", "0", "--dir", str(tmp_path / "data")]
    child = Child("broker", words, log=tmp_path / "log", announces=True)
    try:
        assert child.announcement(60)["pid"] == child.pid
    finally:
        assert child.stop(60) == 0
    assert child.how_it_ended() == "ended with exit code 0"


def test_a_child_that_ends_before_it_is_ready_is_told_with_its_own_log_alone(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("of an earlier run\n")
    child = Child("broker", ["broker", "--port", "70000"], log=log, announces=True)
    with pytest.raises(ChildError, match="the broker ended with exit code 2") as caught:
        child.announcement(60)
    assert "broker.port = 70000" in str(caught.value)
    assert "earlier" not in str(caught.value)
