"""What goes wrong, one kind a method; a run draws among the kinds that its script has."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rocketcrew.remoting.codes import RequestCode, ResponseCode
from rocketcrew.supervisor.core import events as ev
from rocketcrew.supervisor.core.charges import Charges
from rocketcrew.supervisor.core.state import BACKLOG, OPERATOR

from .member import SimMember
from .script import ACTIONS, ANEW, BOOTS, CLOSED, CUT_OFF, POWER, STALLS, TAKES, TOPIC
from .worker import SimWorker

if TYPE_CHECKING:
    from .simulation import Simulation


KILL = "kill member"
KILLS_WITHOUT_ROWS = 8


class Faults:
    """Injects into one simulation; each method says whether it could."""

    def __init__(self, simulation: Simulation) -> None:
        self.s = simulation
        self.world = simulation.world
        self._kinds: dict[str, Callable[[], bool]] = {
            "cut": lambda: self._cut(delivers=False),
            "cut after delivery": lambda: self._cut(delivers=True),
            CUT_OFF: self._cut_off,
            CLOSED: self._close_retries,
            "stall broker": self._stall,
            "kill broker": self._kill_broker,
            "refuse send-backs": lambda: self._refuse(RequestCode.CONSUMER_SEND_MSG_BACK, ResponseCode.SYSTEM_ERROR),
            "refuse pulls": lambda: self._refuse(RequestCode.PULL_MESSAGE, ResponseCode.SYSTEM_BUSY),
            "refuse commits": lambda: self._refuse(RequestCode.UPDATE_CONSUMER_OFFSET, ResponseCode.SYSTEM_BUSY),
            "flow control": lambda: self._refuse(RequestCode.PULL_MESSAGE, ResponseCode.FLOW_CONTROL),
            "kill worker": self._kill_worker,
            "kill worker while it writes": self._kill_writing,
            "kill worker behind its rename": lambda: self._kill_at("behind a rename"),
            "lose an open segment": self._lose_segment,
            "kill forkserver": self._kill_forkserver,
            "recycle worker": self._recycle_worker,
            "pause": self._pause,
            KILL: self._kill_member,
            BOOTS: self._fail_boot,
            ACTIONS: self._fail_action,
            "kill member in a step": self._kill_in_a_step,
            "stop member": self._stop_member,
            "start member": self._start_member,
            POWER: self._lose_power,
            "reset back": lambda: self._reset(back=True),
            "reset forward": lambda: self._reset(back=False),
            ANEW: self._subscribe_anew,
            "slow network": self._slow,
            STALLS: self._stall_worker,
            TAKES: self._take_sealed,
        }
        names = [name for name, weight in simulation.script.faults.items() for _ in range(weight)]
        # Of what has ended without rows, cells tell that a killed member leaves.
        names += [KILL] * (KILLS_WITHOUT_ROWS if simulation.script.rows_never and KILL in names else 0)
        self._drawn = names or ["cut"]

    def one(self) -> None:
        """Inject one fault."""
        if self.world.calm:
            return
        kind = self.world.random.choice(self._drawn)
        if self._kinds[kind]():
            self.world.note("fault: " + kind)
            if self.world.chance(0.3):
                # Trouble seldom comes alone.
                self.world.after(self.world.random.expovariate(1 / 40), self.one)

    def end(self) -> None:
        """No more faults, and those that last are over."""
        broker = self.s.broker
        broker.refusing.clear()
        self.s.next_boot_fails = False
        broker.stalled_until_ms = 0.0
        for link in broker.channels.values():
            link.slow = 1.0
        for member in self.s.living():
            member.dies_in = member.fails_in = -1
            member.edge.cut_off_until_ms = 0.0
            for worker in member.pool.workers.values():
                worker.dies_at = None
                worker.goes_on()

    # --- who ----------------------------------------------------------------------------------------------------

    def _member(self) -> SimMember | None:
        living = self.s.living()
        return self.world.random.choice(living) if living else None

    def _worker(self) -> SimWorker | None:
        member = self._member()
        workers = [worker for worker in member.pool.workers.values() if worker.alive] if member is not None else []
        return self.world.random.choice(workers) if workers else None

    # --- network and broker -------------------------------------------------------------------------------------

    def _cut(self, *, delivers: bool) -> bool:
        member = self._member()
        if member is None or member.edge.link is None or not member.edge.link.alive:
            return False
        member.edge.link.cut(delivers=delivers)
        return True

    def _cut_off(self) -> bool:
        """Others may take its queues over meanwhile."""
        member = self._member()
        if member is None or not member.running or member.edge.link is None:
            return False
        member.edge.cut_off(self.world.random.choice([300, 2_000, 5_000]) * self.world.random.random())
        return True

    def _slow(self) -> bool:
        member = self._member()
        if member is None or member.edge.link is None:
            return False
        link = member.edge.link
        link.slow = self.world.random.choice([10.0, 100.0])

        def normal() -> None:
            link.slow = 1.0

        self.world.after(1_000, normal)
        return True

    def _stall(self) -> bool:
        duration = self.world.random.choice([100, 2_000, 5_000]) * self.world.random.random()
        self.s.broker.stalled_until_ms = self.world.now_ms + duration
        return True

    def _kill_broker(self) -> bool:
        if self.s.broker.core is None:
            return False
        self.s.broker.kill()
        return True

    def _refuse(self, request: int, response: int) -> bool:
        self.s.broker.refusing[request] = (response, self.world.random.randrange(1, 8))
        return True

    def _close_retries(self) -> bool:
        """No send-back is taken for a while, perhaps until attempts that are made meanwhile are used up."""
        self.s.broker.refusing[RequestCode.CONSUMER_SEND_MSG_BACK] = (ResponseCode.NO_PERMISSION, 1 << 31)
        self.world.after(3_000 * self.world.random.random(), self._open_retries)
        return True

    def _open_retries(self) -> None:
        self.s.broker.refusing.pop(RequestCode.CONSUMER_SEND_MSG_BACK, None)

    # --- workers ------------------------------------------------------------------------------------------------

    def _kill_worker(self) -> bool:
        worker = self._worker()
        if worker is None:
            return False
        worker.die()
        return True

    def _stall_worker(self) -> bool:
        """Its loop is held (stopped, or at a disk that does not answer), until it goes on or is ended for it; now and then
        those of the whole member, as where the machine does it."""
        worker = self._worker()
        if worker is None or worker.stalled:
            return False
        ms = self.world.random.choice([100, 1_000, 5_000]) * self.world.random.random()
        held = list(worker.member.pool.workers.values()) if self.world.chance(0.25) else [worker]
        for each in held:
            if each.alive and not each.stalled:
                each.stands_still(ms)
        return True

    def _kill_forkserver(self) -> bool:
        """It takes all its workers along."""
        member = self._member()
        if member is None:
            return False
        for worker in list(member.pool.workers.values()):
            worker.unattended = True
            worker.die()
        return True

    def _kill_writing(self) -> bool:
        return self._kill_at(self.world.random.choice(["in a write", "behind a write"]))

    def _kill_at(self, step: str) -> bool:
        worker = self._worker()
        if worker is None:
            return False
        worker.dies_at = step
        return True

    def _lose_segment(self) -> bool:
        """The file of a worker's open segment is gone, and the worker too: reported rows cannot be found again."""
        worker = self._worker()
        if worker is None or worker.segment is None:
            return False
        del worker.member.folder.open[worker.segment.token]
        worker.segment = None
        worker.die()
        return True

    # --- members ------------------------------------------------------------------------------------------------

    def _kill_member(self) -> bool:
        member = self._member()
        if member is None or member is self.s.lives_on:
            return False
        member.die()
        if self.s.script.faults.get(TAKES):
            self.world.after(self.world.random.expovariate(1 / 200), self._take_soon)
        return True

    def _take_soon(self) -> None:
        if not self.world.calm and self._take_sealed():
            self.world.note("fault: " + TAKES)

    def _fail_boot(self) -> bool:
        """The next process that starts cannot boot its workers, or is killed before they are ready."""
        if self.s.next_boot_fails:
            return False
        self.s.next_boot_fails = True
        return True

    def _fail_action(self) -> bool:
        member = self._member()
        if member is None or not member.running or member.fails_in >= 0:
            return False
        member.fails_in = self.world.random.randrange(0, 30)
        return True

    def _kill_in_a_step(self) -> bool:
        member = self._member()
        if member is None or not member.running or member.dies_in >= 0:
            return False
        member.dies_in = self.world.random.randrange(0, 30)
        return True

    def _lose_power(self) -> bool:
        """All members are gone at once, and what was not fsynced, too. (The broker has its own power.)"""
        for member in self.s.living():
            member.lose_power()
        for folder in self.s.folders:
            folder.lose_power(self.world)
        self.s.truth.power_lost()
        charges = Charges()
        for folder in self.s.folders:
            if folder.charges:
                charges.add_json(folder.charges, "deaths")
        self.s.truth.deaths.power_lost(charges)
        return True

    def _stop_member(self) -> bool:
        member = self._member()
        if member is None or not member.running or member.stopping:
            return False
        member.event(member.stop)
        return True

    def _start_member(self) -> bool:
        if len(self.s.living()) >= self.s.script.members_max:
            return False
        self.s.start_member()
        return True

    def _take_sealed(self) -> bool:
        """A member that runs takes what is sealed in a dead slot; for open segments a start is needed."""
        member = self._member()
        dead = [folder for folder in self.s.folders if not folder.held and folder.ready]
        if member is None or not member.running or not dead:
            return False
        member.take_sealed(dead[0])
        return True

    def _recycle_worker(self) -> bool:
        worker = self._worker()
        if worker is None or not worker.ready:
            return False
        worker.member.pool.recycle(worker)
        return True

    def _pause(self) -> bool:
        member = self._member()
        if member is None or not member.running or member.stopping:
            return False
        reason = self.world.random.choice([OPERATOR, BACKLOG])
        member.event(member.core.handle, ev.Pause(reason), self.world.now)

        def resume() -> None:
            if member.alive:
                member.event(member.core.handle, ev.Resume(reason), self.world.now)

        self.world.after(self.world.random.expovariate(1 / 500), resume)
        return True

    def _subscribe_anew(self) -> bool:
        """As with another filter: its queues drain, and are opened again by the same member."""
        member = self._member()
        if member is None or not member.running or member.stopping:
            return False
        member.event(member.core.handle, ev.Subscribe(TOPIC), self.world.now)
        return True

    # --- operators ----------------------------------------------------------------------------------------------

    def _reset(self, *, back: bool) -> bool:
        """To below what any journal knows as committed, or to above the broker's offset."""
        broker = self.s.broker
        if broker.core is None:
            return False
        key = self.world.random.choice(broker.queues())
        committed = broker.committed(key) or 0
        if not back:
            highest = broker.max_offset(key)
            return committed < highest and broker.reset(key, self.world.random.randrange(committed + 1, highest + 1))
        floors = [committed]
        floors += [floor for folder in self.s.folders if (floor := folder.floor(*key)) is not None]
        if min(floors) <= 0 or not broker.reset(key, self.world.random.randrange(min(floors))):
            return False
        if self.world.chance(0.5):
            # The member may be killed before it hears of it, while it begins again, or a little later.
            self.world.after(self.world.random.expovariate(1 / 150), self._kill_soon)
        return True

    def _kill_soon(self) -> None:
        if not self.world.calm and self._kill_member():
            self.world.note("fault: kill member")
