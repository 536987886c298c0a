"""Who we are: address, instance name, client id."""

from __future__ import annotations

import pytest

from rocketcrew.client.address import split_address, split_name_servers
from rocketcrew.client.identity import choose_ip, client_id, client_ip, instance_name, ip_for_ids, local_ips
from rocketcrew.remoting.errors import UsageError


@pytest.mark.parametrize(
    ("addresses", "chosen"),
    [
        (["10.0.0.5", "8.8.4.4", "9.9.9.9"], "8.8.4.4"),
        (["127.0.0.1", "10.0.0.5", "192.168.1.7"], "192.168.1.7"),
        (["172.16.0.1", "172.31.255.1"], "172.31.255.1"),
        (["172.32.0.1", "10.0.0.1"], "172.32.0.1"),
        (["192.0.2.2"], "192.0.2.2"),
        (["fe80::1%eth0", "2001:db8::7", "2001:db8::8"], "[2001:db8::7]"),
        (["2001:db8::7", "10.1.1.1"], "10.1.1.1"),
        (["127.0.0.1", "::1", "0.0.0.0", "224.0.0.1", "nonsense"], "127.0.0.1"),
        ([], "127.0.0.1"),
    ],
)
def test_the_address_that_java_would_choose(addresses, chosen):
    assert choose_ip(addresses) == chosen


def test_a_configured_address_wins():
    assert client_ip(" 1.2.3.4 ") == "1.2.3.4"
    assert client_ip() == choose_ip(local_ips())


def test_instance_names_and_client_ids():
    assert instance_name("DEFAULT", pid=12, nanos=345) == "12#345"
    assert instance_name("", pid=12, nanos=345) == "12#345"
    assert instance_name("mine", pid=12, nanos=345) == "mine"
    assert client_id("1.2.3.4", "12#345") == "1.2.3.4@12#345"
    assert client_id("1.2.3.4", "12#345", "unit") == "1.2.3.4@12#345@unit"


def test_addresses_for_message_ids():
    assert ip_for_ids("[2001:db8::7]") == "2001:db8::7"
    assert ip_for_ids("10.0.0.1") == "10.0.0.1"
    assert ip_for_ids("my-host") == "127.0.0.1"


def test_addresses():
    assert split_address("h:1") == ("h", 1)
    assert split_address("[::1]:65535") == ("::1", 65535)
    assert split_address("fd00::2:10911") == ("fd00::2", 10911)
    assert split_name_servers(["a:1;b:2", "http://c:3/"]) == ["a:1", "b:2", "c:3"]
    with pytest.raises(UsageError, match="at most 64"):
        split_name_servers(f"h:{port}" for port in range(1, 100))


@pytest.mark.parametrize("port", ["", "0", "65536", "-1", "٣", "9" * 5_000])  # Python reads no number of 4,301 digits
def test_a_port_that_is_none(port: str) -> None:
    with pytest.raises(UsageError, match="is not a number from 1 to 65535"):
        split_address(f"h:{port}")
