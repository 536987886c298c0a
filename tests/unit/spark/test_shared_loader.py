"""Several supervisors, one destination that can't tell what it holds: one loader has all folders, others are refused."""

from __future__ import annotations

import json
import os
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from loader_world import Crash, World

from rocketcrew.conf.segment_format import LOADER_STATUS_FILE
from rocketcrew.durable.files import try_lock
from rocketcrew.remoting.errors import UsageError
from rocketcrew.spark.config import LoaderConfig
from rocketcrew.spark.errors import LoaderError
from rocketcrew.spark.targets.ledger import LEDGER_AT, LedgerTarget, ledger_of, lock_paths
from rocketcrew.spark.targets.making import make_target, make_writer
from rocketcrew.spark.work import Work


class Frames:
    """In place of Spark: a batch is delivered as the offsets of its rows. Dies after the delivery of batch `dies_at`."""

    session = None
    start_seconds = 0.0

    def __init__(self, dies_at: int = 0) -> None:
        self.delivered: list[tuple[int, list[int]]] = []
        self.ledger_ids: list[str] = []
        self.dies_at = dies_at

    def run(self, files: list[Path], _columns: object, title: str, deliver: Any) -> None:
        del title
        rows: list[Any] = [row for file in files for row in pq.read_table(str(file)).column("_offset").to_pylist()]
        deliver(sorted(rows))

    def deliver(self, frame: Any, batch: int, _ranges: object, ledger_id: str) -> None:
        self.delivered.append((batch, frame))
        self.ledger_ids.append(ledger_id)
        if batch == self.dies_at:
            raise Crash

    def start(self) -> None:
        pass

    check = close = cancel = start

    def tasks(self) -> tuple[int, int]:
        return 0, 0


def target_at(folder: Path, frames: Any, destination: str = "foreach app:keep") -> LedgerTarget:
    return LedgerTarget(folder, destination, frames, frames.deliver)


def test_one_loader_takes_the_folders_of_two_supervisors_each_record_once(
    tmp_path: Path, segments: Any, threads: Executor
) -> None:
    world = World(tmp_path, segments, threads)
    record = segments.Record
    world.seal([record(0), record(1)], at=0)
    world.seal([record(1), record(2)], at=1)  # 1 was sealed and not committed, and came again at the other one
    dying = Frames(dies_at=2)
    first = target_at(ledger_of(world.roots), dying)
    world.drain(world.loader(0, target=first))
    with pytest.raises(Crash):
        world.drain(world.loader(1, target=first))
    assert dying.delivered == [(1, [0, 1]), (2, [2])]
    world.seal([record(2), record(3)], at=0)
    frames: Any = Frames()
    config = LoaderConfig(
        world.roots[0], "", format="foreach", function="app:keep", more_stagings=tuple(world.roots[1:]), max_wait_ms=0
    )
    work = Work(config, frames, lambda config, writer, _: target_at(ledger_of(config.stagings), writer))
    assert work.run() == 0
    assert frames.delivered == [(2, [2]), (3, [3])], "first what was on its way, under the number that it had"
    assert {*dying.ledger_ids, *frames.ledger_ids} == {(ledger_of(world.roots) / "id").read_text().strip()}
    for root, rows in zip(world.roots, (1, 1), strict=True):
        status = json.loads((root / "loader.json").read_text())
        assert (status["state"], status["rows_total"]) == ("stopped", rows)
        assert not list((root / "ready").iterdir())


def test_the_ledger_is_found_whichever_folder_is_named_first(tmp_path: Path) -> None:
    one, two, three = (tmp_path / name for name in ("one", "two", "three"))
    ledger = ledger_of([one, two])
    assert ledger == one / "ledger"
    assert (two / LEDGER_AT).read_text() == f"{ledger}\n"
    for stagings in ([two, one], [two], [three, two]):
        assert ledger_of(stagings) == ledger
    (tmp_path / "link").symlink_to(one)
    assert ledger_of([tmp_path / "link", two]).samefile(ledger)
    four = tmp_path / "four"
    (four / "ledger").mkdir(parents=True)
    (four / "ledger" / "state.json").write_text("{}")
    with pytest.raises(UsageError, match=r"four/ledger, .*one/ledger each know a part"):
        ledger_of([one, four])


def test_a_ledger_on_a_disk_that_is_not_there_is_not_begun_anew(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    ledger = ledger_of([one, two])
    assert ledger == ledger_of([two]) == one / "ledger", "before its first batch too"
    one.rename(tmp_path / "moved")
    refused = r"one/ledger of .*two is out of reach: neither id nor state.json is there.*two/ledger\.at"
    with pytest.raises(UsageError, match=refused):
        ledger_of([two])
    one.mkdir()  # a mount point is a folder, whether or not its disk is mounted
    for stagings in ([two], [one, two]):
        with pytest.raises(UsageError, match=refused):
            ledger_of(stagings)
    assert list(one.iterdir()) == []
    (two / "ledger.at").write_text(f"{tmp_path / 'moved' / 'ledger'}\n")
    assert ledger_of([two]) == tmp_path / "moved" / "ledger"


def test_the_id_that_a_ledger_has_before_its_first_batch_is_the_one_that_is_delivered(
    world: World, segments: Any, tmp_path: Path
) -> None:
    frames = Frames()
    ledger = ledger_of([tmp_path / "one", tmp_path / "two"])
    given = (ledger / "id").read_text().strip()
    world.seal([segments.Record(0)])
    world.drain(world.loader(target=target_at(ledger, frames)))
    assert frames.ledger_ids == [given]


def test_the_ledger_is_found_where_a_link_leads_later(tmp_path: Path) -> None:
    """A data_dir that is a link, to a disk that is exchanged for a larger one."""
    data = tmp_path / "data"
    (tmp_path / "disk1" / "one").mkdir(parents=True)
    data.symlink_to(tmp_path / "disk1")
    one, two = data / "one", data / "two"
    ledger = ledger_of([one, two])
    assert (two / LEDGER_AT).read_text() == f"{one}/ledger\n"
    assert ledger_of([tmp_path / "disk1" / "one", two]).samefile(ledger)
    assert (two / LEDGER_AT).read_text() == f"{one}/ledger\n", "what says the same is left alone"
    (tmp_path / "disk1").rename(tmp_path / "disk2")
    data.unlink()
    data.symlink_to(tmp_path / "disk2")
    assert (ledger_of([two]) / "id").exists()
    assert ledger_of([two, one]) == ledger


def test_a_second_loader_of_one_destination_is_refused(tmp_path: Path) -> None:
    frames = Frames()
    first, second = (target_at(tmp_path / "g" / slot / "segments" / "ledger", frames) for slot in "01")
    assert first.state().batch == 0
    with pytest.raises(LoaderError, match=r"another loader delivers to 'foreach app:keep'.*--staging A --staging B"):
        second.state()
    assert target_at(tmp_path / "g" / "1" / "segments" / "ledger", frames, "foreach app:other").state().batch == 0
    first.close()
    assert second.state().batch == 0


def test_a_second_loader_of_a_ledger_that_is_known_by_two_names_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data" / "g" / "0" / "segments").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "data" / "g" / "0")
    frames = Frames()
    first, second = (target_at(tmp_path / slot / "segments" / "ledger", frames) for slot in ("data/g/0", "link"))
    assert first.state().batch == 0
    with pytest.raises(LoaderError, match="another loader delivers to"):
        second.state()
    first.close()
    second.state()
    with pytest.raises(LoaderError, match="another loader delivers to"):
        first.state()
    second.close()


@pytest.mark.parametrize("linked", ["", "segments"])
def test_loaders_of_slots_that_are_links_to_other_disks_meet(tmp_path: Path, linked: str) -> None:
    """As they did before a ledger was known by all its names, so the two versions meet as well."""
    for slot in "01":
        (disk := tmp_path / f"disk{slot}" / "rows").mkdir(parents=True)
        (link := tmp_path / "g" / slot / linked).parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(disk)
    first, second = (target_at(tmp_path / "g" / slot / "segments" / "ledger", Frames()) for slot in "01")
    first.state()
    with pytest.raises(LoaderError, match=rf"another loader delivers to .*the lock {tmp_path}/g/\.rocketcrew-"):
        second.state()
    first.close()
    second.state()
    second.close()


def test_a_loader_is_let_in_where_a_link_leads_into_a_folder_that_it_may_not_write(tmp_path: Path) -> None:
    (tmp_path / "mnt" / "0" / "segments").mkdir(parents=True)
    (tmp_path / "g").mkdir()
    (tmp_path / "g" / "0").symlink_to(tmp_path / "mnt" / "0")
    paths = lock_paths("foreach app:keep", "", tmp_path / "g" / "0" / "segments" / "ledger")
    assert [path.parent for path in paths] == [tmp_path / "g", tmp_path / "mnt" / "0" / "segments"]


def test_where_a_second_lock_can_t_be_had_the_first_is_given_back(tmp_path: Path) -> None:
    ledger = tmp_path / "g" / "0" / "segments" / "ledger"
    first = target_at(ledger, Frames())
    among_slots, beside = lock_paths("foreach app:keep", "", ledger)
    beside.mkdir(parents=True)
    with pytest.raises(LoaderError, match=f"the lock {beside} can't be used: Is a directory"):
        first.state()
    lock = try_lock(among_slots)
    assert lock is not None
    os.close(lock)
    beside.rmdir()
    first.state()
    for path in (among_slots, beside):
        assert try_lock(path) is None
    first.close()


def test_a_link_to_a_disk_that_is_not_there_stays_one(tmp_path: Path) -> None:
    (tmp_path / "g" / "0").mkdir(parents=True)
    (tmp_path / "g" / "0" / "segments").symlink_to(tmp_path / "disk")
    with pytest.raises(LoaderError, match="can't be used: File exists"):
        target_at(tmp_path / "g" / "0" / "segments" / "ledger", Frames()).state()
    assert not (tmp_path / "disk").exists()


def test_one_process_delivers_as_often_as_it_is_asked_to(world: World, segments: Any) -> None:
    """A notebook that calls `load` once more."""
    for offset in (1, 2):
        world.seal([segments.Record(offset)])
        frames: Any = Frames()
        config = LoaderConfig(world.roots[0], "", format="foreach", function="app:keep", max_wait_ms=0)
        work = Work(config, frames, lambda config, writer, _: target_at(ledger_of(config.stagings), writer))
        assert (work.run(), work.error) == (0, "")
        assert frames.delivered == [(offset, [offset])]


def test_two_ledgers_have_two_ids(world: World, segments: Any, tmp_path: Path) -> None:
    """Both count from 1: only with the id does a function know which batches it has had."""
    frames = Frames()
    for name in "ab":
        world.seal([segments.Record(0)])
        world.drain(world.loader(target=target_at(tmp_path / name / "ledger", frames)))
    assert [batch for batch, _ in frames.delivered] == [1, 1]
    assert len(set(frames.ledger_ids)) == 2


def test_the_lock_is_beside_a_path_and_beside_the_state_for_all_else(tmp_path: Path) -> None:
    state = tmp_path / "g" / "0" / "segments" / "ledger"
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o1777)
    (beside,) = lock_paths("json", str(tmp_path / "out"), state)
    assert beside.parent == tmp_path
    assert lock_paths("json", f"file://{tmp_path / 'out'}", state) == [beside]
    (tmp_path / "link").symlink_to(tmp_path / "out")
    names = [str(tmp_path / "out"), str(tmp_path / "link"), f"file://{tmp_path / 'link'}"]
    assert len({one for name in names for one in lock_paths(f"json {name}", name, state)}) == 1
    for place in ("", str(tmp_path / "open" / "out"), str(tmp_path / "absent" / "out")):
        among_slots, own = lock_paths("jdbc url=x", place, state)
        assert among_slots.parent == tmp_path / "g", "where all slots of the group find it"
        assert own.parent == state.parent, "whatever names it has"
    assert [one.parent for one in lock_paths("jdbc url=x", "", tmp_path / "rows" / "ledger")] == [tmp_path / "rows"]
    assert not {*lock_paths("jdbc url=x", "", state)} & {*lock_paths("jdbc url=y", "", state)}


def test_secrets_of_options_are_neither_said_nor_kept(tmp_path: Path, threads: Executor) -> None:
    options = {"password": "hunter2", "url": "jdbc:postgresql://sue:hunter2@db/rows", "dbtable": "rows"}
    config = LoaderConfig(tmp_path / "segments", "", format="jdbc", options=options)
    first, second = (make_target(config, make_writer(config), threads) for _ in range(2))
    first.state()
    with pytest.raises(LoaderError, match="dbtable=rows") as refused:
        second.state()
    first.close()
    (config.staging / "ready").mkdir(parents=True)
    assert Work(config, make_writer(config)).run() == 0
    told = (config.staging / LOADER_STATUS_FILE).read_text()
    assert "dbtable=rows" in told
    assert "hunter2" not in told + str(refused.value)


def test_a_folder_is_named_once() -> None:
    with pytest.raises(UsageError, match="named twice"):
        LoaderConfig(Path("s"), Path("t"), more_stagings=(Path("./s"),))
    with pytest.raises(UsageError, match="one in the other"):
        LoaderConfig(Path("s"), Path("t"), more_stagings=(Path("t/s"),))
