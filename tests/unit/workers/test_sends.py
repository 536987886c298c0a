"""Messages out of a handler: what is taken out of its results, under which keys it is sent, and what a failure does."""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import os
import pickle
import weakref
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from rocketcrew import (
    BatchResult,
    Commit,
    Handler,
    Retry,
    Rollback,
    Send,
    SendError,
    SoftTimeLimitExceeded,
    Suspend,
    handler,
)
from rocketcrew.client.outgoing import OutgoingMessage
from rocketcrew.engine.fitting import check_handler
from rocketcrew.remoting.batch import encode_batch
from rocketcrew.remoting.codes import SYSFLAG_INNER_BATCH, SYSFLAG_NEED_UNWRAP
from rocketcrew.remoting.errors import UsageError
from rocketcrew.remoting.properties import PROPERTY_UNIQ_KEY
from rocketcrew.remoting.stored import StoredMessage, encode_message
from rocketcrew.workers.ddl import parse_ddl
from rocketcrew.workers.fitting import RowError
from rocketcrew.workers.forks import end_if_forked
from rocketcrew.workers.message import Message, expand_inner_batch, make_message
from rocketcrew.workers.packets import QueueInfo
from rocketcrew.workers.routing import combine
from rocketcrew.workers.rows import RowBuffer
from rocketcrew.workers.sends import FAILED_BEFORE, parted, run_out, sending, unique_key

ORDER = make_message(b"x", topic="orders", properties={PROPERTY_UNIQ_KEY: "C0A80001ABCD12345678000F42400001"})


class Noted:
    """Notes what is sent; refuses topics that are called so."""

    def __init__(self) -> None:
        self.calls: list[list[OutgoingMessage]] = []

    def send(self, sends: Sequence[Send]) -> None:
        messages = [each.message for each in sends]
        self.calls.append(messages)
        text = "a message for topic refused was not sent"
        errors = [SendError(text) if each.topic == "refused" else None for each in messages]
        if any(errors):
            raise SendError(text, errors)

    async def send_awaited(self, sends: Sequence[Send]) -> None:
        self.send(sends)

    @property
    def topics(self) -> list[list[str]]:
        return [[each.topic for each in call] for call in self.calls]


def called(result: Any, outgoing: Noted | None, **options: Any) -> Any:
    own = Handler(lambda _: result, sends=True, **options)
    return sending(own, "billing", outgoing)(ORDER)


@pytest.mark.parametrize(
    ("result", "rest", "topics"),
    [
        (Send("a", b"1"), None, [["a"]]),
        ([Send("a", b"1"), Send("b", "2", keys=["k", "l"])], None, [["a", "b"]]),
        ([{"x": 1}, Send("a", b"1"), {"x": 2}], [{"x": 1}, {"x": 2}], [["a"]]),
        ((Send("a", b"1"), {"x": 1}), [{"x": 1}], [["a"]]),
        ({"x": 1}, {"x": 1}, []),
        ([{"x": 1}], [{"x": 1}], []),
        (None, None, []),
    ],
)
def test_sends_are_sent_and_rows_stay(result: object, rest: object, topics: list[list[str]]) -> None:
    outgoing = Noted()
    assert called(result, outgoing) == rest
    assert outgoing.topics == topics
    assert called(result, None) == rest  # a run that only makes rows again


def test_a_generator_sends_when_it_has_ended() -> None:
    outgoing = Noted()

    def rows(_: Message) -> Iterator[object]:
        row = {"x": 0}
        for row["x"] in range(2):
            yield row
            yield Send("a", str(row["x"]))

    found = []
    for row in sending(Handler(rows, sends=True), "billing", outgoing)(ORDER):
        assert outgoing.calls == []
        found.append(dict(row))
    assert found == [{"x": 0}, {"x": 1}]
    assert [each.body for each in outgoing.calls[0]] == ["0", "1"]


def test_the_rows_of_a_commit_are_looked_at_too() -> None:
    rest, sends = parted(Commit([{"x": 1}, Send("a", b"1")]))
    assert isinstance(rest, Commit)
    assert (rest.rows, len(sends)) == ([{"x": 1}], 1)
    plain = Commit({"x": 1})
    assert parted(plain) == (plain, [])


def test_keys_are_the_same_for_each_attempt_and_differ_for_all_else() -> None:
    keys = [
        unique_key(ORDER, "billing", "a", 0),
        unique_key(ORDER, "billing", "a", 1),
        unique_key(ORDER, "billing", "b", 0),
        unique_key(ORDER, "other", "a", 0),
        unique_key(make_message(b"x", store_timestamp_ms=1), "billing", "a", 0),
    ]
    assert len(set(keys)) == len(keys)
    assert all(len(key) == 32 and int(key, 16) for key in keys)
    assert keys[0][20:28] == "000F4240"  # when the first message was made: brokers search from there on
    retry = make_message(
        b"x", topic="%RETRY%billing", reconsume_times=3, queue_offset=9, properties=dict(ORDER.properties)
    )
    assert unique_key(retry, "billing", "a", 0) == keys[0]
    nameless = {"ORIGIN_MESSAGE_ID": make_message(b"x").offset_message_id}
    assert unique_key(make_message(b"x"), "g", "a", 0) == unique_key(
        make_message(b"x", properties=nameless), "g", "a", 0
    )


def test_keys_of_an_inner_batch_differ_by_message_and_stay_in_its_retries() -> None:
    entries = [(0, b"a", b"UNIQ_KEY\x01u1\x02"), (0, b"b", b""), (0, b"c", b"TAGS\x01t"), (0, b"d", b"")]
    flags = SYSFLAG_INNER_BATCH | SYSFLAG_NEED_UNWRAP
    notes = b"INNER_NUM\x014\x02"
    first = StoredMessage("orders", encode_batch(entries), notes, sysflag=flags, physical_offset=100, queue_offset=7)
    origin = Message(encode_message(first), 0, QueueInfo("g", "orders", "b", 0)).offset_message_id
    notes += f"RETRY_TOPIC\x01orders\x02ORIGIN_MESSAGE_ID\x01{origin}\x02".encode()
    again = replace(first, topic="%RETRY%g", raw_properties=notes, physical_offset=900, queue_offset=1)

    def parts(stored: StoredMessage) -> list[Message]:
        record = encode_message(stored)
        return expand_inner_batch(record, 0, len(record), QueueInfo("g", stored.topic, "b", 0))

    keys = [unique_key(each, "g", "invoices", 0) for each in parts(first)]
    assert len(set(keys)) == len(entries)
    for retry in (parts(again), pickle.loads(pickle.dumps(parts(again)))):
        assert [unique_key(each, "g", "invoices", 0) for each in retry] == keys
        assert {(each.topic, each.origin_message_id) for each in retry} == {("orders", origin)}
        assert [each.tags for each in retry] == [None, None, "t", None]


def test_each_message_is_sent_under_its_key() -> None:
    outgoing = Noted()
    called([Send("a", b"1", tags="t"), Send("a", b"2", delay_level=3)], outgoing)
    [call] = outgoing.calls
    assert [each.all_properties("another")[PROPERTY_UNIQ_KEY] for each in call] == [
        unique_key(ORDER, "billing", "a", 0), unique_key(ORDER, "billing", "a", 1),
    ]  # fmt: skip
    assert (call[0].tags, call[1].delay_level) == ("t", 3)


def test_a_buffer_and_fields_that_are_filled_anew_are_sent_as_they_were() -> None:
    body, properties, keys = bytearray(1), {"n": ""}, ["-"]

    def several(_: Message) -> Iterator[Send]:
        for letter in b"abc":
            body[0], properties["n"], keys[0] = letter, chr(letter), chr(letter)
            yield Send("a", body, properties=properties, keys=keys)
            yield Send("a", memoryview(body)[:])

    outgoing = Noted()
    assert list(sending(Handler(several, sends=True), "billing", outgoing)(ORDER)) == []
    [sent] = outgoing.calls
    assert [each.body for each in sent] == [b"a", b"a", b"b", b"b", b"c", b"c"]
    assert [(each.properties["n"], each.keys) for each in sent[::2]] == [("a", "a"), ("b", "b"), ("c", "c")]


def test_an_order_key_is_a_property_that_every_attempt_has() -> None:
    outgoing = Noted()
    for _ in range(2):
        called(Send("a", b"1", order_key="o-1", properties={"n": "1"}), outgoing)
    assert [dict(each.properties) for [each] in outgoing.calls] == [{"n": "1", "__SHARDINGKEY": "o-1"}] * 2
    for wrong in ("", 7):
        with pytest.raises(UsageError, match=r"order_key=.*: give a str that is not blank"):
            Send("a", b"1", order_key=wrong)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def test_what_cannot_be_sent_fails_its_message() -> None:
    with pytest.raises(SendError):
        called(Send("refused", b"1"), Noted())
    with pytest.raises(UsageError, match="empty body"):
        Send("a", b"")


def test_of_a_batch_only_the_message_fails_whose_own_is_not_sent() -> None:
    @handler(batch=True, sends=True)
    def many(messages: list[Message]) -> list[object]:
        return [[{"x": 1}, Send("a", b"1")], Send("refused", b"2"), None]

    @handler(batch=True, sends=True)
    async def many_awaited(messages: list[Message]) -> BatchResult:
        return BatchResult(
            [(messages[0], {"x": 1}), (messages[0], Send("a", b"1")), (messages[1], Send("refused", b"1"))]
        )

    batch = [make_message(b"x", queue_offset=number) for number in range(3)]
    for own in (many, many_awaited):
        outgoing = Noted()
        results = sending(own, "billing", outgoing)(batch)
        if asyncio.iscoroutine(results):
            results = asyncio.run(results)
        assert results[0] == [{"x": 1}]
        assert isinstance(results[1], SendError)
        assert results[2] is None
        assert outgoing.topics == [["a", "refused"]]


class Uncopied:
    def __deepcopy__(self, _: object) -> Uncopied:
        raise TypeError("no copy")


class Broken(Noted):
    """Fails as a whole."""

    def send(self, sends: Sequence[Send]) -> None:
        raise OSError("no thread can be started")


def test_messages_of_a_batch_go_out_together_and_fail_alone() -> None:
    def rows(message: Message) -> Iterator[object]:
        yield Send("c", b"x")
        raise ValueError(message.queue_offset)

    class Rows(list[object]):
        def __iter__(self) -> Iterator[object]:
            raise KeyError("rows that cannot be read")

    @handler(batch=True, sends=True)
    def many(messages: list[Message]) -> list[object]:
        return [Send("a", b"1"), Rows(), [Send("b", b"2"), {"x": 1}], Retry(), rows(messages[4]), None]

    @handler(batch=True, sends=True)
    async def many_awaited(messages: list[Message]) -> list[object]:
        return many(messages)

    batch = [make_message(b"x", queue_offset=number) for number in range(6)]
    for own in (many, many_awaited):
        for outgoing in (Noted(), Broken()):
            results = sending(own, "billing", outgoing)(batch)
            results = asyncio.run(results) if asyncio.iscoroutine(results) else results
            assert [isinstance(each, KeyError) for each in results] == [False, True, False, False, False, False]
            assert isinstance(results[3], Retry)
            assert isinstance(results[4], ValueError)
            if isinstance(outgoing, Broken):
                assert [isinstance(each, OSError) for each in results] == [True, False, True, False, False, False]
            else:
                assert (results[0], results[2], results[5]) == (None, [{"x": 1}], None)
                assert outgoing.topics == [["a", "b"]]


def test_generators_of_a_batch_send_in_the_order_of_its_messages() -> None:
    def later(name: str) -> Iterator[Send]:
        yield Send(name, b"x")

    @handler(batch=True, sends=True)
    def many(messages: list[Message]) -> list[object]:
        return [later("a"), Send("b", b"x"), Commit(later("c"))]

    outgoing = Noted()
    results = sending(many, "billing", outgoing)([make_message(b"x", queue_offset=number) for number in range(3)])
    assert (results[:2], results[2].rows) == ([None, None], None)
    assert outgoing.topics == [["a", "b", "c"]]


def test_a_soft_limit_in_a_generator_of_a_batch_ends_the_call() -> None:
    def slow(_: Message) -> Iterator[Send]:
        yield Send("a", b"x")
        raise SoftTimeLimitExceeded

    own = Handler(lambda messages: list(map(slow, messages)), batch=True, sends=True)
    outgoing = Noted()
    with pytest.raises(SoftTimeLimitExceeded):
        sending(own, "billing", outgoing)([ORDER])
    assert outgoing.calls == []


@pytest.mark.parametrize("failed", [ValueError("first try"), Retry(), Commit(Suspend()), "a generator", "refused"])
def test_in_order_nothing_is_sent_behind_a_message_of_the_batch_that_failed(failed: object) -> None:
    """It sends what it is to send in its retry, and that comes first."""

    def ends() -> Iterator[Send]:
        yield Send("lost", b"x")
        raise ValueError("first try")

    def results_of(_: object) -> list[object]:
        first = {"a generator": ends(), "refused": {Send("lost", b"x")}}.get(str(failed), failed)
        return [Send("a", b"x"), first, {"x": 1}, Send("b", b"x")]

    async def awaited(messages: list[Message]) -> list[object]:
        return results_of(messages)

    batch = [make_message(b"x", queue_offset=number) for number in range(4)]
    for function, order, ordered in (
        (results_of, "queue", False), (awaited, "key", False), (results_of, None, True), (results_of, None, False),
    ):  # fmt: skip
        outgoing = Noted()
        own = Handler(function, batch=True, sends=True, order=order)
        results = sending(own, "billing", outgoing, ordered=ordered)(batch)
        results = asyncio.run(results) if asyncio.iscoroutine(results) else results
        held = order is not None or ordered
        assert outgoing.topics == [["a"] if held else ["a", "b"]]
        assert (results[0], results[2], isinstance(results[3], SendError)) == (None, {"x": 1}, held)
        assert FAILED_BEFORE in str(results[3]) or not held


def test_without_an_order_all_others_of_the_batch_are_sent() -> None:
    for order in (None, "concurrent"):
        own = Handler(lambda _: [ValueError(), Send("b", b"x")], batch=True, sends=True, order=order)
        outgoing = Noted()
        sending(own, "billing", outgoing)([ORDER, ORDER])
        assert outgoing.topics == [["b"]]
        assert not own.is_ordered


def test_of_a_generator_of_a_batch_only_what_it_sends_is_kept_where_nobody_wants_its_rows() -> None:
    kept: list[weakref.ref[Uncopied]] = []

    def rows(_: Message) -> Iterator[object]:
        yield (row := Uncopied())
        kept.append(weakref.ref(row))
        del row
        yield Send("a", b"x")
        assert kept[-1]() is None

    async def awaited(messages: list[Message]) -> list[object]:
        return [rows(messages[0]), Commit(rows(messages[1]))]

    async def one(message: Message) -> object:
        return rows(message)

    for function in (lambda messages: list(map(rows, messages)), awaited):
        outgoing = Noted()
        results = sending(Handler(function, batch=True, sends=True), "billing", outgoing, rows=False)([ORDER, ORDER])
        results = asyncio.run(results) if asyncio.iscoroutine(results) else results
        assert not any(isinstance(each, BaseException) for each in results)
        assert outgoing.topics == [["a", "a"]]
    assert asyncio.run(sending(Handler(one, sends=True), "billing", Noted(), rows=False)(ORDER)) is None


@pytest.mark.parametrize("wrong", [5, None, [Send("nested", b"x")], Retry()])
def test_of_a_generator_with_something_that_is_no_row_nothing_is_sent(wrong: object) -> None:
    def rows(_: Message) -> Iterator[object]:
        yield wrong
        yield Send("a", b"x")

    async def one(message: Message) -> object:
        return rows(message)

    for wanted in (True, False):
        fails = wanted or isinstance(wrong, list)
        outgoing = Noted()
        own = Handler(lambda messages: [rows(messages[0]), Send("b", b"x")], batch=True, sends=True)
        failed, sent = sending(own, "billing", outgoing, rows=wanted)([ORDER, ORDER])
        assert (isinstance(failed, RowError), sent) == (fails, None)
        assert outgoing.topics == [["b"] if fails else ["a", "b"]]
        with pytest.raises(RowError) if fails else contextlib.nullcontext():
            asyncio.run(sending(Handler(one, sends=True), "billing", outgoing, rows=wanted)(ORDER))
        assert len(outgoing.topics) == 1 + (not fails)


@contextlib.contextmanager
def closing_noted(ran: list[object], name: str) -> Iterator[None]:
    ran.append(name)
    try:
        yield
    finally:
        ran.append(f"{name} ends")


@pytest.mark.parametrize("wanted", [True, False])
@pytest.mark.parametrize("sends", [True, False])
def test_a_generator_that_fails_is_closed_before_that_of_the_next_message_runs(wanted: bool, sends: bool) -> None:
    """It stayed within its `with`: a lock was taken twice, and a transaction was committed with the next one's."""
    ran: list[object] = []

    def rows(message: Message) -> Iterator[object]:
        with closing_noted(ran, message.keys):
            yield [Send("nested", b"x")] if message.keys == "a" else {"a": 1}

    buffer: RowBuffer[int] = RowBuffer(parse_ddl("a int"), "g")
    own = sending(Handler(lambda given: list(map(rows, given)), batch=True, sends=sends), "g", Noted(), rows=wanted)
    messages = [make_message(b"x", topic="orders", keys=key) for key in "ab"]
    failed: list[object] = []
    for message, result in zip(messages, own(messages), strict=True):
        try:
            if isinstance(result, BaseException):
                raise result
            buffer.prepare(message, result) if wanted else run_out(result)
        except RowError as error:
            failed.append(error)
    assert ran == ["a", "a ends", "b", "b ends"]
    assert len(failed) == 1


@pytest.mark.parametrize("wanted", [True, False])
@pytest.mark.parametrize("said", [Rollback(), Retry(), ValueError("undo")])
def test_what_a_failed_generator_raises_when_it_is_closed_is_not_its_message_s_failure(
    wanted: bool, said: Exception
) -> None:
    """A Rollback made the message done in order: neither sent nor retried."""

    def rows(_: Message) -> Iterator[object]:
        try:
            yield Send("bills", b"x")
            yield [Send("nested", b"x")]
        except GeneratorExit:
            raise said from None

    with pytest.raises(RowError):
        parted(rows(make_message(b"x")), rows=wanted)


@pytest.mark.parametrize("where", ["the function", "a generator"])
def test_a_child_that_comes_back_runs_no_generator_of_other_messages(where: str) -> None:
    parent, ran = os.getpid(), mmap.mmap(-1, mmap.PAGESIZE)
    codes: list[int] = []

    def fork() -> None:
        if child := os.fork():
            codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    def rows(message: Message) -> Iterator[Send]:
        ran[message.queue_offset] += 1
        if where == "a generator" and not message.queue_offset:
            fork()
        yield Send("a", b"x")

    def many(messages: list[Message]) -> list[object]:
        if where == "the function":
            fork()
        return list(map(rows, messages))

    outgoing = Noted()
    try:
        sending(Handler(many, batch=True, sends=True), "billing", outgoing)(
            [make_message(b"x", queue_offset=number) for number in range(2)]
        )
    finally:
        end_if_forked(parent, SystemExit(9))  # it must not go on with the test, and its code says so
    assert (list(ran[:2]), codes, outgoing.topics) == ([1, 1], [0], [["a", "a"]])


def test_in_order_a_rollback_holds_nothing_back_where_it_is_a_success() -> None:
    batch = [make_message(b"x", queue_offset=number) for number in range(2)]
    for auto_commit, sent in ((True, [["b"]]), (False, [])):
        own = Handler(
            lambda _: [Rollback(), Send("b", b"x")], batch=True, sends=True, order="queue", auto_commit=auto_commit
        )
        outgoing = Noted()
        sending(own, "billing", outgoing)(batch)
        assert outgoing.topics == sent


def test_a_coroutine_function_sends_while_others_go_on() -> None:
    async def one(_: Message) -> object:
        return [Send("a", b"1"), {"x": 1}]

    async def several(_: Message) -> object:
        return (each for each in (Send("b", b"1"), {"x": 2}))

    outgoing = Noted()
    assert asyncio.run(sending(Handler(one, sends=True), "billing", outgoing)(ORDER)) == [{"x": 1}]
    assert asyncio.run(sending(Handler(several, sends=True), "billing", outgoing)(ORDER)) == [{"x": 2}]
    assert outgoing.topics == [["a"], ["b"]]


def test_an_administrators_call_sends_nothing() -> None:
    outgoing = Noted()
    own = sending(Handler(lambda _: [Send("a", b"1"), {"x": 1}], sends=True), "billing", outgoing)
    assert own.plain(ORDER) == [{"x": 1}]
    assert outgoing.calls == []


def test_a_handler_that_sends_nothing_is_not_wrapped() -> None:
    own = Handler(lambda _: None)
    assert sending(own, "billing", Noted()) is own


def test_a_send_that_is_not_declared_fails_its_message_also_where_rows_are_off() -> None:
    for result in (Send("a", b"1"), [{"x": 1}, Send("a", b"1")], iter([Send("a", b"1")])):
        with pytest.raises(RowError, match=r"not declared with @handler\(sends=True\)"):
            run_out(result)
    ran: list[int] = []
    run_out(ran.append(number) for number in range(2))
    run_out({"x": 1})
    assert ran == [0, 1]


async def a_coroutine() -> None: ...


async def an_async_generator() -> AsyncIterator[Send]:
    yield Send("a", b"1")


def test_sends_are_found_in_whatever_holds_rows() -> None:
    for make in (deque, lambda given: dict(enumerate(given)).values(), tuple, list):
        outgoing = Noted()
        assert called(make([Send("a", b"1"), {"x": 1}, Send("b", b"2")]), outgoing) == [{"x": 1}]
        assert outgoing.topics == [["a", "b"]]
    outgoing = Noted()
    committed = called(Commit(each for each in (Send("a", b"1"), {"x": 1})), outgoing)
    assert outgoing.topics == []
    assert list(committed.rows) == [{"x": 1}]  # each when it is asked for, as of any generator
    assert outgoing.topics == [["a"]]
    rest, _ = parted(Commit(each for each in ({"x": 1},)))
    assert isinstance(rest, Commit)
    assert rest.rows == [{"x": 1}]


def test_sends_in_a_set_fail_their_message_as_a_retry_would_number_them_anew() -> None:
    with pytest.raises(RowError, match="no order"):
        called({Send("a", b"1"), Send("b", b"2")}, Noted())


def test_the_rows_of_a_batch_result_may_be_any_collection() -> None:
    outgoing = Noted()
    own = Handler(lambda batch: BatchResult(deque((each, Send("a", b"1")) for each in batch)), sends=True, batch=True)
    assert sending(own, "billing", outgoing)([ORDER]) == [None]
    assert outgoing.topics == [["a"]]


def test_where_rows_are_off_a_send_is_found_at_any_depth() -> None:
    for shallow in (
        deque([Send("a", b"1")]),
        {Send("a", b"1")},
        Commit(Send("a", b"1")),
        {1: Send("a", b"1")}.values(),
    ):
        with pytest.raises(RowError, match=r"not declared with @handler\(sends=True\)"):
            run_out(shallow)
    for deep in ([[Send("a", b"1")]], {"x": Send("a", b"1")}, [{"x": [Send("a", b"1")]}], [iter([Send("a", b"1")])]):
        with pytest.raises(RowError, match="inside of a row"):
            run_out(called(deep, Noted()))
    for plain in (None, 3, "text", b"x", [1, 2], [{"x": [1.5, None]}], {"x"}, (1, "x")):
        run_out(plain)


def test_what_nothing_runs_fails_its_message_whether_rows_are_on_or_off() -> None:
    rows: RowBuffer[str] = RowBuffer(parse_ddl("x int"), "g")
    inferring: RowBuffer[str] = RowBuffer(None, "g", lambda _: parse_ddl("x int"))
    for judge in (run_out, lambda result: rows.prepare(ORDER, result), lambda result: inferring.prepare(ORDER, result)):
        for make in (a_coroutine, an_async_generator):
            with pytest.raises(RowError, match="which was not run"):
                judge(make())
            with pytest.raises(RowError, match="which was not run"):
                judge(called(make(), Noted()))


def test_several_handlers_send_where_one_does_and_tasks_of_spark_do_not() -> None:
    several = combine([Handler(lambda _: Send("a", b"1"), topic="x", sends=True), Handler(lambda _: None, topic="y")])
    assert several.sends
    for declared in (True, False):
        parts = [
            Handler(lambda _: Send("a", b"1"), topic="x", sends=True),
            Handler(lambda _: [{"x": 1}, Send("a", b"2")], topic="y", sends=declared),
        ]
        outgoing = Noted()
        wrapped = sending(combine(parts), "billing", outgoing)
        assert wrapped(make_message(b"1", topic="x")) is None
        if declared:
            assert wrapped(make_message(b"1", topic="y")) == [{"x": 1}]
        else:
            with pytest.raises(RowError, match=r"not declared with @handler\(sends=True\)"):
                wrapped(make_message(b"1", topic="y"))
        assert outgoing.topics == [["a"]] * (1 + declared)
    with pytest.raises(UsageError, match="sends=True"):
        check_handler(several)
