"""Check points of popped messages."""

from __future__ import annotations

import pytest

from rocketcrew.remoting.check_points import CheckPoint, check_point_of, real_topic, start_offsets
from rocketcrew.remoting.errors import ProtocolError
from rocketcrew.remoting.names import popped_topic
from rocketcrew.remoting.pop_headers import PopResponse, QueryAssignmentResponse
from rocketcrew.remoting.properties import encode_properties
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.remoting.stored import StoredMessage, encode_message

TEXT = "100 1700000000000 60000 3 0 broker-a 2 104"


def test_round_trip():
    check = CheckPoint.decode(TEXT)
    assert check == CheckPoint(100, 1_700_000_000_000, 60_000, 3, "0", "broker-a", 2, 104)
    assert check.encode() == TEXT


@pytest.mark.parametrize("text", ["", "1 2 3", TEXT.replace("100", "x"), TEXT.rpartition(" ")[0]])
def test_what_is_none_is_refused(text):
    with pytest.raises(ProtocolError, match="is no check point"):
        CheckPoint.decode(text)


@pytest.mark.parametrize(("mark", "topic"), [("0", "T"), ("1", "%RETRY%g_T"), ("2", "%RETRY%g+T")])
def test_retry_topics(mark, topic):
    assert real_topic("T", "g", mark) == topic
    assert popped_topic(topic, "g") == "T"
    check = CheckPoint.decode(TEXT.replace(" 3 0 ", f" 3 {mark} "))
    assert check.queue("T", "g") == MessageQueue(topic, "broker-a", 2)


def test_a_renewed_one_begins_at_the_message():
    check = CheckPoint.decode(TEXT).renewed(5, 6, 7)
    assert check.encode() == "104 5 6 7 0 broker-a 2 104"


def test_start_offsets():
    assert start_offsets("0 2 100;1 0 7") == {("0", 2): 100, ("1", 0): 7}
    assert start_offsets("") == {}
    with pytest.raises(ProtocolError, match="startOffsetInfo"):
        start_offsets("0 2")


def made_of(*records, starts):
    """The check points of records that one pop of T brought, as texts."""
    header, found = PopResponse(5, 6, 7, 0, starts), start_offsets(starts or "")
    mq = MessageQueue("T", "broker-a", -1)
    return [check_point_of(encode_message(record), 0, header, found, mq, "g").encode() for record in records]


def test_of_a_record():
    plain = StoredMessage("T", b"x", queue_id=2, queue_offset=104)
    assert made_of(plain, starts="0 2 100") == ["100 5 6 7 0 broker-a 2 104"]
    text = TEXT.replace(" 3 0 ", " 3 1 ")
    retried = StoredMessage("T", b"x", encode_properties({"POP_CK": text}).encode(), queue_id=0, queue_offset=1)
    assert made_of(retried, starts="0 2 100") == [text]


@pytest.mark.parametrize(("mark", "topic"), [("1", "%RETRY%g_T"), ("2", "%RETRY%g+T")])
def test_of_a_retry_that_is_given_out_as_it_is_stored(mark, topic):
    """Under its retry topic, without a text of its own; a new message has the same place in its own topic."""
    records = [StoredMessage(name, b"x", queue_id=0, queue_offset=9) for name in (topic, "T")]
    assert made_of(*records, starts=f"0 0 4;{mark} 0 7") == [
        f"7 5 6 7 {mark} broker-a 0 9",
        "4 5 6 7 0 broker-a 0 9",
    ]


@pytest.mark.parametrize("starts", ["0 1 4", "1 0 4", "2 0 4;0 1 4"])
@pytest.mark.parametrize("topic", ["T", "Other", "%RETRY%g-T", "%RETRY%other_T"])
def test_a_record_of_a_queue_that_its_answer_does_not_name_is_refused(topic, starts):
    with pytest.raises(ProtocolError, match=f"no pop of T began in queue 0 of {topic}: '{starts}'"):
        made_of(StoredMessage(topic, b"x"), starts=starts)


def test_an_answer_that_names_no_queue_begins_at_the_first_record_of_each():
    records = [StoredMessage(name, b"x", queue_offset=at) for name, at in (("T", 3), ("T", 4), ("%RETRY%g_T", 1))]
    assert made_of(*records, starts=None) == [
        "3 5 6 7 0 broker-a 0 3", "3 5 6 7 0 broker-a 0 4", "1 5 6 7 1 broker-a 0 1"
    ]  # fmt: skip
    with pytest.raises(ProtocolError, match="no pop of T began in queue 0 of Other"):
        made_of(StoredMessage("Other", b"x"), starts=None)


def test_assignments_of_a_broker():
    mq = '{"brokerName":"broker-a","queueId":-1,"topic":"T"}'
    text = f'{{"messageQueueAssignments":[{{"attachments":null,"messageQueue":{mq},"mode":"POP"}}]}}'
    (found,) = QueryAssignmentResponse.decode(text.encode()).message_queue_assignments
    assert (found.message_queue, found.mode) == (MessageQueue("T", "broker-a", -1), "POP")
    assert QueryAssignmentResponse.decode(b"{}").message_queue_assignments is None
