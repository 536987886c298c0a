"""The line at the bottom of a terminal."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from rocketcrew.cli.live_line import (
    CLEAR,
    LINE_CHARACTERS_MAX,
    Lines,
    LiveLine,
    Rate,
    Reloads,
    duration,
    progress_line,
    start_block,
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_what_others_write_comes_in_whole_lines_however_it_is_cut() -> None:
    data = "counted 1\r\nzwölf\n\nno end".encode()
    for size in range(1, len(data) + 1):
        said: list[str] = []
        lines = Lines(said.append)
        for at in range(0, len(data), size):
            lines.feed(data[at : at + size])
        assert all(text.endswith("\n") for text in said)
        lines.end()
        lines.end()
        assert "".join(said).replace("\r", "") == "counted 1\nzwölf\n\nno end\n"


def test_a_line_without_an_end_is_not_kept_for_ever() -> None:
    said: list[str] = []
    Lines(said.append).feed(b"x" * (LINE_CHARACTERS_MAX + 1))
    assert said == ["x" * (LINE_CHARACTERS_MAX + 1) + "\n"]


def test_other_lines_go_above_it() -> None:
    out = Terminal()
    line = LiveLine(out)
    line.write("before\n")
    line.show("done 1")
    line.write("a warning\n")
    line.show("done 1")
    line.show("done 2")
    line.show("")
    assert out.getvalue() == f"before\n{CLEAR}done 1{CLEAR}a warning\ndone 1{CLEAR}done 2{CLEAR}"
    assert line.isatty()


def test_a_rate_follows_what_is_done() -> None:
    rate = Rate()
    assert rate.at(0.0, 0) == 0.0
    assert rate.at(1.0, 100) == 100.0
    assert 100 < rate.at(2.0, 300) < 200
    assert rate.at(2.0, 400) == rate.per_second


FOUND: dict[str, Any] = {
    "group": "billing", "subscriptions": {"orders": {}, "%RETRY%billing": {}}, "ready_workers": 2, "slot": "/s/billing/0",
    "counters": {"done_messages": 7, "failed_messages": 1},
    "queues": [{"end_offset": 190, "next_offset": 110, "unfinished": 20}], "popped": [], "paused": [], "stopping": False,
}  # fmt: skip


def test_the_line_says_how_long_it_will_take() -> None:
    assert progress_line(FOUND, 10.0) == "done 7  failed 1  10/s  lag 100  10 s left"
    assert progress_line(FOUND | {"paused": ["operator"]}, 0.0) == "done 7  failed 1  0/s  lag 100  paused by operator"
    stopping = progress_line(FOUND | {"stopping": True}, 0.0)
    assert stopping == "done 7  failed 1  0/s  lag 100  stopping: 20 in hand, Ctrl-C again forces"
    loader = {"running": {"rows": 6, "batch": 1}}
    assert "stopping: 20 in hand, " in progress_line(FOUND | {"stopping": True, "loader": loader}, 0.0)


def test_the_line_names_the_batch_that_a_stop_waits_for() -> None:
    ended = FOUND | {"stopping": True, "queues": []}
    batch = progress_line(ended | {"loader": {"running": {"rows": 6, "batch": 1}}}, 0.0)
    assert batch.endswith("stopping: the loader ends its batch of 6 rows, Ctrl-C again forces")
    for loader in (None, {}, {"running": {}}):
        assert progress_line(ended | {"loader": loader}, 0.0).endswith("stopping: 0 in hand, Ctrl-C again forces")


@pytest.mark.parametrize(("seconds", "text"), [(0, "0 s"), (89, "89 s"), (600, "10 min"), (9000, "2.5 h")])
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_the_start_says_what_and_where() -> None:
    text = start_block(FOUND, table="", name_servers="h:1")
    assert [line.split()[0] for line in text.splitlines()] == ["group", "topics", "from", "workers", "state", "stop"]
    assert "%RETRY%" not in text


def test_the_slot_is_named_as_one_would_type_it() -> None:
    here = start_block({**FOUND, "slot": str(Path.cwd() / ".rocketcrew/g/0")}, table="", name_servers="h:1")
    assert "  state in    .rocketcrew/g/0\n" in here
    assert "  state in    /srv/state/g/0\n" in start_block(
        {**FOUND, "slot": "/srv/state/g/0"}, table="", name_servers="h:1"
    )


@pytest.mark.parametrize(("columns", "shown"), [(60, 59), (0, 120), (300, 120)])
def test_the_line_never_wraps(columns: int, shown: int) -> None:
    out = Terminal()
    LiveLine(out, lambda: columns).show("x" * 200)
    assert out.getvalue() == CLEAR + "x" * shown


def test_each_reload_is_reported_once_with_its_error_in_one_line() -> None:
    def staff(reloaded: int, rolled_back: int, last: str) -> dict[str, Any]:
        return {"counts": {"reloaded": reloaded, "rolled_back": rolled_back, "started": 9}, "last_reload": last}

    reloads = Reloads()
    none: dict[str, Any] = {"counts": {}, "last_reload": ""}
    failed = 'rolled back: module "shop": SyntaxError: invalid syntax (shop.py, line 6)\n  def (\n'
    said = [
        reloads.news(one)
        for one in (
            none, staff(1, 0, "generation 2 serves"), staff(1, 0, "generation 2 serves"),
            staff(1, 1, failed), staff(1, 1, failed), staff(1, 2, failed), staff(2, 2, "generation 5 serves"),
        )
    ]  # fmt: skip
    error = 'reload failed, the old code goes on: module "shop": SyntaxError: invalid syntax (shop.py, line 6)'
    assert said == ["", "reloaded: the new code runs", "", error, "", error, "reloaded: the new code runs"]
