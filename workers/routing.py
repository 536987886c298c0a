"""Several handlers as one: each message goes to the handler that takes its topic and tag.

A group has one subscription, so the handlers that name their topics share it: `combine` makes one handler of them, which the
rest of a worker runs as any other. A group with one handler has none of this, and pays nothing for it.

*No match.* A message that no handler takes fails, so it is retried and may become a dead letter: it is never taken for done.
A broker delivers none of these, but the retry topic is not filtered: such a message is a retry that a handler of an earlier
deployment asked for.

*Batches.* A call of a batch handler gets messages of its own only; a batch of several handlers' messages is shared out, and a
call that fails fails its own messages, and so does `sys.exit()` in one. The soft time limit ends the whole call.

*What is one a worker* must be the same for all: `batch`, `order` and its key, time limits, hooks, and the columns of the one
table. Each set-up hook runs once, in the order of the handlers, and the tear-down hooks in the other order.
"""

from __future__ import annotations

import contextlib
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from ..remoting.errors import RocketcrewError, UsageError
from ..remoting.subscription import EXPRESSION_TAG, SUB_ALL, parse_subscription, split_subscription
from .api import Handler, Hook, as_handler

if TYPE_CHECKING:
    from .message import Message

T = TypeVar("T")
Routes = Mapping[str, Mapping[str | None, T]]
"""By topic and tag; under None is what takes all tags."""

ONE_A_WORKER: Final = (
    "batch", "order", "key", "auto_commit", "soft_time_limit_s", "hard_time_limit_s", "hooks",
)  # fmt: skip
"""Options that all handlers of a worker have in common; the columns too, see `_columns_of_all`."""


class NoHandlerError(RocketcrewError):
    """No handler takes this message. It is retried, as a handler may come with the next deployment."""


def handler_of(target: object) -> Handler:
    """`target` as a Handler: a callable, or several handlers in a list, each with its topic. Raises UsageError."""
    if isinstance(target, list | tuple):
        return combine([as_handler(one) for one in cast("Sequence[object]", target)])
    return as_handler(target)


def combine(handlers: Sequence[Handler]) -> Handler:
    """One handler that gives each message to the one that takes it. Raises UsageError where they cannot share a worker."""
    if not handlers:
        raise UsageError("there is no handler in the list")
    if len(handlers) == 1:
        return handlers[0]
    routes = routes_of(handlers)
    _check_together(handlers)
    first = handlers[0]
    combined = Handler(
        _call_of(handlers, {topic: {tag: one.function for tag, one in by.items()} for topic, by in routes.items()}),
        schema=_columns_of_all(handlers),
        filter=_filter_of(handlers, routes),
        setup=_all_of([one.setup for one in handlers]),
        teardown=_all_of([one.teardown for one in reversed(handlers)]),
        **{name: getattr(first, name) for name in ONE_A_WORKER},
    )
    combined.subscriptions = _subscriptions_of(routes)
    combined.parts = tuple(handlers)
    combined.sends = any(one.sends for one in handlers)
    combined.divides = first.batch
    return combined


def routes_of(handlers: Sequence[Handler]) -> dict[str, dict[str | None, Handler]]:
    """Which handler takes what. Raises UsageError for one without a topic, and for two that take the same."""
    routes: dict[str, dict[str | None, Handler]] = {}
    for one in handlers:
        if not one.subscriptions:
            names = ", ".join(each.name for each in handlers)
            raise UsageError(
                f'{one.name} names no topic: of several handlers ({names}) each needs @handler(topic="...")'
            )
        for text in one.subscriptions:
            topic, wish = split_subscription(text)
            taken = routes.setdefault(topic, {})
            for tag in parse_subscription(wish.expression).tags or (None,):
                other = taken.get(tag) or taken.get(None) or (next(iter(taken.values()), None) if tag is None else None)
                if other is not None:
                    what = "" if tag is None else f" with tag {tag!r}"
                    raise UsageError(
                        f'{other.name} and {one.name} both take messages of topic "{topic}"{what}: each message goes to one'
                        " handler, so give them different topics or tags"
                    )
                taken[tag] = one
    return routes


def _subscriptions_of(routes: Routes[Any]) -> tuple[str, ...]:
    """One text a topic, as `consumer.topics` has it."""
    return tuple(
        topic if None in by else f"{topic}:{' || '.join(tag for tag in by if tag is not None)}"
        for topic, by in routes.items()
    )


# --- one call -------------------------------------------------------------------------------------------------------------


def find(routes: Routes[T], message: Message) -> T:
    """What takes the message. Raises NoHandlerError."""
    topic = message.topic
    by_tag = routes.get(topic)
    if by_tag is None:
        raise NoHandlerError(f'no handler takes topic "{topic}"; there are handlers for {", ".join(sorted(routes))}')
    found = by_tag.get(None) or by_tag.get(message.tags)
    if found is None:
        raise NoHandlerError(f'no handler takes tag {message.tags!r} of topic "{topic}"')
    return found


def _call_of(handlers: Sequence[Handler], routes: Routes[Callable[[Any], Any]]) -> Callable[[Any], Any]:
    call: Callable[[Any], Any]
    awaited = {inspect.iscoroutinefunction(one.function) for one in handlers}
    if len(awaited) > 1:
        names = ", ".join(one.name for one in handlers)
        raise UsageError(f"{names}: either all handlers of a group are coroutine functions (async def), or none is")
    if awaited == {True}:
        call = _async_batch(routes) if handlers[0].batch else _async_one(routes)
    else:
        call = _batch(routes) if handlers[0].batch else lambda message: find(routes, message)(message)
    modules = list(dict.fromkeys(one.name.partition(":")[0] for one in handlers))
    call.__module__ = modules[0]
    call.__qualname__ = call.__name__ = ",".join(
        one.name.partition(":")[2] if len(modules) == 1 else one.name for one in handlers
    )
    return call


def _async_one(routes: Routes[Callable[[Any], Any]]) -> Callable[[Any], Any]:
    async def call(message: Message) -> object:
        return await find(routes, message)(message)

    return call


def _batch(routes: Routes[Callable[[Any], Any]]) -> Callable[[Any], Any]:
    from .calls import batch_results, raise_if_of_all  # it brings Arrow, which the command line does not wait for

    def call(batch: list[Message]) -> object:
        pid = os.getpid()
        parts = _shared_out(routes, batch)
        if isinstance(parts, _Whole):
            return parts.function(batch)
        results: list[object] = list(parts.refused)
        for function, places in parts.each.items():
            own = [batch[place] for place in places]
            try:
                _put(results, places, batch_results(own, function(own)))
            except BaseException as error:  # noqa: BLE001  it is the handler's, and its own messages' failure
                raise_if_of_all(error, pid)
                _put(results, places, [error] * len(places))
        return results

    return call


def _async_batch(routes: Routes[Callable[[Any], Any]]) -> Callable[[Any], Any]:
    from .calls import batch_results, raise_if_of_all, raise_if_ours  # as above

    async def call(batch: list[Message]) -> object:
        pid = os.getpid()
        parts = _shared_out(routes, batch)
        if isinstance(parts, _Whole):
            return await parts.function(batch)
        results: list[object] = list(parts.refused)
        for function, places in parts.each.items():
            own = [batch[place] for place in places]
            try:
                _put(results, places, batch_results(own, await function(own)))
            except BaseException as error:  # noqa: BLE001  as above
                raise_if_of_all(error, pid)
                raise_if_ours(error)
                _put(results, places, [error] * len(places))
        return results

    return call


class _Whole:
    """All of the batch is one handler's: it gets the batch itself, which notes what was taken."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function


class _Parts:
    """`each`: the places of each handler's messages; `refused`: an error for each message that nobody takes, or
    whose topic or tag cannot be decoded."""

    def __init__(self, size: int) -> None:
        self.each: dict[Callable[[Any], Any], list[int]] = {}
        self.refused: list[Exception | None] = [None] * size


def _shared_out(routes: Routes[Callable[[Any], Any]], batch: list[Message]) -> _Whole | _Parts:
    parts = _Parts(len(batch))
    for place, message in enumerate(batch.copy()):
        try:
            parts.each.setdefault(find(routes, message), []).append(place)
        except Exception as error:  # noqa: BLE001  a ProtocolError too is this message's own
            parts.refused[place] = error
    if len(parts.each) == 1:
        [(function, places)] = parts.each.items()
        if len(places) == len(batch):
            return _Whole(function)
    return parts


def _put(results: list[object], places: Sequence[int], found: Sequence[object]) -> None:
    for place, result in zip(places, found, strict=True):
        results[place] = result


# --- what is one a worker -------------------------------------------------------------------------------------------------


def _check_together(handlers: Sequence[Handler]) -> None:
    first = handlers[0]
    for one in handlers[1:]:
        for name in ONE_A_WORKER:
            here, there = getattr(first, name), getattr(one, name)
            if here != there:
                raise UsageError(
                    f"{first.name} has {name}={here!r} and {one.name} has {name}={there!r}: handlers of one group share their"
                    f" workers, so {name} must be the same for all"
                )


def check_order(handler: Handler, *, ordered: bool) -> None:
    """Raise UsageError for an order with batches that do not reach one function whole. `ordered`: so the configuration."""
    if handler.divides and (ordered or handler.is_ordered):
        raise UsageError(
            f"handler {handler.name}: batch=True with an order (order=, or consumer.order) is for one handler only that gets"
            " messages and no decoded bodies: what is left out of a batch would be out of order"
        )


def _columns_of_all(handlers: Sequence[Handler]) -> Any:
    """The columns that those declare which declare any. Raises UsageError where they differ: there is one table."""
    declared = [one for one in handlers if one.schema is not None]
    for one in declared[1:]:
        if not _same_columns(declared[0].schema, one.schema):
            raise UsageError(
                f"{declared[0].name} and {one.name} declare different columns: rows of one group go into one table, so give"
                " both the columns of all, and leave out of a row what it has not"
            )
    return declared[0].schema if declared else None


def _same_columns(one: Any, other: Any) -> bool:
    if one is other or (isinstance(one, str) and one == other):
        return True
    from .ddl import as_schema  # brings Arrow, which few need at this point

    return bool(as_schema(one).equals(as_schema(other)))


def _filter_of(handlers: Sequence[Handler], routes: Routes[Handler]) -> Callable[[Message], object] | None:
    """Whether the message is wanted by the filter of the handler that takes it. None = all are."""
    if all(one.filter is None for one in handlers):
        return None

    def wanted(message: Message) -> object:
        try:
            found = find(routes, message)
        except NoHandlerError:
            return True  # the call says so
        return found.filter is None or found.filter(message)

    return wanted


def _all_of(hooks: Sequence[Hook | None]) -> Hook | None:
    """All of them, each once, in this order; the others run too where one raises. None where there are none."""
    known = list(dict.fromkeys(hook for hook in hooks if hook is not None))
    if len(known) < 2:
        return known[0] if known else None
    if any(map(inspect.iscoroutinefunction, known)):

        async def run_all_awaited() -> None:
            async with contextlib.AsyncExitStack() as stack:
                for hook in reversed(known):
                    stack.push_async_callback(_awaited, hook)

        return run_all_awaited

    def run_all() -> None:
        with contextlib.ExitStack() as stack:
            for hook in reversed(known):
                stack.callback(hook)

    return run_all


async def _awaited(hook: Hook) -> None:
    result = hook()
    if inspect.isawaitable(result):
        await result


# --- topics of the configuration ------------------------------------------------------------------------------------------


def agreed_topics(configured: Sequence[str], declared: Sequence[str], name: str) -> tuple[str, ...]:
    """What is subscribed: the topics that the handlers name, else the configured ones.

    Where both are given they must name the same topics and tags; a handler that takes all of a topic may be given a filter
    (SQL92 too) by the configuration. Raises UsageError otherwise.
    """
    if not declared or not configured:
        return tuple(configured or declared)
    ours, theirs = _wishes(declared), _wishes(configured)
    if ours.keys() != theirs.keys() or any(wish not in (None, theirs[topic]) for topic, wish in ours.items()):
        raise UsageError(
            f"{name} takes {listed(declared)}, but the topics given (consumer.topics) are {listed(configured)}:"
            " leave them out, or give the same"
        )
    return tuple(configured)


def check_takes(name: str, declared: Sequence[str], topic: str) -> None:
    """Raise UsageError for a topic that the handlers, which name theirs, do not take."""
    if declared and topic not in _wishes(declared):
        raise UsageError(f"handler {name} takes {listed(declared)}, and no other topic: all of its messages would fail")


def _wishes(texts: Sequence[str]) -> dict[str, object]:
    """By topic, what is wanted of it in a form that can be compared; None = everything."""
    found: dict[str, object] = {}
    for text in texts:
        topic, wish = split_subscription(text)
        if wish.type == EXPRESSION_TAG:
            tags = parse_subscription(wish.expression).tags
            found[topic] = frozenset(tags) if wish.expression != SUB_ALL and tags else None
        else:
            found[topic] = wish
    return found


def listed(texts: Sequence[str]) -> str:
    """For a message."""
    return ", ".join(f'"{text}"' for text in texts) or "no topic"


def same_topics(one: Sequence[str], other: Sequence[str]) -> bool:
    """Whether both mean the same subscription."""
    return _wishes(one) == _wishes(other)
