"""What mkdocs calls while it builds the site: pages that are made of other files, so that nothing is written twice.

- Settings: made of conf/defaults.toml, which `rocketcrew config show --reference` prints. Its comments are the text, its
  values the defaults.
- Commands: what each command's --help prints.
- Architecture: ARCHITECTURE.md with its links turned round.

Links that leave docs/ are for readers of a checkout; here they are what setup.py makes of them.
"""

from __future__ import annotations

import html
import json
import posixpath
import re
import runpy
import tomllib
from pathlib import Path
from typing import Any

import click

from rocketcrew.cli.main import COMMANDS, rocketcrew

ROOT = Path(__file__).resolve().parent.parent
DEFAULTS = ROOT / "conf/defaults.toml"
HELP_WIDTH = 100
_SECTION = re.compile(r"\[([\w.]+)\]\s*(?:#\s*(.*))?")
_SETTING = re.compile(r"(\w+) = .*")


def on_page_markdown(markdown: str, page: Any, **_: object) -> str:
    """Put what a page is made of in the place of its mark, and links that leave the site right."""
    setup, folder = runpy.run_path(str(ROOT / "setup.py")), posixpath.dirname(f"docs/{page.file.src_uri}")
    return str(setup["published"](made(markdown, page.file.src_uri), setup["source"](), folder, site="docs"))


def made(markdown: str, page: str) -> str:
    """The page's own text, or what it is made of."""
    match page:
        case "reference/settings.md":
            return markdown.replace("<!-- every setting -->", settings(DEFAULTS.read_text()))
        case "reference/commands.md":
            return markdown.replace("<!-- every command -->", commands())
        case "architecture.md":
            return re.sub(r"\]\(docs/([\w-]+\.md)", r"](\1", (ROOT / "ARCHITECTURE.md").read_text())
        case _:
            return markdown


def settings(toml: str) -> str:
    """The settings as Markdown: a heading for each section and for each setting, its name in full, default and comment."""
    defaults = tomllib.loads(toml)
    said: list[str] = []
    comment: list[str] = []
    section = ""
    for line in toml.splitlines():
        if line.startswith("#"):
            comment.append(line.lstrip("#").strip())
        elif found := _SECTION.fullmatch(line):
            section = found[1]
            said += [f"## [{section}]", found[2] or ""]
            if "." in section:  # a table of the user's own names
                said += [f"`{section}`, default empty", _text(comment)]
            comment = []
        elif found := _SETTING.fullmatch(line):
            name = f"{section}.{found[1]}"
            default = json.dumps(defaults[section][found[1]])  # as TOML writes it
            said += [f"### {found[1]} {{ #{name} }}", f"`{name}`, default `{default}`", _text(comment)]
            comment = []
        elif not section:
            comment = []  # what the file says of itself
    return "\n\n".join(part for part in said if part)


def _text(comment: list[str]) -> str:
    """A comment as text in which Markdown finds nothing but its `code`."""
    parts = re.split(r"(`[^`]*`)", " ".join(comment))
    return "".join(
        part if part.startswith("`") else re.sub(r"([*_\[\]])", r"\\\1", html.escape(part, quote=False))
        for part in parts
    )


def commands() -> str:
    """Each command's help as a terminal of HELP_WIDTH columns shows it, commands of commands included."""
    said: list[str] = []
    top = click.Context(rocketcrew, info_name="rocketcrew", max_content_width=HELP_WIDTH, terminal_width=HELP_WIDTH)
    for name in COMMANDS:
        command = rocketcrew.get_command(top, name)
        assert command is not None
        said += _help(command, top, name, level=2)
    return "\n\n".join(said)


def _help(command: click.Command, parent: click.Context, name: str, level: int) -> list[str]:
    context = click.Context(
        command, parent=parent, info_name=name, max_content_width=HELP_WIDTH, terminal_width=HELP_WIDTH
    )
    said = [f"{'#' * level} {context.command_path}", f"```text\n{command.get_help(context)}\n```"]
    if isinstance(command, click.Group):
        for below, one in command.commands.items():
            said += _help(one, context, below, level + 1)
    return said
