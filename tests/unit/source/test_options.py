from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from rocketcrew.client.access import Credentials, TlsOptions
from rocketcrew.remoting.errors import UsageError
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.source.access_options import access_of
from rocketcrew.source.offsets import (
    Mark,
    Place,
    from_json,
    marks_from_json,
    names,
    parse_assign,
    parse_place,
    parse_timestamps,
    parse_topics,
    to_json,
)
from rocketcrew.source.options import BATCH, OPTIONS, STREAM, WRITE, flag_of, parse_options
from rocketcrew.source.reading import read_options

SERVER = {"nameServer": "10.0.0.5:9876"}
A0, A1, B0 = (MessageQueue("t", broker, queue) for broker, queue in (("a", 0), ("a", 1), ("b", 0)))


def test_names_have_no_case_and_may_carry_the_prefix() -> None:
    found = parse_options({"SUBSCRIBE": "t", "rocketmq.nameserver": "h:1", "checkpointLocation": "/x"}, BATCH)
    assert (found["subscribe"], found["nameServer"], found["failOnDataLoss"]) == ("t", "h:1", True)
    with pytest.raises(UsageError, match="one and the same"):
        parse_options({"nameserver": "h:1", "rocketmq.nameServer": "h:2"}, BATCH)
    assert parse_options({"nameserver": "h:1", "rocketmq.nameServer": "h:1"}, BATCH)["nameServer"] == "h:1"


@pytest.mark.parametrize(
    ("given", "where", "said"),
    [
        ({"startingOfsets": "earliest"}, BATCH, "option startingOfsets is unknown: did you mean startingOffsets?"),
        ({"qqqq": "1"}, BATCH, "known are nameServer"),
        ({"path": "t"}, BATCH, "there is no path"),
        ({"option.subscribe": "t"}, BATCH, "take CREATE TEMPORARY VIEW name USING rocketmq OPTIONS (...)"),
        ({"owner": "me"}, BATCH, "take CREATE TEMPORARY VIEW"),
        ({"endingOffsets": "latest"}, STREAM, "means nothing to a stream: it is for a batch read"),
        ({"maxOffsetsPerTrigger": "5"}, BATCH, "means nothing to a batch read: it is for a stream"),
        ({"subscribe": "t"}, WRITE, "it is for a batch read or a stream"),
        ({"failOnDataLoss": "yes"}, BATCH, "option failOnDataLoss: 'yes' is neither true nor false"),
        ({"minPartitions": "0"}, BATCH, "no whole number from 1 to 1000000"),
        ({"maxTriggerDelay": "soon"}, STREAM, "no time such as 500ms, 30s, 15m or 1h"),
        ({"startingOffsetsByTimestampStrategy": "x"}, BATCH, "is none of error, latest"),
        ({"nameServer": " "}, BATCH, "is empty"),
        (
            {"startingTimestamp": "1760000000"},
            STREAM,
            "'1760000000' looks like seconds, and is milliseconds since 1970",
        ),
        ({"endingTimestamp": "1760000000"}, BATCH, "give 1760000000000, or 0"),
    ],
)
def test_what_is_wrong_is_named_with_what_to_do(given: dict[str, str], where: str, said: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse_options(given, where)
    assert str(raised.value).startswith("rocketmq: ")
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_every_default_is_what_its_own_parser_gives() -> None:
    for name, option in OPTIONS.items():
        if option.default is not None and not isinstance(option.default, int):
            assert isinstance(option.default, str), name
        if isinstance(option.default, int) and not isinstance(option.default, bool) and name != "maxTriggerDelay":
            assert option.parse(str(option.default)) == option.default


def test_name_servers_that_nobody_has_met_yet_are_not_waited_for_as_a_stream_waits() -> None:
    given = {"subscribe": "t"}
    first = read_options(given, streaming=True)
    assert (first.retries, first.first_retries) == (60, 3)
    told = read_options(given | {"numRetries": "7"}, streaming=True)
    assert (told.retries, told.first_retries) == (7, 7)


def test_an_option_of_a_group_needs_one() -> None:
    for given in ({"reportGroupOffsets": "true"}, {"newQueues": "group"}):
        with pytest.raises(UsageError, match="give option group too"):
            read_options({"subscribe": "t"} | given, streaming=True)


def test_one_flag_before_the_others() -> None:
    assert flag_of({"includeBody": "FALSE", "minPartitions": "nonsense"}, "includeBody", STREAM) is False
    assert flag_of({}, "includeBody", STREAM) is True


# The connection.


def test_the_access_has_servers_keys_tls_and_the_namespace_of_the_end_point() -> None:
    access = access_of(
        {"nameServer": "a:1, b:2;c:3", "accessKey": "me", "secretKey": "s3", "securityToken": "tk", "tlsEnable": "true",
         "tlsTrustCertPath": "/ca.pem", "tlsCheckHostname": "true", "requestTimeoutMs": "7000"}, STREAM)  # fmt: skip
    assert access.name_servers == ("a:1", "b:2", "c:3")
    assert access.credentials == Credentials("me", "s3", "tk")
    assert access.tls == TlsOptions(trust_cert_path="/ca.pem", check_hostname=True)
    assert access.request_timeout_ms == 7000
    assert access_of({"nameServer": "MQ_INST_1_a.example.com:80"}, BATCH).namespace == "MQ_INST_1_a"
    assert access_of({"namesrvDomain": "ns.example.com"}, BATCH).name_servers == ()


@pytest.mark.parametrize("server", ["http://h:1", "http://h:01/", " h:1 ; h:1", "h:1,h:01"])
def test_a_name_server_as_the_setting_takes_it(server: str) -> None:
    assert access_of({"nameServer": server}, BATCH).name_servers == ("h:1",)


@pytest.mark.parametrize("server", ["/h:1", "x@h:1", "é:1", "::1:9876", "[h]:1", "g:2;a b:1"])
def test_a_name_server_that_the_setting_refuses(server: str) -> None:
    with pytest.raises(UsageError, match=r"^rocketmq: option nameServer: "):
        access_of({"nameServer": server}, BATCH)


def test_keys_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("AccessKey=me\nSecretKey=s3\n")
    assert access_of({**SERVER, "keyFile": str(file)}, WRITE).credentials == Credentials("me", "s3")
    file.write_bytes(b"\xff")
    with pytest.raises(UsageError, match="is not UTF-8"):
        access_of({**SERVER, "keyFile": str(file)}, WRITE)
    os.mkfifo(tmp_path / "fifo")  # to open one for reading would wait for a writer
    with pytest.raises(UsageError, match=r"option keyFile [^ ]*fifo is no regular file$"):
        access_of({**SERVER, "keyFile": str(tmp_path / "fifo")}, WRITE)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "option nameServer is missing"),
        ({"nameServer": "nowhere"}, "option nameServer: address 'nowhere' is not host:port"),
        ({"nameServer": ";"}, "names no server"),
        ({"namesrvDomain": "a b"}, "option namesrvDomain"),
        ({**SERVER, "accessKey": "me"}, "secretKey is missing"),
        ({**SERVER, "secretKey": "me"}, "accessKey is missing"),
        ({**SERVER, "keyFile": "/no/such/file"}, "cannot be read"),
        ({**SERVER, "tlsCertPath": "/x"}, "tlsEnable is not: set it to true"),
    ],
)
def test_a_wrong_connection(given: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match="rocketmq: ") as raised:
        access_of(given, BATCH)
    assert said in str(raised.value)


# What is read, and from where.


def test_offsets_come_and_go_as_json() -> None:
    spec = parse_place("startingOffsets", '{"t": {"a": {"0": 5, "1": -1}, "b": {"0": -2}}}')
    assert (spec.place, dict(spec.values)) == (Place.OFFSETS, {A0: 5, A1: -1, B0: -2})
    told = {A1: 9, A0: 3}
    assert to_json(told) == {"t": {"a": {"0": 3, "1": 9}}}
    assert from_json(to_json(told)) == told
    assert from_json({}) == {}
    marks = {A0: Mark(2, 1_760_000_000_000)}
    marked = json.loads(json.dumps(to_json(told, marks, "crew")))
    assert (from_json(marked), marks_from_json(marked), marks_from_json(to_json(told))) == (told, marks, {})
    assert parse_place("x", json.dumps(marked)).values == told, "so what a checkpoint has can be given to a query"
    assert parse_place("x", " Earliest ").place is Place.EARLIEST
    assert parse_place("x", "group").place is Place.GROUP
    assert parse_timestamps("x", '{"t": {"a": {"0": 1700000000000}}}').timestamp_of(A0) == 1_700_000_000_000
    assert parse_assign('{"t": {"b": [0], "a": [1, 0, 1]}}') == (A0, A1, B0)
    assert parse_topics(" x, y,,x ") == ("x", "y")
    assert names([A0, A1], most=1) == "queue 0 of topic t on a and 1 more"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("newest", "is none of earliest, latest, group"),
        ("{", "is no JSON"),
        ("{}", "is no object of topics"),
        ('{"t": 5}', "no object of brokers for topic t"),
        ('{"t": {"a": [1]}}', 'no object such as {"0": 23} for broker a of topic t'),
        ('{"t": {"a": {"x": 1}}}', "holds 'x' where a queue id should stand"),
        ('{"t": {"a": {"0": -3}}}', "holds -3 for queue 0 of t on a: give an offset"),
        ('{"t": {"a": {"0": "1"}}}', "holds '1'"),
        ('{"t": {"a": {"0": true}}}', "holds True"),
        ('{"a b": {"a": {"0": 1}}}', "illegal characters"),
    ],
)
def test_wrong_offsets(value: str, said: str) -> None:
    with pytest.raises(UsageError, match="rocketmq: option startingOffsets: ") as raised:
        parse_place("startingOffsets", value)
    assert said in str(raised.value)


def test_a_whole_read() -> None:
    batch = read_options(
        {"subscribe": "x,y", "tags": "a || b", "group": "g", "startingOffsets": "group"}, streaming=False
    )
    assert (batch.topics, batch.tags) == (("x", "y"), {"a", "b"})
    assert (batch.starting.place, batch.ending.place) == (Place.GROUP, Place.LATEST)
    assert not batch.report_group_offsets
    stream = read_options({"assign": '{"t": {"a": [0]}}', "group": "g", "maxOffsetsPerTrigger": "9"}, streaming=True)
    assert (stream.assigned, stream.topics, stream.starting.place) == ((A0,), ("t",), Place.LATEST)
    assert (stream.report_group_offsets, stream.max_trigger_delay_ms) == (True, 900_000)
    assert not read_options({"subscribe": "x"}, streaming=True).report_group_offsets
    consumed = {"subscribe": "x", "startingOffsets": "group", "group": "g"}
    assert not read_options(consumed, streaming=True).report_group_offsets
    assert read_options(consumed | {"reportGroupOffsets": "true"}, streaming=True).report_group_offsets
    overridden = read_options(consumed | {"startingTimestamp": "0", "startingOffsets": " Group"}, streaming=True)
    assert (overridden.kept_group, overridden.report_group_offsets) == ("g", False), "the time only wins"
    assert (batch.retries, stream.retries, batch.pull_group) == (3, 60, "TOOLS_CONSUMER")
    assert read_options({"subscribe": "x", "numRetries": "0", "pullGroup": "p"}, streaming=True).retries == 0
    timed = read_options({"subscribe": "x", "startingTimestamp": "0", "startingOffsets": "earliest"}, streaming=False)
    assert (timed.starting.place, timed.starting.timestamp_ms) == (Place.TIMESTAMP, 0)


@pytest.mark.parametrize(
    ("given", "streaming", "said"),
    [
        ({}, False, "none is given"),
        ({"subscribe": "x", "assign": "{}"}, False, "subscribe and assign are given"),
        ({"subscribe": "x", "subscribePattern": "y"}, True, "subscribe and subscribePattern are given"),
        ({"subscribePattern": "orders("}, True, "option subscribePattern: 'orders(' is no regular expression"),
        ({"subscribe": ","}, False, "names no topic"),
        ({"subscribe": "x", "startingOffsets": "latest"}, False, "cannot begin at latest"),
        ({"subscribe": "x", "endingOffsets": "earliest"}, False, "cannot end at earliest"),
        (
            {"subscribe": "x", "startingTimestamp": "1760000000001", "endingTimestamp": "1760000000000"},
            False,
            "exchange them",
        ),
        (
            {"subscribe": "x", "startingOffsetsByTimestamp": '{"x": {"a": {"0": 1760000000}}}'},
            False,
            "holds 1760000000 for queue 0 of topic x on a, which looks like seconds",
        ),
        ({"subscribe": "x", "startingOffsets": "group"}, True, "but which? give option group"),
        ({"subscribe": "x", "group": "a b"}, True, "option group: 'a b' is wrong"),
        ({"subscribe": "x", "tags": "||"}, True, "option tags"),
        ({"subscribe": "x", "tags": "a||"}, True, "option tags: 'a||' has no tag on one side of ||"),
        ({"subscribe": "x", "tags": "a || || b"}, False, "has no tag on one side of ||"),
        ({"subscribe": "x", "tags": "SQL92:price > 3"}, True, "option tags: 'SQL92:price > 3' is an SQL92 filter"),
        ({"subscribe": "x", "tags": "sql92: a = 1"}, False, "leave the option out and filter rows"),
        ({"subscribe": "x", "minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "5"}, True, "no batch could be both"),
    ],
)
def test_a_read_that_cannot_be(given: dict[str, str], streaming: bool, said: str) -> None:
    with pytest.raises(UsageError, match="rocketmq: ") as raised:
        read_options(given, streaming)
    assert said in str(raised.value)


def test_secrets_are_in_no_message() -> None:
    with pytest.raises(UsageError) as raised:
        parse_options({"secretKey": "hush", "rocketmq.secretKey": "other"}, BATCH)
    assert "hush" not in str(raised.value)
