"""What a later version of this program has left is refused in words, and stays as it is."""

from __future__ import annotations

import json
import re
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rocketcrew.conf.segment_format import PLAN_DIR
from rocketcrew.conf.settings import load
from rocketcrew.durable.facts import FACTS_VERSION, facts_to_text
from rocketcrew.durable.intervals import IntervalSet, OffsetSet, QueueKey
from rocketcrew.durable.outcomes import SENT_BACK, Outcomes
from rocketcrew.durable.versions import LaterVersionError
from rocketcrew.spark.reconciling import reconcile
from rocketcrew.spark.staging import Staging
from rocketcrew.spark.table_keys import table_facts
from rocketcrew.supervisor.core.journal import MAGIC, replay
from rocketcrew.supervisor.wiring import table_at
from rocketcrew.workers.cells import CellFile

SAYS = "was made by a later version of rocketcrew .*: run that version or a newer one; nothing was changed"


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "lock"}


def later_state(world: Any, segments: Any) -> None:
    world.seal([segments.Record(1)])
    world.drain(world.loader())
    state = world.table / "batch_id=1" / "_loaded.json"
    state.write_text(json.dumps({**json.loads(state.read_text()), "version": 9}))


def later_segment(world: Any, segments: Any) -> None:
    world.seal([segments.Record(1)])
    segments.write_segment(world.roots[0], "later", 1, [[segments.Record(2)]], version=9)


def later_facts(world: Any, _segments: Any) -> None:
    _, body, _ = facts_to_text(Outcomes()).split("\n")
    version = FACTS_VERSION + 1
    check = f"{zlib.crc32(f'{version}{body}'.encode()):08x}"
    path = world.roots[0] / "outcomes" / "x.facts"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"rocketcrew facts {version} {check}\n{body}\n")


def later_plan(world: Any, _segments: Any) -> None:
    path = world.roots[0] / PLAN_DIR / "00000001-ab.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('{"version": 99}')


@pytest.mark.parametrize("leave", [later_state, later_segment, later_facts, later_plan])
def test_a_loader_ends_and_changes_nothing(world: Any, segments: Any, leave: Callable[..., None]) -> None:
    world.loader()
    leave(world, segments)
    before = files(world.roots[0]) | files(world.table)
    with pytest.raises(LaterVersionError, match=SAYS):
        world.drain(world.loader())
    assert files(world.roots[0]) | files(world.table) == before


@pytest.mark.parametrize("leave", [later_segment, later_facts])
def test_reconcile_names_it_and_goes_on(world: Any, segments: Any, leave: Callable[..., None]) -> None:
    """It may lie in the folder of a member of that version, beside those of this one."""
    world.seal([segments.Record(1)])
    world.drain(world.loader())
    leave(world, segments)
    segments.write_segment(world.roots[0], "w", 99, [[segments.Record(50)]])
    sent_back = OffsetSet.of([(QueueKey("g", "orders", "broker-a", 0), IntervalSet.of([(7, 9)]))])
    (world.roots[0] / "outcomes" / "ours.facts").write_text(facts_to_text(Outcomes.of([(SENT_BACK, sent_back)])))
    facts, broken = table_facts(world.table, world.roots)
    assert [bool(re.search(SAYS, line)) for line in broken] == [True]
    assert facts.outcomes.of_kind(SENT_BACK) == sent_back, "what this version has noted counts"
    assert list(reconcile(facts, None).later) == broken, "then --rerun is refused"
    assert facts.present.count() == 1
    assert facts.waiting.count() == (2 if leave is later_segment else 1), "what it has sealed itself waits"


def test_reconcile_names_one_that_was_set_aside_before_and_goes_on(world: Any, segments: Any) -> None:
    world.seal([segments.Record(1)])
    world.drain(world.loader())
    path = segments.write_segment(world.roots[0], "later", 1, [[segments.Record(2)]], version=9)
    Staging(world.roots[0]).quarantine(path.name, "of format version 9", OffsetSet(), apart=True)
    assert [path.name in line for line in table_facts(world.table, world.roots)[1]] == [True]


def test_a_member_does_not_start_for_the_table_of_a_later_version(world: Any, segments: Any) -> None:
    later_state(world, segments)
    settings = load({"consumer.group": "g", "spark.format": "pyarrow", "spark.target": world.table}, {}, None)
    with pytest.raises(LaterVersionError, match=rf"{world.table}/batch_id=1/_loaded\.json {SAYS}"):
        table_at(settings, world.table.parent / "own")


def block(payload: bytes) -> bytes:
    return MAGIC + struct.pack("<II", len(payload), zlib.crc32(payload)) + payload


@pytest.mark.parametrize("data", [block(struct.pack("<BIq", 77, 1, 5)), b"RCJ2" + bytes(8)])
def test_a_journal_is_not_to_be_moved_away(data: bytes) -> None:
    with pytest.raises(LaterVersionError, match=f"/x/journal {SAYS}"):
        replay(data, "/x/journal")


def test_cells_are_not_emptied(tmp_path: Path) -> None:
    path = tmp_path / "cells"
    CellFile(path, 1).close()
    data = path.read_bytes().replace(b"RCCELLS7", b"RCCELLS8", 1)
    path.write_bytes(data)
    with pytest.raises(LaterVersionError, match=SAYS):
        CellFile(path, 1)
    assert path.read_bytes() == data
    path.write_bytes(data.replace(b"RCCELLS8", b"RCCELLS6", 1))
    CellFile(path, 1).close()
    assert path.read_bytes().startswith(b"RCCELLS7")
