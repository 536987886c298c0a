"""Check points of popped messages."""

from __future__ import annotations

import pytest

from rocketcrew.remoting.check_points import CheckPoint, check_point_of, real_topic, start_offsets
from rocketcrew.remoting.errors import ProtocolError
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


def test_of_a_record():
    header = PopResponse(pop_time=5, invisible_time=6, revive_qid=7, rest_num=0)
    plain = encode_message(StoredMessage("T", b"x", queue_id=2, queue_offset=104))
    assert check_point_of(plain, 0, header, {("0", 2): 100}, "broker-a").encode() == "100 5 6 7 0 broker-a 2 104"
    properties = encode_properties({"POP_CK": TEXT.replace(" 3 0 ", " 3 1 ")}).encode()
    retried = encode_message(StoredMessage("T", b"x", properties, queue_id=0, queue_offset=1))
    assert check_point_of(retried, 0, header, {}, "broker-a") == CheckPoint.decode(TEXT.replace(" 3 0 ", " 3 1 "))


def test_assignments_of_a_broker():
    mq = '{"brokerName":"broker-a","queueId":-1,"topic":"T"}'
    text = f'{{"messageQueueAssignments":[{{"attachments":null,"messageQueue":{mq},"mode":"POP"}}]}}'
    (found,) = QueryAssignmentResponse.decode(text.encode()).message_queue_assignments
    assert (found.message_queue, found.mode) == (MessageQueue("T", "broker-a", -1), "POP")
    assert QueryAssignmentResponse.decode(b"{}").message_queue_assignments is None
