"""What must have happened in some run of a session: every fault, every event of interest, every transition of a table.

Each run writes what it saw into a folder that all of a session's processes share; the run that finds itself to be the last
one adds them up. So it needs no order among the tests, and no process that waits.
"""

from __future__ import annotations

import fcntl
import json
from collections import Counter
from enum import Enum
from pathlib import Path

from rocketcrew.supervisor.core.states import QUEUE, WORKER, WorkerEvent, WorkerState

from .script import ACTIONS, ANEW, BOOTS, CLOSED, CUT_OFF, FAULTS, POWER, STALLS
from .simulation import Simulation

EVENTS = (
    "several were heard in one read", "a batch died",
    "a cell was left by a dead run", "a message died", "a message was dead-lettered for its deaths",
    "a suspect was handed out", "died: crashed", "died: forkserver died", "died: hard time limit",
    "died: retired", "counted: late_reports",
    "died: stood still outside of the handler", "died: held up by the machine",
    "a worker crashes between two calls", "a worker stalls between two calls",
    "a death for want of memory left an attempt alone", "the last death for want of memory, alone",
    "a worker died over a key", "a key was not found out", "a worker that stood still went on",
    "a batch left segments behind", "a batch took all", "a batch was loaded", "a body found no room", "a clean stop",
    "a first offset was not found out", "a guarded commit left the broker's offset",
    "a local offset was not written", "a member met a reset", "a pushed reset held", "a pushed reset was ended by a death",
    "a member was killed in the middle of a step", "a message ran again", "a message was dead-lettered",
    "a message was dropped", "messages were taken back from a slow worker",
    "messages of a queue that leaves were taken back", "a message was given back: a queue leaves",
    "a worker slept between its claim and its look",
    "a worker claimed what was taken back", "finished messages were read off a cell", "a report beside a call",
    "an offset waited for its facts", "facts were not sealed",
    "a message was retried", "a message was sent back twice", "a notice came twice", "a partial report",
    "a plan was made again", "a pull was refused with 2", "a pull was refused with 215", "a request timed out",
    "a reset was undone", "a restart took over finished messages", "a seal was asked for",
    "a seal was asked for because much waited for it", "a rate held messages back",
    "a seal was found though not reported", "a segment of the last run was not found", "a segment was salvaged",
    "a message ran again because no broker took it back", "a send-back was refused or its answer lost",
    "a slot was cut down", "an action failed", "a start failed after a take-over", "a slot was taken over", "a slow message",
    "a stop past its deadline", "a worker left for its successor", "a worker died idle", "a worker died while it booted",
    "a worker died while its segment was being sealed",
    "a worker died while several calls waited",
    "a worker died with messages in hand", "an answer came after its time-out", "cut in the middle of a body",
    "cut with requests under way", "killed between rename and report", "killed between rows and outcome",
    "killed in the middle of a write", "many queues and workers", "rows in every message of a backlog",
    "power loss: a segment was torn", "power loss: the journal was cut", "power loss: the journal ends in zeros",
    "power loss: zeros between blocks of the journal",
    "rows that the table has were left out",
    "the broker refused CONSUMER_SEND_MSG_BACK", "the broker refused PULL_MESSAGE",
    "the broker refused UPDATE_CONSUMER_OFFSET", "the broker told of a change of members",
    "the broker's log was torn", "the broker's offset went back", "the journal was torn",
    "the journal was written anew", "a start read what cells show",
)  # fmt: skip


FROM_OUTSIDE: frozenset[tuple[Enum, Enum]] = frozenset(
    transition for transition in WORKER if transition[1] in (WorkerEvent.NOT_STARTED, WorkerEvent.KILLED)
) - {(WorkerState.READY, WorkerEvent.KILLED)}
"""No process can be made, a boot takes too long, an administrator's message never ends: what becomes of these workers is in
tests/unit/supervisor/test_staffing.py."""


def transition_name(transition: tuple[Enum, Enum]) -> str:
    state, event = transition
    return f"{type(state).__name__} {state.value} -> {event.value}"


def wanted() -> set[str]:
    """Everything that has to happen."""
    tables = {transition_name(transition) for table in (QUEUE, WORKER) for transition in table.keys() - FROM_OUTSIDE}
    kinds = (*FAULTS, STALLS, BOOTS, ACTIONS, POWER, ANEW, CUT_OFF, CLOSED)
    return tables | set(EVENTS) | {"fault: " + kind for kind in kinds}


def seen_in(simulation: Simulation) -> Counter[str]:
    seen = Counter(simulation.world.happened)
    seen.update({transition_name(transition): count for transition, count in simulation.transitions.items()})
    return seen


def add_up(folder: Path, seed: int, seen: Counter[str], runs: int) -> set[str] | None:
    """Put this run's figures down; as the last of `runs`, return what never happened in any of them."""
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (folder / f"{seed}.json").write_text(json.dumps(seen))
        files = list(folder.glob("*.json"))
        if len(files) < runs:
            return None
        total: Counter[str] = Counter()
        for file in files:
            total.update(json.loads(file.read_text()))
    return wanted() - set(total)
