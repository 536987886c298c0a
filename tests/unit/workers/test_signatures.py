"""What a handler can take, by its signature."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from rocketcrew import Message
from rocketcrew.remoting.errors import UsageError
from rocketcrew.testing import message
from rocketcrew.workers.api import Handler
from rocketcrew.workers.loading import HandlerLoadError, describe, find, load, ready, refusal, takes_one


class Callback:
    """An object of this class is a handler."""

    def __call__(self, message: object) -> None: ...

    def method(self, message: object) -> None: ...

    def greedy(self, message: object, other: object) -> None: ...


def one(message: object, /) -> None: ...
def with_default(message: object, times: int = 3, *, name: str = "") -> None: ...
def anything(*arguments: object, **named: object) -> None: ...
def plain(message: object) -> object: ...
async def coroutine(message: object) -> None: ...
def none() -> None: ...
def two(first: object, second: object) -> None: ...
def keyword(message: object, *, name: str) -> None: ...


@pytest.mark.parametrize(
    "function",
    [
        one, with_default, anything, coroutine, Callback(), Callback().method, functools.partial(two, 1), print, len,
        plain,
    ],
)  # fmt: skip
def test_what_takes_one_message(function: Callable[..., Any]) -> None:
    assert refusal(Handler(function)) is None
    assert takes_one(function)


class Awaited:
    async def __call__(self, message: object) -> None: ...

    async def method(self, message: object) -> None: ...


async def generated(message: object) -> AsyncIterator[object]:
    yield message


def test_what_nothing_would_run_is_refused() -> None:
    for function in (generated, functools.partial(generated)):
        assert "is an async generator, which nothing runs" in (refusal(Handler(function)) or "")
    assert "whose __call__ is `async def`, which is not awaited" in (refusal(Handler(Awaited())) or "")
    assert refusal(Handler(Awaited().method)) is None


@pytest.mark.parametrize(
    ("function", "shown"),
    [
        (none, "its signature is none() -> 'None'"),
        (two, "its signature is two(first: 'object', second: 'object') -> 'None' (missing a required argument: 'second')"),
        (keyword, "argument: 'name'"),  # "keyword-only" stands in between from Python 3.13 on
        (functools.partial(two, 1, 2), "too many positional arguments"),
        (Callback().greedy, "'other'"),
        (Callback, "Callback is a class"),
        (dict, "dict is a class"),
    ],
)  # fmt: skip
def test_what_does_not(function: Callable[..., Any], shown: str) -> None:
    wrong = refusal(Handler(function))
    assert wrong is not None
    assert shown in wrong
    assert "cannot take one message" in wrong
    assert not takes_one(function)


class Shop:
    def count(self, message: object) -> None: ...
    def bill(self, message: object, order: dict[str, int]) -> None: ...
    async def later(self, message: object) -> None: ...
    @staticmethod
    def alone(message: object) -> None: ...


@pytest.mark.parametrize("name", ["count", "bill", "later"])
def test_a_method_is_a_handler_only_with_its_object(name: str) -> None:
    wrong = refusal(Handler(getattr(Shop, name))) or ""
    assert f"Shop.{name} is a method, which would be called without its object" in wrong
    assert f"give an object's method instead, obj.{name}." in wrong
    assert "leave" not in wrong  # nobody has decorated it
    for function in (getattr(Shop(), name), Shop.alone):
        assert refusal(Handler(function)) is None


@dataclasses.dataclass
class Order:
    a: int


def filled(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that gives a connection to what it wraps."""

    @functools.wraps(function)
    def inner(message: object) -> object:
        return function(message, conn="conn")

    return inner


def handed_on(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def inner(*given: object, **named: object) -> object:
        return function(*given, **named)

    return inner


def of_message(message: object, conn: str) -> object:
    return message, conn


def of_message_by_name(message: object, *, conn: str) -> object:
    return message, conn


def of_message_and_a_class(message: object, conn: Order) -> object:
    return message, conn


def of_message_and_nothing(message: object, conn: Order | None = None) -> object:
    return message, conn


def of_conn_first(conn: Callback, message: object) -> object:
    return message, conn


@pytest.mark.parametrize(
    "function",
    [of_message, of_message_by_name, of_message_and_a_class, of_message_and_nothing],
)
def test_a_decorator_may_fill_an_argument(function: Callable[..., Any]) -> None:
    handler = Handler(filled(function))
    assert refusal(handler) is None
    assert takes_one(filled(function))
    assert ready(handler).function("given") == ("given", "conn")
    assert refusal(Handler(filled(function), batch=True)) is None


def test_a_decorator_may_fill_the_first_argument() -> None:
    @functools.wraps(of_conn_first)
    def inner(message: object) -> object:
        return of_conn_first(Callback(), message)

    assert refusal(Handler(inner)) is None
    assert ready(Handler(inner)).function is inner


def test_a_body_is_decoded_for_a_decorator_that_fills_an_argument() -> None:
    def by_message(message: Order, conn: str) -> object:
        return message, conn

    def by_name(conn: str, message: Order) -> object:
        return message, conn

    def by_name_alone(*, message: Order, conn: str) -> object:
        return message, conn

    def named(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def inner(message: object) -> object:
            return function(message=message, conn="conn")

        return inner

    for function in (filled(by_message), named(by_name), named(by_name_alone)):
        assert ready(Handler(function)).function(message(b'{"a": 1}')) == (Order(1), "conn")


def of_another_name(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def inner(given: object) -> object:
        return function(given)

    return inner


def with_own_signature(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def inner(given: object) -> object:
        return given

    inner.__signature__ = inspect.signature(one)  # type: ignore[attr-defined]  # pyright: ignore[reportFunctionMemberAccess]
    return inner


def settings_first(settings: Order, message: Message) -> None: ...
def text_first(name: str, message: Message) -> None: ...
def any_first(name, message: Message) -> None: ...  # type: ignore[no-untyped-def]
def conn_by_name(order: Order, *, conn: str) -> None: ...
def body_by_name(*, order: Order, conn: str) -> None: ...
def settings_first_of_many(settings: Order, messages: list[Message]) -> None: ...


@pytest.mark.parametrize("function", [settings_first, text_first, any_first, conn_by_name, body_by_name])
def test_which_of_several_parameters_a_decorator_fills_is_not_guessed(function: Callable[..., Any]) -> None:
    assert "and nobody can know which of these gets it: give both the same name; or leave functools.wraps out" in (
        refusal(Handler(of_another_name(function))) or ""
    )
    own = Handler(with_own_signature(function))
    assert ready(own) is own


def test_which_of_the_parameters_of_a_batch_handler_is_filled_is_not_guessed_either() -> None:
    wrong = refusal(Handler(of_another_name(settings_first_of_many), batch=True)) or ""
    assert "has the parameter given, the handler has (settings, messages)" in wrong


def test_a_decorator_s_parameter_may_have_another_name_where_nothing_is_decoded_or_nothing_is_filled() -> None:
    def with_a_body_of_its_own(message: Message, order: Order) -> None: ...

    def untyped(message, order: Order) -> None: ...  # type: ignore[no-untyped-def]

    def alone(order: Order) -> object:
        return order

    for function in (with_a_body_of_its_own, untyped):
        own = Handler(of_another_name(function))
        assert ready(own) is own
    assert ready(Handler(of_another_name(alone))).function(message(b'{"a": 1}')) == Order(1)


async def awaited_of_message(message: object, conn: str) -> object:
    return message, conn


async def later_of_message(message: object, conn: str) -> AsyncIterator[object]:
    yield message, conn


def test_a_coroutine_function_behind_a_plain_decorator_that_fills_an_argument_is_refused() -> None:
    for function in (awaited_of_message, later_of_message):
        wrong = refusal(Handler(filled(function))) or ""
        assert "is `async def` behind a decorator's plain function, which does not await it" in wrong
        assert "If it runs an event loop itself: leave functools.wraps out of the decorator, or set" in wrong
        assert refusal(Handler(with_own_signature(function))) is None
    wrong = refusal(Handler(one, filter=filled(awaited_of_message))) or ""
    assert "filter is a coroutine function, which nothing awaits" in wrong


def test_a_plain_decorator_that_fills_nothing_may_run_the_event_loop() -> None:
    async def later(message: object) -> object:
        return message

    for decorate in (of_another_name, handed_on):
        assert refusal(Handler(decorate(later))) is None


def test_a_decorator_that_hands_on_what_it_gets_takes_what_is_behind_it() -> None:
    assert refusal(Handler(handed_on(one))) is None
    assert "missing a required argument: 'second'" in (refusal(Handler(handed_on(two))) or "")
    assert refusal(Handler(functools.lru_cache(plain))) is None
    assert "missing a required argument: 'second'" in (refusal(Handler(functools.lru_cache(two))) or "")


def test_a_wrapper_of_a_method_has_its_object() -> None:
    shop = Shop()

    @functools.wraps(Shop.count)
    def inner(message: object) -> object:
        return shop.count(message)

    assert refusal(Handler(inner)) is None
    assert "is a method" in (refusal(Handler(handed_on(Shop.count))) or "")


def test_a_decorator_may_fill_the_arguments_of_a_set_up() -> None:
    @functools.wraps(one)
    def set_up() -> object:
        return one("conn")

    assert refusal(Handler(one, setup=set_up, teardown=set_up, filter=filled(of_message))) is None


def test_a_batch_handler_is_expected_to_take_a_list() -> None:
    wrong = refusal(Handler(none, batch=True))
    assert wrong is not None
    assert "a list of messages (batch=True)" in wrong
    assert wrong.endswith("Expected is def none(messages)")


def test_a_long_signature_is_cut() -> None:
    text = ", ".join(f"argument_{number}" for number in range(200))
    wrong = refusal(Handler(eval(f"lambda {text}: None")))
    assert wrong is not None
    assert len(wrong) < 600


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ({"filter": none}, "filter is called with one message, but its signature is none()"),
        ({"order": "key", "key": two}, "key is called with one message"),
        ({"setup": one}, "setup is called with no arguments"),
        ({"teardown": two}, "teardown is called with no arguments"),
    ],
)
def test_functions_that_are_declared_with_it(options: dict[str, Any], shown: str) -> None:
    wrong = refusal(Handler(one, **options))
    assert wrong is not None
    assert shown in wrong


def yields(message: object = None) -> Iterator[object]:
    yield message


async def yields_later(message: object = None) -> AsyncIterator[object]:
    yield message


@pytest.mark.parametrize("function", [yields, yields_later])
@pytest.mark.parametrize("option", ["filter", "setup", "teardown"])
def test_a_function_with_a_yield_of_which_nothing_would_run(option: str, function: Any) -> None:
    assert refusal(Handler(one, **{option: function})) == (
        f"handler {Handler(one).name}: {option} has a yield, so calling it runs nothing of it: write it without"
    )


def test_a_filter_or_a_key_that_nothing_awaits_is_refused_and_a_set_up_is_awaited() -> None:
    """What a coroutine function returns is true: such a filter would let everything pass."""
    given: list[dict[str, Any]] = [{"filter": coroutine}, {"key": coroutine, "order": "key"}]
    for options in given:
        assert "is a coroutine function, which nothing awaits" in (refusal(Handler(one, **options)) or "")

    async def set_up() -> None: ...

    assert refusal(Handler(one, setup=set_up, teardown=set_up)) is None


def test_classes_will_do_where_nothing_is_handled() -> None:
    assert refusal(Handler(one, setup=dict, filter=bool)) is None


def test_a_misfit_is_refused_where_it_is_described_and_where_it_is_loaded() -> None:
    with pytest.raises(HandlerLoadError, match="cannot take one message"):
        describe(lambda: None)
    spec = describe("functools:reduce")
    assert find(spec).function is functools.reduce
    bad = describe("rocketcrew.workers.loading:_misfit")
    with pytest.raises(HandlerLoadError, match="its signature is _misfit"):
        load(bad)
    assert find(bad).name == "rocketcrew.workers.loading:_misfit"


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("shop.py:count", "shop:count"),
        ("./shop.py:count", "shop:count"),
        ("orders/shop.py:count", "orders.shop:count"),
        ("orders/shop:count", "orders.shop:count"),
        ("shop.py", "shop"),
    ],
)
def test_a_handler_written_as_a_file(written: str, meant: str) -> None:
    with pytest.raises(UsageError) as caught:
        describe(written)
    assert f'did you mean "{meant}"?' in str(caught.value)


class AnswersToAnyName:
    """As a proxy of another machine's functions does."""

    def __getattr__(self, name: str) -> AnswersToAnyName:
        return AnswersToAnyName()

    def __call__(self, message: Message) -> None: ...


def test_wrappers_without_an_end_are_looked_at_so_far() -> None:
    def wraps_itself(message: Message) -> None: ...

    wraps_itself.__wrapped__ = wraps_itself  # pyright: ignore[reportFunctionMemberAccess]
    for function in (wraps_itself, AnswersToAnyName()):
        assert refusal(Handler(function)) is None
