"""`rocketcrew config`: is the configuration right, and what holds?"""

from __future__ import annotations

import click

from ...conf.schema import SCHEMA
from ...conf.settings import Settings, value_of
from ...conf.sources import KNOWN, ConfigError, defaults_text, show_setting, without_secrets
from ...remoting.arguments import close_names
from ...remoting.errors import UsageError
from ...supervisor.member.access import check_files
from ..exit_codes import exit_code
from ..json_text import json_text
from ..options import Sources, with_sources


@click.group()
def config() -> None:
    """Check the configuration, or show each setting and where it comes from.

    Both look at exactly what every other command would: flags, environment, file and defaults of this folder and shell.

    \b
    Examples:
      rocketcrew config check
      rocketcrew config show consumer
    """


@config.command()
@click.option("--handler", metavar="HANDLER", help="Look at this handler too, as `run` would: its import, signature and"
              " topics, and its columns against the table.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
@with_sources
def check(sources: Sources, handler: str | None, as_json: bool) -> None:
    """Check the whole configuration and list every problem; keys and certificates that it names are read too.

    Exits with 0 when there is none, with 4 when only the handler has one, else with 2. Nothing is started or written, and
    no name server or broker is asked. With --handler, it is imported in a process of its own, and the table's columns are
    read, also from a bucket.

    \b
    Examples:
      rocketcrew config check -c billing.toml
      rocketcrew config check --handler shop.orders:handle
    """
    try:
        settings = sources.load()
        check_files(settings)
        columns = "" if handler is None else _look_at(settings, handler)
    except UsageError as error:
        if not as_json:
            raise
        click.echo(json_text({"ok": False, "problems": _problems(error)}))
        raise click.exceptions.Exit(exit_code(error)) from None
    if as_json:
        click.echo(json_text({"ok": True, "problems": ()} | ({"columns": columns} if handler else {})))
        return
    click.echo(f"the configuration is fine: {_summary(settings)}")
    if handler:
        click.echo(f"the handler {handler} can be run" + (f"; its columns: {columns}" if columns else ""))


def _look_at(settings: Settings, handler: str) -> str:
    """The columns of the handler's rows, "" where none are declared. Raises HandlerLoadError, and UsageError
    for what is wrong without it."""
    from ...workers.loading import HandlerLoadError  # pyarrow takes its time to import
    from ..checkup_facts import check_start, handler_facts, table_facts

    check_start(settings)
    table, spec = table_facts(settings, probe=False)
    if table is not None and table.wrong:
        raise UsageError(table.wrong)
    found = handler_facts(settings, handler, spec)
    if found.wrong or found.misfit:
        raise HandlerLoadError(found.wrong or found.misfit)
    return found.columns


def _problems(error: UsageError) -> list[dict[str, str]]:
    if not isinstance(error, ConfigError):
        return [{"wrong": str(error)}]
    return [
        {name: getattr(problem, name) for name in ("setting", "value", "origin", "wrong", "legal")}
        for problem in error.problems
    ]


def _summary(settings: Settings) -> str:
    counts: dict[str, int] = {}
    for origin in settings.origin.values():
        kind = origin if origin.startswith("file ") else origin.partition(" ")[0]
        counts[kind] = counts.get(kind, 0) + 1
    return ", ".join(f"{count} from {kind}" for kind, count in sorted(counts.items()))


@config.command("show")
@click.argument("names", metavar="[SECTION|SECTION.KEY]...", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object: section, key, value and origin.")
@click.option("--changed", is_flag=True, help="Leave out what is as the defaults have it.")
@click.option("--reference", is_flag=True, help="Print the commented reference of all settings instead.")
@with_sources
def show_settings(sources: Sources, names: tuple[str, ...], as_json: bool, changed: bool, reference: bool) -> None:
    """Show every setting, its value, and where it came from.

    \b
    Examples:
      rocketcrew config show consumer               one section
      rocketcrew config show workers.count          one setting
      rocketcrew config show --changed              what differs from the defaults
      rocketcrew config show --reference > my.toml  a file to start from
    """
    if reference:
        if names or as_json or changed:
            raise UsageError(
                "--reference prints all settings as a file to start from: it takes no names and no other option"
            )
        click.echo(defaults_text(), nl=False)
        return
    settings = sources.load()
    chosen = [name for name in _chosen(names) if not changed or settings.origin[name] != "default"]
    if as_json:
        tree: dict[str, dict[str, object]] = {}
        for name in chosen:
            section, _, key = name.partition(".")
            value = value_of(settings, name)
            entry = {"value": without_secrets(name, value), "origin": settings.origin[name]}
            tree.setdefault(section, {})[key] = entry
        click.echo(json_text(tree, indent=2))
        return
    lines = [(f"{name} = {show_setting(name, value_of(settings, name))}", settings.origin[name]) for name in chosen]
    width = min(max((len(line) for line, _ in lines), default=0), 64)
    for line, origin in lines:
        click.echo(f"{line:<{width}}  # {origin}")


def _chosen(names: tuple[str, ...]) -> list[str]:
    for name in names:
        if name not in SCHEMA and name not in KNOWN:
            meant = close_names(name, KNOWN if "." in name else SCHEMA) or f"; sections are {', '.join(SCHEMA)}"
            raise UsageError(f"there is no section and no setting {name!r}{meant}")
    return [known for known in KNOWN if not names or known in names or known.partition(".")[0] in names]
