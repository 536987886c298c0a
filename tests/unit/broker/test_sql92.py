"""SQL92 filters: the genuine broker's grammar and its three-valued logic, and pulls, holds and heartbeats with them."""

from __future__ import annotations

import pytest

from rocketcrew.broker.sql92 import compile_sql
from rocketcrew.remoting.bodies import CheckClientConfig, ConsumerData, HeartbeatData, SubscriptionData
from rocketcrew.remoting.codes import RequestCode, ResponseCode
from rocketcrew.remoting.errors import UsageError
from rocketcrew.remoting.stored import StoredMessage, decode_messages

PROPERTIES = {"a": "5", "b": "x", "c": "2.5", "t": "true", "$d_1": "it's"}


@pytest.mark.parametrize(
    ("expression", "wanted"),
    [
        ("a > 3", True), ("a>5", False), ("a >= 5", True), ("a < 5.5", True), ("3 < a", True), ("a <= 4", False),
        ("b = 'x'", True), ("b <> 'y'", True), ("z <> 'y'", False), ("z = 'y'", False), ("$d_1 = 'it''s'", True),
        ("z IS NULL", True), ("z is not null", False), ("a IS NOT NULL", True),
        ("b IN ('x', 'q')", True), ("b NOT IN ('x')", False), ("z NOT IN ('x')", False),
        ("a BETWEEN 1 AND 5", True), ("a NOT BETWEEN 6 AND 9", True), ("a NOT BETWEEN 1 AND 9", False),
        ("a BETWEEN 1 AND 9 AND b = 'x'", True),
        ("c > 2", False),  # 2.5 is no whole number
        ("c > 2.0", True), ("c = 2.5", True), ("a = 5L", True), ("a = 5.0", True), ("b > 1", False),
        ("a > c", True), ("a > b", False), ("a > -3", True), ("a > +3", True), ("-a > 3", False),
        ("t = TRUE", True), ("t = FALSE", False), ("b = FALSE", True), ("t", False), ("NOT t", True), ("NOT z", False),
        ("TRUE", True), ("FALSE OR TRUE", True), ("NULL", False),
        ("z = 'y' OR b = 'x'", True), ("z = 'y' AND b = 'x'", False), ("NOT (z = 'y' AND b = 'q')", True),
        ("NOT (z = 'y' OR b = 'q')", False), ("a = 1 OR b = 'x' AND c = 2.5", True),
        ("b CONTAINS 'x'", True), ("b NOT CONTAINS 'y'", True), ("z NOT CONTAINS 'y'", False),
        ("b contains ''", False), ("b STARTSWITH 'x'", True), ("b NOT ENDSWITH 'x'", False),
        ("a/* five */ = 5 -- and nothing else", True), ("A = 5", False),
        ("a = 2147483648", False), ("a < 9223372036854775807", True),
    ],
)  # fmt: skip
def test_what_is_wanted(expression: str, wanted: bool) -> None:
    assert compile_sql(expression)(PROPERTIES) is wanted


@pytest.mark.parametrize(
    ("expression", "wrong"),
    [
        ("", "character 1, where 'the end'"), ("a >", "expected at character 4"), ("a > 'x'", "cannot be compared"),
        ("a = NULL", "use IS NULL"), ("5", "boolean value"), ("'x'", "boolean value"), ("a LIKE 'x'", "'LIKE' stands"),
        ("3 IN ('x')", "property is expected"), ("a IN (3)", "text is expected"), ("a BETWEEN 5 AND 1", "less than"),
        ("(a = 1", r"\) is expected"), ("a = 1)", "operator is expected"), ("a # b", "nothing begins with '#'"),
        ("a + 1 = 2", "operator is expected"), ("a = 9223372036854775808", "too large"), ("a IS 5", "NULL is expected"),
        ("(" * 200 + "a = 1" + ")" * 200, "nested deeper than 64"), ("a = 'x", "nothing begins with"),
        ("a = 1 AND " * 2000 + "a = 1", "more than 16384 characters"), ("(a = 1) > 2", "cannot be compared"),
    ],
)  # fmt: skip
def test_what_is_no_expression_is_told_with_its_place(expression: str, wrong: str) -> None:
    with pytest.raises(UsageError, match=wrong):
        compile_sql(expression)


def send_some(broker):
    for price in (1, 5, 9):
        broker.send(properties={"price": str(price)}, body=str(price).encode())


def test_a_pull_brings_what_is_wanted_and_passes_the_rest(broker):
    send_some(broker)
    answer = broker.pull(expression_type="SQL92", tags="price > 3")
    assert (answer.code, answer.fields["nextBeginOffset"]) == (0, "3")
    assert [message.body for message in decode_messages(answer.body)] == [b"5", b"9"]
    answer = broker.pull(expression_type="SQL92", tags="price > 10")
    assert (answer.code, answer.fields["nextBeginOffset"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "3")
    answer = broker.pull(expression_type="SQL92", tags="price >")
    assert (answer.code, "parse the consumer's subscription failed" in answer.remark) == (23, True)
    assert broker.pull(expression_type="XPATH", tags="x").code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


def test_properties_that_are_no_utf8_stop_no_pull(broker):
    broker.send()
    broker.core.state.store.put(
        broker.now_ms, StoredMessage("T", b"odd", b"K\x01\xff\x02price\x015\x02", queue_id=0), 0
    )
    answer = broker.pull(expression_type="SQL92", tags="price > 3")
    assert (answer.code, [message.body for message in decode_messages(answer.body)]) == (0, [b"odd"])


def test_a_held_pull_waits_for_what_it_wants(broker, tools):
    broker.send()
    held = broker.hold(1, expression_type="SQL92", tags="price > 3")
    broker.send(properties={"price": "1"})
    assert len(broker.effects) == 1
    broker.send(properties={"price": "4"})
    answer = tools.replies(broker.effects)[1][1]
    assert (answer.opaque, answer.code, len(decode_messages(answer.body))) == (held, 0, 1)


def test_the_groups_subscription_counts_and_the_retry_topic_is_not_filtered(broker):
    send_some(broker)
    data = (SubscriptionData.of("T", "price BETWEEN 2 AND 6", 1, "SQL92"), SubscriptionData.of("%RETRY%g", "*", 1))
    broker.call(
        RequestCode.HEART_BEAT, body=HeartbeatData("c", (), (ConsumerData("g", subscription_data_set=data),)).encode()
    )
    answer = broker.pull(sys_flag=0, expression_type="SQL92")
    (message,) = decode_messages(answer.body)
    assert message.body == b"5"
    broker.send_back(message)
    broker.later(60_000)
    assert broker.pull(topic="%RETRY%g", sys_flag=0).code == 0


@pytest.mark.parametrize(("expression", "code"), [("a > 1", 0), ("a >", ResponseCode.SUBSCRIPTION_PARSE_FAILED)])
def test_clients_ask_before_they_subscribe(broker, expression, code):
    body = CheckClientConfig("c1", "g", SubscriptionData.of("T", expression, 1, "SQL92")).encode()
    assert broker.call(RequestCode.CHECK_CLIENT_CONFIG, body=body).code == code


def test_a_long_chain_is_evaluated_without_nesting():
    """1,500 terms ended in a RecursionError inside of the request of whoever sent a message."""
    wanted = compile_sql(" OR ".join([f"a={number}" for number in range(1_500)]))
    assert wanted({"a": "1499"})
    assert not wanted({"a": "none"})
    wanted = compile_sql(" AND ".join(["a>1"] * 2_000))
    assert wanted({"a": "2"})
    assert not wanted({})


@pytest.mark.parametrize("chain", ["a" + " = b" * 500, "a" + " CONTAINS 'x'" * 500, "a" + " IS NULL" * 500])
def test_what_nests_too_deep_is_refused_when_it_is_read(chain):
    with pytest.raises(UsageError, match="nested deeper"):
        compile_sql(chain)


@pytest.mark.parametrize("digits", ["9223372036854775808", "1" * 20, "1" * 5_000, "1" * 5_000 + "L"])
def test_a_number_that_no_long_can_be_is_refused_however_many_digits_it_has(broker, digits):
    """Of more than 4,300 digits Python makes no number; that ended the request without an answer."""
    broker.send()
    answer = broker.pull(tags=f"a = {digits}", expression_type="SQL92")
    assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert "is too large" in answer.remark
