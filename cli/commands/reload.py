"""`rocketcrew reload`: new handler code and settings in a running supervisor, worker by worker."""

from __future__ import annotations

import time
from typing import Any

import click

from ...conf.printed import counted
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
        "reload", lambda found: f"reload the code and the settings in {counted(found['staff']['workers'], 'worker')}"
    )
    if answer is None:
        return
    if wait:
        answer["result"] = result = _result(target, answer["ends"], answer["pid"])
        if not result.startswith("generation"):
            raise RocketcrewError(f"the reload was {result}")
    kept = f"; only after a restart: {', '.join(answer['needs_restart'])}" if answer.get("needs_restart") else ""
    asked = "reloading" + (f", after {answer['after']}" if answer.get("after") else "")
    target.tell(answer, answer.get("result", asked) + kept)


def _result(target: Target, number: int, pid: int) -> str:
    """Of the reload with this number, once it is over: ours may have waited for another one, and others may follow."""
    while True:
        found = target.ask("status")
        if found["pid"] != pid:
            raise RocketcrewError(
                "the supervisor was restarted meanwhile, with the code and the settings as they were then"
            )
        staff: dict[str, Any] = found["staff"]
        if staff["reloads_ended"] >= number:
            return str(
                staff["reload_results"].get(str(number), "followed by so many others that its result is not known")
            )
        time.sleep(POLL_S)
