"""Which event the core gets when an action fails in a way that nobody expected: a bug, a full table of files.

Each kind that the core waits for has one, so that no offset is held for ever and no answer is waited for without end. A
worker that could not be given its work is killed: its death gives the work to another. The kinds that nobody waits for come
again by themselves, or are over.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import actions as act
from . import events as ev
from .decisions import Core

NOT_CARRIED_OUT = " could not be carried out"
Failed = Callable[[Core, Any, float], None]


def _kill(
    core: Core, action: act.Dispatch | act.DispatchOrdered | act.Classify | act.Seal | act.Retired, _: float
) -> None:
    core.state.out.append(act.KillWorker(action.worker_id, type(action).__name__ + NOT_CARRIED_OUT))


EVENTS: dict[type, Failed] = {
    act.FetchAssignment: lambda core, a, now: core.handle(ev.Members(a.topic, None, None, asked_at=a.asked_at), now),
    act.FetchOffset: lambda core, a, now: core.handle(ev.Opened(a.handle, None), now),
    act.Pull: lambda core, a, now: core.handle(ev.NoAnswer(a.handle), now),
    act.Commit: lambda core, a, now: core.handle(ev.Committed(a.handle, a.offset, False), now),
    act.SendBack: lambda core, a, now: core.handle(ev.SentBack(a.handle, a.chunk_id, a.index, False), now),
    act.Pop: lambda core, a, now: core.handle(ev.NoAnswer(a.handle), now),
    act.Ack: lambda core, a, now: core.handle(ev.Acked(a.handle, len(a.checks), len(a.checks), (), a.tries), now),
    act.Renew: lambda core, a, now: core.handle(ev.Renewed(a.handle, a.offset, None), now),
    act.LockQueues: lambda core, a, now: core.handle(ev.Locked(a.mqs, None, now), now),
    act.Dispatch: _kill,
    act.DispatchOrdered: _kill,
    act.Classify: _kill,
    act.Seal: _kill,
    act.Retired: _kill,
}

UNANSWERED: frozenset[type] = frozenset(
    {
        act.UnlockQueues, act.Load, act.KillWorker, act.Reclaim, act.Recall, act.ReadCell, act.AskReport,
        act.CountCellsAnew, act.ChargesChanged, act.Log, act.Heartbeat, act.Finished,
        act.JournalDone, act.JournalSealed, act.JournalLost, act.JournalCommitted, act.JournalGoesOn,
    }
)  # fmt: skip
"""Nobody waits for these."""


def action_failed(core: Core, action: act.Action, now: float) -> None:
    """Report to the core that the action was not carried out; it is counted."""
    core.unexpected_error()
    event = EVENTS.get(type(action))
    if event is not None:
        event(core, action, now)
