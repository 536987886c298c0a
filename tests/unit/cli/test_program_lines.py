"""What commands say to programs: nothing ends because it is not read, and nothing else is said in between."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import sys
from pathlib import Path

import click
import pytest
from structlog.testing import capture_logs

from rocketcrew.cli.main import COMMANDS, run
from rocketcrew.cli.program_lines import for_program, tell_program


def test_a_reader_that_has_gone_ends_nothing_and_is_reported_once() -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    with open(theirs, "w", encoding="utf-8") as stdout, capture_logs() as logs:
        tell_program({"event": "running", "group": "billing"}, stdout)
        tell_program({"event": "ended", "exit_code": 0}, stdout)
    assert [(one["event"], one["log_level"], one["line"]) for one in logs] == [
        ("stdout_not_written", "warning", "running")
    ]


def test_a_line_is_an_object_and_is_written_at_once() -> None:
    ours, theirs = os.pipe()
    with open(ours, "rb") as reader, open(theirs, "w", encoding="utf-8") as stdout:
        tell_program({"event": "running", "page": ""}, stdout)
        assert reader.readline() == b'{"event": "running", "page": ""}\n'


def test_what_anything_else_prints_is_not_between_the_lines(capfd: pytest.CaptureFixture[str]) -> None:
    """Workers inherit descriptor 1, and may end no line."""
    with for_program(as_json=True) as tell:
        assert tell is not None
        tell({"event": "running"})
        os.write(1, b"half a line of a handler")
        tell({"event": "ended"})
    os.write(1, b"after\n")
    assert capfd.readouterr() == ('{"event": "running"}\n{"event": "ended"}\nafter\n', "half a line of a handler")
    with for_program(as_json=False) as tell:
        os.write(1, b"as ever\n")
    assert (tell, capfd.readouterr()) == (None, ("as ever\n", ""))


NOISY = """
import os

print("imported")
os.write(1, b"half a line of a module")


def save(rows, number):
    pass
"""


def test_what_the_function_of_a_table_prints_is_not_in_the_answer_of_load(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "noisy_table.py").write_text(NOISY)
    (tmp_path / "segments/ready").mkdir(parents=True)
    words = ("--set", "spark.format=foreach", "--set", "spark.function=noisy_table:save")
    before = os.getcwd(), list(sys.path)
    os.chdir(tmp_path)
    try:
        code = run(("load", "--staging", "segments", *words, "--json"), {}, tmp_path)
    finally:
        os.chdir(before[0])
        sys.path[:] = before[1]
        sys.modules.pop("noisy_table", None)
    out, err = capfd.readouterr()
    assert code == 0, err
    assert json.loads(out)["target"] == "foreach noisy_table:save"
    assert "half a line of a module" in err
    assert "imported" in err


RUNS_WHAT_IS_THE_USERS = ("import_from_here", "HandlerSpec", "describe(")
KEEPS_ITS_ANSWER_APART = ("own_stdout(", "for_program(", "run_here(")


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_with_json_that_runs_what_is_the_user_s_keeps_its_answer_apart(name: str) -> None:
    """`doctor` has it run by another process (workers/trial_import.py)."""
    module = importlib.import_module(f"rocketcrew.cli.commands.{name.replace('-', '_')}")
    text, command = inspect.getsource(module), getattr(module, name.replace("-", "_"))
    if has_json(command) and any(word in text for word in RUNS_WHAT_IS_THE_USERS):
        assert [word for word in KEEPS_ITS_ANSWER_APART if word in text]


def has_json(command: click.Command) -> bool:
    below = command.commands.values() if isinstance(command, click.Group) else ()
    return any("--json" in each.opts for each in command.params) or any(map(has_json, below))
