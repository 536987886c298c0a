"""What a reset skips and repeats."""

from __future__ import annotations

import pytest

from rocketcrew.cli.commands.reset import time_of
from rocketcrew.cli.moving import AS_BEFORE, REPEATED, TOLD, Move, report, show_moves
from rocketcrew.cli.times import SKEW_MAX_MS, parse_time
from rocketcrew.conf.formats import consume_timestamp_ms
from rocketcrew.remoting.errors import UsageError


@pytest.mark.parametrize(
    ("old", "new", "skipped", "repeated"),
    [(None, 7, None, None), (3, 7, 4, 0), (7, 3, 0, 4), (5, 5, 0, 0), (0, 0, 0, 0)],
)
def test_a_move_skips_or_repeats(old: int | None, new: int, skipped: int | None, repeated: int | None) -> None:
    move = Move("orders", "broker-a", 0, old, new)
    assert (move.skipped, move.repeated) == (skipped, repeated)


@pytest.mark.parametrize(("new", "reprocess", "told"), [(3, False, True), (3, True, False), (9, False, False)])
def test_what_is_repeated_may_add_rows_and_that_is_said_first(
    capsys: pytest.CaptureFixture[str], new: int, reprocess: bool, told: bool
) -> None:
    show_moves([Move("orders", "broker-a", 0, 7, new)], "billing", [], reprocess=reprocess)
    assert (REPEATED in capsys.readouterr().out) == told


@pytest.mark.parametrize(
    ("old", "members", "done", "said"),
    [
        (7, [], True, "the offsets are set"),
        (None, [], True, "the offsets are set"),
        (3, [], True, AS_BEFORE),
        (7, ["10.0.0.1@1"], True, TOLD),
        (3, ["10.0.0.1@1"], True, TOLD),
        (7, ["10.0.0.1@1"], False, "nothing was changed"),
    ],
)
def test_what_members_have_yet_to_do_and_what_moves_nothing_is_not_said_to_be_done(
    capsys: pytest.CaptureFixture[str], old: int | None, members: list[str], done: bool, said: str
) -> None:
    report([Move("orders", "broker-a", 0, old, 3)], "billing", members, as_json=False, done=done)
    assert capsys.readouterr().err == said + "\n"


def test_times_as_users_write_them() -> None:
    assert parse_time("--from", "1700000000000", 0) == 1_700_000_000_000
    assert parse_time("--from", "1970-01-01T00:00:02+00:00", 0) == 2000
    assert parse_time("--from", "2h", 10_000_000) == 2_800_000
    assert parse_time("--from", "9d", 1) == 0
    assert parse_time("--from", "20260131", 0) == parse_time("--from", "2026-01-31T00:00", 0)
    for wrong in ("yesterday", "", "12", "2026-13-01", "²", "²" * 13, "2026-01-31²08:00", "9" * 16, "9" * 19):
        with pytest.raises(UsageError, match=r"--to .* is no time"):
            parse_time("--to", wrong, 0)


def test_a_time_as_rocketmq_writes_it_is_no_number_of_milliseconds() -> None:
    assert parse_time("--to", "20260131080000", 0) == consume_timestamp_ms("20260131080000")
    assert parse_time("--to", "20260131080000", 0) == parse_time("--to", "2026-01-31T08:00:00", 0)
    with pytest.raises(UsageError, match="--to '20261331080000' is no moment of any calendar"):
        parse_time("--to", "20261331080000", 0)


@pytest.mark.parametrize("seconds", ["1769846400", "99999999999", "100000000"])
def test_seconds_are_not_taken_for_milliseconds(seconds: str) -> None:
    with pytest.raises(UsageError, match=f"--to '{seconds}' looks like seconds, .*: give {seconds}000$"):
        parse_time("--to", seconds, 0)


def test_a_group_is_not_reset_to_a_time_that_is_to_come() -> None:
    now = 1_800_000_000_000
    assert time_of(str(now + SKEW_MAX_MS), now) == now + SKEW_MAX_MS
    for wrong in (str(now + SKEW_MAX_MS + 1), "9999-12-31", "20991231080000"):
        with pytest.raises(UsageError, match=f"--to '{wrong}' is .*, later than now: write latest"):
            time_of(wrong, now)


def test_times_are_those_of_replay() -> None:
    now = 1_800_000_000_000
    assert time_of("earliest", now) == time_of("latest", now) == 0
    assert time_of("2h", now) == now - 7_200_000
    assert time_of("1760000000000", now) == 1_760_000_000_000
    assert time_of("2026-05-01T00:00:00+00:00", now) == 1_777_593_600_000
    assert time_of("2026-05-01T00:00", now) == time_of("2026-05-01 00:00", now)
    with pytest.raises(UsageError, match=r"--to \(earliest, latest or a time\) 'yesterday' is no time"):
        time_of("yesterday", now)
