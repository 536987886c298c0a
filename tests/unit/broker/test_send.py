"""SEND_MESSAGE in its three forms: topics made on first use, queues, properties, limits, the retry topic."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rocketcrew.broker.storage import MemoryStorage, StorageError
from rocketcrew.client.outgoing import BATCH_MAX
from rocketcrew.remoting.admin_headers import CreateTopic
from rocketcrew.remoting.batch import encode_batch
from rocketcrew.remoting.bodies import LockBatch
from rocketcrew.remoting.codes import FLAG_ONEWAY, RequestCode, ResponseCode
from rocketcrew.remoting.headers import GetRoute, SendRequest, SendResponse
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.remoting.stored import parse_offset_message_id


def test_v2_answer_and_record(broker):
    answer = broker.send(
        body=b"hello", tag="a", properties={"KEYS": "k1 k2", "UNIQ_KEY": "U" * 32, "mine": "红"}, flag=7
    )
    response = SendResponse.from_fields(answer.fields)
    assert (answer.code, response.queue_id, response.queue_offset, response.transaction_id) == (0, 0, 0, "U" * 32)
    assert (response.region_id, response.trace_on) == ("DefaultRegion", True)
    assert list(answer.fields.items()) == list(response.to_fields().items()), "written out for speed, and the same"
    (message,) = broker.read()
    assert response.msg_id == message.offset_message_id
    assert parse_offset_message_id(response.msg_id).physical_offset == message.physical_offset
    assert (message.body, message.flag, message.born_timestamp_ms) == (b"hello", 7, broker.now_ms - 1)
    assert (message.born_host, message.born_port, message.store_port) == ("127.0.0.1", 40001, 10911)
    assert dict(message.properties) == {
        "TAGS": "a",
        "KEYS": "k1 k2",
        "UNIQ_KEY": "U" * 32,
        "mine": "红",
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
        "CLUSTER": "DefaultCluster",
    }


def test_the_answer_with_a_recall_handle_is_what_its_header_would_write(broker):
    answer = broker.send(properties={"TIMER_DELAY_MS": "60000"})
    response = SendResponse.from_fields(answer.fields)
    assert response.recall_handle
    assert list(answer.fields.items()) == list(response.to_fields().items())


def test_v1(broker):
    header = SendRequest("pg", "T", "TBW102", 4, 2, 0, 5, 0, "TAGS\x01a\x02")
    answer = broker.call(RequestCode.SEND_MESSAGE, header, b"one")
    assert (answer.code, answer.fields["queueId"]) == (0, "2")
    assert broker.read(queue_id=2)[0].body == b"one"


def test_a_unique_id_is_made_when_missing(broker):
    first, second = broker.send().fields["transactionId"], broker.send().fields["transactionId"]
    assert len(first) == 32
    assert first != second


def test_oneway_stores_and_says_nothing(broker):
    broker.send()
    header = SendRequest("pg", "T", "TBW102", 4, 0, 0, 5, 0, None)
    assert broker.request(RequestCode.SEND_MESSAGE, header, b"quiet", flag=FLAG_ONEWAY) == []
    assert [message.body for message in broker.read()] == [b"x", b"quiet"]


@pytest.mark.parametrize(("wished", "made"), [(4, 4), (1, 1), (16, 8)])
def test_a_topic_is_made_on_first_use(broker, wished, made):
    broker.send(default_topic_queue_nums=wished)
    topic = broker.core.state.topics.get("T")
    assert (topic.read_queue_nums, topic.write_queue_nums, topic.perm) == (made, made, 6)
    assert broker.ask_name_server(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRoute("T")).code == 0


def test_no_topic_without_a_default_that_lends_itself(make):
    broker = make()
    assert broker.send(default_topic="nothing").code == ResponseCode.TOPIC_NOT_EXIST
    assert broker.send(topic="bad topic").code == ResponseCode.INVALID_PARAMETER
    assert broker.send(topic="t" * 128).code == ResponseCode.INVALID_PARAMETER
    assert make(auto_create_topic=False).send().code == ResponseCode.TOPIC_NOT_EXIST
    broker = make(topics_max=0)
    assert broker.send().code == ResponseCode.TOPIC_NOT_EXIST


def test_queue_ids(broker):
    broker.send()
    assert broker.send(queue_id=4).code == ResponseCode.INVALID_PARAMETER
    chosen = {broker.send(queue_id=-1).fields["queueId"] for _ in range(50)}
    assert chosen == {"0", "1", "2", "3"}


@pytest.mark.parametrize("topic", ["SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "SELF_TEST_TOPIC"])
def test_closed_topics(broker, topic):
    assert broker.send(topic=topic).code == ResponseCode.NO_PERMISSION


def test_a_topic_without_write_permission(broker):
    broker.call(RequestCode.UPDATE_AND_CREATE_TOPIC, CreateTopic("T", "TBW102", 4, 4, 4, "SINGLE_TAG"))
    assert broker.send().code == ResponseCode.NO_PERMISSION


def test_sizes(broker):
    assert broker.send(body=b"").code == ResponseCode.MESSAGE_ILLEGAL
    assert broker.send(body=b"x" * ((4 << 20) + 1)).code == ResponseCode.MESSAGE_ILLEGAL
    assert broker.send(properties={"p": "x" * 32_768}).code == ResponseCode.MESSAGE_ILLEGAL
    assert broker.send(body=b"x" * (4 << 20)).code == 0


def test_properties_that_outgrow_the_record_are_refused_and_nothing_is_stored(broker):
    broker.send(body=b"first")
    for text in ("x" * 32_760, "é" * 16_380, "é" * 20_000):  # bytes count, not characters
        answer = broker.send(properties={"p": text})
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL, answer.remark
    broker.send(body=b"last")
    assert [message.body for message in broker.read()] == [b"first", b"last"]


def test_batch(broker):
    entries = encode_batch([(1, b"a", "TAGS\x01t\x02"), (2, b"b", "UNIQ_KEY\x01K\x02")])
    answer = broker.send(
        body=entries, code=RequestCode.SEND_BATCH_MESSAGE, properties={"UNIQ_KEY": "BATCH", "WAIT": "true"}, batch=True
    )
    messages = broker.read()
    assert answer.fields["msgId"] == ",".join(message.offset_message_id for message in messages)
    assert (answer.fields["queueOffset"], answer.fields["transactionId"]) == ("0", "BATCH")
    assert [(message.flag, message.body, message.queue_offset) for message in messages] == [(1, b"a", 0), (2, b"b", 1)]
    assert messages[1].properties["UNIQ_KEY"] == "K"
    assert "WAIT" not in messages[0].properties
    assert messages[0].properties["TAGS"] == "t"
    assert broker.pull(tags="t").code == 0


def test_batches_that_cannot_be(broker):
    code = RequestCode.SEND_BATCH_MESSAGE
    assert broker.send(body=b"garbage", code=code).code == ResponseCode.SYSTEM_ERROR
    delayed = encode_batch([(0, b"a", "DELAY\x011\x02")])
    assert broker.send(body=delayed, code=code).code == ResponseCode.MESSAGE_ILLEGAL
    plain = encode_batch([(0, b"a", "")])
    assert broker.send(topic="%RETRY%g", body=plain, code=code).code == ResponseCode.MESSAGE_ILLEGAL
    assert broker.read(topic="TBW102") == []


def test_a_batch_of_more_messages_than_producers_send_is_refused_before_it_is_read(broker):
    """190,000 of them held everybody up for 14 s, and the answer was longer than clients read."""
    code = RequestCode.SEND_BATCH_MESSAGE
    answer = broker.send(body=encode_batch([(0, b"a", "")] * (BATCH_MAX + 1)) + b"never read", code=code)
    assert (answer.code, f"more than {BATCH_MAX} messages" in answer.remark) == (ResponseCode.MESSAGE_ILLEGAL, True)
    assert broker.send(body=encode_batch([(0, b"a", "")] * BATCH_MAX), code=code).code == 0
    assert broker.core.state.store.max_offset("T", 0) == BATCH_MAX


def test_a_batch_has_no_message_without_a_body(broker):
    batch = encode_batch([(0, b"a", ""), (0, b"", ""), (0, b"c", "")])
    assert broker.send(body=batch, code=RequestCode.SEND_BATCH_MESSAGE).code == ResponseCode.MESSAGE_ILLEGAL
    assert broker.core.state.store.max_offset("T", 0) == 0


def test_a_batch_is_stored_whole_or_not_at_all(make):
    """Its third message outgrows the record with the broker's own properties; a full disk takes none of another."""

    class Full(MemoryStorage):
        appends_left = 1_000

        def open(self, name, segment_bytes, buffered):
            made = super().open(name, segment_bytes, buffered)
            return Log(self, made) if name == "commitlog" else made

    class Log:
        def __init__(self, storage, file):
            self._storage = storage
            self._file = file

        def append(self, data):
            self._storage.appends_left -= 1
            if self._storage.appends_left < 0:
                raise StorageError("cannot write commitlog: No space left on device")
            return self._file.append(data)

        def __getattr__(self, name):
            return getattr(self._file, name)

    storage = Full()
    broker = make(storage)
    large = encode_batch([(0, b"a", ""), (0, b"b", ""), (0, b"c", "p\x01" + "x" * 32_755 + "\x02")])
    assert broker.send(body=large, code=RequestCode.SEND_BATCH_MESSAGE).code == ResponseCode.MESSAGE_ILLEGAL
    assert broker.core.state.store.max_offset("T", 0) == 0
    storage.appends_left = 1
    batch = encode_batch([(0, b"a", ""), (0, b"b", "")])
    assert broker.send(body=batch, code=RequestCode.SEND_BATCH_MESSAGE).code == 0
    assert broker.send(body=batch, code=RequestCode.SEND_BATCH_MESSAGE).code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert [message.body for message in broker.read()] == [b"a", b"b"]


@pytest.mark.parametrize("sys_flag", [0x40, 0x80, 0xC0, 0xC1])
def test_a_body_that_claims_to_be_an_inner_batch_is_refused(broker, sys_flag):
    """Readers count its messages, so that their offsets would run ahead of the queue's."""
    forged = encode_batch([(0, b"a", ""), (0, b"b", "")])
    assert broker.send(body=forged, sys_flag=sys_flag).code == ResponseCode.MESSAGE_ILLEGAL
    assert broker.read() == []


def test_the_store_time_never_goes_back(broker):
    broker.send(body=b"1")
    now_ms = broker.now_ms
    broker.now_ms -= 3_600_000
    broker.send(body=b"2")
    assert [message.store_timestamp_ms for message in broker.read()] == [now_ms, now_ms]
    broker.core.stop()
    broker.crash()
    broker.send(body=b"3")
    assert broker.read()[-1].store_timestamp_ms == now_ms


def test_a_record_from_the_far_future_does_not_set_the_clock(broker):
    broker.send(body=b"1")
    log = broker.storage.open("commitlog", 1, buffered=False)
    log.overwrite(56, (broker.now_ms + 10 * 86_400_000).to_bytes(8, "big"))
    broker.crash()
    broker.send(body=b"2")
    assert broker.read()[-1].store_timestamp_ms == broker.now_ms


@pytest.mark.parametrize(("levels", "due_s"), [("10m", 600), ("1m", 60)])
def test_a_level_whose_delay_was_changed_delivers_nothing_before_the_new_one(make, levels, due_s):
    broker = make(message_delay_level="5m")
    broker.send(properties={"DELAY": "1"})
    broker.core.stop()
    broker.config = replace(broker.config, message_delay_level=levels)
    broker.start()
    broker.later(due_s * 1_000 - 1_000)
    assert broker.read() == []
    broker.later(2_000)
    assert len(broker.read()) == 1


@pytest.mark.parametrize("after_min", [1, 5, 8])
def test_what_waits_in_a_level_that_was_shortened_is_delivered_after_the_shorter_time(make, after_min):
    """Also where the longer time is less than the shorter one from now; so are those behind the first."""
    broker = make(message_delay_level="10m")
    for _ in range(3):
        broker.send(properties={"DELAY": "1"})
    broker.later(after_min * 60_000)
    broker.core.stop()
    broker.config = replace(broker.config, message_delay_level="6m")
    broker.start()
    broker.later(max(0, 360_000 - after_min * 60_000 - 1))
    assert len(broker.read()) == (3 if after_min > 6 else 0)
    broker.later(1)
    assert len(broker.read()) == 3


@pytest.mark.parametrize("starts", [False, True])
def test_a_damaged_store_time_delivers_nothing_early(make, starts):
    """It has no CRC. One bit of the time of a message that waits, also behind another."""
    broker = make(message_delay_level="10s")
    for number in range(2):
        broker.send(body=b"%d" % number, properties={"DELAY": "1"})
        broker.later(1_000)
    store = broker.core.state.store
    for offset in (0, 1) if starts else (1,):
        at = store.message_in("SCHEDULE_TOPIC_XXXX", 0, offset).physical_offset + 56
        time_ms = store.store_time_ms("SCHEDULE_TOPIC_XXXX", 0, offset)
        log = broker.storage.open("commitlog", 1, buffered=False)
        log.overwrite(at, (time_ms & ~(1 << 18)).to_bytes(8, "big"))
    if starts:
        broker.core.stop()
        broker.start()
    delivered = []
    for _ in range(10):
        delivered.append(len(broker.read()))
        broker.later(1_000)
    assert delivered == [0] * 8 + [1, 2]


def test_a_clients_own_retry_goes_through_the_delay(broker):
    answer = broker.send(topic="%RETRY%g", reconsume_times=2, max_reconsume_times=16, properties={"DELAY": "1"})
    assert answer.code == 0
    assert broker.core.state.topics.get("%RETRY%g").write_queue_nums == 4
    assert broker.read(topic="%RETRY%g") == []
    broker.later(200)
    (message,) = broker.read(topic="%RETRY%g")
    assert (message.reconsume_times, message.properties["REAL_TOPIC"]) == (2, "%RETRY%g")


@pytest.mark.parametrize("sys_flag", [4, 8, 12])
def test_what_is_no_half_message_has_no_sysflag_of_one(broker, sys_flag):
    """A start would take it for one of an old broker, which is in no queue."""
    broker.send(body=b"sent", sys_flag=sys_flag | 1)
    (message,) = broker.read()
    assert message.sysflag == 1
    broker.heartbeat()
    again = {"TRAN_MSG": "true", "PGROUP": "p", "DELAY": "1"}
    broker.send(topic="%RETRY%g", properties=again, sys_flag=sys_flag, reconsume_times=1)
    broker.later(200)
    (message,) = broker.read(topic="%RETRY%g")
    assert message.sysflag == 0


def test_a_retry_topic_needs_no_default_topic(broker):
    assert broker.send(topic="%RETRY%g", default_topic="none").code == 0
    assert broker.core.state.topics.get("%RETRY%g").write_queue_nums == 1


@pytest.mark.parametrize(
    ("times", "limit", "dead"), [(16, 16, False), (17, 16, True), (3, None, False), (17, None, True)]
)
def test_a_clients_own_retry_past_the_limit(broker, times, limit, dead):
    broker.send(topic="%RETRY%g", reconsume_times=times, max_reconsume_times=limit, properties={"DELAY": "1"})
    assert ("%DLQ%g" in broker.core.state.topics) is dead
    assert len(broker.read(topic="%DLQ%g")) == dead


def test_old_clients_limits_do_not_count(broker):
    broker.send(topic="%RETRY%g", reconsume_times=3, max_reconsume_times=1, version=120)
    assert "%DLQ%g" not in broker.core.state.topics


def test_retries_of_a_group_that_holds_locks_are_dead_at_once(broker):
    broker.send()
    body = LockBatch("g", "c1", (MessageQueue("T", "embedded", 0),)).encode()
    broker.call(RequestCode.LOCK_BATCH_MQ, body=body)
    broker.send(topic="%RETRY%g", reconsume_times=1, max_reconsume_times=16, properties={"DELAY": "3"})
    (message,) = broker.read(topic="%DLQ%g")
    assert message.properties["DELAY"] == "-1"


def test_a_disk_that_takes_nothing_answers_so(make):
    class FullDisk(MemoryStorage):
        full = False

        def open(self, name, segment_bytes, buffered):
            file = super().open(name, segment_bytes, buffered)
            if name != "commitlog":
                return file
            outer = self

            class Full(type(file)):
                __slots__ = ()

                def append(self, data):
                    if outer.full:
                        raise StorageError("cannot write commitlog: No space left on device")
                    return super().append(data)

            made = Full(segment_bytes, buffered)
            self._files[name] = made
            return made

    storage = FullDisk()
    broker = make(storage)
    assert broker.send(body=b"before").code == 0
    storage.full = True
    answer = broker.send(body=b"lost")
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "No space left" in answer.remark
    assert "No space left" in broker.core.trouble
    storage.full = False
    assert broker.send(body=b"after").fields["queueOffset"] == "1"
    assert [message.body for message in broker.read()] == [b"before", b"after"]
    broker.later(5_000)
    assert broker.core.trouble is None


def test_an_acknowledged_send_survives_a_kill(broker):
    for number in range(20):
        broker.send(body=b"%d" % number, queue_id=number % 4)
    broker.crash(torn_log=b"\x00\x00\x01\x00half a record")
    assert [message.body for message in broker.read(queue_id=3)] == [b"3", b"7", b"11", b"15", b"19"]
    assert broker.send(queue_id=3).fields["queueOffset"] == "5"


def test_a_topic_that_cannot_be_saved_is_not_made(make):
    class NoTables(MemoryStorage):
        broken = False

        def open(self, name, segment_bytes, buffered):
            made = super().open(name, segment_bytes, buffered)
            return Journal(self, made) if name == "config/topics.journal" else made

    class Journal:
        def __init__(self, storage, file):
            self._storage = storage
            self._file = file

        def append(self, data):
            if self._storage.broken:
                raise StorageError("cannot write config/topics.journal: Read-only file system")
            return self._file.append(data)

        def __getattr__(self, name):
            return getattr(self._file, name)

    storage = NoTables()
    broker = make(storage)
    storage.broken = True
    assert broker.send().code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "T" not in broker.core.state.topics
    storage.broken = False
    assert broker.send().code == 0
