"""What may stop the loader, each with the exit code by which the parent process and the user know it."""

from __future__ import annotations

from typing import Final

from ..conf.exit_codes import EXIT_FAILURE, EXIT_SPARK, EXIT_USAGE
from ..durable.room import NO_ROOM
from ..remoting.errors import RocketcrewError, UsageError


class LoaderError(RocketcrewError):
    """Loading can't go on now: disk full, the table is not what it was, another loader is here. Segments stay."""

    exit_code = EXIT_FAILURE


class SparkStartError(LoaderError):
    """Spark can't be started here: no Java, a Java it doesn't run on, no pyspark, a master that refuses."""

    exit_code = EXIT_SPARK


class SparkDiedError(LoaderError):
    """The JVM went away in the middle. In this process it can't come back: the parent starts the loader anew."""


class BatchTakenError(LoaderError):
    """Another loader committed the batch number that this plan was for. Nothing is lost: plan again."""


class StoppedError(LoaderError):
    """The Spark job was cancelled because the loader is to stop. The plan stays, and is run at the next start."""


class BadSegmentError(ValueError):
    """A file in the segment folder that can't be loaded: the message says why."""


_FULL = ("No space left on device", "Disk quota exceeded", "database or disk is full")
"""A full disk, or one of which this user may have no more, by those who pass no number on; SQLite has words of its own."""

CHECK_REMEDY: Final = (
    "Rows break a CHECK constraint of the table: have it dropped (ALTER TABLE ... DROP CONSTRAINT NAME in Spark,"
    " alter.drop_constraint(NAME) of the deltalake package's DeltaTable), or load into another table"
)
_ROWS = ("Preview of invalid data:", " violated by row with values:")
"""Behind these words delta-rs and Delta's Spark show rows: data of the user, which has no place in a log."""

_REMEDIES = (
    (_FULL, "The disk is full: make room on it"),
    (
        ("Cannot run program",),
        "Executors cannot start that Python: name one that every node has and their user may start (spark.pyspark.python)",
    ),
    (
        ("No module named 'rocketcrew'",),
        "rocketcrew must be installed on every node, in the Python that spark.pyspark.python in spark.conf names",
    ),
    (
        ("Schema evolution on column-mapped tables",),
        "spark.format = delta, by which Spark writes the table, can add the new columns",
    ),
    (
        ("Unsupported table features required",),
        "spark.format = delta, by which Spark writes the table, knows more of Delta's features",
    ),
    (("failed validation check", "DELTA_VIOLATE_CONSTRAINT"), CHECK_REMEDY),
    (
        ("Mkdirs failed to create file:",),
        "Executors may not write there. Where they run as another user, spark.format = pyarrow writes the same table here",
    ),
    (
        ("Permission denied", "Operation not permitted"),
        "The loader, and Spark's executors, must be allowed to write there",
    ),
)
"""What failures say, and what to do; the first that is met counts."""


def remedy(said: str) -> str:
    """What to do about a failure that only its text tells of, as a sentence to be appended; "" when that is not known."""
    return next((f". {told}" for words, told in _REMEDIES if any(word in said for word in words)), "")


def without_rows(said: str) -> str:
    """What a failure says, without the rows that it shows."""
    for mark in _ROWS:
        said = said.partition(mark)[0]
    return said.strip()


def unusable(said: str, error: OSError) -> OSError | UsageError:
    """What to raise where a folder cannot be used: `said`, and why. A full disk is nobody's mistake: that error itself."""
    return error if error.errno in NO_ROOM else UsageError(f"{said}: {error}")


def is_no_room(error: OSError | LoaderError) -> bool:
    """Whether it failed as a disk is full, which a smaller batch may not meet. What has ended Spark is no such failure."""
    if isinstance(error, OSError):
        return error.errno in NO_ROOM
    return type(error) is LoaderError and any(words in str(error) for words in _FULL)


def exit_code(error: BaseException) -> int:
    """The exit code that tells `error` to whoever started the process."""
    if isinstance(error, LoaderError):
        return error.exit_code
    return EXIT_USAGE if isinstance(error, UsageError) else EXIT_FAILURE


RESET: Final = "rocketcrew reset -g GROUP -t TOPIC --to earliest"
CONSUME_AGAIN: Final = f"stop the members and consume again: `{RESET}`"
"""For a table that has begun anew."""
RUN_AGAIN: Final = "`rocketcrew reconcile --rerun HANDLER -g GROUP --target TABLE`"
"""What runs messages once more whose rows are lost."""


SETTINGS_FILE: Final = "SETTINGS.toml"
"""In a command line that needs settings of which options alone do not tell."""


def typed(load: str) -> str:
    """A command line of `load` as a message has it."""
    told = f" ({SETTINGS_FILE} is the file with the member's settings, which say what table that is)"
    return f"`{load}`{told if SETTINGS_FILE in load else ''}"


def take_on(load: str, reset: str) -> str:
    """What to do about a table that has fewer batches than its loaders know of; the two command lines are of `load`, with
    --table-replaced, and of `reset`. No file is to be deleted: what is known of the table before would go with it."""
    return (
        f"Put it back; or go on with what is there: stop the members, and have a loader note that the other batches are lost:"
        f" {typed(load)}. From then on `rocketcrew reconcile` names what they may have had as unknown, and brings it by"
        f" --rerun HANDLER; so do members that start after `{reset}`"
    )


def unreadable(file: object, error: Exception, *, iceberg: bool = False) -> str:
    """A data file of a table that is gone or damaged, and what brings its rows back."""
    if iceberg:
        said = "is gone" if isinstance(error, FileNotFoundError) else " ".join(str(error).split())
        return (
            f'{file}: {said}, and the Iceberg table names it: have pyiceberg take it out of the table ("A data file that is'
            f' gone or damaged" in docs/how-to/iceberg.md), and run its messages again: {RUN_AGAIN}'
        )
    if isinstance(error, FileNotFoundError):
        return (
            f"{file} is gone, and the table's log names it: DeltaTable.repair() of the deltalake package takes it out"
        )
    from pyarrow import ArrowNotImplementedError

    said = " ".join(str(error).split())
    if isinstance(error, ArrowNotImplementedError):  # a type that others have written, or a bit that flipped
        said += ". Leave it where it is if Spark or a newer pyarrow can read it; unless one can, it is damaged"
    return (
        f"{file}: {said}. Move the file away, as readers of the table fail while it is there, and run its messages again:"
        f" {RUN_AGAIN}"
    )
