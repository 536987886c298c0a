"""What `reset` does to a stream of `run --engine spark`: its checkpoint goes, while it rests, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketcrew.cli.moving import resting_engine
from rocketcrew.engine.home import Home
from rocketcrew.remoting.errors import UsageError


def test_a_group_without_an_engine_has_no_checkpoint(tmp_path: Path) -> None:
    with resting_engine(tmp_path, "g") as checkpoint:
        assert checkpoint is None
    assert not list(tmp_path.iterdir()), "and none is made"


def test_a_checkpoint_is_found_while_the_engine_rests_and_cannot_start(tmp_path: Path) -> None:
    home = Home(tmp_path, "g")
    with resting_engine(tmp_path, "g") as checkpoint:
        assert checkpoint is None, "it never ran"
    home.checkpoint.mkdir()
    with resting_engine(tmp_path, "g") as checkpoint:
        assert checkpoint == home.checkpoint
        with pytest.raises(UsageError, match="works in"):
            home.lock()
    home.lock()
    with (
        pytest.raises(UsageError, match=r"`run --engine spark` of group g works in .*: stop it first"),
        resting_engine(tmp_path, "g"),
    ):
        pass
    assert home.checkpoint.is_dir()
