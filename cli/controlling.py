"""What the commands to a running supervisor share: which one is meant, the question, and the answer for people or programs.

A supervisor is found by its slot in supervisor.data_dir. Where several run (several members on one host, or several
groups), `--group` and `--slot` say which.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import psutil

from ..conf.printed import same_settings
from ..conf.settings import Settings
from ..remoting.errors import RocketcrewError, UsageError
from ..remoting.names import RETRY_PREFIX
from ..remoting.namespaces import wrap
from ..supervisor.control import SOCKET_NAME, ask
from ..supervisor.member.access import namespace_of
from .changing import changes, would
from .json_text import json_text
from .options import with_settings
from .tables import seen

LOOK_S = 5.0
"""Whoever runs answers in milliseconds; one that is halted never does."""


class Target:
    """One running supervisor."""

    def __init__(self, slot: Path, *, as_json: bool, dry_run: bool = False, known: Sequence[str] = ()) -> None:
        """`known`: the options that it was found by, for command lines that are printed."""
        self.slot = slot
        self.as_json = as_json
        self.dry_run = dry_run
        self.known = known

    def ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        """Its answer. Raises RocketcrewError for a refusal, UsageError when none answers."""
        answer = asyncio.run(ask(self.slot, command, **arguments))
        if "error" in answer:
            raise RocketcrewError(str(answer["error"]))
        return answer

    def change(self, command: str, what: Callable[[dict[str, Any]], str], **arguments: object) -> dict[str, Any] | None:
        """As `ask`. With --dry-run the supervisor is asked for its status only, of which `what` makes what would be done (a
        verb first); then None."""
        if not self.dry_run:
            return self.ask(command, **arguments)
        found = self.ask("status")
        place = {"group": found["group"], "slot": str(self.slot), "pid": found["pid"]}
        where = f" (group {found['group']}, slot {self.slot.name}, pid {found['pid']})"
        would(what(found) + ("" if self.as_json else where), as_json=self.as_json, **place)
        return None

    def tell(self, answer: dict[str, Any], line: str) -> None:
        """The answer as JSON, or the line."""
        click.echo(json_text(answer) if self.as_json else seen(line))


def subscribed(found: dict[str, Any]) -> dict[str, Any]:
    """The topics of a supervisor's status, without their namespace and the group's own, and what it has of each."""
    subscriptions = found["subscriptions"].items()
    return {name.rpartition("%")[2]: its for name, its in subscriptions if not name.startswith(RETRY_PREFIX)}


def to_change_supervisor(function: Callable[..., None]) -> Callable[..., None]:
    """As `to_supervisor`, for what changes something (`changing`)."""
    return changes(asks=False)(to_supervisor(function))


def to_supervisor(function: Callable[..., None]) -> Callable[..., None]:
    """Make a command of a function that gets a Target as its first argument."""

    def command(
        settings: Settings, /, slot: str | None, as_json: bool, dry_run: bool = False, **arguments: Any
    ) -> None:
        target = Target(find(settings, slot), as_json=as_json, dry_run=dry_run, known=same_settings(settings))
        function(target, **arguments)

    made: Callable[..., None] = with_settings(asks_cluster=False, group="consumer.group")(
        functools.update_wrapper(command, function)
    )
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print the answer as one JSON object."),
        click.option("--slot", metavar="SLOT", help="Which supervisor, where several of the group run on this host."),
        click.option("-g", "--group", metavar="GROUP", help="The consumer group, where several run on this host."),
    ):
        made = option(made)
    return made


def find(settings: Settings, slot: str | None) -> Path:
    """The slot of the one running supervisor that is meant. Raises UsageError when there is none, or more than one;
    RocketcrewError when it runs and does not answer."""
    home = Path(settings.supervisor.data_dir)
    group = wrap(namespace_of(settings), settings.consumer.group)
    pattern = f"{_literal(group) or '*'}/{_literal(slot) or '*'}"
    found = [path.parent for path in sorted(home.glob(f"{pattern}/{SOCKET_NAME}"))]
    live = [path for path in found if _answers(path)]
    where = f"under {home.absolute()}" + (f" for group {group}" if group else "") + (f" in slot {slot}" if slot else "")
    held = running_slots() if len(live) < max(1, len(found)) else {}
    slots = (path for path in sorted(home.glob(pattern)) if path.name.isdigit())
    folders = () if live else (home, *home.glob(_literal(group) or "*"), *slots)
    return meant(found, live, held, where, closed_folders(folders))


def meant(
    found: list[Path], live: list[Path], held: dict[Path, int], where: str, closed: Mapping[Path, str] | None = None
) -> Path:
    """The one of the slots `found` that answers (`live`) when no other is held by a process (`held`, with its id). `closed`:
    those whose folder we may not list, with their user. Raises as `find`. Pure but for links on the way to a slot."""
    silent = {path: held[path.resolve()] for path in found if path not in live and path.resolve() in held}
    if len(live) == 1 and not silent:
        return live[0]
    if len(silent) == 1 and not live:
        ((path, pid),) = silent.items()
        raise RocketcrewError(
            f"pid {pid} runs and does not answer (group {path.parent.name}, slot {path.name}): it starts, is busy or hangs,"
            f" or was halted (`kill -CONT {pid}` lets it go on). Try again, or see its log. `kill {pid}` asks it to stop;"
            f" `kill -9 {pid}` ends it at once: what it has not finished will come again"
        )
    if not live and not silent and closed:
        whose = "; ".join(
            (f"slot {path.name} of group {path.parent.name}" if path.name.isdigit() else str(path))
            + f" belongs to user {user}"
            for path, user in sorted(closed.items())
        )
        raise UsageError(f"cannot see whether a supervisor runs {where}: {whose}. Run this as that user")
    if not live and not silent:
        raise UsageError(f"no supervisor runs {where}. {_elsewhere(held)}")
    names = ", ".join(
        f"{path.parent.name}/{path.name}" + (f" (pid {silent[path]}, does not answer)" if path in silent else "")
        for path in sorted([*live, *silent])
    )
    raise UsageError(f"several supervisors run {where}: {names}. Say which, by --group and --slot")


def running_slots() -> dict[Path, int]:
    """The slots that supervisors of this user hold on this machine, each with the process id: by the lock that they hold
    open."""
    found: dict[Path, int] = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if any("rocketcrew" in word for word in process.cmdline()):
                slots = [Path(file.path).parent for file in process.open_files() if file.path.endswith("/lock")]
                found |= {slot: process.pid for slot in slots if (slot / SOCKET_NAME).exists()}
    return found


def may_list(path: Path) -> bool:
    """Whether this user may."""
    return os.access(path, os.R_OK | os.X_OK)


def closed_folders(folders: Iterable[Path], may_list: Callable[[Path], bool] = may_list) -> dict[Path, str]:
    """Those that this user may not list, so that no pattern finds a socket in them; each with the name of its user."""
    return {path: _owner(path) for path in folders if os.path.isdir(path) and not may_list(path)}


def _owner(path: Path) -> str:
    try:
        return path.owner()
    except KeyError:  # of another container, say
        return str(path.stat().st_uid)


def _elsewhere(running: dict[Path, int]) -> str:
    """Where supervisors run instead."""
    if not running:
        return "None runs on this machine: start one with `rocketcrew run`"
    listed = "\n".join(
        f"  group {slot.parent.name}, slot {slot.name}, pid {pid}: --set supervisor.data_dir={slot.parent.parent}"
        for slot, pid in sorted(running.items())
    )
    return f"Running on this machine:\n{listed}"


def _literal(name: str | None) -> str:
    """As a pattern that matches just this."""
    return "".join(f"[{char}]" if char in "*?[" else char for char in name or "")


def _answers(slot: Path) -> bool:
    try:
        asyncio.run(ask(slot, "status", timeout_s=LOOK_S))
    except UsageError:
        return False
    return True
