"""Dead letters as an operator sees them: why each failed, which belong together, and what was done about it already.

Pure, but for the file of what was done. A broker deletes no single message, and a filtered replay leaves gaps, so what was
replayed or put aside is noted on this host: a line of JSON a letter in <data_dir>/<group>/dead-letters.jsonl, written after
the broker has acknowledged. A crash between the two repeats one letter and loses none.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import click

from ..conf import formats
from ..remoting.errors import RocketcrewError, UsageError
from ..remoting.properties import PROPERTY_KEYS, divided_keys
from ..remoting.queues import MessageQueue
from ..remoting.stored import StoredMessage
from ..supervisor.member.send_back import FACT_PREFIX
from .messages import facts_of, when

NOTES_FILE: Final = "dead-letters.jsonl"
PARQUET: Final = "parquet"
DELTA: Final = "deltalake"
"""Tables that letters are exported to."""
REPLAYED: Final = "replayed"
HANDLED: Final = "handled"
PURGED: Final = "purged"
"""What can be noted about a letter."""
BEGUN: Final = "begun"
"""A note that is about none: a replay of all letters began here."""
Key = tuple[str, int, int, str]
"""Broker, queue id and queue offset in %DLQ%<group>, message id."""
NO_KEY: Final[Key] = "", 0, 0, ""
UNKNOWN: Final = "(no error recorded: the broker itself made it a dead letter)"
_LINE = re.compile(r" \(([^()\s]+:\d+)\)$")
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
_NUMBER = re.compile(r"0x[0-9a-fA-F]+|\d+")


@dataclass(frozen=True, slots=True)
class Letter:
    """One dead letter: `mq` is the queue of %DLQ%<group> that it is in, `done` what was done about it, empty = nothing."""

    mq: MessageQueue
    message: StoredMessage
    done: str = ""

    @property
    def place(self) -> str:
        """broker/queue/offset, which names it in commands."""
        return f"{self.mq.broker_name}/{self.mq.queue_id}/{self.message.queue_offset}"

    @property
    def key(self) -> Key:
        """What notes know it by."""
        return _key(self.mq, self.message)

    @property
    def topic(self) -> str:
        """The topic that it was sent to first."""
        properties = self.message.properties
        return properties.get("RETRY_TOPIC") or properties.get("DLQ_ORIGIN_TOPIC") or self.message.topic

    @property
    def error(self) -> str:
        """Why it failed the last time, as the consumer that gave it up wrote; UNKNOWN where nobody did."""
        properties = self.message.properties
        error = properties.get(f"{FACT_PREFIX}ERROR")
        if error:
            return error
        deaths = properties.get(f"{FACT_PREFIX}DEATHS")
        if deaths:
            cause = properties.get(f"{FACT_PREFIX}CAUSE", "unknown")
            return f"crashed {deaths} workers: {cause}"
        return UNKNOWN

    @property
    def line(self) -> str:
        """file:line of the handler's frame that raised; empty where no error names one."""
        found = _LINE.search(self.error)
        return found[1] if found else ""

    def facts(self, how: str) -> dict[str, Any]:
        """All of it as one JSON object; the body in the format `how` (messages.BODY_FORMATS)."""
        ours = {
            "place": self.place,
            "origin_topic": self.topic,
            "error": self.error,
            "line": self.line,
            "done": self.done,
        }
        return ours | facts_of(self.message, self.mq.broker_name, how)

    def row(self) -> dict[str, object]:
        """As a row of a table."""
        return {
            "LETTER": self.place,
            "STORED": when(self.message.store_timestamp_ms),
            "TOPIC": self.topic,
            "KEYS": self.message.properties.get(PROPERTY_KEYS, ""),
            "TRIES": self.message.reconsume_times,
            "ERROR": self.error if len(self.error) <= 80 else self.error[:79] + "…",
            **({"DONE": self.done} if self.done else {}),
        }


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which letters: all conditions hold; an empty one holds always. Times are milliseconds since 1970."""

    names: tuple[str, ...] = ()
    error: str = ""
    line: str = ""
    topic: str = ""
    key: str = ""
    from_ms: int = 0
    to_ms: int = 1 << 62
    done_too: bool = False

    def takes(self, letter: Letter) -> bool:
        """Whether `letter` is meant. Names are places, message ids or offset message ids."""
        message = letter.message
        return (
            (self.done_too or not letter.done)
            and (not self.names or bool({letter.place, message.message_id, message.offset_message_id} & {*self.names}))
            and self.error.lower() in letter.error.lower()
            and (not self.line or letter.line == self.line)
            and (not self.topic or letter.topic == self.topic)
            and (not self.key or self.key in divided_keys(message.properties.get(PROPERTY_KEYS, "")))
            and self.from_ms <= message.store_timestamp_ms < self.to_ms
        )

    def missing(self, found: Iterable[Letter]) -> list[str]:
        """Names that no letter of `found` has."""
        known = {name for one in found for name in (one.place, one.message.message_id, one.message.offset_message_id)}
        return [name for name in self.names if name not in known]


def per_second(text: str) -> float:
    """A rate such as 50, 50/s, 30/m or 100/h in messages a second. Raises UsageError for anything else, and for 0."""
    try:
        return formats.per_second(formats.rate_limit(text if "/" in text else f"{text}/s"))
    except ValueError:
        raise UsageError(f"{text!r} is no rate: write messages a second as 50 or 50/s, or 30/m, or 100/h") from None


def kind_of(error: str) -> str:
    """The error without what differs from message to message: numbers, quoted values, and the line."""
    return _NUMBER.sub("N", _QUOTED.sub("'…'", _LINE.sub("", error)))


def groups(letters: Iterable[Letter], by: str) -> list[dict[str, object]]:
    """How many letters have the same `by` (error, line or topic), the most first; each with an example and its times."""
    listed = list(letters)
    keys = [{"error": kind_of(one.error), "line": one.line or "-", "topic": one.topic}[by] for one in listed]
    found: list[dict[str, object]] = []
    for key, count in Counter(keys).most_common():
        members = [letter for letter, own in zip(listed, keys, strict=True) if own == key]
        stored = [letter.message.store_timestamp_ms for letter in members]
        found.append(
            {
                "COUNT": count,
                by.upper(): key,
                "FIRST": when(min(stored)),
                "LAST": when(max(stored)),
                "EXAMPLE": members[0].place,
            }
        )
    return found


@contextlib.contextmanager
def whole(path: Path) -> Generator[Path]:
    """A name beside `path`, for a file or a folder that becomes `path` at the end: whole or not at all.

    Raises UsageError when `path` exists, RocketcrewError for OSError.
    """
    half = path.with_name(f".{path.name}.part")
    try:
        _remove(half)  # of one that was killed; nobody reads a name with a dot
        yield half
        if path.exists():
            raise UsageError(f"{path} exists already: nothing was written")
        half.rename(path)
    except OSError as error:
        why = " ".join(click.unstyle(error.strerror or str(error)).split())  # delta-rs has coloured lines
        named = f" ({error.filename})" if error.filename else ""
        raise RocketcrewError(f"{path} cannot be written: {why}{named}; nothing was written") from error
    finally:
        with contextlib.suppress(OSError):
            _remove(half)


def _remove(half: Path) -> None:
    if half.is_dir() and not half.is_symlink():
        shutil.rmtree(half)
    else:
        half.unlink(missing_ok=True)


@dataclass(slots=True)
class Notes:
    """What was done about letters, from the file and as it goes on."""

    path: Path
    done: dict[Key, str] = field(default_factory=dict[Key, str])
    sent: list[Key] = field(default_factory=list[Key])
    """A key for each note, in their order; of a letter that was put aside an empty one."""

    @property
    def count(self) -> int:
        """How many notes there are."""
        return len(self.sent)

    def sent_since(self, count: int) -> set[Key]:
        """What was sent, or handled, after so many notes."""
        return {*self.sent[count:]}

    @classmethod
    def read(cls, path: Path) -> Notes:
        """The notes of a file, none where there is none. Raises UsageError for a file that is not such a one; half a last
        line, of a kill, counts as not written."""
        notes = cls(path)
        content = path.read_bytes() if path.is_file() else b""
        for number, line in enumerate(content.split(b"\n")[:-1], 1):
            try:
                one: Mapping[str, Any] = json.loads(line.decode())
                key = str(one["broker"]), int(one["queue_id"]), int(one["queue_offset"]), str(one["message_id"])
                notes._noted(key, str(one["done"]))
            except (ValueError, KeyError, TypeError):
                raise UsageError(f"{path}, line {number}: not a note about a dead letter; move the file away") from None
        return notes

    def of(self, mq: MessageQueue, message: StoredMessage) -> str:
        """What was done about it; a queue that began anew after a loss has other messages at its offsets."""
        return self.done.get(_key(mq, message), "")

    def add(self, letter: Letter, done: str) -> None:
        """Note it in the file, at once. Raises RocketcrewError for a file that cannot grow: the letter is not noted then."""
        self._append(letter.key, done, f"letter {letter.place} is not noted as {done}, and will be taken again")

    def begin(self, name: str) -> Key:
        """Note that a replay of that name begins; the key of this note, by which it is known. Raises as `add`."""
        key = "", 0, 0, name
        self._append(key, BEGUN, "nothing was sent")
        return key

    def _append(self, key: Key, done: str, otherwise: str) -> None:
        broker, queue_id, queue_offset, message_id = key
        line = json.dumps(
            {
                "broker": broker,
                "queue_id": queue_id,
                "queue_offset": queue_offset,
                "message_id": message_id,
                "done": done,
            }
        )
        try:
            with self.path.open("ab+") as file:
                if file.tell() and (file.seek(-1, os.SEEK_END), file.read(1))[1] != b"\n":
                    file.truncate(_last_line_at(self.path))
                file.write(line.encode() + b"\n")
        except OSError as error:
            raise RocketcrewError(f"{self.path} cannot be written: {error.strerror or error}; {otherwise}") from error
        self._noted(key, done)

    def _noted(self, key: Key, done: str) -> None:
        self.done[key] = done
        self.sent.append(NO_KEY if done == PURGED else key)


def _last_line_at(path: Path) -> int:
    return path.read_bytes().rfind(b"\n") + 1


def _key(mq: MessageQueue, message: StoredMessage) -> Key:
    return mq.broker_name, mq.queue_id, message.queue_offset, message.message_id
