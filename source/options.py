"""Reading options: one table of names with what each may hold, for reading and for writing.

Names are Spark's spelling (no case), those that Kafka's source has are called the same and mean the same. Options of the
connection may carry the prefix `rocketmq.`, as `kafka.` there. A name that nobody knows is refused with the nearest one:
a misspelt `failOnDataLos` that is silently ignored costs data. Values of secrets never stand in a message. Pure.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..conf.formats import UNIT_MS, check_milliseconds
from ..remoting.errors import UsageError

PREFIX = "rocketmq."
OF_TABLE = re.compile(r"option\..*|owner|provider", re.DOTALL)
"""What Spark adds to the options of `CREATE TABLE`: each of them once more, and facts of the table. A read of the table gets
none of all these (PythonDataSourceV2.scala of Spark 4.2)."""
BATCH, STREAM, WRITE = "batch", "stream", "write"
READS = frozenset({BATCH, STREAM})
EVERYWHERE = frozenset({BATCH, STREAM, WRITE})
SECRETS = frozenset({"secretKey", "securityToken", "tlsKeyPassword"})
OF_SPARK = frozenset(
    {"checkpointlocation", "asyncprogresstrackingenabled", "asyncprogresstrackingcheckpointintervalms", "queryname"}
)
"""What Spark itself takes and hands on to sources and sinks."""
TIME_MAX = 1 << 53
_UNIT_MS = UNIT_MS | {"min": UNIT_MS["m"]}

Parse = Callable[[str], Any]


def text(value: str) -> str:
    """Any text that is not empty."""
    if not value.strip():
        raise ValueError("is empty")
    return value.strip()


def name(value: str) -> str:
    """What may stand in a message's key: letters, digits, `.`, `_` and `-`, up to 64."""
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", value.strip()):
        raise ValueError("is no name of up to 64 letters, digits, '.', '_' and '-'")
    return value.strip()


def secret(value: str) -> str:
    """Any text, as it stands."""
    return value


def flag(value: str) -> bool:
    """true or false."""
    if value.strip().lower() not in ("true", "false"):
        raise ValueError("is neither true nor false")
    return value.strip().lower() == "true"


def number(low: int, high: int) -> Parse:
    """An integer from `low` to `high`."""

    def parse(value: str) -> int:
        if not re.fullmatch(r"-?[0-9]{1,19}", value.strip()) or not low <= int(value) <= high:
            raise ValueError(f"is no whole number from {low} to {high}")
        return int(value)

    return parse


def duration_ms(value: str) -> int:
    """`15m`, `30s`, `500ms`, `1h`; the milliseconds."""
    found = re.fullmatch(r"([0-9]{1,9})\s*(ms|s|m|min|h)", value.strip().lower())
    if found is None:
        raise ValueError("is no time such as 500ms, 30s, 15m or 1h")
    return int(found[1]) * _UNIT_MS[found[2]]


def time_ms(value: str) -> int:
    """A time in milliseconds since 1970."""
    told: int = number(0, TIME_MAX)(value)
    check_time_ms(told)
    return told


def check_time_ms(told: int) -> None:
    """Refuse what must be seconds. Raises ValueError."""
    try:
        check_milliseconds(told)
    except ValueError as error:
        raise ValueError(f"{error}, or 0 for all there is") from None


def one_of(*choices: str) -> Parse:
    """One of these words."""

    def parse(value: str) -> str:
        if value.strip().lower() not in choices:
            raise ValueError(f"is none of {', '.join(choices)}")
        return value.strip().lower()

    return parse


@dataclass(frozen=True, slots=True)
class Option:
    """One option: where it holds, how its text is read, and what holds without it."""

    where: frozenset[str]
    parse: Parse
    default: Any = None


_MS = number(1, 3_600_000)
_STREAM = frozenset({STREAM})
_BATCH = frozenset({BATCH})
_WRITE = frozenset({WRITE})

OPTIONS: Mapping[str, Option] = {
    # The connection; as [cluster] and [security] of rocketcrew's settings.
    "nameServer": Option(EVERYWHERE, text),
    "namesrvDomain": Option(EVERYWHERE, text),
    "namespace": Option(EVERYWHERE, text, ""),
    "namespaceV2": Option(EVERYWHERE, text, ""),
    "unitName": Option(EVERYWHERE, text, ""),
    "vipChannelEnabled": Option(EVERYWHERE, flag, False),
    "accessKey": Option(EVERYWHERE, text, ""),
    "secretKey": Option(EVERYWHERE, secret, ""),
    "securityToken": Option(EVERYWHERE, secret, ""),
    "keyFile": Option(EVERYWHERE, text, ""),
    "tlsEnable": Option(EVERYWHERE, flag, False),
    "tlsAuthServer": Option(EVERYWHERE, flag, True),
    "tlsTrustCertPath": Option(EVERYWHERE, text, ""),
    "tlsCertPath": Option(EVERYWHERE, text, ""),
    "tlsKeyPath": Option(EVERYWHERE, text, ""),
    "tlsKeyPassword": Option(EVERYWHERE, secret, ""),
    "tlsCheckHostname": Option(EVERYWHERE, flag, False),
    "tlsServerName": Option(EVERYWHERE, text, ""),
    "requestTimeoutMs": Option(EVERYWHERE, _MS, 3_000),
    "connectTimeoutMs": Option(EVERYWHERE, _MS, 3_000),
    "numRetries": Option(EVERYWHERE, number(0, 10_000)),
    "retryIntervalMs": Option(EVERYWHERE, _MS, 1_000),
    "group": Option(EVERYWHERE, text),
    # What is read.
    "subscribe": Option(READS, text),
    "subscribePattern": Option(READS, text),
    "assign": Option(READS, text),
    "startingOffsets": Option(READS, text),
    "startingTimestamp": Option(READS, time_ms),
    "startingOffsetsByTimestamp": Option(READS, text),
    "startingOffsetsByTimestampStrategy": Option(READS, one_of("error", "latest"), "error"),
    "endingOffsets": Option(_BATCH, text),
    "endingTimestamp": Option(_BATCH, time_ms),
    "endingOffsetsByTimestamp": Option(_BATCH, text),
    "failOnDataLoss": Option(READS, flag, True),
    "tags": Option(READS, text, "*"),
    "includeProperties": Option(READS, flag, True),
    "includeBody": Option(READS, flag, True),
    # How it is read.
    "minPartitions": Option(READS, number(1, 1_000_000)),
    "maxRecordsPerPartition": Option(READS, number(1, 1 << 53)),
    "maxOffsetsPerTrigger": Option(_STREAM, number(1, 1 << 53)),
    "minOffsetsPerTrigger": Option(_STREAM, number(1, 1 << 53)),
    "maxTriggerDelay": Option(_STREAM, duration_ms, 900_000),
    "newQueues": Option(_STREAM, one_of("earliest", "group")),  # reading.py has the default
    "reportGroupOffsets": Option(_STREAM, flag),  # reading.py has the default
    "pullGroup": Option(READS, text),
    "pullBatchSize": Option(READS, number(1, 32_767), 1_024),
    "pullTimeoutMs": Option(READS, _MS, 30_000),
    # What is written.
    "topic": Option(_WRITE, text),
    "writeId": Option(_WRITE, name, ""),
    "sendTimeoutMs": Option(_WRITE, _MS, 3_000),
    "sendsInFlight": Option(_WRITE, number(1, 10_000), 256),
}
_BY_LOWER = {name.lower(): name for name in OPTIONS}
_WORD = {BATCH: "a batch read", STREAM: "a stream", WRITE: "a write"}


def refuse(name: str, value: str, why: str) -> UsageError:
    """The error for one option's value."""
    shown = "the value" if name in SECRETS else f"{value[:200]!r}"
    return UsageError(f"rocketmq: option {name}: {shown} {why}")


def parse_options(given: Mapping[str, str], where: str) -> dict[str, Any]:
    """All options that hold in `where` by their names, with defaults; raises UsageError naming the option."""
    found = {name: option.default for name, option in OPTIONS.items() if where in option.where}
    spelt: dict[str, str] = {}
    for key, value in given.items():
        name = name_of(key)
        if name is None:
            continue
        if name in spelt and given[spelt[name]] != value:
            raise UsageError(f"rocketmq: options {spelt[name]} and {key} are one and the same: give one of them")
        spelt[name] = key
        option = OPTIONS[name]
        if where not in option.where:
            fits = " or ".join(_WORD[place] for place in (BATCH, STREAM, WRITE) if place in option.where)
            raise UsageError(f"rocketmq: option {name} means nothing to {_WORD[where]}: it is for {fits}; leave it out")
        try:
            found[name] = option.parse(value)
        except ValueError as error:
            raise refuse(name, value, str(error)) from None
    return found


def name_of(key: str) -> str | None:
    """The option's name, None for Spark's own. Raises UsageError for a name that nobody knows."""
    lower = key.lower().removeprefix(PREFIX)
    if lower in OF_SPARK:
        return None
    if lower == "path":
        raise UsageError(
            "rocketmq: there is no path to load or save: name topics by option subscribe (reading) or topic (writing)"
        )
    if OF_TABLE.fullmatch(lower):
        raise UsageError(
            "rocketmq: Spark does not hand the options of CREATE TABLE on to those who read the table: take CREATE TEMPORARY"
            " VIEW name USING rocketmq OPTIONS (...)"
        )
    name = _BY_LOWER.get(lower)
    if name is None:
        near = difflib.get_close_matches(lower, _BY_LOWER, 1, 0.6)
        hint = f"did you mean {_BY_LOWER[near[0]]}?" if near else f"known are {', '.join(OPTIONS)}"
        raise UsageError(f"rocketmq: option {key} is unknown: {hint}")
    return name


def flag_of(given: Mapping[str, str], name: str, where: str) -> bool:
    """One flag, before the others are looked at. Raises UsageError for its value."""
    own = {key: value for key, value in given.items() if name_of(key) == name}
    return bool(parse_options(own, where)[name])
