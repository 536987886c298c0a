"""A current folder that was removed is named by whatever needs it, and asked for by nothing else."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rocketcrew import Crew, consume, load, read
from rocketcrew.cli.exit_codes import guarded
from rocketcrew.remoting.errors import UsageError


@pytest.fixture
def gone(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "gone"
    folder.mkdir()
    with contextlib.chdir(folder):
        folder.rmdir()
        yield folder


def handle(message: object) -> None: ...


@pytest.mark.parametrize(
    "call",
    [
        lambda: Crew(handle, topics="t", group="g", name_servers="127.0.0.1:1"),
        lambda: consume("json:dumps", topics="t", group="g", name_servers="127.0.0.1:1"),
        lambda: read("table"),
        lambda: load("segments", "table", format="pyarrow"),
    ],
)
def test_what_needs_it_names_it(gone: Path, call: Callable[[], object]) -> None:
    with pytest.raises(UsageError, match=f"the current folder {gone} was removed: change to one that is there"):
        call()


def test_a_command_names_it_and_other_files_keep_their_words(gone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert guarded(lambda: Path("a").absolute()) == 2
    assert guarded((gone / "file").read_bytes) == 1
    first, second = capsys.readouterr().err.splitlines()
    assert first == f"rocketcrew: the current folder {gone} was removed: change to one that is there, and start again"
    assert second == f"rocketcrew: No such file or directory: {gone}/file"


def test_where_it_is_there_an_error_without_a_name_stays() -> None:
    def broken() -> object:
        raise FileNotFoundError(2, "No such file or directory")

    assert guarded(broken) == 1


def test_full_paths_need_none(gone: Path) -> None:
    with pytest.raises(UsageError, match="holds no batch yet"):
        read(gone.parent / "table")
