"""A table that was removed or taken back, and what is known of it afterwards by who does what the loader says."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from loader_world import World
from pyiceberg.catalog import load_catalog

from rocketcrew.cli.main import run
from rocketcrew.conf.exit_codes import EXIT_USAGE
from rocketcrew.durable.intervals import QueueKey
from rocketcrew.spark.config import LoaderConfig
from rocketcrew.spark.reconciling import Fate, QueueEnds, Report, reconcile
from rocketcrew.spark.status import StatusFile, read_status
from rocketcrew.spark.table_keys import table_facts
from rocketcrew.spark.targets.making import make_writer
from rocketcrew.spark.work import Work

ORDERS = QueueKey("g", "orders", "broker-a", 0)


def load(
    world: World, format_: str, *offsets: int, at: int = 0, options: Mapping[str, str] = MappingProxyType({})
) -> str:
    """One run of a loader of its own; why it ended, empty: all is loaded."""
    if offsets:
        world.seal([world.helpers.Record(offset) for offset in offsets], at=at)
    config = LoaderConfig(world.roots[at], world.table, format=format_, options=options)
    work = Work(config, make_writer(config))
    assert (work.run() == 0) is not bool(work.error)
    return work.error


def compared(world: World, committed: int, first: int = 0) -> Report:
    roots = [root for root in world.roots if root.exists()]
    return reconcile(table_facts(world.table, roots)[0], {ORDERS: QueueEnds(first, committed + 2, committed)})


def fates(report: Report, key: QueueKey = ORDERS) -> dict[Fate, Any]:
    (found,) = [one for one in report.queues if one.key == key]
    return {fate: offsets.pieces for fate, offsets in found.fates.items()}


def as_said(world: World, tmp_path: Path, error: str) -> None:
    """What the loader's error has to be typed, first of all."""
    assert "loader.json" not in error
    (line,) = re.findall(r"`(rocketcrew load [^`]*)`", error)
    assert "--table-replaced" in line
    assert run(shlex.split(line)[1:], {}, tmp_path) == 0


@pytest.mark.parametrize("format_", ["pyarrow", "deltalake"])
def test_who_does_what_the_loader_says_keeps_what_is_known(world: World, tmp_path: Path, format_: str) -> None:
    for batch in range(3):
        assert load(world, format_, 2 * batch, 2 * batch + 1) == ""
    shutil.rmtree(world.table)
    error = load(world, format_, 6, 7)
    assert error.startswith("the table had reached batch 3, and is now at 0: it was removed, replaced or taken back. ")
    as_said(world, tmp_path, error)
    report = compared(world, 8)
    assert (report.fine, report.batches, report.batches_lost) == (False, None, 3)
    assert fates(report) == {Fate.LOADED: ((6, 8),), Fate.UNKNOWN: ((0, 6),), Fate.WAITING: ((8, 10),)}
    assert report.to_run_again().count() == 6
    assert not reconcile(table_facts(world.table, world.roots[:1])[0], None).fine, "nor where no broker is asked"
    assert load(world, format_, 8) == ""
    assert not compared(world, 9).fine, "it is still known in later runs"
    assert load(world, format_, *range(6)) == ""
    report = compared(world, 9)
    assert report.fine
    assert fates(report) == {Fate.LOADED: ((0, 9),), Fate.WAITING: ((9, 11),)}


def test_what_brokers_have_no_more_stays_unexplained(world: World, tmp_path: Path) -> None:
    assert load(world, "pyarrow", 0, 1) == ""
    shutil.rmtree(world.table)
    as_said(world, tmp_path, load(world, "pyarrow", 2))
    report = compared(world, 3, first=1)
    assert fates(report)[Fate.UNKNOWN] == ((0, 2),)
    assert [one.gone.pieces for one in report.queues] == [((0, 1),)]


def test_a_queue_of_which_nothing_came_since_may_have_been_in_it(world: World, tmp_path: Path) -> None:
    assert load(world, "pyarrow", 0, 1) == ""
    shutil.rmtree(world.table)
    as_said(world, tmp_path, load(world, "pyarrow", 2))
    other = ORDERS._replace(queue_id=1)
    report = reconcile(table_facts(world.table, world.roots[:1])[0], {other: QueueEnds(0, 7, 5)})
    assert fates(report, other) == {Fate.UNKNOWN: ((0, 5),), Fate.WAITING: ((5, 7),)}


def test_a_backup_that_was_put_back(world: World, tmp_path: Path) -> None:
    assert load(world, "pyarrow", 0, 1) == ""
    shutil.copytree(world.table, tmp_path / "backup")
    for offset in (2, 3):
        assert load(world, "pyarrow", offset) == ""
    world.helpers.settle(world.roots[0], (*ORDERS[:4], 0, 4))  # their rows are nowhere now, which is no other loss
    shutil.rmtree(world.table)
    shutil.copytree(tmp_path / "backup", world.table)
    error = load(world, "pyarrow", 4)
    assert "batch 3, and is now at 1" in error
    as_said(world, tmp_path, error)
    report = compared(world, 5)
    assert (report.batches_lost, fates(report)[Fate.UNKNOWN]) == (2, ((2, 4),))
    assert load(world, "pyarrow", 2, 3) == ""
    assert compared(world, 5).fine


def test_folders_of_one_table_that_one_of_them_has_begun_anew(world: World, tmp_path: Path) -> None:
    """The one whose file is gone does not see it; reconcile does, by what is known of both tables."""
    assert load(world, "pyarrow", 0) == ""
    assert load(world, "pyarrow", 1, at=1) == ""
    shutil.rmtree(world.table)
    (world.roots[0] / "loader.json").unlink()
    for offset in (2, 3):
        assert load(world, "pyarrow", offset) == ""
    assert compared(world, 4).batches == (2, 4)
    words = [word for root in world.roots for word in ("--staging", str(root))]
    words += ["--target", str(world.table), "--set", "spark.format=pyarrow", "--table-replaced"]
    for _ in range(2):
        assert run(("load", *words), {}, tmp_path) == 0
        told = [read_status(root / "loader.json") for root in world.roots]
        assert [one and (one.batch_id, one.batches_total, one.batches_lost) for one in told] == [(2, 0, 2)] * 2
    report = compared(world, 4)
    assert (report.fine, report.batches, fates(report)[Fate.UNKNOWN]) == (False, None, ((0, 2),))


def test_nothing_is_noted_of_a_table_that_is_whole(world: World, tmp_path: Path) -> None:
    assert load(world, "pyarrow", 3) == ""
    words = ["--staging", str(world.roots[0]), "--target", str(world.table), "--set", "spark.format=pyarrow"]
    assert run(("load", *words, "--table-replaced"), {}, tmp_path) == 0
    assert compared(world, 4).fine


def test_lost_batches_are_known_of_a_table_that_was_moved_since(world: World, tmp_path: Path) -> None:
    for offset in range(2):
        assert load(world, "pyarrow", offset) == ""
    shutil.rmtree(world.table)
    as_said(world, tmp_path, load(world, "pyarrow", 2))
    world.table = world.table.rename(tmp_path / "moved")
    assert load(world, "pyarrow", 3) == ""
    report = compared(world, 4)
    assert (report.batches_lost, fates(report)[Fate.UNKNOWN]) == (2, ((0, 2),))


@pytest.mark.parametrize("format_", ["pyarrow", "deltalake"])
def test_a_backup_that_was_put_at_another_place(world: World, tmp_path: Path, format_: str) -> None:
    """A table is known by its id: else what it lacks of later topics would count as from before the group."""
    assert load(world, format_, 0, 1) == ""
    shutil.copytree(world.table, tmp_path / "backup")
    bills = ORDERS._replace(topic="bills")
    world.seal([world.helpers.Record(0, topic="bills")])
    assert load(world, format_) == ""
    shutil.rmtree(world.table)
    world.table = tmp_path / "backup"
    ends = {ORDERS: QueueEnds(0, 2, 2), bills: QueueEnds(0, 1, 1)}
    assert reconcile(table_facts(world.table, world.roots[:1])[0], ends).batches == (1, 2), (
        "before a loader has seen it"
    )
    error = load(world, format_, 2)
    assert error.startswith("the table had reached batch 2, and is now at 1: it was removed, replaced or taken back. ")
    assert load(world, format_) == error, "it is known to the next run, too"
    as_said(world, tmp_path, error)
    report = reconcile(table_facts(world.table, world.roots[:1])[0], ends)
    assert (report.batches_lost, fates(report, bills)) == (1, {Fate.UNKNOWN: ((0, 1),)})


def test_the_batches_of_a_folder_and_of_its_copy_are_counted_once(world: World) -> None:
    """As where the state of a host was copied to another one, and reconcile looks into both."""
    for offset in range(2):
        assert load(world, "pyarrow", offset) == ""
    shutil.copytree(world.roots[0], world.roots[1])
    assert compared(world, 2).fine
    for offset, at in enumerate((0, 0, 1), 2):
        assert load(world, "pyarrow", offset, at=at) == ""
        assert compared(world, offset + 1).fine
    shutil.rmtree(world.table / "batch_id=5")
    assert compared(world, 5).batches == (4, 5)


class Busy(type(Path())):
    """A table's folder: each time that it was listed a loader commits."""

    commit: Any = None

    def iterdir(self) -> Any:
        listed = list(super().iterdir())
        if self.commit is not None:
            self.commit()
        return iter(listed)


def test_a_batch_that_is_loaded_while_the_table_is_looked_at_is_not_missed(world: World) -> None:
    """What loaders say is read before the table, which has as many batches then, or more."""
    assert load(world, "pyarrow", 0) == ""
    offsets = iter(range(1, 100))
    looked_at = Busy(world.table)
    looked_at.commit = lambda: load(world, "pyarrow", next(offsets))
    facts, _ = table_facts(looked_at, world.roots[:1])
    assert next(offsets) > 2, "it was loaded meanwhile"
    assert reconcile(facts, None).batches is None


def test_a_table_that_was_moved_goes_on_and_another_one_begins(world: World, tmp_path: Path) -> None:
    for offset in range(2):
        assert load(world, "pyarrow", offset) == ""
    world.table = world.table.rename(tmp_path / "moved")
    assert load(world, "pyarrow", 2) == ""
    told = read_status(world.roots[0] / "loader.json")
    assert told is not None
    assert (told.batch_id, told.batches_total) == (3, 3)
    assert compared(world, 3).fine
    world.table = tmp_path / "new"
    assert load(world, "pyarrow", 3) == ""
    told = read_status(world.roots[0] / "loader.json")
    assert told is not None
    assert (told.batch_id, told.batches_total, told.known_of) == (1, 1, str(world.table))


def test_the_gaps_of_lost_batches_do_not_end_later_loaders(world: World, tmp_path: Path) -> None:
    """The supervisor says only after the command that it has finished the records, or once more."""
    assert load(world, "pyarrow", 0, 1) == ""
    shutil.copytree(world.table, tmp_path / "backup")
    assert load(world, "pyarrow", 2) == ""
    shutil.rmtree(world.table)
    shutil.copytree(tmp_path / "backup", world.table)
    as_said(world, tmp_path, load(world, "pyarrow", 3))
    world.helpers.settle(world.roots[0], (*ORDERS[:4], 0, 4))
    assert load(world, "pyarrow", 4) == ""
    assert fates(compared(world, 5))[Fate.UNKNOWN] == ((2, 3),)


def test_a_table_of_which_nothing_is_known_is_not_begun(world: World, tmp_path: Path) -> None:
    """Such as that of a mistyped path; what is known of the right one stays."""
    assert load(world, "pyarrow", 0) == ""
    world.seal([world.helpers.Record(1)])
    words = ["--staging", str(world.roots[0]), "--set", "spark.format=pyarrow", "--table-replaced"]
    other = tmp_path / "tabel"
    assert run(("load", *words, "--target", str(other)), {}, tmp_path) == EXIT_USAGE
    assert not other.exists()
    shutil.rmtree(world.table)
    assert load(world, "pyarrow").startswith("the table had reached batch 1, and is now at 0")
    world.seal([world.helpers.Record(2)], at=1)  # of a member that has loaded nothing yet
    words += ["--staging", str(world.roots[1]), "--target", str(world.table)]
    assert run(("load", *words), {}, tmp_path) == 0
    assert fates(compared(world, 3)) == {Fate.LOADED: ((1, 3),), Fate.UNKNOWN: ((0, 1),), Fate.WAITING: ((3, 5),)}


def test_the_table_of_a_catalog_is_named_by_a_file_of_settings(world: World, tmp_path: Path) -> None:
    """Without the member's spark.options the command would fill another one."""
    options = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "table": "sales.orders"}
    assert load(world, "iceberg", 0, options=options) == ""
    with closing(load_catalog("rocketcrew", **options)) as catalog:
        catalog.drop_table(options["table"])
    shutil.rmtree(world.table)
    error = load(world, "iceberg", 1, options=options)
    assert "`rocketcrew load -c SETTINGS.toml --table-replaced" in error
    assert "` (SETTINGS.toml is the file with the member's settings" in error
    (line,) = re.findall(r"`(rocketcrew load [^`]*)`", error)
    assert run(shlex.split(line)[1:], {}, tmp_path) == EXIT_USAGE, "there is no such file"
    assert not world.table.exists()
    told = "".join(f'{name} = "{value}"\n' for name, value in options.items())
    (tmp_path / "SETTINGS.toml").write_text(f"[spark.options]\n{told}")
    line = line.replace("SETTINGS.toml", str(tmp_path / "SETTINGS.toml"))
    as_said(world, tmp_path, f"`{line}`")
    assert load(world, "iceberg", 2, options=options) == ""
    assert not (world.table / "catalog.db").exists()


def test_a_topic_that_the_group_took_up_after_the_loss(world: World, tmp_path: Path) -> None:
    """From its end: what brokers have from before that was never the group's, and is not to be run."""
    assert load(world, "pyarrow", 0, 1) == ""
    shutil.rmtree(world.table)
    as_said(world, tmp_path, load(world, "pyarrow", 2))
    bills = ORDERS._replace(topic="bills")
    world.seal([world.helpers.Record(20, topic="bills")])
    assert load(world, "pyarrow") == ""
    ends = {ORDERS: QueueEnds(0, 3, 3), bills: QueueEnds(5, 21, 21), ORDERS._replace(queue_id=1): QueueEnds(0, 2, 2)}
    report = reconcile(table_facts(world.table, world.roots[:1])[0], ends)
    assert fates(report, bills) == {Fate.LOADED: ((20, 21),), Fate.BEFORE: ((5, 20),)}
    assert {(key.topic, key.queue_id): one.pieces for key, one in report.to_run_again().queues.items()} == {
        ("orders", 0): ((0, 2),), ("orders", 1): ((0, 2),)
    }  # fmt: skip
    assert load(world, "pyarrow", 0, 1) == ""
    facts = table_facts(world.table, world.roots[:1])[0]
    assert reconcile(facts, None).fine
    assert not reconcile(replace(facts, topics_lost=None), None).fine, "as one that an earlier version took on"
    shutil.rmtree(world.table)
    as_said(world, tmp_path, load(world, "pyarrow", 3))
    assert table_facts(world.table, world.roots[:1])[0].topics_lost == ["bills", "orders"]


def test_a_run_that_was_killed_between_two_folders_counts_nothing_twice(world: World, tmp_path: Path) -> None:
    for at, offset in ((0, 0), (1, 1), (0, 2)):
        assert load(world, "pyarrow", offset, at=at) == ""
    shutil.rmtree(world.table)
    first = StatusFile(world.roots[0], str(world.table))
    first.take_on(0, 3, ["orders"])
    first.write(0)
    words = [word for root in world.roots for word in ("--staging", str(root))]
    words += ["--target", str(world.table), "--set", "spark.format=pyarrow", "--table-replaced"]
    for _ in range(2):
        assert run(("load", *words), {}, tmp_path) == 0
        told = [read_status(root / "loader.json") for root in world.roots]
        assert [one and (one.batch_id, one.batches_total, one.batches_lost) for one in told] == [(0, 0, 3), (0, 0, 2)]
    assert not load(world, "pyarrow", 3, at=1)
    assert compared(world, 4).batches_lost == 3
