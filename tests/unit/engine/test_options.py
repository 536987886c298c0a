"""Settings as the source's options; the window of a replay."""

from __future__ import annotations

import pytest

from rocketcrew.client.access import Access, Credentials, TlsOptions
from rocketcrew.conf.settings import load
from rocketcrew.engine.options import stream_options, tags_by_topic, task_bounds, window_options
from rocketcrew.engine.replay import check_window
from rocketcrew.engine.table import repeating
from rocketcrew.remoting.errors import UsageError
from rocketcrew.source.access_options import access_of
from rocketcrew.source.options import STREAM
from rocketcrew.source.reading import read_options

SETTINGS = {"consumer.group": "g", "consumer.topics": "a:x || y,b", "engine.max_offsets_per_trigger": 7}
ACCESS = Access(
    name_servers=("h:1", "i:2"), namespace="ns", credentials=Credentials("k", "s", "t"), vip_channel_enabled=True,
    tls=TlsOptions(auth_server=False, trust_cert_path="/ca", cert_path="", key_path="", key_password="", check_hostname=False,
                   server_name=""),
)  # fmt: skip


def test_the_source_understands_the_options_and_reaches_the_same_cluster() -> None:
    told = stream_options(load(SETTINGS, {}, None), ACCESS, "earliest", 4)
    options = read_options(told, streaming=True)
    assert options.topics == ("a", "b", "%RETRY%g")
    assert (options.group, options.max_offsets_per_trigger, options.min_partitions) == ("g", 7, 4)
    assert (options.fail_on_data_loss, options.report_group_offsets, options.tags) == (False, True, frozenset())
    assert options.pull_batch_size == 1024
    read = access_of(told, STREAM)
    assert (read.name_servers, read.namespace, read.credentials) == (ACCESS.name_servers, "ns", ACCESS.credentials)
    assert read.vip_channel_enabled
    assert read.tls == ACCESS.tls


def test_a_pull_size_that_was_set_holds() -> None:
    settings = load({**SETTINGS, "consumer.pull_batch_size": 64}, {}, None)
    assert (
        read_options(stream_options(settings, ACCESS, "earliest", 0) | {"minPartitions": "1"}, True).pull_batch_size
        == 64
    )


def test_a_window_is_a_batch_read_of_the_topics_alone() -> None:
    begin, end = 1_700_000_000_000, 1_700_000_001_000
    told = window_options(load(SETTINGS, {}, None), ACCESS, begin, end, 3)
    options = read_options(told, streaming=False)
    assert options.topics == ("a", "b")
    assert (options.starting.timestamp_ms, options.ending.timestamp_ms, options.group) == (begin, end, "")
    assert options.latest_when_too_late


def test_tags_are_by_the_brokers_topics_and_a_call_has_a_limit() -> None:
    settings = load(SETTINGS, {}, None)
    assert tags_by_topic(settings, ACCESS) == {"ns%a": ("x", "y")}
    assert task_bounds(settings).hard_time_limit_ms == 15 * 60_000
    assert task_bounds(load({**SETTINGS, "workers.hard_time_limit_ms": 500}, {}, None)).hard_time_limit_ms == 500


def test_local_masters_are_told_to_repeat_tasks() -> None:
    assert repeating("local[2]", "8") == "local[2,8]"
    assert repeating("local", "8") == "local[1,8]"
    for master in ("local[2,3]", "local-cluster[2,1,1024]", "spark://h:1"):
        assert repeating(master, "8") == master


def test_a_window_has_something_in_it() -> None:
    with pytest.raises(UsageError, match="earlier"):
        check_window(5, 5)
