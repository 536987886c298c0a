"""`rocketcrew.testing`: what ends a test ends the run, is raised from it, and leaves nothing open."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import unittest
from bdb import BdbQuit
from collections.abc import Callable, Generator
from dataclasses import dataclass, field

import pytest
from hypothesis.errors import UnsatisfiedAssumption

from rocketcrew import SoftTimeLimitExceeded, handler
from rocketcrew.remoting.errors import UsageError
from rocketcrew.testing import Rehearsal, message, run
from rocketcrew.testing.witness import ends_test
from rocketcrew.workers.api import ConsumeMessageContext, Handler
from rocketcrew.workers.loading import HandlerLoadError
from rocketcrew.workers.message import Message

Fail = Callable[[], None]
PANIC = type("PanicException", (BaseException,), {"__module__": "pyo3_runtime"})

ENDS = [
    KeyboardInterrupt(),
    pytest.fail.Exception("not this"),
    pytest.skip.Exception("not here"),
    pytest.exit.Exception("stop it all"),
    BdbQuit(),
    pytest.xfail.Exception("not yet"),
    unittest.SkipTest("not here"),
    UnsatisfiedAssumption(),
    ExceptionGroup("both", [ValueError("x"), BdbQuit()]),
]
FAILURES = [
    ValueError("x"),
    SystemExit(3),
    SoftTimeLimitExceeded(),
    asyncio.CancelledError(),
    GeneratorExit(),
    BaseException("of a library"),
    PANIC("index out of bounds"),
    BaseExceptionGroup("both", [ValueError("x"), SoftTimeLimitExceeded()]),
]


def plain(fail: Fail) -> Handler:
    return handler(lambda _: fail())


def returned(fail: Fail) -> Handler:
    def call(_: Message) -> object:
        try:
            fail()
        except BaseException as error:  # noqa: BLE001
            return error
        return None

    return handler(call)


def coroutine(fail: Fail) -> Handler:
    @handler
    async def call(_: Message) -> None:
        await asyncio.sleep(0)
        fail()

    return call


def batch(fail: Fail) -> Handler:
    return handler(batch=True)(lambda _: fail())


def generator(fail: Fail) -> Handler:
    @handler(schema="size int")
    def call(order: Message) -> Generator[dict[str, int]]:
        yield {"size": len(order.body)}
        fail()

    return call


def batch_of_generators(fail: Fail) -> Handler:
    @handler(batch=True, schema="size int")
    def call(orders: list[Message]) -> list[object]:
        return [generator(fail).function(order) for order in orders]

    return call


def in_order(fail: Fail) -> Handler:
    return handler(order="queue")(lambda _: fail())


def by_key(fail: Fail) -> Handler:
    return handler(order="key", key=lambda _: fail())(lambda _: None)


def filtering(fail: Fail) -> Handler:
    return handler(filter=lambda _: fail())(lambda _: None)


def filtering_batches(fail: Fail) -> Handler:
    return handler(batch=True, filter=lambda _: fail())(lambda _: None)


def setting_up(fail: Fail) -> Handler:
    return handler(setup=fail)(lambda _: None)


def setting_up_by_coroutine(fail: Fail) -> Handler:
    async def setup() -> None:
        fail()

    return handler(setup=setup)(lambda _: None)


def body(fail: Fail) -> Handler:
    def later() -> str:
        fail()
        return ""

    @dataclass
    class Order:
        note: str = field(default_factory=later)

    def call(order):  # type: ignore[no-untyped-def]
        pass

    call.__annotations__["order"] = Order
    return handler(call)


def hooked(fail: Fail) -> Handler:
    class Hook:
        def hook_name(self) -> str:
            return "mine"

        def consume_message_before(self, context: ConsumeMessageContext) -> None:
            pass

        def consume_message_after(self, context: ConsumeMessageContext) -> None:
            fail()

    return handler(hooks=[Hook()])(lambda _: None)


KINDS = [
    plain, returned, coroutine, batch, generator, batch_of_generators, in_order, by_key, filtering, filtering_batches,
    setting_up, setting_up_by_coroutine, body, hooked,
]  # fmt: skip


@pytest.mark.parametrize("error", ENDS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("kind", KINDS)
def test_what_ends_a_test_ends_the_run_at_once_wherever_it_is_raised(
    kind: Callable[[Fail], Handler], error: BaseException
) -> None:
    calls: list[int] = []

    def fail() -> None:
        calls.append(1)
        raise error

    with pytest.raises(type(error)) as raised:
        run(kind(fail), ["{}"] * 3)
    assert raised.value is error
    assert len(calls) == 1


@pytest.mark.parametrize("error", FAILURES, ids=lambda error: type(error).__name__)
def test_the_rest_is_the_failure_of_a_message_as_in_a_worker(error: BaseException) -> None:
    def fail() -> None:
        raise error

    result = run(plain(fail), ["x"], settings={"consumer.max_reconsume_times": 0})
    assert result.errors == [error]
    assert len(result.dead_letters) == 1


def test_no_error_is_no_end() -> None:
    assert not ends_test(None)


def test_a_rehearsal_that_was_ended_says_so_again_and_calls_nobody() -> None:
    calls: list[bytes] = []
    torn_down: list[int] = []

    def interrupted(order: Message) -> None:
        calls.append(order.body)
        raise KeyboardInterrupt

    with Rehearsal(handler(teardown=lambda: torn_down.append(1))(interrupted)) as rehearsal:
        rehearsal.send("a", "b")
        for ask in (rehearsal.settle, rehearsal.result, lambda: rehearsal.wind(60)):
            with pytest.raises(KeyboardInterrupt):
                ask()
    assert (calls, torn_down) == ([b"a"], [1])


@handler(schema="size int")
async def measured(order: Message) -> dict[str, int]:
    return {"size": len(order.body)}


def test_coroutines_are_refused_where_an_event_loop_runs_and_run_in_a_thread_beside_it() -> None:
    async def within() -> int:
        with pytest.raises(UsageError, match=r"event loop already: .*asyncio.to_thread\(run, handler, messages\)"):
            run(measured, ["ab"])
        assert run(handler(schema="size int")(lambda _: {"size": 1}), ["ab"]).rows == [{"size": 1}]
        return (await asyncio.to_thread(run, measured, ["ab"])).rows[0]["size"]

    assert asyncio.run(within()) == 2


def test_a_rehearsal_of_coroutines_goes_on_after_it_was_asked_within_an_event_loop() -> None:
    with Rehearsal(measured) as rehearsal:
        rehearsal.send(message("ab"))
        rehearsal.wind(0)
        rehearsal.send(message("abc"))

        async def within() -> None:
            with pytest.raises(UsageError, match="this thread runs an event loop already"):
                rehearsal.settle()

        asyncio.run(within())
        rehearsal.settle()
        assert rehearsal.result().rows == [{"size": 2}, {"size": 3}]


def refused(_: Message) -> None:
    raise AssertionError("its set-up has failed")


async def setup_fails() -> None:
    raise OSError("no service")


def unsettled(target: Handler) -> None:
    with Rehearsal(target) as rehearsal:
        rehearsal.send("ab")
        rehearsal.wind(0)


def set_up_twice() -> None:
    with Rehearsal(handler(setup=setup_fails)(refused)) as rehearsal:
        rehearsal.send("ab")
        for _ in range(2):
            with pytest.raises(HandlerLoadError, match="no service"):
                rehearsal.settle()


@pytest.mark.skipif(sys.platform != "linux", reason="counts descriptors")
@pytest.mark.parametrize("use", [set_up_twice, lambda: unsettled(measured)], ids=["set-up fails", "rows unasked for"])
def test_a_rehearsal_keeps_no_descriptor(use: Callable[[], None]) -> None:
    run(measured, ["ab"])  # what is opened once
    gc.collect()
    gc.disable()  # it would close what is left
    try:
        before = os.listdir("/proc/self/fd")
        use()
        assert len(os.listdir("/proc/self/fd")) <= len(before)
    finally:
        gc.enable()
