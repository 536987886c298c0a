"""What every command has, whoever wrote it: --json; --dry-run and --yes where it changes something."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click
import pytest
from click.shell_completion import ShellComplete, get_completion_class

from rocketcrew.cli.main import rocketcrew as cli
from rocketcrew.cli.options import Dependent
from rocketcrew.cli.surroundings import Surroundings
from rocketcrew.conf import exit_codes
from rocketcrew.remoting.errors import UsageError

ROOT = Path(__file__).parents[3]
ASK: Final = {
    "reset": "messages are skipped or repeated",
    "skip": "a message is never consumed",
    "clone-offsets": "messages are skipped or repeated",
    "dlq replay": "messages are handled once more",
    "dlq purge": "letters are left out from now on",
}
"""Commands that change something which no other command undoes, with what: they ask on a terminal."""
CHANGE: Final = frozenset(
    {
        "init", "send", "load", "compact", "reconcile", "pause", "resume", "scale", "reload", "subscribe", "unsubscribe",
        "stop", "chaos", "broker convert", "dlq export",
    }
)  # fmt: skip
"""Commands that change something and never ask."""
START: Final = {
    "run": "consuming is what it is for; `doctor`, or `run --check`, looks first",
    "dev": "consumes from a broker of its own",
    "broker": "serves",
    "demo": "works in a folder of its own",
    "replay": "reads, in a Spark job; its rows go to a new folder",
}
"""Commands that start something of their own and change nothing that is there, with what: there is nothing to show first."""
READ: Final = frozenset(
    {
        "doctor", "broker check", "status", "top", "why-lag", "stacks", "query", "lag", "find", "peek", "tail", "dlq ls",
        "dlq show", "dlq group", "topics", "groups", "members", "config check", "config show",
    }
)  # fmt: skip


def tree(
    command: click.Command, context: click.Context, words: tuple[str, ...] = ()
) -> Iterator[tuple[str, dict[str, str]]]:
    """Every command that does something, by its words, with its options and their help."""
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from tree(below, click.Context(below, parent=context, info_name=name), (*words, name))
        if not (words and command.invoke_without_command):
            return
    options = [each for each in command.params if isinstance(each, click.Option)]
    yield " ".join(words), {name: each.help or "" for each in options for name in each.opts}


COMMANDS: Final = dict(tree(cli, click.Context(cli)))


def test_every_command_is_judged_here_once() -> None:
    assert sorted([*ASK, *CHANGE, *START, *READ]) == sorted(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_answers_programs_and_each_that_changes_something_can_be_tried_first(name: str) -> None:
    wanted = {"--json"}
    if name in ASK or name in CHANGE:
        wanted |= {"--dry-run", "--yes", "-y"}
    assert COMMANDS[name].keys() & {"--json", "--dry-run", "--yes", "-y"} == wanted


@pytest.mark.parametrize("name", [name for name in COMMANDS if "--yes" in COMMANDS[name]])
def test_the_help_says_which_command_asks(name: str) -> None:
    assert ("never asks" in COMMANDS[name]["--yes"]) == (name not in ASK)


def test_the_rule_is_written_where_commands_are_looked_up() -> None:
    rule = (ROOT / "docs/reference/commands.md").read_text()
    asking = re.search(r"`--yes`.*? ask: ([^.]*)\.", " ".join(rule.split()))
    assert asking is not None
    assert set(re.findall(r"`([a-z -]+)`", asking[1])) == set(ASK)


def test_exit_codes_are_documented_where_they_are_looked_for() -> None:
    codes = {value for name, value in vars(exit_codes).items() if name.startswith("EXIT_")} - {
        exit_codes.EXIT_DESCRIPTORS
    }
    table = (ROOT / "docs/how-to/operate.md").read_text().partition("## Exit codes")[2].partition("\n## ")[0]
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)} == codes
    line = re.search(r"[Ee]xit codes: ([^.]*)\.", (ROOT / "README.md").read_text())
    assert line is not None
    assert {int(code) for code in re.findall(r"\b(\d+) \w", line[1])} == codes
    with click.Context(cli, info_name="rocketcrew") as context:
        told = " ".join(cli.get_help(context).split()).partition("Exit codes: ")[2].partition(".")[0]
    assert {int(code) for code in re.findall(r"\b(\d+) \w", told)} == codes


def dependent_options() -> Iterator[tuple[str, click.Command, click.Option, str]]:
    """Each option whose help begins with "With --other: " or that is declared to need another one, and that one."""

    def walk(
        command: click.Command, context: click.Context, words: tuple[str, ...]
    ) -> Iterator[tuple[str, click.Command]]:
        if not isinstance(command, click.Group):
            yield " ".join(words), command
            return
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from walk(below, click.Context(below, parent=context, info_name=name), (*words, name))

    for words, command in walk(cli, click.Context(cli), ()):
        for option in command.params:
            if isinstance(option, click.Option):
                found = re.match(r"With (--[a-z-]+):", option.help or "")
                if found or isinstance(option, Dependent):
                    yield words, command, option, found[1] if found else ""


DEPENDENT: Final = list(dependent_options())


def test_tab_completes_the_option_that_another_one_needs(tmp_path: Path) -> None:
    found = ShellComplete(
        cli, {"obj": Surroundings({}, tmp_path)}, "rocketcrew", "_ROCKETCREW_COMPLETE"
    ).get_completions(["stop", "--timeout", "5"], "--w")
    assert [each.value for each in found] == ["--wait"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_page_of_the_commands_has_the_line_that_switches_completion_on(shell: str) -> None:
    found = re.search(rf"(\w+)={shell}_source rocketcrew", (ROOT / "docs/reference/commands.md").read_text())
    made = get_completion_class(shell)
    assert found is not None
    assert made is not None
    assert f"{found[1]}={shell}_complete" in made(cli, {}, "rocketcrew", found[1]).source()
    assert found[1] == "_ROCKETCREW_COMPLETE", "what click asks for, by the name of the program"


def test_options_that_mean_something_beside_another_are_found() -> None:
    assert {(words, option.opts[0]) for words, _, option, _ in DEPENDENT} >= {
        ("stop", "--timeout"), ("lag", "--count"), ("dlq replay", "--pdb"), ("reset", "--target"),
    }  # fmt: skip


@pytest.mark.parametrize(("words", "command", "option", "needs"), DEPENDENT, ids=lambda each: str(each)[:40])
def test_an_option_that_means_something_beside_another_only_is_refused_alone(
    tmp_path: Path, words: str, command: click.Command, option: click.Option, needs: str
) -> None:
    given = [option.opts[0]] if option.is_flag else [option.opts[0], "1"]
    required = {"reset": ["--to", "earliest"]}.get(words, [])
    with pytest.raises(UsageError, match=f"^{option.opts[0]} goes with {needs} only: "):
        command.main([*required, *given], obj=Surroundings({}, tmp_path), standalone_mode=False)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (
            ["query", "--engine", "duckdb", "--master", "local[2]", "--target", "/t", "SELECT 1"],
            "leave one of the two out",
        ),
        (["config", "show", "--reference", "--changed"], "no names and no other option"),
        (["config", "show", "--reference", "consumer"], "no names and no other option"),
    ],
)
def test_options_that_contradict_each_other_are_refused(tmp_path: Path, words: list[str], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        cli.main(words, obj=Surroundings({}, tmp_path), standalone_mode=False)
