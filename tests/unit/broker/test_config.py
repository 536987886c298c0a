"""BrokerConfig and what it refuses."""

from __future__ import annotations

import pytest

from rocketcrew.broker.config import DELAY_LEVELS, BrokerConfig, parse_delay_levels
from rocketcrew.remoting.errors import UsageError


def test_levels():
    assert parse_delay_levels("200ms 2s 3m 1h 1d") == (200, 2_000, 180_000, 3_600_000, 86_400_000)
    levels = parse_delay_levels(DELAY_LEVELS)
    assert (len(levels), levels[0], levels[2], levels[17]) == (18, 1_000, 10_000, 7_200_000)


@pytest.mark.parametrize("text", ["", "1", "s", "0s", "-1s", "1.5s", "1x", "1s,2s", " ".join(["1s"] * 101)])
def test_levels_that_are_none(text):
    with pytest.raises(UsageError, match="message_delay_level"):
        BrokerConfig(message_delay_level=text)


@pytest.mark.parametrize(
    "settings", [{"port": -1}, {"name_server_port": 70_000}, {"name": "a b"}, {"cluster": ""}, {"host": "localhost"}]
)
def test_refusals_name_the_setting(settings):
    with pytest.raises(UsageError, match=next(iter(settings))):
        BrokerConfig(**settings)


def test_addresses():
    assert BrokerConfig(port=1).address == "127.0.0.1:1"
    assert BrokerConfig(host="::1", port=1).address == "[::1]:1"
    assert BrokerConfig(host="0.0.0.0", announce="10.0.0.1", port=1).address == "10.0.0.1:1"


def test_ipv6_hosts_get_into_records(make):
    broker = make(host="::1")
    broker.send(body=b"six")
    (message,) = broker.read()
    assert (message.store_host, message.sysflag & 0x20) == ("::1", 0x20)
    assert broker.core.state.store.search("T", 0, broker.now_ms) == 0


def test_data_that_is_none_is_refused(make, broker):
    broker.send()
    broker.storage.replace("config/topics.json", b"{")
    with pytest.raises(UsageError, match=r"topics\.json"):
        broker.crash()
    del broker.storage._tables["config/topics.json"]
    with pytest.raises(UsageError, match=r"no config/topics\.json"):
        broker.crash()
