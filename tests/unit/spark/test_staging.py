"""The staging folder: one loader, order of segments, plans, settled records, quarantine."""

from __future__ import annotations

import errno
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PosixPath
from typing import Any

import pytest

from rocketcrew.durable.facts import facts_to_text
from rocketcrew.durable.files import write_atomically
from rocketcrew.durable.intervals import IntervalSet, OffsetSet, QueueKey
from rocketcrew.durable.outcomes import SETTLED, BatchOutcomes, Outcomes
from rocketcrew.remoting.errors import UsageError
from rocketcrew.spark.accounts import Accounts
from rocketcrew.spark.errors import LoaderError
from rocketcrew.spark.plan import Plan
from rocketcrew.spark.staging import Staging, is_segment_name
from rocketcrew.spark.table_state import write_before_commit
from rocketcrew.spark.targets.local_folder import LocalFolder

QUEUE = QueueKey("g", "t", "b", 0)


def offsets(*pieces: tuple[int, int]) -> OffsetSet:
    return OffsetSet({QUEUE: IntervalSet.of(pieces)})


def test_a_second_loader_is_refused_and_told_who_is_there(tmp_path: Path) -> None:
    first, second = Staging(tmp_path), Staging(tmp_path)
    first.lock()
    now = iter((0.0, 0.0, 1.0))
    with pytest.raises(LoaderError, match=f"process {os.getpid()}"):
        second.lock(1.0, lambda: next(now), lambda _: None)
    first.unlock()
    second.lock()
    second.unlock()


def test_one_that_has_the_lock_for_a_moment_is_waited_for(tmp_path: Path) -> None:
    """A member that starts, and deletes what dead loaders have left."""
    first, second = Staging(tmp_path), Staging(tmp_path)
    first.lock()
    second.lock(1.0, lambda: 0.0, lambda _: first.unlock())
    second.unlock()


def test_copies_that_cannot_be_deleted_are_named_with_their_folder(tmp_path: Path) -> None:
    staging = Staging(tmp_path)
    copies = staging.staged("00000001-ab")
    copies.symlink_to(tmp_path)
    with pytest.raises(OSError, match="Cannot call rmtree") as refusal:
        staging.sweep()
    assert refusal.value.filename == str(copies)


class FullPath(PosixPath):
    """A path on a disk that takes no more folders."""

    def mkdir(self, *_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self))


def test_a_full_disk_is_no_usage_error(tmp_path: Path) -> None:
    plan = Plan("00000001-ab", 1, (), offsets((0, 5)), ())
    root = FullPath(tmp_path / "new")
    nothing = BatchOutcomes(0, Outcomes())
    with ThreadPoolExecutor(1) as threads:
        for fails in (
            lambda: Staging(root),
            lambda: LocalFolder(root, threads).prepare(plan),
            lambda: write_before_commit(root / "_rocketcrew" / "1.json", plan, Accounts(OffsetSet()), nothing, root),
        ):
            with pytest.raises(OSError, match="No space left on device"):
                fails()


def test_a_folder_that_cannot_be_made_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="staging folder"):
        Staging(tmp_path / "file")


def test_segments_come_in_the_order_of_sealing(tmp_path: Path, segments: Any) -> None:
    staging = Staging(tmp_path)
    for worker, seq, sealed_s in (("a", 1, 30), ("b", 1, 10), ("a", 0, 20), ("c", 0, 20)):
        segments.write_segment(tmp_path, worker, seq, [], sealed_s=sealed_s)
    (staging.ready / ".draft").touch()
    ready = staging.list_ready()
    assert [file.path.name for file in ready] == [
        "b-00000001.arrows",
        "a-00000000.arrows",
        "c-00000000.arrows",
        "a-00000001.arrows",
    ]
    assert ready[0].sealed_ms == 10_000
    assert all(is_segment_name(file.path.name) for file in ready)


@pytest.mark.parametrize("name", ["x.arrows", "x-1.parquet", "x-1.arrows.tmp", "-1.arrows", "x-.arrows", "notes.txt"])
def test_other_names_are_no_segments(name: str) -> None:
    assert not is_segment_name(name)


@pytest.mark.parametrize(
    "text", ["", "[]", '{"version":2,"queues":[]}', '{"version":1,"queues":[{}]}', '{"version":1}']
)
@pytest.mark.parametrize("name", ["outcomes/1.facts", "outcomes/1.left"])
def test_notes_that_are_not_understood_are_set_aside(tmp_path: Path, name: str, text: str) -> None:
    staging = Staging(tmp_path)
    (tmp_path / name).write_text(text)
    assert not staging.noted()[1]
    staging.set_damaged_aside()
    name = name.rpartition("/")[2]
    assert (staging.bad / name).read_text() == text
    assert json.loads((staging.bad / f"{name}.reason.json").read_text())["reason"]
    assert staging.unknown_in_bad()


def test_what_is_left_takes_the_place_of_all_that_was_left_before(tmp_path: Path) -> None:
    staging = Staging(tmp_path)
    first, second = (Outcomes.of([(SETTLED, offsets(piece))]) for piece in ((0, 3), (5, 9)))
    staging.leave("1", first, {})
    staging.leave("2", first, staging.left())
    assert list(staging.left()) == [staging.outcomes / "1.left"], "the same is not written again"
    (staging.outcomes / "0.left").write_text(facts_to_text(second))
    before = staging.left()
    assert len(before) == 2
    staging.leave("3", second, before)
    assert staging.left() == {staging.outcomes / "3.left": second}
    staging.leave("4", Outcomes(), staging.left())
    assert staging.was_loaded()
    assert not staging.noted()[1]


def test_a_file_of_facts_is_read_once_and_again_when_it_is_another_one(tmp_path: Path) -> None:
    staging = Staging(tmp_path)
    first, second = (Outcomes.of([(SETTLED, offsets(piece))]) for piece in ((0, 3), (5, 9)))
    path = staging.outcomes / "1.facts"
    path.write_text(facts_to_text(first))
    assert staging.facts()["1.facts"] is staging.facts()["1.facts"]
    write_atomically(path, facts_to_text(second), durable=False)
    assert staging.facts() == {"1.facts": second}
    path.unlink()
    assert staging.facts() == {}


def test_what_is_noted_is_joined_once_until_another_file_is_there(tmp_path: Path) -> None:
    staging = Staging(tmp_path)
    first, second = (Outcomes.of([(SETTLED, offsets(piece))]) for piece in ((0, 3), (5, 9)))
    (staging.outcomes / "1.facts").write_text(facts_to_text(first))
    (staging.outcomes / "1.left").write_text(facts_to_text(second))
    assert staging.noted() == (("1.facts",), Outcomes.union([first, second]))
    assert staging.noted()[1] is staging.noted()[1]
    (staging.outcomes / "1.left").unlink()
    assert staging.noted() == (("1.facts",), first)
    write_atomically(staging.outcomes / "1.facts", facts_to_text(second), durable=False)
    assert staging.noted() == (("1.facts",), second)


def test_a_sweep_takes_the_drafts_of_notes_and_leaves_the_supervisors(tmp_path: Path) -> None:
    staging = Staging(tmp_path)
    names = (".w-000000001.arrows.facts.new", f".{1:020d}-77.facts.new", "w-000000001.arrows.facts")
    for name in names:
        (staging.outcomes / name).touch()
    Staging(tmp_path).sweep()
    assert sorted(path.name for path in staging.outcomes.iterdir()) == sorted(names[1:])


def test_what_a_dead_loader_left_goes_with_the_lock_and_only_with_it(tmp_path: Path) -> None:
    """Before the lock's file is written: the disk may be full of it."""
    first, second = Staging(tmp_path), Staging(tmp_path)
    first.lock()
    copies = first.staged("00000001-ab")
    copies.mkdir()
    (copies / "part-00000.parquet").write_bytes(b"half")
    with pytest.raises(LoaderError):
        second.lock(0)
    assert copies.exists()
    first.unlock()
    second.lock()
    assert not copies.exists()
    second.unlock()


def test_the_life_of_a_plan_on_disk(tmp_path: Path) -> None:
    staging = Staging(tmp_path)
    plan = Plan("00000001-ab", 1, (), offsets((0, 5)), ())
    staging.freeze(plan)
    staging.staged(plan.id).mkdir()
    (staging.plans / ".00000002-cd.json.new").write_text("half a pl")
    again = Staging(tmp_path)
    again.sweep()
    assert (again.frozen_plans(), again.done_plans()) == ([plan], [])
    assert not again.staged(plan.id).exists()
    again.mark_done(plan.id)
    assert (again.frozen_plans(), again.done_plans()) == ([], [plan])
    again.forget(plan.id)
    assert list(again.plans.iterdir()) == []


def test_a_plan_that_is_not_understood_is_set_aside(tmp_path: Path) -> None:
    staging = Staging(tmp_path)
    (staging.plans / "00000009-xx.json").write_text('{"version": 0}')
    assert staging.frozen_plans() == []
    assert "version 0" in json.loads((staging.bad / "00000009-xx.json.reason.json").read_text())["reason"]
    assert (staging.bad / "00000009-xx.json").exists()


def test_quarantine_keeps_the_file_its_reason_and_the_records_around_it(tmp_path: Path, segments: Any) -> None:
    staging = Staging(tmp_path)
    for _ in range(2):
        path = segments.write_segment(tmp_path, "w", 1, [])
        staging.quarantine(path.name, "looks odd", offsets((3, 4), (8, 9)))
    assert staging.list_ready() == []
    assert sorted(path.name for path in staging.bad.iterdir()) == [
        "w-00000001.arrows",
        "w-00000001.arrows.1",
        "w-00000001.arrows.1.reason.json",
        "w-00000001.arrows.reason.json",
    ]
    assert staging.bad_segments() == (2, offsets((3, 9)))
    for name in ("w-00000001.arrows", "w-00000001.arrows.1"):
        (staging.bad / name).unlink()
    assert staging.bad_segments() == (0, OffsetSet()), "put back or deleted by hand: nothing is held any more"
