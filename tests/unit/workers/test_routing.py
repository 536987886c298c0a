"""Several handlers as one: what they may share, which of them takes a message, and what is subscribed."""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

from rocketcrew import BatchResult, Handler, Message, SoftTimeLimitExceeded, handler
from rocketcrew.remoting.errors import ProtocolError, UsageError
from rocketcrew.remoting.stored import StoredMessage, encode_message
from rocketcrew.workers.calls import raise_if_of_all
from rocketcrew.workers.loading import HandlerLoadError, HandlerSpec, describe, find, load, ready
from rocketcrew.workers.message import make_message
from rocketcrew.workers.packets import QueueInfo
from rocketcrew.workers.routing import (
    NoHandlerError,
    agreed_topics,
    check_order,
    check_takes,
    combine,
    handler_of,
    same_topics,
)
from rocketcrew.workers.steps import CallUnderWay, call_under_way


@handler(topic="orders", tags="paid || shipped")
def paid(message: Message) -> str:
    return f"paid {message.tags}"


@handler(topic="orders", tags="open")
def waiting(message: Message) -> str:
    return f"waiting {message.tags}"


@handler(topic="refunds")
def refunds(_: Message) -> str:
    return "refunds"


@dataclass
class Row:
    size: int


def made(**options: Any) -> Handler:
    @handler(**options)
    def function(message: Any) -> object:
        return message

    return function


def test_each_message_goes_to_the_handler_of_its_topic_and_tag() -> None:
    several = combine([paid, waiting, refunds])
    assert several(make_message(topic="orders", tags="shipped")) == "paid shipped"
    assert several(make_message(topic="orders", tags="open")) == "waiting open"
    assert several(make_message(topic="refunds", tags="open")) == "refunds"
    assert several.subscriptions == ("orders:paid || shipped || open", "refunds")
    assert several.name == f"{__name__}:paid,waiting,refunds"


def test_a_retry_goes_to_the_handler_of_the_topic_that_it_was_sent_to() -> None:
    retry = make_message(topic="%RETRY%shop", group="shop", tags="open", properties={"RETRY_TOPIC": "orders"})
    assert combine([paid, waiting, refunds])(retry) == "waiting open"


def test_a_message_that_no_handler_takes_fails_and_is_not_taken_for_done() -> None:
    several = combine([paid, refunds])
    assert several.filter is None
    with pytest.raises(NoHandlerError, match='no handler takes topic "other"; there are handlers for orders, refunds'):
        several(make_message(topic="other"))
    for tags in ("open", None):
        with pytest.raises(NoHandlerError, match=f'no handler takes tag {tags!r} of topic "orders"'):
            several(make_message(topic="orders", tags=tags))


def test_handlers_that_take_all_tags_have_no_filter_and_their_own_ones_hold() -> None:
    assert combine([refunds, made(topic="orders")]).filter is None
    picky = made(topic="orders", filter=lambda message: message.keys == "o-1")
    several = combine([refunds, picky])
    assert several.filter is not None
    assert several.filter(make_message(topic="refunds"))
    assert not several.filter(make_message(topic="orders", keys="o-2"))
    assert several.filter(make_message(topic="orders", keys="o-1"))
    assert several.filter(make_message(topic="other")), "the call says that nobody takes it"


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ({"topic": "a"}, {"topic": "a"}, 'both take messages of topic "a":'),
        ({"topic": "a"}, {"topic": "a", "tags": "x"}, "both take messages of topic \"a\" with tag 'x':"),
        ({"topic": "a", "tags": "x"}, {"topic": "a"}, 'both take messages of topic "a":'),
        ({"topic": "a", "tags": "x||y"}, {"topic": "a", "tags": "z || y"}, "with tag 'y':"),
        ({"topic": "a"}, {}, "names no topic"),
        ({"topic": "a", "batch": True}, {"topic": "b"}, "batch=True and .* batch=False"),
        ({"topic": "a", "order": "queue"}, {"topic": "b"}, "order='queue' and .* order=None"),
        ({"topic": "a"}, {"topic": "b", "hard_time_limit_s": 3}, "hard_time_limit_s must be the same for all"),
        ({"topic": "a", "schema": "x int"}, {"topic": "b", "schema": "y int"}, "different columns"),
    ],
)
def test_what_cannot_run_together_is_refused_with_both_names(
    first: dict[str, Any], second: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError, match=said) as refused:
        combine([made(**first), made(**second)])
    assert str(refused.value).count("function") >= 2


def test_one_order_of_batches_is_for_one_handler() -> None:
    several = combine([made(topic="a", batch=True), made(topic="b", batch=True)])
    check_order(several, ordered=False)
    in_order = [made(topic=topic, batch=True, order="queue") for topic in "ab"]
    with pytest.raises(HandlerLoadError, match="out of order"):
        ready(combine(in_order))
    check_order(made(batch=True), ordered=True)
    with pytest.raises(UsageError, match=r"consumer\.order"):
        check_order(several, ordered=True)


def test_columns_that_are_the_same_in_other_words_are_the_same() -> None:
    several = combine([made(topic="a", schema="size bigint"), made(topic="b"), made(topic="c", schema=Row)])
    assert several.schema == "size bigint"
    assert combine([made(topic="a"), made(topic="b", schema=pa.schema({"x": pa.int32()}))]).schema is not None


def test_one_handler_stays_the_very_same_and_a_list_without_any_is_refused() -> None:
    assert handler_of([paid]) is paid
    assert handler_of(paid) is paid
    with pytest.raises(UsageError, match="there is no handler"):
        handler_of([])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tags": "x"}, "has a meaning with topic"),
        ({"topic": " "}, "is no topic"),
        ({"topic": "orders:paid"}, "tags are given apart"),
        ({"topic": "orders", "tags": "||"}, "names no tag"),
        ({"topic": "orders", "tags": "SQL92:a > 3"}, "SQL92 filter on the command line"),
        ({"topic": ["orders"]}, "is no str"),
    ],
)
def test_a_topic_that_means_nothing_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        made(**options)


# --- batches --------------------------------------------------------------------------------------------------------------


def test_a_batch_of_one_handler_is_passed_on_and_a_mixed_one_is_shared_out() -> None:
    calls: list[tuple[str, list[str | None]]] = []

    @handler(topic="a", batch=True)
    def one(messages: list[Message]) -> object:
        calls.append(("one", [each.keys for each in messages]))
        return BatchResult([(messages[0], {"size": 1})], ack_index=0)

    @handler(topic="b", batch=True)
    def other(messages: list[Message]) -> object:
        calls.append(("other", [each.keys for each in messages]))
        raise ValueError("broken")

    several = combine([one, other])
    batch = [make_message(topic=topic, keys=keys) for topic, keys in (("a", "1"), ("b", "2"), ("a", "3"), ("c", "4"))]
    results = several(batch)
    assert calls == [("one", ["1", "3"]), ("other", ["2"])]
    assert results[0] == [{"size": 1}]
    assert [type(each).__name__ for each in results[1:]] == ["ValueError", "Retry", "NoHandlerError"]
    whole = several([batch[0]])
    assert isinstance(whole, BatchResult)
    assert calls[2:] == [("one", ["1"])]


def undecodable() -> Message:
    """A retry whose properties are no UTF-8, so that nobody knows its topic."""
    raw = b"RETRY_TOPIC\x01a\x02BAD\x01\xff\xfe\x02"
    return Message(encode_message(StoredMessage("%RETRY%g", b"x", raw)), 0, QueueInfo("g", "%RETRY%g", "b", 0))


def test_sys_exit_of_one_handler_and_an_undecodable_message_fail_no_neighbours() -> None:
    @handler(topic="a", batch=True)
    def leaves(_: list[Message]) -> object:
        sys.exit(1)

    @handler(topic="b", batch=True)
    def works(messages: list[Message]) -> object:
        return [each.topic for each in messages]

    @handler(topic="a", batch=True)
    async def leaves_later(_: list[Message]) -> object:
        raise SystemExit(1)

    @handler(topic="b", batch=True)
    async def works_later(messages: list[Message]) -> object:
        return [each.topic for each in messages]

    batch = [make_message(topic="a"), undecodable(), make_message(topic="b")]
    plain = combine([leaves, works])(batch)
    awaited = asyncio.run(combine([leaves_later, works_later])(batch))
    for results in (plain, awaited):
        assert [type(each) for each in results] == [SystemExit, ProtocolError, str]


def test_the_end_of_a_shared_call_that_we_cancel_is_not_its_handler_s_failure() -> None:
    started = asyncio.Event()

    @handler(topic="a", batch=True)
    async def waits(_: list[Message]) -> object:
        started.set()
        await asyncio.Event().wait()

    @handler(topic="b", batch=True)
    async def works(messages: list[Message]) -> object:
        return [each.topic for each in messages]

    async def cancel() -> None:
        under_way = CallUnderWay(1, QueueInfo("g", "t", "b", 0), 0, 1, 2)
        call_under_way.set(under_way)
        call = asyncio.ensure_future(combine([waits, works])([make_message(topic="a"), make_message(topic="b")]))
        await started.wait()
        under_way.ending = True
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    asyncio.run(cancel())


def test_a_child_that_a_handler_forked_does_not_go_on_with_the_other_parts() -> None:
    error = SystemExit(0)
    raise_if_of_all(error, os.getpid())
    with pytest.raises(SystemExit):
        raise_if_of_all(error, os.getppid())


def test_the_soft_limit_of_a_shared_batch_is_that_of_the_whole_call() -> None:
    @handler(topic="a", batch=True)
    def slow(_: list[Message]) -> object:
        raise SoftTimeLimitExceeded(1.0)

    several = combine([slow, made(topic="b", batch=True)])
    with pytest.raises(SoftTimeLimitExceeded):
        several([make_message(topic="a"), make_message(topic="b")])


def test_coroutines_are_combined_with_coroutines_only() -> None:
    @handler(topic="a")
    async def one(message: Message) -> object:
        return message.topic

    @handler(topic="b")
    async def other(message: Message) -> object:
        return message.topic * 2

    several = combine([one, other])
    assert asyncio.run(several(make_message(topic="b"))) == "bb"
    with pytest.raises(UsageError, match="either all handlers of a group are coroutine functions"):
        combine([one, refunds])

    @handler(topic="a", batch=True)
    async def batch_one(messages: list[Message]) -> object:
        return [each.topic for each in messages]

    @handler(topic="b", batch=True)
    async def batch_other(messages: list[Message]) -> object:
        raise ValueError("broken")

    batches = combine([batch_one, batch_other])
    mixed = asyncio.run(batches([make_message(topic="b"), make_message(topic="a"), make_message(topic="c")]))
    assert [str(each) for each in mixed[:2]] == ["broken", "a"]
    assert isinstance(mixed[2], NoHandlerError)
    assert asyncio.run(batches([make_message(topic="a")])) == ["a"]


# --- hooks ----------------------------------------------------------------------------------------------------------------


def test_set_up_hooks_run_once_in_order_and_tear_down_hooks_the_other_way() -> None:
    ran: list[str] = []
    shared = lambda: ran.append("shared")  # noqa: E731
    several = combine(
        [
            made(topic="a", setup=shared, teardown=lambda: ran.append("end a")),
            made(topic="b", setup=lambda: ran.append("b"), teardown=lambda: ran.append("end b")),
            made(topic="c", setup=shared),
        ]
    )
    assert several.setup is not None
    assert several.teardown is not None
    several.setup()
    several.teardown()
    assert ran == ["shared", "b", "end b", "end a"]


def test_a_hook_that_is_a_coroutine_function_is_awaited() -> None:
    ran: list[str] = []

    async def awaited() -> None:
        ran.append("awaited")

    several = combine([made(topic="a", setup=lambda: ran.append("plain")), made(topic="b", setup=awaited)])
    assert several.setup is not None
    waiting: Any = several.setup()
    asyncio.run(waiting)
    assert ran == ["plain", "awaited"]


# --- where they come from, and what is subscribed -------------------------------------------------------------------------


def test_several_handlers_are_named_together_and_loaded_together() -> None:
    spec = describe(f"{__name__}:paid,refunds")
    assert spec.import_path == f"{__name__}:paid,refunds"
    assert find(spec).subscriptions == ("orders:paid || shipped", "refunds")
    shipped = describe([made(topic="a"), made(topic="b")])
    assert shipped.pickled is not None
    assert load(shipped).subscriptions == shipped.subscriptions == ("a", "b")
    with pytest.raises(HandlerLoadError, match="both take messages"):
        find(describe(f"{__name__}:paid,paid"))


def test_a_worker_refuses_code_that_takes_other_topics_than_the_member_has_subscribed() -> None:
    path = f"{__name__}:paid"
    assert load(HandlerSpec(path, import_path=path, subscriptions=("orders:shipped||paid",))).name == path
    with pytest.raises(
        HandlerLoadError, match=r'takes "orders:paid .*" now, and the member started with "orders:paid"'
    ):
        load(HandlerSpec(path, import_path=path, subscriptions=("orders:paid",)))


@handler(sends=True)
def sending_one(_: Message) -> None:
    """Says that it sends."""


def test_a_worker_refuses_code_that_sends_where_the_member_has_started_with_none_that_does() -> None:
    path = f"{__name__}:sending_one"
    assert describe(sending_one).sends is True
    assert load(HandlerSpec(path, import_path=path, sends=True)).sends
    assert load(HandlerSpec(path, import_path=path)).sends, "nobody has looked, so it has access"
    with pytest.raises(
        HandlerLoadError, match=r"sends messages now, .* its workers have no access to the cluster: stop it"
    ):
        load(HandlerSpec(path, import_path=path, sends=False))
    silent = f"{__name__}:paid"
    assert not load(HandlerSpec(silent, import_path=silent, sends=True)).sends


@pytest.mark.parametrize(
    ("configured", "declared", "agreed"),
    [
        ((), ("a", "b:x"), ("a", "b:x")),
        (("a",), (), ("a",)),
        (("b: y||x", "a"), ("a", "b:x || y"), ("b: y||x", "a")),
        (("a:x",), ("a",), ("a:x",)),
        (("a:SQL92:size > 3",), ("a",), ("a:SQL92:size > 3",)),
    ],
)
def test_topics_of_the_configuration_and_the_handlers_agree(
    configured: tuple[str, ...], declared: tuple[str, ...], agreed: tuple[str, ...]
) -> None:
    assert agreed_topics(configured, declared, "handler shop:count") == agreed


@pytest.mark.parametrize(
    ("configured", "declared"),
    [(("a",), ("b",)), (("a", "b"), ("a",)), (("a",), ("a", "b")), (("a",), ("a:x",)), (("a:SQL92:b > 1",), ("a:x",))],
)
def test_topics_that_contradict_each_other_are_refused_in_one_sentence(
    configured: tuple[str, ...], declared: tuple[str, ...]
) -> None:
    with pytest.raises(
        UsageError, match=r"handler shop:count takes \"\w.*\", but the topics given .* are \"a.*\": leave"
    ):
        agreed_topics(configured, declared, "handler shop:count")


def test_a_topic_that_no_handler_takes_is_not_subscribed_later() -> None:
    check_takes("shop:count", (), "other")
    check_takes("shop:count", ("orders:paid",), "orders")
    with pytest.raises(UsageError, match="and no other topic"):
        check_takes("shop:count", ("orders:paid",), "other")
    assert same_topics(("a:x||y", "b"), ("b:*", "a:y || x"))
    assert not same_topics(("a",), ("a:x",))
