"""Which workers there should be: filled, replaced warm, recycled by share, backed off, scaled, and given up."""

from __future__ import annotations

from typing import Any

import pytest

from rocketcrew.supervisor.core import events as ev
from rocketcrew.supervisor.core.allocation import average
from rocketcrew.supervisor.core.decisions import Core
from rocketcrew.supervisor.core.slab import UNIT_BYTES, Slab
from rocketcrew.supervisor.core.staffing import (
    BACK_OFF_MAX_S,
    LEAVING_PATIENCE_S,
    GiveUp,
    Kill,
    Note,
    Policy,
    Staffing,
    StaffingAction,
    Start,
)
from rocketcrew.supervisor.core.state import CoreConfig, Worker
from rocketcrew.supervisor.core.states import WorkerState


class Office:
    """A staffing over a core, its actions carried out by hand, and a clock."""

    def __init__(self, count: int = 2, *, left_behind: tuple[str, ...] = (), **policy: Any) -> None:
        self.now = 100.0
        config = CoreConfig(client_id="10.0.0.1@1#1", group="g", topics=("orders",), strategy=average)
        self.core = Core(config, Slab(UNIT_BYTES), bytearray(UNIT_BYTES))
        self.core.begin()
        self.staffing = Staffing(self.core, Policy(count, **policy), "r", left_behind=left_behind)
        self.actions: list[StaffingAction] = []
        self._leaving: list[tuple[str, str]] = []
        self.run()

    def run(self, after_s: float = 0.0) -> None:
        self.now += after_s
        for action in self.staffing.run(self.now):
            if isinstance(action, Note) and action.event == "worker_leaves":
                self._leaving.append((str(action.keys["worker"]), str(action.keys["reason"])))
            else:
                self.actions.append(action)

    def take(self, kind: type[StaffingAction]) -> list[Any]:
        found = [action for action in self.actions if isinstance(action, kind)]
        self.actions = [action for action in self.actions if not isinstance(action, kind)]
        return found

    def worker(self, worker_id: str) -> Worker:
        return self.core.state.workers[worker_id]

    def started(self) -> list[str]:
        return [action.worker_id for action in self.take(Start)]

    def retired(self) -> list[tuple[str, str]]:
        """Workers that were let go, and why."""
        found, self._leaving = self._leaving, []
        return found

    def ready(self, *worker_ids: str) -> None:
        for worker_id in worker_ids:
            self.core.handle(ev.WorkerReady(worker_id), self.now)
            self.staffing.ready(worker_id)
            self.run()

    def ended(self, worker_id: str, *, charged: bool = True, leaves: bool = False) -> None:
        """As the pool does it when a process is dead."""
        worker = self.worker(worker_id)
        was = worker.state
        self.core.handle(ev.WorkerDied(worker_id), self.now)
        if not leaves:
            self.core.handle(ev.SalvageComplete(worker_id), self.now)
        self.staffing.ended(worker, was, self.now, charged=charged, leaves=leaves)
        self.run()

    def progress(self, worker_id: str, messages: int, failed: int = 0) -> None:
        worker = self.worker(worker_id)
        worker.messages, worker.failed = messages, failed
        self.staffing.progress(worker_id)

    def all_ready(self) -> list[str]:
        started = self.started()
        self.ready(*started)
        return started

    def boot_fails(self, worker_id: str, error: str = "ImportError: x") -> None:
        self.staffing.boot_failed(worker_id, error)
        self.ended(worker_id, charged=False)

    def indexes(self) -> list[int]:
        return sorted(worker.index for worker in self.staffing.serving())


def test_every_index_is_filled_and_what_was_left_behind_goes_to_the_first() -> None:
    office = Office(3, left_behind=("earlier",))
    starts = office.take(Start)
    assert [(s.worker_id, s.index, s.salvages) for s in starts] == [
        ("r.1", 0, ("earlier",)), ("r.2", 1, ()), ("r.3", 2, ()),
    ]  # fmt: skip
    assert not office.staffing.tried
    office.ready("r.1", "r.2", "r.3")
    assert office.staffing.tried
    assert office.actions == []


def test_a_dead_worker_is_replaced_at_once_by_one_that_salvages() -> None:
    office = Office()
    one, _ = office.all_ready()
    office.ended(one, leaves=True)
    (start,) = office.take(Start)
    assert (start.index, start.salvages) == (0, (one,))
    # Its successor dies while it salvages: the next one gets both.
    office.ended(start.worker_id, leaves=True, charged=False)
    office.run(after_s=1)
    (again,) = office.take(Start)
    assert again.salvages == (one, start.worker_id)


def test_what_is_salvaged_is_no_other_workers_affair_though_its_own_boot_fails() -> None:
    office = Office()
    one, _ = office.all_ready()
    office.ended(one, leaves=True)
    (start,) = office.take(Start)
    office.staffing.salvaged(start.worker_id)
    office.boot_fails(start.worker_id)
    office.run(after_s=1)
    (again,) = office.take(Start)
    assert again.salvages == ()


def test_a_worker_that_left_something_when_it_was_one_too_many_is_salvaged_by_an_extra_one() -> None:
    office = Office(2)
    _, two = office.all_ready()
    office.staffing.set_policy(Policy(1))
    office.run()
    assert office.retired() == [(two, "scaled down")]
    office.ended(two, leaves=True)
    (extra,) = office.take(Start)
    assert extra.salvages == (two,)
    office.ready(extra.worker_id)
    ((old, reason),) = office.retired()
    assert (old, reason) == ("r.1", "one too many")
    office.ended(old)
    assert office.actions == []
    assert office.indexes() == [0]


@pytest.mark.parametrize(("share", "at_once"), [(1, 1), (25, 1), (50, 2), (100, 4)])
def test_recycling_replaces_a_share_at_a_time_and_warm(share: int, at_once: int) -> None:
    office = Office(4, recycle_messages=10, recycle_jitter_percent=0, recycle_share_percent=share)
    olds = office.all_ready()
    for old in olds:
        office.progress(old, 10)
    office.run()
    seen = 0
    while seen < 4:
        successors = office.started()
        assert len(successors) == min(at_once, 4 - seen)
        assert office.retired() == []  # warm: nobody leaves before
        for successor in successors:
            office.ready(successor)
            ((old, reason),) = office.retired()
            assert reason == "messages"
            if len(successors) == 1:
                assert office.started() == []  # the old one is still leaving
            office.ended(old)
            seen += 1
            assert office.indexes() == [0, 1, 2, 3]
    assert office.staffing.counts["left: messages"] == 4
    assert office.staffing.counts["respawned"] == 0


def test_one_that_is_slow_to_leave_counts_as_long_as_its_message_may_take() -> None:
    office = Office(4, recycle_age_s=10.0, recycle_jitter_percent=0, leave_max_s=900.0)
    office.all_ready()
    office.run(after_s=10)
    (successor,) = office.started()
    office.ready(successor)
    ((old, _),) = office.retired()
    for _ in range(80):
        office.run(after_s=LEAVING_PATIENCE_S)
        assert office.started() == [], "never more than the share, however long its message takes"
    office.ended(old)
    (successor,) = office.started()
    office.ready(successor)
    due = office.now + 900
    while (at := office.staffing.next_due(office.now)) is not None and at < due:
        office.run(after_s=at - office.now)
        assert office.started() == []
    office.run(after_s=due - office.now)
    assert len(office.started()) == 1, "a call without any limit holds up the others for a while, not for ever"


def test_a_reload_does_not_wait_for_long_messages() -> None:
    office = Office(2, leave_max_s=900.0)
    office.all_ready()
    assert office.staffing.begin_reload(1, office.now)
    office.run()
    office.ready(*office.started())
    assert len(office.retired()) == 1
    assert office.started() == []
    assert office.staffing.next_due(office.now) == office.now + LEAVING_PATIENCE_S
    office.run(after_s=LEAVING_PATIENCE_S)
    assert len(office.started()) == 1


def test_a_successor_that_cannot_boot_costs_nobody_his_post() -> None:
    office = Office(1)
    (only,) = office.all_ready()
    office.staffing.wants_out(only, "memory")
    office.run()
    delays: list[float] = []
    for _ in range(8):
        (successor,) = office.started()
        before = office.now
        office.boot_fails(successor)
        while not any(isinstance(action, Start) for action in office.actions):
            due = office.staffing.next_due(office.now)
            assert due is not None
            office.run(after_s=due - office.now)
        delays.append(round(office.now - before, 3))
    assert delays == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, BACK_OFF_MAX_S, BACK_OFF_MAX_S]
    assert office.indexes() == [0]
    office.ready(*office.started())
    assert office.retired() == [(only, "memory")]
    assert office.staffing.counts["boot_failures"] == 8


def test_jitter_spreads_the_limits_downwards() -> None:
    office = Office(8, recycle_messages=1000, recycle_jitter_percent=20)
    limits = [worker.messages_max for worker in office.staffing.workers()]
    assert len(set(limits)) > 4
    assert all(800 <= limit <= 1000 for limit in limits)


def test_nobody_can_boot_at_the_start() -> None:
    office = Office(2)
    one, two = office.started()
    office.boot_fails(one, "ImportError: no such thing")
    assert office.take(GiveUp) == []
    office.boot_fails(two, "ImportError: no such thing")
    assert [action.error for action in office.take(GiveUp)] == ["ImportError: no such thing"]
    office.run(after_s=100)
    assert office.started() == []


def test_nobody_has_tried_enough_while_none_serves() -> None:
    """Both have said that they failed, and have not ended yet: the member would join, and leave a moment later."""
    office = Office(2)
    for worker_id in office.started():
        office.staffing.boot_failed(worker_id, "ImportError: no such thing")
    assert not office.staffing.tried


def test_one_that_cannot_boot_is_tried_again_while_others_serve() -> None:
    office = Office(2)
    one, two = office.started()
    office.ready(one)
    office.boot_fails(two)
    assert office.staffing.tried
    assert office.take(GiveUp) == []
    office.run(after_s=0.1)
    (again,) = office.started()
    office.ready(again)
    assert office.indexes() == [0, 1]


def test_later_the_service_gives_up_when_nobody_served_for_the_boot_time() -> None:
    office = Office(1, boot_timeout_s=3.0)
    (only,) = office.all_ready()
    office.ended(only)
    while not office.take(GiveUp):
        assert office.now < 110
        office.boot_fails(*office.started())
        if (due := office.staffing.next_due(office.now)) is not None:
            office.run(after_s=due - office.now)
    assert office.now >= 103


def test_a_boot_that_hangs_is_ended_and_told() -> None:
    office = Office(1, boot_timeout_s=5.0)
    (only,) = office.started()
    assert office.staffing.next_due(office.now) == 105.0
    office.run(after_s=5)
    assert [action.worker_id for action in office.take(Kill)] == [only]
    office.run(after_s=1)
    assert office.take(Kill) == []
    office.ended(only, charged=False)
    (given_up,) = office.take(GiveUp)
    assert "workers.boot_timeout_ms = 5000: its handler's module was not imported by then" in given_up.error


def test_a_set_up_hook_that_takes_too_long_is_told_from_an_import() -> None:
    office = Office(1, boot_timeout_s=5.0)
    (only,) = office.started()
    office.worker(only).sets_up = True
    office.run(after_s=5)
    office.ended(only, charged=False)
    (given_up,) = office.take(GiveUp)
    assert "its handler's set-up hook had not ended by then" in given_up.error


def test_workers_that_start_with_too_much_memory_are_told_once_for_a_generation() -> None:
    office = Office(2)
    for worker_id in office.all_ready():
        office.staffing.starts_large(worker_id, 379 << 20)
        office.run()
    (said,) = office.take(Note)
    assert said.event == "workers_start_over_memory_limit"
    assert "it has 379 MiB when it starts" in said.keys["hint"]
    assert office.staffing.begin_reload(1, office.now)
    office.run()
    (probe,) = office.started()
    office.ready(probe)
    office.staffing.starts_large(probe, 379 << 20)
    office.run()
    assert "workers_start_over_memory_limit" in [note.event for note in office.take(Note)]


def test_a_salvage_has_the_time_of_a_boot_for_each_segment() -> None:
    office = Office(1, left_behind=("earlier",), boot_timeout_s=5.0)
    (only,) = office.started()
    for _ in range(3):
        office.run(after_s=4)
        office.staffing.salvaging(only, office.now)
    assert office.take(Kill) == []
    assert office.staffing.next_due(office.now) == office.now + 5
    office.run(after_s=5)
    assert [action.worker_id for action in office.take(Kill)] == [only]
    office.ended(only, charged=False)
    (given_up,) = office.take(GiveUp)
    assert "not done with one segment of a dead one within workers.boot_timeout_ms = 5000" in given_up.error


def test_a_kill_that_failed_is_repeated_until_the_worker_has_ended() -> None:
    office = Office(1, boot_timeout_s=5.0)
    (only,) = office.started()
    office.run(after_s=5)
    for _ in range(3):
        assert [action.worker_id for action in office.take(Kill)] == [only]
        due = office.staffing.next_due(office.now)
        assert due is not None
        office.run(after_s=due - office.now)
    office.ended(only, charged=False)
    office.take(Kill)
    office.run(after_s=60)
    assert office.take(Kill) == []


def test_a_worker_that_said_why_it_cannot_boot_and_does_not_end_is_killed_at_the_time_out() -> None:
    office = Office(1, boot_timeout_s=5.0)
    (only,) = office.started()
    office.staffing.boot_failed(only, "ImportError: no database")
    office.run(after_s=4.9)
    assert office.take(Kill) == []
    office.run(after_s=0.1)
    assert [action.worker_id for action in office.take(Kill)] == [only]
    office.run()
    assert office.take(Kill) == []
    office.ended(only, charged=False)
    (given_up,) = office.take(GiveUp)
    assert given_up.error == "ImportError: no database"


def test_deaths_without_a_message_to_blame_are_delayed_after_a_few() -> None:
    office = Office(1)
    office.all_ready()
    immediate = 0
    for _ in range(5):
        office.ended(office.staffing.serving()[0].worker_id, charged=False)
        if started := office.started():
            immediate += 1
        else:
            assert len(office.take(Note)) == 1
            office.run(after_s=1.0)
            started = office.started()
        office.ready(*started)
    assert immediate == 3
    office.ended(office.staffing.serving()[0].worker_id, charged=True)
    assert len(office.started()) == 1  # a message was to blame: that has an end


def test_scaling_up_and_down() -> None:
    office = Office(1)
    office.all_ready()
    office.staffing.set_policy(Policy(3))
    office.run()
    new = office.all_ready()
    assert office.indexes() == [0, 1, 2]
    office.staffing.set_policy(Policy(1))
    office.run()
    assert office.retired() == [(worker, "scaled down") for worker in new]
    for worker in new:
        office.ended(worker)
    assert office.actions == []


def test_after_stop_nothing_is_started() -> None:
    office = Office(2)
    one, _ = office.all_ready()
    office.staffing.stop()
    office.ended(one, leaves=True)
    assert office.actions == []


def test_a_worker_that_ends_for_its_memory_is_replaced_at_once_and_nobody_is_missed_for_long() -> None:
    office = Office(1, boot_timeout_s=3.0)
    (only,) = office.all_ready()
    office.staffing.leaves(only, "memory", office.now)
    assert office.worker(only).state is WorkerState.STOPPING
    office.run()
    (successor,) = office.started()
    assert office.retired() == [(only, "memory")]
    office.ended(only)
    assert (office.staffing.counts["left: memory"], office.staffing.counts["respawned"]) == (1, 0)
    office.boot_fails(successor)
    while not office.take(GiveUp):
        assert office.now < 110, "nobody serves, and nobody can boot"
        due = office.staffing.next_due(office.now)
        assert due is not None
        office.run(after_s=due - office.now)
        for worker_id in office.started():
            office.boot_fails(worker_id)


def test_a_worker_that_was_killed_keeps_its_place_until_it_has_ended() -> None:
    office = Office(1)
    (only,) = office.all_ready()
    office.core.handle(ev.WorkerKilled(only), office.now)
    office.run()
    assert office.started() == [], "its successor salvages what it left"
    office.ended(only, leaves=True)
    (start,) = office.take(Start)
    assert start.salvages == (only,)


def test_what_a_worker_reports_after_its_end_was_decided_changes_nothing() -> None:
    office = Office(1, boot_timeout_s=5.0)
    (only,) = office.started()
    office.run(after_s=5)
    assert [action.worker_id for action in office.take(Kill)] == [only]
    office.ready(only)
    assert office.worker(only).state is WorkerState.KILLED
    assert not office.staffing.tried
    office.ended(only, charged=False)
    assert office.staffing.counts["boot_failures"] == 1
    assert len(office.take(GiveUp)) == 1


def test_a_worker_whose_process_cannot_be_made_could_not_boot() -> None:
    office = Office(1)
    (only,) = office.started()
    worker = office.worker(only)
    office.staffing.boot_failed(only, "no more processes")
    office.core.handle(ev.WorkerNotStarted(only), office.now)
    assert worker.state is WorkerState.GONE
    office.staffing.ended(worker, WorkerState.BOOTING, office.now, charged=False, leaves=False)
    office.run()
    assert [action.error for action in office.take(GiveUp)] == ["no more processes"]
    assert office.staffing.workers() == []
