"""What a reset skips and repeats."""

from __future__ import annotations

import pytest

from rocketcrew.cli.commands.reset import REPEATED, TOLD, Move, report, show_moves, time_of
from rocketcrew.remoting.errors import UsageError


@pytest.mark.parametrize(
    ("old", "new", "skipped", "repeated"), [(None, 7, 0, 0), (3, 7, 4, 0), (7, 3, 0, 4), (5, 5, 0, 0), (0, 0, 0, 0)]
)
def test_a_move_skips_or_repeats(old: int | None, new: int, skipped: int, repeated: int) -> None:
    move = Move("orders", "broker-a", 0, old, new)
    assert (move.skipped, move.repeated) == (skipped, repeated)


@pytest.mark.parametrize(("new", "reprocess", "told"), [(3, False, True), (3, True, False), (9, False, False)])
def test_what_is_repeated_may_add_rows_and_that_is_said_first(
    capsys: pytest.CaptureFixture[str], new: int, reprocess: bool, told: bool
) -> None:
    show_moves([Move("orders", "broker-a", 0, 7, new)], "billing", [], reprocess=reprocess)
    assert (REPEATED in capsys.readouterr().out) == told


@pytest.mark.parametrize(
    ("members", "done", "said"),
    [([], True, "the offsets are set"), (["10.0.0.1@1"], True, TOLD), (["10.0.0.1@1"], False, "nothing was changed")],
)
def test_what_members_have_yet_to_do_is_not_said_to_be_done(
    capsys: pytest.CaptureFixture[str], members: list[str], done: bool, said: str
) -> None:
    report([Move("orders", "broker-a", 0, 7, 3)], "billing", members, as_json=False, done=done)
    assert capsys.readouterr().err == said + "\n"


def test_times_are_those_of_replay() -> None:
    now = 1_800_000_000_000
    assert time_of("earliest", now) == time_of("latest", now) == 0
    assert time_of("2h", now) == now - 7_200_000
    assert time_of("1760000000000", now) == 1_760_000_000_000
    assert time_of("2026-05-01T00:00:00+00:00", now) == 1_777_593_600_000
    assert time_of("2026-05-01T00:00", now) == time_of("2026-05-01 00:00", now)
    with pytest.raises(UsageError, match=r"--to \(earliest, latest or a time\) 'yesterday' is no time"):
        time_of("yesterday", now)
