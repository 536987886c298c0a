from __future__ import annotations

import errno
import importlib
import json
import resource
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import click
import pytest

from rocketcrew.cli.exit_codes import (
    BY_NAME,
    NO_TEMPORARY_FOLDER,
    ForcedStopError,
    NotStartedError,
    Said,
    exit_code,
    guarded,
)
from rocketcrew.cli.main import run
from rocketcrew.remoting.errors import (
    BrokerError,
    ProtocolError,
    RocketcrewError,
    TimedOutError,
    UnreachableError,
    UsageError,
)


class OwnCodeError(RocketcrewError):
    exit_code = 6


def raising(error: BaseException) -> int:
    def command() -> None:
        raise error

    return guarded(command)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("wrong"), 2),
        (UnreachableError("127.0.0.1:1"), 3),
        (TimedOutError("127.0.0.1:1", "no answer in 3000 ms"), 3),
        (BrokerError(17, "no such topic", "GET_ROUTE"), 1),
        (ProtocolError("bad magic", "message 3"), 1),
        (RocketcrewError("anything"), 1),
        (ForcedStopError("second signal"), 5),
        (NotStartedError(3), 3),
        (OwnCodeError("Java is missing"), 6),
        (PermissionError(13, "Permission denied", "/x"), 1),
    ],
)
def test_errors_on_purpose_are_one_message_without_traceback(
    error: Exception, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert raising(error) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("rocketcrew: ")
    assert "Traceback" not in err


def test_a_file_that_is_too_large_is_told_with_the_limit(capsys: pytest.CaptureFixture[str]) -> None:
    before, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    found: list[str] = []
    try:
        for limit in (before, 1 << 40):
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, most))
            assert raising(OSError(errno.EFBIG, "File too large", "/d/journal")) == 1
            found.append(capsys.readouterr().err)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, most))
    assert all(text.startswith("rocketcrew: File too large: /d/journal") for text in found)
    assert ("ulimit -f" in found[0]) is (before != resource.RLIM_INFINITY)
    assert "than 1099511627776 bytes here: raise `ulimit -f`" in found[1]


def test_a_limit_that_is_used_up_is_told_with_what_is_to_be_done(capsys: pytest.CaptureFixture[str]) -> None:
    """Also as the cause of an error of ours. A lock that somebody has is no limit."""
    full = OSError(errno.EMFILE, "Too many open files", "/d/cells")
    of_ours = RocketcrewError("cannot read /d/cells: Too many open files")
    of_ours.__cause__ = full
    locked = RocketcrewError("in use by another broker")
    locked.__cause__ = BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
    found: list[str] = []
    for error in (
        full,
        of_ours,
        RuntimeError("can't start new thread"),
        BlockingIOError(*locked.__cause__.args),
        locked,
    ):
        assert raising(error) == 1
        found.append(capsys.readouterr().err)
    assert "Traceback" not in "".join(found)
    assert [("ulimit -n" in text, "pids.max" in text) for text in found] == [
        (True, False), (True, False), (False, True), (False, True), (False, False)
    ]  # fmt: skip


def test_without_a_folder_for_temporary_files_there_is_something_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Libraries ask for one when they are imported. A folder that is only full may have room again."""
    for folder, code in ((tmp_path / "none", 2), (tmp_path, 1)):
        words = f"No usable temporary directory found in ['/none', '{folder}']"
        assert raising(FileNotFoundError(errno.ENOENT, words)) == code
        assert capsys.readouterr().err == (
            f"rocketcrew: {words}: mount one at /tmp, or set TMPDIR to a folder that this user may write and that has room\n"
        )


def test_pythons_words_about_temporary_files_are_known() -> None:
    program = """
import resource, tempfile
resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))  # no file can be made anywhere
tempfile.gettempdir()
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert NO_TEMPORARY_FOLDER in said.stderr


def test_a_fault_of_ours_keeps_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert raising(KeyError("x")) == 1
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert "fault in rocketcrew" in err


def test_interrupts_are_clean(capsys: pytest.CaptureFixture[str]) -> None:
    assert raising(KeyboardInterrupt()) == 130
    assert raising(click.Abort()) == 130
    assert capsys.readouterr().err == "rocketcrew: interrupted\n" * 2


def test_click_errors_and_exits() -> None:
    assert raising(click.BadParameter("no")) == 2
    assert raising(click.exceptions.Exit(5)) == 5
    assert guarded(lambda: None) == 0
    assert guarded(lambda: 5) == 5


def test_a_handlers_own_frames_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    error = UsageError("cannot import pkg:handle")
    vars(error)["traceback"] = 'File "pkg.py", line 1\n'
    assert raising(error) == 2
    assert capsys.readouterr().err == 'File "pkg.py", line 1\nrocketcrew: cannot import pkg:handle\n'


@pytest.mark.parametrize("name", BY_NAME)
def test_errors_named_by_text_exist(name: str) -> None:
    module, _, kind = name.rpartition(".")
    error = getattr(importlib.import_module(module), kind)
    assert exit_code(error("x")) == 4


def service(*words: str, folder: Path, env: dict[str, str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = run(words, env, folder)
    return code, capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "env", "file"),
    [
        (("--log-format", "json"), {}, ""),
        (("--set", "log.format=json"), {"ROCKETCREW_LOG_FORMAT": "human"}, ""),
        ((), {"ROCKETCREW_LOG_FORMAT": "json"}, '[log]\nformat = "human"\n'),
        ((), {}, '[log]\nformat = "json"\n'),
        ((), {"ROCKETCREW_LOG_FORMAT": " JSON "}, ""),
        ((), {}, '[log]\nformat = "Json"\n'),
    ],
)
def test_where_the_log_is_json_a_failure_is_one_object_in_one_line(
    words: tuple[str, ...], env: dict[str, str], file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rocketcrew.toml").write_text(file)
    wrong = ("run", "shop", "--set", "workers.count=x", "--set", "metrics.port=y", *words)
    code, err = service(*wrong, folder=tmp_path, env=env, capsys=capsys)
    (line,) = map(json.loads, err.splitlines())
    assert (code, line["exit_code"], line["event"], line["level"], line["process"]) == (
        2, 2, "command_failed", "error", "run",
    )  # fmt: skip
    assert line["error"].startswith("2 problems in the configuration:\n")
    assert datetime.fromisoformat(line["timestamp"]).tzinfo is not None


@pytest.mark.parametrize(
    ("words", "env", "file"),
    [
        (("run", "shop"), {}, "[log"),
        (("run", "shop", "--log-format", "human"), {"ROCKETCREW_LOG_FORMAT": "json"}, ""),
        (("lag",), {"ROCKETCREW_LOG_FORMAT": "json"}, ""),
        (("run", "shop"), {"ROCKETCREW_LOG_FORMAT": "auto"}, ""),
    ],
    ids=["a file that cannot be read", "the flag says otherwise", "somebody waits for the answer", "no terminal"],
)
def test_else_a_failure_is_in_words(
    words: tuple[str, ...], env: dict[str, str], file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rocketcrew.toml").write_text(file)
    code, err = service(*words, "--set", "workers.count=x", folder=tmp_path, env=env, capsys=capsys)
    assert (code, err.partition(" ")[0]) == (2, "rocketcrew:")


def test_a_command_line_that_click_refuses_is_an_object_where_the_environment_says_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, err = service("run", folder=tmp_path, env={"ROCKETCREW_LOG_FORMAT": "json"}, capsys=capsys)
    assert (code, json.loads(err)["error"]) == (2, "Missing argument 'HANDLER'.")
    assert service("run", folder=tmp_path, env={}, capsys=capsys)[1].startswith("Usage: ")


def test_frames_are_a_key_of_the_object(capsys: pytest.CaptureFixture[str]) -> None:
    said = Said()
    said.begin("broker", "json")

    def fails() -> None:
        raise KeyError("x")

    assert guarded(fails, said) == 1
    line = json.loads(capsys.readouterr().err)
    assert line["exception"].startswith("Traceback")
    assert "fault in rocketcrew" in line["error"]
