"""What a user's handler module imports: the decorator, and what a handler may return or raise.

    from rocketcrew import handler, Retry

    @handler(schema="module string, functions int")
    def count_functions(message):
        tree = ast.parse(message.body)
        return {"module": message.keys, "functions": sum(isinstance(node, ast.FunctionDef) for node in ast.walk(tree))}

A plain function does as well; the decorator adds a schema, batches and hooks. A handler gets one `Message`, or its body as
what its parameter is annotated with (bodies.py), and returns None (done, no rows), one row, an iterable of rows (a generator
too), or a pyarrow RecordBatch or Table. A row is a dict or a dataclass instance. Raising anything, or returning a `Retry` or
another exception, means: consume this message later.

A batch handler (`batch=True`) gets a list of at most `consume_message_batch_max_size` messages and returns None (all
done), a list with one such result per message, or a `BatchResult`.

This module imports nothing heavy: it is loaded by every user's script.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, cast, overload

from ..remoting.arguments import (
    FILLED,
    FLAG,
    FUNCTION,
    INT32_MAX,
    NONE,
    Rule,
    check,
    number,
    plain,
    refuse,
    shown,
    whole,
)
from ..remoting.errors import RocketcrewError, UsageError
from ..remoting.names import DELAY_LEVEL_MAX
from ..remoting.subscription import EXPRESSION_TAG, SUB_ALL, parse_filter

if TYPE_CHECKING:
    from typing_extensions import ParamSpec, TypeVar

    from ..remoting.queues import MessageQueue
    from .message import Message

    P = ParamSpec("P", default=...)
    R = TypeVar("R", default=Any)
else:
    from typing import ParamSpec, TypeVar

    P, R = ParamSpec("P"), TypeVar("R")  # without the defaults, which only type checkers know before Python 3.13

Schema = Any
"""A pyarrow schema. Without pyarrow's own stubs its class means nothing to a type checker, and so would `handler`."""
Takes = Callable[[Any], Any] | Callable[[Any, Any], Any]
"""A function of the message, its body, or both. Of a lambda for `Callable[..., Any]` pyright says that it is unknown."""
Handlers = str | Takes | Sequence[Takes]
"""What `consume`, `Crew` and the tests' `run` are given: an import path, a function or handler, or several."""
Hook = Callable[[], object]
Key = str | Callable[[Any], object] | None
"""Name of a property, or a function of the message."""

ORDERS: Final = ("concurrent", "queue", "key")

BODY_ERRORS: Final = ("retry", "dead_letter")

TIME_LIMIT_MAX_S: Final = 7 * 24 * 3600
INT32_OR_LESS: Final = whole(-INT32_MAX, INT32_MAX)
_RULES: Final = {
    "schema": Rule(
        "columns: Spark DDL, a pyarrow schema or a dataclass",
        lambda value: value is None or isinstance(value, str | type) or hasattr(value, "field"),
    ),
    "batch": FLAG,
    "setup": FUNCTION | NONE,
    "teardown": FUNCTION | NONE,
    "soft_time_limit_s": number(0, TIME_LIMIT_MAX_S, "seconds") | NONE,
    "hard_time_limit_s": number(0, TIME_LIMIT_MAX_S, "seconds") | NONE,
    "hooks": Rule("a list of hooks", lambda value: isinstance(value, list | tuple)),
    "auto_commit": FLAG,
    "sends": FLAG,
}
HOOK_METHODS: Final = {"hook_name": "", "consume_message_before": "context", "consume_message_after": "context"}
"""What a hook has to have, with the argument of each."""
ACK_ALL: Final = None
"""`BatchResult.ack_index` of a batch that was consumed whole."""


class Retry(Exception):
    """Consume this message (or batch) later; raised or returned by a handler.

    `delay_level` as in Java's ConsumeConcurrentlyContext: -1 = to the dead-letter topic at once, 0 = the configured
    `delay_level_when_next_consume` (by default the broker's growing delay), 1.. = that level of the broker's
    `messageDelayLevel`. Raises UsageError outside -1..127.
    """

    def __init__(self, delay_level: int = 0, reason: str = "") -> None:
        delay_level = _checked_delay_level("Retry", delay_level)
        _check_reason("Retry", reason)
        super().__init__(delay_level, reason)
        self.delay_level = delay_level
        self.reason = reason

    def __str__(self) -> str:
        return self.reason or "the handler asked for a retry"


class BodyError(RocketcrewError):
    """The body does not fit what the handler's signature asks for (bodies.py); the text has the field and the reason.

    The message is consumed later as any that failed, or with `body_errors="dead_letter"` goes to the dead letters at once
    (`delay_level` -1).
    """

    def __init__(self, reason: str, delay_level: int = 0) -> None:
        super().__init__(reason)
        self.delay_level = delay_level


class SoftTimeLimitExceeded(BaseException):
    """Raised inside a handler that has run for its soft time limit: clean up, then return, raise or ask for a retry.

    `except Exception` does not catch it, as asyncio's CancelledError: a handler that tries something again after each error
    would go on for ever. Not caught, it fails the message as a time-out does: it is sent back at
    `consumer.delay_level_when_next_consume`, or where that is 0 at level 3 (10 s; of a popped message 120 s). It comes
    between two steps of Python code; a C loop that never returns to Python is stopped by the hard limit only.
    """

    def __init__(self, limit_s: float = 0.0) -> None:
        super().__init__(limit_s)
        self.limit_s = limit_s

    def __str__(self) -> str:
        return f"the soft time limit of {self.limit_s:g} s is over"


class _Pause(Exception):
    """What a handler of an ordered mode asks for instead of success: a pause, and a reason for the log."""

    _without_reason = ""

    def __init__(self, suspend_ms: int = -1, reason: str = "") -> None:
        if type(suspend_ms) is not int:
            suspend_ms = check(type(self).__name__, {"suspend_ms": suspend_ms}, {"suspend_ms": INT32_OR_LESS})[
                "suspend_ms"
            ]
        _check_reason(type(self).__name__, reason)
        super().__init__(suspend_ms, reason)
        self.suspend_ms = suspend_ms
        self.reason = reason

    def __str__(self) -> str:
        return self.reason or self._without_reason


class Suspend(_Pause):
    """In order: try this message again after a while, and let what follows it in its queue (or key) wait.

    Raised or returned by a handler with `order`, as Java's SUSPEND_CURRENT_QUEUE_A_MOMENT; any other exception does the
    same. `suspend_ms` -1 = `consumer.suspend_current_queue_time_ms`, else 10 to 30000 (Java's bounds; others are clamped).
    In a concurrent handler it is like any exception: consume later.
    """

    _without_reason = "the handler asked to suspend its queue"


class Commit:
    """Result of a handler with `auto_commit=False`: this message and all of its queue since the last commit are done.

    `rows` are this message's rows, as a handler returns them otherwise. With auto_commit it is a plain success, with a
    warning in the log, as in Java (ConsumeMessageOrderlyService.processConsumeResult).
    """

    __slots__ = ("rows",)

    def __init__(self, rows: object = None) -> None:
        self.rows = rows


class Rollback(_Pause):
    """Raised or returned by a handler with `auto_commit=False`: all of its queue since the last commit runs again.

    After `suspend_ms`, as for Suspend. With auto_commit it is a plain success, with a warning in the log, as in Java.
    """

    _without_reason = "the handler rolled back"


class BatchResult:
    """Result of a batch handler in terms of Java's ack index.

    Messages up to and including `ack_index` are done, those after it are consumed later; None = all done, -1 = none.
    `delay_level` is that of the messages consumed later, as in Retry (Java's delayLevelWhenNextConsume of the context).
    `rows` are rows of the batch: `(message, row)` for each, or untagged one result per message, in a list or another iterable
    with an order, or an Arrow batch, table or reader with a row for each. Those of messages that are not done are left out.
    All untagged rows of a call with one message are its own. Others are nobody's, and fail the whole call.
    """

    __slots__ = ("ack_index", "delay_level", "rows")

    def __init__(self, rows: object = (), ack_index: int | None = ACK_ALL, delay_level: int = 0) -> None:
        delay_level = _checked_delay_level("BatchResult", delay_level)
        if ack_index is not ACK_ALL and type(ack_index) is not int:
            ack_index = check("BatchResult", {"ack_index": ack_index}, {"ack_index": INT32_OR_LESS | NONE})["ack_index"]
        self.rows = rows
        self.ack_index = ack_index
        self.delay_level = delay_level


@dataclass(slots=True)
class ConsumeMessageContext:
    """One call of the handler, as hooks see it; `success`, `status` and `props` are there in the second method."""

    consumer_group: str
    msg_list: list[Message]
    mq: MessageQueue
    """The queue they were pulled from."""
    success: bool = False
    status: str = ""
    mq_trace_context: object = None
    """For hooks to pass something from before to after."""
    props: dict[str, str] = field(default_factory=dict[str, str])
    namespace: str = ""
    access_channel: str = "LOCAL"
    """Java's default (ClientConfig.accessChannel); the other one is a cloud's."""


class ConsumeMessageHook(Protocol):
    """What a hook has to have; consume_hooks.py calls it."""

    def hook_name(self) -> str: ...
    def consume_message_before(self, context: ConsumeMessageContext) -> object: ...
    def consume_message_after(self, context: ConsumeMessageContext) -> object: ...


class Handler(Generic[P, R]):
    """A handler function with what the decorator knows about it; calling it calls the function."""

    def __init__(
        self,
        function: Callable[P, R],
        *,
        schema: str | Schema | type[Any] | None = None,
        batch: bool = False,
        filter: Callable[[Any], object] | None = None,
        setup: Hook | None = None,
        teardown: Hook | None = None,
        soft_time_limit_s: float | None = None,
        hard_time_limit_s: float | None = None,
        hooks: Sequence[ConsumeMessageHook] = (),
        order: str | None = None,
        key: Key = None,
        auto_commit: bool = True,
        topic: str | None = None,
        tags: str | None = None,
        body_errors: str = "retry",
        sends: bool = False,
    ) -> None:
        """As `handler`."""
        _check_function(function)
        if filter is not None and not callable(filter):
            raise UsageError(f"handler: filter={filter!r} cannot be called; give a function that takes one message")
        given = {
            "schema": schema, "batch": batch, "setup": setup, "teardown": teardown, "hooks": hooks,
            "soft_time_limit_s": soft_time_limit_s, "hard_time_limit_s": hard_time_limit_s, "auto_commit": auto_commit,
            "sends": sends,
        }  # fmt: skip
        taken = check("handler", given, _RULES)
        soft_s, hard_s = cast(
            "tuple[float | None, float | None]", (taken["soft_time_limit_s"], taken["hard_time_limit_s"])
        )
        batch, auto_commit, sends = taken["batch"], taken["auto_commit"], taken["sends"]
        _check_limits(soft_s, hard_s)
        _check_order(order, key, auto_commit=auto_commit)
        _check_hooks(hooks)
        if body_errors not in BODY_ERRORS:
            raise UsageError(
                f"handler: body_errors={body_errors!r} is unknown; use {', '.join(map(repr, BODY_ERRORS))}"
            )
        self.body_errors = body_errors
        self.sends = sends
        self.subscriptions = _subscriptions(topic, tags)
        """What it consumes, as `consumer.topics` has it; empty = what the configuration says."""
        self.parts: tuple[Handler, ...] = ()
        """The handlers that it is made of (routing.py); none for the usual one."""
        self.body_plan: tuple[object, ...] = ()
        """How it wants its bodies (one bodies.Plan, or None), where that was found out before it was shipped."""
        self.divides = False
        """A batch of messages does not reach one function as a whole: it is shared out, or some of it is left out."""
        self.soft_time_limit_s = soft_s
        self.hard_time_limit_s = hard_s
        self.function: Callable[..., Any] = function
        self.plain: Callable[..., Any] = function
        """As it was given, without what is put around `function` in a worker."""
        self.schema = schema
        self.batch = batch
        self.filter = filter
        self.setup = setup
        self.teardown = teardown
        self.hooks = tuple(hooks)
        self.order = order
        self.key = key
        self.auto_commit = auto_commit
        functools.update_wrapper(self, function, updated=())

    @property
    def is_ordered(self) -> bool:
        """Whether it asks for an order; the configuration may, too."""
        return self.order in ("queue", "key")

    @property
    def name(self) -> str:
        """`module:qualified.name` of the function, for messages and logs."""
        module = getattr(self.function, "__module__", None) or "?"
        name = getattr(self.function, "__qualname__", None) or type(self.function).__qualname__
        return f"{module}:{name}"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        result: R = self.function(*args, **kwargs)
        return result

    def __repr__(self) -> str:
        return f"<Handler {self.name}{' batch' if self.batch else ''}>"


@overload
def handler(function: Callable[P, R], /) -> Handler[P, R]: ...
@overload
def handler(
    *,
    schema: str | Schema | type[Any] | None = None,
    batch: bool = False,
    filter: Callable[[Any], object] | None = None,
    setup: Hook | None = None,
    teardown: Hook | None = None,
    soft_time_limit_s: float | None = None,
    hard_time_limit_s: float | None = None,
    hooks: Sequence[ConsumeMessageHook] = (),
    order: str | None = None,
    key: Key = None,
    auto_commit: bool = True,
    topic: str | None = None,
    tags: str | None = None,
    body_errors: str = "retry",
    sends: bool = False,
) -> Callable[[Callable[P, R]], Handler[P, R]]: ...
def handler(
    function: Callable[..., Any] | None = None,
    /,
    *,
    schema: str | Schema | type[Any] | None = None,
    batch: bool = False,
    filter: Callable[[Any], object] | None = None,
    setup: Hook | None = None,
    teardown: Hook | None = None,
    soft_time_limit_s: float | None = None,
    hard_time_limit_s: float | None = None,
    hooks: Sequence[ConsumeMessageHook] = (),
    order: str | None = None,
    key: Key = None,
    auto_commit: bool = True,
    topic: str | None = None,
    tags: str | None = None,
    body_errors: str = "retry",
    sends: bool = False,
) -> Handler | Callable[[Callable[..., Any]], Handler]:
    """Decorate a handler, bare or with arguments.

    schema: columns of its rows, as Spark DDL (`"module string, line int"`), pyarrow schema or dataclass.
    batch: it takes a list of messages.
    filter: called with each message before the handler is; a message for which it does not return true is not consumed and
    counts as done. It is called after tags and SQL92 filters; when it raises, the handler gets the message.
    setup, teardown: called without arguments once per worker, before the first and after the last message (a set-up that
    raises is a failed start).
    soft_time_limit_s, hard_time_limit_s: seconds that one call (one message, or one batch) may take, 0 = no limit; None =
    `workers.soft_time_limit_ms` and `workers.hard_time_limit_ms`. Over the soft one SoftTimeLimitExceeded is raised in the
    handler, over the hard one the worker is killed and replaced; both are one failed attempt. Raises UsageError for a
    negative limit, or a soft one that is not below the hard one.
    hooks: each has hook_name(), consume_message_before(context) and consume_message_after(context), see consume_hooks.py;
    they are called around every call of the handler.
    order: "queue" = one message of a message queue at a time, in order, in one worker; "key" = messages with equal keys in
    order, others in parallel; None = as consumer.order says. key, with order="key": the name of the property that holds it
    (default: KEYS), or a function of the message that returns a str, bytes, int, or None for no order; it runs in a worker.
    auto_commit=False, with order="queue": messages are done when the handler returns a Commit, see there.
    topic: the topic that it consumes; without it the command line or `consumer.topics` names the topics. tags, with topic:
    those that it takes of the topic, as in "paid || shipped"; None = all. Several handlers of one module that name their
    topics make one group, and each message goes to the one that takes its topic and tag (routing.py).
    """

    def decorate(target: Callable[..., Any]) -> Handler:
        return Handler(
            target, schema=schema, batch=batch, filter=filter, setup=setup, teardown=teardown,
            soft_time_limit_s=soft_time_limit_s, hard_time_limit_s=hard_time_limit_s, hooks=hooks, order=order, key=key,
            auto_commit=auto_commit, topic=topic, tags=tags, body_errors=body_errors, sends=sends,
        )  # fmt: skip

    return decorate if function is None else decorate(function)


def _checked_delay_level(what: str, level: int) -> int:
    if type(level) is not int:  # on the way of every message that fails: the rule has the sentence
        level = check(what, {"delay_level": level}, {"delay_level": INT32_OR_LESS})["delay_level"]
    if not -1 <= level <= DELAY_LEVEL_MAX:
        legal = f"-1 (dead letter), 0 (default) and 1 to {DELAY_LEVEL_MAX}"
        raise UsageError(f"{what}(delay_level={level}): legal are {legal}")
    return level


def _check_reason(what: str, reason: str) -> None:
    if not isinstance(reason, str):  # pyright: ignore[reportUnnecessaryIsInstance]  a user's mistake
        refuse(what, "reason", reason, "a str")


def _check_function(function: object) -> None:
    """Raise UsageError for what cannot be called, and for a handler that its class would be given to."""
    if not callable(function):
        raise UsageError(f"handler: {function!r} cannot be called; decorate a function")
    bound: object = getattr(function, "__func__", None)
    if isinstance(bound, Handler):
        raise UsageError(
            f"handler {bound.name}: @classmethod around @handler gives it the class instead of the message; write"
            " @staticmethod there, or leave @handler out and decorate outside of the class: handler(TheClass.method)"
        )


def _check_limits(soft_s: float | None, hard_s: float | None) -> None:
    if soft_s and hard_s and soft_s >= hard_s:
        raise UsageError(f"handler: soft_time_limit_s={soft_s} must be below hard_time_limit_s={hard_s}")


def _check_order(order: str | None, key: Key, *, auto_commit: bool) -> None:
    """Raise UsageError for what cannot be declared together."""
    if order not in (None, *ORDERS):
        raise UsageError(f"handler: order={order!r} is unknown; use {', '.join(map(repr, ORDERS))}")
    if key is not None and order != "key":
        raise UsageError(f'handler: key={key!r} has a meaning with order="key" only, and order is {order!r}')
    if key is not None and not (callable(key) or FILLED.fits(key)):
        raise UsageError(f"handler: key={key!r} is neither a property's name nor a function of the message")
    if not auto_commit and order != "queue":
        raise UsageError(f'handler: auto_commit=False has a meaning with order="queue" only, and order is {order!r}')


def _check_hooks(hooks: Sequence[object]) -> None:
    """Raise UsageError for what is no hook: it would fail each call beside the handler, which then never runs."""
    for place, hook in enumerate(hooks):
        given = f"handler: hooks[{place}]={shown(hook)}"
        if isinstance(hook, type):
            raise UsageError(f"{given} is a class: give an object of it, {hook.__name__}(...)")
        for name, argument in HOOK_METHODS.items():
            if not callable(getattr(hook, name, None)):
                raise UsageError(f"{given} has no method {name}({argument}); see ConsumeMessageHook")


def _subscriptions(topic: str | None, tags: str | None) -> tuple[str, ...]:
    """Raises UsageError for what names no topic, or no tags."""
    if topic is None:
        if tags is not None:
            raise UsageError(f"handler: tags={tags!r} has a meaning with topic=... only")
        return ()
    for argument, value in (("topic", topic), ("tags", tags)):
        if not isinstance(value, str | None):  # pyright: ignore[reportUnnecessaryIsInstance]  a user's mistake
            raise UsageError(f"handler: {argument}={value!r} is no str")
    if not topic.strip() or ":" in topic:
        raise UsageError(
            f'handler: topic={topic!r} is no topic; tags are given apart, as in topic="orders", tags="paid"'
        )
    name, tags = str(plain(topic)).strip(), plain(tags)
    wish = parse_filter(tags or "")
    if wish.type != EXPRESSION_TAG:
        raise UsageError(f"handler: tags={tags!r}: give an SQL92 filter on the command line or in consumer.topics")
    return (name if wish.expression == SUB_ALL else f"{name}:{wish.expression}",)


def as_handler(target: object) -> Handler:
    """`target` as a Handler: itself, or a plain callable wrapped. Raises UsageError when it cannot be called."""
    if isinstance(target, Handler):
        return cast("Handler", target)
    if not callable(target):
        raise UsageError(
            "messageListener must be instanceof MessageListenerOrderly or MessageListenerConcurrently"
            f" (handler: {target!r} is not callable; give a function that takes one message)"
        )
    return Handler(target)
