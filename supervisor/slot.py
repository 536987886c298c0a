"""The supervisor's place on disk: `data_dir/<group>/<slot>`, a slot being a folder locked by flock.

A slot is never named by client id, which changes at each start: a start takes the lowest slot that nobody holds, so that
one supervisor that is restarted finds its own state, and several on one host get one each. What lies in other slots
that nobody holds (a scaled-down host, a killed neighbour) is taken over by a start: their journal is merged, their segments
moved. A member that runs takes only what is sealed there (neighbours.py).

What a killed supervisor leaves besides results and journal is its control socket, in the slot, whose lock says that its last
owner is dead: the next start replaces it. Shared memory and the forkserver's socket have no names and go with their last
process.

One client id is in a group once: the second is refused at its start (MQClientInstance.registerConsumer). Java knows the
consumers of its own process. Here a client is a process, so the lock is a file beside the group's slots, which goes with the
process however it ends. Two members with one id would both take the queues that fall to that id; two broadcasting ones would
write one file of offsets.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import time
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import structlog

from ..conf.segment_format import (
    BAD_DIR,
    EPOCH_FILE,
    LEDGER_AT,
    OPEN_DIR,
    OUTCOMES_DIR,
    PLAN_DIR,
    READY_DIR,
    SEGMENT_NAME,
    segment_name,
)
from ..durable.facts import FACTS_SUFFIX, LEFT_SUFFIX, facts_from_bytes
from ..durable.files import (
    CALLS,
    FileCalls,
    make_folders,
    read_sealed,
    remove_tree,
    sync_path,
    try_lock,
    write_atomically,
)
from ..durable.intervals import Intervals, OffsetSet
from ..durable.mounts import Mount, check_local
from ..durable.outcomes import SETTLED
from ..durable.room import NO_ROOM, unusable
from ..durable.versions import LaterVersionError
from ..remoting.errors import UsageError
from ..remoting.queues import MessageQueue
from ..spark.ledger_place import known_ledger
from ..workers.cells import CELLS_FILE, CellFile
from ..workers.sealing import open_segments
from ..workers.unreported import shown
from .control import SOCKET_NAME
from .core.journal import JournalState
from .core.outcome_notes import by_queue
from .journal_file import keep_journal, read_journal
from .member.stale_locks import take_over_locks
from .pool.charges_file import take_over_charges
from .slot_versions import JOURNAL_FILE, check_slot

SLOTS_MAX = 256
"""Supervisors of one group on one host; more is a sign of a loop that starts them."""
PRIVATE = 0o700
NEEDS_LOCAL = "locks, mapped cells and the journal are kept there, and another host could take them for its own"
MEMBER_FILE = "member"
LOADER_LOCK = "lock"
"""In plan/; held by the loader of that staging folder (spark/staging.py)."""

CLIENTS_FOLDER = "clients"
TURN_TRIES = 40
TURN_PAUSE_S = 0.05
CLIENTS_LOOKED_AT_MAX = 4096
"""Lock files, at one start; SLOTS_MAX of them at most are of members that run, and the next start looks at more."""
NAME_CHARACTERS_MAX = 200

log = structlog.get_logger("rocketcrew.slot")


@dataclass(slots=True)
class Slot:
    """A locked slot. The lock goes with the process, however it ends."""

    path: Path
    group: str
    lock_fd: int
    member: str = ""
    """The client id when broadcasting: what one member finished says nothing about another, so a slot is one member's."""

    @property
    def key_group(self) -> str:
        """The group in the keys of rows: followed by the member's id when broadcasting."""
        return f"{self.group}@{self.member}" if self.member else self.group

    @property
    def segments(self) -> Path:
        return self.path / "segments"

    @property
    def journal(self) -> Path:
        return self.path / JOURNAL_FILE

    @property
    def table(self) -> Path:
        """Where the loader puts results unless `spark.target` says otherwise: shared by the slots of a group."""
        return self.path.parent / "table"

    def sealed_tokens(self) -> set[tuple[str, int]]:
        """(worker id, sequence number) of every sealed segment that is still there."""
        found = (SEGMENT_NAME.fullmatch(path.name) for path in (self.segments / READY_DIR).iterdir())
        return {(match["worker"], int(match["seq"])) for match in found if match}

    def left_behind(self, sealed: Iterable[tuple[str, int]]) -> list[Path]:
        """What earlier runs left to be salvaged: open segments, and those of the `sealed` ones, named as if they were open.
        Which records the latter hold is not known: a start that failed may have salvaged them."""
        named = [self.segments / OPEN_DIR / segment_name(worker, seq) for worker, seq in sorted(sealed)]
        return [*open_segments(self.segments), *named]

    def release(self) -> None:
        os.close(self.lock_fd)


def take_slot(
    data_dir: Path,
    group: str,
    member: str = "",
    *,
    mode: int = PRIVATE,
    mounts: Iterable[Mount] | None = None,
    remove: Callable[[Path], None] = remove_tree,
    sleep: Callable[[float], None] = time.sleep,
) -> Slot:
    """Lock the lowest free slot of the group, making it if need be. Raises UsageError when the folder is unusable,
    RocketcrewError when its disk is full. What dead loaders of all its slots have left of copies is deleted first.

    `mode`: of a slot's folder that is made, whose segments hold what messages say. `mounts`: None for those of this process.
    `member` is the client id of a broadcasting member: it takes a new slot or its own, never another's.
    """
    if doubt := check_local("supervisor.data_dir", data_dir, NEEDS_LOCAL, mounts):
        log.warning("folder_may_be_shared", reason=doubt)
    home = data_dir / group
    _remove_left_copies(home, remove)
    unsuited = 0
    refusal: PermissionError | None = None
    try:
        for number in range(SLOTS_MAX):
            path = home / str(number)
            try:
                make_folders(path, mode)
            except PermissionError as error:
                raise refusal or error from None
            try:
                fd = try_lock(path / "lock")
            except PermissionError as error:  # another user's, as one run by sudo leaves; `adopt` says so
                refusal = refusal or error
                continue
            if fd is None and member and member_of(path) == member:
                # Another one that starts looks at it for a moment: not in a second slot, where nothing is known of the first.
                fd = _turn(path / "lock", TURN_PAUSE_S, sleep)
            if fd is None:
                continue
            slot = Slot(path, group, fd, member)
            try:
                if _suits(slot):
                    _make_folders(slot.segments)
                    _take_request(slot)
                    return slot
            except BaseException:
                slot.release()
                raise
            slot.release()
            unsuited += 1
        if refusal is not None:
            raise refusal
    except OSError as error:
        raise unusable(data_dir, error) from error
    if unsuited:
        raise UsageError(
            f"all {SLOTS_MAX} slots in {home} are taken, {unsuited} of them by members of group {group} that do not run: a"
            " broadcasting member that comes back with another client id leaves one each time. Give each member a"
            f" cluster.client_ip and cluster.instance_name of its own that stay. In a slot, the file {MEMBER_FILE} names its"
            " member, and segments/ has its results: remove the folders of those that never come back"
        )
    raise UsageError(
        f"all {SLOTS_MAX} slots in {home} are held by running supervisors of group {group}: stop some, or give"
        " this one a supervisor.data_dir of its own"
    )


def slot_mode(master: str) -> int:
    """Executors and servers of a cluster may run as other users and read staged files by path: there the umask decides."""
    return PRIVATE if master.startswith("local") else 0o777


def adopt(
    slot: Slot, told: dict[str, str] | None = None
) -> tuple[JournalState, dict[MessageQueue, Intervals], list[str]]:
    """The state of this slot joined with that of every other slot that nobody holds; what is settled, as files of facts say;
    and the names of those slots. `told` gets those that cannot be taken over, with the reason."""
    state = _known_for_good(slot)
    adopted: list[str] = []
    told = {} if told is None else told
    for path in other_slots(slot):
        try:
            with dead_slot(slot, path) as other:
                if other is None:
                    continue
                forget_targets(path)
                if member_of(path) == slot.member and _adopt_one(slot, other, state, told):
                    adopted.append(path.name)
        except OSError as error:  # another user's, most likely: it keeps nobody from starting
            if error.errno in NO_ROOM:
                raise
            refuse(
                path.name, told, reason=f"{error}; if `reset --reprocess` was asked for there, a new slot does not know it",
                remedy=f"give {path} and what is in it to the user of this member, and start again",
            )  # fmt: skip
    return state, by_queue(_settled_facts(slot.segments)), adopted


def other_slots(slot: Slot) -> list[Path]:
    """The other slots of the group."""
    return sorted(path for path in slot.path.parent.iterdir() if path != slot.path and path.name.isdigit())


@contextlib.contextmanager
def dead_slot(slot: Slot, path: Path) -> Generator[Slot | None]:
    """The other slot at `path`, locked meanwhile; None where it is held, or no supervisor has had it."""
    lock = path / "lock"
    fd = try_lock(lock) if lock.exists() else None
    try:
        yield None if fd is None else Slot(path, slot.group, fd, slot.member)
    finally:
        if fd is not None:
            os.close(fd)


def _known_for_good(slot: Slot) -> JournalState:
    """What its journal knows, and its cells show (workers/unreported.py). That the journal knows too from here on: the cells
    are cleared soon, and this start may be killed."""
    state = read_journal(slot.journal)
    path = slot.path / CELLS_FILE
    if not path.exists():
        return state
    with contextlib.closing(CellFile(path, 1)) as cells:
        found = sum(state.shown(mq, start, end) for mq, start, end in shown(cells))
    if found:
        keep_journal(slot.journal, state)
    return state


def _settled_facts(segments: Path) -> Iterable[OffsetSet]:
    """What its files of facts say is settled, and what the loader has left of such. Damaged ones are the loader's to name.
    A loader may run: what it deletes is in the table, or in the file that it has written before."""
    found = read_sealed(
        segments / OUTCOMES_DIR, FACTS_SUFFIX, LEFT_SUFFIX, read=lambda path: facts_from_bytes(path.read_bytes(), path)
    )
    return [facts.of_kind(SETTLED) for facts in found.values()]


def _suits(slot: Slot) -> bool:
    """Whether the slot is this member's, or new, and then made this member's."""
    if (slot.path / "segments").is_dir():
        return member_of(slot.path) == slot.member
    (slot.path / MEMBER_FILE).write_text(slot.member)
    return True


def member_of(path: Path) -> str:
    """The client id of the broadcasting member whose slot it is, empty for one of clustering members."""
    try:
        return (path / MEMBER_FILE).read_text()
    except FileNotFoundError:
        return ""


def _adopt_one(slot: Slot, other: Slot, state: JournalState, told: dict[str, str]) -> bool:
    """Take over one dead slot. Its journal goes last, and after ours has been written with what it knew: workers that cannot
    boot, or a kill at any instant, leave one of the two. A repeated take-over changes nothing. Raises OSError, and what its
    journal knows is not in `state` then."""
    forget_socket(other.path)
    if not other.segments.is_dir() or _is_refused(slot, other, told, starts=True):
        return False
    loader_fd = _lock_out_neighbour(other, told)
    if loader_fd is None:
        return False
    try:
        if _is_later(other, told):
            return False
        _remove_copies(other.segments, remove_tree)
        theirs = _known_for_good(other)
        ledger = known_ledger(other.segments)
        if ledger is not None and known_ledger(slot.segments) is None:
            # Before any segment: one without its ledger is delivered again.
            write_atomically(slot.segments / LEDGER_AT, f"{ledger}\n", durable=True)
        # Also before any segment: one from before a reset would be taken for one of its re-run, or the other way round.
        _join_requests(slot.segments, [slot.segments, other.segments])
        _move(slot, other, OPEN_DIR)
        _move_sealed(slot, other)
        # A plan only names segments; those are ours now. Its number is how a function knows the rows that it has had.
        for path in (other.segments / PLAN_DIR).iterdir():
            if path.name != LOADER_LOCK and not path.is_dir():
                os.rename(path, slot.segments / PLAN_DIR / path.name)
        take_over_locks(slot.path, other.path)  # it looks at the cells, which the next line clears
        take_over_charges(slot.path, other.path)
        state.merge(theirs)
        known = other.journal.exists()
        if known:
            keep_journal(slot.journal, state)
            other.journal.unlink()
        return known
    finally:
        os.close(loader_fd)


def has_sealed(path: Path) -> bool:
    """Whether sealed segments lie in the slot at `path`, or what a `take_sealed` has left that was cut short: its first step
    is the journal."""
    folders = (READY_DIR,) if (path / JOURNAL_FILE).exists() else (READY_DIR, BAD_DIR, OUTCOMES_DIR)
    return any(any((path / "segments" / folder).glob("[!.]*")) for folder in folders)


def take_sealed(slot: Slot, other: Slot, told: dict[str, str], calls: FileCalls = CALLS) -> int | None:
    """Have in `slot`, whose member and loader run, what is sealed in the dead slot `other`; how many segments that is, None
    where it is left alone. Raises OSError. A repeated take-over changes nothing, wherever the one before was cut short.

    The journal there is deleted, and before the first segment is here too. What it calls finished has its rows in these
    segments: a start that read it beside others would report that as settled while they wait here, and its loader would take
    them for loaded. Without the journal what is finished and not committed runs again, also what its open segments hold,
    which stay; members that run do that anyway, as its queues are theirs since.
    """
    if not has_sealed(other.path) or _is_refused(slot, other, told, starts=False):
        return None
    loader_fd = _lock_out_neighbour(other, told)
    if loader_fd is None:
        return None
    try:
        if _is_later(other, told):
            return None
        with contextlib.suppress(FileNotFoundError):
            calls.unlink(str(other.journal))
        sync_path(other.path, calls)
        count = _move_sealed(slot, other, calls)
        _remove_copies(other.segments, remove_tree)  # of segments that are our loader's now
        return count
    finally:
        os.close(loader_fd)


def _move_sealed(slot: Slot, other: Slot, calls: FileCalls = CALLS) -> int:
    """What is sealed, and what facts say of it; how many segments.

    Segments are in both folders while the facts move: after a kill, or an error of the disk, somebody else may get either
    folder, and would take for loaded, or for lost, what is settled there without its rows. Twice they do no harm: the second
    loader finds them in the table. A loader that runs here reads facts first: what they call settled has its rows in the
    segments that it lists then, or in bad/.
    """
    sealed = [path for folder in (READY_DIR, BAD_DIR) for path in sorted((other.segments / folder).glob("*"))]
    for path in sealed:
        _share(path, slot.segments / path.parent.name / path.name, calls)
    for folder in (READY_DIR, BAD_DIR) if sealed else ():
        sync_path(slot.segments / folder, calls)
    _move(slot, other, OUTCOMES_DIR, calls)
    for path in sealed:
        with contextlib.suppress(FileNotFoundError):
            calls.unlink(str(path))
    return sum(path.parent.name == READY_DIR for path in sealed)


def _share(path: Path, target: Path, calls: FileCalls) -> None:
    """Have the file at `target` too, or where the disk knows no links, there alone."""
    try:
        calls.link(str(path), str(target))
    except FileExistsError:
        return  # by a take-over that was cut short: a file that is not this one was refused
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        calls.rename(str(path), str(target))


_NO_LINKS: Final = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})


def _move(slot: Slot, other: Slot, folder: str, calls: FileCalls = CALLS) -> None:
    for path in sorted((other.segments / folder).glob("*")):
        calls.rename(str(path), str(slot.segments / folder / path.name))


def _is_refused(slot: Slot, other: Slot, told: dict[str, str], *, starts: bool) -> bool:
    """Whether the slot is to be left alone, which is said then. `starts`: no loader works on `slot` yet."""
    if not starts and (why := _needs_a_start(slot, other)):
        refuse(other.path.name, told, reason=why, remedy="the next start of a member takes it over")
        return True
    known = (known_ledger(one.segments) for one in (slot, other))
    ours, theirs = (ledger.resolve() if ledger else None for ledger in known)  # one may have two names
    has_rows = any(any((other.segments / folder).glob("[!.]*")) for folder in (OPEN_DIR, READY_DIR))
    if has_rows and theirs not in (None, ours) and not (starts and ours is None):
        refuse(
            other.path.name, told, ledger=str(theirs),
            reason="it was loaded with a ledger of its own, whose batches would be delivered again with ours",
            remedy=f"rocketcrew load --staging {other.segments}; then remove that folder",
        )  # fmt: skip
        return True
    if both := _named_as_ours(slot, other):
        refuse(
            other.path.name, told, segment=both[0], segments=len(both),
            reason="a segment of that name is in both slots, and one would replace the other",
            remedy=f"give the one in {other.segments} another name (letters in front of it), and start again",
        )  # fmt: skip
        return True
    return False


def _is_later(other: Slot, told: dict[str, str]) -> bool:
    """Whether a later version has written in the slot, which is said then. No loader runs there: it would change what is read
    here, which may be much."""
    try:
        check_slot(other.path)
    except LaterVersionError as error:
        refuse(
            other.path.name, told, reason=str(error),
            remedy="what is in it waits for a member of that version: its next start takes it over",
        )  # fmt: skip
        return True
    return False


def _needs_a_start(slot: Slot, other: Slot) -> str:
    """Why a member whose loader runs cannot take what is sealed there; empty where it can."""
    request = _bytes_of(other.segments / EPOCH_FILE)
    if request is not None and request != _bytes_of(slot.segments / EPOCH_FILE):
        return "its request of `reset --reprocess` is another one than ours"
    if known_ledger(other.segments) is not None and any((other.segments / PLAN_DIR).glob("[!.]*.json")):
        return "a batch of it may have been delivered, and its number is to be used on"
    return ""


def _bytes_of(path: Path) -> bytes | None:
    with contextlib.suppress(FileNotFoundError):
        return path.read_bytes()
    return None


def refuse(name: str, told: dict[str, str], *, reason: str, **more: Any) -> None:
    """Say why a slot is not taken over: once, as members that run look again and again. `told`: reasons by slot."""
    if told.get(name) != reason:
        told[name] = reason
        log.warning("slot_not_taken_over", slot=name, reason=reason, **more)


def _lock_out_neighbour(other: Slot, told: dict[str, str]) -> int | None:
    """The lock of its loader; None where one runs, or nobody can say so."""
    try:
        return _lock_out_loaders(other.segments)
    except OSError as error:
        if error.errno in NO_ROOM:
            raise
        refuse(
            other.path.name, told, reason=f"nobody can say whether a loader runs there: {error}",
            remedy=f"give {other.path} and what is in it to the user of this member, and start again",
        )  # fmt: skip
        return None


def _named_as_ours(slot: Slot, other: Slot) -> list[str]:
    """Segments of `other` that have the name of one of ours and are another file, wherever these lie."""
    ours, theirs = _segments_in(slot), _segments_in(other)
    return sorted(name for name, inode in theirs.items() if ours.get(name, inode) != inode)


def _segments_in(slot: Slot) -> dict[str, int]:
    """Name and inode of each; all slots are on one disk."""
    found: dict[str, int] = {}
    for folder in (OPEN_DIR, READY_DIR, BAD_DIR):
        with contextlib.suppress(FileNotFoundError), os.scandir(slot.segments / folder) as entries:
            found |= {entry.name: entry.inode() for entry in entries if SEGMENT_NAME.fullmatch(entry.name)}
    return found


def _take_request(slot: Slot) -> None:
    """Have a slot that was made after a `reset --reprocess` load its part of the re-run as such, as its neighbours do."""
    if (slot.segments / EPOCH_FILE).exists() or any(
        any((slot.segments / folder).iterdir()) for folder in (OPEN_DIR, READY_DIR)
    ):
        return  # it was there at the reset
    numbered = sorted(path for path in slot.path.parent.iterdir() if path.name.isdigit())
    _join_requests(slot.segments, [path / "segments" for path in numbered if _shows_request(path / "segments")])


def _shows_request(segments: Path) -> bool:
    """Not those of another user, which `adopt` names."""
    try:
        return _bytes_of(segments / EPOCH_FILE) is not None
    except PermissionError:
        return False


def _join_requests(segments: Path, sources: Iterable[Path]) -> None:
    """Ask in `segments` for all epochs that are asked for in `sources`, folders of segments too."""
    paths = [source / EPOCH_FILE for source in sources]
    texts = {path: text for path in paths if (text := _bytes_of(path)) is not None}
    if not texts:
        return
    from ..spark.epochs import EpochRequest, joined_requests  # it brings pyarrow, and hardly any slot has a request

    requests: list[EpochRequest] = []
    for path, text in texts.items():
        try:
            requests.append(EpochRequest.from_json(text, path))
        except ValueError as error:
            raise UsageError(
                f"{path} is not understood: {error}. Move it away, and run `rocketcrew reset --reprocess` again"
            ) from error
    write_atomically(segments / EPOCH_FILE, joined_requests(requests).to_json(), durable=True)


def _make_folders(segments: Path) -> None:
    for folder in (OPEN_DIR, READY_DIR, PLAN_DIR, BAD_DIR, OUTCOMES_DIR):
        make_folders(segments / folder)


def _remove_left_copies(home: Path, remove: Callable[[Path], None]) -> None:
    """Delete what dead loaders have left of copies, in all slots: they may have all the room of the disk, and this start
    would fail before the next loader sweeps them. A loader that lives has its lock, whoever has the slot."""
    for segments in sorted(home.glob("*/segments")):
        with _told_of_copies(segments):
            loader_fd = _lock_out_loaders(segments) if _copies(segments) else None
            if loader_fd is not None:
                try:
                    _remove_copies(segments, remove)
                finally:
                    os.close(loader_fd)


def _remove_copies(segments: Path, remove: Callable[[Path], None]) -> None:
    """The caller has the loader's lock."""
    for path in _copies(segments):
        with _told_of_copies(path):
            remove(path)


def _copies(segments: Path) -> list[Path]:
    """The folders that a loader sweeps (Staging.sweep)."""
    return [path for path in (segments / PLAN_DIR).glob("*.staged") if path.is_dir() and not path.is_symlink()]


@contextlib.contextmanager
def _told_of_copies(where: Path) -> Generator[None]:
    """Copies that cannot be deleted, as they are another user's, keep nobody from starting: there may be room beside them."""
    try:
        yield
    except OSError as error:
        log.warning("copies_not_removed", folder=str(where), error=str(error))


def _lock_out_loaders(segments: Path) -> int | None:
    """The loader's lock of these segments, None where one lives. It names this process: to a loader that starts meanwhile it
    would name a dead one. Raises OSError for a lock of another user."""
    descriptor = try_lock(segments / PLAN_DIR / LOADER_LOCK)
    if descriptor is not None:
        with contextlib.suppress(OSError):  # a disk that is full
            written = os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
            os.ftruncate(descriptor, written)
    return descriptor


def forget_socket(slot: Path) -> None:
    """Nobody answers in this slot: what a killed supervisor has left is none. The caller holds the slot's lock."""
    (slot / SOCKET_NAME).unlink(missing_ok=True)


def targets_file(slot: Path) -> Path:
    """Says where its metrics are served (web.py); not in the slot, which only its owner may enter: Prometheus is another."""
    return slot.with_name(f"prometheus-{slot.name}.json")


def other_targets(slot: Path) -> list[Path]:
    """Those of all other slots and groups here, also of killed supervisors."""
    own = targets_file(slot)
    return [path for path in slot.parent.parent.glob(f"*/{targets_file(Path('*')).name}") if path != own]


def forget_targets(slot: Path) -> None:
    """Nothing is served for this slot: also what a killed supervisor has left says so no more."""
    targets_file(slot).unlink(missing_ok=True)


def lock_client(data_dir: Path, group: str, client_id: str, *, pause_s: float = TURN_PAUSE_S) -> int:
    """Lock the client id for this process; the descriptor that holds the lock. Raises UsageError when it is held.

    What killed members left is removed. Two starts do that one after the other: else one would find its own id locked, for
    the moment in which the other looks at the file. One that stands still with its turn keeps nobody from starting for long:
    it is asked for TURN_TRIES times, `pause_s` apart.
    """
    path = _lock_file(data_dir, group, client_id)
    path.parent.mkdir(parents=True, exist_ok=True)
    turn = _turn(path.parent.with_suffix(".lock"), pause_s)
    try:
        if turn is not None:
            _remove_left_locks(path)
        fd = try_lock(path)
    finally:
        if turn is not None:
            os.close(turn)
    if fd is None:
        raise UsageError(
            f"a supervisor with the client id {client_id} already runs in group {group} on this host: give each its own"
            f" cluster.instance_name (The consumer group[{group}] has been created before, specify another name please)"
        )
    return fd


def _turn(path: Path, pause_s: float, sleep: Callable[[float], None] = time.sleep) -> int | None:
    for _ in range(TURN_TRIES):
        turn = try_lock(path)
        if turn is not None:
            return turn
        sleep(pause_s)
    return None


def _remove_left_locks(own: Path) -> None:
    """Lock files beside `own` that nobody holds: each start of a clustering member makes one of another name, and one that is
    killed leaves it."""
    others = (path for path in own.parent.glob("*.lock") if path != own)
    for path in itertools.islice(others, CLIENTS_LOOKED_AT_MAX):
        with contextlib.suppress(OSError):  # of another user
            fd = try_lock(path)
            if fd is not None:
                with contextlib.closing(os.fdopen(fd)):
                    path.unlink()


def has_client(slot: Slot, client_id: str) -> bool:
    """Whether a member with that client id runs beside `slot`; soon after `lock_client`, which has removed what killed ones
    left. Its lock is not tried: a start of that member would find it held meanwhile."""
    return _lock_file(slot.path.parent.parent, slot.group, client_id).exists()


def unlock_client(data_dir: Path, group: str, client_id: str, fd: int) -> None:
    """Give the id back and remove its file: client ids of clustering members are new at each start."""
    _lock_file(data_dir, group, client_id).unlink(missing_ok=True)
    os.close(fd)


def _lock_file(data_dir: Path, group: str, client_id: str) -> Path:
    name = re.sub(r"[^A-Za-z0-9._#@-]", "_", client_id)[:NAME_CHARACTERS_MAX]
    return data_dir / group / CLIENTS_FOLDER / f"{name}.lock"
