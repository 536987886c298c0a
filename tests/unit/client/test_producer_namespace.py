"""A producer in a namespace: brokers see the wrapped names, the user the plain ones."""

from __future__ import annotations

import asyncio

from rocketcrew.broker.config import BrokerConfig
from rocketcrew.broker.server import EmbeddedBroker
from rocketcrew.client.access import Access
from rocketcrew.client.admin import Admin
from rocketcrew.client.outgoing import OutgoingMessage
from rocketcrew.client.producer import Producer
from rocketcrew.client.transactions import LocalTransactionState
from rocketcrew.remoting.queues import MessageQueue

SPACE = "MQ_INST_1"
WRAPPED = f"{SPACE}%orders"


def producer_of(broker, **more):
    return Producer(Access(broker.name_server, namespace=SPACE, unit_mode=True), "senders", **more)


async def test_every_way_of_sending_wraps_the_topic_once():
    seen, sent = [], []

    def remember(command):
        sent.append(command)

    async with EmbeddedBroker() as broker, producer_of(broker) as producer:
        broker.intercepts.append(remember)

        def second(queues):
            seen.extend(queues)
            return queues[1]

        message = OutgoingMessage("orders", b"x", keys="k", properties={"own": "1"})
        plain = await producer.send(message)
        chosen = await producer.send(message, selector=second)
        batch = await producer.send_batch([message, message])
        again = await producer.send(OutgoingMessage(WRAPPED, b"x"))
        assert {found.mq.topic for found in (plain, chosen, batch, again)} == {"orders"}
        assert {mq.topic for mq in seen} == {"orders"}
        assert chosen.mq.queue_id == 1
        queues = await producer.queues("orders")
        assert queues == [MessageQueue("orders", broker.config.name, number) for number in range(4)]
        stored = await Admin(producer.cluster).view_message(plain.offset_message_id)
        assert stored.topic == WRAPPED
        assert {"INSTANCE_ID": SPACE, "own": "1"}.items() <= stored.properties.items()
        assert WRAPPED in await Admin(producer.cluster).topic_list()
        assert "orders" not in await Admin(producer.cluster).topic_list()
        headers = [command.fields for command in sent if command.code in (310, 320)]
        assert {(fields["a"], fields["b"], fields["k"]) for fields in headers} == {
            (f"{SPACE}%senders", WRAPPED, "true")
        }


async def test_transactions_are_asked_for_by_the_plain_topic():
    asked = asyncio.Queue()

    async def check(message):
        asked.put_nowait(message)
        return LocalTransactionState.COMMIT_MESSAGE

    config = BrokerConfig(transaction_timeout_ms=20, transaction_check_interval_ms=50)
    async with EmbeddedBroker(config=config) as broker, producer_of(broker, check=check) as producer:
        half = await producer.send_half(OutgoingMessage("orders", b"x"))
        assert (await asked.get()).topic == "orders"
        assert half.mq.topic == "orders"
