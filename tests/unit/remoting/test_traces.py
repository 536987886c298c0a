"""Trace records, byte by byte as Java's TraceDataEncoder writes them."""

from __future__ import annotations

from rocketcrew.remoting.traces import (
    ConsumeReturn,
    MessageType,
    TracedMessage,
    end_transaction_record,
    pub_record,
    recall_record,
    sub_after_record,
    sub_before_record,
)

from .trace_records import split_records

PUB = {
    "timestamp_ms": 1700, "region": "DefaultRegion", "group": "g", "topic": "T", "message_id": "M1", "tags": "red",
    "keys": "k1 k2", "store_host": "127.0.0.1:10911", "body_bytes": 5, "cost_ms": 3, "kind": MessageType.DELAY,
    "offset_message_id": "O1", "success": True,
}  # fmt: skip
TWO = [TracedMessage("M1", "k1 k2", 0), TracedMessage("M2", "", 2)]


def fields(*values):
    return "\x01".join(values) + "\x02"


def test_pub():
    record = pub_record(**PUB)
    assert record.text == fields(
        "Pub", "1700", "DefaultRegion", "g", "T", "M1", "red", "k1 k2", "127.0.0.1:10911", "5", "3", "3", "O1", "true"
    )
    assert record.keys == ("M1", "k1", "k2")


def test_what_is_not_there_is_null():
    record = pub_record(**PUB | {"tags": "", "keys": "", "success": False})
    assert split_records(record.text)[0][6:8] == ["null", "null"]
    assert record.text.endswith("false\x02")
    assert record.keys == ("M1",)


def test_sub_before_has_a_record_for_each_message():
    record = sub_before_record(timestamp_ms=5, region="R", group="g", request_id="Q", messages=TWO)
    assert record.text == fields("SubBefore", "5", "R", "g", "Q", "M1", "0", "k1 k2") + fields(
        "SubBefore", "5", "R", "g", "Q", "M2", "2", "null"
    )
    assert record.keys == ("M1", "k1", "k2", "M2")


def test_sub_after():
    record = sub_after_record(
        timestamp_ms=9, group="g", request_id="Q", cost_ms=4, success=False, code=ConsumeReturn.FAILED, messages=TWO[:1]
    )
    assert record.text == fields("SubAfter", "Q", "M1", "4", "false", "k1 k2", "4", "9", "g")


def test_end_transaction_and_recall():
    record = end_transaction_record(
        timestamp_ms=1, region="R", group="g", topic="T", message_id="M", tags="", keys="k", store_host="h:1",
        transaction_id="X", state="COMMIT_MESSAGE", from_check=True,
    )  # fmt: skip
    assert record.text == fields(
        "EndTransaction", "1", "R", "g", "T", "M", "null", "k", "h:1", "2", "X", "COMMIT_MESSAGE", "true"
    )
    recalled = recall_record(timestamp_ms=1, region="R", group="g", topic="T", message_id="M", success=True)
    assert recalled.text == fields("Recall", "1", "R", "g", "T", "M", "true")


def test_an_id_with_blanks_is_several_keys_as_brokers_divide_it():
    assert pub_record(**PUB | {"message_id": "order 1"}).keys == ("order", "1", "k1", "k2")
    recalled = recall_record(timestamp_ms=1, region="R", group="g", topic="T", message_id="order 1", success=True)
    assert recalled.keys == ("order", "1")


def test_separators_in_values_do_no_harm():
    record = pub_record(**PUB | {"keys": "a\x01b\x02c"})
    assert len(split_records(record.text)) == 1
    assert len(split_records(record.text)[0]) == 14
