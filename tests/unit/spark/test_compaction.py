"""Compaction: the same rows in fewer files, whoever dies on the way, and loaders go on."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import pwd
import struct
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from loader_world import Crash, World, crash_at
from test_partitions import loaded

from rocketcrew.cli.main import run
from rocketcrew.cli.reading import dataset
from rocketcrew.conf.segment_format import KEY_COLUMNS
from rocketcrew.remoting.errors import UsageError
from rocketcrew.spark.compaction import (
    POINTS,
    BatchSize,
    compact,
    exchange,
    groups_of,
    make_like,
    merge_files,
    to_merge,
)
from rocketcrew.spark.errors import LoaderError
from rocketcrew.spark.object_store import STATE_DIR
from rocketcrew.spark.reconciling import reconcile
from rocketcrew.spark.rights import Rights, rights_of
from rocketcrew.spark.table_keys import table_facts
from rocketcrew.spark.table_lock import DELTA_LOCK, locked_table
from rocketcrew.spark.targets.parquet import OUTCOMES_FILE, STATE_FILE

MIB = 1024 * 1024


def fill(world: World, segments: Any, count: int = 5) -> None:
    for start in range(count):
        world.seal([segments.Record(10 * start + n, ["a", "b"]) for n in range(3)])
        world.drain(world.loader())


def sized(batch: int, *sizes: int) -> BatchSize:
    return BatchSize(batch, {".": sizes})


def test_groups_are_neighbours_that_fit() -> None:
    sizes = [sized(1, 4), sized(2, 1, 3), sized(3, 9), sized(4, 5, 4, 3), sized(6, 5)]
    assert groups_of(sizes, 10) == [[1, 2]]
    assert groups_of(sizes, 30) == [[1, 2, 3, 4]]
    assert groups_of([sized(1, 5)], 10) == []
    assert groups_of([], 10) == []
    assert groups_of([BatchSize(1, {}), sized(2, 1, 0)], 10) == [[1, 2]]


def test_files_of_different_partitions_are_never_one() -> None:
    days = [BatchSize(n, {"day=1": [4], f"day={n + 1}": [9]}) for n in (1, 2, 3)]
    assert groups_of(days, 10) == [[1, 2]]
    assert groups_of(days, 12) == [[1, 2, 3]]
    assert groups_of([BatchSize(1, {"day=1": [4], "day=2": [4]})], 10) == []


@given(st.lists(st.dictionaries(st.sampled_from("abc"), st.lists(st.integers(0, 9), min_size=1, max_size=3))))
def test_groups_are_as_long_as_they_may_be(sizes: list[dict[str, list[int]]]) -> None:
    """Against the plain reading of the rule, which looks at a whole group for each batch."""
    wanted: list[list[BatchSize]] = [[]]
    for number, folders in enumerate(sizes, 1):
        one = BatchSize(number, folders)
        if wanted[-1] and not all(sum(found) <= 12 for found in together([*wanted[-1], one]).values()):
            wanted.append([])
        wanted[-1].append(one)
    assert groups_of([BatchSize(number, folders) for number, folders in enumerate(sizes, 1)], 12) == [
        [one.batch for one in group]
        for group in wanted
        if all(sum(found) <= 12 for found in together(group).values())
        and any(len(found) > 1 for found in together(group).values())
    ]


def together(group: list[BatchSize]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for one in group:
        for folder, sizes in one.sizes.items():
            found.setdefault(folder, []).extend(sizes)
    return found


class Looked(list[int]):
    """Sizes that count how often they are summed up."""

    looks = 0

    def __iter__(self) -> Iterator[int]:
        Looked.looks += 1
        return super().__iter__()


def test_each_batch_is_looked_at_a_few_times_however_many_there_are() -> None:
    Looked.looks = 0
    assert len(groups_of([BatchSize(n, {".": Looked([1])}) for n in range(5_000)], 10**6)) == 1
    assert Looked.looks <= 3 * 5_000


@pytest.mark.parametrize("world", ["parquet", "deltalake"], indirect=True)
def test_fewer_files_with_the_same_rows(world: World, segments: Any) -> None:
    fill(world, segments)
    done = compact(world.table, 128 * MIB)
    assert done.files_before == 5
    assert done.files_after == 1
    world.assert_exact()
    assert compact(world.table, 128 * MIB).files_before == 1
    assert reconcile(table_facts(world.table, ())[0], None).fine
    world.seal([segments.Record(1, ["again"]), segments.Record(99)])
    world.drain(world.loader(known_batch=5))
    world.assert_exact()
    assert world.state()["batch"] == 6
    assert not list(world.table.parent.glob(".table.compact"))


def test_as_a_command(world: World, segments: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(world, segments)

    def command(*words: str) -> tuple[int, str, str]:
        code = run(("compact", *words), {}, tmp_path)
        out, err = capsys.readouterr()
        return code, out, err

    assert command("--target", str(world.table), "--dry-run")[:2] == (0, "would merge 5 of 5 files; nothing was done\n")
    code, out, _ = command("--target", str(world.table), "--set", "spark.target_file_mib=64", "--json")
    assert (code, json.loads(out)) == (0, {"files_before": 5, "files_after": 1, "files_apart": 0})
    world.assert_exact()
    assert command("--target", str(world.table))[:2] == (0, "1 file, now 1\n")
    code, out, _ = command("--target", str(world.table), "--dry-run", "--yes", "--json")
    assert (code, json.loads(out)["files_to_merge"]) == (0, 0)
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "rows.parquet").write_bytes(b"")
    for words, said in ((("--target", str(tmp_path / "foreign")), "foreign"), ((), "--target PATH")):
        code, out, err = command(*words)
        assert (code, out) == (2, "")
        assert said in err
        assert "Traceback" not in err


@pytest.mark.parametrize("second", [None, *POINTS])
@pytest.mark.parametrize("point", POINTS)
def test_killed_at_any_point_and_once_more(world: World, segments: Any, point: str, second: str | None) -> None:
    fill(world, segments)
    for doomed in (point, second):
        if doomed is None:
            continue
        with contextlib.suppress(Crash):
            compact(world.table, 128 * MIB, crash_at(doomed))
        world.assert_exact()
        world.seal([segments.Record(world.segments_made * 10), segments.Record(0, ["again"])])
        world.drain(world.loader(known_batch=5))
        world.assert_exact()
    assert compact(world.table, 128 * MIB).files_after == 1
    world.assert_exact()
    assert reconcile(table_facts(world.table, ())[0], None).fine


def test_what_fails_leaves_the_table_and_no_draft(world: World, segments: Any) -> None:
    fill(world, segments, 2)
    before = sorted(world.table.glob("*/*"))

    def full(point: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), point)

    with pytest.raises(OSError, match="No space"):
        compact(world.table, MIB, full)
    assert sorted(world.table.glob("*/*")) == before
    assert not world.table.with_name(f".{world.table.name}.compact").exists()
    assert compact(world.table, MIB).files_after == 1


def test_a_table_that_is_named_by_a_link_stays_one(world: World, segments: Any) -> None:
    """Its loader knows the folder by the other name."""
    fill(world, segments, 2)
    link = world.table.with_name("current")
    link.symlink_to(world.table)
    assert compact(link, MIB).files_after == 1
    assert link.is_symlink()
    world.seal([segments.Record(99)])
    world.drain(world.loader(known_batch=2))
    world.assert_exact()
    assert compact(link, MIB).files_after == 1


def rights(table: Path) -> set[tuple[str, str, int, int]]:
    """Of all in the table, by their kind and place; batches are of one kind."""
    found = ((path, path.stat()) for path in (table, *table.rglob("*")))
    return {
        (path.relative_to(table).as_posix().partition("batch_id=")[2][1:].partition("/part-")[0], path.suffix,
         status.st_mode, status.st_uid)
        for path, status in found
    }  # fmt: skip


@pytest.mark.parametrize(
    "user",
    [pytest.param(1234, marks=pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")), None],
)
def test_whose_the_table_is_and_who_may_read_it_stay(
    world: World, segments: Any, reachable: Path, user: int | None
) -> None:
    world.table = reachable / "table"
    for first in (1, 4):
        world.seal([segments.Record(first, ["a", "b"])])
        loaded(world, "pyarrow", "value")
    world.seal([segments.Record(7)])  # of a batch that is not merged the folders are made anew
    loaded(world, "pyarrow", "value")
    for path in (world.table, *world.table.rglob("*")):
        if user is not None:
            os.chown(reachable, user, user + 1)
            os.chown(path, user, user + 1)
        path.chmod(0o2770 if path.is_dir() else 0o640)
    before = rights(world.table)
    assert compact(world.table, MIB).files_after == 3
    assert rights(world.table) == before
    assert [path.name for path in world.table.parent.glob(".table*")] == [], "nor a lock that its user could not have"


def test_what_cannot_be_given_to_its_user_is_refused(tmp_path: Path) -> None:
    """Nor by root: who has it may put a link to what is root's there, and root would write on."""
    stranger = replace(rights_of(tmp_path), user=1234, group=1235)
    with pytest.raises(LoaderError, match=r"belongs to user 1234 .* as that user and a member of group 1235"):
        make_like(stranger, tmp_path)
    assert rights_of(tmp_path).user == os.geteuid()


def test_of_batches_with_other_rights_none_become_one(world: World, segments: Any) -> None:
    """Whoever may read some of the rows may not read them all."""
    fill(world, segments, 5)
    for file in world.table.glob("batch_id=[12]/*.parquet"):
        file.chmod(0o600)
    world.table.joinpath("batch_id=5").chmod(0o700)
    assert compact(world.table, MIB).files_after == 3
    assert {folder.name: {one.stat().st_mode & 0o777 for one in folder.glob("*.parquet")}
            for folder in world.table.glob("batch_id=*")} == {
        "batch_id=2": {0o600}, "batch_id=4": {0o644}, "batch_id=5": {0o644},
    }  # fmt: skip
    world.assert_exact()


def test_a_batch_whose_files_have_other_rights_stays() -> None:
    one, two = (Rights(0, 0, mode, (None, None)) for mode in (0o100600, 0o100644))
    folder = Rights(0, 0, 0o40755, (None, None))
    mixed, alike = frozenset((folder, one, two)), frozenset((folder, two))
    assert groups_of([sized(1, 1, 1), sized(2, 1, 1)], 10, {1: mixed, 2: mixed}.__getitem__) == []
    batches = [sized(1, 1, 1), sized(2), sized(3, 1, 1)]
    assert groups_of(batches, 10, {1: mixed, 2: alike, 3: alike}.__getitem__) == [[2, 3]]


def test_rights_are_looked_at_once_and_only_of_batches_that_fit_together() -> None:
    looks: list[int] = []

    def look(batch: int) -> frozenset[Rights]:
        looks.append(batch)
        return frozenset()

    assert groups_of([sized(batch, 6) for batch in range(100)], 10, look) == []
    assert looks == []
    few = [sized(batch, 3) for batch in range(100, 104)]
    assert groups_of([*(sized(batch, 8) for batch in range(100)), *few], 10, look) == [[100, 101, 102]]
    assert sorted(looks) == [100, 101, 102]


def acl(*entries: tuple[int, int, int]) -> bytes:
    """As the kernel has it in the extended attribute: tag, rights and id of each."""
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


def test_what_the_folder_above_lets_in_by_an_acl_the_table_does_not(world: World, segments: Any) -> None:
    fill(world, segments, 3)
    none, user = 2**32 - 1, 4444
    others = acl((1, 7, none), (2, 7, user), (4, 5, none), (16, 7, none), (32, 0, none))
    (file,) = world.table.glob("batch_id=3/*.parquet")
    os.setxattr(file, "user.sum", b"of the rows before")
    try:
        os.setxattr(world.table.parent, "system.posix_acl_default", others)
    except OSError:
        pytest.skip("a file system without ACLs")
    before = rights(world.table)
    assert compact(world.table, MIB).files_after == 1
    assert rights(world.table) == before
    assert [os.listxattr(path) for path in (world.table, *world.table.rglob("*")) if os.listxattr(path)] == []


def test_outcomes_are_as_old_as_the_newest_of_them(world: World, segments: Any) -> None:
    """They are forgotten by age (spark.keep_outcomes_days)."""
    fill(world, segments, 3)
    for number, day in enumerate((1, 3, 2), 1):
        os.utime(world.table / f"batch_id={number}" / OUTCOMES_FILE, (day * 86400, day * 86400))
    assert compact(world.table, MIB).files_after == 1
    assert (world.table / "batch_id=3" / OUTCOMES_FILE).stat().st_mtime == 3 * 86400


def test_a_state_that_is_deleted_meanwhile_is_no_error(world: World, segments: Any, at_first: Any) -> None:
    fill(world, segments, 3)
    state = world.table / "batch_id=3" / STATE_FILE
    with at_first(os.sendfile, state.unlink):  # while it is copied
        assert compact(world.table, MIB).files_after == 1


def of_user(user: int, *folders: Path) -> None:
    for folder in folders:
        for path in (folder, *folder.rglob("*")):
            os.chown(path, user, user + 1)


@pytest.fixture
def theirs(world: World, segments: Any, reachable: Path) -> World:
    """A world whose table is another user's."""
    if os.geteuid() != 0:
        pytest.skip("only root gives files to others")
    world.table = reachable / "table"
    fill(world, segments, 2)
    of_user(1234, reachable)
    return world


def test_what_a_killed_compact_of_root_has_left_is_its_users_to_delete(theirs: World) -> None:
    found: set[tuple[int, int]] = set()

    def look(here: str) -> None:
        left = [path for one in theirs.table.parent.glob(".table.compact*") for path in (one, *one.rglob("*"))]
        assert len(left) >= 4 or here == "removed"
        found.update((path.stat().st_uid, path.stat().st_gid) for path in left)

    assert compact(theirs.table, MIB, look).files_after == 1
    assert found == {(1234, 1235)}
    assert (os.geteuid(), os.getegid()) == (0, 0)


@pytest.mark.parametrize("world", ["parquet", "deltalake"], indirect=True)
def test_root_compacts_a_table_as_its_user(theirs: World) -> None:
    groups = os.getgroups()
    found: list[tuple[int, int, list[int]]] = []
    assert to_merge(theirs.table, MIB) == (2, 2)
    compact(theirs.table, MIB, lambda _: found.append((os.geteuid(), os.getegid(), os.getgroups())))
    assert set(map(str, found)) == {str((1234, 1235, [1235]))}
    assert (os.geteuid(), os.getegid(), os.getgroups()) == (0, 0, groups)
    theirs.assert_exact()


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file of root's in a folder of root's."""
    folder = tmp_path / "of root"
    folder.mkdir(0o700)
    (folder / "shadow").write_text("root's")
    (folder / "shadow").chmod(0o600)
    return folder / "shadow"


@pytest.mark.parametrize("place", [OUTCOMES_FILE, "rows"])
def test_links_to_what_is_root_s_do_nothing(theirs: World, secret: Path, place: str) -> None:
    """The table's owner made root write over any file, and read any for him."""
    before = secret.stat()
    (rows,) = theirs.table.glob("batch_id=2/*.parquet")

    def planted(here: str) -> None:
        if here == "merged" and place == OUTCOMES_FILE:
            (theirs.table.parent / ".table.compact/batch_id=2" / OUTCOMES_FILE).symlink_to(secret)

    secret.write_bytes(rows.read_bytes())
    if place == "rows":
        os.seteuid(1234)
        try:
            rows.unlink()
            rows.symlink_to(secret)
        finally:
            os.seteuid(0)
    kept = secret.read_bytes()
    with pytest.raises((OSError, LoaderError, UsageError), match=r"Permission denied"):
        compact(theirs.table, MIB, planted)
    assert secret.read_bytes() == kept
    assert (secret.stat().st_mode, secret.stat().st_uid) == (before.st_mode, 0)


@pytest.mark.parametrize("world", ["parquet", "deltalake"], indirect=True)
def test_a_lock_that_is_a_link_makes_nothing_elsewhere(theirs: World, secret: Path) -> None:
    made = secret.with_name("nologin")
    for lock in (theirs.table.with_name(".table.compact.lock"), theirs.table / STATE_DIR / DELTA_LOCK):
        with contextlib.suppress(FileNotFoundError):
            lock.symlink_to(made)
    with pytest.raises((UsageError, OSError), match=r"compact\.lock"):
        compact(theirs.table, MIB)
    assert not made.exists()


def test_root_names_whom_a_table_is_for_that_he_can_not_write(theirs: World) -> None:
    os.chown(theirs.table.parent, 0, 1)
    theirs.table.parent.chmod(0o775)  # others may put links there
    for refused in (compact, to_merge):
        with pytest.raises(
            UsageError, match=r"can't be written by user 1234, and .* \(chown\), or run compact as root"
        ):
            refused(theirs.table, MIB)
    theirs.table.parent.chmod(0o700)
    with pytest.raises(UsageError, match=r"belongs to user 1234, as whom root works in it, and he can't read it there"):
        compact(theirs.table, MIB)
    theirs.table.parent.chmod(0o755)


def whose(table: Path) -> dict[str, tuple[int, int, int]]:
    """User, group and mode of all that is merged in the end."""
    found = {path.relative_to(table).as_posix(): path.stat() for path in (table, *table.rglob("*"))}
    return {
        "rows" if name.endswith(".parquet") else name: (status.st_uid, status.st_gid, status.st_mode)
        for name, status in found.items() if not name.startswith("batch_id=1")
    }  # fmt: skip


def compacts_as(world: World, user: int) -> None:
    """All of it is his work, and all is as it was."""
    before = whose(world.table)
    found: set[tuple[int, int, bool]] = set()

    def look(here: str) -> None:
        found.add((os.geteuid(), os.getegid(), 4321 in os.getgroups()))
        if here == "merged":
            assert {path.stat().st_uid for path in world.table.with_name(".table.compact").rglob("*")} == {user}

    assert to_merge(world.table, MIB) == (2, 2)
    assert compact(world.table, MIB, look).files_after == 1
    assert [(each[0], each[2]) for each in found] == [(user, False)]
    assert os.geteuid() == 0
    assert whose(world.table) == before
    assert [path.name for path in world.table.parent.glob(".table*")] == []
    world.assert_exact()


@pytest.mark.parametrize("killed_at", [None, *POINTS])
@pytest.mark.parametrize("folder_of", [1234, 0])
def test_a_table_in_a_folder_that_is_root_s_alone(theirs: World, folder_of: int, killed_at: str | None) -> None:
    """As a volume is, in which a user was given a folder, or one that all may write to."""
    os.chown(theirs.table.parent, 0, 0)
    os.chown(theirs.table, folder_of, 1235 if folder_of else 0)
    if not folder_of:
        theirs.table.chmod(0o777)
    if killed_at is None:
        compacts_as(theirs, 1234)
        return
    before = whose(theirs.table)
    with contextlib.suppress(Crash):
        compact(theirs.table, MIB, crash_at(killed_at))
    assert compact(theirs.table, MIB).files_after == 1
    assert whose(theirs.table) == before
    assert [path.name for path in theirs.table.parent.glob(".table*")] == []
    theirs.assert_exact()


@pytest.mark.parametrize("mode", [0o755, 0o2770])
def test_a_table_of_a_group_that_its_user_is_not_in(theirs: World, mode: int) -> None:
    """As `chown -R USER:analysts` makes it: it stays theirs to read, and he is none of them meanwhile."""
    user = pwd.getpwnam("nobody").pw_uid
    for path in (theirs.table.parent, theirs.table, *theirs.table.rglob("*")):
        os.chown(path, user, 4321)
        if path.is_dir() and path != theirs.table.parent:
            path.chmod(mode)
    compacts_as(theirs, user)


def test_a_folder_of_root_s_in_a_folder_of_another_is_refused_by_the_plan_too(theirs: World) -> None:
    os.chown(theirs.table, 0, 0)
    theirs.table.chmod(0o777)
    for refused in (compact, to_merge):
        with pytest.raises(UsageError, match=r"belongs to user 0, and user 1234 can't .* to one user \(chown -R\)"):
            refused(theirs.table, MIB)


def test_a_group_that_is_not_the_table_s_root_gives_nothing(theirs: World) -> None:
    user = pwd.getpwnam("nobody").pw_uid
    os.chown(theirs.table.parent, user, 4321)
    for path in (theirs.table, *theirs.table.rglob("*")):
        os.chown(path, user, 4321 if path == theirs.table else 4322)
    with pytest.raises(LoaderError, match=r"group 4322, .*: put him into that group, or .* \(chgrp -R\)"):
        compact(theirs.table, MIB)


def test_files_that_stay_small_as_they_have_other_rights_are_counted(
    world: World, segments: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(world, segments, 3)
    for file in world.table.glob("batch_id=2/*.parquet"):
        file.chmod(0o600)
    assert run(("compact", "--target", str(world.table)), {}, tmp_path) == 0
    assert capsys.readouterr().out == (
        "3 files, now 3; 3 small files not merged with others, as owner, group, mode or ACL differ\n"
    )


@pytest.mark.parametrize("target", ["loop", "plain/table"])
def test_a_path_that_leads_nowhere_is_said_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], target: str
) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "plain").touch()
    for words in ((), ("--dry-run",)):
        assert run(("compact", "--target", str(tmp_path / target), *words), {}, tmp_path) == 2
        out, err = capsys.readouterr()
        assert (out, "can't be read" in err, "Traceback" in err) == ("", True, False)


def test_files_with_other_types_are_not_merged(tmp_path: Path) -> None:
    keys = {name: [0] for name in KEY_COLUMNS}
    for name, column in (("a", ["text"]), ("b", [1])):
        pq.write_table(pa.table({**keys, "value": column}), tmp_path / name)
    with pytest.raises(LoaderError, match=r"other columns.*stays as it is"):
        merge_files([tmp_path / "a", tmp_path / "b"], tmp_path / "c")


@pytest.mark.parametrize("in_96_bits", [(1, 2), (2,)])
def test_times_in_96_bits_stay_what_they_are(world: World, segments: Any, in_96_bits: tuple[int, ...]) -> None:
    """Spark writes them on demand. As nanoseconds they would end in 2262, and files do not say that they are moments."""
    parquet: Any = pq
    kind: Any = pa.timestamp("us", "UTC")
    columns: dict[str, Any] = {
        "t": kind, "l": pa.list_(kind), "st": pa.struct([("s", pa.string()), ("t", kind)]), "m": pa.map_(pa.string(), kind)
    }  # fmt: skip
    times = [datetime(9999, 12, 31, tzinfo=UTC), datetime(1, 1, 1, tzinfo=UTC)]
    values = [{"t": time, "l": [time, None], "st": {"s": "s", "t": time}, "m": [("k", time)]} for time in times]
    for batch, extra in enumerate(values, 1):
        world.seal([segments.Record(batch, extra=extra)], columns=[("value", pa.string()), *columns.items()])
        world.drain(world.loader())
    for batch in in_96_bits:
        (file,) = world.table.glob(f"batch_id={batch}/*.parquet")
        parquet.write_table(
            parquet.ParquetFile(file).read(), file, use_deprecated_int96_timestamps=True, store_schema=False
        )
    assert compact(world.table, MIB).files_after == 1
    (file,) = world.table.glob("batch_id=*/*.parquet")
    assert [parquet.read_schema(file).field(name).type for name in columns] == list(columns.values())
    assert dataset(world.table).to_table(columns=list(columns)).to_pylist() == values
    assert reconcile(table_facts(world.table, ())[0], None).fine


def test_what_is_large_stays_as_it_is(world: World, segments: Any) -> None:
    fill(world, segments, 2)
    before = {path: path.stat().st_ino for path in world.table.glob("*/*.parquet")}
    world.seal([segments.Record(100)])
    world.drain(world.loader())
    size = max(path.stat().st_size for path in before)
    assert compact(world.table, size).files_after == 3
    assert before.items() <= {path: path.stat().st_ino for path in world.table.glob("*/*.parquet")}.items()


def test_columns_that_came_later_are_null_before(world: World, segments: Any) -> None:
    world.seal([segments.Record(1)])
    world.drain(world.loader())
    more = [("value", pa.string()), ("note", pa.string())]
    world.seal([segments.Record(2, extra={"note": "n"})], columns=more)
    world.drain(world.loader())
    compact(world.table, MIB)
    assert world.rows("_offset", "value", "note") == [(1, "row", None), (2, "row", "n")]


def test_a_loader_that_writes_is_waited_for(world: World, segments: Any) -> None:
    """The exchange happens between two batches: the folder of a batch that is being written stays under its name."""
    fill(world, segments)
    held: list[str] = []

    def blocked(here: str) -> None:
        if here == "staged":
            return
        if here == "job_done":
            with pytest.raises(LoaderError, match="being written"), locked_table(world.table, fcntl.LOCK_EX, 0):
                pass
            held.append(here)

    world.seal([segments.Record(200)])
    world.drain(world.loader(on_point=blocked))
    assert held
    with locked_table(world.table, fcntl.LOCK_EX, 0):
        pass
    world.assert_exact()


def test_a_page_whose_bytes_changed_is_named_and_not_written_anew(world: World, segments: Any) -> None:
    for start in (0, 100):
        world.seal([segments.Record(start + n, [f"{n * 7919:x}" * 9]) for n in range(50)])
        world.drain(world.loader())
    victim = min(world.table.glob("batch_id=1/*.parquet"))
    flip_a_value(victim)
    before = sorted(world.table.rglob("*"))
    with pytest.raises(LoaderError, match=r"(?s)batch_id=1.*Move the file away.*reconcile --rerun.*stays as it is"):
        compact(world.table, MIB)
    assert sorted(world.table.rglob("*")) == before
    facts, broken = table_facts(world.table, ())
    assert [str(victim) in line for line in broken] == [True]
    report = reconcile(facts, None)
    assert report.to_run_again().count() == 50


def flip_a_value(file: Path) -> None:
    """A byte in the middle of the last column's data: the page is as long as it was, and its text another."""
    last = pq.read_metadata(file).row_group(0).column(pq.read_metadata(file).num_columns - 1)
    data = bytearray(file.read_bytes())
    place = last.data_page_offset + last.total_compressed_size - 20
    data[place] ^= 0x40
    file.write_bytes(data)


def test_one_compaction_at_a_time_and_only_of_our_tables(world: World, segments: Any, tmp_path: Path) -> None:
    fill(world, segments, 2)

    def intrude(here: str) -> None:
        if here == "merged":
            with pytest.raises(LoaderError, match="another compaction"):
                compact(world.table, MIB)

    compact(world.table, MIB, intrude)
    world.assert_exact()
    with pytest.raises(UsageError, match="holds no batch yet"):
        compact(tmp_path / "nowhere", MIB)
    with pytest.raises(OSError, match="No such file"):
        exchange(tmp_path / "nowhere", world.table)
