"""Messages looked for and looked at: what a word may name, filters, and reading a topic without a group."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from rocketcrew.broker.server import EmbeddedBroker
from rocketcrew.cli.finding import Search, matches, read_clue
from rocketcrew.cli.messages import Filter, line_of, newest, oldest_since
from rocketcrew.client.access import Access
from rocketcrew.client.admin import Admin
from rocketcrew.client.cluster import Cluster
from rocketcrew.client.opening import open_cluster
from rocketcrew.client.outgoing import OutgoingMessage
from rocketcrew.client.producer import Producer
from rocketcrew.remoting.admin_bodies import TopicConfig
from rocketcrew.remoting.errors import BrokerError
from rocketcrew.remoting.ids import offset_message_id
from rocketcrew.remoting.properties import encode_properties
from rocketcrew.remoting.stored import StoredMessage

ID = offset_message_id("10.0.0.5", 10911, 77)


@pytest.mark.parametrize(
    ("text", "offset_id", "place"),
    [
        (ID, True, None),
        ("order-17", False, None),
        ("broker-a/0/17", False, ("", "broker-a", 0, 17)),
        ("orders/broker-a/0/17", False, ("orders", "broker-a", 0, 17)),
        ("%DLQ%billing/b/3/0", False, ("%DLQ%billing", "b", 3, 0)),
        ("a/b/c", False, None),
        ("1/2", False, None),
        ("broker-a/0/²", False, None),
        ("0" * 31, False, None),
    ],
)
def test_what_a_word_may_be(text: str, offset_id: bool, place: tuple[str, str, int, int] | None) -> None:
    clue = read_clue(text)
    assert (clue.offset_id is not None, clue.place, clue.text) == (offset_id, place, text)


def stored(body: bytes = b"x", **properties: str) -> StoredMessage:
    return StoredMessage("orders", body, encode_properties(properties).encode(), queue_offset=7)


def test_an_answer_of_the_index_may_be_another_s() -> None:
    message = stored(UNIQ_KEY="u1", KEYS="a bc")
    assert [matches(message, text) for text in ("u1", "bc", "b", "u")] == ["unique key", "key", "", ""]


def test_a_key_may_have_any_white_space_but_a_blank() -> None:
    """Brokers index what is between blanks; it was found there, and then taken for another's."""
    message = stored(KEYS="Jan\u3000Novak a\tb  c")
    found = [matches(message, text) for text in ("Jan\u3000Novak", "a\tb", "c", "Novak", "a", "")]
    assert found == ["key", "key", "key", "", "", ""]
    assert Filter(key="a\tb").takes(message)


def test_a_filter_wants_all_that_it_says() -> None:
    message = stored(b'{"city": "Cologne"}', TAGS="paid", KEYS="a b", region="eu")
    for good in (
        Filter(),
        Filter("paid"),
        Filter(key="b"),
        Filter(text="cologne"),
        Filter(properties=(("region", "eu"),)),
    ):
        assert good.takes(message), good
    for bad in (Filter("pai"), Filter(key="c"), Filter(text="bonn"), Filter("paid", properties=(("region", "us"),))):
        assert not bad.takes(message), bad


def test_a_message_on_one_line() -> None:
    line = line_of(stored(b"two\nlines", TAGS="paid", KEYS="a b"), "broker-a", "auto")
    assert line == "1970-01-01T00:00:00.000Z  broker-a/0/7  tag=paid  key=a b  two lines"


def play(scene: Callable[[EmbeddedBroker, Cluster], Awaitable[None]], queues: int = 1) -> None:
    async def run() -> None:
        async with EmbeddedBroker() as broker, open_cluster(broker.name_server) as cluster:
            await Admin(cluster).create_topic(broker.address, TopicConfig("orders", queues, queues))
            await scene(broker, cluster)

    asyncio.run(run())


def test_a_message_is_found_by_everything_that_names_it() -> None:
    async def scene(broker: EmbeddedBroker, cluster: Cluster) -> None:
        producer = Producer(cluster, "senders")
        sent = [await producer.send(OutgoingMessage("orders", b"%d" % n, keys=[f"k{n}", "same"])) for n in range(3)]
        search = Search(cluster, Access(cluster.access.name_servers), ())
        one = sent[1]
        place = f"{one.mq.broker_name}/{one.mq.queue_id}/{one.queue_offset}"
        for text, by in (
            (one.message_id, "unique key"), (one.offset_message_id, "message id"), ("k1", "key"),
            (place, "offset"), (f"orders/{place}", "offset"),
        ):  # fmt: skip
            (found,) = await search.all_of(text)
            assert (found.message.body, found.by) == (b"1", by), text
        assert sorted(one.message.body for one in await search.all_of("same")) == [b"0", b"1", b"2"]
        for nothing in ("k9", "orders/nobody/0/0", f"orders/{one.mq.broker_name}/{one.mq.queue_id}/99", ID[:31] + "0"):
            assert await search.all_of(nothing) == [], nothing
        assert search.silent == []
        gone = offset_message_id("127.0.0.1", 1, 77)
        assert await search.all_of(gone) == []
        assert search.away[gone] == "127.0.0.1:1"
        with pytest.raises(BrokerError):
            await Search(cluster, cluster.access, ("nosuch",)).all_of("k1")

    play(scene)


def test_the_newest_and_the_first_messages_of_a_topic() -> None:
    async def scene(broker: EmbeddedBroker, cluster: Cluster) -> None:
        producer = Producer(cluster, "senders")
        for n in range(80):
            await producer.send(OutgoingMessage("orders", b"%d" % n, tags="even" if n % 2 == 0 else "odd"))
        bodies = [one.body for _, one in await newest(cluster, "orders", 3, Filter(), {})]
        assert bodies == [b"77", b"78", b"79"]
        far_back = [one.body for _, one in await newest(cluster, "orders", 2, Filter(text="0"), {})]
        assert far_back == [b"60", b"70"]
        first = await oldest_since(cluster, "orders", 2, Filter("odd"), {}, 0)
        assert [one.body for _, one in first] == [b"1", b"3"]
        last_ms = (await newest(cluster, "orders", 1, Filter(), {}))[0][1].store_timestamp_ms
        since = await oldest_since(cluster, "orders", 80, Filter(), {}, last_ms)
        assert b"79" in {one.body for _, one in since}
        assert all(one.store_timestamp_ms >= last_ms for _, one in since)
        assert await oldest_since(cluster, "orders", 80, Filter(), {}, last_ms + 1) == []

    play(scene)


def test_queues_are_merged_by_the_time_of_their_messages() -> None:
    async def scene(broker: EmbeddedBroker, cluster: Cluster) -> None:
        producer = Producer(cluster, "senders")
        for n in range(40):
            await producer.send(OutgoingMessage("orders", b"%d" % n))
        for found in (
            await newest(cluster, "orders", 25, Filter(), {}),
            await oldest_since(cluster, "orders", 25, Filter(), {}, 0),
        ):
            times = [one.store_timestamp_ms for _, one in found]
            assert (len(times), sorted(times)) == (25, times)
            assert len({one.queue_id for _, one in found}) == 2

    play(scene, queues=2)
