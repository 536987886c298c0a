"""The staging folder as the loader sees it: sealed segments come in, plans freeze, segments go.

    ready/<worker>-<seq>.arrows   sealed by workers; the loader only reads, moves to bad/, or deletes them
    outcomes/<name>.facts         what became of records without rows, and what is settled: sealed, so it never changes. The
                                  supervisor may replace it by one with another name that contains it (durable/facts.py).
                                  Read BEFORE ready/ is listed: what is settled has its rows in what is listed then, or in
                                  the table
    outcomes/<plan id>.left       the loader's: what facts that a table has say of records that it has not (gaps.py)
    plan/<id>.json                a frozen plan. Its rename into place is what freezes it
    plan/<id>.done                the same file once the table has the plan's rows: only deletions are left
    plan/<id>.staged/             the plan's rows as Parquet, made anew whenever the plan is run
    plan/lock                     flock: one loader per folder
    bad/<name>, bad/<name>.reason.json   what could not be loaded, and why; never deleted by us
    loader.json                   the loader's status (status.py)

Nothing here decides anything; what may be done when is the business of loader.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..conf.segment_format import (
    BAD_DIR,
    EPOCH_FILE,
    OPEN_DIR,
    OUTCOMES_DIR,
    PLAN_DIR,
    READY_DIR,
    REASON_SUFFIX,
    SEGMENT_NAME,
    ready_files,
)
from ..durable.facts import FACTS_SUFFIX, LEFT_SUFFIX, facts_from_bytes, facts_to_text
from ..durable.files import (
    files_with,
    make_folders,
    read_sealed,
    remove_tree,
    sync_path,
    try_lock,
    write_atomically,
)
from ..durable.intervals import OffsetSet
from ..durable.outcomes import Outcomes
from .epochs import NO_REQUEST, EpochRequest
from .errors import BadSegmentError, LoaderError, unusable
from .plan import Plan, SegmentFacts, plan_from_json, plan_to_json
from .segments import read_facts

LOCK_WAIT_S = 5.0
LOCK_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class ReadyFile:
    """A file in ready/: sealed, so it never changes. `sealed_ms` is its modification time."""

    path: Path
    bytes: int
    sealed_ms: int


class Staging:
    """One staging folder. Open it with `lock()` before anything is changed."""

    def __init__(self, root: Path) -> None:
        """Creates what is missing below `root`; raises UsageError when that can't be done, OSError where the disk is full."""
        self.root = root
        self.ready = root / READY_DIR
        self.plans = root / PLAN_DIR
        self.bad = root / BAD_DIR
        self.outcomes = root / OUTCOMES_DIR
        self._known: dict[Path, tuple[tuple[int, int], Outcomes]] = {}
        """Files of facts that were read, with their inodes and times: a file never changes, and a loader looks often."""
        self._union: tuple[dict[Path, Outcomes], Outcomes] = {}, Outcomes()
        """What `noted` found last, and all of it together."""
        try:
            for folder in (self.ready, self.plans, self.bad, self.outcomes):
                make_folders(folder)
        except OSError as error:
            raise unusable(f"the staging folder {root} can't be used", error) from None
        self._lock: int | None = None

    def lock(
        self,
        wait_s: float = LOCK_WAIT_S,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Make this process the folder's only loader, until `unlock` or its end; what an earlier one left half made is swept
        before anything is written, as it may hold all the room that the disk has. Raises LoaderError.

        It waits a little: a member that starts has the lock while it deletes such leftovers (supervisor/slot.py).
        """
        path = self.plans / "lock"
        deadline = clock() + wait_s
        while (descriptor := try_lock(path)) is None and clock() < deadline:
            sleep(LOCK_POLL_S)
        if descriptor is None:
            holder = path.read_text(encoding="utf-8", errors="replace").strip() or "unknown"
            raise LoaderError(
                f"another loader (process {holder}) works on {self.root}: stop it, or give this one another folder"
            )
        self._lock = descriptor
        self.sweep()
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)

    def unlock(self) -> None:
        """Let the next loader in."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def list_ready(self) -> list[ReadyFile]:
        """What lies in ready/, in the order in which it is loaded."""
        return [
            ReadyFile(path, state.st_size, state.st_mtime_ns // 1_000_000) for path, state in ready_files(self.ready)
        ]

    def facts(self) -> dict[str, Outcomes]:
        """The files of facts by name; only looks. Damaged files, and links that lead nowhere, are passed over."""
        return {path.name: facts for path, facts in self._look().items() if path.suffix == FACTS_SUFFIX}

    def _look(self) -> dict[Path, Outcomes]:
        """All files of facts, and of what is left of such."""
        found = read_sealed(self.outcomes, FACTS_SUFFIX, LEFT_SUFFIX, read=self._read)
        self._known = {path: known for path, known in self._known.items() if path in found}
        return found

    def _named(self, *suffixes: str) -> list[Path]:
        return files_with(self.outcomes, *suffixes)

    def _read(self, path: Path) -> Outcomes:
        """What a file of facts says. Raises ValueError, FileNotFoundError."""
        status = path.stat()
        file = status.st_ino, status.st_mtime_ns
        before = self._known.get(path)
        if before is not None and before[0] == file:
            return before[1]
        facts = facts_from_bytes(path.read_bytes(), path)
        self._known[path] = file, facts
        return facts

    def facts_of(self, plan: Plan) -> Outcomes:
        """What the plan's files of facts say. One that is gone is contained in one of a later plan."""
        found = self.facts() if plan.facts else {}
        return Outcomes.union(found[name] for name in plan.facts if name in found)

    def set_damaged_aside(self) -> None:
        """Files that say what became of records, or what is settled, and cannot be read: they go to bad/. Those of a later
        version stay: raises LaterVersionError."""
        for path in self._named(FACTS_SUFFIX, LEFT_SUFFIX):
            try:
                facts_from_bytes(path.read_bytes(), path)
            except FileNotFoundError:
                continue
            except ValueError as error:
                self._set_aside(path, str(error), OffsetSet())

    def note(self, name: str, outcomes: Outcomes) -> None:
        """Have the next batch take these outcomes too: those of a segment that is deleted without one."""
        if outcomes:
            write_atomically(self.outcomes / f"{name}{FACTS_SUFFIX}", facts_to_text(outcomes), durable=True)

    def noted(self) -> tuple[tuple[str, ...], Outcomes]:
        """The names of all files of facts, and what these and what is left say that is not folded into the loaded set; only
        looks. Damaged files are passed over. What is settled has its rows in what is listed in ready/ after this, or in the
        table."""
        notes = self._look()
        if notes != self._union[0]:
            self._union = notes, Outcomes.union(notes.values())
        return tuple(path.name for path in notes if path.suffix == FACTS_SUFFIX), self._union[1]

    def left(self) -> dict[Path, Outcomes]:
        """The files with what earlier commits left; only looks. Damaged ones are passed over. There are several after a
        take-over, or a kill."""
        return {path: one for path, one in self._look().items() if path.suffix == LEFT_SUFFIX}

    def leave(self, plan_id: str, left: Outcomes, before: Mapping[Path, Outcomes]) -> None:
        """Have `left`, which is in the table's outcomes as far as it says what became of records, for the next plans; then
        the files `before`, which it contains, go. Written also when it is empty: it shows that a table was loaded from here.
        """
        if [(path.suffix, one) for path, one in before.items()] == [(LEFT_SUFFIX, left)]:
            return
        path = self.outcomes / f"{plan_id}{LEFT_SUFFIX}"
        write_atomically(path, facts_to_text(left), durable=True)
        for old in before.keys() - {path}:
            old.unlink(missing_ok=True)

    def was_loaded(self) -> bool:
        """Whether a commit has taken something from here, of whatever table."""
        return bool(self._named(LEFT_SUFFIX))

    def unloaded_names(self) -> set[str]:
        """The segments that are sealed or still open: all that workers have written and the table does not have yet."""
        folders = (self.ready, self.root / OPEN_DIR)
        return {
            path.name
            for folder in folders
            if folder.is_dir()
            for path in folder.iterdir()
            if is_segment_name(path.name)
        }

    def epoch_request(self) -> EpochRequest:
        """What `reset --reprocess` asks for. Raises LoaderError when it can't be read: passing it over would drop rows."""
        path = self.root / EPOCH_FILE
        try:
            return EpochRequest.from_json(path.read_bytes(), path)
        except FileNotFoundError:
            return NO_REQUEST
        except ValueError as error:
            raise LoaderError(f"{path} is not understood: {error}. Run `rocketcrew reset --reprocess` again") from None

    def freeze(self, plan: Plan) -> None:
        """Write the plan for good: on disk, and never changed again."""
        write_atomically(self._frozen(plan.id), plan_to_json(plan), durable=True)

    def mark_done(self, plan_id: str) -> None:
        """The plan's rows are in the table: one rename says so."""
        self._frozen(plan_id).replace(self._done(plan_id))
        sync_path(self.plans)

    def forget(self, plan_id: str) -> None:
        """Drop a plan: after its segments are deleted, or because it will never be committed."""
        remove_tree(self.staged(plan_id))
        self._frozen(plan_id).unlink(missing_ok=True)
        self._done(plan_id).unlink(missing_ok=True)

    def staged(self, plan_id: str) -> Path:
        """The folder of the plan's rows as Parquet."""
        return self.plans / f"{plan_id}.staged"

    def frozen_plans(self) -> list[Plan]:
        """Plans that may or may not be in the table yet. There is one at most, unless somebody copied files."""
        return self._read_plans(".json")

    def done_plans(self) -> list[Plan]:
        """Plans that are in the table, with deletions left to do."""
        return self._read_plans(".done")

    def _read_plans(self, suffix: str) -> list[Plan]:
        plans: list[Plan] = []
        for path in sorted(self.plans.glob(f"[!.]*{suffix}")):
            try:
                plans.append(plan_from_json(path.read_text(encoding="utf-8"), path))
            except ValueError as error:
                # Safe to set aside: were it committed, its records are in the table's loaded set and dropped next time.
                self._set_aside(path, f"not a plan that this program understands: {error}", OffsetSet())
        return plans

    def sweep(self) -> None:
        """Delete what an earlier run left half made: drafts, and Parquet copies of segments (made anew when needed)."""
        for path in self.plans.glob(".*.new"):
            path.unlink(missing_ok=True)
        for path in self.plans.glob("*.staged"):
            try:
                remove_tree(path)
            except OSError as error:  # it names the file alone, as of another user's copies
                raise OSError(error.errno, error.strerror or str(error), str(path)) from error
        for path in self.outcomes.glob(f".*{LEFT_SUFFIX}.new"):
            path.unlink(missing_ok=True)
        for path in self.outcomes.glob(f".*{FACTS_SUFFIX}.new"):
            if is_segment_name(path.name[1:].removesuffix(f"{FACTS_SUFFIX}.new")):  # others are the supervisor's
                path.unlink(missing_ok=True)

    def delete_segment(self, name: str) -> None:
        """Delete a segment whose rows are in the table; missing is fine."""
        (self.ready / name).unlink(missing_ok=True)

    def delete_facts(self, name: str) -> None:
        """Delete a file of facts that the table has; missing is fine."""
        (self.outcomes / name).unlink(missing_ok=True)

    def quarantine(self, name: str, reason: str, offsets: OffsetSet, *, apart: bool = False) -> None:
        """Move a file from ready/ to bad/, the reason written first. `offsets`: its records as far as known; `apart`: they
        are not those that the table knows by these offsets."""
        self._set_aside(self.ready / name, reason, offsets, apart=apart)

    def _set_aside(self, path: Path, reason: str, offsets: OffsetSet, *, apart: bool = False) -> None:
        name = path.name
        attempt = 0
        while (self.bad / name).exists():
            attempt += 1
            name = f"{path.name}.{attempt}"
        told = {
            "version": 1, "file": name, "reason": reason, "held": offsets.hull().to_json(), "records": offsets.to_json(),
            **({"apart": True} if apart else {}),
        }  # fmt: skip
        write_atomically(self.bad / f"{name}{REASON_SUFFIX}", json.dumps(told, indent=1) + "\n", durable=True)
        path.rename(self.bad / name)

    def quarantined(self) -> tuple[OffsetSet, list[Path], list[Path]]:
        """The records of the files in bad/ as far as they are known, the files of which nothing is known, and those whose
        records are other ones than the table knows by their offsets."""
        records: list[OffsetSet] = []
        unknown: list[Path] = []
        apart: list[Path] = []
        for reason in sorted(self.bad.glob(f"*{REASON_SUFFIX}")):
            file = self.bad / reason.name.removesuffix(REASON_SUFFIX)
            if not file.exists():
                continue
            found = OffsetSet()
            with contextlib.suppress(ValueError, KeyError, TypeError, OSError):
                told = json.loads(reason.read_bytes())
                if told.get("apart"):
                    apart.append(file)
                    continue
                found = OffsetSet.from_json(told["records"])
            if found:
                records.append(found)
            else:
                unknown.append(file)
        return OffsetSet.union(records), unknown, apart

    def unknown_in_bad(self) -> bool:
        """Whether a file in bad/ is there whose records could not be made out: any gap may be its."""
        for reason in self.bad.glob(f"*{REASON_SUFFIX}"):
            with contextlib.suppress(ValueError, KeyError, TypeError, OSError):
                if (self.bad / reason.name.removesuffix(REASON_SUFFIX)).exists() and not json.loads(
                    reason.read_bytes()
                )["held"]:
                    return True
        return False

    def bad_segments(self) -> tuple[int, OffsetSet]:
        """How many files lie in bad/, and around which records they are: those are not to be taken for loaded.

        So a segment that is repaired may be put back into ready/ and is loaded.
        """
        held: list[OffsetSet] = []
        count = 0
        for reason in self.bad.glob(f"*{REASON_SUFFIX}"):
            if not (self.bad / reason.name.removesuffix(REASON_SUFFIX)).exists():
                continue
            count += 1
            try:
                held.append(OffsetSet.from_json(json.loads(reason.read_bytes())["held"]))
            except (ValueError, KeyError, TypeError, OSError):
                continue
        return count, OffsetSet.union(held)

    def _frozen(self, plan_id: str) -> Path:
        return self.plans / f"{plan_id}.json"

    def _done(self, plan_id: str) -> Path:
        return self.plans / f"{plan_id}.done"


def inspect(file: ReadyFile) -> SegmentFacts | str | None:
    """The facts of a file in ready/, or why it is bad; None when somebody took it away meanwhile.

    Raises LaterVersionError: it is not set aside, as its rows would be missing without a word, and no other is loaded.
    """
    if not is_segment_name(file.path.name):
        return "not named as segments are: <worker>-<number>.arrows"
    try:
        return read_facts(file.path)
    except BadSegmentError as error:
        return str(error)
    except FileNotFoundError:
        return "a link that leads nowhere" if file.path.is_symlink() else None


def is_segment_name(name: str) -> bool:
    """Whether a file is called as segments are."""
    return SEGMENT_NAME.fullmatch(name) is not None
