"""Doing what the core wants: after each event its actions, the journal first, then all else in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import structlog

from .core import actions as act
from .core.decisions import Core
from .core.journal import Entry
from .journal_file import JournalFile

log = structlog.get_logger("rocketcrew.supervisor")


class Acting:
    """Performs a core's actions. `do` maps kinds of actions to functions; `journal` is set before the first event."""

    def __init__(self, core: Core, do: dict[type, Callable[[Any], object]], journal_path: Path) -> None:
        self.core = core
        self.do: dict[type, Callable[[Any], object]] = {act.Log: _log, **do}
        self.journal: JournalFile | None = None
        self._journal_path = journal_path
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = float("inf")
        self._journal_failed = False
        self._acting = False

    def acted(self) -> None:
        """Do what the core wants after events were given to it."""
        if self._acting:
            return  # an action's own event: the loop below takes what it adds
        self._acting = True
        try:
            while todo := self.core.take_actions():
                self._do_all(todo)
        finally:
            self._acting = False
        self._set_timer()

    def _do_all(self, todo: list[act.Action]) -> None:
        entries: list[Entry] = [
            a for a in todo if isinstance(a, (act.JournalDone, act.JournalSealed, act.JournalCommitted))
        ]
        if entries:
            self._write_journal(entries)
        for action in todo:
            do = self.do.get(type(action))
            if do is not None:
                do(action)

    def _write_journal(self, entries: list[Entry]) -> None:
        assert self.journal is not None, "the journal is there before the first event"
        try:
            self.journal.append(entries)
            if self._journal_failed:
                self._journal_failed = False
                log.info("journal_written_again", path=str(self._journal_path))
        except OSError as error:
            # Its state in memory is whole: nothing is lost but the skip of finished messages after a kill now.
            if not self._journal_failed:
                log.error("journal_write_failed", path=str(self._journal_path), error=str(error))
            self._journal_failed = True

    def _set_timer(self) -> None:
        due = self.core.next_timer()
        if due is None or due >= self._timer_due:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_due = due
        self._timer = self._loop.call_at(due, self._tick)

    def _tick(self) -> None:
        self._timer_due = float("inf")
        self._timer = None
        self.core.tick(self._loop.time())
        self.acted()

    async def close_journal(self) -> None:
        """At the end of the run; the last entries are in it."""
        if self.journal is not None:
            self.journal.close()


def _log(action: act.Log) -> None:
    log.log(act.LOG_LEVELS[action.level], action.event, **action.keys)
