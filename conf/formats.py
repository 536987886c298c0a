"""The shape of texts that RocketMQ and Spark read: addresses, group and topic names, times, delay levels, memory sizes.

Each function returns the text, tidied, or raises ValueError saying what is wrong with it; they are the `test` of rules in
`schema.py`. The limits are RocketMQ's own (common/.../TopicValidator.java, client/.../Validators.java), so that what
passes here is not refused by a broker a minute later.
"""

from __future__ import annotations

import datetime
import difflib
import ipaddress
import re
from urllib.parse import urlsplit

from ..remoting.errors import UsageError
from ..remoting.subscription import parse_filter
from .segment_format import FOLDER_FORMATS

NAME_CHARACTERS = r"[%|a-zA-Z0-9_-]+"
TOPIC_LENGTH_MAX = 127
# Validators.GROUP_MAX_LENGTH of 5.x. 4.9's client takes 255, but its brokers store no message whose topic is longer than 127
# characters: nothing of such a group could go back to `%RETRY%<group>`.
GROUP_LENGTH_MAX = 120
NAMESPACE_LENGTH_MAX = 64
CALLS_MAX = 10_000
TIME_MS_LEAST = 10**11
# The embedded broker looks at one queue a level at every tick (broker/config.py).
DELAY_LEVELS_MAX = 100
# Java's getName() of each strategy (client/consumer/rebalance/*.java).
STRATEGIES = (
    "AVG",
    "AVG_BY_CIRCLE",
    "CONSISTENT_HASH",
    "CONFIG",
    "MACHINE_ROOM",
    "MACHINE_ROOM_NEARBY-AVG",
    "MACHINE_ROOM_NEARBY-AVG_BY_CIRCLE",
    "MACHINE_ROOM_NEARBY-CONSISTENT_HASH",
)
FOLDERS_ARE = "a folder on a file system of this host: a local disk, NFS, or HDFS through a mount"
TABLES_ARE = (
    f"{FOLDERS_ARE}; or, with spark.format = deltalake, s3://bucket/table; or, with spark.format = parquet or iceberg-spark,"
    " hdfs://namenode/table. Other object stores (gs://, abfss://) are not supported"
)
_STATE_BESIDE = (
    "has its state in files beside the table, which are on a file system of this host only: give a folder, or set"
    " spark.format = deltalake"
)
_NO_RENAME = "commits a batch by renaming a folder, and S3 has no rename: set spark.format = deltalake"
_BY_SPARK = "is Spark's own: what Spark writes there only Spark can look into"
NOT_ON_S3 = {
    "parquet": _NO_RENAME,
    "pyarrow": _NO_RENAME,
    "delta": "is written by Spark, whose log store makes no conditional puts on S3, so that two writers can have the same"
    " commit: set spark.format = deltalake, which writes the same table",
    "iceberg": _STATE_BESIDE,
    "iceberg-spark": _STATE_BESIDE,
}
"""Why a table of this format can't be on S3, by format; "deltalake" can."""
_NOT_BY_SPARK = "and without Spark's JVM nothing is written there: set spark.format = parquet, the same table by Spark"
_NOT_ICEBERG = (
    "and pyiceberg has no JVM, which alone reaches HDFS here: give a folder, or set spark.format = iceberg-spark"
)
_DELTA_LOG = "and its log is read without Spark's JVM here, which alone reaches HDFS: set spark.format = parquet"
NOT_ON_HDFS = {"pyarrow": _NOT_BY_SPARK, "iceberg": _NOT_ICEBERG, "deltalake": _DELTA_LOG, "delta": _DELTA_LOG}
"""Why a table of this format can't be on HDFS, by format; "parquet" and "iceberg-spark" can."""
NEAR = 0.86
"""How much a format's name is like one of ours that is meant: no name of Spark's own formats is."""
_URL = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]+):/")
_S3 = re.compile(r"s3a?://", re.IGNORECASE)
_S3_TABLE = re.compile(r"s3a?://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[^/?#\s]+)+/?")
_HDFS = re.compile(r"hdfs:/", re.IGNORECASE)
_HDFS_TABLE = re.compile(r"hdfs://[A-Za-z0-9_.-]+(:[0-9]{1,5})?(/[A-Za-z0-9_.=+@-]+)+/?")
_NOT_DELTAS = re.compile(r"[#?\[\]\\^|\x00-\x1f\x7f]|%[0-9A-Fa-f]{2}")
_DELTAS = ("delta", "deltalake")
_TABLE = "table:"
SECONDS_OF = {"s": 1, "m": 60, "h": 3600}
UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"  # MessageStoreConfig.messageDelayLevel
DELAY_MAX_MS = 72 * 3_600_000  # as long as the embedded broker keeps messages, RocketMQ's fileReservedTime


def address(text: str) -> str:
    """`host:port`; an IPv6 host in brackets. Of an end point such as `http://host:port` only that part."""
    host, colon, port = text.strip().removeprefix("http://").rpartition(":")
    if not colon or not re.fullmatch(r"[0-9]{1,5}", port) or not 1 <= int(port) <= 65535:
        raise ValueError(f"holds {text!r}, which has no port from 1 to 65535 at its end")
    if host.startswith("[") and host.endswith("]"):
        try:
            ipaddress.IPv6Address(host[1:-1])
        except ValueError:
            raise ValueError(f"holds {text!r}, whose host is no IPv6 address") from None
    elif not re.fullmatch(r"[A-Za-z0-9._-]{1,253}", host):
        raise ValueError(f"holds {text!r}, which is not host:port")
    return f"{host}:{int(port)}"


def group(text: str) -> str:
    """A consumer group's name (Validators.java checkGroup, plus the name the Java client refuses at start)."""
    if len(text) > GROUP_LENGTH_MAX:
        raise ValueError(f"has more than {GROUP_LENGTH_MAX} characters")
    if not re.fullmatch(NAME_CHARACTERS, text):
        raise ValueError("holds a character that RocketMQ does not allow in a group")
    if text == "DEFAULT_CONSUMER":
        raise ValueError("is the name RocketMQ reserves for no group at all")
    return text


def not_a_folder(text: str) -> str:
    """What is wrong with `text` as the path of a folder, empty when nothing is. A URL would become a folder of that name."""
    url = _URL.match(text.strip())
    if url is not None and url[1].lower() == "file":
        return "is a URL: write it as a path, without file:"
    if url is not None:
        return f"is a URL ({url[1]}:), and it must be {FOLDERS_ARE}"
    if text.strip().startswith(_TABLE):
        return "names a table of a catalog, and not a folder: that goes with other formats of Spark only"
    return ""


def on_s3(target: object) -> bool:
    """Whether a table's target is in a bucket: `s3://` or `s3a://`."""
    return _S3.match(str(target).strip()) is not None


def on_hdfs(target: object) -> bool:
    """Whether a table's target is on HDFS, and not by a mount: `hdfs://`."""
    return _HDFS.match(str(target).strip()) is not None


def not_for_delta(path: str) -> str:
    """What is wrong with `path` as the folder of a Delta table, empty when nothing is.

    delta-rs (1.6) makes a URL of it and a path again, by which it opens another folder than it writes to, or none at all.
    """
    found = _NOT_DELTAS.search(path)
    return (
        f"has {found[0]!r} in it, and Delta's library takes such a path for another one: choose another folder"
        if found
        else ""
    )


def not_a_table(target: str, format_: str = "") -> str:
    """What is wrong with `target` as the place of a table of this format that rocketcrew reads, empty when nothing is; no
    format: of a table of any."""
    if on_s3(target):
        if format_ not in ("", "deltalake"):
            return f"is on S3, and spark.format = {format_} {NOT_ON_S3.get(format_, _BY_SPARK)}"
        return (
            ""
            if _S3_TABLE.fullmatch(target)
            else "is not s3://bucket/table: a bucket's name, then the table's path in it"
        )
    if on_hdfs(target):
        if format_ in NOT_ON_HDFS:
            return f"is on HDFS, {NOT_ON_HDFS[format_]}"
        return (
            ""
            if _HDFS_TABLE.fullmatch(target)
            else "is not hdfs://namenode:port/path or hdfs://nameservice/path, of letters, digits and _ . = + @ -"
        )
    wrong = not_a_folder(target).replace(FOLDERS_ARE, TABLES_ARE)
    return wrong or (not_for_delta(target) if format_ in _DELTAS else "")


def table_format(text: str) -> str:
    """One of ours, or a name that Spark knows. Spark takes any case, and would append to what it finds at least once."""
    near = difflib.get_close_matches(text.lower(), (*FOLDER_FORMATS, "foreach"), 1, NEAR)
    if near and text != near[0]:
        raise ValueError(f"is no format: did you mean {near[0]}?")
    return text


def metastore_name(text: str) -> str:
    """`database.table`, as every metastore takes it."""
    if not re.fullmatch(r"[A-Za-z0-9_]{1,128}\.[A-Za-z0-9_]{1,128}", text):
        raise ValueError(f"holds {text!r}, which is not database.table, each of letters, digits and _")
    if text.partition(".")[0].lower() in ("delta", "parquet"):
        raise ValueError(f"holds {text!r}, which Spark takes for files at a path: name another database")
    return text


def not_registered(format_: str) -> str:
    """Why a table of that format is not kept known to a metastore by `spark.table`, empty when it is."""
    if format_ in ("iceberg", "iceberg-spark"):
        return "an Iceberg table is known to its catalog already: name it there, by table in [spark.options]"
    if format_ in ("pyarrow", "deltalake"):
        other = {"pyarrow": "parquet", "deltalake": "delta"}[format_]
        return (
            f"the metastore is asked by a Spark session, and this format has none: set spark.format = {other}, the same"
            " table"
        )
    if format_ not in ("parquet", "delta"):
        return "only tables of the formats parquet and delta are registered"
    return ""


def folder(text: str) -> str:
    """The path of a folder on this host."""
    wrong = not_a_folder(text)
    if wrong:
        raise ValueError(wrong)
    return text


def domain(text: str) -> str:
    """`host` or `host:port`, without scheme and path."""
    return address(text) if ":" in text else host(text)


def namespace(text: str) -> str:
    """A namespace of the first version: it becomes part of topics' and groups' names."""
    if not re.fullmatch(NAME_CHARACTERS, text) or len(text) > NAMESPACE_LENGTH_MAX:
        raise ValueError("holds a character that RocketMQ does not allow in names, or is too long")
    return text


def property_name(text: str) -> str:
    """The name of a message property; stored properties are separated by the characters 1 and 2."""
    if any(character <= " " for character in text):
        raise ValueError("holds a blank or a control character")
    return text


def topic_limit(text: str) -> str:
    """`topic=calls`: how many calls of the handler may work on that topic at once."""
    name, _, calls = (part.strip() for part in text.partition("="))
    if not re.fullmatch(NAME_CHARACTERS, name) or len(name) > TOPIC_LENGTH_MAX:
        raise ValueError(f"holds {text!r}, which does not begin with a topic's name")
    if not re.fullmatch(r"[0-9]{1,5}", calls) or not 1 <= int(calls) <= CALLS_MAX:
        raise ValueError(
            f"holds {text!r}, which has no equals sign followed by a number of calls from 1 to {CALLS_MAX}"
        )
    return f"{name}={int(calls)}"


def rate_limit(text: str) -> str:
    """`100/s`, `30/m` or `10/h`: messages in a second, a minute or an hour, as Celery writes its rate_limit."""
    number, _, unit = (part.strip() for part in text.partition("/"))
    if not re.fullmatch(r"[0-9]{1,7}(\.[0-9]{1,3})?", number) or float(number) <= 0 or unit not in SECONDS_OF:
        raise ValueError(
            f"holds {text!r}, which is no rate such as 100/s, 30/m or 10/h (at least 0.001, at most 9999999)"
        )
    return f"{number}/{unit}"


def per_second(rate: str) -> float:
    """Messages a second of a checked rate."""
    number, _, unit = rate.partition("/")
    return float(number) / SECONDS_OF[unit]


def topic_rate_limit(text: str) -> str:
    """`topic=100/s`: how many messages of that topic may be dispatched in that time."""
    name, _, rate = (part.strip() for part in text.partition("="))
    if not re.fullmatch(NAME_CHARACTERS, name) or len(name) > TOPIC_LENGTH_MAX:
        raise ValueError(f"holds {text!r}, which does not begin with a topic's name")
    return f"{name}={rate_limit(rate)}"


def topic_of(subscription: str) -> str:
    """The topic of `topic` or `topic:expression`."""
    return subscription.partition(":")[0].strip()


def subscription(text: str) -> str:
    """`topic`, `topic:tagA || tagB` or `topic:SQL92:expression`; brokers know whether an SQL expression is one."""
    topic = topic_of(text)
    if not topic or len(topic) > TOPIC_LENGTH_MAX:
        raise ValueError(f"holds {text!r}, whose topic has not 1 to {TOPIC_LENGTH_MAX} characters")
    if not re.fullmatch(NAME_CHARACTERS, topic):
        raise ValueError(f"holds {text!r}, whose topic has a character that RocketMQ does not allow")
    expression = text.partition(":")[2].strip()
    try:
        parse_filter(expression)
    except UsageError as error:
        raise ValueError(f"holds {text!r}: {error}") from None
    return f"{topic}:{expression}" if expression else topic


def allocate_strategy(text: str) -> str:
    """A strategy's name as RocketMQ has it, in any case, or the import path of a user's own."""
    name = text.strip()
    if ":" not in name:
        for known in STRATEGIES:
            if known == name.upper():
                return known
        raise ValueError("is not known")
    return import_path(name)


def import_path(text: str) -> str:
    """`package.module:function`."""
    name = text.strip()
    module, _, function = name.partition(":")
    if not all(part.isidentifier() for part in f"{module}.{function}".split(".")):
        raise ValueError("is not package.module:function")
    return name


def sentry_dsn(text: str) -> str:
    """`https://KEY@HOST/PROJECT`, as sentry_sdk reads it. The text is not repeated in errors: it holds a key."""
    dsn = text.strip()
    try:
        parts = urlsplit(dsn)
        host, key, _ = parts.hostname, parts.username, parts.port
    except ValueError:
        raise ValueError("holds no URL") from None
    if parts.scheme not in ("http", "https"):
        raise ValueError("does not begin with http:// or https://")
    if not key:
        raise ValueError("has no key before an @")
    if not host:
        raise ValueError("has no host after the @")
    if not re.fullmatch(r"[0-9]{1,20}", parts.path.rpartition("/")[2]):
        raise ValueError("does not end with the number of a project")
    return dsn


def sentry_environment(text: str) -> str:
    """What Sentry takes as the name of an environment."""
    name = text.strip()
    if len(name) > 64 or re.search(r"[\s/]", name) or name.lower() == "none":
        raise ValueError(f"holds {text!r}, which Sentry does not take as the name of an environment")
    return name


def queue(text: str) -> str:
    """`topic@broker:queueId`."""
    match = re.fullmatch(rf"({NAME_CHARACTERS})@([%|a-zA-Z0-9_@-]+):([0-9]{{1,9}})", text.strip())
    if match is None:
        raise ValueError(f"holds {text!r}, which is not topic@broker:queueId")
    return f"{match[1]}@{match[2]}:{int(match[3])}"


def split_subscriptions(text: str) -> list[str]:
    """Subscriptions separated by commas, but not by those in quotes or parentheses: `a:SQL92:x IN ('p', 'q'),b`."""
    parts, depth, quoted = [""], 0, False
    for character in text:
        quoted ^= character == "'"
        depth += not quoted and ((character == "(") - (character == ")"))
        if character == "," and not quoted and depth <= 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def consume_timestamp(text: str) -> str:
    """`yyyyMMddHHmmss`, a moment that exists (UtilAll.parseDate)."""
    consume_timestamp_ms(text)
    return text


def consume_timestamp_ms(text: str) -> int:
    """The same as milliseconds since 1970."""
    if not re.fullmatch(r"[0-9]{14}", text):
        raise ValueError("has not 14 digits")
    try:
        # Local time without a zone, as Java reads it.
        return int(datetime.datetime.strptime(text, "%Y%m%d%H%M%S").timestamp() * 1000)  # noqa: DTZ007
    except (ValueError, OverflowError):
        raise ValueError("is no moment of any calendar") from None


def check_milliseconds(told: int) -> None:
    """Refuse a time since 1970 that must be in seconds: as milliseconds it is before 1973, when no broker has stored
    anything. Raises ValueError."""
    if 0 < told < TIME_MS_LEAST:
        raise ValueError(f"looks like seconds, and is milliseconds since 1970: give {told * 1000}")


def delay_levels_ms(text: str) -> tuple[int, ...]:
    """Milliseconds of the levels 1, 2, … in `1s 5s 10s`: numbers with a unit (ScheduleMessageService.parseDelayLevel; ms is
    ours, for demos and tests). Raises ValueError."""
    found: list[int] = []
    for level in text.split():
        match = re.fullmatch(r"([0-9]{1,10})(ms|s|m|h|d)", level)
        if match is None or int(match[1]) == 0:
            raise ValueError(f"holds {level!r}, which is not a number above 0 followed by ms, s, m, h or d")
        found.append(int(match[1]) * UNIT_MS[match[2]])
    if not 1 <= len(found) <= DELAY_LEVELS_MAX:
        raise ValueError(f"has {len(found)} levels, and 1 to {DELAY_LEVELS_MAX} are possible")
    return tuple(found)


def delay_levels(text: str) -> str:
    """Levels of the embedded broker."""
    if max(delay_levels_ms(text)) > DELAY_MAX_MS:
        raise ValueError("has a level of more than 3d: the embedded broker keeps messages for 72 h")
    return " ".join(text.split())


def ip_address(text: str) -> str:
    """An IP address, without port."""
    try:
        return str(ipaddress.ip_address(text.strip().strip("[]")))
    except ValueError:
        raise ValueError("is not an IP address") from None


def announced_address(text: str) -> str:
    """An IP address that clients can connect to."""
    found = ip_address(text)
    if ipaddress.ip_address(found).is_unspecified:
        raise ValueError("is a wildcard, to which no client connects: name an address of this machine, or none")
    return found


def host(text: str) -> str:
    """A host name or IP address to listen on."""
    if not re.fullmatch(r"[A-Za-z0-9._:-]{1,253}", text.strip()):
        raise ValueError("is neither a host name nor an IP address")
    return text.strip()


def java_memory(text: str) -> str:
    """`1g`, `512m`: what Java's -Xmx and Spark take."""
    if not re.fullmatch(r"[1-9][0-9]{0,5}[kmgKMG]", text.strip()):
        raise ValueError("is not a number followed by k, m or g")
    return text.strip().lower()


def broker_name(text: str) -> str:
    """The name of a broker or a cluster: the broker makes topics of these names (TopicConfigManager.java)."""
    if not re.fullmatch(NAME_CHARACTERS, text) or len(text) > TOPIC_LENGTH_MAX:
        raise ValueError("holds a character that RocketMQ does not allow, or is too long")
    return text


def plain_name(text: str) -> str:
    """A name that ends up inside client ids, broker tables and file names."""
    if not re.fullmatch(r"[A-Za-z0-9_.#%|-]{1,255}", text):
        raise ValueError("holds a character other than letters, digits and _ . # % | -")
    return text
