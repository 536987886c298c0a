"""A handler tried on dead letters in this process, one after another: what became of each, and of none more than that.

The handler runs as in a worker (bodies, rows, filters, set-up hook; `testing.rehearsal`), under a debugger's eyes. A failure
is final: no delay, no second attempt. Rows go into no table, and what the handler sends goes nowhere: both are shown, and
whoever wants them has the letter consumed by the group.
"""

from __future__ import annotations

import bdb
import pdb  # noqa: T100  what --pdb opens
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

from ..conf.printed import counted
from ..conf.settings import Settings, value_of
from ..remoting.errors import RocketcrewError
from ..supervisor.member.send_back import first_attempt
from ..testing.rehearsal import NotConsumedError, Rehearsal
from ..testing.result import Call, DeadLetter, Result, Retried
from ..workers.message import Message, make_message
from .changing import StoppedError
from .letters import Letter
from .messages import shown

TAKEN_OVER: Final = ("results.enabled", "results.schema", "consumer.order", "consumer.order_key")
"""Settings of the configuration that decide what becomes of a single message."""
FINAL: Final = {
    "consumer.max_reconsume_times": 0,
    "consumer.delay_level_when_next_consume": -1,
}
"""A message that fails is given up at once, so the next one never waits for it."""


@dataclass(frozen=True, slots=True)
class Tried:
    """What became of one letter in this process."""

    letter: Letter
    error: str = ""
    """Why it failed; empty = the handler succeeded."""
    rows: tuple[dict[str, Any], ...] = ()
    sends: int = 0
    """Messages that the handler would have sent."""

    @property
    def results(self) -> str:
        """Rows and messages in words; empty where the handler made none."""
        made = [(len(self.rows), "row"), (self.sends, "message")]
        return " and ".join(counted(number, what) for number, what in made if number)

    def facts(self) -> dict[str, Any]:
        """As one JSON object."""
        return {
            "place": self.letter.place,
            "ok": not self.error,
            "error": self.error,
            "rows": list(self.rows),
            "sends": self.sends,
        }

    def text(self) -> str:
        """As one line."""
        rows = ": " + shown(list(self.rows)) if self.rows else ""
        said = f"failed: {self.error}" if self.error else f"fine{f', {self.results}' if self.results else ''}{rows}"
        return f"{self.letter.place}  {said}"


def tried(
    handler: str | Callable[..., Any], letters: Iterable[Letter], settings: Settings, topics: tuple[str, ...], *,
    unwrap: Callable[[str], str] = str, debug: bool,
) -> Iterator[Tried]:  # fmt: skip
    """Run `handler` on the letters, topic by topic, each when it is asked for.

    `topics` are subscribed, as of `run`; without any, those that the letters were sent to. `unwrap` takes the namespace off a
    topic. With `debug` a failure prints its traceback and opens pdb where it happened. Raises UsageError and HandlerLoadError
    for a handler that cannot run, StoppedError when the debugger is left by `q`, KeyboardInterrupt also when it hit the
    handler.
    """
    given = {name: value_of(settings, name) for name in TAKEN_OVER if settings.origin[name] != "default"}
    by_topic = sorted(((unwrap(one.topic), one) for one in letters), key=lambda pair: pair[0])
    for topic, several in groupby(by_topic, key=lambda pair: pair[0]):
        with Rehearsal(
            handler, topics=topics or (topic,), group=settings.consumer.group, settings={**given, **FINAL}
        ) as rehearsal:
            for _, letter in several:
                try:
                    rehearsal.send(_as_first_attempt(letter, topic))
                except RocketcrewError as error:  # the letter's own: the handler is looked at after that
                    yield Tried(letter, str(error))
                    continue
                try:
                    rehearsal.wind(0)
                except bdb.BdbQuit:
                    raise StoppedError from None
                except NotConsumedError:
                    yield _left_out(letter, topic)
                    continue
                found = rehearsal.take()
                for call in found.calls:
                    _look_into(call, debug=debug)
                yield _judged(letter, topic, found)


def _as_first_attempt(letter: Letter, topic: str) -> Message:
    # It has been sent, whatever a check of arguments would say of it.
    return make_message(
        letter.message.decompressed_body(),
        topic=topic,
        properties=first_attempt(letter.message),
        store_timestamp_ms=letter.message.store_timestamp_ms,
    )


def _judged(letter: Letter, topic: str, found: Result) -> Tried:
    own = {each.message_id for each in found.sent}  # consumed here too, where the handler subscribes to them
    back: list[DeadLetter | Retried] = [*found.dead_letters, *found.retries]
    errors = [each.error for each in back if each.message.message_id not in own]
    if errors:
        return Tried(letter, errors[0] or "the handler wants it later", sends=len(found.sent))
    if not found.calls:
        return _left_out(letter, topic)
    if found.unfinished:
        return Tried(letter, "the handler did not finish it", sends=len(found.sent))
    return Tried(letter, rows=tuple(found.rows), sends=len(found.sent))


def _left_out(letter: Letter, topic: str) -> Tried:
    tags = letter.message.properties.get("TAGS", "")
    what = f"topic {topic}{f', tag {tags}' if tags else ''}"
    return Tried(letter, f"the handler was not called: its topics, tags or filter leave this message out ({what})")


def _look_into(call: Call, *, debug: bool) -> None:
    """Open the debugger on a failure of the handler."""
    error = call.error
    if error is None or not debug or error.__traceback__ is None:
        return
    traceback.print_exception(error)
    debugger = pdb.Pdb()
    debugger.reset()
    debugger.interaction(None, error.__traceback__)  # as pdb.post_mortem calls it
    if debugger.quitting:
        raise StoppedError
