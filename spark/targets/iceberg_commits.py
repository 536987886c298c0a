"""The commits of an Iceberg table: what they require of it, what they change, and what a table and a snapshot say they are.

pyiceberg's Transaction keeps one requirement of a kind: ours are given to the catalog directly. Why they are: iceberg.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final

from ..iceberg_spark import JavaCatalog
from ..plan import Plan

MAIN: Final = "main"
TAG: Final = "rocketcrew"
BRANCH: Final = "rocketcrew-"
BATCH, PLAN, SNAPSHOT = "rocketcrew.batch", "rocketcrew.plan", "rocketcrew.snapshot"
"""Table properties; the first two are in the summary of a snapshot too."""
MERGED: Final = "rocketcrew.merged"
"""In the summary of a snapshot that has made small files into large ones: the newest batch at that time."""
DELETE_OLD: Final = "write.metadata.delete-after-commit.enabled"

Commit = Callable[[Any, Any, Any], object]
"""pyiceberg's `Catalog.commit_table`: table, requirements, updates."""


def deletes_old(properties: Mapping[str, str]) -> bool:
    """Whether a commit deletes old versions of the metadata: Java takes the word in any case."""
    return properties.get(DELETE_OLD, "").lower() == "true"


def commit_table(table: Any, requirements: Any, updates: Any) -> Any:
    """Have the table's catalog make the transaction. Raises CommitFailedException when a requirement does not hold."""
    had = {one.metadata_file for one in table.metadata.metadata_log}
    answer = table.catalog.commit_table(table, requirements, updates)
    by_java = isinstance(table.catalog, JavaCatalog)  # which has done it
    if not by_java and deletes_old(answer.metadata.properties):  # as pyiceberg's Table does after its own
        for name in sorted(had - {one.metadata_file for one in answer.metadata.metadata_log}):
            with suppress(OSError):
                table.io.delete(name)
    return answer


def batch_of(table: Any) -> int:
    """The number of our last commit, 0 before the first."""
    return int(table.properties[BATCH])


def plan_of(table: Any) -> str:
    """The plan that our last commit was."""
    return str(table.properties[PLAN])


def mark_of(snapshot: Any) -> tuple[int, str] | None:
    """Batch and plan that a snapshot says it is; None for one of somebody else."""
    # Not `in` and [] of the summary itself, which know no missing key.
    said: dict[str, str] = snapshot.summary.additional_properties if snapshot.summary else {}
    return (int(said[BATCH]), str(said.get(PLAN))) if BATCH in said else None


def made_with(snapshot: Any) -> int | None:
    """The batch that a snapshot of ours is, or after which it has merged files; None for one of somebody else."""
    mark = mark_of(snapshot)
    if mark is not None:
        return mark[0]
    said: dict[str, str] = snapshot.summary.additional_properties if snapshot.summary else {}
    return int(said[MERGED]) if MERGED in said else None


def snapshot_of(table: Any, ref: str) -> int | None:
    """The snapshot at which a branch or tag is."""
    found = table.refs().get(ref)
    return None if found is None else int(found.snapshot_id)


def requirements(table: Any, refs: Iterable[str] = (MAIN, TAG)) -> tuple[Any, ...]:
    """What must still be as it is in `table`, for our commit to be made. `refs`: names of branches and tags."""
    import pyiceberg.table.update

    made: Any = pyiceberg.table.update  # its classes take names that type checkers do not see
    where = (made.AssertRefSnapshotId(ref=name, snapshot_id=snapshot_of(table, name)) for name in refs)
    return (made.AssertTableUUID(uuid=table.metadata.table_uuid), *where)


class Unchanged:
    """A requirement: the table's metadata is what was looked at. It has no form in which a server could be asked."""

    def __init__(self, table: Any) -> None:
        self._metadata = table.metadata

    def validate(self, metadata: Any) -> None:
        """Raises CommitFailedException when `metadata`, which the commit would replace, is another."""
        from pyiceberg.exceptions import CommitFailedException

        if metadata != self._metadata:
            raise CommitFailedException("the table was changed since it was looked at")


def unchanged(table: Any) -> tuple[Any, ...]:
    """That requirement, where requirements are checked here, and just the metadata that was checked is replaced.

    To expire a snapshot removes each branch and tag at it, also one that was made since the look. A REST server can only be
    asked for what is known of.
    """
    return (Unchanged(table),) if judges_here(table) else ()


def came_next(table: Any, answer: Any) -> bool:
    """Whether the commit that was answered so has replaced just the metadata of `table`: nothing was made between them.

    What a REST server has been asked for without knowing of, as a branch since the look, is not seen otherwise; a tag that an
    expiry has removed with its snapshot is not even in the answer. A server that keeps no log of the metadata proves nothing.
    """
    before = answer.metadata.metadata_log
    return bool(before) and before[-1].metadata_file == table.metadata_location


def judges_here(table: Any) -> bool:
    """Whether requirements are checked in this process, so that what has failed will not be made later."""
    from pyiceberg.catalog import MetastoreCatalog

    return isinstance(table.catalog, MetastoreCatalog | JavaCatalog)


def moves(table: Any, plan: Plan, snapshot: int) -> tuple[Any, ...]:
    """The updates that make `plan` the newest batch: `main` and the tag at its snapshot, the properties, no branch."""
    import pyiceberg.table.update

    made: Any = pyiceberg.table.update
    gone = made.RemoveSnapshotRefUpdate(ref_name=BRANCH + plan.id)
    return (*at(table, snapshot, {BATCH: str(plan.batch), PLAN: plan.id}), gone)


def at(table: Any, snapshot: int, named: Mapping[str, str] | None = None) -> tuple[Any, ...]:
    """The updates by which the newest batch is in `main` at that snapshot: `main`, the tag, the properties with `named`."""
    import pyiceberg.table.update

    made: Any = pyiceberg.table.update
    kept = table.refs()[MAIN]
    return (
        made.SetSnapshotRefUpdate(
            ref_name=MAIN, type="branch", snapshot_id=snapshot, max_ref_age_ms=kept.max_ref_age_ms,
            max_snapshot_age_ms=kept.max_snapshot_age_ms, min_snapshots_to_keep=kept.min_snapshots_to_keep,
        ),
        made.SetSnapshotRefUpdate(ref_name=TAG, type="tag", snapshot_id=snapshot),
        made.SetPropertiesUpdate(updates={**(named or {}), SNAPSHOT: str(snapshot)}),
    )  # fmt: skip


def is_over(ref: str, batch: int) -> bool:
    """Whether `ref` is the branch of a plan whose number is gone: it can't become a batch any more."""
    number = ref.removeprefix(BRANCH).partition("-")[0]
    return ref.startswith(BRANCH) and number.isdigit() and int(number) <= batch
