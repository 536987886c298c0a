"""Broadcasting: all queues, failures dropped with a line in the log, own offsets in Java's file, slots of one member."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from rocketcrew.client.identity import client_id, instance_name
from rocketcrew.conf.settings import load
from rocketcrew.durable.files import FileCalls
from rocketcrew.remoting.errors import UsageError
from rocketcrew.remoting.fastjson import loads
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.supervisor.core import actions as act
from rocketcrew.supervisor.core import events as ev
from rocketcrew.supervisor.core.decisions import Core
from rocketcrew.supervisor.core.events import Committed, Event
from rocketcrew.supervisor.member.local_offsets import (
    LocalCommits,
    LocalOffsets,
    check_offsets_folder,
    offsets_path,
    own_offsets_path,
)
from rocketcrew.supervisor.slot import adopt, lock_client, take_slot, unlock_client

A, B = MessageQueue("orders", "broker-a", 0), MessageQueue("orders", "broker-a", 1)
MakeBench = Callable[..., Any]


def test_a_failure_is_dropped_and_does_not_hold_the_offset(make: MakeBench) -> None:
    bench = make(broadcasting=True)
    bench.worker("w")
    [handle] = bench.open(0)
    bench.found(handle, [0, 1, 2])
    while chunks := bench.dispatched():
        for chunk in chunks:
            bench.done(chunk, failures=[(0, 0, "ValueError: no")] if chunk.offsets == [1] else [])
    assert bench.persist() == [1], "until it is dropped"
    [line] = [log for log in bench.take(act.Log) if log.event == "message_dropped"]
    assert (line.keys["offset"], line.keys["error"]) == (1, "ValueError: no")
    drop = bench.one(act.SendBack)
    bench.core.handle(ev.SentBack(drop.handle, drop.chunk_id, drop.index, True), bench.now)
    assert bench.persist() == [3]
    counters = bench.counters
    assert (counters.failed_messages, counters.dropped_messages, counters.sent_back_messages) == (1, 1, 0)
    assert (bench.slab.used_units, bench.core.state.chunks) == (0, {})
    pq = bench.pq(handle)
    assert (pq.unfinished, pq.unfinished_bytes) == (0, 0)


def test_the_file_stands_where_java_looks_for_it() -> None:
    name = instance_name("DEFAULT", pid=7, nanos=9, keep_default=True)
    own = client_id("10.0.0.5", name)
    assert own == "10.0.0.5@DEFAULT"
    assert offsets_path("", own, "g", Path("/home/u")) == Path(
        "/home/u/.rocketmq_offsets/10.0.0.5@DEFAULT/g/offsets.json"
    )
    assert offsets_path("/data", own, "g", Path("/home/u")) == Path("/data/10.0.0.5@DEFAULT/g/offsets.json")


def test_the_file_has_javas_form_and_a_bak(tmp_path: Path) -> None:
    offsets = LocalOffsets(tmp_path / "c" / "g" / "offsets.json")
    assert offsets.read(A) is None
    offsets.write({A: 5})
    assert offsets.path.read_text() == '{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"orders"}:5}}'
    offsets.write({B: 7})
    assert loads((tmp_path / "c" / "g" / "offsets.json.bak").read_bytes())["offsetTable"] == {A: 5}
    assert LocalOffsets(offsets.path).table == {A: 5, B: 7}


def test_java_pretty_prints_it(tmp_path: Path) -> None:
    path = tmp_path / "offsets.json"
    path.write_text(
        '{\n\t"offsetTable":{{\n\t\t\t"brokerName":"broker-a",\n\t\t\t"queueId":0,\n\t\t\t"topic":"orders"\n\t\t}:12\n\t}\n}'
    )
    assert LocalOffsets(path).read(A) == 12


def test_a_damaged_file_is_replaced_by_its_bak_and_two_are_an_error(tmp_path: Path) -> None:
    offsets = LocalOffsets(tmp_path / "offsets.json")
    offsets.write({A: 5})
    offsets.write({A: 6})
    for damage in ("", '{"offsetTable":{{"bro'):
        offsets.path.write_text(damage)
        assert LocalOffsets(offsets.path).read(A) == 5
    for damage in ('{"offsetTable":{"orders":1}}', ""):  # an empty one is not "nothing was consumed yet"
        offsets.path.write_text(damage)
        (tmp_path / "offsets.json.bak").write_text(damage)
        with pytest.raises(UsageError, match="Move the file away"):
            LocalOffsets(offsets.path)


class Disk(FileCalls):
    """Notes what is synced and renamed, by name, and may be full."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.full = False

    def write(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().write(fd, data, position)

    def fsync(self, fd: int) -> None:
        self.done.append(f"sync {Path(os.readlink(f'/proc/self/fd/{fd}')).name}")

    def rename(self, path: str, new_path: str) -> None:
        self.done.append(f"rename to {Path(new_path).name}")
        super().rename(path, new_path)


def test_what_is_stored_is_on_the_disk_before_it_takes_the_files_name(tmp_path: Path) -> None:
    disk = Disk()
    offsets = LocalOffsets(tmp_path / "g" / "offsets.json", disk)
    offsets.write({A: 5})
    assert disk.done == ["sync .offsets.json.new", "rename to offsets.json", "sync g"]


def test_a_full_disk_leaves_the_bak_by_which_a_damaged_file_is_read(tmp_path: Path) -> None:
    disk = Disk()
    offsets = LocalOffsets(tmp_path / "offsets.json", disk)
    offsets.write({A: 5})
    offsets.write({A: 6})
    offsets.path.write_text("")
    again = LocalOffsets(offsets.path, disk)
    disk.full = True
    with pytest.raises(OSError, match="No space left"):
        again.write({A: 7})
    assert LocalOffsets(offsets.path).read(A) == again.read(A) == 5


class Answers:
    """A core of which only the answers to commits are looked at."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int, bool]] = []

    def handle(self, event: Event, now: float) -> None:
        del now
        assert isinstance(event, Committed)
        self.seen.append((event.handle, event.offset, event.ok))


class Noted(LocalOffsets):
    """Knows which thread has written."""

    by = 0

    def write(self, changes: dict[MessageQueue, int]) -> None:
        super().write(changes)
        self.by = threading.get_ident()


def test_commits_of_one_turn_are_one_write_and_a_late_one_undoes_nothing(tmp_path: Path) -> None:
    async def commit() -> None:
        core = Answers()
        offsets = Noted(tmp_path / "offsets.json")
        commits = LocalCommits(offsets, cast("Core", core), lambda: 0.0)
        await asyncio.gather(
            commits.commit(act.Commit(1, A, 9, guarded=False)),
            commits.commit(act.Commit(2, B, 3, guarded=False)),
            commits.commit(act.Commit(3, A, 4, guarded=True)),
        )
        assert sorted(core.seen) == [(1, 9, True), (2, 3, True), (3, 4, True)]
        assert offsets.table == {A: 9, B: 3}
        assert not (tmp_path / "offsets.json.bak").exists(), "one write"
        assert offsets.by != threading.get_ident(), "the loop waits for no disk"
        await commits.commit(act.Commit(1, A, 2, guarded=False))
        assert LocalOffsets(offsets.path).read(A) == 2, "the broker's word, as after a reset"
        assert not commits.known(A)

    asyncio.run(commit())


def test_a_file_that_cannot_be_written_is_told_to_the_core(tmp_path: Path) -> None:
    async def commit() -> None:
        core = Answers()
        (tmp_path / "file").write_text("")
        commits = LocalCommits(LocalOffsets(tmp_path / "new" / "offsets.json"), cast("Core", core), lambda: 0.0)
        (tmp_path / "new").write_text("a file where the folder should be")
        await commits.commit(act.Commit(1, A, 9, guarded=False))
        assert core.seen == [(1, 9, False)]

    asyncio.run(commit())


class NoLinks(FileCalls):
    def link(self, path: str, new_path: str) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP), path)


def test_a_disk_without_links_keeps_offsets_and_what_was_before(tmp_path: Path) -> None:
    """Shares of Windows, and folders over a bucket: from the second time on nothing was stored."""
    offsets = LocalOffsets(tmp_path / "offsets.json", NoLinks())
    for offset in (5, 6, 7):
        offsets.write({A: offset})
    assert LocalOffsets(offsets.path).read(A) == 7
    offsets.path.unlink()
    assert LocalOffsets(offsets.path).read(A) == 6


def test_a_disk_without_links_that_is_full_keeps_what_was_stored(tmp_path: Path) -> None:
    class Full(NoLinks):
        def write(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    LocalOffsets(tmp_path / "offsets.json").write({A: 5})
    offsets = LocalOffsets(tmp_path / "offsets.json", Full())
    for _ in range(2):
        with pytest.raises(OSError, match="No space"):
            offsets.write({A: 6})
        assert LocalOffsets(offsets.path).read(A) == 5


def test_a_folder_of_offsets_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"cannot be kept in .*/file/c/g.*consumer\.local_offset_store_dir"):
        check_offsets_folder(offsets_path(str(tmp_path / "file"), "c", "g", tmp_path))
    good = offsets_path(str(tmp_path / "new"), "c", "g", tmp_path)
    check_offsets_folder(good)
    check_offsets_folder(good)
    assert list(good.parent.iterdir()) == []


def test_a_user_without_a_home_needs_a_folder_for_offsets() -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    settings = load({"consumer.group": "g"}, {}, None).consumer
    with pytest.raises(UsageError, match=r"consumer\.local_offset_store_dir"):
        own_offsets_path(settings, "c", homeless)
    settings = load({"consumer.group": "g", "consumer.local_offset_store_dir": "/data"}, {}, None).consumer
    assert own_offsets_path(settings, "c", homeless) == Path("/data/c/g/offsets.json")


def test_an_unexpected_error_of_the_file_is_a_refused_commit(tmp_path: Path) -> None:
    """A commit without an answer would leave the offset where it is for ever."""

    class Broken(LocalOffsets):
        def write(self, changes: dict[MessageQueue, int]) -> None:
            raise ValueError("a mistake of ours")

    async def commit() -> None:
        core = Answers()
        commits = LocalCommits(Broken(tmp_path / "offsets.json"), cast("Core", core), lambda: 0.0)
        await asyncio.wait_for(commits.commit(act.Commit(1, A, 9, guarded=False)), 60)
        assert core.seen == [(1, 9, False)]

    asyncio.run(commit())


def test_a_slot_belongs_to_one_broadcasting_member(tmp_path: Path) -> None:
    one = take_slot(tmp_path, "g", "10.0.0.1@a")
    one.release()
    other = take_slot(tmp_path, "g", "10.0.0.1@b")
    cluster = take_slot(tmp_path, "g")
    assert [slot.path.name for slot in (one, other, cluster)] == ["0", "1", "2"]
    assert (other.key_group, cluster.key_group) == ("g@10.0.0.1@b", "g")
    assert adopt(other)[2] == []
    assert adopt(cluster)[2] == []
    again = take_slot(tmp_path, "g", "10.0.0.1@a")
    assert again.path == one.path


def test_one_client_id_is_in_a_group_once(tmp_path: Path) -> None:
    fd = lock_client(tmp_path, "g", "10.0.0.1@a/b")
    with pytest.raises(
        UsageError, match=r"The consumer group\[g\] has been created before, specify another name please"
    ):
        lock_client(tmp_path, "g", "10.0.0.1@a/b")
    others: list[Any] = [lock_client(tmp_path, "g", "10.0.0.1@b"), lock_client(tmp_path, "h", "10.0.0.1@a/b")]
    assert len(set(others)) == 2
    unlock_client(tmp_path, "g", "10.0.0.1@a/b", fd)
    fd = lock_client(tmp_path, "g", "10.0.0.1@a/b")
    unlock_client(tmp_path, "g", "10.0.0.1@a/b", fd)
    assert [path.name for path in (tmp_path / "g" / "clients").iterdir()] == ["10.0.0.1@b.lock"]
