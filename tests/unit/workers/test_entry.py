"""Whom the kernel kills first for want of memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rocketcrew.workers.entry import OOM_SCORE_ADJ, OOM_SCORE_MORE, be_killed_first

BEGINS_AND_FAILS = """
from rocketcrew.workers.entry import OOM_SCORE_ADJ, run_worker
try:
    run_worker(None)
except AttributeError:
    print(OOM_SCORE_ADJ.read_text())
"""


@pytest.mark.parametrize(("inherited", "wanted"), [(0, 300), (-997, -697), (500, 800), (1000, 1000)])
def test_a_worker_is_killed_before_the_rest_of_its_member(inherited: int, wanted: int, tmp_path: Path) -> None:
    """By so much more than what is inherited, and never less than that."""
    score = tmp_path / "oom_score_adj"
    score.write_text(f"{inherited}\n")
    be_killed_first(score)
    assert int(score.read_text()) == wanted


def test_where_the_kernel_has_no_such_file_nothing_happens(tmp_path: Path) -> None:
    be_killed_first(tmp_path / "none" / "oom_score_adj")
    (tmp_path / "strange").write_text("what\n")
    be_killed_first(tmp_path / "strange")
    assert (tmp_path / "strange").read_text() == "what\n"


def test_so_does_every_worker_when_it_begins() -> None:
    told = subprocess.run(
        [sys.executable, "-Ic", BEGINS_AND_FAILS], capture_output=True, text=True, timeout=60, check=True
    )
    assert int(told.stdout) == min(int(OOM_SCORE_ADJ.read_text()) + OOM_SCORE_MORE, 1000)
