"""Bugs on purpose of the process around the core: what a start takes over, and what an action that fails takes along."""

from __future__ import annotations

from typing import Any

from rocketcrew.durable.intervals import OffsetSet
from rocketcrew.durable.outcomes import SETTLED, Outcomes
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.spark.plan import settled_to_fold
from rocketcrew.supervisor.core.actions import FetchAssignment, JournalCommitted
from rocketcrew.supervisor.core.assigning import Assigning
from rocketcrew.supervisor.core.decisions import Core
from rocketcrew.supervisor.core.journal import MAGIC, JournalState
from rocketcrew.supervisor.core.slab import Slab
from rocketcrew.supervisor.core.state import CoreConfig

from .disk import BLOCK_HEAD_BYTES, Folder, Table
from .parts import Parts
from .planted import COMING_AND_GOING, ONE_SLOT, SEVERAL, CoreParts, Planted
from .script import ACTIONS, BOOTS, POWER, TAKES


class UnlinksFirst(Parts):
    """The journal of a slot that is taken over goes before what it knew is in the own one."""

    keeps_taken_journals = False


class LeavesTheJournal(Parts):
    """A member that runs takes what is sealed in a dead slot, and leaves the journal that calls it finished."""

    deletes_taken_journals = False


class ReadsOverZeros(Parts):
    """Eight zeros in a journal are an empty block: what follows a page that was lost is believed."""

    def read_journal(self, data: bytes) -> JournalState:
        whole, at = bytearray(data[: len(MAGIC)]), len(MAGIC)
        while at < len(data):
            end = at + BLOCK_HEAD_BYTES + int.from_bytes(data[at : at + 4], "little")
            if any(data[at : at + BLOCK_HEAD_BYTES]):
                whole += data[at:end]
            at = end
        return super().read_journal(bytes(whole))


class ForgetsWhatWasSent(Parts):
    """The journal does not say which offsets were sent: those that were not confirmed are taken for others'."""

    def read_journal(self, data: bytes) -> JournalState:
        state = super().read_journal(data)
        for log in state.queues.values():
            log.sent = log.committed
        return state


class ForgetsInMemory(Parts):
    """Where others went on, the core forgets what was finished, and its journal does not."""

    class _Core(Core):
        def _forget_passed(self, mq: MessageQueue, offset: int) -> None:
            before = list(self.state.out)
            super()._forget_passed(mq, offset)
            told = self.state.out[len(before) :]
            self.state.out[:] = [*before, *(action for action in told if not isinstance(action, JournalCommitted))]

    def core(self, config: CoreConfig, slab: Slab, view: bytearray) -> Core:
        return self._Core(config, slab, view)


class LosesTheBatch(Parts):
    """An action that fails ends the batch, and nobody hears of it."""

    batch_goes_on = False


class TellsNobody(Parts):
    """An action that fails is forgotten: nothing answers it."""

    core_hears = False


class JoinsFirst(Parts):
    """The group is joined before the workers have shown that they can boot."""

    joins_first = True


class LooksUpAtEachNotice(CoreParts):
    """Each notice is a look-up of its own, beside those under way."""

    class assigning_class(Assigning):
        def look_up(self, topic: str, now: float) -> None:
            if not self.s.stopping and topic in self.s.topics:
                self._asked[topic] = now
                self.s.out.append(FetchAssignment(topic, now))


class SendsAtOnce(Parts):
    """An offset is sent while the facts that it depends on are in memory alone."""

    waits_for_facts = False


class TakesAlong(Parts):
    """A pull takes an offset along, whatever is sealed."""

    pulls_wait_for_facts = False


class SyncsNoFacts(Parts):
    """A file of facts is renamed into place and not fsynced."""

    syncs_facts = False


class SealsSettledFirst(Parts):
    """What is settled is on the disk while the notes on which it rests are in memory alone: the disk is slow."""

    seals_together = False
    seal_facts_ms_max = 400.0


class LeavesNothing(Parts):
    """The files of facts that a commit has taken are deleted, and nothing is left of them."""

    class table_class(Table):
        def left_of(self, noted: Outcomes) -> Outcomes:
            del noted
            return Outcomes()


class ListsFirst(Parts):
    """A plan folds what is settled when it is committed, and not what was settled when its segments were listed."""

    class table_class(Table):
        def _commit(self, folder: Folder, *args: Any) -> None:
            *others, _fold, version = args
            settled = folder.noted().of_kind(SETTLED)
            super()._commit(folder, *others, settled_to_fold(settled, (), OffsetSet()), version)


PLANTED_PROCESS = {
    "settled before its notes": Planted(SealsSettledFirst, 20),
    "nothing is left of facts that a commit takes": Planted(LeavesNothing, 20),
    "settled while segments are listed": Planted(ListsFirst, 20),
    "an offset goes before its facts": Planted(SendsAtOnce, 5),
    "a pull takes an offset along before its facts": Planted(TakesAlong, 20),
    "facts are not synced": Planted(SyncsNoFacts, 20, (POWER,)),
    "a failing action is told to nobody": Planted(TellsNobody, 20, (ACTIONS,), {"slow": 0.05}),
    "a member joins before it can work": Planted(JoinsFirst, 20, (BOOTS, "start member"), SEVERAL),
    "look-ups beside each other": Planted(LooksUpAtEachNotice, 20, (*COMING_AND_GOING, "slow network"), SEVERAL),
    "a failing action loses the rest of its batch": Planted(LosesTheBatch, 20, (ACTIONS,), {"slow": 0.05}),
    "zeros in a journal are read over": Planted(ReadsOverZeros, 40, (POWER,)),
    "what was sent is not noted": Planted(ForgetsWhatWasSent, 40, ("kill member",), ONE_SLOT | {"slow": 0.05}),
    "what others passed is forgotten in memory only": Planted(
        ForgetsInMemory, 40, (*COMING_AND_GOING, "kill member", "reset back"), SEVERAL | {"slow": 0.05}
    ),
    "journal left beside what was taken": Planted(
        LeavesTheJournal, 120, ("kill member", TAKES, "start member"), SEVERAL | {"slow": 0.15, "restart_ms": 300.0}
    ),
    "journal of a dead slot removed too early": Planted(
        UnlinksFirst, 40, (BOOTS, "kill member"), SEVERAL | {"slow": 0.05}
    ),
}
