"""Bodies decoded by a handler's annotations: what an annotation means, what fits, and what becomes of the rest."""

from __future__ import annotations

import asyncio
import enum
import functools
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, make_dataclass
from numbers import Number
from typing import Annotated, Any, Literal, NamedTuple, NewType, Optional, Protocol, TypedDict, TypeVar

import pytest

from rocketcrew import BatchResult, BodyError, Handler, Message, SoftTimeLimitExceeded, handler
from rocketcrew.remoting.errors import UsageError
from rocketcrew.workers.bodies import plan_of, typed
from rocketcrew.workers.failures import Cause
from rocketcrew.workers.loading import HandlerLoadError, describe, load, ready, refusal
from rocketcrew.workers.message import make_message
from rocketcrew.workers.routing import combine
from rocketcrew.workers.user_errors import failure_of

msgspec: Any = pytest.importorskip("msgspec")


@dataclass
class Order:
    order_id: str
    total: float = 0.0


class Line(TypedDict):
    sku: str


class Point(NamedTuple):
    x: int
    y: int


class Looks(Protocol):
    body: bytes


class Something:
    pass


Struct: Any = msgspec.defstruct("Struct", [("order_id", str), ("lines", list[int])])


def by_order(order: Order) -> object:
    return order


def with_message(message: Message, order: Order) -> object:
    return message.keys, order


class Colour(enum.Enum):
    RED = "red"


def decoded(function: Callable[..., Any], body: bytes, **options: Any) -> Any:
    return ready(Handler(function, **options))(make_message(body, keys="k-1"))


def annotated(annotation: Any) -> Callable[[Any], Any]:
    def function(given: Any) -> Any:
        return given

    function.__annotations__["given"] = annotation
    return function


@pytest.mark.parametrize(
    ("annotation", "body", "found"),
    [
        (Order, b'{"order_id": "o-1", "total": 3}', Order("o-1", 3.0)),
        (Struct, b'{"order_id": "o-1", "lines": [1]}', Struct("o-1", [1])),
        (Line, b'{"sku": "a"}', {"sku": "a"}),
        (Point, b"[1, 2]", Point(1, 2)),
        (dict[str, int], b'{"a": 1}', {"a": 1}),
        (list[Order], b'[{"order_id": "o-1"}]', [Order("o-1")]),
        (Order | None, b"null", None),
        (bytes, b"\xff", b"\xff"),
        (str, "ä".encode(), "ä"),
        (Mapping[str, int], b'{"a": 1}', {"a": 1}),
        (Sequence[Order], b'[{"order_id": "o-1"}]', [Order("o-1")]),
        (Annotated[Order, "as the shop has it"], b'{"order_id": "o-1"}', Order("o-1")),
        (Annotated[Order, "a"] | None, b"null", None),
        (Annotated[bytes, "a"], b"\xff", b"\xff"),
        (Annotated[str, "a"], b"3", "3"),
        (list["Order"], b'[{"order_id": "o-1"}]', [Order("o-1")]),
        (Optional["Order"], b'{"order_id": "o-1"}', Order("o-1")),
        ("  Order", b'{"order_id": "o-1"}', Order("o-1")),
        ("'Order'", b'{"order_id": "o-1"}', Order("o-1")),
        ("dict[str, 'Order']", b'{"a": {"order_id": "o-1"}}', {"a": Order("o-1")}),
        (Annotated["Order", "a"], b'{"order_id": "o-1"}', Order("o-1")),
        (NewType("Named", Order), b'{"order_id": "o-1"}', Order("o-1")),
        (list[NewType("Number", int)], b"[3]", [3]),  # type: ignore[misc]
        (NewType("Raw", bytes), b"\xff", b"\xff"),
        (Literal["open", "paid"], b'"paid"', "paid"),
        (Colour, b'"red"', Colour.RED),
    ],
)
def test_a_body_is_what_the_parameter_is_annotated_with(annotation: Any, body: bytes, found: object) -> None:
    assert decoded(annotated(annotation), body) == found


def test_what_is_annotated_is_checked_by_what_decodes_it() -> None:
    with pytest.raises(BodyError, match=r"the body is no list\[int\]: Expected `array` of length <= 1"):
        decoded(annotated(Annotated[list[int], msgspec.Meta(max_length=1)]), b"[1, 2]")
    results = ready(Handler(annotated(Annotated[list[Order], "a"]), batch=True))([make_message(b'{"order_id": "o-1"}')])
    assert results == [Order("o-1")]


def test_an_alias_is_what_it_names() -> None:
    alias_of: Any = pytest.importorskip("typing_extensions").TypeAliasType
    item = TypeVar("item")
    order, several = alias_of("Named", Order), alias_of("Several", list[item], type_params=(item,))  # type: ignore[valid-type]
    for alias in (order, several[Order], order | None, Annotated[order, "a"]):
        plan = plan_of(Handler(annotated(alias)))
        assert plan is not None
        assert plan.wanted == alias  # what decodes knows them
    assert decoded(annotated(alias_of("Named", Annotated[str, "a"])), b"3") == "3"
    for alias in (alias_of("Named", Message), Annotated[Message, "a"]):
        assert plan_of(Handler(annotated(alias))) is None
    with pytest.raises(UsageError, match="annotated as Something, which is neither"):
        plan_of(Handler(annotated(alias_of("Named", Something))))
    with pytest.raises(UsageError, match="take both"):
        plan_of(Handler(annotated(Annotated[Order | Message, "a"])))


def test_an_alias_that_msgspec_does_not_know_is_decoded_as_what_it_names() -> None:
    alias_of: Any = pytest.importorskip("typing_extensions").TypeAliasType
    item = TypeVar("item")
    order, several = alias_of("Named", Order), alias_of("Several", list[item], type_params=(item,))  # type: ignore[valid-type]
    for one in (order, alias_of("Twice", order), order | None, Annotated[order, "a"]):
        assert decoded(annotated(one), b'{"order_id": "o-1"}') == Order("o-1")
    for many in (several[Order], several[order], list[order], Sequence[order], alias_of("Several", list[order])):
        assert decoded(annotated(many), b'[{"order_id": "o-1"}]') == [Order("o-1")]
        assert ready(Handler(annotated(many), batch=True))([make_message(b'{"order_id": "o-1"}')]) == [Order("o-1")]
    short = alias_of("Short", Annotated[list[int], msgspec.Meta(max_length=1)])
    with pytest.raises(BodyError, match="Expected `array` of length <= 1"):
        decoded(annotated(dict[str, short]), b'{"a": [1, 2]}')
    with pytest.raises(HandlerLoadError, match="Something in it is none of"):
        ready(Handler(annotated(list[alias_of("Named", Something)])))


def test_the_message_comes_first_where_it_is_asked_for() -> None:
    assert decoded(with_message, b'{"order_id": "o-1"}') == ("k-1", Order("o-1"))
    assert decoded(functools.partial(with_message), b'{"order_id": "o-1"}') == ("k-1", Order("o-1"))


def test_a_pydantic_model_decodes_itself() -> None:
    pydantic: Any = pytest.importorskip("pydantic")
    model = pydantic.create_model("Model", order_id=(str, ...), size=(int, ...))
    assert decoded(annotated(model), b'{"order_id": "o-1", "size": 3}').size == 3
    with pytest.raises(BodyError, match=r"the body is no Model: Field required - at `\$\.order_id` \(and 1 more\)"):
        decoded(annotated(model), b'{"size": "x"}')
    with pytest.raises(BodyError, match="the body is no Model: Invalid JSON"):
        decoded(annotated(model), b"{")


def model_of(**fields: Any) -> Any:
    pydantic: Any = pytest.importorskip("pydantic")
    return pydantic.create_model("Model", **fields)


def with_field(annotation: Any, **more: Any) -> Any:
    return make_dataclass("Holder", [("inner", annotation, *([field(**more)] if more else []))])


def test_a_pydantic_model_is_decoded_wherever_it_is_in_the_type() -> None:
    model = model_of(size=(int, ...))
    holder, deep = with_field(model), with_field(list[with_field(model)])
    for annotation, body, found in (
        (model | None, b'{"size": 3}', model(size=3)),
        (model | None, b"null", None),
        (NewType("Named", model), b'{"size": 3}', model(size=3)),
        (list[model], b'[{"size": 3}]', [model(size=3)]),
        (dict[str, model], b'{"a": {"size": 3}}', {"a": model(size=3)}),
        (holder, b'{"inner": {"size": 3}}', holder(model(size=3))),
    ):
        assert decoded(annotated(annotation), body) == found
    assert decoded(annotated(deep), b'{"inner": [{"inner": {"size": 3}}]}').inner[0].inner == model(size=3)
    results = ready(Handler(annotated(list[model | None]), batch=True))([make_message(b"null"), make_message(b"3")])
    assert results[0] is None
    assert isinstance(results[1], BodyError)


def test_the_model_s_own_configuration_says_what_is_converted() -> None:
    lax, strict = model_of(size=(int, ...)), model_of(__config__={"strict": True}, size=(int, ...))
    assert decoded(annotated(lax), b'{"size": "3"}') == lax(size=3)
    with pytest.raises(BodyError, match=r"Input should be a valid integer - at `\$\.size`"):
        decoded(annotated(strict), b'{"size": "3"}')


@pytest.mark.parametrize(
    "annotation", [list[Something], dict[str, Something | None], with_field(Something), with_field(list[Something])]
)
def test_a_plain_class_within_a_type_is_refused_before_the_start(annotation: Any) -> None:
    with pytest.raises(
        HandlerLoadError, match=r"bodies cannot be decoded into [^:]+: Something in it is none of bytes"
    ):
        ready(Handler(annotated(annotation)))


def test_what_pydantic_cannot_decode_is_refused_before_the_start() -> None:
    model, unfinished = model_of(size=(int, ...)), model_of(size=("Nowhere", ...))
    for annotation in (with_field(Something | model), list[unfinished]):
        with pytest.raises(HandlerLoadError, match="bodies cannot be decoded into"):
            ready(Handler(annotated(annotation)))


def test_a_class_in_a_field_with_a_default_and_one_that_json_has_are_not_refused() -> None:
    assert decoded(annotated(with_field(Something | None, default=None)), b"{}").inner is None
    assert decoded(annotated(with_field(Number)), b'{"inner": 3}').inner == 3


@pytest.mark.parametrize(
    ("annotation", "body", "said"),
    [
        (Order, b'{"order_id": 3}', r"the body is no Order: Expected `str`, got `int` - at `\$\.order_id`"),
        (Order, b"{}", "the body is no Order: Object missing required field `order_id`"),
        (Order, b"no JSON", "the body is no Order: JSON is malformed"),
        (Order, b"", "the body is no Order: Input data was truncated"),
        (str, b"\xff", "the body is no str: 'utf-8' codec can't decode"),
    ],
)
def test_a_body_that_does_not_fit_fails_with_field_and_reason(annotation: Any, body: bytes, said: str) -> None:
    with pytest.raises(BodyError, match=said) as failed:
        decoded(annotated(annotation), body)
    assert failure_of(failed.value).cause is Cause.FAILED
    with pytest.raises(BodyError, match=said) as given_up:
        decoded(annotated(annotation), body, body_errors="dead_letter")
    assert failure_of(given_up.value).cause is Cause.GIVEN_UP
    assert failure_of(given_up.value).error == str(given_up.value)


@pytest.mark.parametrize("annotation", [Message, "Message", "nowhere.Message", Any, object, Looks, Message | None])
def test_what_is_annotated_as_a_message_gets_it_and_stays_the_very_same(annotation: Any) -> None:
    own = Handler(annotated(annotation))
    assert ready(own) is own


def test_handlers_of_messages_pay_nothing() -> None:
    def count(message):  # type: ignore[no-untyped-def]
        return message

    def look(message: Message, limit: int = 3) -> object:
        return message, limit

    for function in (count, look, lambda message: message):
        own = Handler(function)  # pyright: ignore[reportUnknownArgumentType]
        assert ready(own) is own
        assert own.function is function
    for annotation in (list, list[Message], Sequence[Message], Sequence[Any]):
        batch = Handler(annotated(annotation), batch=True)
        assert typed(batch) is batch


def test_a_value_of_no_literal_is_refused_by_name() -> None:
    with pytest.raises(BodyError, match=r"the body is no Literal\['open', 'paid'\]: Invalid enum value 'shut'"):
        decoded(annotated(Literal["open", "paid"]), b'"shut"')


@pytest.mark.parametrize(
    ("annotation", "said"),
    [
        (Something, "parameter given is annotated as Something, which is neither Message nor"),
        ("Nowhere", r"the annotation 'Nowhere' of parameter given means nothing when it runs \(name 'Nowhere'"),
        ("OrderMessage", r"the annotation 'OrderMessage' of parameter given means nothing"),
        ("list[MessageBody]", r"the annotation 'list\[MessageBody\]' of parameter given means nothing"),
        (Order | Point | Line, "bodies cannot be decoded into"),
        (enum.IntEnum("Large", {"A": 1 << 64}), "bodies cannot be decoded into Large: "),
        (list["Nowhere"], "of parameter given means nothing when it runs"),  # type: ignore[name-defined]  # noqa: F821
        (NewType("Named", Something), "which is neither Message nor"),
    ],
)
def test_an_annotation_that_means_nothing_is_refused_before_the_start(annotation: Any, said: str) -> None:
    with pytest.raises(HandlerLoadError, match=said):
        ready(Handler(annotated(annotation)))
    with pytest.raises(UsageError, match="body_errors='ignore' is unknown"):
        handler(body_errors="ignore")(by_order)


def default_none(message: Message, order: Order = None) -> None: ...  # type: ignore[assignment]
def by_name(message: Message, *, order: Order | None = None) -> None: ...
def by_name_alone(message: Message, *, order: list[Order]) -> None: ...
def all_that_are_left(*order: Order) -> None: ...
def second(message: Message, line: Line, order: Struct = None) -> None: ...
def unannotated(message, order: Order | None = None) -> None: ...  # type: ignore[no-untyped-def]
def of_a_batch(messages: list[Message], order: list[Order] | None = None) -> None: ...


@pytest.mark.parametrize(
    "function",
    [default_none, by_name, by_name_alone, all_that_are_left, second, unannotated, functools.partial(default_none)],
)
def test_a_parameter_that_would_get_no_body_is_refused(function: Callable[..., Any]) -> None:
    said = r"parameter order is annotated as .*, and would get no body: leave out .* as in \(message: Message, order: "
    assert re.search(said, refusal(Handler(function)) or "")
    said = r"; or give it another default than None, or set it by functools.partial, if it is an option of your own$"
    assert re.search(said, refusal(Handler(function)) or "")
    said = r"would get no body: .*\(messages: list\[Message\], order: list\[Order\] \| None\)"
    assert re.search(said, refusal(Handler(of_a_batch, batch=True)) or "")


def test_what_a_partial_sets_is_an_option() -> None:
    for function in (default_none, by_name, by_name_alone):
        partial = functools.partial(function, order=None)
        for own in (Handler(partial), Handler(functools.partial(partial)), Handler(wrapped(partial))):
            assert refusal(own) is None
            assert ready(own) is own
    assert refusal(Handler(functools.partial(of_a_batch, order=None), batch=True)) is None
    assert "parameter order is" in (refusal(Handler(functools.partial(second, line=None))) or "")


def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(message: Message) -> object:
        return function(message)

    return call


def test_a_pydantic_model_with_a_default_is_refused_and_one_that_is_given_is_not() -> None:
    def one(message: Message, order=None) -> object:  # type: ignore[no-untyped-def]
        return order

    one.__annotations__["order"] = model = model_of(size=(int, ...))
    assert "parameter order is annotated as Model, and would get no body" in (refusal(Handler(one)) or "")
    given = model(size=3)
    assert ready(Handler(functools.partial(one, order=given)))(make_message(b"")) is given


def test_options_of_other_types_and_with_a_value_stay() -> None:
    def count(
        message: Message, limit: int = 3, names: dict[str, str] | None = None, most: Order = Order("o-1"),  # noqa: B008
        other: Nowhere | None = None, *texts: str, client: Something | None = None, **more: Order,  # type: ignore[name-defined]  # noqa: F821
    ) -> object:  # fmt: skip
        return message

    own = Handler(count)
    assert refusal(own) is None
    assert ready(own) is own


@pytest.mark.parametrize(
    ("annotation", "batch", "said"),
    [
        (Order | Message, False, r"Order \| Message, and a parameter gets either the message or its body: take both"),
        (list[Order] | Message | None, False, r"either the message .*\(message: Message, given: list\[Order\]\)"),
        (
            list[Message],
            False,
            r"list\[Message\], and it gets one message a call: decorate it with @handler\(batch=True\)",
        ),
        (Message, True, r"Message, and with batch=True it gets a list: write given: list\[Message\]"),
        (Order, True, r"Order, and with batch=True it gets a list: write given: list\[Order\]"),
        (list[Order | Message], True, r"Order \| Message, and a parameter gets either"),
    ],
)
def test_an_annotation_that_no_call_honours_is_refused_before_the_start(
    annotation: Any, batch: bool, said: str
) -> None:
    with pytest.raises(HandlerLoadError, match=said):
        ready(Handler(annotated(annotation), batch=batch))


def test_the_message_is_the_first_of_two_parameters() -> None:
    def swapped(order: Order, message: Message) -> None: ...

    with pytest.raises(
        HandlerLoadError, match=r"the first of two parameters: write \(message: Message, order: Order\)"
    ):
        ready(Handler(swapped))


def test_two_parameters_without_an_annotation_are_no_handler() -> None:
    def two(first, second):  # type: ignore[no-untyped-def]
        return first, second

    assert plan_of(Handler(two)) is None  # pyright: ignore[reportUnknownArgumentType]
    assert "its signature is two(first, second)" in str(refusal(Handler(two)))  # pyright: ignore[reportUnknownArgumentType]


def test_a_coroutine_function_gets_decoded_bodies() -> None:
    async def one(order: Order) -> str:
        return order.order_id

    async def both(message: Message, order: Order) -> tuple[str | None, str]:
        return message.keys, order.order_id

    assert asyncio.run(decoded(one, b'{"order_id": "o-1"}')) == "o-1"
    assert asyncio.run(decoded(both, b'{"order_id": "o-1"}')) == ("k-1", "o-1")
    with pytest.raises(BodyError):
        asyncio.run(decoded(one, b"{}"))


# --- batches --------------------------------------------------------------------------------------------------------------

BATCH = [
    make_message(body, keys=f"k-{place}")
    for place, body in enumerate([b'{"order_id": "a"}', b"{}", b'{"order_id": "b"}'])
]


def test_a_batch_handler_is_called_with_what_fits() -> None:
    calls: list[list[str]] = []

    @handler(batch=True)
    def many(orders: list[Order]) -> list[object]:
        calls.append([order.order_id for order in orders])
        return [{"id": order.order_id} for order in orders]

    call = ready(many)
    results = call(BATCH)
    assert calls == [["a", "b"]]
    assert [results[0], results[2]] == [{"id": "a"}, {"id": "b"}]
    assert isinstance(results[1], BodyError)
    assert call([BATCH[0]]) == [{"id": "a"}]
    assert [type(each) for each in call([BATCH[1]])] == [BodyError]
    assert calls[1:] == [["a"]]


@dataclass
class Checked:
    size: int
    more: Any = None

    def __post_init__(self) -> None:
        if self.size == 7:
            raise KeyError("seven")
        if self.size == 8:
            sys.exit(8)
        if self.size == 9:
            raise SoftTimeLimitExceeded(1.0)


def sizes(*given: object) -> list[Message]:
    return [make_message(b'{"size": %s}' % str(each).encode()) for each in given]


def test_whatever_one_body_raises_is_its_own_message_s_failure() -> None:
    @handler(batch=True, body_errors="dead_letter")
    def many(given: list[Checked]) -> list[int]:
        return [each.size for each in given]

    deep = "[" * 200_000
    results = ready(many)(sizes(1, f'1, "more": {deep}', 7, 8, 3))
    assert [results[0], results[4]] == [1, 3]
    assert [type(each) for each in results[1:4]] == [BodyError, KeyError, SystemExit]
    assert "the body is no Checked: maximum recursion depth" in str(results[1])
    assert [failure_of(each).cause for each in results[1:3]] == [Cause.GIVEN_UP, Cause.FAILED]
    with pytest.raises(SoftTimeLimitExceeded):
        ready(many)(sizes(1, 9))
    with pytest.raises(BodyError, match="maximum recursion depth"):
        decoded(annotated(list), deep.encode())


@pytest.mark.parametrize("error", [ValueError("broken"), SystemExit(1)])
def test_bodies_that_do_not_fit_keep_their_own_error_where_the_handler_fails(error: BaseException) -> None:
    def broken(orders: list[Order]) -> list[int]:
        raise error

    async def broken_later(orders: list[Order]) -> list[int]:
        raise error

    def too_few(orders: list[Order]) -> list[int]:
        return []

    def at_its_limit(orders: list[Order]) -> list[int]:
        raise SoftTimeLimitExceeded(1.0)

    def call(function: Any) -> Any:
        return ready(Handler(function, batch=True, body_errors="dead_letter"))

    for results in (call(broken)(BATCH), asyncio.run(call(broken_later)(BATCH))):
        assert [results[0], results[2]] == [error, error]
        assert failure_of(results[1]).cause is Cause.GIVEN_UP
    results = call(too_few)(BATCH)
    assert "0 results for 2 messages" in str(results[0])
    assert isinstance(results[1], BodyError)
    with pytest.raises(type(error)):
        call(broken)([BATCH[0]])
    with pytest.raises(SoftTimeLimitExceeded):
        call(at_its_limit)(BATCH)


def test_a_batch_result_of_messages_with_their_bodies() -> None:
    @handler(batch=True)
    def many(messages: list[Message], orders: Sequence[Order]) -> BatchResult:
        return BatchResult(
            [(message, order.order_id) for message, order in zip(messages, orders, strict=True)], ack_index=0
        )

    results = ready(many)(BATCH)
    assert results[0] == ["a"]
    assert [type(each).__name__ for each in results] == ["list", "BodyError", "Retry"]


def test_a_batch_of_a_coroutine_function() -> None:
    @handler(batch=True)
    async def many(orders: list[Order]) -> list[str]:
        return [order.order_id for order in orders]

    results = asyncio.run(ready(many)(BATCH))
    assert [results[0], results[2]] == ["a", "b"]


def test_batches_that_leave_bodies_out_have_no_order() -> None:
    @handler(batch=True, order="queue")
    def many(orders: list[Order]) -> None:
        pass

    with pytest.raises(HandlerLoadError, match="out of order"):
        ready(many)


# --- how they travel ------------------------------------------------------------------------------------------------------


def test_a_shipped_handler_knows_what_its_annotations_mean() -> None:
    shipped = describe(Handler(functools.partial(with_message)))
    assert shipped.pickled is not None
    assert load(shipped)(make_message(b'{"order_id": "o-1"}', keys="k")) == ("k", Order("o-1"))


def test_several_handlers_with_bodies_of_their_own() -> None:
    one = Handler(annotated(Order), topic="orders")
    other = Handler(annotated(Line), topic="lines", body_errors="dead_letter")
    both = ready(combine([one, other]))
    assert both(make_message(b'{"order_id": "o-1"}', topic="orders")) == Order("o-1")
    assert both(make_message(b'{"sku": "a"}', topic="lines")) == {"sku": "a"}
    assert typed(one).name == one.name
    with pytest.raises(BodyError) as failed:
        both(make_message(b"{}", topic="lines"))
    assert failed.value.delay_level == -1
