"""Half messages of the embedded broker: hidden, committed, rolled back, asked for, given up, found again after a kill."""

from __future__ import annotations

from dataclasses import replace

import pytest
from bad_places import CountedStorage

from rocketcrew.broker.config import BrokerConfig
from rocketcrew.broker.effects import Push
from rocketcrew.broker.lost_places import FORGET_STEPS, PATIENCE_STEPS
from rocketcrew.broker.readable_log import PIECE_BYTES, TRIED_MAX
from rocketcrew.broker.storage import MemoryStorage, StorageError
from rocketcrew.broker.transactions import HALF_TOPIC, OP_TOPIC, QUESTIONS_MAX
from rocketcrew.remoting.batch import encode_batch
from rocketcrew.remoting.codes import FLAG_ONEWAY, RequestCode, ResponseCode
from rocketcrew.remoting.headers import CheckTransaction, EndTransaction, SendResponse
from rocketcrew.remoting.ids import parse_offset_message_id
from rocketcrew.remoting.stored import decode_message

from .conftest import Driver

COMMIT, ROLLBACK, UNKNOW = 8, 12, 0
DAY_MS = 86_400_000
HALF = {"TRAN_MSG": "true", "PGROUP": "pg", "UNIQ_KEY": "U1"}


@pytest.fixture
def broker():
    return Driver(BrokerConfig(transaction_checks_max=2), MemoryStorage())


def send_half(broker, **properties):
    answer = broker.send(sys_flag=4, tag="red", properties=HALF | properties)
    assert answer.code == 0
    return SendResponse.from_fields(answer.fields)


def end_of(sent, state, **more):
    physical = parse_offset_message_id(sent.msg_id).physical_offset
    return replace(EndTransaction("pg", sent.queue_offset, physical, state, "U1", topic="T"), **more)


def end(broker, sent, state, **more):
    return broker.call(RequestCode.END_TRANSACTION, end_of(sent, state, **more))


def stored(broker, topic="T"):
    return broker.core.state.store.max_offset(topic, 0)


def questions(effects):
    return [e.command for e in effects if isinstance(e, Push) and e.command.code == RequestCode.CHECK_TRANSACTION_STATE]


def test_a_committed_message_appears_where_it_belongs(broker):
    sent = send_half(broker)
    assert (sent.queue_offset, stored(broker)) == (0, 0)
    assert end(broker, sent, COMMIT).code == 0
    assert stored(broker) == 1
    entry = broker.core.state.store.queue("T", 0).entry(0)
    message = broker.core.state.store.message_at(entry[0])
    assert (message.topic, message.queue_id, message.body, message.sysflag & 0xC) == ("T", 0, b"x", COMMIT)
    assert message.prepared_transaction_offset == parse_offset_message_id(sent.msg_id).physical_offset
    assert message.properties["__transactionId__"] == "U1"
    assert message.properties["TAGS"] == "red"
    assert "REAL_TOPIC" not in message.properties


def test_a_rolled_back_message_never_appears_and_is_not_asked_for(broker):
    broker.heartbeat()
    assert end(broker, send_half(broker), ROLLBACK).code == 0
    assert stored(broker) == 0
    assert not questions(broker.later(60_000))


def test_an_end_is_written_as_every_genuine_version_reads_it(broker):
    """4.x reads one number: of "0," it made no end, asked again, and what was rolled back could be committed."""
    end(broker, send_half(broker), ROLLBACK)
    end(broker, send_half(broker), COMMIT)
    assert [message.body for message in broker.read(OP_TOPIC)] == [b"0", b"1"]


def test_an_end_that_is_told_twice_counts_once(broker):
    sent = send_half(broker)
    assert [end(broker, sent, COMMIT).code for _ in range(2)] == [0, 0]
    assert stored(broker) == 1


@pytest.mark.parametrize(
    ("changes", "remark"),
    [
        ({"producer_group": "other"}, "producer group wrong"),
        ({"tran_state_table_offset": 7}, "table offset wrong"),
        ({"commit_log_offset": 1 << 40}, "Find prepared transaction message failed"),
    ],
)
def test_what_is_no_half_message_of_the_group_is_refused(broker, changes, remark):
    answer = end(broker, send_half(broker), COMMIT, **changes)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert remark in answer.remark
    assert stored(broker) == 0


def test_open_messages_that_retention_took_leave_their_places_to_others():
    """With an immunity of years they kept all places until a restart, and no transaction was taken any more."""
    broker = Driver(
        BrokerConfig(transactions_max=3, mapped_file_size_commit_log=4_096, retention_ms=7_200_000), MemoryStorage()
    )
    for _ in range(3):
        send_half(broker, CHECK_IMMUNITY_TIME_IN_SECONDS="999999999")
    assert broker.send(sys_flag=4, properties=HALF).code != 0
    for _ in range(40):
        broker.send("Filler", body=bytes(200))
    broker.core.state.store.drop_older_than(broker.now_ms + 1)
    broker.later(1_000)
    events = list(broker.core.state.store.events)
    assert events == [("store.open_transactions_gone", {"count": 3, "first_queue_offset": 0})]
    send_half(broker)
    assert broker.core.state.transactions.next_due_ms() == broker.now_ms - 1 + 6_000


def test_an_immunity_ends_with_retention(broker):
    send_half(broker, CHECK_IMMUNITY_TIME_IN_SECONDS="999999999")
    assert not questions(broker.later(72 * 3_600_000 - 1_000))
    broker.heartbeat()
    assert len(questions(broker.later(1_000))) == 1


def test_an_immunity_does_not_begin_anew_at_each_start(broker):
    """One of 60 hours was never asked for, as retention took it before."""
    send_half(broker, CHECK_IMMUNITY_TIME_IN_SECONDS=str(60 * 3_600))
    for hours in (30, 25):
        broker.later(hours * 3_600_000)
        broker.crash()
    broker.heartbeat()
    assert not questions(broker.later(5 * 3_600_000 - 1_000))
    broker.crash()
    broker.heartbeat()
    assert not questions(broker.later(5_000)), "a producer that starts with the broker has its time"
    assert len(questions(broker.later(1_000))) == 1


def test_what_ended_long_before_its_immunity_is_not_kept():
    broker = Driver(BrokerConfig(), MemoryStorage())
    for _ in range(50):
        end(broker, send_half(broker, CHECK_IMMUNITY_TIME_IN_SECONDS="86400"), COMMIT)
    assert len(broker.core.state.transactions._due) == 0


def test_a_producers_time_is_that_of_the_machines_clock_where_the_brokers_is_ahead(broker):
    """The clock had been wrong for a moment: each was asked for at once, and its end refused as too late."""
    born_ms = broker.now_ms
    broker.later(30 * DAY_MS)
    broker.core.state.clock_ahead_ms = 30 * DAY_MS
    sent = broker.send(sys_flag=4, properties=HALF | {"CHECK_IMMUNITY_TIME_IN_SECONDS": "60"}, born_timestamp=born_ms)
    broker.heartbeat()
    assert not questions(broker.later(59_000))
    assert end(broker, SendResponse.from_fields(sent.fields), COMMIT).code == 0
    assert stored(broker) == 1


def test_an_open_message_is_asked_for_then_given_up(broker):
    send_half(broker)
    broker.heartbeat(channel=3)
    assert not questions(broker.later(5_900))
    (asked,) = questions(broker.later(200))
    header = CheckTransaction.from_fields(asked.fields)
    assert (header.tran_state_table_offset, header.transaction_id, header.topic) == (0, "U1", "T")
    assert asked.flag == FLAG_ONEWAY
    message = decode_message(bytes(asked.body))
    assert (message.topic, message.properties["TRANSACTION_CHECK_TIMES"]) == ("T", "1")
    assert len(questions(broker.later(30_000))) == 1
    assert not questions(broker.later(30_000))
    assert stored(broker, "TRANS_CHECK_MAX_TIME_TOPIC") == 1
    assert not questions(broker.later(300_000))


def test_a_pending_end_changes_nothing(broker):
    sent = send_half(broker)
    assert broker.request(RequestCode.END_TRANSACTION, end_of(sent, UNKNOW)) == []
    assert end(broker, sent, COMMIT, from_transaction_check=True).code == 0
    assert stored(broker) == 1


def test_an_immunity_of_its_own(broker):
    broker.heartbeat()
    sent = send_half(broker, CHECK_IMMUNITY_TIME_IN_SECONDS="20")
    assert not questions(broker.later(19_000))
    assert len(questions(broker.later(2_000))) == 1
    assert end(broker, sent, COMMIT).code == ResponseCode.ILLEGAL_OPERATION
    assert end(broker, sent, COMMIT, from_transaction_check=True).code == 0


def test_open_messages_are_found_again_after_a_kill(broker):
    first, second, third = (send_half(broker) for _ in range(3))
    end(broker, first, COMMIT)
    end(broker, third, ROLLBACK)
    broker.later(1_000)
    broker.later(6_000)
    broker.crash()
    assert len(broker.core.state.transactions) == 1
    broker.heartbeat()
    (asked,) = questions(broker.later(10_000))
    assert CheckTransaction.from_fields(asked.fields).tran_state_table_offset == second.queue_offset
    end(broker, second, COMMIT, from_transaction_check=True)
    assert stored(broker) == 2
    broker.later(1_000)
    broker.later(6_000)
    broker.crash()
    assert len(broker.core.state.transactions) == 0


def test_where_a_start_must_read_costs_what_ended_and_not_what_is_open(broker):
    """It was looked for each second among all that were open, and all that had ended after the first of them."""

    class Counted(dict):
        looks = 0

        def __iter__(self):
            for key in dict.__iter__(self):
                Counted.looks += 1
                yield key

        def values(self):
            raise AssertionError("all open transactions were looked at")

        items = values

    sent = [send_half(broker, UNIQ_KEY=f"U{number}") for number in range(200)]
    transactions = broker.core.state.transactions
    transactions._open = Counted(transactions._open)
    for half in sent[100:]:
        assert end(broker, half, COMMIT).code == 0
    looks = Counted.looks
    broker.later(1_000)
    broker.later(1_000)
    assert Counted.looks - looks <= 4
    assert len(transactions._unsure) == 0
    transactions._open = dict(dict.items(transactions._open))
    broker.crash()
    assert len(broker.core.state.transactions) == 100, "all that ended after the first open one are known to have"
    for half in sent[:100]:
        assert end(broker, half, ROLLBACK).code == 0
    broker.later(1_000)
    broker.later(6_000)
    offsets = broker.core.state.offsets
    assert [offsets.query(topic, "CID_RMQ_SYS_TRANS", 0) for topic in (HALF_TOPIC, OP_TOPIC)] == [200, 200]
    broker.crash()
    assert len(broker.core.state.transactions) == 0


def test_many_that_are_due_are_asked_for_in_rounds(broker):
    for number in range(QUESTIONS_MAX + 5):
        send_half(broker, UNIQ_KEY=f"U{number}")
    broker.heartbeat()
    assert len(questions(broker.later(6_000))) == QUESTIONS_MAX
    assert broker.core.next_deadline_ms() <= broker.now_ms
    assert len(questions(broker.later(1))) == 5


@pytest.mark.parametrize("restarted", [False, True])
def test_a_birth_in_the_future_delays_no_question(broker, restarted):
    """A sender's clock that is ahead, or a clock here that was set back."""
    assert broker.send(sys_flag=4, tag="red", properties=HALF, born_timestamp=broker.now_ms + 86_400_000).code == 0
    if restarted:
        broker.crash()
    broker.heartbeat()
    assert questions(broker.later(5_999)) == []
    assert len(questions(broker.later(1))) == 1


def test_too_many_open_transactions_are_refused():
    broker = Driver(BrokerConfig(transactions_max=1), MemoryStorage())
    send_half(broker)
    assert broker.send(sys_flag=4, properties=HALF).code == ResponseCode.SYSTEM_BUSY


def test_a_batch_holds_no_transaction(broker):
    body = encode_batch([(0, b"x", "TRAN_MSG\x01true\x02UNIQ_KEY\x01U\x02")])
    answer = broker.send(body=body, code=RequestCode.SEND_BATCH_MESSAGE, batch=True)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL


def test_open_transactions_cost_nothing_until_they_are_due(broker):
    """20,000 of them made each send take 16 ms: every request looked at all of them."""

    class NotLookedThrough(dict):
        def values(self):
            raise AssertionError("all open transactions were looked at")

        items = values
        __iter__ = values

    sent = [send_half(broker, UNIQ_KEY=f"U{number}") for number in range(20)]
    transactions = broker.core.state.transactions
    transactions._open = NotLookedThrough(transactions._open)
    broker.core.next_deadline_ms()
    broker.send()
    assert end(broker, sent[0], COMMIT).code == 0
    assert transactions.next_due_ms() == broker.now_ms - 1 + 6_000
    transactions._open = dict(dict.items(transactions._open))
    broker.heartbeat()
    broker.later(6_000)
    assert len(questions(broker.effects)) == 19
    assert questions(broker.later(29_999)) == []
    assert len(questions(broker.later(1))) == 19


def test_a_message_that_is_given_up_and_fits_no_segment_ends_all_the_same(make):
    """Its copy is longer than the half message was; no other half message waits for it."""
    broker = make(mapped_file_size_commit_log=5_000, transaction_checks_max=0)
    body = next(b"p" * size for size in range(5_000, 0, -1) if broker.send("T", b"p" * size, properties=HALF).code == 0)
    assert broker.send("T", b"small", properties=HALF | {"UNIQ_KEY": "U2"}).code == 0
    broker.later(6_100)
    store = broker.core.state.store
    ((event, fields),) = store.events
    assert event == "store.transaction_given_up_without_a_copy"
    assert store.message_at(fields["position"]).body == body
    assert (len(broker.core.state.transactions), stored(broker, "TRANS_CHECK_MAX_TIME_TOPIC")) == (0, 1)


def test_a_half_message_that_cannot_be_read_now_delays_no_other_for_good(broker):
    """All that were due were taken from the heap before the first of them was read."""
    for _ in range(3):
        send_half(broker)
    transactions = broker.core.state.transactions

    class Unreadable:
        def message_at(self, position):
            raise StorageError("cannot read")

    due_ms = transactions.next_due_ms()
    with pytest.raises(StorageError):
        list(transactions.due(due_ms, Unreadable()))
    broker.heartbeat()
    assert len(questions(broker.later(60_000))) == 3


def test_half_messages_on_bad_pages_delay_no_other_and_none_is_asked_for_twice():
    """Each may take the disk seconds, and nobody waits for more than a few."""
    config = BrokerConfig(transaction_check_interval_ms=5_000)
    broker = Driver(config, CountedStorage())
    for number in range(3 * TRIED_MAX):
        broker.send(sys_flag=4, body=bytes(9_000), properties=HALF | {"UNIQ_KEY": f"U{number}"})
    for _ in range(100):
        broker.send(body=bytes(9_000), queue_id=1)
    broker.send(sys_flag=4, properties=HALF | {"UNIQ_KEY": "good"})
    queue = broker.core.state.store.queue(HALF_TOPIC, 0)
    bad = {queue.entry(offset)[0] // PIECE_BYTES + 1 for offset in range(3 * TRIED_MAX)}
    broker.storage.log.bad_pages = bad
    broker.heartbeat()
    before = broker.storage.log.failed_reads
    asked = questions(broker.later(6_000))
    assert broker.storage.log.failed_reads - before <= 4 * TRIED_MAX
    for _ in range(3):
        asked += questions(broker.later(1))
    assert [command.fields["msgId"] for command in asked] == ["good"]
    broker.storage.log.bad_pages = set()
    again = [command.fields["msgId"] for _ in range(10) for command in questions(broker.later(500))]
    assert len(again) == len(set(again)) == 3 * TRIED_MAX + 1


@pytest.mark.parametrize("interval_ms", [15_000, 1_000 * FORGET_STEPS, 600_000])
def test_a_half_message_on_a_bad_page_is_given_up_and_asked_for_when_it_can_be_read(interval_ms):
    """The disk was asked for it at each interval for ever, and each start read all queues from it on."""
    config = BrokerConfig(transaction_check_interval_ms=interval_ms)
    broker = Driver(config, CountedStorage())
    broker.heartbeat()
    halves = [broker.send(sys_flag=4, body=bytes(9_000), properties=HALF | {"UNIQ_KEY": "U0"})]
    for _ in range(60):
        broker.send(body=bytes(9_000), queue_id=1)
    halves += [broker.send(sys_flag=4, properties=HALF | {"UNIQ_KEY": f"U{number}"}) for number in range(1, 5)]
    store = broker.core.state.store
    position = store.queue(HALF_TOPIC, 0).entry(0)[0]
    broker.storage.log.bad = range(position, position + 1)
    for sent in halves[1:]:
        assert end(broker, SendResponse.from_fields(sent.fields), ROLLBACK).code == 0
    for _ in range(3 * PATIENCE_STEPS):
        broker.later(1_000)
    given_up = [fields for event, fields in store.events if event == "store.transaction_given_up_unread"]
    assert [(each["queue_offset"], each["position"]) for each in given_up] == [(0, position)]
    transactions = broker.core.state.transactions
    assert transactions.positions(store) == (5, 4)
    assert transactions.is_open(0)
    broker.later(120_000)
    assert broker.core.trouble is None
    broker.storage.log.bad = range(0)
    broker.later(interval_ms)
    broker.heartbeat()
    assert questions(broker.later(interval_ms))
    assert transactions.positions(store) == (0, 0)
    assert end(broker, SendResponse.from_fields(halves[0].fields), COMMIT).code == 0
    assert stored(broker) == 1
