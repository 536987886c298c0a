"""Transactions, recall, hooks, and the rules of sending again, against the embedded broker."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from rocketcrew.broker.config import BrokerConfig
from rocketcrew.broker.server import EmbeddedBroker
from rocketcrew.client.access import Access
from rocketcrew.client.admin import Admin
from rocketcrew.client.opening import open_cluster
from rocketcrew.client.outgoing import OutgoingMessage
from rocketcrew.client.producer import Producer
from rocketcrew.client.recall import RecallHandle, decode_handle
from rocketcrew.client.send_result import SendStatus
from rocketcrew.client.sending import SendRules
from rocketcrew.client.sync import SyncProducer
from rocketcrew.client.transactions import CheckBack, LocalTransactionState
from rocketcrew.client.under_way import Left
from rocketcrew.remoting.bodies import BrokerData, QueueData, TopicRouteData
from rocketcrew.remoting.codes import RequestCode, ResponseCode
from rocketcrew.remoting.command import Command
from rocketcrew.remoting.errors import BrokerError, TimedOutError, UnreachableError, UsageError
from rocketcrew.remoting.headers import CheckTransaction
from rocketcrew.remoting.properties import encode_properties
from rocketcrew.remoting.stored import StoredMessage, encode_message
from rocketcrew.testing import LocalBroker

from .conftest import PATIENT_MS

TOPIC = "orders"
COMMIT, ROLLBACK, UNKNOW = (
    LocalTransactionState.COMMIT_MESSAGE,
    LocalTransactionState.ROLLBACK_MESSAGE,
    LocalTransactionState.UNKNOW,
)
QUICK = BrokerConfig(transaction_timeout_ms=20, transaction_check_interval_ms=50)


class Checks:
    """The user's check: keeps what it was asked, answers from a list, then commits."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked = []

    async def __call__(self, message):
        self.asked.append(message)
        answer = self.answers.pop(0) if self.answers else COMMIT
        if isinstance(answer, Exception):
            raise answer
        return answer


@contextlib.asynccontextmanager
async def transacting(check, config=QUICK, **options):
    async with (
        EmbeddedBroker(config=config) as broker,
        Producer(broker.name_server, "senders", check=check, send_timeout_ms=PATIENT_MS, **options) as producer,
    ):
        yield broker, producer, Admin(producer.cluster)


async def stored(admin):
    stats = await admin.topic_stats(TOPIC)
    return sum(entry.max_offset for entry in stats.offset_table.values())


class Ends:
    """Sees the ends of transactions as they reach the broker; `event` is set by the first that equals `wanted`."""

    def __init__(self, broker, wanted=COMMIT):
        self.wanted = str(wanted.value)
        self.event = asyncio.Event()
        broker.intercepts.append(self)

    def __call__(self, command):
        if command.code == RequestCode.END_TRANSACTION and command.fields["commitOrRollback"] == self.wanted:
            self.event.set()


@pytest.mark.parametrize(("state", "count"), [(COMMIT, 1), (ROLLBACK, 0)])
@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_the_local_transaction_decides(state, count, kind):
    seen = []

    def execute(message, result):
        seen.append((message.body, result.status))
        return state

    async def execute_async(message, result):
        return execute(message, result)

    async with transacting(Checks(), BrokerConfig()) as (_, producer, admin):
        message = OutgoingMessage(TOPIC, b"half", delay_level=3)
        done = await producer.send_in_transaction(message, execute if kind == "plain" else execute_async)
        assert seen == [(b"half", SendStatus.SEND_OK)]
        assert (done.state, done.error, done.send.transaction_id) == (state, None, done.send.message_id)
        await producer.send(OutgoingMessage("other", b"behind it"))  # the end was one-way, on the same connection
        assert await stored(admin) == count


def test_a_state_that_is_not_known_may_be_spelled_out():
    assert LocalTransactionState.UNKNOWN is UNKNOW
    assert LocalTransactionState.UNKNOWN.name == "UNKNOW", "in logs, as before"


@pytest.mark.parametrize("trouble", ["unknow", "nothing", "raises"])
async def test_the_broker_asks_when_the_state_is_not_known(trouble):
    def execute(message, result):
        if trouble == "raises":
            raise ValueError("no database")
        return UNKNOW if trouble == "unknow" else None

    checks = Checks(UNKNOW, RuntimeError("no database either"), COMMIT)
    async with transacting(checks) as (broker, producer, admin):
        ends = Ends(broker)
        done = await producer.send_in_transaction(OutgoingMessage(TOPIC, b"half", tags="t", keys="a b"), execute)
        assert done.state is UNKNOW
        assert isinstance(done.error, ValueError) == (trouble == "raises")
        await ends.event.wait()
        assert await stored(admin) == 1
    first = checks.asked[0]
    assert (first.topic, first.body, first.tags, first.keys) == (TOPIC, b"half", "t", "a b")
    assert first.transaction_id == done.send.transaction_id
    assert [message.check_times for message in checks.asked[:3]] == [1, 2, 3]


async def test_another_member_of_the_group_is_asked_when_the_sender_is_gone():
    async with EmbeddedBroker(config=QUICK) as broker:
        silent = Checks(*[UNKNOW] * 1000)  # the question may come before it has left
        async with Producer(broker.name_server, "senders", check=silent) as sender:
            await sender.send_half(OutgoingMessage(TOPIC, b"half"))
        ends = Ends(broker)
        async with Producer(broker.name_server, "senders", check=Checks()) as other:
            await other.send(OutgoingMessage("other", b"x"))
            await ends.event.wait()
            assert await stored(Admin(other.cluster)) == 1


async def test_a_message_not_stored_safely_is_rolled_back_unrun():
    def watch(command):
        fields = {"msgId": "7F00000100002A9F0000000000000000", "queueId": "0", "queueOffset": "0"}
        return command.response(12, fields) if command.code == RequestCode.SEND_MESSAGE_V2 else None

    async with transacting(Checks()) as (broker, producer, _):
        broker.intercepts.append(watch)
        ends = Ends(broker, ROLLBACK)
        done = await producer.send_in_transaction(OutgoingMessage(TOPIC, b"x"), lambda *_: 1 / 0)
        assert (done.state, done.error) == (ROLLBACK, None)
        await ends.event.wait()


async def test_a_producer_without_a_check_sends_no_transactions():
    async with transacting(None) as (_, producer, _):
        with pytest.raises(UsageError, match=r"need a check: Producer\(\.\.\., check=function\)"):
            await producer.send_in_transaction(OutgoingMessage(TOPIC, b"x"), lambda *_: COMMIT)


async def test_one_transactional_producer_per_cluster():
    async with (
        EmbeddedBroker() as broker,
        open_cluster(broker.name_server) as cluster,
        Producer(cluster, "one", check=Checks()),
    ):
        with pytest.raises(UsageError, match="one transactional producer per cluster"):
            Producer(cluster, "two", check=Checks()).start()


def test_transactions_without_a_loop_of_ones_own(broker_thread):
    here = threading.get_ident()
    checked = threading.Event()
    local, asked = [], []

    def check(message):
        asked.append(threading.get_ident())
        checked.set()
        return COMMIT

    with SyncProducer(broker_thread(QUICK), "senders", check=check, send_timeout_ms=PATIENT_MS) as producer:
        done = producer.send_in_transaction(
            OutgoingMessage(TOPIC, b"x"), lambda *_: local.append(threading.get_ident())
        )
        assert done.state is UNKNOW
        assert checked.wait(20)
        assert local == [here]
        assert here not in asked  # the broker may ask before the local part has run
        futures = [producer.send_async(OutgoingMessage(TOPIC, b"later")) for _ in range(5)]
        assert {future.result(20).status for future in futures} == {SendStatus.SEND_OK}


def test_send_async_needs_the_background(broker_thread):
    with SyncProducer(broker_thread(), "senders") as producer, pytest.raises(UsageError, match="background=True"):
        producer.send_async(OutgoingMessage(TOPIC, b"x"))


# Rules of sending again.


async def test_codes_can_be_chosen():
    def refuse(command):
        return command.response(13) if command.code == RequestCode.SEND_MESSAGE_V2 else None

    async with transacting(None, rules=SendRules(retries=1, retry_codes=frozenset({13}))) as (broker, producer, _):
        broker.intercepts.append(refuse)
        with pytest.raises(BrokerError, match="sent 2 times"):
            await producer.send(OutgoingMessage(TOPIC, b"x"))


async def test_again_unless_it_is_stored_as_safely_as_wished():
    answers = [12, 10]

    def unsafe(command):
        if command.code != RequestCode.SEND_MESSAGE_V2:
            return None
        fields = {"msgId": "7F00000100002A9F0000000000000000", "queueId": "0", "queueOffset": "0"}
        return command.response(answers.pop(0), fields) if answers else None

    async with transacting(None, rules=SendRules(retry_unless_ok=True)) as (broker, producer, _):
        broker.intercepts.append(unsafe)
        result = await producer.send(OutgoingMessage(TOPIC, b"x"))
        assert (result.status, result.attempts) == (SendStatus.SEND_OK, 3)


async def test_hooks_see_every_attempt_and_harm_nothing():
    class Watch:
        def __init__(self):
            self.seen = []

        def before_send(self, context):
            assert context.result is None
            raise ZeroDivisionError

        def after_send(self, context):
            code = context.error.code if context.error else None
            self.seen.append((context.mq.topic, context.oneway, code, context.result and context.result.status))

    answers = [2]
    watch = Watch()
    async with transacting(None, hooks=[watch]) as (broker, producer, _):
        broker.intercepts.append(
            lambda command: command.response(answers.pop()) if command.code == 310 and answers else None
        )
        await producer.send(OutgoingMessage(TOPIC, b"x"))
        await producer.send_oneway(OutgoingMessage(TOPIC, b"x"))
    assert watch.seen == [(TOPIC, False, 2, None), (TOPIC, False, None, SendStatus.SEND_OK), (TOPIC, True, None, None)]


# Recall.


def handle(*parts):
    return base64.urlsafe_b64encode(" ".join(parts).encode()).decode()


def test_handles():
    good = handle("v1", TOPIC, "embedded", "1700000000000", "U1")
    assert decode_handle(good) == RecallHandle(TOPIC, "embedded", "1700000000000", "U1")
    for bad in ("", "%%%", handle("v2", "a", "b", "c", "d"), handle("v1", "a", "b")):
        with pytest.raises(UsageError, match="is no recall handle"):
            decode_handle(bad)


async def test_a_broker_that_the_known_route_does_not_name_is_looked_for(make_peer):
    names = ["a"]

    def answer(command):
        route = TopicRouteData(
            tuple(QueueData(name, 1, 1, 6) for name in names),
            tuple(BrokerData(name, {0: broker.address}) for name in names),
        )
        return command.response(0, body=route.encode())

    async with (
        make_peer(lambda command: command.response(0, {"msgId": "U1"})) as broker,
        make_peer(answer) as name_server,
        open_cluster(name_server.address) as cluster,
    ):
        producer = Producer(cluster, "senders")
        await producer.queues(TOPIC)
        names.append("b")
        assert await producer.recall(TOPIC, handle("v1", TOPIC, "b", "1700000000000", "U1")) == "U1"
        with pytest.raises(UnreachableError, match=f"route of topic {TOPIC} names no address"):
            await producer.recall(TOPIC, handle("v1", TOPIC, "c", "1700000000000", "U1"))


async def test_a_recall_waits_for_a_silent_name_server_no_longer_than_it_may(make_peer):
    def names(command):
        known = TopicRouteData((QueueData("a", 1, 1, 6),), (BrokerData("a", {0: "127.0.0.1:1"}),))
        return command.response(0, body=known.encode()) if len(name_server.requests) == 1 else None

    async with make_peer(names) as name_server:
        access = Access(name_server.address, request_timeout_ms=PATIENT_MS)
        async with Producer(access, send_timeout_ms=200) as producer:
            await producer.queues(TOPIC)
            with pytest.raises(TimedOutError, match="b: no name server has said in time where it is"):
                await producer.recall(TOPIC, handle("v1", TOPIC, "b", "1700000000000", "U1"))


async def test_a_broker_that_does_not_recall_says_why():
    async with transacting(None) as (_, producer, _):
        await producer.send(OutgoingMessage(TOPIC, b"x"))
        with pytest.raises(BrokerError, match="timestamp invalid") as caught:
            await producer.recall(TOPIC, handle("v1", TOPIC, "embedded", "1700000000000", "U1"))
        assert caught.value.code == ResponseCode.ILLEGAL_OPERATION


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (OutgoingMessage(TOPIC, b"x", delay_sec=-1), "delay_sec -1"),
        (
            OutgoingMessage(TOPIC, b"x", delay_sec=1, deliver_at_ms=5),
            "delay_sec and deliver_at_ms: give one delay only",
        ),
    ],
)
def test_delays_are_checked(message, text):
    with pytest.raises(UsageError, match=text):
        message.check()


def test_delays_become_properties():
    names = {"delay_level": "DELAY", "delay_sec": "TIMER_DELAY_SEC", "delay_ms": "TIMER_DELAY_MS",
             "deliver_at_ms": "TIMER_DELIVER_MS"}  # fmt: skip
    for field, name in names.items():
        message = OutgoingMessage(TOPIC, b"x", **{field: 7})
        assert message.is_delayed
        assert message.all_properties("U").items() >= {name: "7"}.items()


async def test_the_end_of_a_checked_message_is_traced_under_its_own_topic():
    """Brokers of 5.5 ask with the topic of half messages, which is to go back to them; the trace had that, too."""
    half = "RMQ_SYS_TRANS_HALF_TOPIC"
    properties = encode_properties({"PGROUP": "senders", "KEYS": "k"}).encode()
    asked = CheckTransaction(tran_state_table_offset=3, commit_log_offset=7, topic=half)
    record = encode_message(StoredMessage(TOPIC, b"x", properties))
    told = asyncio.get_running_loop().create_future()
    async with open_cluster("127.0.0.1:1") as cluster:
        check_back = CheckBack(cluster, "senders", Checks(COMMIT), lambda *end: told.set_result(end))
        await check_back.asked("127.0.0.1:1", Command(RequestCode.CHECK_TRANSACTION_STATE, asked.to_fields(), record))
        _, end, _, keys = await told
        await check_back.close()
    assert (end.topic, keys) == (TOPIC, "k")


# While the producer closes.


async def test_close_waits_for_a_transaction_and_its_end_is_told():
    began, go_on = asyncio.Event(), asyncio.Event()

    async def execute(*_):
        began.set()
        await go_on.wait()
        return COMMIT

    heard = []
    async with EmbeddedBroker(config=BrokerConfig()) as broker:
        broker.intercepts.append(lambda command: heard.append(command.code))
        producer = Producer(broker.name_server, "senders", check=Checks(), send_timeout_ms=PATIENT_MS)
        producer.start()
        done = asyncio.create_task(producer.send_in_transaction(OutgoingMessage(TOPIC, b"x"), execute))
        await began.wait()
        closing = asyncio.create_task(producer.close())
        for _ in range(10):
            await asyncio.sleep(0)
        with pytest.raises(UsageError, match="closed"):
            await producer.send(OutgoingMessage(TOPIC, b"y"))
        go_on.set()
        assert (await done).state is COMMIT
        await closing
    last = [RequestCode.END_TRANSACTION, RequestCode.UNREGISTER_CLIENT]
    assert [code for code in heard if code in last] == last


def test_close_of_another_thread_waits_for_a_transaction_and_its_end_is_told(served):
    began, go_on = threading.Event(), threading.Event()

    def execute(*_):
        began.set()
        assert go_on.wait(PATIENT_MS / 1000)
        return COMMIT

    ends = []
    served.broker.intercepts.append(
        lambda command: ends.append(command.fields) if command.code == RequestCode.END_TRANSACTION else None
    )
    producer = SyncProducer(served.broker.name_server, "senders", check=Checks(), send_timeout_ms=PATIENT_MS)
    with ThreadPoolExecutor(2) as threads:
        done = threads.submit(producer.send_in_transaction, OutgoingMessage(TOPIC, b"x"), execute)
        assert began.wait(PATIENT_MS / 1000)
        closing = threads.submit(producer.close)
        while not producer._closed:
            pass
        go_on.set()
        assert done.result().state is COMMIT
        closing.result()
    producer = SyncProducer(served.broker.name_server)
    producer.send(TOPIC, b"what came before is served by now")
    producer.close()
    assert [end["commitOrRollback"] for end in ends] == [str(COMMIT.value)]


class Interrupted(BaseException):
    """As the exception of a signal's handler."""


class Interrupts:
    """A hook that has the main thread interrupted once the half message is stored, and returns when it was."""

    def __init__(self):
        self.raised = threading.Event()

    def before_send(self, context):
        pass

    def after_send(self, context):
        if not self.raised.is_set():
            signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
            assert self.raised.wait(PATIENT_MS / 1000)

    def handle(self, *_):
        self.raised.set()
        raise Interrupted


def test_close_does_not_wait_for_a_transaction_that_was_interrupted(served, capsys):
    hook = Interrupts()
    before = signal.signal(signal.SIGUSR1, hook.handle)
    try:
        with SyncProducer(
            served.broker.name_server, "senders", check=Checks(), send_timeout_ms=PATIENT_MS, hooks=[hook]
        ) as producer:
            with pytest.raises(Interrupted):
                producer.send_in_transaction(OutgoingMessage(TOPIC, b"x"), lambda *_: COMMIT)
            runner = producer._works.runner
            assert runner.run(producer._works.producer._under_way.ended(0, closing=False)) == Left(0, 0)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert "closed_with_sends_under_way" not in capsys.readouterr().err


async def test_an_offset_id_that_is_none_does_not_hide_how_the_transaction_ended():
    answer = {"msgId": "no-offset-id", "queueId": "0", "queueOffset": "5"}
    async with transacting(Checks(), BrokerConfig()) as (broker, producer, _):
        broker.intercepts.append(lambda command: command.response(0, answer) if command.code == 310 else None)
        done = await producer.send_in_transaction(OutgoingMessage(TOPIC, b"x"), lambda *_: COMMIT)
        assert (done.state, done.error) == (COMMIT, None)


async def test_a_cluster_serves_the_next_transactional_producer_when_the_first_is_closed():
    async with EmbeddedBroker() as broker, open_cluster(broker.name_server) as cluster:
        for group in ("one", "two"):
            async with Producer(cluster, group, check=Checks()) as producer:
                await producer.send(OutgoingMessage(TOPIC, b"x"))
        assert cluster.remoting._on_connect == []


def test_close_does_not_wait_for_a_check_that_runs():
    began, go_on, over = threading.Event(), threading.Event(), threading.Event()

    def check(_):
        began.set()
        go_on.wait(PATIENT_MS / 1000)
        over.set()
        return COMMIT

    with LocalBroker(config=QUICK) as broker:
        producer = SyncProducer(broker.name_server, "senders", check=check, send_timeout_ms=PATIENT_MS)
        producer.send_in_transaction(OutgoingMessage(TOPIC, b"x"), lambda *_: UNKNOW)
        assert began.wait(PATIENT_MS / 1000)
        producer.close()
        assert not over.is_set()
        go_on.set()


@pytest.mark.parametrize("background", [True, False])
def test_without_a_check_a_transaction_is_refused_before_it_begins(served, background):
    with SyncProducer(served.broker.name_server, send_timeout_ms=PATIENT_MS, background=background) as producer:
        with pytest.raises(UsageError, match="transaction messages need a check"):
            producer.send_in_transaction(OutgoingMessage(TOPIC, b"x"), lambda *_: COMMIT)
        assert producer._works is None


async def test_nor_does_one_whose_caller_ends_it_himself():
    async with Producer("127.0.0.1:1", send_timeout_ms=PATIENT_MS) as producer:
        with pytest.raises(UsageError, match="transaction messages need a check"):
            await producer.begin_transaction(OutgoingMessage(TOPIC, b"x"), object())
        assert await producer._under_way.ended(0, closing=False) == Left(0, 0)
