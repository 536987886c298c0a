"""The front door: one group, one command a file, and the way from errors to exit codes.

COMMANDS is the whole list. A command's module is imported when that command is asked for and not before: `rocketcrew
--help` and a mistyped name cost no pyarrow, no asyncio and no pyspark. A new command is a file in `commands/` with a click
command of the same name in it, and a line here.
"""

from __future__ import annotations

import faulthandler
import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Final

import click

from ..conf.importing import uncollected, without_looks
from ..remoting.arguments import near
from .exit_codes import guarded
from .interrupts import Interrupts
from .json_text import escape_in
from .leaving import leave
from .surroundings import Surroundings, surroundings

COMMANDS: Final[dict[str, str]] = {
    "run": "Consume topics with a handler: supervisor, workers and Spark loader.",
    "init": "Make a small project: handler, configuration, test, Dockerfile.",
    "dev": "Try a handler out: a broker, run --reload and the status page in one.",
    "doctor": "Look at everything that run needs: cluster, handler, table, machine.",
    "broker": "Run the embedded name server and broker.",
    "status": "Show how a running supervisor is doing.",
    "top": "Watch a running supervisor, live.",
    "why-lag": "Show what holds the offsets of a running supervisor: message, worker, rule.",
    "stacks": "Show what every process of a running supervisor is doing.",
    "pause": "Pause pulling in a running supervisor.",
    "resume": "Resume pulling after a pause.",
    "scale": "Change the number of workers of a running supervisor.",
    "reload": "Reload handler code and settings of a running supervisor.",
    "subscribe": "Add a topic to a running supervisor, or change the filter of one.",
    "unsubscribe": "Stop consuming a topic in a running supervisor.",
    "stop": "Stop a running supervisor.",
    "send": "Send messages to a topic.",
    "load": "Load sealed results into a Spark table.",
    "query": "Query the table with SQL, by DuckDB or Spark.",
    "reset": "Set a group's offsets, and load again what it loaded.",
    "skip": "Skip one message of a queue for a group, or all up to an offset.",
    "clone-offsets": "Copy the offsets of one group to another.",
    "compact": "Rewrite small files of the table into large ones.",
    "replay": "Run a handler over a past stretch of time, on Spark, and compare its rows with a table.",
    "reconcile": "Compare the table with the brokers: is everything there?",
    "lag": "Show how far a group is behind, queue by queue.",
    "find": "Find messages by id, key or place.",
    "peek": "Show a few messages of a topic.",
    "tail": "Show messages of a topic as they come.",
    "dlq": "Work with a group's dead letters: list, sort, replay, export, purge.",
    "topics": "Show the cluster's topics.",
    "groups": "Show the cluster's consumer groups: members, lag, dead letters.",
    "members": "Show who is in a group, and which queues each member has.",
    "demo": "Process the Python standard library from end to end, without a cluster.",
    "chaos": "Break things on purpose, and report what that did to messages.",
    "config": "Check the configuration, or show each setting and where it comes from.",
}
"""Each command with the line that `rocketcrew --help` has for it; its file is `commands/<name>.py`."""
ENDS_AT_ONCE: Final = "run"
"""The one command whose exit code a service manager acts on. What other commands' user code leaves open (`replay`, `query`)
is ended as in any program; here its files are closed, see `leave`."""
NOTES_SIGNALS: Final = frozenset({"run", "dev"})
"""Commands whose start looks itself whether Ctrl-C or TERM has come."""


class LazyGroup(click.Group):
    """A group whose commands are imported when they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        with uncollected(), without_looks():
            module = importlib.import_module(f".commands.{cmd_name.replace('-', '_')}", __package__)
        command = getattr(module, cmd_name.replace("-", "_"))
        assert isinstance(command, click.Command), f"cli/commands/{cmd_name}.py has no click command {cmd_name}"
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            ctx.fail(f"No such command {name!r}{near(name, COMMANDS) if get_close_matches(name, COMMANDS) else ''}")
        found = super().resolve_command(ctx, args)
        from ..conf.sources import environment_name  # the command's module has imported it

        around = surroundings(ctx)
        around.said.begin(name, around.env.get(environment_name("log.format")))  # the command's flags are not read yet
        interrupts = around.interrupts
        (interrupts.note if name in NOTES_SIGNALS else interrupts.raise_again)()
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(None, "--version", "-V", package_name="rocketcrew", message="%(package)s %(version)s")
def rocketcrew() -> None:
    """A RocketMQ push consumer for CPU-heavy Python.

    One process is the member of the consumer group; worker processes run your handler on every core; the rows that it
    returns go in bulk into a Spark table. Works against RocketMQ 4.9 and 5.x, and alone with an embedded broker.

    \b
    Settings come from flags, the environment (ROCKETCREW_<SECTION>_<KEY>, NAMESRV_ADDR), a file
    (-c FILE, ROCKETCREW_CONFIG, or ./rocketcrew.toml) and defaults, in this order.
    `rocketcrew config show --reference` prints all of them with their meaning.

    \b
    Exit codes: 0 fine, 1 failure, 2 usage or configuration, 3 broker or name server unreachable,
    4 handler cannot be imported, 5 stop was forced, 6 Spark cannot start, 130 interrupted.
    """


def run(arguments: Sequence[str], env: Mapping[str, str], folder: Path, interrupts: Interrupts | None = None) -> int:
    """Run a command line (without the program's name) as if called with `env` in `folder`; return the exit code."""
    around = Surroundings(dict(env), folder, interrupts or Interrupts())
    return guarded(
        lambda: rocketcrew.main(args=list(arguments), prog_name="rocketcrew", standalone_mode=False, obj=around),
        around.said,
    )


def main(interrupts: Interrupts) -> None:
    """The console script. The one place that reads the process's environment, and it is read once."""
    escape_in(sys.stdout)
    faulthandler.enable()  # a crash in a library's C code says on stderr where it was
    leave(run(sys.argv[1:], os.environ, Path(), interrupts), at_once=sys.argv[1:2] == [ENDS_AT_ONCE])
