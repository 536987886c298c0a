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


def became(error: BaseException, *, times: int = 1, hidden: bool = False) -> None:
    """Raise what code in between makes of it: an error of its own, so many times one of the one before."""
    try:
        if times > 1:
            became(error, times=times - 1)
        raise error
    except BaseException:  # noqa: BLE001
        if hidden:
            raise OSError("rolled back") from None
        raise OSError("rolled back")  # noqa: B904


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


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_what_ends_a_test_is_known_in_the_errors_that_other_code_has_made_of_it(
    kind: Callable[[Fail], Handler], times: int
) -> None:
    calls: list[int] = []

    def fail() -> None:
        calls.append(1)
        became(KeyboardInterrupt(), times=times)

    with pytest.raises(KeyboardInterrupt):
        run(kind(fail), ["{}"] * 3)
    assert len(calls) == 1


def test_what_a_chain_of_causes_ends_with_ends_the_test() -> None:
    def fail() -> None:
        try:
            try:
                raise KeyboardInterrupt
            except BaseException as error:
                raise ValueError("lost") from error
        except ValueError as error:
            raise OSError("rolled back") from error

    with pytest.raises(KeyboardInterrupt):
        run(plain(fail), ["x"])


def test_what_an_error_of_a_group_came_from_ends_the_test() -> None:
    @handler
    async def call(_: Message) -> None:
        async def inner() -> None:
            became(BdbQuit())

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(inner())

    with pytest.raises(BdbQuit):
        run(call, ["x"])


def test_an_error_from_none_is_the_failure_of_a_message() -> None:
    result = run(
        plain(lambda: became(KeyboardInterrupt(), hidden=True)), ["x"], settings={"consumer.max_reconsume_times": 0}
    )
    assert [str(error) for error in result.errors] == ["rolled back"]


@pytest.mark.parametrize("kind", [plain, generator])
def test_what_the_test_itself_is_handling_ends_no_run(kind: Callable[[Fail], Handler]) -> None:
    def fail() -> None:
        raise ValueError("x")

    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        result = run(kind(fail), ["x"], settings={"consumer.max_reconsume_times": 0})
    assert len(result.dead_letters) == 1


def test_causes_in_a_circle_are_looked_at_once() -> None:
    first, second = ValueError("x"), ValueError("y")
    first.__cause__, second.__cause__ = second, first

    def fail() -> None:
        raise first

    assert run(plain(fail), ["x"], settings={"consumer.max_reconsume_times": 0}).errors == [first]


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
