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


def test_a_folder_without_segments_is_refused_by_a_dry_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--staging", str(tmp_path), "--target", "t", "--set", "spark.format=pyarrow", "--dry-run")
    code, _, err = said(capsys, tmp_path, "load", *words)
    assert (code, "it is no folder of segments" in err) == (2, True)


def test_chaos_names_its_faults_and_does_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("chaos", "--fault", "kill-worker", "--dir", "ground")
    code, out, err = said(capsys, tmp_path, *words, "--dry-run")
    assert (code, out, err) == (0, "would do kill-worker on a broker of its own; nothing was done\n", "")
    assert list(tmp_path.iterdir()) == []
