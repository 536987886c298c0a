"""What else looks at a page that the disk cannot read: readers with a filler before it, statistics; what is said of it."""

from __future__ import annotations

from collections import deque

import pytest
from bad_places import CountedFile, CountedStorage

from rocketcrew.broker.consume_queue import ENTRY, ENTRY_BYTES, FILLER_CODE, ConsumeQueue
from rocketcrew.broker.lost_places import PATIENCE_STEPS, LostPlaces
from rocketcrew.broker.message_store import QueueRebuilding
from rocketcrew.broker.readable_log import PIECE_BYTES, UnreadablePlaces
from rocketcrew.broker.wanted import by_text
from rocketcrew.remoting.admin_bodies import ConsumeStats, TopicStats
from rocketcrew.remoting.admin_headers import ConsumeStatsRequest, TopicName
from rocketcrew.remoting.codes import RequestCode, ResponseCode
from rocketcrew.remoting.headers import EarliestStoreTime, TimestampResponse
from rocketcrew.remoting.pop_headers import PopRequest
from rocketcrew.remoting.stored import decode_messages


@pytest.fixture
def broker(make):
    return make(CountedStorage())


def test_a_filler_at_the_end_of_what_one_pull_looks_at_and_a_bad_page_behind_it_hold_nobody_up(broker):
    """Whether it is a filler, the entry on that page says; each pull came to the same end."""
    first_bad = PIECE_BYTES * 5 // ENTRY_BYTES  # 1,024: entries and pages align there
    for number in range(first_bad + 100):
        broker.send(body=b"%d" % number, tag="b")
    store = broker.core.state.store
    queue = store.queue("T", 0)
    file = broker.storage.open("consumequeue/T/0", 1, buffered=True)
    file.overwrite((first_bad - 1) * ENTRY_BYTES, ENTRY.pack(queue.entry(first_bad)[0], 0, FILLER_CODE))
    file.bad_pages = {5}
    start = first_bad - broker.config.pull_scan_entries_max
    with pytest.raises(QueueRebuilding):
        store.get("T", 0, start, 32, by_text("TAG", "a"))
    broker.later(1_000)
    assert store.get("T", 0, start, 32, by_text("TAG", "a")).next_offset > start


def spoil(broker, offset):
    """The head of a record of the first queue."""
    position = broker.core.state.store.queue("T", 0).entry(offset)[0]
    broker.storage.log.bad = range(position, position + 1)


def answered(broker, tools, code, header):
    """The answer, which may take some turns."""
    effects = broker.request(code, header)
    while not tools.replies(effects):
        effects = broker.later(10)
    ((_, answer),) = tools.replies(effects)
    assert answer.code == ResponseCode.SUCCESS
    return answer


def test_statistics_say_nothing_of_the_time_of_a_message_on_a_bad_page(broker, tools):
    broker.heartbeat()
    for _ in range(20):
        broker.send(body=bytes(9_000))
        broker.send(body=bytes(9_000), queue_id=1)
    broker.core.state.offsets.commit("T", "g", 0, 11)
    broker.core.state.offsets.commit("T", "g", 1, 11)

    spoil(broker, 10)
    answer = answered(broker, tools, RequestCode.GET_CONSUME_STATS, ConsumeStatsRequest("g", "T"))
    table = {queue.queue_id: each for queue, each in ConsumeStats.decode(answer.body).offset_table.items()}
    assert (table[0].consumer_offset, table[0].last_timestamp, table[1].last_timestamp) == (11, 0, broker.now_ms)

    spoil(broker, 19)
    answer = answered(broker, tools, RequestCode.GET_TOPIC_STATS_INFO, TopicName("T"))
    ends = {queue.queue_id: each for queue, each in TopicStats.decode(answer.body).offset_table.items()}
    assert (ends[0].max_offset, ends[0].last_update_timestamp, ends[1].max_offset) == (20, 0, 20)

    spoil(broker, 0)
    answer = answered(broker, tools, RequestCode.GET_EARLIEST_MSG_STORETIME, EarliestStoreTime("T", 0))
    assert TimestampResponse.from_fields(answer.fields).timestamp == -1


def test_the_first_pop_of_a_group_does_not_wait_beside_a_bad_page_either(broker):
    """It noted where the other queues begin, which was taken for something found: it slept until its deadline."""
    broker.send(body=bytes(9_000))
    broker.send(body=bytes(200_000), topic="Other")
    spoil(broker, 0)
    broker.heartbeat()
    header = PopRequest("g", "T", -1, 32, 600_000, 30_000, broker.now_ms, 0, "TAG", "*", order=False)
    for _ in range(PATIENCE_STEPS):
        assert broker.call(RequestCode.POP_MESSAGE, header).code == ResponseCode.SERVICE_NOT_AVAILABLE
        broker.later(1_000)
    broker.send(body=b"good", queue_id=1)
    answer = broker.call(RequestCode.POP_MESSAGE, header)
    assert [message.body for message in decode_messages(answer.body)] == [b"good"]


def test_what_readers_do_not_get_is_said_in_one_event_for_a_run_of_each_queue():
    """Of more than 64 between two turns of the log's writer the first were lost."""
    events = deque()
    lost = LostPlaces(CountedStorage().log, UnreadablePlaces(events), events)
    queues = [ConsumeQueue(CountedFile(1 << 20, buffered=True), "T", queue_id) for queue_id in range(2)]

    def say(queue_id, *offsets):
        for offset in offsets:
            lost._say(queues[queue_id], offset, 1_000 * queue_id + offset, "bad")

    say(0, *range(3, 203), 7, 300, 302)
    say(1, 5, 6, 4)
    told = [(each["queue_id"], each["queue_offset"], each["last_offset"], each["messages"]) for _, each in events]
    assert told == [(0, 3, 302, 202), (1, 5, 6, 2), (1, 4, 4, 1)]
    events.clear()  # it was written to the log
    say(1, 7)
    assert [each["messages"] for _, each in events] == [1]
    assert lost.passed_over == 206
