"""The user's functions in a run in this process: each call of the handler is noted, and what ends a test ends the run.

For a worker all that a handler raises is the failure of a message. In a test's process that may be Ctrl-C, the time limit of
pytest-timeout, `pytest.fail()`, `skip()` or `exit()`, or the q of a debugger: as failures they would be tried again sixteen
times, and the test would be green. The worker's loop here is the real one, and takes them for failures as well. So they are
kept on their way to it, nothing of the user's is called after that, and the run raises them once the loop is out of its step.
"""

from __future__ import annotations

import copy
import sys
from bdb import BdbQuit
from collections.abc import Callable, Generator, Sequence
from typing import Any, Final, cast

from ..workers.api import ConsumeMessageContext, ConsumeMessageHook, Handler
from ..workers.message import Message

_ENDS: Final = (
    ("_pytest.outcomes", "OutcomeException"),
    ("_pytest.outcomes", "Exit"),
    ("unittest.case", "SkipTest"),
    ("hypothesis.errors", "StopTest"),
    ("hypothesis.errors", "UnsatisfiedAssumption"),
)
"""By module and name: where nobody has imported the module nobody raises them. Not all that is no `Exception`: libraries
raise such for a message too, as those in Rust do for their panics, and gevent for a time limit."""


def ends_test(error: BaseException | None) -> bool:
    """Whether it is about the test and not about the message, by itself or as one of a group."""
    if isinstance(error, BaseExceptionGroup):
        return any(map(ends_test, cast("BaseExceptionGroup[BaseException]", error).exceptions))
    kinds: list[Any] = [getattr(sys.modules.get(module), name, ()) for module, name in _ENDS]
    return isinstance(error, (KeyboardInterrupt, BdbQuit, *kinds))


class Witness:
    """Of one run. `called` hears of each call of the handler: its messages, and what it raised."""

    def __init__(self, called: Callable[[Sequence[Message], BaseException | None], None]) -> None:
        self._called = called
        self._outside = sys.exception()
        """What the test is handling already: Python makes it the context of all that is raised meanwhile."""
        self._end: BaseException | None = None

    def note(self, error: BaseException) -> None:
        """The user's code ended with this; what ends a test may have become another error on its way here."""
        if self._end is None:
            self._end = next(filter(ends_test, _came_from(error, self._outside)), None)

    def raise_end(self) -> None:
        """Raise what ends the test, if it has come."""
        if self._end is not None:
            raise self._end

    def of(self, handler: Handler) -> Handler:
        """The same handler, with all of its functions that are called for a message in sight."""
        function, batch = self._in_sight(handler.function), handler.batch

        def call(given: Any) -> Any:
            self.raise_end()  # before the call is noted: there is none
            messages = list(given) if batch else [given]
            try:
                result = function(given)
            except BaseException as error:
                self._called(messages, error)
                raise
            self._called(messages, result if isinstance(result, BaseException) else None)
            return result

        seen = copy.copy(handler)
        seen.function = call
        call.__module__, call.__qualname__ = handler.name.split(":", 1)
        seen.filter = None if handler.filter is None else self._in_sight(handler.filter)
        seen.key = self._in_sight(handler.key) if callable(handler.key) else handler.key
        seen.hooks = tuple(_Hook(hook, self._in_sight) for hook in handler.hooks)
        return seen

    def _in_sight(self, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def call(given: Any) -> Any:
            self.raise_end()
            try:
                return function(given)
            except BaseException as error:
                self.note(error)
                raise

        return call


def _came_from(error: BaseException, outside: BaseException | None) -> Generator[BaseException]:
    """The error and what it came from, as a traceback shows it: code in between may have raised an error of its own, with
    `from` or without. `from None` says that what was before does not matter."""
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        found = left.pop()
        if found is None or found is outside or id(found) in seen:
            continue
        seen.add(id(found))
        yield found
        before = None if found.__suppress_context__ else found.__context__
        left.append(before if found.__cause__ is None else found.__cause__)
        if isinstance(found, BaseExceptionGroup):
            left.extend(cast("BaseExceptionGroup[BaseException]", found).exceptions)


class _Hook:
    """A hook around the calls, in sight."""

    def __init__(
        self, hook: ConsumeMessageHook, in_sight: Callable[[Callable[[Any], Any]], Callable[[Any], Any]]
    ) -> None:
        self._hook = hook
        self._before = in_sight(hook.consume_message_before)
        self._after = in_sight(hook.consume_message_after)

    def hook_name(self) -> str:
        return self._hook.hook_name()

    def consume_message_before(self, context: ConsumeMessageContext) -> None:
        self._before(context)

    def consume_message_after(self, context: ConsumeMessageContext) -> None:
        self._after(context)
