"""Sending against the embedded broker; failures are made by its intercepts or by peers."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
import time
from random import Random

import pytest
from structlog.testing import capture_logs

from rocketcrew.broker.config import BrokerConfig
from rocketcrew.broker.server import EmbeddedBroker
from rocketcrew.client.access import Access
from rocketcrew.client.admin import Admin
from rocketcrew.client.cluster import Cluster
from rocketcrew.client.opening import open_cluster
from rocketcrew.client.outgoing import OutgoingMessage
from rocketcrew.client.producer import Producer, SendStatus
from rocketcrew.client.remoting_client import Remoting
from rocketcrew.client.selection import by_key, to_queue
from rocketcrew.client.sending import SendRules
from rocketcrew.remoting.bodies import BrokerData, QueueData, TopicRouteData
from rocketcrew.remoting.codes import RequestCode
from rocketcrew.remoting.command import Command
from rocketcrew.remoting.compression import Compression
from rocketcrew.remoting.errors import BrokerError, TimedOutError, UnreachableError, UsageError
from rocketcrew.remoting.queues import MessageQueue

from .clusters import Moves
from .conftest import PATIENT_MS

TOPIC = "orders"
STORED = {"msgId": "x", "queueId": "0", "queueOffset": "1"}
SEND_CODES = (310, 320)
DEADLINE_MS = 200


@contextlib.asynccontextmanager
async def sending(**options):
    async with EmbeddedBroker() as broker, open_cluster(broker.name_server) as cluster:
        yield broker, Producer(cluster, "senders", **{"send_timeout_ms": PATIENT_MS, **options}), Admin(cluster)


class Refusals:
    """Answers the next sends with these codes, then lets them through."""

    def __init__(self, *codes):
        self.codes = list(codes)
        self.seen = []

    def __call__(self, command):
        if command.code not in SEND_CODES:
            return None
        self.seen.append(command)
        return command.response(self.codes.pop(0), remark="refused by the test") if self.codes else None


async def test_a_message_arrives_as_it_was_sent():
    async with sending() as (broker, producer, admin):
        message = OutgoingMessage(
            TOPIC, b"body", tags="red", keys=["k1", "k2"], properties={"colour": "rot", "größe": "5"}, flag=7
        )
        result = await producer.send(message)
        assert (result.status, result.attempts, result.queue_offset) == (SendStatus.SEND_OK, 1, 0)
        assert (result.mq.topic, result.mq.broker_name) == (TOPIC, broker.config.name)
        stored = await admin.view_message(result.offset_message_id)
        assert (stored.topic, stored.body, stored.flag, stored.queue_id) == (TOPIC, b"body", 7, result.mq.queue_id)
        expected = {"TAGS": "red", "KEYS": "k1 k2", "colour": "rot", "größe": "5", "UNIQ_KEY": result.message_id}
        assert expected.items() <= stored.properties.items()
        assert len(result.message_id) == 32


async def test_a_topic_is_created_by_the_first_message_with_four_queues():
    async with sending() as (_, producer, _):
        await producer.send(OutgoingMessage("brand-new", b"x"))
        assert len(await producer.cluster.queues_to_write("brand-new", refresh=True)) == 4


async def test_queues_take_turns():
    async with sending() as (_, producer, _):
        queues = [(await producer.send(OutgoingMessage(TOPIC, b"x"))).mq.queue_id for _ in range(8)]
        assert sorted(queues[:4]) == sorted(queues[4:]) == [0, 1, 2, 3]


@pytest.mark.parametrize("kind", Compression)
async def test_compression_round_trip(kind):
    body = b"compress me " * 1000
    async with sending(compression=kind) as (_, producer, admin):
        result = await producer.send(OutgoingMessage(TOPIC, body))
        stored = await admin.view_message(result.offset_message_id)
        assert len(stored.body) < len(body) / 5
        assert stored.sysflag & 1
        assert stored.decompressed_body() == body


async def test_small_or_incompressible_bodies_are_sent_as_they_are():
    noise = Random(1).randbytes(8192)
    async with sending() as (_, producer, admin):
        for body in (b"x" * 4095, noise):
            result = await producer.send(OutgoingMessage(TOPIC, body))
            stored = await admin.view_message(result.offset_message_id)
            assert (stored.body, stored.sysflag & 1) == (body, 0)


async def test_a_batch_is_stored_as_its_messages_in_one_queue():
    async with sending() as (_, producer, admin):
        messages = [OutgoingMessage(TOPIC, str(n).encode(), tags=f"t{n}", properties={"n": str(n)}) for n in range(10)]
        result = await producer.send_batch(messages)
        assert (result.queue_offset, result.status) == (0, SendStatus.SEND_OK)
        ids = result.offset_message_id.split(",")
        assert len(ids) == len(set(result.message_id.split(","))) == 10
        for n, offset_id in enumerate(ids):
            stored = await admin.view_message(offset_id)
            assert (stored.body, stored.queue_offset, stored.queue_id) == (str(n).encode(), n, result.mq.queue_id)
            assert stored.properties["TAGS"] == f"t{n}"


async def test_oneway():
    async with sending() as (broker, producer, admin):
        refusals = Refusals()
        broker.intercepts.append(refusals)
        message_id = await producer.send_oneway(OutgoingMessage(TOPIC, b"x"))
        await producer.send(OutgoingMessage(TOPIC, b"y"))  # behind it on the same connection
        assert [command.is_oneway for command in refusals.seen] == [True, False]
        stats = await admin.topic_stats(TOPIC)
        assert sum(entry.max_offset for entry in stats.offset_table.values()) == 2
        assert len(message_id) == 32


async def test_a_delayed_message_is_marked_so():
    async with sending() as (broker, producer, _):
        refusals = Refusals()
        broker.intercepts.append(refusals)
        await producer.send(OutgoingMessage(TOPIC, b"later", delay_level=3))
        assert "DELAY\x013\x02" in refusals.seen[0].fields["i"]
        assert "WAIT\x01true\x02" in refusals.seen[0].fields["i"]


async def test_selectors_choose_the_queue():
    async with sending() as (_, producer, _):
        chosen = {
            key: [(await producer.send(OutgoingMessage(TOPIC, b"x"), selector=by_key(key))).mq for _ in range(3)]
            for key in ("a", "b", "polygenelubricants")
        }
        assert all(len(set(queues)) == 1 for queues in chosen.values())
        assert chosen["a"][0].queue_id == 97 % 4
        target = (await producer.queues(TOPIC))[2]
        assert (await producer.send(OutgoingMessage(TOPIC, b"x"), selector=to_queue(target))).mq == target
        with pytest.raises(UsageError, match="queue 9 of topic orders on broker embedded cannot be written"):
            await producer.send(OutgoingMessage(TOPIC, b"x"), selector=to_queue(MessageQueue(TOPIC, "embedded", 9)))


async def test_system_busy_is_tried_again():
    async with sending() as (broker, producer, admin):
        broker.intercepts.append(refusals := Refusals(2, 2))
        result = await producer.send(OutgoingMessage(TOPIC, b"x"))
        assert (result.attempts, len(refusals.seen)) == (3, 3)
        assert len({command.fields["i"] for command in refusals.seen}) == 1  # one id for all attempts
        assert (await admin.view_message(result.offset_message_id)).body == b"x"


async def test_after_all_attempts_the_error_says_what_was_tried():
    async with sending(retries=1) as (broker, producer, _):
        broker.intercepts.append(Refusals(2, 2, 2))
        with pytest.raises(BrokerError) as caught:
            await producer.send(OutgoingMessage(TOPIC, b"x"))
        assert caught.value.code == 2
        assert "sent 2 times" in str(caught.value)
        assert "embedded, embedded" in str(caught.value)


@pytest.mark.parametrize(("code", "attempts"), [(13, 1), (29, 1), (15, 1), (1, 3), (14, 3), (16, 3), (205, 3)])
async def test_only_what_may_pass_is_tried_again(code, attempts):
    async with sending() as (broker, producer, _):
        broker.intercepts.append(refusals := Refusals(*[code] * 5))
        with pytest.raises(BrokerError) as caught:
            await producer.send(OutgoingMessage(TOPIC, b"x"))
        assert (caught.value.code, len(refusals.seen)) == (code, attempts)


async def test_a_selector_may_change_the_list_that_it_is_given():
    async with sending() as (_, producer, _):
        queues = await producer.queues(TOPIC)

        def largest(given):
            given.sort(reverse=True)
            return given.copy().pop(0)

        for _ in range(2):
            assert (await producer.send(OutgoingMessage(TOPIC, b"x"), selector=largest)).mq == max(queues)
        assert await producer.queues(TOPIC) == queues


async def test_with_a_selector_there_is_one_attempt():
    async with sending() as (broker, producer, _):
        broker.intercepts.append(refusals := Refusals(2))
        with pytest.raises(BrokerError):
            await producer.send(OutgoingMessage(TOPIC, b"x"), selector=by_key("k"))
        assert len(refusals.seen) == 1


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (10, SendStatus.FLUSH_DISK_TIMEOUT),
        (11, SendStatus.SLAVE_NOT_AVAILABLE),
        (12, SendStatus.FLUSH_SLAVE_TIMEOUT),
    ],
)
async def test_stored_but_not_as_safely_as_wished(code, status):
    fields = {"msgId": "7F00000100002A9F0000000000000000", "queueId": "1", "queueOffset": "5"}
    async with sending() as (broker, producer, _):
        broker.intercepts.append(lambda command: command.response(code, fields) if command.code == 310 else None)
        result = await producer.send(OutgoingMessage(TOPIC, b"x"))
        assert (result.status, result.mq.queue_id, result.queue_offset) == (status, 1, 5)


def two_brokers(*addresses):
    """A name server's answer: the topic is on brokers a, b, ..., at these addresses."""
    names = [chr(ord("a") + index) for index in range(len(addresses))]
    route = TopicRouteData(
        tuple(QueueData(name, 4, 4, 6) for name in names),
        tuple(BrokerData(name, {0: address}) for name, address in zip(names, addresses, strict=True)),
    )
    return lambda command: command.response(0, body=route.encode())


@contextlib.asynccontextmanager
async def producer_at(name_server, seed=3, clock=time.monotonic, **options):
    remoting = Remoting()
    cluster = Cluster(name_server, client_id="127.0.0.1@test", remoting=remoting, clock=clock, random=Random(seed))
    try:
        async with Producer(cluster, "senders", **{"send_timeout_ms": PATIENT_MS, **options}) as producer:
            yield producer
    finally:
        await cluster.close()
        await remoting.close()


@pytest.mark.parametrize("seed", range(4))
async def test_a_failed_broker_is_avoided_by_the_retry(make_peer, closed_port, seed):
    async with (
        EmbeddedBroker(config=BrokerConfig(name="b")) as broker,
        make_peer(two_brokers(closed_port, broker.address)) as names,
        producer_at(names.address, seed) as producer,
    ):
        results = [await producer.send(OutgoingMessage(TOPIC, b"x")) for _ in range(8)]
        assert {result.mq.broker_name for result in results} == {"b"}
        assert max(result.attempts for result in results) == 2


async def test_all_brokers_down(make_peer, closed_port):
    async with (
        make_peer(two_brokers(closed_port, closed_port)) as names,
        producer_at(names.address, clock=itertools.count(1000).__next__) as producer,
    ):
        with pytest.raises(UnreachableError, match=r"cannot connect.*sent 3 times in \d+ ms, to [ab], [ab], [ab]"):
            await producer.send(OutgoingMessage(TOPIC, b"x"))


async def test_no_name_server(closed_port):
    async with producer_at(closed_port) as producer:
        with pytest.raises(UnreachableError, match="no name server answered"):
            await producer.send(OutgoingMessage(TOPIC, b"x"))


async def test_a_broker_that_never_answers_costs_the_deadline_and_not_more(make_peer):
    async with (
        make_peer(lambda command: None) as silent,
        make_peer(two_brokers(silent.address)) as names,
        producer_at(names.address, send_timeout_ms=DEADLINE_MS) as producer,
    ):
        await producer.queues(TOPIC)
        await producer.cluster.remoting.oneway(silent.address, Command(RequestCode.HEART_BEAT))
        # Route and connection are there: all of the time is the send's.
        with pytest.raises(TimedOutError, match=r"no answer to SEND_MESSAGE_V2 \(310\) within \d+ ms") as caught:
            await producer.send(OutgoingMessage(TOPIC, b"x"))
        (within_ms,) = re.findall(r"within (\d+) ms", str(caught.value))
        assert int(within_ms) <= DEADLINE_MS
        assert [command.code for command in silent.requests].count(RequestCode.SEND_MESSAGE_V2) == 1


async def test_a_silent_broker_keeps_no_other_from_a_producer_s_heartbeat(make_peer):
    heard = asyncio.Event()

    def answer(command):
        if command.code == RequestCode.HEART_BEAT:
            heard.set()
        return command.response(0)

    async with (
        make_peer(lambda command: None) as silent,
        make_peer(answer) as other,
        make_peer(two_brokers(silent.address, other.address)) as names,
        producer_at(names.address, heartbeat_interval_ms=10) as producer,
    ):
        await producer.queues(TOPIC)
        # At once: a heartbeat in between would go to the silent one alone, and the next waits until that one's time is over.
        remoting, command = producer.cluster.remoting, Command(RequestCode.GET_BROKER_CONFIG)
        await asyncio.gather(*(remoting.oneway(peer.address, command) for peer in (silent, other)))
        with capture_logs() as logs:
            await heard.wait()
        assert not logs, "the silent one's time was not over"


async def test_a_connection_that_dies_under_a_send_is_made_anew():
    async with sending() as (broker, producer, _):
        await producer.send(OutgoingMessage(TOPIC, b"x"))
        producer.cluster.remoting.connection_of(broker.address).abort("cut by the test")
        assert (await producer.send(OutgoingMessage(TOPIC, b"y"))).attempts <= 2


async def test_many_at_once_keep_their_order_of_results():
    async with sending() as (_, producer, admin):
        results = await producer.send_many(OutgoingMessage(TOPIC, str(n).encode()) for n in range(500))
        bodies = [(await admin.view_message(result.offset_message_id)).body for result in results[::50]]
        assert bodies == [str(n).encode() for n in range(0, 500, 50)]
        assert len({result.message_id for result in results}) == 500


async def test_send_many_stops_at_the_first_failure():
    drawn = []

    def source():
        for n in range(1000):
            drawn.append(n)
            yield OutgoingMessage(TOPIC, b"x")

    async with sending(retries=0) as (broker, producer, _):
        broker.intercepts.append(Refusals(13))
        with pytest.raises(BrokerError):
            await producer.send_many(source(), in_flight_max=10)
        assert len(drawn) < 100


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (OutgoingMessage("", b"x"), "the topic is blank"),
        (OutgoingMessage("a b", b"x"), "illegal characters"),
        (OutgoingMessage("x" * 128, b"x"), "at most 127"),
        (OutgoingMessage("SCHEDULE_TOPIC_XXXX", b"x"), "forbidden"),
        (OutgoingMessage(TOPIC, b""), "empty body"),
        (OutgoingMessage(TOPIC, bytes(4 * 1024 * 1024 + 1)), "4194305 bytes; at most 4194304"),
        (OutgoingMessage(TOPIC, b"x", delay_level=128), "delay level 128 is outside 0..127"),
        (OutgoingMessage(TOPIC, b"x", flag=1 << 31), "flag 2147483648 is not an int32"),
        (OutgoingMessage(TOPIC, b"x", properties={"TAGS": "t"}), "'TAGS' is used by the system"),
        (OutgoingMessage(TOPIC, b"x", properties={"UNIQ_KEY": "t"}), "'UNIQ_KEY' is used by the system"),
        (OutgoingMessage(TOPIC, b"x", properties={"a": " "}), "may be blank"),
        (OutgoingMessage(TOPIC, b"x", properties={"": "a"}), "may be blank"),
        (OutgoingMessage(TOPIC, b"x", properties={"a": "b\x02c"}), "separator"),
        (OutgoingMessage(TOPIC, b"x", tags="a\x01b"), "TAGS"),
        (OutgoingMessage(TOPIC, b"x", properties={"a": "b" * 32_767}), "at most 32767"),
    ],
)
async def test_what_cannot_be_sent_is_said_before_it_is(message, text, closed_port):
    async with producer_at(closed_port) as producer:
        for send in (producer.send(message), producer.send_oneway(message), producer.send_batch([message])):
            with pytest.raises(UsageError, match=text):
                await send


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ([], "1..10000 messages, not 0"),
        ([OutgoingMessage("a", b"x"), OutgoingMessage("b", b"x")], "one topic, not a and b"),
        ([OutgoingMessage("a", b"x"), OutgoingMessage("a", b"x", wait_stored=False)], "wait_stored"),
        ([OutgoingMessage("a", b"x", delay_level=1)], "cannot be delayed"),
        ([OutgoingMessage("%RETRY%g", b"x")], "retry topic"),
        ([OutgoingMessage("a", bytes(3 << 20))] * 2, "split it"),
    ],
)
async def test_batches_that_cannot_be(messages, text, closed_port):
    async with producer_at(closed_port) as producer:
        with pytest.raises(UsageError, match=text):
            await producer.send_batch(messages)


@pytest.mark.parametrize("group", ["", "a b", "x" * 256, "DEFAULT_PRODUCER"])
async def test_bad_groups(group):
    async with open_cluster("127.0.0.1:1") as cluster:
        with pytest.raises(UsageError, match="group"):
            Producer(cluster, group)


async def test_forwarded_messages_keep_their_system_properties():
    async with sending() as (_, producer, admin):
        message = OutgoingMessage("%DLQ%g", b"x", system_properties={"RETRY_TOPIC": "t", "UNIQ_KEY": "0" * 32})
        result = await producer.send(message)
        assert result.message_id == "0" * 32
        assert (await admin.view_message(result.offset_message_id)).properties["RETRY_TOPIC"] == "t"


async def test_the_header_of_a_resend_to_a_retry_topic_carries_its_numbers():
    async with sending() as (broker, producer, _):
        broker.intercepts.append(refusals := Refusals())
        numbers = {"RECONSUME_TIME": "3", "MAX_RECONSUME_TIMES": "16"}
        await producer.send(OutgoingMessage("%RETRY%g", b"x", system_properties=numbers))
        assert (refusals.seen[0].fields["j"], refusals.seen[0].fields["l"]) == ("3", "16")


async def test_heartbeats_go_to_the_masters_in_use_and_close_unregisters():
    heard = asyncio.Queue()

    def listen(command):
        if command.code in (34, 35):
            heard.put_nowait((command.code, bytes(command.body), dict(command.fields)))

    async with EmbeddedBroker() as broker:
        broker.intercepts.append(listen)
        async with producer_at(broker.name_server, heartbeat_interval_ms=20) as producer:
            await producer.send(OutgoingMessage(TOPIC, b"x"))
            code, body, _ = await heard.get()
            assert (code, b'"groupName":"senders"' in body) == (34, True)
            assert (await heard.get())[0] == 34
        while code != 35:
            code, _, fields = await heard.get()
        assert (fields["producerGroup"], fields["clientID"]) == ("senders", "127.0.0.1@test")
        with pytest.raises(UsageError, match="closed"):
            producer.start()
        await producer.close()


async def test_a_broker_that_is_at_another_port_is_found_before_the_next_poll(make_peer, closed_port):
    where, asked, now_s = [closed_port], asyncio.Event(), [0.0]

    def names(command):
        if where[0] != closed_port:
            asked.set()
        return two_brokers(*where)(command)

    async with (
        EmbeddedBroker(config=BrokerConfig(name="a")) as broker,
        make_peer(names) as server,
        producer_at(server.address, clock=lambda: now_s[0], retries=0) as producer,
    ):
        await producer.queues(TOPIC)
        where[0] = broker.address
        now_s[0] += 1
        with pytest.raises(UnreachableError, match="cannot connect"):
            await producer.send(OutgoingMessage(TOPIC, b"x"))
        await asked.wait()
        await producer.cluster.route(TOPIC, refresh=True)  # the same question, where it is not answered yet
        assert (await producer.send(OutgoingMessage(TOPIC, b"x"))).attempts == 1


@contextlib.asynccontextmanager
async def losing_its_route(make_peer, *answers, **options):
    """A producer whose broker gives these answers; after the first its topic may not be written any more."""
    now_s, perms, answers = [0.0], [6, 4], list(answers)

    def names(command):
        perm = perms.pop(0) if len(perms) > 1 else perms[0]
        route = TopicRouteData((QueueData("b", 1, 1, perm),), (BrokerData("b", {0: broker.address}),))
        return command.response(0, body=route.encode())

    def broken(command):
        now_s[0] += 60
        return command.response(answers.pop(0), STORED)

    async with (
        make_peer(broken) as broker,
        make_peer(names) as name_server,
        producer_at(
            name_server.address, clock=lambda: now_s[0], heartbeat_interval_ms=PATIENT_MS, **options
        ) as producer,
    ):
        yield producer


async def test_what_is_stored_is_sent_though_no_further_queue_is_known(make_peer):
    async with losing_its_route(make_peer, 10, rules=SendRules(retry_unless_ok=True)) as producer:
        result = await producer.send(OutgoingMessage(TOPIC, b"x"))
        assert (result.status, result.attempts) == (SendStatus.FLUSH_DISK_TIMEOUT, 1)


async def test_where_no_further_queue_is_known_the_error_says_what_was_tried(make_peer):
    async with losing_its_route(make_peer, 2) as producer:
        with pytest.raises(UnreachableError, match=r"on a broker with a master \(sent once in \d+ ms, to b\)"):
            await producer.send(OutgoingMessage(TOPIC, b"x"))


async def test_what_is_stored_is_sent_though_the_next_answer_is_none(make_peer):
    answers = [(10, STORED), (0, {})]
    async with (
        make_peer(lambda command: command.response(*answers.pop(0))) as broker,
        make_peer(two_brokers(broker.address)) as names,
        producer_at(names.address, heartbeat_interval_ms=PATIENT_MS, rules=SendRules(retry_unless_ok=True)) as producer,
    ):
        result = await producer.send(OutgoingMessage(TOPIC, b"x"))
        assert (result.status, answers) == (SendStatus.FLUSH_DISK_TIMEOUT, [])


@pytest.mark.parametrize("send", [Producer.send, Producer.send_oneway])
async def test_a_send_to_a_broker_without_an_address_waits_for_a_silent_name_server_no_longer_than_it_may(
    make_peer, send
):
    def names(command):
        ordered = TopicRouteData(order_topic_conf="a:1")  # and no broker has that name
        return command.response(0, body=ordered.encode()) if len(name_server.requests) == 1 else None

    access = Access("127.0.0.1:1", request_timeout_ms=PATIENT_MS)
    async with make_peer(names) as name_server, Producer(access) as producer:
        producer.cluster.name_servers.update(name_server.address)
        await producer.queues(TOPIC)
        with pytest.raises(TimedOutError, match="no name server has said in time where it is"):
            await send(producer, OutgoingMessage(TOPIC, b"x"), timeout_ms=DEADLINE_MS)


async def test_a_name_server_that_is_silent_does_not_hold_up_heartbeats(make_peer):
    heard = asyncio.Queue()

    def listen(command):
        heard.put_nowait(command.code)
        return command.response(0, STORED)

    async with (
        make_peer(listen) as broker,
        make_peer(Moves(broker.address, None)) as name_server,
        producer_at(name_server.address, heartbeat_interval_ms=1) as producer,
    ):
        await producer.send(OutgoingMessage(TOPIC, b"x"))
        codes = [await heard.get() for _ in range(20)]
        assert codes.count(34) == 19
        assert len(name_server.requests) <= 2, "it was asked, and has not answered"


# One loop.


@pytest.mark.parametrize("call", ["start", "send", "send_batch", "queues", "recall", "close"])
def test_in_another_loop_than_that_of_its_first_call_it_refuses(served, call):
    producer = Producer(served.broker.name_server, send_timeout_ms=PATIENT_MS)
    calls = {
        "send": lambda: producer.send(TOPIC, b"y"),
        "send_batch": lambda: producer.send_batch([OutgoingMessage(TOPIC, b"y")]),
        "queues": lambda: producer.queues(TOPIC),
        "recall": lambda: producer.recall(TOPIC, "handle"),
        "close": producer.close,
    }

    async def other():
        if call == "start":
            producer.start()
        else:
            await calls[call]()

    async def both():
        await producer.send(TOPIC, b"x")
        with pytest.raises(UsageError, match="the event loop that made its first call"):
            await asyncio.to_thread(asyncio.run, other())
        assert (await producer.send(TOPIC, b"z")).mq.topic == TOPIC
        await producer.close()

    asyncio.run(both())
