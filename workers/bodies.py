"""Bodies decoded by the types in a handler's signature: `def count(order: Order)`, or `def count(message, order: Order)`.

What a parameter is annotated with decides, once, before anything is started: a `Message`, `Any`, a protocol or nothing at all
means the message itself. Of a batch handler it is the type in `list[...]`. A handler of messages is left as it is, and pays
nothing.

`bytes` is the body as it came, `str` the same in UTF-8. A type with a pydantic model anywhere in it (`Order | None`,
`list[Order]`, a field of a dataclass) is decoded by pydantic; all else is JSON by msgspec (the extra "typed"):
msgspec.Struct, dataclass, TypedDict, NamedTuple, dict, list and what they are made of. Both name the field that does not fit.
`Annotated[X, ...]`, `NewType("Y", X)` and `type X = ...` mean what is behind them; what decodes gets them whole, as a limit
may be in them. What is written as text within a type (`list["Order"]`) is evaluated.
msgspec converts nothing that JSON does not convert: "3" is no int. pydantic converts as the model's own configuration says:
by default "3" is an int, with `ConfigDict(strict=True)` it is none.

A type that no body can become (a plain class anywhere in it, but for a field with a default) is refused at the start; and so
is a type with fields where no body is given: `order: Order = None`, `*, order: Order`, `*orders: Order`. It may be an option
that tests fill, or a body that would be None in each call, which nobody would see. What a partial sets is an option.

A body that does not fit fails its own message, with `body_errors="dead_letter"` at once into the dead letters; a batch
handler is called with those that fit.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import enum
import functools
import importlib
import inspect
import os
import re
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping, Sequence
from types import UnionType
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeVar, is_typeddict

from ..remoting.errors import UsageError
from .api import BodyError, Handler
from .message import HandedList, Message

Decode = Callable[[bytes], Any]

LISTS: Final = (list, Sequence, Collection, Iterable)
JSON_TYPES: Final = (dict, Mapping, MutableMapping, list, Sequence, tuple, set, frozenset, int, float, bool)
FIELDS: Final = ("__dataclass_fields__", "__struct_fields__", "__attrs_attrs__", "_fields", "__total__")
"""Marks of what has fields: dataclass, msgspec.Struct, attrs, NamedTuple, TypedDict."""
MODEL: Final = "__pydantic_validator__"
"""That of a pydantic model."""
BY_PLACE: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
UNTYPED: Final = (inspect.Parameter.empty, Any, object, "Any", "object")
OWN_SIGNATURE: Final = "leave functools.wraps out of the decorator, or set __signature__ of what it returns"
"""The way out for a wrapper of which the function behind it says the wrong things."""
LAYERS_MAX: Final = 100
"""An object may have a `__wrapped__` without an end, as one that answers to any name."""
TYPES: Final = "bytes, str, a dataclass, TypedDict, NamedTuple, msgspec.Struct, pydantic model, dict or list"


class Plan(NamedTuple):
    """What a handler's calls are made of: the type of the body, and whether the message comes before it."""

    wanted: Any
    with_message: bool


def plan_of(handler: Handler) -> Plan | None:
    """How the handler wants its bodies, None = it gets messages. Raises UsageError for an annotation that means neither."""
    if handler.body_plan:
        return typing.cast("Plan | None", handler.body_plan[0])
    try:
        own, signature = own_signature(handler.function), inspect.signature(handler.function)
    except (TypeError, ValueError):
        return None
    found = None if own is None else _handed_on(handler, own, signature)
    if found is None:
        found = [each for each in signature.parameters.values() if each.kind in BY_PLACE]
        for each in signature.parameters.values():
            if each not in found[:1]:
                _check_option(handler, each)
    needed = [each for each in found if each.default is inspect.Parameter.empty]
    both = len(needed) == 2
    if len(needed) > 2 or not found or (both and needed[1].annotation is inspect.Parameter.empty):
        return None
    if both and not _is_message(_resolved(handler, found[0])):
        if _is_message_alone(_resolved(handler, found[1])):
            raise UsageError(
                f"handler {handler.name}: the message is the first of two parameters: write"
                f" ({found[1].name}: Message, {found[0].name}: {shown(found[0].annotation)})"
            )
        return None
    parameter = found[1] if both else found[0]
    wanted = _resolved(handler, parameter)
    if _is_message(wanted):
        return None
    if not _decodes(wanted):
        several = "a list of " if handler.batch else ""
        raise UsageError(
            f"handler {handler.name}: parameter {parameter.name} is annotated as {several}{shown(wanted)}, which is neither"
            f" Message nor what a body can be decoded into ({TYPES})"
        )
    return Plan(wanted, both)


def typed(handler: Handler) -> Handler:
    """The handler as a function of messages: itself, or one that decodes their bodies. Raises UsageError, also where what
    decodes them is not installed."""
    plan = plan_of(handler)
    if plan is None:
        return handler
    decoded = _decoded(
        _decoder(handler, plan.wanted), shown(plan.wanted), -1 if handler.body_errors == "dead_letter" else 0
    )
    wrapped = copy.copy(handler)
    wrapped.function = wrapped.plain = call = _call(handler, decoded, with_message=plan.with_message)
    wrapped.divides = handler.batch
    call.__module__, call.__qualname__ = handler.name.split(":", 1)
    call.__annotations__["return"] = result_annotation(handler.plain)
    return wrapped


# --- what a signature says ------------------------------------------------------------------------------------------------


def _handed_on(handler: Handler, own: inspect.Signature, behind: inspect.Signature) -> list[inspect.Parameter] | None:
    """The parameter behind a wrapper that gets what the wrapper is called with: the one of the same name; else the first, if
    it may be a message and no other is one, so that nothing is to be decoded. None where the function behind takes one
    argument by itself: it is looked at as if there was no wrapper. Raises UsageError where nobody can know."""
    name = next(iter(own.parameters))
    named = behind.parameters.get(name)
    if named is not None and named.kind in (*BY_PLACE, inspect.Parameter.KEYWORD_ONLY):
        return [named]
    first, others = [*behind.parameters.values()][:1], [*behind.parameters.values()][1:]
    if not any(_gets_message(handler, each) for each in others):
        if all(each.annotation in UNTYPED or _gets_message(handler, each) for each in first):
            return first
        if binds(behind, 1):
            return None
    raise UsageError(
        f"handler {handler.name}: the decorator's function has the parameter {name}, the handler has"
        f" ({', '.join(behind.parameters)}), and nobody can know which of these gets it: give both the same name; or"
        f" {OWN_SIGNATURE}"
    )


def _gets_message(handler: Handler, parameter: inspect.Parameter) -> bool:
    try:
        return _is_message_alone(_resolved(handler, parameter))
    except UsageError:  # no body is for it
        return False


def _resolved(handler: Handler, parameter: inspect.Parameter) -> Any:
    """The annotation, which may be written as text; of a batch handler's list, that of an item. Raises UsageError for a name
    that is not there when the handler runs."""
    found = _evaluated(handler, parameter)
    wanted = _item(handler, parameter.name, found) if handler.batch else found
    _check_meant(handler, parameter.name, wanted)
    return wanted


def _check_option(handler: Handler, parameter: inspect.Parameter) -> None:
    """Raise UsageError for a parameter that may be meant to get the body and never would: one with None as its default, of
    `*args` or by its name only. Any other default is a value of the handler's own, and so is whatever a partial sets."""
    if any(
        isinstance(each, functools.partial) and parameter.name in each.keywords for each in layers(handler.function)
    ):
        return
    unfilled = parameter.default is inspect.Parameter.empty and parameter.kind in (
        inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.KEYWORD_ONLY,
    )  # fmt: skip
    if parameter.default is not None and not unfilled:
        return
    try:
        wanted = meaning_of(handler.function, parameter.annotation)
        meant = _has_fields(wanted)
    except Exception:  # noqa: BLE001  a name for type checkers only, in a parameter that is left alone
        return
    if meant:
        first = "messages: list[Message]" if handler.batch else "message: Message"
        raise UsageError(
            f"handler {handler.name}: parameter {parameter.name} is annotated as {shown(wanted)}, and would get no body:"
            f" leave out its default and its *, as in ({first}, {parameter.name}: {shown(wanted)}); or give it another"
            " default than None, or set it by functools.partial, if it is an option of your own"
        )


def _has_fields(wanted: Any) -> bool:
    """Whether it is a type with fields, which only a body becomes; or one of those in a union or a list is."""
    wanted = _bare(wanted)
    kind: Any = typing.get_origin(wanted) or wanted
    if is_union(wanted) or kind in LISTS:
        return any(map(_has_fields, typing.get_args(wanted)))
    return inspect.isclass(kind) and any(hasattr(kind, mark) for mark in (*FIELDS, MODEL))


def _bare(wanted: Any) -> Any:
    """The type behind `Annotated[...]` and the names that `type X = ...` and `NewType` give it."""
    while True:
        kind: Any = typing.get_origin(wanted) or wanted
        if kind is Annotated:
            wanted = wanted.__origin__
        elif _is_alias(kind):
            wanted = _named_by(wanted)
        elif isinstance(wanted, typing.NewType):
            wanted = wanted.__supertype__
        else:
            return wanted


def _is_alias(kind: Any) -> bool:
    return type(kind).__name__ == "TypeAliasType"  # Python's own from 3.12 on, and that of typing_extensions


def _named_by(alias: Any) -> Any:
    kind, given = typing.get_origin(alias), typing.get_args(alias)
    return kind.__value__[given] if given else alias.__value__


def _without_aliases(wanted: Any) -> Any:
    """The same type with what its aliases name, at any depth but in fields; what is `Annotated` stays."""
    kind: Any = typing.get_origin(wanted) or wanted
    if _is_alias(kind):
        return _without_aliases(_named_by(wanted))
    if kind is Annotated:
        return Annotated[(_without_aliases(wanted.__origin__), *wanted.__metadata__)]
    given = tuple(map(_without_aliases, typing.get_args(wanted)))
    if is_union(wanted):
        return functools.reduce(lambda one, other: one | other, given)
    return kind[given] if given else wanted


def _evaluated(handler: Handler, parameter: inspect.Parameter) -> Any:
    text = parameter.annotation
    try:
        found = meaning_of(handler.function, text)
        _bare(found)  # what an alias names is evaluated when it is asked for
        return found
    except Exception as error:
        if re.search(r"\bMessage\b", str(text)):
            return Message  # imported for the type checker only
        raise UsageError(
            f"handler {handler.name}: the annotation {text!r} of parameter {parameter.name} means nothing when it runs"
            f" ({error}); import what it names outside of TYPE_CHECKING, or leave it out to get the message"
        ) from error


def meaning_of(function: Any, annotation: Any) -> Any:
    """What an annotation of `function` means, which may be written as text, or have text within. Raises whatever evaluating
    it raises."""

    def annotated() -> None: ...

    annotated.__annotations__ = {"it": annotation.strip() if isinstance(annotation, str) else annotation}
    *_, innermost = layers(function)
    found = typing.get_type_hints(annotated, getattr(innermost, "__globals__", {}), include_extras=True)["it"]
    return None if found is type(None) else found


def layers(function: Any) -> Iterator[Any]:
    """The function, and what stands behind a partial, a wrapper made with functools.wraps, or an instance's `__call__`."""
    for _ in range(LAYERS_MAX):
        yield function
        if isinstance(function, functools.partial):
            function = function.func
        elif hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        elif not hasattr(function, "__globals__") and hasattr(type(function).__call__, "__globals__"):
            function = type(function).__call__
        else:
            return


def own_signature(function: Any, arguments: int = 1) -> inspect.Signature | None:
    """That of a wrapper made with functools.wraps which takes so many arguments, and fills itself what else the function
    behind it takes (`inspect.signature` tells of that one); None of any other function. Raises what `inspect.signature`
    raises."""
    behind = inspect.signature(function)
    try:
        own = inspect.signature(function, follow_wrapped=False)
    except ValueError:  # of C, as that of functools.lru_cache
        return None
    is_own = own.parameters != behind.parameters and binds(own, arguments) and not binds(own, arguments + 1)
    return own if is_own else None


def binds(signature: inspect.Signature, arguments: int) -> bool:
    """Whether it takes so many arguments by their places."""
    try:
        signature.bind(*range(arguments))
    except TypeError:
        return False
    return True


def result_annotation(function: Any) -> Any:
    """What it is annotated to return; None where that is nothing, or means nothing when it runs.

    None also where the annotation is another function's: functools.wraps copies that of what it wraps, and the wrapper may
    return something else. The same for functools.singledispatch, whose functions each have their own.
    """
    try:
        if any(hasattr(each, "__wrapped__") or hasattr(each, "registry") for each in layers(function)):
            return None
        found = inspect.signature(function).return_annotation
        return None if found is inspect.Signature.empty else meaning_of(function, found)
    except Exception:  # noqa: BLE001  a name for type checkers only
        return None


def _item(handler: Handler, name: str, wanted: Any) -> Any:
    """Of a batch handler's `list[Order]`, `Order`; a list of anything is one of messages. Raises UsageError for what is no
    list."""
    wanted = _bare(wanted)
    given = typing.get_args(wanted)
    if typing.get_origin(wanted) in LISTS and len(given) == 1:
        return given[0]
    if wanted in (*LISTS, inspect.Parameter.empty):
        return Any
    if _is_message_alone(wanted) or _decodes(wanted):
        raise UsageError(
            f"handler {handler.name}: parameter {name} is annotated as {shown(wanted)}, and with batch=True it gets a list:"
            f" write {name}: list[{shown(wanted)}]"
        )
    return wanted


def _check_meant(handler: Handler, name: str, wanted: Any) -> None:
    """Raise UsageError for a message and a body in one annotation, and for a list of messages without batch=True."""
    wanted = _bare(wanted)
    given = typing.get_args(wanted)
    if is_union(wanted) and any(map(_is_message_alone, given)):
        bodies = [each for each in given if each is not type(None) and not _is_message(each)]
        if bodies:
            raise UsageError(
                f"handler {handler.name}: parameter {name} is annotated as {shown(wanted)}, and a parameter gets either the"
                f" message or its body: take both, as in (message: Message, {name}: {shown(bodies[0])})"
            )
    if not handler.batch and typing.get_origin(wanted) in LISTS and any(map(_is_message_alone, given)):
        raise UsageError(
            f"handler {handler.name}: parameter {name} is annotated as {shown(wanted)}, and it gets one message a call:"
            " decorate it with @handler(batch=True) to get several"
        )


def _is_message_alone(wanted: Any) -> bool:
    """Whether it is the class of messages itself, and nothing that means any object."""
    wanted = _bare(wanted)
    return wanted == "Message" or (inspect.isclass(wanted) and issubclass(wanted, Message))


def _is_message(wanted: Any) -> bool:
    wanted = _bare(wanted)
    if wanted in (inspect.Parameter.empty, Any, object, Message, "Message") or isinstance(wanted, TypeVar):
        return True
    if is_union(wanted):
        return any(map(_is_message, typing.get_args(wanted)))
    return inspect.isclass(wanted) and (issubclass(wanted, Message) or getattr(wanted, "_is_protocol", False))


def is_union(wanted: Any) -> bool:
    return typing.get_origin(wanted) in (typing.Union, UnionType)


def _decodes(wanted: Any) -> bool:
    wanted = _bare(wanted)
    if is_union(wanted):
        return all(each is type(None) or _decodes(each) for each in typing.get_args(wanted))
    kind: Any = typing.get_origin(wanted) or wanted
    if kind in (bytes, str, Literal, *JSON_TYPES) or is_typeddict(kind):
        return True
    if not inspect.isclass(kind):
        return False
    if issubclass(kind, enum.Enum):
        return True
    marks = ("_fields", "__struct_fields__", MODEL)  # NamedTuple, msgspec.Struct, pydantic model
    return dataclasses.is_dataclass(kind) or any(hasattr(kind, mark) for mark in marks)


def _has_model(wanted: Any) -> bool:
    """Whether a pydantic model is in it: the type itself, what it is made of, or a field."""
    seen: dict[int, Any] = {}
    left: list[Any] = [wanted]
    while left:
        each = left.pop()
        if id(each) in seen:
            continue
        seen[id(each)] = each
        if inspect.isclass(each) and hasattr(each, MODEL):
            return True
        left += [typing.get_origin(each), *typing.get_args(each)]
        left += [getattr(each, name, None) for name in ("__value__", "__supertype__")]  # of a type alias, a NewType
        if inspect.isclass(each) and any(hasattr(each, mark) for mark in FIELDS):
            with contextlib.suppress(Exception):  # a name that is not there: what decodes it says so
                left += typing.get_type_hints(each).values()
    return False


def _not_of_json(wanted: Any) -> Any:
    """A class in it that msgspec makes of no JSON value, None = there is none. A field with a default may have such a class:
    messages without the field fit."""
    types: Any = importlib.import_module("msgspec.inspect")
    seen: dict[int, Any] = {}
    try:
        left: list[Any] = [types.type_info(wanted)]
    except Exception:  # noqa: BLE001  it is decoded all the same
        return None
    while left:
        each = left.pop()
        if id(each) in seen:
            continue
        seen[id(each)] = each
        if isinstance(each, types.CustomType):
            if not _is_of_json(each.cls):
                return each.cls
        elif isinstance(each, types.Field):
            left += [each.type] if each.required else []
        elif isinstance(each, types.Type):
            left += [getattr(each, name) for name in each.__struct_fields__]
        elif each.__class__ is tuple:
            left += each
    return None


def _is_of_json(kind: Any) -> bool:
    """Whether a value of JSON is one of these as it is, such as a number where `numbers.Number` is wanted."""
    try:
        return any(issubclass(each, kind) for each in (dict, list, str, int, float, bool, type(None)))
    except TypeError:
        return False


def shown(wanted: Any) -> str:
    """A type as it is written in code, without the modules of its classes."""
    if isinstance(wanted, str):
        return wanted
    wanted = _bare(wanted)
    kind, given = typing.get_origin(wanted), typing.get_args(wanted)
    if wanted is type(None) or wanted is Ellipsis:
        return "None" if wanted is not Ellipsis else "..."
    if is_union(wanted):
        return " | ".join(map(shown, given))
    if kind is Literal:
        return f"Literal[{', '.join(map(repr, given))}]"
    if inspect.isclass(kind) and given:
        return f"{kind.__name__}[{', '.join(map(shown, given))}]"
    return getattr(wanted, "__name__", None) or str(wanted)


# --- decoding -------------------------------------------------------------------------------------------------------------


def _decoder(handler: Handler, wanted: Any) -> Decode:
    if _bare(wanted) is bytes:
        return bytes
    if _bare(wanted) is str:
        return bytes.decode
    if _has_model(wanted):
        return _by_pydantic(handler, wanted)
    try:
        # Not imported by its name: type checkers need it no more than other users do.
        json: Any = importlib.import_module("msgspec.json")
    except ImportError as error:
        raise UsageError(
            f"handler {handler.name} wants bodies as {shown(wanted)}, which msgspec decodes: pip install 'rocketcrew[typed]'"
        ) from error
    try:
        try:
            decoder = json.Decoder(wanted)
        except TypeError:  # of aliases msgspec knows Python's own only
            wanted = _without_aliases(wanted)
            decoder = json.Decoder(wanted)
    except (TypeError, NameError, RuntimeError) as error:  # the last of integers above 2**63 - 1, not implemented
        raise _undecodable(handler, wanted, error) from error
    unknown = _not_of_json(wanted)
    if unknown is not None:
        raise _undecodable(handler, wanted, f"{shown(unknown)} in it is none of {TYPES}")
    return typing.cast("Decode", decoder.decode)


def _undecodable(handler: Handler, wanted: Any, why: object) -> UsageError:
    return UsageError(f"handler {handler.name}: bodies cannot be decoded into {shown(wanted)}: {why}")


def _by_pydantic(handler: Handler, wanted: Any) -> Decode:
    pydantic: Any = importlib.import_module("pydantic")
    try:
        adapter = pydantic.TypeAdapter(wanted)
        if not getattr(adapter, "pydantic_complete", True):
            adapter.rebuild(force=True)  # raises what is missing
    except (pydantic.errors.PydanticUserError, TypeError, NameError) as error:
        raise _undecodable(handler, wanted, error) from error

    def decode(body: bytes) -> object:
        try:
            return adapter.validate_json(body)
        except pydantic.ValidationError as error:
            first, more = error.errors(include_url=False)[0], error.error_count() - 1
            place = ".".join(map(str, first["loc"]))
            where = f" - at `$.{place}`" if place else ""
            raise ValueError(f"{first['msg']}{where}" + (f" (and {more} more)" if more else "")) from None

    return decode


def _decoded(decode: Decode, name: str, delay_level: int) -> Callable[[Message], Any]:
    def decoded(message: Message) -> Any:
        try:
            return decode(message.body)
        except (ValueError, RecursionError) as error:  # UnicodeDecodeError, and all that msgspec and pydantic find
            raise BodyError(f"the body is no {name}: {error}", delay_level) from None

    return decoded


# --- calls ----------------------------------------------------------------------------------------------------------------


def _call(handler: Handler, decoded: Callable[[Message], Any], *, with_message: bool) -> Callable[[Any], Any]:
    function = handler.function
    if handler.batch:
        return _batch(function, decoded, with_message=with_message)
    if inspect.iscoroutinefunction(function):
        if with_message:

            async def awaited_with_message(message: Message) -> object:
                return await function(message, decoded(message))

            return awaited_with_message

        async def awaited(message: Message) -> object:
            return await function(decoded(message))

        return awaited
    if with_message:
        return lambda message: function(message, decoded(message))
    return lambda message: function(decoded(message))


def _batch(
    function: Callable[..., Any], decoded: Callable[[Message], Any], *, with_message: bool
) -> Callable[[Any], Any]:
    """Calls `function` with the bodies that fit, and with their messages where it takes them; the others fail."""
    # They bring Arrow, which the command line does not wait for.
    from .batch_lists import in_order
    from .calls import batch_results, raise_if_of_all, raise_if_ours

    def sorted_out(messages: list[Message], pid: int) -> tuple[list[object], list[Message], list[HandedList]]:
        """A result for each message that does not fit, None for the others; those messages, and the arguments for them."""
        results: list[object] = []
        fitting: list[Message] = []
        bodies: list[Any] = []
        for message in messages.copy():
            try:
                bodies.append(decoded(message))
            except BaseException as error:  # noqa: BLE001  of a validator too: it is this message's own failure
                raise_if_of_all(error, pid)
                results.append(error)
            else:
                fitting.append(message)
                results.append(None)
        return results, fitting, [*map(HandedList, (fitting, bodies) if with_message else (bodies,))]

    def put_together(
        results: list[object], fitting: list[Message], left: Sequence[HandedList], result: object
    ) -> object:
        result = None if result is None else in_order(fitting, left, result)
        if len(fitting) == len(results):
            return result
        own = iter(batch_results(fitting, result))
        return [next(own) if each is None else each for each in results]

    def failed(results: list[object], error: BaseException, pid: int) -> object:
        """The handler's failure is that of the bodies it got; the others keep their own."""
        raise_if_of_all(error, pid)
        if all(each is None for each in results):
            raise error
        return [error if each is None else each for each in results]

    if inspect.iscoroutinefunction(function):

        async def awaited(messages: list[Message]) -> object:
            pid = os.getpid()
            results, fitting, own = sorted_out(messages, pid)
            try:
                return put_together(results, fitting, own, await function(*own) if fitting else None)
            except BaseException as error:  # noqa: BLE001  whatever it is, it is the handler's
                raise_if_ours(error)
                return failed(results, error, pid)

        return awaited

    def call(messages: list[Message]) -> object:
        pid = os.getpid()
        results, fitting, own = sorted_out(messages, pid)
        try:
            return put_together(results, fitting, own, function(*own) if fitting else None)
        except BaseException as error:  # noqa: BLE001  whatever it is, it is the handler's
            return failed(results, error, pid)

    return call
