"""Commands about dead letters that end early: what was done is reported, and nothing is promised that does not hold."""

from __future__ import annotations

import pickle
from pathlib import Path

import click
import pytest

from rocketcrew.cli.commands.dlq import GOES_ON, Desk, goes_on_with, in_summary, so_far
from rocketcrew.cli.commands.run import make_broker_log
from rocketcrew.cli.exit_codes import exit_code
from rocketcrew.cli.letters import StoppedError, Wanted
from rocketcrew.conf.settings import load
from rocketcrew.engine.window import parse_time
from rocketcrew.remoting.errors import BrokerError, RocketcrewError, UnreachableError, UsageError


def test_a_command_that_is_interrupted_says_that_it_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    rest = "the same command goes on"
    said = f"^2 of 3 letters were replayed; {rest}: 127.0.0.1:1: cannot be reached"
    with pytest.raises(RocketcrewError, match=said), so_far(lambda: "2 of 3 letters were replayed"):
        raise UnreachableError("127.0.0.1:1")
    for stop in (KeyboardInterrupt, StoppedError):
        with pytest.raises(click.Abort), so_far(lambda: "2 of 3 letters were replayed"):
            raise stop
        assert capsys.readouterr().err.startswith(f"2 of 3 letters were replayed; {rest}")


def test_a_replay_of_all_that_is_interrupted_names_the_times_it_goes_on_with() -> None:
    """Of --since 2h the next call makes another time."""
    now_ms = 1_794_500_819_783
    since = parse_time("--since", "2h", now_ms)
    said = goes_on_with(Wanted(from_ms=since, to_ms=now_ms))
    assert said == f"; the same command with --since {since} --until {now_ms} goes on"
    assert parse_time("--since", str(since), now_ms + 5_000) == since
    assert goes_on_with(Wanted()) == GOES_ON


@pytest.mark.parametrize(
    ("error", "code"),
    [(UnreachableError("127.0.0.1:1"), 3), (BrokerError(1, "no", "SEND_MESSAGE"), 1), (UsageError("x"), 2)],
)
def test_the_exit_code_is_that_of_what_ended_it(error: RocketcrewError, code: int) -> None:
    with pytest.raises(RocketcrewError) as caught, so_far(lambda: "2 of 3 letters were replayed"):
        raise error
    assert exit_code(caught.value) == code
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), exit_code(again)) == (str(caught.value), code)


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
