"""The documents say what is so: their commands, settings and Python names exist, and their examples can be read.

Pages with terminals run whole in tests/system/test_typed_pages.py, that on sending in tests/unit/client/test_send_page.py.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import json
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest

import rocketcrew
import rocketcrew.testing
from rocketcrew.cli.commands.init import files_of
from rocketcrew.cli.main import COMMANDS
from rocketcrew.cli.main import rocketcrew as cli
from rocketcrew.conf.schema import SCHEMA
from rocketcrew.conf.settings import load
from rocketcrew.testing import message, run
from rocketcrew.workers.api import Handler

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "src/rocketcrew"
PAGES = sorted([ROOT / "README.md", ROOT / "examples/README.md", *(ROOT / "docs").rglob("*.md")])
HANDLER_PAGES = {"README.md": 1, "docs/tutorial.md": 1, "docs/how-to/handlers.md": 11, "docs/how-to/order.md": 2,
                 "docs/how-to/dead-letters.md": 2, "docs/how-to/s3.md": 1,
                 "docs/how-to/iceberg.md": 1, "docs/how-to/operate.md": 1, "docs/how-to/table.md": 1}  # fmt: skip
"""And how many handlers are shown there."""
SAMPLES = {
    "count": b'{"state": "paid", "order_id": "o", "total": 1.5, "items": [{"price": 9.5}]}',
    "bill": b"{}",
    "handle": b'{"total": 1.5}',
    "book": b"x",
}
"""What handlers that need nothing of the reader's own are called with."""
OWN_NAMES = {"spark.conf", "spark.options"}
"""Sections in which users name what they want."""
FAR_SECTIONS = {"spark"}
"""Settings of Spark's own begin with this word too: `spark.sql.…`."""


def blocks(page: Path, *languages: str) -> Iterator[str]:
    """What is fenced off as one of the languages."""
    for language, block in re.findall(r"^```(\w+)[^\n]*\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE):
        if language in languages:
            yield block


def commands(page: Path) -> Iterator[list[str]]:
    """The words of each `rocketcrew …` in a shell block, a terminal's block or a line of text."""
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    yield from typed_commands(page)
    yield from in_words(re.findall(r"`(rocketcrew [^`]*)`", prose))


def typed_commands(page: Path) -> Iterator[list[str]]:
    """Those in blocks: they are copied as they are."""
    lines = [line for block in blocks(page, "sh") for line in block.replace("\\\n", " ").splitlines()]
    lines += [line[2:] for block in blocks(page, "console") for line in block.splitlines() if line.startswith("$ ")]
    return in_words(lines)


def in_words(lines: list[str]) -> Iterator[list[str]]:
    """Of the lines that are a `rocketcrew …`, what follows that word."""
    for line in lines:
        words = [word for word in shlex.split(line, comments=True) if not re.match(r"[A-Z_]+=", word)]
        if words and words[0] == "rocketcrew":
            yield words[1:]


def settings(page: Path) -> Iterator[str]:
    """Names that look like settings: `section.key`."""
    for section, key in re.findall(r"`(?:--set )?(\w+)\.(\w+)[^`]*`", page.read_text()):
        if section in SCHEMA and not (section in FAR_SECTIONS and key not in SCHEMA[section] and "_" not in key):
            yield f"{section}.{key}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_and_their_options_exist(page: Path) -> None:
    for words in commands(page):
        parse(cli, click.Context(cli, info_name="rocketcrew"), [word for word in words if word != "N"] or ["--help"])


def parse(command: click.Command, context: click.Context, words: list[str]) -> None:
    """Find the command below and read its options; nothing is run, no value is looked at. Raises UsageError."""
    if isinstance(command, click.Group):
        assert words or command.invoke_without_command, f"{context.command_path} of what?"
        if not words or words[0].startswith("-"):
            return command.make_parser(context).parse_args(list(words)) and None
        below = command.get_command(context, words[0])
        assert below is not None, f"no command {words[0]}"
        return parse(below, click.Context(below, parent=context, info_name=words[0]), words[1:])
    command.make_parser(context).parse_args(list(words))
    return None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_settings_exist(page: Path) -> None:
    unknown = {name for name in settings(page) if name.partition(".")[2] not in SCHEMA[name.partition(".")[0]]}
    assert not unknown - logged_as_trouble()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_configuration_files_are_right(page: Path, tmp_path: Path) -> None:
    for number, block in enumerate(blocks(page, "toml")):
        file = tmp_path / f"{number}.toml"
        file.write_text(block)
        load({}, {"ROCKETCREW_SECURITY_SECRET_KEY": "as the page says"} if "access_key" in block else {}, file)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_can_be_read_and_names_exist(page: Path) -> None:
    for block in blocks(page, "python"):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and node.module == "rocketcrew":
                assert {name.name for name in node.names} <= set(rocketcrew.__all__)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_tests_that_are_named_exist(page: Path) -> None:
    for file, name in re.findall(r"`?(tests/[\w/]+\.py)(?:::(\w+))?", page.read_text()):
        assert f"\ndef {name or 'test_'}" in (ROOT / file).read_text(), (file, name)


def test_every_fault_of_the_table_has_a_test() -> None:
    page = (ROOT / "docs/delivery.md").read_text()
    faults = [int(number) for number in re.findall(r"^\| (\d+) \| [^`\n]", page, re.MULTILINE)]
    proved = {int(n) for row in re.findall(r"^\| ([\d, ]+) \| `tests/", page, re.MULTILINE) for n in row.split(", ")}
    assert faults == list(range(1, len(faults) + 1))
    assert proved == set(faults)


def test_the_java_member_of_the_page_is_that_of_the_interop_tests() -> None:
    member = (ROOT / "tests/interop/java/Member.java").read_text()
    (shown,) = blocks(ROOT / "docs/how-to/java.md", "java")
    calls = re.findall(r"consumer\.(\w+)\(", shown)
    assert calls == [name for name in re.findall(r"consumer\.(\w+)\(", member) if name in calls]
    assert len(calls) == 6


@pytest.mark.parametrize("page", HANDLER_PAGES)
def test_handlers_can_be_made_and_called(page: str) -> None:
    """Blocks that are more than handlers run elsewhere: those of testing.md, notebook.md and send.md as they are."""
    made = 0
    for block in blocks(ROOT / page, "python"):
        if "rocketcrew.consume(" in block or "handler" not in block:
            continue
        found: dict[str, Any] = {"__name__": __name__}
        exec(block, found)
        handlers = [each for each in found.values() if isinstance(each, Handler)]
        assert handlers, block
        made += len(handlers)
        for each in handlers:
            body = SAMPLES.get(each.name.rpartition(":")[2].rpartition(".")[2])
            if body is not None:
                result = run(each, [message(body, topic="orders", tags="paid", keys="k", properties={"ACCOUNT": "a"})])
                assert (result.done, result.unfinished, result.errors) == (1, 0, []), block
    assert made == HANDLER_PAGES[page]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_is_installed_and_made_exists(page: Path) -> None:
    text = page.read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {name for names in re.findall(r"(?:rocketcrew|\.)\[([\w,-]+)\][`']", text) for name in names.split(",")}
    assert extras <= project["optional-dependencies"].keys()
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"(?:`|^ {4})make ([a-z]+)", text, re.MULTILINE)) <= targets
    (benches,) = re.findall(r"^ALL = \((.*?)\)", (ROOT / "bench/run.py").read_text(), re.MULTILINE | re.DOTALL)
    assert all(f'"{name}"' in benches for name in re.findall(r"make bench ARGS=(\w+)", text))


@pytest.mark.parametrize("page", ["README.md", "docs/tutorial.md"])
def test_the_first_installation_is_from_a_checkout_while_no_index_has_it(page: str) -> None:
    """Who registers the name there would be installed else."""
    installs = [line for line in (ROOT / page).read_text().splitlines() if line.startswith("pip install")]
    assert installs == ["pip install '.[duckdb]'"]


@pytest.mark.parametrize("page", ["README.md", "docs/tutorial.md", "docs/how-to/cluster.md", "docs/how-to/java.md"])
def test_members_of_pages_that_install_no_spark_write_without_it(page: str) -> None:
    """Each ended with 2, as pyspark is not installed."""
    members = [words for words in typed_commands(ROOT / page) if words[0] == "run"]
    assert members
    assert not [words for words in members if "spark.format=pyarrow" not in words]


def test_the_readme_has_the_handler_of_the_tutorial_that_goes_on_from_it() -> None:
    readme, tutorial = (next(blocks(ROOT / page, "python")) for page in ("README.md", "docs/tutorial.md"))
    assert readme == tutorial


def test_the_table_of_the_examples_says_what_each_needs_and_each_command_is_of_one() -> None:
    page = ROOT / "examples/README.md"
    rows = dict(re.findall(r"^\| \[([\w.]+)\]\(\1\) \|.*\| ([^|]+) \|$", page.read_text(), re.MULTILINE))
    examples = {file.name: file.read_text() for file in page.parent.iterdir() if file.suffix in {".py", ".ipynb"}}
    assert rows.keys() == examples.keys()
    assert [name for name, needs in rows.items() if "numpy" in needs] == [
        name for name in rows if "import numpy" in examples[name]
    ]
    assert {words[1].partition(":")[0] + ".py" for words in typed_commands(page)} < examples.keys()


@pytest.mark.parametrize("page", sorted({*PAGES, *ROOT.glob("*.md")}), ids=lambda page: str(page.relative_to(ROOT)))
def test_no_code_in_a_cell_of_a_table_has_a_bar(page: Path) -> None:
    """Bare it ends the cell on GitHub, and with a backslash the site shows that: <code>a &#124; b</code> is right in both."""
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    cells = [line for line in prose.splitlines() if line.startswith("|")]
    assert not [code for line in cells for code in re.findall(r"`([^`]*)`", line) if "|" in code]


def test_every_setting_and_command_has_its_place() -> None:
    spec = importlib.util.spec_from_file_location("docs_pages", ROOT / "tools/docs_pages.py")
    assert spec is not None and spec.loader is not None
    pages = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pages)
    text = (ROOT / "conf/defaults.toml").read_text()
    page, defaults = pages.settings(text), tomllib.loads(text)
    missing = [
        f"{section}.{key}" for section, keys in SCHEMA.items() for key in keys if f"`{section}.{key}`" not in page
    ]
    assert not missing
    headings = set(re.findall(r"^## rocketcrew ([\w-]+)$", pages.commands(), re.MULTILINE))
    assert headings == set(COMMANDS)
    named = re.findall(
        r"^\| \[([\w.]+)\]\(#([\w.]+)\) \| `(.*?)` \|", (ROOT / "docs/reference/settings.md").read_text(), re.MULTILINE
    )
    assert len({name for name, *_ in named}) == len(named) == 40
    for name, heading, default in named:
        section, key = name.split(".")
        assert f"{{ #{heading} }}" in page
        assert (heading, default) == (name, json.dumps(defaults[section][key]))


@pytest.mark.parametrize("module", [rocketcrew, rocketcrew.testing], ids=lambda module: module.__name__)
def test_every_public_name_is_on_the_page_of_the_python_api(module: ModuleType) -> None:
    page = (ROOT / "docs/reference/api.md").read_text()
    shown = set(re.findall(rf"^::: {module.__name__}\.(\w+)$", page, re.MULTILINE))
    assert shown == {name for name in module.__all__ if not name.startswith("_")}


def test_the_ratios_to_java_are_those_that_were_measured() -> None:
    """Each case's last ratio is within the comparison's range for it; the README has the range of its no-op handlers."""
    (measured,) = json.loads((ROOT / "docs/proof.json").read_text())["sections"]["java"]["runs"]
    ratios = {
        found[1]: float(found[2])
        for said in measured["results"]
        if (found := re.match(r"(.+?): .* ratio ([\d.]+);", said))
    }
    assert len(ratios) == 3
    page = (ROOT / "docs/comparison.md").read_text()
    for case, ratio in ratios.items():
        (row,) = (line for line in page.splitlines() if f"; {case}" in line)
        low, high = range_in(row)
        assert low <= ratio <= high, row
    lows, highs = zip(*(range_in(line) for line in page.splitlines() if "; no-op, batch" in line), strict=True)
    assert len(lows) == 2
    assert range_in((ROOT / "README.md").read_text()) == (min(lows), max(highs))


def range_in(text: str) -> tuple[float, float]:
    """The first one in it, such as `1.2 to 1.4`."""
    low, high = re.findall(r"\b(\d\.\d+) to (\d\.\d+)\b", text)[0]
    return float(low), float(high)


def test_the_troubleshooting_page_names_events_that_are_logged() -> None:
    code = "\n".join(file.read_text() for room in PACKAGE.iterdir() if room.is_dir() for file in room.rglob("*.py"))
    page = (ROOT / "docs/how-to/troubleshoot.md").read_text()
    events = {
        name
        for cell in re.findall(r"^\| (`.*?) \|", page, re.MULTILINE)
        for name in re.findall(r"`([a-z]+(?:[._][a-z]+)+)`", cell)
    }
    assert len(events) > 30
    assert not [event for event in events if f'"{event}"' not in code]


@functools.cache
def logged_as_trouble() -> frozenset[str]:
    """The events of each `….warning("event")`, `error`, `critical`, `exception`, of each `….log("warning", "event")`, and
    what the store of the broker notes for its log: `("store.event", …)`."""
    levels, found = {"warning", "error", "critical", "exception"}, set[str]()
    for file in (file for room in PACKAGE.iterdir() if room.is_dir() for file in room.rglob("*.py")):
        for call in ast.walk(ast.parse(file.read_text())):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
                words = [one.value for one in call.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
                by_level = len(words) > 1 and words[0] in levels and call.func.attr in {"log", "_note"}
                if call.func.attr in levels | {"say"} and words:
                    found.add(words[0])
                elif by_level:
                    found.add(words[1])
            elif isinstance(call, ast.Tuple):
                noted = [str(one.value) for one in call.elts[:1] if isinstance(one, ast.Constant)]
                found.update(one for one in noted if one.startswith("store."))
    return frozenset(found)


def test_the_troubleshooting_page_explains_every_warning_and_error() -> None:
    page = (ROOT / "docs/how-to/troubleshoot.md").read_text()
    events = logged_as_trouble()
    assert {"topic_not_found", "drain_deadline", "reload_rolled_back", "connection.refused", "loader_bug"} <= events
    cells = "".join(re.findall(r"^\| (`.*?) \|", page, re.MULTILINE))
    assert not sorted(events - set(re.findall(r"`([\w.]+)`", cells)))


def test_every_event_is_written_out_where_it_is_logged() -> None:
    """One that is put together, or chosen in the call, is found by nobody who looks for it, nor by the tests above."""
    composed = (ast.IfExp, ast.JoinedStr, ast.BinOp, ast.Call, ast.Subscript)
    wrong = [
        f"{file.name}:{call.lineno}"
        for room in PACKAGE.iterdir() if room.is_dir()
        for file in room.rglob("*.py")
        for call in ast.walk(ast.parse(file.read_text()))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.args
        and call.func.attr in {"debug", "info", "warning", "error", "critical", "exception"}
        and ast.unparse(call.func.value).endswith("log") and isinstance(call.args[0], composed)
    ]  # fmt: skip
    assert not wrong


def test_every_page_with_a_terminal_is_typed_by_a_test() -> None:
    """Each block with a terminal says which one, so that a reader of it knows where a command runs."""
    tests = (ROOT / "tests/system/test_typed_pages.py").read_text()
    typed = set(re.findall(r'\("([\w/-]+\.md)", \d+, \d+\)', tests))
    blocks_of = {page: re.findall(r"^```console(.*)$", page.read_text(), re.MULTILINE) for page in PAGES}
    assert typed == {str(page.relative_to(ROOT)) for page, found in blocks_of.items() if found}
    assert not [one for found in blocks_of.values() for one in found if not re.fullmatch(r' title="\w+ terminal"', one)]


def test_a_new_project_has_the_files_that_the_page_shows() -> None:
    (shown,) = (
        one for one in blocks(ROOT / "docs/how-to/operate.md", "console") if one.startswith("$ rocketcrew init shop\n")
    )
    assert shown.splitlines()[1:-1] == [f"wrote shop/{name}" for name in files_of("shop", "orders")]


def test_every_name_that_the_package_lists_is_there_in_a_fresh_interpreter() -> None:
    code = "import rocketcrew; print(*(name for name in dir(rocketcrew) if getattr(rocketcrew, name, None) is None))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("\n", "", 0)
