"""A message consumed directly: by a real worker, without a row, and in RocketMQ's words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketcrew import Send
from rocketcrew.remoting.errors import ProtocolError
from rocketcrew.workers.api import BatchResult, Retry, handler
from rocketcrew.workers.cells import CHUNK_ID, CONSUMED_DIRECTLY, STATE
from rocketcrew.workers.link import Transport
from rocketcrew.workers.message import Message
from rocketcrew.workers.packets import (
    DIRECTED,
    DirectResult,
    QueueInfo,
    decode_direct,
    decode_directed,
    encode_direct,
    encode_directed,
)

Make = Callable[..., Any]


def consume(b: Any, queue: QueueInfo, record: bytes) -> DirectResult:
    """Let the worker consume the record; its answer, which is all that it says."""
    payload: bytes | None = record
    if b.slab is not None:
        b.slab[: len(record)], payload = record, None
    b.link.send(encode_direct(7, 0, len(record), queue), payload)
    b.steps(2)  # the queue and this
    (packet,) = b.packets()
    assert packet[0] == DIRECTED
    return decode_directed(packet)


def raises(_message: Message) -> None:
    raise ValueError("no")


def asks_for_a_retry(_message: Message) -> Retry:
    return Retry(reason="later")


@pytest.mark.parametrize(
    ("function", "result", "remark"),
    [
        (lambda _: None, "CR_SUCCESS", ""),
        (raises, "CR_THROW_EXCEPTION", "ValueError: no"),
        (asks_for_a_retry, "CR_LATER", "later"),
        (handler(batch=True)(lambda _: None), "CR_SUCCESS", ""),
        (handler(batch=True)(lambda _: BatchResult(ack_index=-1)), "CR_LATER", ""),
        (handler(batch=True)(lambda _: [Retry(reason="later")]), "CR_LATER", "later"),
        (lambda _: (1 // each for each in [0]), "CR_THROW_EXCEPTION", "ZeroDivisionError"),
        (lambda _: [Send("a", b"1")], "CR_THROW_EXCEPTION", "not declared"),
        (handler(batch=True)(lambda _: 5), "CR_THROW_EXCEPTION", "returned int"),
    ],
)
@pytest.mark.parametrize("transport", list(Transport))
def test_what_the_handler_does_is_told(
    bench: Make, make_record: Make, queue: QueueInfo, transport: Transport, function: object, result: str, remark: str
) -> None:
    answer = consume(bench(function, transport=transport), queue, make_record())
    assert (answer.request, answer.result) == (7, result)
    assert remark in answer.remark


def test_a_retry_is_shown_with_its_own_topic(bench: Make, make_record: Make) -> None:
    seen: list[str] = []
    b = bench(lambda m: seen.append(m.topic))
    record = make_record(topic="%RETRY%group", properties={"RETRY_TOPIC": "orders"})
    consume(b, QueueInfo("group", "%RETRY%group", "broker-a", 0), record)
    assert seen == ["orders"]


def test_rows_are_looked_at_and_thrown_away(bench: Make, make_record: Make, queue: QueueInfo, tmp_path: Path) -> None:
    rows: list[object] = [{"n": 1}]
    b = bench(lambda _: rows, schema="n int", folder=tmp_path)
    assert consume(b, queue, make_record()).result == "CR_SUCCESS"
    b.steps(1)
    assert not list((tmp_path / "open").glob("*"))
    rows[0] = {"n": "x"}
    answer = consume(b, queue, make_record())
    assert answer.result == "CR_THROW_EXCEPTION"
    assert "n" in answer.remark


def test_an_inner_batch_is_consumed_whole(bench: Make, make_inner_batch: Make, queue: QueueInfo) -> None:
    seen: list[bytes] = []
    assert consume(bench(lambda m: seen.append(m.body)), queue, make_inner_batch([b"a", b"b"])).result == "CR_SUCCESS"
    assert seen == [b"a", b"b"]


def test_a_damaged_message_is_an_answer(bench: Make, make_record: Make, spoil: Make, queue: QueueInfo) -> None:
    answer = consume(bench(lambda m: m.body), queue, spoil(make_record()))
    assert answer.result == "CR_THROW_EXCEPTION"
    assert "checksum" in answer.remark
    assert consume(bench(lambda m: m.body), queue, b"x").result == "CR_THROW_EXCEPTION"


def test_the_time_is_told_in_ms(bench: Make, make_record: Make, queue: QueueInfo) -> None:
    b = bench(lambda _: b.clock.advance_ms(40))
    assert consume(b, queue, make_record()).spent_ms == 40


u32 = st.integers(0, 2**32 - 1)


@given(u32, st.integers(0, 2**64 - 1), u32, st.binary(max_size=20))
def test_a_request_comes_back(request: int, offset: int, length: int, payload: bytes) -> None:
    queue = QueueInfo("g", "t", "b", 3)
    packet = encode_direct(request, offset, length, queue)
    found = decode_direct(packet + payload)
    assert found[:4] == (request, offset, length, queue)
    assert (packet + payload)[found.payload_at :] == payload


@given(u32, st.sampled_from(["CR_SUCCESS", "CR_LATER"]), u32, st.text(max_size=30))
def test_an_answer_comes_back(request: int, result: str, spent_ms: int, remark: str) -> None:
    answer = DirectResult(request, result, spent_ms, remark)
    assert decode_directed(encode_directed(answer)) == answer


@pytest.mark.parametrize("decode", [decode_direct, decode_directed])
def test_what_is_too_short_is_refused(decode: Callable[[bytes], object]) -> None:
    with pytest.raises(ProtocolError):
        decode(b"\x05\x00")


def test_it_is_a_call_like_any_other_and_named_as_nobodys_fault(
    bench: Make, make_record: Make, queue: QueueInfo
) -> None:
    """Outside of a call a loop that does not move is ended, and so would be the worker, as soon as chunks wait for it."""
    seen: list[tuple[int, int]] = []

    def handle(_message: Message) -> None:
        seen.append((b.cell[CHUNK_ID], b.cell[STATE]))

    b = bench(handle)
    consume(b, queue, make_record(offset=41))
    assert seen == [(CONSUMED_DIRECTLY, 42)]
    assert b.cell[STATE] == 0


@pytest.mark.parametrize("record", [b"", b"junk" * 40])
def test_a_record_that_cannot_be_read_is_answered_for(record: bytes, bench: Make, queue: QueueInfo) -> None:
    b = bench(lambda message: len(message.body) and None)
    assert consume(b, queue, record).result == "CR_THROW_EXCEPTION"
