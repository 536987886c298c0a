"""Failed calls of the handler as events in Sentry, where `sentry.dsn` is set; nothing otherwise, not even an import.

A watcher (watching.py) around each call. One failed call is one event, also that of a batch. A failure is an error
that is raised or returned by the call, or raised by the rows that it generates. What a handler asks for (Retry, Suspend,
Rollback) is none. The runner reports every failed message (`failed`): so one that cannot be decoded, whose rows raise while
they are taken, in whatever they are given, or do not fit, is an event too, and an error that was sent has a mark. Not so a
chunk whose records cannot be told apart, which is a line of the log (`chunk_undecodable`).

Each call has an isolation scope of Sentry's, so that tags and breadcrumbs which the handler's code sets are not seen with
later messages. What names the message is found when an event is sent: a call that succeeds does not pay for it.

- The SDK is set up in the worker, after the fork. Its one thread starts with the first event, and takes no signals that the
  worker waits for: they are blocked before.
- No integration is enabled: they replace excepthook, signal, logging, threads and subprocesses of the process.
- Sending is done by that thread. What does not fit its queue (100 events) is dropped. The worker's end waits FLUSH_S for it.
- A child that the handler forked sends nothing: it is no worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final, cast
from urllib.parse import urlsplit

from ..conf.settings import SentrySettings
from ..remoting.errors import ProtocolError, UsageError
from .api import Retry, Rollback, Suspend
from .consume_hooks import CallResult
from .failures import Attempts
from .message import Message
from .packets import QueueInfo
from .user_errors import failure_of, keep_last_raise

MODULE: Final = "sentry_sdk"
FLUSH_S: Final = 1.0
"""How long the end of a worker waits for events to be sent; the supervisor gives it five seconds for all it does."""
MESSAGES_MAX: Final = 10
"""So many messages of a batch are listed in its event."""
BODY_MAX: Final = 4_096
"""So much of a body is sent, in characters, where bodies are asked for."""

Event = dict[str, Any]


def check_sentry(settings: SentrySettings, installed: Callable[[str], object] = find_spec) -> None:
    """Raise UsageError when events are wanted and the SDK is not installed."""
    if settings.dsn and installed(MODULE) is None:
        raise UsageError("sentry.dsn is set, and sentry-sdk is not installed here: pip install 'rocketcrew[sentry]'")


def sentry_place(settings: SentrySettings, installed: Callable[[str], object] = find_spec) -> str:
    """Host and project that events go to, without the DSN's key. Raises UsageError as `check_sentry`."""
    check_sentry(settings, installed)
    dsn = urlsplit(settings.dsn)
    return f"{dsn.hostname}, project {dsn.path.rpartition('/')[2]}"


def set_up_sentry(settings: SentrySettings, env: Mapping[str, str], **more: Any) -> None:
    """Set up the SDK of this process. `env` has SENTRY_RELEASE. Raises UsageError for what the SDK refuses."""
    try:
        import_module(MODULE).init(
            dsn=settings.dsn,
            environment=settings.environment or None,
            # Without any the SDK would start git to ask for one.
            release=settings.release or env.get("SENTRY_RELEASE", ""),
            sample_rate=settings.sample_percent / 100,
            include_local_variables=settings.include_bodies,
            in_app_exclude=["rocketcrew"],
            before_send=_without_empty_release,
            default_integrations=False,
            auto_enabling_integrations=False,
            auto_session_tracking=False,
            enable_backpressure_handling=False,
            send_client_reports=False,
            shutdown_timeout=FLUSH_S,
            **more,
        )
    except Exception as error:
        raise UsageError(f"Sentry cannot be set up by [sentry]: {error}") from error


def _without_empty_release(event: Event, _hint: object) -> Event:
    if not event.get("release"):
        event.pop("release", None)
    return event


def flush_sentry() -> None:
    """At the end of a worker: wait for what is being sent, FLUSH_S at most. Never raises."""
    with contextlib.suppress(Exception):
        import_module(MODULE).flush(timeout=FLUSH_S)


class SentryEvents:
    """The watcher. `attempts` None: whether a failure is the last one is not known (in order, attempts are made here)."""

    def __init__(self, worker: str, handler: str, attempts: Attempts | None, *, include_bodies: bool = False) -> None:
        self._sdk: Any = import_module(MODULE)
        self._event_of: Any = import_module(f"{MODULE}.utils").event_from_exception
        self._names = {"worker": worker, "handler": handler}
        self._attempts = attempts
        self._include_bodies = include_bodies
        self._pid = os.getpid()
        self._calls = 0

    @contextlib.contextmanager
    def around(self, group: str, messages: Sequence[Message]) -> Generator[CallResult]:
        """The handler's call; its failure is sent."""
        done = CallResult()
        self._calls += 1
        with self._sdk.isolation_scope() as scope:
            scope.add_event_processor(partial(self._described, group, messages))
            try:
                yield done
            except BaseException as error:
                self._mark(error, messages)
                self._send(scope, error)
                raise
            for number, failed in enumerate(_returned_errors(done.result)):
                self._mark(failed, messages)
                if not number:
                    self._send(scope, failed)

    def failed(self, queue: QueueInfo, message: Message | int, error: BaseException) -> None:
        """A message failed, which may be known by its queue offset only. Its error is sent, unless it was."""
        if self._is_marked(error, queue, message):
            return
        with contextlib.suppress(Exception), self._sdk.isolation_scope() as scope:
            if isinstance(message, Message):
                scope.add_event_processor(partial(self._described, queue.group, [message]))
            else:
                facts = {
                    "topic": queue.topic,
                    "broker": queue.broker_name,
                    "queue_id": queue.queue_id,
                    "offset": message,
                }
                scope.add_event_processor(partial(self._with_facts, queue.group, [facts], 1))
            self._mark(error, [])
            self._send(scope, error)

    def _mark(self, error: BaseException, messages: Sequence[Message]) -> None:
        """It is on its way to Sentry, as what became of these messages, or of what the newest call gave: a handler may raise
        the same object for others, too. (A weak reference to an error cannot be had.)"""
        with contextlib.suppress(Exception):  # a class of somebody's
            vars(error)[_MARK] = self._calls, frozenset(_place(message.queue, message) for message in messages)

    def _is_marked(self, error: BaseException, queue: QueueInfo, message: Message | int) -> bool:
        with contextlib.suppress(Exception):
            call, places = vars(error).get(_MARK, (-1, frozenset()))
            return call == self._calls or _place(queue, message) in places
        return False

    def _send(self, scope: Any, error: BaseException) -> None:
        """Give the event to the SDK's thread. Whatever goes wrong is Sentry's, and changes nothing."""
        if os.getpid() != self._pid or not is_failure(error):
            return
        keep_last_raise(error)  # else the event has those of other messages
        with contextlib.suppress(Exception):
            mechanism = {"type": "rocketcrew", "handled": False}
            options = self._sdk.get_client().options
            event, hint = self._event_of(error, client_options=options, mechanism=mechanism)
            scope.capture_event(event, hint)

    def _described(self, group: str, messages: Sequence[Message], event: Event, hint: Mapping[str, Any]) -> Event:
        """The event with what names the messages; tags that the handler's code has set stay."""
        listed = [_facts(message, bodies=self._include_bodies) for message in messages[:MESSAGES_MAX]]
        return self._with_facts(group, listed, len(messages), event, hint)

    def _with_facts(
        self, group: str, listed: Sequence[Mapping[str, Any]], count: int, event: Event, hint: Mapping[str, Any]
    ) -> Event:
        error = (hint.get("exc_info") or (None, None, None))[1]
        tags: dict[str, Any] = {**self._names, "group": group}
        tags |= {key: listed[0][key] for key in _TAGS if listed and key in listed[0]}
        if count > 1:
            tags["messages"] = count
        if error is not None and self._attempts is not None:
            times = [one["reconsume_times"] for one in listed if "reconsume_times" in one]
            if times:
                tags["last_attempt"] = str(
                    any(self._attempts.is_last(failure_of(error), each) for each in times)
                ).lower()
        event["tags"] = {**{key: str(value) for key, value in tags.items()}, **(event.get("tags") or {})}
        event.setdefault("contexts", {})["rocketmq"] = {"group": group, "messages": listed}
        event.setdefault("transaction", self._names["handler"])
        return event


_MARK: Final = "_rocketcrew_sent"


def _place(queue: QueueInfo, message: Message | int) -> tuple[str, str, int, int]:
    """Where it is; the offset is -1 where it cannot be decoded."""
    offset = message if isinstance(message, int) else -1
    if isinstance(message, Message):
        with contextlib.suppress(ProtocolError):
            offset = message.queue_offset
    return queue.topic, queue.broker_name, queue.queue_id, offset


_TAGS: Final = ("topic", "broker", "queue_id", "offset", "msg_id", "reconsume_times")


def _facts(message: Message, *, bodies: bool) -> dict[str, Any]:
    """What names a message, as far as it can be decoded."""
    queue = message.queue
    facts: dict[str, Any] = {"topic": queue.topic, "broker": queue.broker_name, "queue_id": queue.queue_id}
    with contextlib.suppress(ProtocolError):  # what is damaged has failed by that
        facts["offset"] = message.queue_offset
        facts["reconsume_times"] = message.reconsume_times
        facts["topic"] = message.topic
        facts["msg_id"] = message.message_id
        if bodies:
            facts["keys"] = message.keys
            facts["body"] = bytes(message.body)[: 4 * BODY_MAX].decode("utf-8", "replace")[:BODY_MAX]
    return facts


def is_failure(error: BaseException) -> bool:
    """Not what a handler asks for, nor the end of a call that was cancelled from outside."""
    if isinstance(error, asyncio.CancelledError):
        with contextlib.suppress(RuntimeError):
            task = asyncio.current_task()
            return task is None or task.cancelling() == 0
    return not isinstance(error, (Retry, Suspend, Rollback, GeneratorExit))


def _returned_errors(result: object) -> Iterator[BaseException]:
    """The error that a call returned, or those among the results of a batch."""
    given = cast("Sequence[object]", result) if isinstance(result, list | tuple) else (result,)
    return (each for each in given if isinstance(each, BaseException) and is_failure(each))
