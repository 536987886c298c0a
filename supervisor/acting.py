"""Doing what the core wants: after each event its actions, the journal first, then all else in order.

An action that fails unexpectedly is logged and counted, and the core gets an event; the others are done all the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import structlog

from ..conf.units import in_whole_ms
from .core import actions as act
from .core.decisions import Core
from .core.failed_actions import action_failed
from .core.journal import JOURNALLED, Entry, entries_of

ACTION_CHARACTERS_MAX = 300

log = structlog.get_logger("rocketcrew.supervisor")


class Acting:
    """Performs a core's actions."""

    def __init__(self, core: Core, journal: Callable[[Sequence[Entry]], None], journal_path: Path) -> None:
        """`journal` writes entries; it may raise OSError. `journal_path` is its file, for the log."""
        self.core = core
        self._do: dict[type, Callable[[Any], object]] = {act.Log: self._log, **dict.fromkeys(JOURNALLED, _is_written)}
        self._journal = journal
        self._journal_path = journal_path
        self._loop = asyncio.get_running_loop()
        self.logged: Callable[[act.Log], None] = _nobody
        """Hears of every line that the core logs."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = float("inf")
        self._journal_failed = False
        self._acting = self._is_soon = False

    def perform(self, table: Mapping[type, Callable[[Any], object]]) -> None:
        """These kinds of actions are done so. The parts that do them are made one after another during a start."""
        twice = self._do.keys() & table.keys()
        assert not twice, f"two functions each for {sorted(kind.__name__ for kind in twice)}"
        self._do |= table

    def check_complete(self) -> None:
        """Every kind of action has a function. Called once all parts are there."""
        missing = set(get_args(act.Action)) - self._do.keys()
        assert not missing, f"nobody does {sorted(kind.__name__ for kind in missing)}"

    def acted(self) -> None:
        """Do what the core wants after events were given to it."""
        if self._acting:
            return  # an action's own event: the loop below takes what it adds
        self._acting = True
        try:
            while self.core.state.out:
                self._do_all(self.core.take_actions())
        finally:
            self._acting = False
        self._set_timer()

    def soon(self) -> None:
        """`acted` once for all that is told in this turn of the loop: where hundreds of queues are opened by one read, the
        journal that forgets what was finished of them is synced once."""
        if not self._is_soon:
            self._is_soon = True
            self._loop.call_soon(self._now)

    def _now(self) -> None:
        self._is_soon = False
        self.acted()

    def _do_all(self, todo: list[act.Action]) -> None:
        if entries := entries_of(todo):
            self._write_journal(entries)
            todo = [a for a in todo if a.__class__ not in JOURNALLED]
        for action in todo:
            try:
                self._do[type(action)](action)
            except Exception:
                log.exception("action_failed", action=repr(action)[:ACTION_CHARACTERS_MAX])
                action_failed(self.core, action, self._loop.time())

    def _log(self, action: act.Log) -> None:
        log.log(act.LOG_LEVELS[action.level], action.event, **action.keys)
        self.logged(action)

    def _write_journal(self, entries: list[Entry]) -> None:
        try:
            self._journal(entries)
            if self._journal_failed:
                self._journal_failed = False
                log.info("journal_written_again", path=str(self._journal_path))
        except OSError as error:
            # Its state in memory is whole, and offsets go on. A kill now costs repeats: what only memory has, and what the
            # file has above an offset that was sent since, which the next start takes for one of others (Core.recover).
            if not self._journal_failed:
                log.error("journal_write_failed", path=str(self._journal_path), error=str(error))
            self._journal_failed = True

    def _set_timer(self) -> None:
        due = self.core.state.next_timer()
        if due is None or due >= self._timer_due:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_due = due
        self._timer = self._loop.call_at(in_whole_ms(due), self._tick)

    def _tick(self) -> None:
        self._timer_due = float("inf")
        self._timer = None
        try:
            self.core.tick(self._loop.time())
        finally:
            self.acted()  # the timers that are left are due again


def _nobody(_action: act.Log) -> None:
    pass


def _is_written(_: Entry) -> None:
    """The journal has it already."""
