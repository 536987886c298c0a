"""What all commands share: where settings come from, and how their logs look.

`with_settings` gives a command its Settings as the first argument. A command's own options that are settings under
another name are named to it, `with_settings(group="consumer.group")`: given on the command line they are flags, with their
own name in every message; not given, the environment, the file or the default holds, which a default of the option
itself would hide.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TextIO, TypeVar, cast

import click
from click.core import ParameterSource

from ..conf.formats import not_a_folder, not_a_table, on_hdfs
from ..conf.redaction import masked_text
from ..conf.settings import Settings, load
from ..conf.sources import CONFIG_FILE_VARIABLE, DEFAULT_FILE, find_file, given_to
from ..remoting.errors import UsageError
from .exit_codes import SERVICES
from .live_line import LiveLine
from .patient_output import PatientOutput, not_shown
from .surroundings import surroundings

if TYPE_CHECKING:
    from ..spark.object_store import Place

P = ParamSpec("P")
R = TypeVar("R")

ALIAS: Final = "namesrv"
"""Parameter of the hidden option that is RocketMQ's own spelling of --name-servers."""
LIVE_LEVEL: Final = "warning"
"""Below the start block and beside the live line, only what needs somebody is logged."""
RUNS_HANDLERS: Final = frozenset({"run", "dev"})
"""Commands that are a supervisor: on a terminal they have a live line."""
LOG_TO_FILE: Final = SERVICES
"""Commands that obey log.file. The others answer somebody who waits, and say there what is wrong."""
LONG_RUNNING: Final = RUNS_HANDLERS | frozenset({"broker", "load", "demo", "chaos", "compact", "replay", "reconcile"})
"""Commands whose log is worth reading as they go. The others answer one question: their answer, or the one error, is all that
they say, unless a log level is asked for."""
OF_A_GROUP: Final = RUNS_HANDLERS | frozenset({"load"})
"""Commands whose lines name the group, as those of its workers do: several crews may write to one log.file."""
DEV_GROUP: Final = "dev"
"""That of `dev`, where none was chosen."""

_REREAD: Final = "rocketcrew.reread"
_LIVE: Final = "rocketcrew.live"
_OUTPUT: Final = "rocketcrew.output"
COMMON_NAME_SERVERS: Final = "cluster.name_servers"
COMMON: Final[Mapping[str, str]] = {
    "name_servers": COMMON_NAME_SERVERS,
    "log_format": "log.format",
    "log_level": "log.level",
}
"""Parameters of the options that every command has, and the settings that they are."""


class Dependent(click.Option):
    """An option that means something beside another one only, as its help says: "With --wait: ...". Alone it is refused
    instead of being ignored."""

    def __init__(self, *words: Any, needs: str, **more: Any) -> None:
        """`needs` is the other option as it is written, such as "--wait"."""
        super().__init__(*words, **more)
        self.needs = needs

    def handle_parse_result(
        self, ctx: click.Context, opts: Mapping[str, Any], args: list[str]
    ) -> tuple[Any, list[str]]:
        if self.name in opts and not ctx.resilient_parsing:  # Tab may be pressed before the other one is written
            other = next(each for each in ctx.command.get_params(ctx) if self.needs in each.opts)
            if not opts.get(other.name or ""):
                raise UsageError(
                    f"{self.opts[0]} goes with {self.needs} only: add {self.needs}, or leave {self.opts[0]} out"
                )
        return super().handle_parse_result(ctx, opts, args)


class Folder(click.Path):
    """An option that names a folder on this host; a URL is refused, which a path would take for a name."""

    def __init__(self, *, exists: bool = False) -> None:
        super().__init__(file_okay=False, path_type=Path, exists=exists)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        wrong = not_a_folder(str(value))
        if wrong:
            self.fail(f"{str(value)!r} {wrong}", param, ctx)
        return super().convert(value, param, ctx)


FOLDER: Final = Folder()
FOLDER_THERE: Final = Folder(exists=True)
"""A folder that is read: a mistyped name is an error, and not an empty folder."""


def table_place(settings: Settings, *, not_on_hdfs: str) -> Place:
    """Where the table is, for commands that look into it themselves; `not_on_hdfs` says why they can't on HDFS.

    Raises UsageError for what is no table, and for one on HDFS.
    """
    from ..spark.object_store import place_of

    target = settings.spark.target
    shown = f"spark.target = {masked_text(target)!r} (from {settings.origin['spark.target']})"
    wrong = not_a_table(target, settings.spark.format)
    if wrong:
        raise UsageError(f"{shown} {wrong}")
    if on_hdfs(target):
        raise UsageError(f"{shown} is on HDFS: {not_on_hdfs}")
    return place_of(target, settings.spark.options)


@dataclass(frozen=True, slots=True)
class Sources:
    """Everything that settings are loaded from, in the form that `conf.settings.load` takes."""

    flags: Mapping[str, object]
    flag_names: Mapping[str, str]
    env: Mapping[str, str]
    file: Path | None

    def load(self) -> Settings:
        """Read and check the settings; raises UsageError."""
        return load(self.flags, self.env, self.file, flag_names=self.flag_names)


def _assignments(context: click.Context, parameter: click.Parameter, value: tuple[str, ...]) -> dict[str, str]:
    given: dict[str, str] = {}
    for text in value:
        name, equals, rest = text.partition("=")
        if not equals or "." not in name:
            # What follows the name may be a secret.
            shown = re.sub(r"(?<==).+|[^\w.=-].*", "...", text, flags=re.DOTALL)
            raise click.BadParameter(f"{shown!r} is not section.key=value", context, parameter)
        given[name.strip()] = rest
    return given


def common_options(command: Callable[P, R], *, asks_cluster: bool = True) -> Callable[P, R]:
    """The options of every command; those for name servers only where a cluster is asked."""
    options = [
        click.option("-c", "--config", "config_file", metavar="FILE", type=click.Path(path_type=Path), default=None,
                     help=f"Settings file (TOML). Otherwise {CONFIG_FILE_VARIABLE}, else ./{DEFAULT_FILE} where it exists."),
        click.option("--set", "assignments", metavar="SECTION.KEY=VALUE", multiple=True, callback=_assignments,
                     help="Any setting, as in: --set workers.count=4. May be repeated."),
        click.option("--log-format", metavar="auto|human|json", help="How log lines on stderr look."),
        click.option("--log-level", metavar="LEVEL", help="debug, info, warning or error."),
    ]  # fmt: skip
    if asks_cluster:
        options += [
            click.option("-n", "--name-servers", metavar="HOST:PORT[;...]",
                         help="Name servers. Otherwise NAMESRV_ADDR or the file."),
            click.option("--namesrv", "--namesrv-addr", "--namesrvAddr", ALIAS, hidden=True, help="The same as -n."),
        ]  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


def read_sources(context: click.Context, arguments: dict[str, Any], named: Mapping[str, str]) -> Sources:
    """Take the common options, and those that `named` maps to settings, out of `arguments`."""
    around = surroundings(context)
    env = around.env
    file = find_file(arguments.pop("config_file"), env, around.folder)
    assignments: dict[str, object] = arguments.pop("assignments")
    flags: dict[str, object] = {}
    flag_names = {name: f"--set {name}" for name in assignments}
    spelled = {parameter.name: max(parameter.opts, key=len) for parameter in context.command.params}
    alias = arguments.pop(ALIAS, None)
    if alias is not None:
        if context.get_parameter_source("name_servers") is ParameterSource.COMMANDLINE:
            raise click.UsageError("--name-servers and --namesrv say the same thing twice", context)
        flags[COMMON_NAME_SERVERS], flag_names[COMMON_NAME_SERVERS] = alias, "--namesrv"
    for parameter, setting in {**COMMON, **named}.items():
        value = arguments.pop(parameter, None)
        if context.get_parameter_source(parameter) is ParameterSource.COMMANDLINE:
            flags[setting] = value
            flag_names[setting] = spelled[parameter]
    both = flags.keys() & assignments.keys()
    if both:
        setting = min(both)
        raise click.UsageError(f"{flag_names[setting]} and --set {setting} say the same thing twice", context)
    given = {**assignments, **flags}
    around.said.begin(context.info_name or "", given_to("log.format", given, env, file))
    return Sources(given, flag_names, env, file)


def set_up_logging(settings: Settings, env: Mapping[str, str], process: str) -> None:
    """Log to stderr, or to log.file, as the settings say; NO_COLOR is obeyed. Raises UsageError."""
    from ..conf.logging import log_stream, set_up

    colors = False if env.get("NO_COLOR") else None
    level, stream = settings.log.level, sys.stderr
    line = output = None
    file = settings.log.file if process in LOG_TO_FILE else ""
    if process in RUNS_HANDLERS and (own := _descriptor_of_its_own(sys.stderr)) is not None:
        # Standard error is another one while the line is shown (`live_line.beside`).
        wanted = file or (settings.origin["log.level"] == "default" and settings.log.format != "json")
        live = bool(wanted) and os.isatty(own)
        human = settings.log.format == "human" or (settings.log.format == "auto" and os.isatty(own))
        output = PatientOutput(own, not_shown if human else _not_logged)
        line = LiveLine(output, lambda: os.get_terminal_size(own).columns) if live else None
        level, stream = LIVE_LEVEL if live and not file else level, cast("TextIO", line or output)
    elif settings.origin["log.level"] == "default" and process not in LONG_RUNNING:
        level = "error"
    click.get_current_context().meta.update({_LIVE: line, _OUTPUT: output})
    group = settings.consumer.group or (DEV_GROUP if process == "dev" else "")
    set_up(settings.log.format, level, log_stream(file, stream), process, colors=colors,
           group=group if process in OF_A_GROUP else "")  # fmt: skip


def _descriptor_of_its_own(stream: TextIO) -> int | None:
    """None where it is closed, or none of the operating system's."""
    try:
        return os.dup(stream.fileno())
    except (OSError, ValueError):
        return None


def _not_logged(lines: int) -> str:
    return f'{{"event": "lines_not_shown", "level": "warning", "lines": {lines}}}\n'


def log_output() -> PatientOutput | None:
    """For `run`: what its live line and its log are written to, beside which nobody in its loop writes."""
    output: PatientOutput | None = click.get_current_context().meta[_OUTPUT]
    return output


def live_line() -> LiveLine | None:
    """For `run`: the line at the bottom of the terminal, beside which the log is written; None where nobody looks, or where a
    log level is asked for."""
    line: LiveLine | None = click.get_current_context().meta[_LIVE]
    return line


def with_settings(
    *, asks_cluster: bool = True, **named: str
) -> Callable[[Callable[Concatenate[Settings, P], R]], Callable[..., R]]:
    """Give the command the common options and, as its first argument, the settings; set up logging before it runs.

    `named` maps parameters of the command's own options to settings. They are not passed on: they are in the settings.
    A command that is not `asks_cluster` has no option -n.
    """

    def decorate(function: Callable[Concatenate[Settings, P], R]) -> Callable[..., R]:
        @functools.wraps(function)
        def command(**arguments: Any) -> R:
            context = click.get_current_context()
            sources = read_sources(context, arguments, named)
            settings = sources.load()
            context.meta[_REREAD] = sources.load
            set_up_logging(settings, sources.env, context.info_name or "rocketcrew")
            return function(settings, **arguments)  # type: ignore[call-arg]  # click gives arguments by name only

        return common_options(command, asks_cluster=asks_cluster)

    return decorate


def reread_settings() -> Callable[[], Settings]:
    """For a command that is running: reads flags, environment and file again, as at its start."""
    reread: Callable[[], Settings] = click.get_current_context().meta[_REREAD]
    return reread


def with_sources(function: Callable[Concatenate[Sources, P], R]) -> Callable[..., R]:
    """As `with_settings`, for commands that look at the configuration itself: it is not loaded yet."""

    @functools.wraps(function)
    def command(**arguments: Any) -> R:
        sources = read_sources(click.get_current_context(), arguments, {})
        return function(sources, **arguments)  # type: ignore[call-arg]

    return common_options(command)
