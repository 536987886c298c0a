"""Hostile peers at the embedded broker, and a genuine producer and consumer beside them that notice nothing."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "system"))

from harness import WAIT_S, Broker, runs, say
from hostile_frames import hostile_rounds
from servers import VERSIONS, Member, send_by_java

TOPIC, GROUP, SEED = "beside", "java-beside", 17
FRAMES, FULL_FRAMES = 4_000, 1_000_000
ROUND_MESSAGES = 40


@pytest.mark.parametrize("version", [kind.version for kind in VERSIONS])
def test_a_java_pair_beside_hostile_frames(
    version: str, tmp_path: Path, java_classes: Callable[[str], str], full_numbers: bool
) -> None:
    """Of the million in `make soak` each version has half. The pair's broker has a name of its own, so no frame means it."""
    most, rounds = (FULL_FRAMES // len(VERSIONS), 25) if full_numbers else (FRAMES, 2)
    classes = java_classes(version)
    sent: list[range] = []

    def send(number: int) -> None:
        numbers = range(100 * number, 100 * number + ROUND_MESSAGES)
        send_by_java(tmp_path, classes, broker.name_server, TOPIC, numbers)
        sent.append(numbers)

    with contextlib.ExitStack() as ends:
        broker = Broker(tmp_path, name="broker-beside")
        ends.callback(broker.stop)
        send(0)
        member = Member(tmp_path, classes, broker.name_server, GROUP, TOPIC)
        ends.callback(member.java.stop)
        found, peak = asyncio.run(hostile_rounds(broker, SEED, most, rounds, send))
        wanted = {number for numbers in sent for number in numbers}
        assert len(wanted) == (rounds + 1) * ROUND_MESSAGES
        member.java.wait_for(lambda: {number for number, _ in member.done()} == wanted, "consume all", WAIT_S)
        assert runs(psutil.Process(broker.child.pid)), broker.child.tail()
    assert found.frames >= most
    assert found.answered == found.bursts
    say(f"{found.frames} hostile frames beside Java {version}, {found.answered} of {found.bursts} bursts answered to the "
        f"end, {len(wanted)} messages of the pair; the broker had {peak} MiB at most")  # fmt: skip
