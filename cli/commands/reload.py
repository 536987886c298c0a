"""`rocketcrew reload`: new handler code and settings in a running supervisor, worker by worker."""

from __future__ import annotations

import time
from typing import Any

import click

from ...remoting.errors import RocketcrewError
from ..controlling import Target, to_change_supervisor

POLL_S = 0.1


@click.command()
@click.option("--wait/--no-wait", default=True, help="Wait for the end of the reload (default), or only ask for it.")
@to_change_supervisor
def reload(target: Target, wait: bool) -> None:
    """Reload the handler's code and the settings of a running supervisor, without leaving the group.

    The first worker with the new code starts beside the old ones; when it cannot (an import error, a set-up hook that
    raises), nothing changes and this command fails with the reason. Then the others are replaced one after another. The
    signal HUP does the same. Settings that hold only after a restart are named.

    \b
    Examples:
      rocketcrew reload
      rocketcrew reload -g billing --wait
    """
    answer = target.change(
        "reload", lambda found: f"reload the code and the settings in {found['staff']['workers']} workers"
    )
    if answer is None:
        return
    if wait:
        staff = _until_over(target, answer.get("ends", 0))
        answer["result"] = staff["last_reload"]
        if not staff["last_reload"].startswith("generation"):
            raise RocketcrewError(f"the reload was {staff['last_reload']}")
    kept = f"; only after a restart: {', '.join(answer['needs_restart'])}" if answer.get("needs_restart") else ""
    asked = "reloading" + (f", after {answer['after']}" if answer.get("after") else "")
    target.tell(answer, answer.get("result", asked) + kept)


def _until_over(target: Target, ends: int) -> dict[str, Any]:
    """The staff when so many reloads are over: ours may have waited for another one."""
    while True:
        staff: dict[str, Any] = target.ask("status")["staff"]
        if staff["reload"] == "idle" and staff.get("reloads_ended", ends) >= ends:
            return staff
        time.sleep(POLL_S)
