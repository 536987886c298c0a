"""--dry-run: what would be done is said, and nothing is done."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rocketcrew.cli.main import run


def said(capsys: pytest.CaptureFixture[str], folder: Path, *words: str) -> tuple[int, str, str]:
    code = run(words, {}, folder)
    out, err = capsys.readouterr()
    return code, out, err


def test_a_load_says_what_is_sealed_and_leaves_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ready = tmp_path / "segments" / "ready"
    ready.mkdir(parents=True)
    for name in ("w1-1.arrows", "w1-2.arrows", ".draft"):
        (ready / name).write_bytes(b"12345")
    words = (
        "load",
        "--staging",
        str(ready.parent),
        "--target",
        str(tmp_path / "table"),
        "--set",
        "spark.format=pyarrow",
    )
    before = sorted(tmp_path.rglob("*"))
    code, out, _ = said(capsys, tmp_path, *words, "--dry-run")
    assert (code, out) == (0, f"would load 2 sealed files of 10 bytes into {tmp_path / 'table'}; nothing was done\n")
    told = json.loads(said(capsys, tmp_path, *words, "--dry-run", "--yes", "--json")[1])
    assert (told["files"], told["bytes"], told["done"]) == (2, 10, False)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("words", [("load", "--dry-run"), ("load",), ("reconcile", "-g", "billing", "--no-brokers")])
@pytest.mark.parametrize("was_used", [False, True])
def test_the_folder_around_the_segments_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], *, was_used: bool
) -> None:
    """Such as the slot: nothing waits in it, and all would be said to be loaded. `was_used`: somebody made it one."""
    slot, more = tmp_path / "billing/0", ("--target", "t", "--set", "spark.format=pyarrow")
    (slot / "segments/ready").mkdir(parents=True)
    if was_used:
        (slot / "ready").mkdir()
    before = sorted(tmp_path.rglob("*"))
    for folder in (slot, slot.parent):
        code, _, err = said(capsys, tmp_path, *words, *more, "--staging", str(folder))
        assert (code, f"did you mean {slot / 'segments'}?" in " ".join(err.split())) == (2, True), err
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("inside", ["ready", "plan", "bad"])
def test_a_folder_within_the_segments_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], inside: str
) -> None:
    """Be it empty."""
    segments = tmp_path / "segments"
    for name in ("ready", inside):
        (segments / name).mkdir(parents=True, exist_ok=True)
    more = ("--target", "t", "--set", "spark.format=pyarrow", "--staging", str(segments / inside))
    code, _, err = said(capsys, tmp_path, "load", *more)
    assert (code, f"did you mean {segments}?" in " ".join(err.split())) == (2, True), err
    assert list((segments / inside).iterdir()) == []


@pytest.mark.parametrize("has", ["open", "plan", "bad", "outcomes"])
def test_a_folder_of_segments_may_lack_what_is_ready(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], has: str
) -> None:
    """Such as a copy of what was set aside."""
    (tmp_path / "copy" / has).mkdir(parents=True)
    more = ("--target", str(tmp_path / "t"), "--set", "spark.format=pyarrow", "--staging", str(tmp_path / "copy"))
    assert said(capsys, tmp_path, "load", *more)[0] == 0


@pytest.mark.parametrize("words", [("load", "--dry-run"), ("load",)])
def test_a_folder_of_something_else_is_refused_and_an_empty_one_may_become_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "used/notes").mkdir(parents=True)
    more = ("--target", str(tmp_path / "t"), "--set", "spark.format=pyarrow", "--staging")
    code, _, err = said(capsys, tmp_path, *words, *more, str(tmp_path / "used"))
    assert (code, "it is no folder of segments" in " ".join(err.split())) == (2, True)
    assert said(capsys, tmp_path, *words, *more, str(tmp_path / "new"))[0] == 0


def test_chaos_names_its_faults_and_does_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("chaos", "--fault", "kill-worker", "--dir", "ground")
    code, out, err = said(capsys, tmp_path, *words, "--dry-run")
    assert (code, out, err) == (0, "would do kill-worker on a broker of its own; nothing was done\n", "")
    assert list(tmp_path.iterdir()) == []
