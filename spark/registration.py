"""The table kept known to the metastore of the loader's Spark session, behind its commits (metastore.py decides what to say).

A metastore may be slow, away, or refuse: it is asked by a thread of its own, and no commit waits for it. What fails is tried
again after the next commit, with a look at everything that may have changed; a line a minute says so, and loader.json why.

While partitions of a local folder are told, its lock is held as a loader that writes holds it: a metastore makes the folder
of a partition that it does not find, and a compaction may have merged that batch away in this moment.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from ..client.logs import get_logger
from ..remoting.errors import RocketcrewError, UsageError
from .delta_log import is_delta
from .errors import LoaderError
from .metastore import Known, Values, Wanted, known_of, to_add, to_create, to_drop, to_widen, values_of, why_not_ours
from .object_store import Place, in_spark
from .table_lock import locked_table
from .table_state import read_state
from .targets.parquet import STATE_FILE, batch_folder, batch_folders
from .views import short

START_WAIT_S: Final = 60.0
"""How long a start waits to hear whether the name is free: Hive's client itself tries for ten minutes. And an end, for the
last batch."""
STOP_WAIT_S: Final = 5.0
"""How long a stop waits for the last batch to be told; a supervisor that stops grants 30 s in all."""
SAY_EVERY_S: Final = 60.0
LOOK_EVERY_S: Final = 60.0
"""Between two looks at what partitions there are: others take some out, or restore a metastore of last night."""
_STEP_S: Final = 0.2
"""Between two looks whether a stop was asked for: nobody who asks for it wakes who waits here."""
_LOCK_WAIT_S: Final = 600.0
_TRIES: Final = 2
"""Another loader may make the table known between the look and the statement."""
_THERE_ALREADY: Final = "TABLE_OR_VIEW_ALREADY_EXISTS"
_NOT_THERE: Final = "TABLE_OR_VIEW_NOT_FOUND"


@dataclass(frozen=True, slots=True)
class _Told:
    """What the metastore was told last, and of what: whoever exchanges the folder or the entry makes it worth nothing."""

    folder: object
    entry: str
    parts: Mapping[Values, str]
    looked_s: float
    """When it was asked last which partitions it has."""


class Metastore:
    """The metastore's entry of the one table at `place`."""

    def __init__(self, spark: Any, wanted: Wanted, place: Place, now_s: Callable[[], float] = time.monotonic) -> None:
        """`spark`: a session, whose metastore it is; `wanted`: the entry, without the columns, which the table knows."""
        self._spark = spark
        self._wanted = wanted
        self._place = place
        self._now_s = now_s
        self._told: _Told | None = None
        """None: look at everything."""

    def check(self) -> None:
        """Raise UsageError when the name is something else's, or there is no such database."""
        wanted = self._wanted
        if self._known() is None and not self._spark.catalog.databaseExists(wanted.database):
            raise UsageError(
                f"spark.table = {wanted.database}.{wanted.name}: the metastore has no database {wanted.database!r}. Make it:"
                f" CREATE DATABASE {wanted.database}"
            )

    def register(self) -> None:
        """Make table, columns and partitions known as they are now. Raises whatever goes wrong; the next call looks anew."""
        told, self._told = self._told, None
        if self._wanted.provider != "parquet":
            if is_delta(self._place):
                self._with_table(self._wanted)
            return
        with self._still():
            batches = batch_folders(self._place)
            if batches:
                state = read_state(batch_folder(self._place, max(batches)) / STATE_FILE)
                self._told = self._sync(replace(self._wanted, columns=state.columns), batches, told)

    def _sync(self, wanted: Wanted, batches: Mapping[int, Place], told: _Told | None) -> _Told:
        known, made = self._with_table(wanted)
        for statement in to_widen(wanted, known):
            self._spark.sql(statement)
        folder, now_s = _identity(self._place), self._now_s()
        if not known.tracked:
            return _Told(folder, known.created, {}, now_s)
        old = told if told is not None and told.folder == folder else None
        before: Collection[Values]
        if old is not None and not made and old.entry == known.created and now_s - old.looked_s < LOOK_EVERY_S:
            before, looked_s = old.parts, old.looked_s
        else:
            before, looked_s = () if made else self._partitions(), now_s
        there: Mapping[Values, str] = old.parts if old is not None else {}
        parts = {values: where for values, where in there.items() if int(values[0] or 0) in batches}
        looked_at = {values[0] for values in parts}
        for batch, place in batches.items():
            if str(batch) not in looked_at:
                parts |= _partitions_of(place, len(wanted.partition_by))
        for statement in (*to_add(wanted, parts, before), *to_drop(wanted, parts, before)):
            self._spark.sql(statement)
        return _Told(folder, known.created, parts, looked_s)

    def _with_table(self, wanted: Wanted) -> tuple[Known, bool]:
        """The entry, made if there is none; and whether it was made. Raises UsageError when the name is something else's."""
        for _ in range(_TRIES):
            known = self._known()
            if known is not None:
                return known, False
            try:
                self._spark.sql(to_create(wanted))
            except Exception as error:
                if _condition(error) != _THERE_ALREADY:
                    raise
                continue
            made = self._known()
            if made is not None:
                return made, True
        raise LoaderError(f"{wanted.full_name} comes and goes: who else makes and drops it?")

    def _known(self) -> Known | None:
        """The entry as it is; None: there is none. Raises UsageError when the name is something else's."""
        try:
            rows = self._spark.sql(f"DESCRIBE TABLE EXTENDED {self._wanted.full_name}").collect()
        except Exception as error:
            if _condition(error) == _NOT_THERE:
                return None
            raise
        known = known_of((row["col_name"], row["data_type"]) for row in rows)
        if why := why_not_ours(self._wanted, known):
            raise UsageError(
                f"spark.table = {self._wanted.database}.{self._wanted.name} {why}. Give another name for {self._place}, or"
                " make this one free (DROP TABLE of an external table leaves its files where they are)"
            )
        return known

    def _partitions(self) -> set[Values]:
        rows = self._spark.sql(f"SHOW PARTITIONS {self._wanted.full_name}").collect()
        return {values_of(row["partition"]) for row in rows}

    def _still(self) -> contextlib.AbstractContextManager[None]:
        """Meanwhile no compaction exchanges the folder."""
        if not isinstance(self._place, Path) or not self._place.exists():
            return contextlib.nullcontext()
        return locked_table(self._place, fcntl.LOCK_SH, _LOCK_WAIT_S)


def _identity(place: Place) -> object:
    return os.stat(place).st_ino if isinstance(place, Path) else True


def _partitions_of(folder: Place, depth: int) -> dict[Values, str]:
    """The partitions of a batch: its folder, or those `depth` levels below it."""
    found: list[tuple[str, Place]] = [(folder.name, folder)]
    for _ in range(depth):
        found = [
            (f"{names}/{below.name}", below)
            for names, one in found
            for below in one.iterdir()
            if not below.name.startswith(("_", "."))
        ]
    return {values_of(names): in_spark(place) for names, place in found}


def _condition(error: Exception) -> str | None:
    """Spark's own name of an error."""
    asked: Any = getattr(error, "getCondition", None)
    return str(asked()) if asked is not None else None


class Registrar:
    """Asks for the registration in a thread of its own. `look` is for any thread, the other methods are for one."""

    def __init__(
        self,
        check: Callable[[], None],
        register: Callable[[], None],
        stopped: Callable[[], bool] = lambda: False,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`stopped`: whether whoever waits here has been asked to end."""
        self.problem = ""
        """Why the metastore does not know the table as it is; empty when it does."""
        self._check = check
        self._register = register
        self._awaited = True
        """Whether `start` still waits, so that it can raise a refusal."""
        self._refused: UsageError | None = None
        """What `start` raises; nothing is registered then."""
        self._changed = threading.Condition()
        self._wanted = True
        self._busy_since_s: float | None = None
        self._stopped = stopped
        self._now_s = now_s
        self._ended = False
        self._answered = False
        self._said_s: float | None = None
        self._log = get_logger()

    def start(self, wait_s: float = START_WAIT_S) -> None:
        """Look whether the name is free, then tell what there is. Raises UsageError for a name that is something else's; who
        does not answer within `wait_s`, or until a stop, is not waited for."""
        threading.Thread(target=self._run, name="metastore", daemon=True).start()
        with self._changed:
            if not self._wait_for(lambda: self._answered, wait_s, 0) and not self._stopped():
                self._note(LoaderError(f"the metastore has not answered for {wait_s:g} s"))
            self._awaited = False
            if self._refused is not None:
                raise self._refused

    def committed(self) -> None:
        """There is a new batch."""
        with self._changed:
            self._wanted = True
            self._changed.notify_all()
            self.look()

    def look(self) -> str:
        """The problem as it is now; of a metastore that hangs nothing else tells."""
        with self._changed:
            busy_s = 0.0 if self._busy_since_s is None else self._now_s() - self._busy_since_s
            if busy_s >= SAY_EVERY_S:
                self._note(LoaderError(
                    f"the metastore has not answered for {busy_s:.0f} s, or a compaction of the table is at work"
                ))  # fmt: skip
            return self.problem

    def end(self, wait_s: float = START_WAIT_S) -> None:
        """Wait until all is told, `wait_s` at most, and shorter with a stop; not for one that has never answered."""
        with self._changed:
            limit_s = wait_s if self._answered else 0
            told = self._wait_for(lambda: not self._wanted and self._busy_since_s is None, limit_s, STOP_WAIT_S)
            if not told and not self.problem:
                self._note(LoaderError("the metastore was not told all before the end"))
            self._ended = True
            self._changed.notify_all()

    def _wait_for(self, done: Callable[[], bool], wait_s: float, stop_wait_s: float) -> bool:
        """Whether it came about within `wait_s`; once a stop is asked for, within `stop_wait_s` of the beginning."""
        begun_s = self._now_s()
        while not done():
            limit_s = min(wait_s, stop_wait_s) if self._stopped() else wait_s
            left_s = begun_s + limit_s - self._now_s()
            if left_s <= 0:
                return False
            self._changed.wait(min(left_s, _STEP_S))
        return True

    def _run(self) -> None:
        free = False
        while self._next():
            failure: Exception | None = None
            try:
                if not free:
                    self._look_at_name()
                    free = True
                self._register()
            except Exception as error:  # noqa: BLE001  Spark, py4j and the metastore have errors of their own; no commit depends on it
                failure = error
            with self._changed:
                if failure is None:
                    self.problem = ""
                elif failure is not self._refused:
                    self._note(failure)
                self._busy_since_s = None
                self._changed.notify_all()

    def _look_at_name(self) -> None:
        """Raises UsageError when it is something else's: for `start`, and once that has gone on, a problem like others."""
        try:
            self._check()
        except UsageError as error:
            with self._changed:
                self._refused = error if self._awaited else None
            raise
        finally:
            with self._changed:
                self._answered = True
                self._changed.notify_all()

    def _next(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._wanted or self._ended or self._refused is not None)
            ended = self._ended or self._refused is not None
            self._wanted, self._busy_since_s = False, None if ended else self._now_s()
            return not ended

    def _note(self, error: Exception) -> None:
        if self._ended:
            return  # the session is being closed
        self.problem = str(error) if isinstance(error, RocketcrewError) else short(error)
        now = self._now_s()
        if self._said_s is None or now - self._said_s >= SAY_EVERY_S:
            self._said_s = now
            self._log.warning("table_not_registered", reason=self.problem)


def registrar_of(
    spark: Any, table: str, place: Place, provider: str, partition_by: Sequence[str], stopped: Callable[[], bool]
) -> Registrar:
    """Of the table at `place`, of a format named `provider`, in that session's metastore; `table` as in the settings."""
    database, _, name = table.partition(".")
    wanted = Wanted(database, name, provider, in_spark(place), partition_by=tuple(partition_by))
    metastore = Metastore(spark, wanted, place)
    return Registrar(metastore.check, metastore.register, stopped)
