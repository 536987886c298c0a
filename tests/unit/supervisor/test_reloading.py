"""Reload: one probe, then all, or everything as it was."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rocketcrew.supervisor.core.reloading import RELOAD, Reload, ReloadEvent, canary_verdict
from rocketcrew.supervisor.core.staffing import RELOADS_TOLD_MAX, DropGeneration, Note, Policy, Start

sys.path.insert(0, str(Path(__file__).parent))

from test_staffing import Office


def reload(office: Office, generation: int = 1) -> str:
    """Ask for it; the first worker of the new generation."""
    assert office.staffing.begin_reload(generation, office.now)
    office.run()
    (start,) = office.take(Start)
    assert start.generation == generation
    return str(start.worker_id)


def test_one_after_another_is_replaced_and_the_old_generation_dropped() -> None:
    office = Office(3)
    olds = office.all_ready()
    new = reload(office)
    assert office.retired() == []
    for _ in range(3):
        office.ready(new)
        ((old, reason),) = office.retired()
        assert reason == "reload"
        assert office.started() == []
        office.ended(old)
        olds.remove(old)
        assert len(office.staffing.serving()) == 3
        if olds:
            (new,) = office.started()
    assert office.staffing.reload is Reload.IDLE
    assert [action.generation for action in office.take(DropGeneration)] == [0]
    assert [note.event for note in office.take(Note)] == ["reloaded"]
    office.ended(office.staffing.serving()[0].worker_id)
    assert [start.generation for start in office.take(Start)] == [1]


def test_code_that_does_not_boot_touches_nobody() -> None:
    office = Office(2)
    olds = office.all_ready()
    office.boot_fails(reload(office), "SyntaxError: here")
    assert office.retired() == []
    assert [worker.worker_id for worker in office.staffing.serving()] == olds
    assert [action.generation for action in office.take(DropGeneration)] == [1]
    (note,) = office.take(Note)
    assert (note.event, note.keys["reason"]) == ("reload_rolled_back", "SyntaxError: here")
    assert office.staffing.last_reload == "rolled back: SyntaxError: here"
    reload(office, 2)


def test_the_last_results_are_told_by_number() -> None:
    office = Office(2)
    office.all_ready()
    office.boot_fails(reload(office), "SyntaxError: here")
    for number in range(2, RELOADS_TOLD_MAX + 2):
        office.staffing.refuse_reload(f"mistake {number}")
        assert office.staffing.reload_results[number] == f"refused: mistake {number}"
        assert (office.staffing.reload_results.get(1) == "rolled back: SyntaxError: here") is (
            number <= RELOADS_TOLD_MAX
        )
    assert len(office.staffing.reload_results) == RELOADS_TOLD_MAX


def test_a_second_reload_waits_for_the_first() -> None:
    office = Office(2)
    office.all_ready()
    reload(office)
    assert not office.staffing.begin_reload(2, office.now)


@pytest.mark.parametrize(("messages", "failed", "passes"), [(4, 0, True), (4, 2, True), (3, 3, False), (4, 3, False)])
def test_the_canary_decides_by_its_first_messages(messages: int, failed: int, passes: bool) -> None:
    office = Office(2, canary_messages=4)
    olds = office.all_ready()
    probe = reload(office)
    office.ready(probe)
    assert office.worker(probe).look_at_messages == 1
    assert office.retired() == []  # it works beside the one it would replace
    assert office.staffing.reload is Reload.CANARY
    office.progress(probe, messages, failed)
    office.run()
    ((who, reason),) = office.retired()
    if passes:
        assert (who, reason) == (olds[0], "reload")
        assert office.staffing.reload is Reload.ROLLING
        return
    assert (who, reason) == (probe, "rolled back")
    office.ended(probe)
    assert office.staffing.reload is Reload.IDLE
    assert [worker.worker_id for worker in office.staffing.serving()] == olds
    assert office.started() == []


def test_a_canary_that_dies_is_taken_back_and_one_without_messages_passes_in_time() -> None:
    office = Office(2, canary_messages=4, canary_s=7.0)
    office.all_ready()
    probe = reload(office)
    office.ready(probe)
    office.ended(probe)
    assert office.staffing.reload is Reload.IDLE
    assert office.staffing.counts["rolled_back"] == 1
    office.take(Note)
    probe = reload(office, 2)
    office.ready(probe)
    assert office.staffing.next_due(office.now) == office.now + 7.0
    office.run(after_s=7.0)
    assert office.staffing.reload is Reload.ROLLING


def test_a_canary_that_ends_for_its_memory_is_taken_back() -> None:
    office = Office(2, canary_messages=4)
    office.all_ready()
    probe = reload(office)
    office.ready(probe)
    office.progress(probe, 2)
    office.staffing.leaves(probe, "memory", office.now)
    office.run()
    assert office.retired() == [(probe, "memory")]
    office.ended(probe)
    assert office.staffing.reload is Reload.IDLE
    assert office.staffing.last_reload == "rolled back: the first worker left after 2 messages: memory"
    assert office.started() == []
    reload(office, 2)


def test_scaling_down_leaves_the_canary_until_it_is_judged() -> None:
    office = Office(2, canary_messages=4, canary_s=7.0)
    first, second = office.all_ready()
    office.ended(first)
    (first,) = office.started()
    office.run()
    probe = reload(office)  # beside the second, as the first boots
    office.ready(probe, first)
    office.staffing.set_policy(Policy(1, canary_messages=4, canary_s=7.0))
    office.run()
    assert office.retired() == [(second, "scaled down")]
    office.progress(probe, 4)
    office.run()
    assert office.retired() == [(probe, "scaled down")]
    office.ended(second)
    office.ended(probe)
    (last,) = office.take(Start)
    assert (last.index, last.generation) == (0, 1)
    office.ready(last.worker_id)
    assert office.staffing.reload is Reload.IDLE


def test_new_code_that_stops_to_boot_on_the_way_is_taken_back() -> None:
    office = Office(3)
    office.all_ready()
    office.ready(reload(office))
    ((old, _),) = office.retired()
    office.ended(old)
    for _ in range(3):
        office.boot_fails(*office.started(), "OSError: no licence left")
        due = office.staffing.next_due(office.now)
        office.run(after_s=0.0 if due is None else due - office.now)
    assert office.staffing.reload is Reload.ROLLING_BACK
    (start,) = office.take(Start)
    assert start.generation == 0
    office.ready(start.worker_id)
    ((new, reason),) = office.retired()
    assert reason == "rolled back"
    office.ended(new)
    assert office.staffing.reload is Reload.IDLE
    assert {worker.generation for worker in office.staffing.serving()} == {0}
    assert len(office.staffing.serving()) == 3
    assert [action.generation for action in office.take(DropGeneration)] == [1]


def test_scaling_while_reloading_uses_the_code_that_holds() -> None:
    office = Office(1)
    office.all_ready()
    probe = reload(office)
    office.staffing.set_policy(Policy(2))
    office.run()
    (extra,) = office.take(Start)
    assert extra.generation == 0
    office.ready(extra.worker_id, probe)
    assert office.staffing.reload is Reload.ROLLING


def test_the_verdict_waits_while_it_is_open() -> None:
    assert canary_verdict(3, 1, 4, over=False) is None
    assert canary_verdict(0, 0, 0, over=False) is ReloadEvent.PASSED
    assert canary_verdict(3, 2, 4, over=True) is ReloadEvent.FAILED
    assert canary_verdict(0, 0, 4, over=True) is ReloadEvent.PASSED


def test_the_table_of_reloads_is_whole() -> None:
    assert {state for state, _ in RELOAD} == set(Reload)
    assert set(RELOAD.values()) == set(Reload)
    assert {event for _, event in RELOAD} == set(ReloadEvent)
