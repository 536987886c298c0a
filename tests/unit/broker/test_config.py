"""BrokerConfig and what it refuses."""

from __future__ import annotations

import pytest

from rocketcrew.broker.config import BrokerConfig
from rocketcrew.broker.group_table import GroupTable
from rocketcrew.broker.offset_table import OffsetTable
from rocketcrew.broker.topic_table import TopicTable
from rocketcrew.remoting.admin_bodies import SubscriptionGroupConfig, SubscriptionGroupTable, TopicConfig
from rocketcrew.remoting.admin_headers import TopicName
from rocketcrew.remoting.codes import RequestCode
from rocketcrew.remoting.errors import UsageError
from rocketcrew.remoting.fastjson import loads


@pytest.mark.parametrize("text", ["", "1", "s", "0s", "-1s", "1.5s", "1x", "1s,2s", " ".join(["1s"] * 101)])
def test_levels_that_are_none(text):
    with pytest.raises(UsageError, match="message_delay_level"):
        BrokerConfig(message_delay_level=text)


@pytest.mark.parametrize(
    "settings",
    [
        {"port": -1},
        {"name_server_port": 70_000},
        {"name": "a b"},
        {"cluster": ""},
        {"host": "localhost"},
        {"default_queues_max": 0},
    ],
)
def test_refusals_name_the_setting(settings):
    with pytest.raises(UsageError, match=next(iter(settings))):
        BrokerConfig(**settings)


def test_no_level_is_longer_than_messages_are_kept():
    """The broker took the message, and retention took it before its time, without a word."""
    for settings in ({"message_delay_level": "1s 73h"}, {"retention_ms": 7_199_999}):
        with pytest.raises(UsageError, match="messages are kept for"):
            BrokerConfig(**settings)
    assert BrokerConfig(message_delay_level="1s 3d").delay_levels_ms[1] == BrokerConfig().retention_ms


def test_a_key_without_a_certificate_is_refused():
    """The broker started in plain text, without a word."""
    with pytest.raises(UsageError, match=r"tls_key_path = 'key\.pem' needs tls_cert_path"):
        BrokerConfig(tls_key_path="key.pem")
    assert BrokerConfig(tls_cert_path="both.pem", tls_key_path="key.pem").tls_key_path == "key.pem"


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
    for _ in range(2):  # the generation before too
        broker.storage.replace("config/topics.json", b"{")
    with pytest.raises(UsageError, match=r"topics\.json"):
        broker.crash()


@pytest.mark.parametrize("content", [b"", bytes(100), b"{"])
def test_a_table_that_a_crash_emptied_is_no_reason_to_refuse(broker, content):
    """The generation before holds; what it lacks comes from the log."""
    for number in range(6):
        broker.send("Other" if number % 2 else "T", b"%d" % number, queue_id=3)
    broker.send(body=b"to be consumed")
    broker.later(10_000)
    broker.send("Late", b"7")
    broker.later(10_000)
    assert broker.storage.load_previous("config/topics.json")
    broker.storage.replace("config/topics.json", broker.storage.load("config/topics.json"))
    broker.storage.replace("config/topics.json", content)
    broker.crash()
    assert [message.body for message in broker.read("Late")] == [b"7"]
    assert [message.body for message in broker.read(queue_id=3)] == [b"0", b"2", b"4"]


def test_without_any_table_the_topics_come_back_from_the_log(broker):
    broker.send("A", b"1", queue_id=2)
    broker.send("B", b"2")
    broker.core.stop()
    for name in ("topics", "subscriptionGroup", "consumerOffset", "delayOffset"):
        broker.storage._tables[f"config/{name}.json"] = b""
    broker.storage._previous.clear()
    broker.crash()
    assert [message.body for message in broker.read("A", 2)] == [b"1"]
    assert broker.core.state.topics.get("A").write_queue_nums == 8
    assert ("store.topics_revived", {"topics": 2, "first": "A"}) in broker.core.state.events


def test_a_deleted_topic_does_not_come_back_and_its_successor_begins_anew(broker):
    broker.send("T", b"old")
    broker.send("U", b"stays")
    broker.call(RequestCode.DELETE_TOPIC_IN_BROKER, TopicName("T"))
    broker.storage._tables["config/topics.json"] = b""
    broker.storage._previous.clear()
    broker.crash()
    assert "T" not in broker.core.state.topics
    broker.send("T", b"new")
    broker.storage._tables["config/checkpoint.json"] = b""
    broker.crash()
    assert [message.body for message in broker.read("T")] == [b"new"]
    assert [message.body for message in broker.read("U")] == [b"stays"]


@pytest.mark.parametrize("content", [b"", b"{", bytes(40)])
def test_what_was_deleted_is_known_from_the_generation_before(broker, content):
    broker.send("T", b"old")
    broker.call(RequestCode.DELETE_TOPIC_IN_BROKER, TopicName("T"))
    broker.storage.replace("config/removedTopics.json", broker.storage.load("config/removedTopics.json"))
    broker.storage.replace("config/removedTopics.json", content)
    broker.send("T", b"new")
    broker.storage._tables["config/checkpoint.json"] = b""
    broker.crash()
    assert [message.body for message in broker.read("T")] == [b"new"]


@pytest.mark.parametrize("made_again", [False, True])
def test_a_deletion_that_only_the_journal_had_holds_after_two_kills(broker, made_again):
    broker.send("K", b"stays")
    broker.send("B", b"old")
    before = broker.storage.load("config/removedTopics.json")
    broker.call(RequestCode.DELETE_TOPIC_IN_BROKER, TopicName("B"))
    if made_again:
        broker.send("B", b"new")
    broker.storage._tables["config/removedTopics.json"] = before  # the kill came before it was written
    broker.crash()
    journal = broker.storage.open("config/topics.journal", 1, buffered=False)
    assert journal.end == journal.start
    assert list(loads(broker.storage.load("config/removedTopics.json"), "removed")) == ["B"]
    broker.storage._tables["config/checkpoint.json"] = b""
    broker.crash()
    assert ("B" in broker.core.state.topics) == made_again
    assert [message.body for message in broker.read("B")] == [b"new"] * made_again
    assert [message.body for message in broker.read("K")] == [b"stays"]


def test_offsets_above_the_end_of_the_log_are_clamped_with_a_line(broker):
    broker.send()
    broker.core.state.offsets.commit("T", "g", 0, 70)
    broker.later(2_000)
    broker.crash()
    assert broker.core.state.offsets.query("T", "g", 0) == 1
    assert broker.core.state.events == [("store.offsets_clamped", {"offsets": 1, "first": "T@g queue 0: 70 became 1"})]


def test_a_torn_line_of_the_journal_does_not_count(broker):
    broker.send("A")
    broker.storage.open("config/topics.journal", 1, buffered=False).append(b'B\t{"dataVers')
    broker.crash()
    assert "A" in broker.core.state.topics
    assert "B" not in broker.core.state.topics


@pytest.mark.parametrize("with_end", [False, True])
def test_a_line_of_the_journal_that_is_gone_is_counted_and_loses_no_message(broker, with_end):
    """Zeros in the middle were passed over without a word, and the messages of their topic could not be read any more."""
    for topic in "ABC":
        broker.send(topic)
    broker.later(0)
    file = broker.storage.open("config/topics.journal", 1, buffered=False)
    lines = file.read(file.start, file.end - file.start).splitlines(keepends=True)
    assert [line[:1] for line in lines] == [b"A", b"B", b"C"]
    file.overwrite(file.start + len(lines[0]), bytes(len(lines[1]) - (not with_end)))
    before = file.read(file.start, file.end - file.start)
    broker.crash()
    assert ("store.topics_journal_damaged", {"lines": 1}) in broker.core.state.events
    assert broker.storage.aside() == [f"config/topics.journal/0-{len(before)}"]
    for topic in "ABC":
        assert broker.core.state.store.max_offset(topic, 0) == 1


def test_a_new_topic_writes_a_line_and_not_the_table(broker):
    sizes = []
    for number in range(200):
        before = broker.storage.open("config/topics.journal", 1, buffered=False).end
        broker.send(f"T{number:03d}")
        sizes.append(broker.storage.open("config/topics.journal", 1, buffered=False).end - before)
    assert len(set(sizes)) <= 3, "whatever the number of topics"
    broker.crash()
    assert "T199" in broker.core.state.topics


def test_a_pending_reset_of_a_file_is_never_below_zero():
    offsets = OffsetTable()
    offsets.load(b'{"offsetTable":{"T@g":{0:3}},"pendingResets":{"T@g":{0:-7}}}')
    assert offsets.take_reset("T", "g", 0) == 0


def test_offsets_are_read_as_they_were_written():
    table, again = OffsetTable(), OffsetTable()
    for number in range(50):
        table.commit("T", f"g{number}", 0, number)
        table.commit("T", f"g{number}", 1, 1)
    text = table.dump()
    table.commit("T", "g7", 0, 1_000)
    again.load(table.dump())
    assert again.dump() == table.dump() != text
    assert [again.query("T", f"g{number}", 0) for number in (6, 7, 49)] == [6, 1_000, 49]


def test_what_topics_and_groups_cost_to_save_is_what_changed():
    for size in (20, 400):
        topics, groups = TopicTable([]), GroupTable(auto_create=True, groups_max=1_000)
        for number in range(size):
            topics.put(1, TopicConfig(f"T{number}", 2, 3))
            groups.put(SubscriptionGroupConfig(f"g{number}"))
        assert topics.dump() == topics.table().encode()
        groups.dump()
        topics.put(2, TopicConfig("T7", 9, 9))
        topics.remove(2, "T8")
        groups.put(SubscriptionGroupConfig("g7", consume_enable=False))
        assert groups.remove("g8")
        assert topics.dump() == topics.table().encode()
        read = SubscriptionGroupTable.decode(groups.dump()).subscription_group_table
        assert set(read) == {f"g{number}" for number in range(size) if number != 8}
        assert not read["g7"].consume_enable
        assert (topics._text.encoded, groups._text.encoded) == (size + 1, size + 1)
        assert len(topics._text._texts) == size - 1
