from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketcrew.remoting import admin_headers, headers
from rocketcrew.remoting.errors import ProtocolError
from rocketcrew.remoting.fields import Header, camel_case
from rocketcrew.remoting.headers import (
    OffsetResponse,
    PullRequest,
    PullResponse,
    SendBack,
    SendRequest,
    SendRequestV2,
    Unregister,
)

from .header_index import REQUEST_HEADERS, RESPONSE_HEADERS

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "str": st.text(max_size=8),
    "Int32": st.integers(-(1 << 31), (1 << 31) - 1),
    "Int64": st.integers(-(1 << 63), (1 << 63) - 1),
    "bool": st.booleans(),
}
EVERY = sorted(
    {
        cls
        for module in (headers, admin_headers)
        for cls in vars(module).values()
        if isinstance(cls, type) and issubclass(cls, Header) and cls is not Header
    },
    key=lambda cls: cls.__name__,
)


def any_of(cls: type[Header]) -> st.SearchStrategy[Header]:
    arguments: dict[str, st.SearchStrategy[Any]] = {}
    for item in fields(cls):  # type: ignore[arg-type]
        kind, _, optional = str(item.type).partition(" | ")
        arguments[item.name] = st.none() | VALUES[kind] if optional else VALUES[kind]
    return st.builds(cls, **arguments)


@pytest.mark.parametrize("cls", EVERY, ids=lambda cls: cls.__name__)
@settings(max_examples=15)
@given(data=st.data())
def test_round_trip(cls: type[Header], data: st.DataObject) -> None:
    header = data.draw(any_of(cls))
    written = header.to_fields()
    assert all(isinstance(value, str) for value in written.values())
    assert cls.from_fields(written) == header
    assert cls.from_fields({**written, "somethingNew": "1"}) == header


def test_every_header_is_in_the_index() -> None:
    assert set(EVERY) == {*REQUEST_HEADERS.values(), *RESPONSE_HEADERS.values()}


@pytest.mark.parametrize("cls", EVERY, ids=lambda cls: cls.__name__)
def test_missing_fields_are_named(cls: type[Header]) -> None:
    required = [item for item in fields(cls) if item.default.__class__.__name__ == "_MISSING_TYPE"]  # type: ignore[arg-type]
    if not required:
        cls.from_fields({})
        return
    with pytest.raises(ProtocolError, match="is missing") as caught:
        cls.from_fields({})
    assert caught.value.where == f"{cls.__name__} header"
    assert caught.value.what == f"{cls.WIRE.get(required[0].name, camel_case(required[0].name))} is missing"


@pytest.mark.parametrize(
    "text",
    ["x", "1.0", "1_0", " 1", "1 ", "0x1", "--1", "9223372036854775808", "-9223372036854775809", "9" * 5000, "١"],
)
def test_bad_numbers_are_named(text: str) -> None:
    with pytest.raises(ProtocolError, match=r"offset is .* not an int64") as caught:
        OffsetResponse.from_fields({"offset": text})
    assert len(str(caught.value)) < 150


def test_numbers_as_java_reads_them() -> None:
    for text, value in (("+5", 5), ("-0", 0), ("007", 7), ("9223372036854775807", (1 << 63) - 1), ("-1", -1)):
        assert OffsetResponse.from_fields({"offset": text}).offset == value


def test_ranges_and_booleans() -> None:
    good = SendBack(1, "g", 3).to_fields()
    with pytest.raises(ProtocolError, match="delayLevel is '2147483648', not an int32"):
        SendBack.from_fields({**good, "delayLevel": "2147483648"})
    with pytest.raises(ProtocolError, match="unitMode is 'yes', not true or false"):
        SendBack.from_fields({**good, "unitMode": "yes"})
    assert SendBack.from_fields({**good, "unitMode": "TRUE"}).unit_mode is True


def test_empty_values_are_as_if_absent() -> None:
    assert SendBack.from_fields({"offset": "1", "group": "", "delayLevel": "0", "unitMode": ""}) == SendBack(1, "", 0)
    with pytest.raises(ProtocolError, match="offset is missing"):
        OffsetResponse.from_fields({"offset": ""})


def test_letters_of_a_send() -> None:
    arguments: dict[str, Any] = {
        "producer_group": "g",
        "topic": "t",
        "default_topic": "TBW102",
        "default_topic_queue_nums": 4,
        "queue_id": -1,
        "sys_flag": 0,
        "born_timestamp": 5,
        "flag": 0,
        "properties": "a\x01b\x02",
        "batch": True,
    }
    assert SendRequestV2(**arguments).to_fields() == {
        "a": "g",
        "b": "t",
        "c": "TBW102",
        "d": "4",
        "e": "-1",
        "f": "0",
        "g": "5",
        "h": "0",
        "i": "a\x01b\x02",
        "m": "true",
    }
    assert list(SendRequest(**arguments).to_fields())[:4] == [
        "producerGroup",
        "topic",
        "defaultTopic",
        "defaultTopicQueueNums",
    ]


def test_odd_names_are_as_on_the_wire() -> None:
    assert Unregister("c", consumer_group="g").to_fields() == {"clientID": "c", "consumerGroup": "g"}
    pull = PullRequest("g", "t", 0, 1, 32, 2, 0, 15000, 9, proxy_forward_client_id="p", broker_name="b")
    assert pull.to_fields()["proxyFrowardClientId"] == "p"
    assert pull.to_fields()["bname"] == "b"
    assert "isForce" in headers.ResetOffset("t", "g", -1, True).to_fields()


def test_headers_are_frozen() -> None:
    with pytest.raises(AttributeError):
        PullResponse(0, 1, 2, 3).min_offset = 4  # type: ignore[misc]
