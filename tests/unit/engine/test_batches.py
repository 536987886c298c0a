"""A batch from its messages to the table, and what each crash point leaves: the handler runs once, the rows come once."""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog

from rocketcrew.durable.intervals import IntervalSet, OffsetSet, QueueKey
from rocketcrew.durable.outcomes import NO_ROWS, SENT_BACK, SETTLED, Outcomes
from rocketcrew.engine.batches import Batches, spark_job
from rocketcrew.engine.home import TASK_DIRS, Home, Reached, State, own_files
from rocketcrew.engine.planned import Planned
from rocketcrew.engine.spec import Report, TaskSpec
from rocketcrew.engine.task import run_task
from rocketcrew.remoting.errors import UsageError
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.spark.staging import Staging
from rocketcrew.workers.loading import describe

KEY = QueueKey("g", "t", "a", 1)
QUEUE = MessageQueue("t", "a", 1)


class Crash(Exception):
    """The process would be gone here."""


def outcome(kind: str, start: int, end: int) -> Outcomes:
    return Outcomes.of([(kind, OffsetSet.of([(KEY, IntervalSet.of([(start, end)]))]))])


class World:
    """A home, a job that writes files, and everything that is asked for."""

    def __init__(self, folder: Path) -> None:
        self.home = Home(folder, "g")
        self.jobs: list[int] = []
        self.sent: list[str] = []
        self.loaded: list[list[str]] = []
        self.crash = ""
        self.after: list[dict[MessageQueue, int]] = []
        self.names: list[str] = []
        self.begin_stream("q1")

    def begin_stream(self, query: str) -> None:
        """A checkpoint whose batches have ten offsets each."""
        (self.home.checkpoint / "offsets").mkdir(exist_ok=True, parents=True)
        (self.home.checkpoint / "metadata").write_text(json.dumps({"id": query}))
        self.home.write_starting({QUEUE: 0})
        for batch in range(4):
            self.plan(batch, batch * 10 + 10)

    def plan(self, batch: int, end: int) -> None:
        """What Spark writes down before it runs a batch."""
        text = f'v1\n{{"batchWatermarkMs":0}}\n{{"t":{{"a":{{"1":{end}}}}}}}'
        (self.home.checkpoint / "offsets" / str(batch)).write_text(text)

    def job(self, frame: int, spec: TaskSpec) -> list[Report]:
        self.jobs.append(frame)
        self.after.append(dict(spec.after))
        self.names.append(spec.prefix)
        for folder, name in (("open", "x-1.arrows"), ("failed", "f.arrows")):
            (spec.folder / folder).mkdir(exist_ok=True)
            (spec.folder / folder / name).write_text(spec.prefix)
        self.stop_at("handled")
        offset = frame * 10
        report = Report(
            partition=0, segments=("x-1.arrows",), rows=9, handled=9, failed=1, failures="f.arrows",
            outcomes=outcome(NO_ROWS, offset, offset + 9),
        )  # fmt: skip
        return [report]

    def send(self, path: Path) -> Outcomes:
        assert path.exists()
        self.sent.append(path.parent.parent.name)
        self.stop_at("sent")
        offset = int(path.parent.parent.name) * 10
        return outcome(SENT_BACK, offset + 9, offset + 10)

    def load(self) -> Reached:
        ready = Staging(self.home.segments).list_ready()
        self.stop_at("moved")
        self.loaded.append([file.path.name for file in ready])
        for file in ready:
            file.path.unlink()
        self.stop_at("loaded")
        return Reached(41 + len(self.loaded), "table", f"plan {len(self.loaded)}")

    def stop_at(self, point: str) -> None:
        if self.crash == point:
            self.crash = ""
            raise Crash(point)

    def run(self, batch: int) -> None:
        spec = TaskSpec(handler=describe("m:f"), run="r", prefix="", folder=self.home.batches, group="g")
        batches = Batches(self.home, Staging(self.home.segments), spec, send=self.send, load=self.load, job=self.job)
        frame: Any = batch
        batches.run(frame, batch)


def test_a_batch_goes_its_way_and_is_known_afterwards(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.run(0)
    world.run(0)
    world.run(1)
    assert (world.jobs, world.sent) == ([0, 1], ["0", "1"])
    assert world.loaded == [["x-1.arrows"], ["x-1.arrows"]]
    assert (world.home.state("q1").done, world.home.reached()) == (1, Reached(43, "table", "plan 2"))
    assert not list(world.home.batches.iterdir())
    staging = Staging(world.home.segments)
    noted = staging.noted()[1]
    assert noted.of_queue(SETTLED, KEY) == IntervalSet.of([(0, 20)])
    assert noted.of_queue(SENT_BACK, KEY) == IntervalSet.of([(9, 10), (19, 20)])


@pytest.mark.parametrize(
    ("point", "jobs", "loads"), [("handled", 2, 1), ("sent", 1, 1), ("moved", 1, 1), ("loaded", 1, 2)]
)
def test_each_crash_is_taken_up(tmp_path: Path, point: str, jobs: int, loads: int) -> None:
    world = World(tmp_path)
    world.crash = point
    with pytest.raises(Crash):
        world.run(0)
    world.run(0)
    assert len(world.jobs) == jobs, "the handler runs again only before the manifest"
    assert [name for load in world.loaded for name in load] == ["x-1.arrows"]
    assert len(world.loaded) == loads
    assert world.home.state("q1").done == 0


def test_a_number_that_was_planned_anew_is_not_known(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.run(0)
    world.run(1)
    # The machine failed, and the checkpoint lost batch 1: by now there is more.
    world.plan(1, 35)
    world.run(1)
    assert world.after == [{}, {}, {QUEUE: 20}], "what is done is not handled again, and what is new is"
    assert len(set(world.names)) == 3, "files are not named as those that are in the table"
    world.run(1)
    world.plan(2, 40)
    world.run(2)
    assert world.jobs == [0, 1, 1, 2]
    assert world.after[-1] == {}
    # And lost once more, with less: nothing of it is new, and of the next batch only a part.
    world.plan(2, 37)
    world.run(2)
    world.plan(3, 50)
    world.run(3)
    assert world.jobs == [0, 1, 1, 2, 3]
    assert world.after[-1] == {QUEUE: 40}
    assert world.home.state("q1").ends == {QUEUE: 50}


def test_what_was_frozen_of_a_batch_that_is_planned_anew_is_finished_first(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.run(0)
    world.crash = "sent"
    with pytest.raises(Crash):
        world.run(1)
    (world.home.checkpoint / "offsets" / "1").unlink()
    world.plan(0, 35)
    world.run(0)
    assert world.after == [{}, {}, {QUEUE: 20}]
    assert world.sent == ["0", "1", "1", "0"]
    assert not list(world.home.batches.iterdir())


def test_a_queue_that_became_shorter_is_handled_from_where_the_stream_goes_back_to(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.run(0)
    world.plan(1, 3)
    world.run(1)
    world.run(1)
    world.plan(2, 8)
    world.run(2)
    assert world.jobs == [0, 1, 2]
    assert world.after[-1] == {}
    assert world.home.state("q1").ends == {QUEUE: 8}


def test_a_stream_has_begun_with_its_first_batch_and_not_with_its_metadata(tmp_path: Path) -> None:
    home = Home(tmp_path, "g")
    assert (home.begun(), home.starting()) == (False, None)
    (home.checkpoint / "offsets").mkdir(parents=True)
    (home.checkpoint / "metadata").write_text('{"id": "q1"}')
    (home.checkpoint / "offsets" / ".0.crc").write_text("")
    other = QUEUE._replace(topic="other")
    home.write_starting({QUEUE: 5, other: 7})
    assert not home.begun()
    (home.checkpoint / "offsets" / "0").write_text('v1\n{}\n{"t":{"a":{"1":9}}}')
    assert home.begun()
    assert home.known() == {QUEUE: 9, other: 7}
    assert home.planned(0) == Planned({QUEUE: 5, other: 7}, {QUEUE: 9})


def test_another_checkpoint_begins_anew(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.run(0)
    world.crash = "sent"
    with pytest.raises(Crash):
        world.run(1)
    world.begin_stream("q2")
    world.run(0)
    assert world.jobs == [0, 1, 0]
    assert not (world.home.batches / "1").exists()


def test_damaged_files_and_a_second_driver_are_told(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.home.lock()
    with pytest.raises(UsageError, match="another `run --engine spark`"):
        Home(tmp_path, "g").lock()
    assert world.home.state("q1").done == -1
    (world.home.batches / "0").mkdir()
    (world.home.batches / "0" / "manifest.json").write_text("[")
    with pytest.raises(UsageError, match="delete the folder to run it again"):
        world.run(0)
    (world.home.batches / "0" / "manifest.json").unlink()
    (world.home.checkpoint / "offsets" / "0").write_text("v7\n{}\n{}")
    with pytest.raises(
        UsageError, match=r"version 'v7'.*nobody knows which messages batch 0 is made of.*rocketcrew reset"
    ):
        world.run(0)
    (world.home.root / "state.json").write_text('{"version": 9}')
    with pytest.raises(UsageError, match="version 9"):
        world.home.state("q1")


@contextmanager
def umask(bits: int) -> Generator[None]:
    before = os.umask(bits)
    try:
        yield
    finally:
        os.umask(before)


@pytest.mark.parametrize("bits", [0o002, 0o022, 0o077])
@pytest.mark.parametrize(
    ("mode", "shared"), [(0o2770, True), (0o3770, True), (0o775, True), (0o755, False), (0o700, False)]
)
def test_of_a_group_s_data_folder_it_may_write_what_tasks_write_into_and_nothing_else(
    tmp_path: Path, mode: int, shared: bool, bits: int
) -> None:
    data_dir = tmp_path / "data"
    data_dir.mkdir()
    data_dir.chmod(mode)
    with umask(bits), own_files(data_dir):
        home = Home(data_dir, "g")
        folder = home.batches / "0"
        home.make_task_folders(folder)
        home.write_state(State("q1", 0, Reached(), {}))
        home.checkpoint.mkdir()
    inside = [folder / name for name in TASK_DIRS]
    above = [folder, home.batches, home.root, data_dir / "g", home.segments]
    closed = [home.ship]
    if shared:
        assert data_dir.stat().st_mode & 0o3020 == (mode & 0o2020) | 0o1000, "nobody renames what is another's"
        assert {one.stat().st_mode & 0o2070 for one in inside} == {0o2070}
        assert {one.stat().st_mode & 0o2070 for one in above} == {0o2050}
        assert {one.stat().st_mode & 0o0077 for one in closed} == {0}
        assert not (home.root / "state.json").stat().st_mode & 0o022, "whatever the umask is"
        assert not home.checkpoint.stat().st_mode & 0o022
    else:
        assert data_dir.stat().st_mode & 0o7777 == mode
        assert {one.stat().st_mode & 0o7777 for one in (*inside, *above, *closed)} == {0o777 & ~bits}
    assert {one.stat().st_gid for one in (*inside, *above)} == {data_dir.stat().st_gid}
    home.make_task_folders(folder)


def test_folders_that_the_group_could_write_before_are_closed_to_it(tmp_path: Path) -> None:
    root = tmp_path / "g" / "engine"
    before = [tmp_path, tmp_path / "g", root, *(root / name for name in ("batches", "ship", "spark", "checkpoint"))]
    for one in before:
        one.mkdir(exist_ok=True)
        one.chmod(0o2775)
    Home(tmp_path, "g")
    assert [oct(one.stat().st_mode & 0o7777) for one in before] == [
        "0o3775", "0o2755", "0o2755", "0o2755", "0o2700", "0o2700", "0o2700"
    ]  # fmt: skip


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders away")
@pytest.mark.parametrize("planted", ["g", "g/engine", "g/engine/ship", "g/engine/spark", "g/engine/checkpoint"])
def test_what_another_user_has_planted_in_a_group_s_data_folder_is_refused(tmp_path: Path, planted: str) -> None:
    tmp_path.chmod(0o2770)
    (tmp_path / planted).mkdir(parents=True)
    os.chown(tmp_path / planted, 65533, -1)
    with pytest.raises(UsageError, match=f"{planted} belongs to user 65533, who could run code as this one"):
        Home(tmp_path, "g")
    os.chown(tmp_path, 65533, -1)
    Home(tmp_path, "g")  # it is his folder: he may do as he likes


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders away")
def test_folders_of_the_group_whose_rights_are_not_ours_to_change_are_warned_of(tmp_path: Path) -> None:
    """As of a user that is not root: `guard` changes only what is its own."""
    data_dir = tmp_path / "data"
    data_dir.mkdir()
    (data_dir / "g").mkdir()
    os.chown(data_dir, 65533, 65533)
    os.chown(data_dir / "g", 65533, 65533)
    data_dir.chmod(0o2770)
    (data_dir / "g").chmod(0o2770)
    with structlog.testing.capture_logs() as lines:
        Home(data_dir, "g")
    told = [line["folder"] for line in lines if line["event"] == "engine_folder_open_to_group"]
    assert set(told) == {str(data_dir), str(data_dir / "g")}


def test_executors_that_may_not_write_are_named_with_what_to_do(tmp_path: Path) -> None:
    spec = TaskSpec(handler=describe(print), run="r", prefix="p", folder=tmp_path / "elsewhere", group="g")
    report = run_task(spec, [], 0, 0)
    assert f"with user id {os.geteuid()}" in report.unwritable
    rows = [SimpleNamespace(report=report.to_json())]
    frame = SimpleNamespace(mapInArrow=lambda *_: SimpleNamespace(collect=lambda: rows))
    with pytest.raises(UsageError, match=r"may not write into .*chmod 3770 on supervisor\.data_dir"):
        spark_job(frame, spec)
