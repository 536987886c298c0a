"""What a table has lost, run again: failures, rows that do not fit, kinds of handlers, inner batches, and what is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rocketcrew.broker.server import EmbeddedBroker
from rocketcrew.cli.rerunning import Rerun, fetch
from rocketcrew.client.opening import open_cluster
from rocketcrew.client.outgoing import OutgoingMessage
from rocketcrew.client.producer import Producer
from rocketcrew.client.selection import to_queue
from rocketcrew.durable.intervals import IntervalSet, OffsetSet, QueueKey
from rocketcrew.remoting.batch import encode_batch
from rocketcrew.remoting.codes import SYSFLAG_INNER_BATCH, SYSFLAG_NEED_UNWRAP
from rocketcrew.remoting.errors import UsageError
from rocketcrew.remoting.properties import encode_properties
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.remoting.stored import StoredMessage, decode_message, encode_message
from rocketcrew.workers.api import BatchResult, handler
from rocketcrew.workers.boot import TableSpec
from rocketcrew.workers.loading import HandlerSpec, describe
from rocketcrew.workers.message import Message

KEY = QueueKey("g", "orders", "b", 0)
Fetched = list[tuple[QueueKey, bytes]]


def record(offset: int, body: bytes, sysflag: int = 0) -> tuple[QueueKey, bytes]:
    return KEY, encode_message(StoredMessage("orders", body, queue_offset=offset, sysflag=sysflag))


def records(*bodies: bytes) -> Fetched:
    return [record(offset, body) for offset, body in enumerate(bodies)]


def inner_batch(first: int, *bodies: bytes) -> tuple[QueueKey, bytes]:
    """One record that holds several messages."""
    return record(first, encode_batch([(0, body, b"") for body in bodies]), SYSFLAG_INNER_BATCH | SYSFLAG_NEED_UNWRAP)


def run(folder: Path, target: object, fetched: Fetched) -> Rerun:
    with Rerun(describe(target), "", folder / "segments", "g", "") as rerun:
        rerun.run(fetched)
    return rerun


def rows(folder: Path) -> dict[int, list[int]]:
    """The column n of all sealed rows, by offset."""
    found: dict[int, list[int]] = {}
    for path in sorted((folder / "segments").glob("ready/*")):
        table: Any = pa.ipc.open_stream(path.read_bytes()).read_all()
        for offset, value in zip(table.column("_offset").to_pylist(), table.column("n").to_pylist(), strict=True):
            found.setdefault(offset, []).append(value)
    return found


def offsets(found: OffsetSet) -> list[tuple[int, int]]:
    return list(found.queues[KEY].pieces) if KEY in found.queues else []


@handler(schema="n bigint")
def number(message: Message) -> Any:
    if message.body == b"twice":
        return [{"n": 2}, {"n": 22}]
    if message.body == b"text":
        return {"n": "no number"}
    if message.body == b"stranger":
        return {"m": 1}
    return None if message.body == b"none" else {"n": int(message.body)}


def test_what_fails_and_what_does_not_fit_is_named_and_the_others_have_their_rows(tmp_path: Path) -> None:
    found = run(tmp_path, number, records(b"1", b"oops", b"none", b"text", b"twice", b"stranger", b"6"))
    assert rows(tmp_path) == {0: [1], 4: [2, 22], 6: [6]}
    assert offsets(found.finished()) == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert found.handled == 4
    assert {offset: key for key, offset in found.failed} == {1: KEY, 3: KEY, 5: KEY}
    assert "ValueError" in found.failed[KEY, 1]
    assert "n" in found.failed[KEY, 3]
    assert "m" in found.failed[KEY, 5]


@handler(schema="n bigint", batch=True)
def listed(messages: Sequence[Message]) -> list[dict[str, int]]:
    return [{"n": int(message.body)} for message in messages]


@handler(schema="n bigint", batch=True)
def half_taken(messages: Sequence[Message]) -> BatchResult:
    return BatchResult([{"n": int(message.body)} for message in messages], ack_index=len(messages) // 2 - 1)


@handler(schema="n bigint")
async def awaited(message: Message) -> dict[str, int]:
    await asyncio.sleep(0)
    return {"n": int(message.body)}


@handler(schema="n bigint", batch=True)
async def awaited_list(messages: Sequence[Message]) -> list[dict[str, int]]:
    await asyncio.sleep(0)
    return [{"n": int(message.body)} for message in messages]


@pytest.mark.parametrize("target", [number, listed, awaited, awaited_list])
def test_every_kind_of_handler_and_an_inner_batch_as_one_unit(tmp_path: Path, target: object) -> None:
    found = run(tmp_path, target, [record(0, b"0"), inner_batch(1, b"1", b"2", b"3"), inner_batch(4, b"4", b"x", b"6")])
    assert rows(tmp_path) == {offset: [offset] for offset in range(4)}
    assert offsets(found.finished()) == [(0, 4)]
    assert found.handled == 4
    assert [offset for _, offset in found.failed] == [6], "all of the second batch, under its last offset"


def test_a_batch_of_which_the_handler_takes_a_part_has_failed(tmp_path: Path) -> None:
    found = run(tmp_path, half_taken, [inner_batch(0, b"0", b"1")])
    assert (rows(tmp_path), found.handled, offsets(found.finished())) == ({}, 0, [])
    assert "did not take all messages" in found.failed[KEY, 1]


def test_what_the_handlers_own_filter_leaves_out_is_finished_without_rows(tmp_path: Path) -> None:
    wanted = handler(schema="n bigint", filter=lambda message: message.body != b"1")(number.function)
    found = run(tmp_path, wanted, [*records(b"0", b"1"), inner_batch(2, b"1", b"3"), inner_batch(4, b"1", b"1")])
    assert rows(tmp_path) == {0: [0], 3: [3]}
    assert offsets(found.finished()) == [(0, 6)]
    assert (found.handled, found.failed) == (2, {})


@pytest.mark.parametrize("waits", [False, True])
def test_hooks_are_called_around_all_of_it(tmp_path: Path, waits: bool) -> None:
    told = tmp_path / "told"

    def tell(word: str) -> None:
        with told.open("a") as file:
            file.write(f"{word} ")

    async def tell_later(word: str) -> None:
        await asyncio.sleep(0)
        tell(word)

    def hook(word: str) -> Callable[[], Any]:
        return (lambda: tell_later(word)) if waits else (lambda: tell(word))

    def work(message: Message) -> None:
        tell(message.body.decode())

    run(tmp_path, handler(schema="n bigint", setup=hook("setup"), teardown=hook("teardown"))(work), records(b"a", b"b"))
    assert told.read_text().split() == ["setup", "a", "b", "teardown"]


def test_brokers_are_asked_for_what_is_wanted_and_say_what_is_gone() -> None:
    async def story() -> None:
        async with EmbeddedBroker() as broker, open_cluster(broker.name_server) as cluster:
            async with Producer(cluster, "producers") as producer:
                mq = (await producer.send(OutgoingMessage("orders", b"0"))).mq
                for body in (b"1", b"2", b"3"):
                    await producer.send(OutgoingMessage("orders", body), selector=to_queue(mq))
            key = QueueKey("g", mq.topic, mq.broker_name, mq.queue_id)
            other = QueueKey("g", *MessageQueue(mq.topic, mq.broker_name, 1 - min(mq.queue_id, 1)))
            wanted = OffsetSet.of([(key, IntervalSet.of([(1, 2), (3, 7)])), (other, IntervalSet.of([(5, 6)]))])
            found, gone, rest = await fetch(cluster, wanted)
            assert not rest
            assert [(place, decode_message(data).body) for place, data in found] == [(key, b"1"), (key, b"3")]
            assert gone == OffsetSet.of([(key, IntervalSet.of([(4, 7)])), (other, IntervalSet.of([(5, 6)]))])
            parts: list[list[bytes]] = []
            lost: list[OffsetSet] = []
            while wanted:
                found, gone, wanted = await fetch(cluster, wanted, bytes_max=1)
                parts.append([decode_message(data).body for _, data in found])
                lost.append(gone)
            assert [part for part in parts if part] == [[b"1"], [b"3"]]
            assert OffsetSet.union(lost) == OffsetSet.of(
                [(key, IntervalSet.of([(4, 7)])), (other, IntervalSet.of([(5, 6)]))]
            )

    asyncio.run(story())


def test_columns_that_were_inferred_are_those_of_the_group(tmp_path: Path) -> None:
    """Not of whatever lies beside the folder of temporary files."""
    home = tmp_path / "state" / "g"
    home.mkdir(parents=True)
    (home / "columns.ddl").write_text("n double")
    (tmp_path / "columns.ddl").write_text("x string")
    for where, kind in ((home, pa.float64()), (None, pa.int64())):
        folder = tmp_path / "run" / str(where is None)
        with Rerun(describe(undeclared), "infer", folder / "segments", "g", "", home=where) as rerun:
            rerun.run(records(b"1"))
        assert not rerun.failed
        (sealed,) = (folder / "segments").glob("ready/*")
        found: Any = pa.ipc.open_stream(sealed.read_bytes()).read_all()
        assert found.schema.field("n").type == kind
    assert (home / "columns.ddl").read_text() == "n double"


def undeclared(message: Message) -> dict[str, int]:
    return {"n": int(message.body)}


def test_a_handler_whose_rows_do_not_fit_is_refused_before_anything_is_fetched(tmp_path: Path) -> None:
    table = TableSpec("/data/t", (("n", "string"),))
    with pytest.raises(UsageError, match="'n' is bigint here and string there"):
        Rerun(describe(number), "", tmp_path / "segments", "g", "", table=table)


@handler(topic="orders", schema="n bigint")
def of_orders(_: Message) -> dict[str, int]:
    return {"n": 1}


@handler(topic="%RETRY%g_refunds", schema="n bigint")
def of_another_group(_: Message) -> dict[str, int]:
    return {"n": 2}


def test_retries_go_to_the_handler_of_their_topic_whether_they_were_pulled_or_popped(tmp_path: Path) -> None:
    retries = [
        (QueueKey("g", topic, "b", 0), encode_message(StoredMessage(topic, b"", raw, queue_offset=offset)))
        for offset, (topic, raw) in enumerate([
            ("%RETRY%g_orders", b""), ("%RETRY%g+orders", b""), ("%RETRY%g_refunds", b""),
            ("%RETRY%g", encode_properties({"RETRY_TOPIC": "orders"}).encode()),
        ])
    ]  # fmt: skip
    handlers = HandlerSpec(
        f"{__name__}:of_orders,of_another_group", import_path=f"{__name__}:of_orders,of_another_group"
    )
    with Rerun(handlers, "", tmp_path / "segments", "g", "") as rerun:
        rerun.run(retries)
    assert rerun.failed == {}
    assert rows(tmp_path) == {0: [1], 1: [1], 2: [2], 3: [1]}
