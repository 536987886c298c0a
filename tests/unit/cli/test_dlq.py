"""Commands about dead letters that end early: what was done is reported, and nothing is promised that does not hold."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rocketcrew.cli.commands.dlq import GOES_ON, Desk, goes_on_with, in_summary
from rocketcrew.cli.letters import Wanted
from rocketcrew.cli.running import make_broker_log
from rocketcrew.cli.times import parse_time
from rocketcrew.conf.settings import load
from rocketcrew.remoting.errors import UsageError


def test_a_replay_of_all_that_is_interrupted_names_the_times_it_goes_on_with() -> None:
    """Of --since 2h the next call makes another time."""
    now_ms = 1_794_500_819_783
    since = parse_time("--since", "2h", now_ms)
    said = goes_on_with(Wanted(from_ms=since, to_ms=now_ms))
    assert said == f"; the same command with --since {since} --until {now_ms} goes on"
    assert parse_time("--since", str(since), now_ms + 5_000) == since
    assert goes_on_with(Wanted()) == GOES_ON


def test_a_data_folder_that_cannot_be_used_is_named_as_by_run(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    data_dir = str(tmp_path / "file" / "state")
    flags = {"consumer.group": "billing", "cluster.name_servers": "127.0.0.1:1", "supervisor.data_dir": data_dir}
    said = r"supervisor\.data_dir = '.*/file/state' cannot be used: Not a directory \(.*\)\. Name a folder"
    with pytest.raises(UsageError, match=said), Desk(load(flags, {}, None)).alone():
        pass
    with pytest.raises(UsageError, match=said):
        make_broker_log(data_dir)


def test_a_dry_run_makes_no_file_and_waits_for_nobody(tmp_path: Path) -> None:
    flags = {"consumer.group": "biling", "cluster.name_servers": "127.0.0.1:1", "supervisor.data_dir": str(tmp_path)}
    desk = Desk(load(flags, {}, None))
    with desk.alone(dry_run=True):
        assert list(tmp_path.iterdir()) == []
    with desk.alone(), Desk(load(flags, {}, None)).alone(dry_run=True):
        assert [path.name for path in (tmp_path / "biling").iterdir()] == ["dead-letters.lock"]


def test_the_embedded_brokers_log_is_in_the_data_folder(tmp_path: Path) -> None:
    log = make_broker_log(str(tmp_path / "deep" / "state"))
    assert (log, log.read_bytes()) == (tmp_path / "deep" / "state" / "broker.log", b"")


@pytest.mark.parametrize(
    ("of", "done", "failed", "said"),
    [
        (0, 0, 0, "no dead letters"),
        (1, 0, 1, "0 letters went through shop:count and were noted as handled; 1 failed and stays as before"),
        (3, 1, 2, "1 letter went through shop:count and was noted as handled; 2 failed and stay as before"),
        (2, 2, 0, "2 letters went through shop:count and were noted as handled"),
    ],
)
def test_a_run_here_is_summed_up_and_without_letters_it_says_so(of: int, done: int, failed: int, said: str) -> None:
    assert in_summary(of, done, failed, "shop:count", "noted as handled") == said


def test_somebody_at_a_terminal_is_not_asked_about_no_letters() -> None:
    """A question would find the end of what is typed, and abort."""
    ask = "from rocketcrew.cli.commands.dlq import _goes_on as goes; "
    ask += "print(goes([], 'replay', 'g', dry_run=False, yes=False, as_json=False))"
    ours, theirs = os.openpty()
    try:
        os.write(ours, b"\x04")
        done = subprocess.run(
            [sys.executable, "-Ic", ask], stdin=theirs, stderr=theirs, stdout=subprocess.PIPE, timeout=60, check=False
        )
        assert (done.returncode, done.stdout) == (0, b"True\n")
    finally:
        os.close(ours)
        os.close(theirs)
