"""The verdict of chaos, from made-up traces; which faults are chosen; the cluster's settings as a file."""

from __future__ import annotations

import asyncio
import random
import signal
import tomllib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

import pytest

from rocketcrew.cli.chaos.faults import FAULTS
from rocketcrew.cli.chaos.ground import cluster_file
from rocketcrew.cli.chaos.verdict import FaultRecord, Verdict, judge, out_of_order, parse, standing
from rocketcrew.cli.commands.chaos import choose
from rocketcrew.conf.settings import load
from rocketcrew.remoting.errors import UsageError


def story(*steps: str) -> str:
    """Steps as `B3@1` (begin of offset 3 in process 1); offset and number are the same, the key is the offset's parity."""
    words = {"B": "BEGIN", "E": "END", "F": "FAIL"}
    lines: list[str] = []
    for at, step in enumerate(steps):
        number, _, pid = step[1:].partition("@")
        lines.append(f"{words[step[0]]} {pid} t 0 {number} k{int(number) % 2} {number} {at}\n")
    return "".join(lines)


@pytest.mark.parametrize(
    ("order", "steps", "broken"),
    [
        ("queue", ["B0@1", "E0@1", "B1@2", "E1@2"], []),
        ("queue", ["B0@1", "F0@1", "B0@2", "E0@2", "B1@1", "E1@1"], []),
        ("queue", ["B0@1", "F0@1", "B1@1", "E1@1"], [1]),  # 0 failed and 1 did not wait
        ("queue", ["B1@1", "E1@1", "B0@1", "E0@1"], [1]),
        ("queue", ["B0@1", "B0@2", "E0@2", "B1@2", "E1@2"], []),  # process 1 was killed
        ("queue", ["B0@1", "B0@2", "E0@1", "E0@2"], [0]),  # ... or was not: both ran
        ("key", ["B0@1", "B1@2", "E1@2", "E0@1", "B2@1", "E2@1"], []),
        ("key", ["B0@1", "B2@2", "E2@2", "E0@1"], [2, 0]),
        ("concurrent", ["B1@1", "B0@2", "E0@2", "E1@1"], []),
    ],
)
def test_order(order: str, steps: list[str], broken: list[int]) -> None:
    assert out_of_order(parse(story(*steps)), order) == broken


def test_a_message_that_was_given_up_holds_nobody_up() -> None:
    lines = parse(story("B0@1", "B1@2", "E1@2"))
    assert out_of_order(lines, "queue", {0}) == []
    assert out_of_order(lines, "queue") == [1]


def test_a_stop_sends_held_failures_back_and_nothing_else_does() -> None:
    lines = parse(story("B0@1", "F0@1", "B1@1", "E1@1") + "BEGIN 2 %RETRY%g 0 0 k0 0 9\nEND 2 %RETRY%g 0 0 k0 0 9\n")
    for stopped, broken in [(True, 0), (False, 1)]:
        found = judge(sent=(0, 1), uncertain=(), meant_to_die=(), dead_lettered=0, lines=lines, rows={0: 1, 1: 1},
                      order="queue", records=[], violations=0, held_go_back=stopped)  # fmt: skip
        assert found.out_of_order == broken


@pytest.mark.parametrize(
    ("steps", "broken"),
    [
        (["B0@1", "F0@1", "B2@2", "E2@2"], []),
        (["B0@1", "F0@1", "B0@1", "F0@1", "B2@2", "E2@2"], []),
        (["B0@1", "F0@1", "B2@2", "E2@2", "B0@1", "F0@1"], [2]),  # it was tried again behind what had waited for it
        (["B0@1", "B2@2", "E2@2", "F0@1"], [2, 0]),
    ],
)
def test_what_is_sent_back_is_over_with_its_last_step(steps: list[str], broken: list[int]) -> None:
    assert out_of_order(parse(story(*steps)), "key", sent_back={0}) == broken


def test_what_stands_in_segments_and_table() -> None:
    """A segment may have again what it or the table has; a key twice in the table is what must never be."""
    one, other = ("t", "b", 0, 5), ("t", "b", 0, 6)
    assert standing([(*one, 1), (*one, 1), (*other, 2)], [(*one, 1)]) == {1: 1, 2: 1}
    assert standing([(*one, 1)], [(*other, 1)]) == {1: 2}, "two records of one message"
    assert standing([], [(*one, 1), (*one, 1), (*other, 2)]) == {1: 2, 2: 1}


def test_a_line_that_is_not_whole_is_not_read() -> None:
    text = story("B0@1", "E0@1")
    assert len(parse(text)) == 2
    assert len(parse(text[:-1])) == 1


def verdict(
    *steps: str, sent: tuple[int, ...] = (0, 1), rows: Mapping[int, int] | None = None, repeats_max: int = 0,
    recovered_s: float | None = 1.5, die: tuple[int, ...] = (), uncertain: tuple[int, ...] = (),
) -> Verdict:  # fmt: skip
    return judge(
        sent=sent, uncertain=uncertain, meant_to_die=die, dead_lettered=len(die), lines=parse(story(*steps)),
        rows={0: 1, 1: 1} if rows is None else rows, order="concurrent", violations=0,
        records=[FaultRecord("kill-worker", recovered_s, repeats_max), FaultRecord("kill-worker", 0.5, 0)],
    )  # fmt: skip


def test_a_good_end() -> None:
    found = verdict("B0@1", "E0@1", "B1@1", "E1@1")
    assert found.good
    assert found.line.startswith("VERDICT good: 2 sent, 0 lost, 0 duplicated")
    assert "slowest recovery 1.50 s (kill-worker)" in found.line
    assert [(row.times, row.recovered_s_median, row.recovered_s_max) for row in found.faults] == [(2, 1.0, 1.5)]
    assert found.as_dict()["verdict"] == "good"


def test_what_is_not_in_the_results_is_lost_though_it_was_handled() -> None:
    found = verdict("B0@1", "E0@1", "B1@1", "E1@1", rows={0: 1})
    assert not found.good
    assert found.lost == (1,)
    assert found.as_dict()["lost_numbers"] == (1,)


def test_dead_letters_that_were_meant_and_unanswered_sends_are_not_lost() -> None:
    assert verdict("B0@1", "E0@1", rows={0: 1}, die=(1,)).good
    assert verdict("B0@1", "E0@1", sent=(0,), rows={0: 1}, uncertain=(1,)).good


def test_repeats_are_good_as_far_as_a_fault_explains_them() -> None:
    steps = ["B0@1", "E0@1", "B0@2", "E0@2", "B1@1", "E1@1"]
    assert not verdict(*steps).good
    assert verdict(*steps, repeats_max=1).good
    assert verdict(*steps, repeats_max=1).duplicated == 1
    assert not verdict("B0@1", "E0@1", "B1@1", "E1@1", rows={0: 2, 1: 2}, repeats_max=1).good


def test_what_does_not_recover_is_bad() -> None:
    found = verdict("B0@1", "E0@1", "B1@1", "E1@1", recovered_s=None)
    assert not found.good
    assert found.not_recovered == 1
    assert found.faults[0].recovered_s_max == -1


def test_a_broker_that_is_not_ours_is_not_ended() -> None:
    assert "kill-broker" in choose((), own_broker=True)
    assert not any(FAULTS[name].needs_own_broker for name in choose((), own_broker=False))
    assert "kill-loader" not in choose((), own_broker=True)
    assert choose(("term", "term"), own_broker=False) == ["term"]
    with pytest.raises(UsageError, match="not ours to end"):
        choose(("expire",), own_broker=False)


def test_the_cluster_s_settings_survive_the_file() -> None:
    flags = {"cluster.name_servers": "10.0.0.1:9876;10.0.0.2:9876", "security.access_key": "me",
             "security.secret_key": 'a"b\\cé', "cluster.unit_mode": "true"}  # fmt: skip
    settings = load(flags, {}, None)
    table = tomllib.loads(cluster_file(settings))
    assert table["cluster"]["name_servers"] == ["10.0.0.1:9876", "10.0.0.2:9876"]
    assert table["cluster"]["unit_mode"] is True
    assert table["security"]["secret_key"] == 'a"b\\cé'


class Crew:
    """A ground whose supervisor does not answer at first."""

    def __init__(self) -> None:
        self.answers = [[], [], [11]]
        self.dead = [-1, 3, 3, 4]
        self.signalled: list[tuple[int, signal.Signals]] = []
        self.sent: list[str] = []

    async def worker_pids(self) -> list[int]:
        return self.answers.pop(0) if self.answers else [12]

    async def dead_letters(self) -> int:
        return self.dead.pop(0)

    async def send_special(self, evil: str, *, dies: bool) -> int:
        assert dies
        self.sent.append(evil)
        return 1

    def signal_below(self, pid: int, number: signal.Signals) -> bool:
        self.signalled.append((pid, number))
        return True

    async def until(self, condition: Callable[[], Awaitable[bool]], timeout_s: float, what: str) -> float:
        del timeout_s, what
        while not await condition():
            pass
        return 0.0


def test_a_fault_waits_for_a_worker_when_there_is_none() -> None:
    crew = Crew()

    async def scene() -> bool:
        replaced = await FAULTS["kill-worker"].act(cast("Any", crew), random.Random(1))
        assert replaced is not None
        return await replaced()

    assert asyncio.run(scene())
    assert crew.signalled == [(11, signal.SIGKILL)]


def test_a_dead_letter_is_counted_from_a_number_that_is_known() -> None:
    crew = Crew()

    async def scene() -> list[bool]:
        buried = await FAULTS["exit-message"].act(cast("Any", crew), random.Random(1))
        assert buried is not None
        return [await buried(), await buried()]

    assert asyncio.run(scene()) == [False, True]
