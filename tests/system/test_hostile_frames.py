"""Hostile peers at both ports of the embedded broker: it answers, stays small, and its honest clients lose nothing."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import psutil
from harness import WAIT_S, Broker, Crew, runs, say, send_numbers, wait_until
from hostile_frames import Mutations, hostile_rounds, is_frame

FRAMES, FULL_FRAMES = 6_000, 1_000_000
MEMORY_MAX_MIB = 512
"""What 10,000 topics, the most there can be, and their tables take; a leak of 1 KiB a frame would be more."""
ROUND_MESSAGES = 40
SEED = 16


def test_the_same_frames_come_from_one_seed() -> None:
    """Most are read as frames, and get as far as a handler."""
    first, again = Mutations(SEED).burst(), Mutations(SEED).burst()
    assert first == again
    mutations = Mutations(SEED)
    frames = [mutations.frame() for _ in range(500)]
    assert 400 < sum(map(is_frame, frames)) < 500
    assert len(set(frames)) > 480


def test_a_pair_beside_a_million_hostile_frames(tmp_path: Path, full_numbers: bool) -> None:
    """Here some thousand, the million in `make soak`. The pair's broker has a name of its own, so no frame means it."""
    most, rounds = (FULL_FRAMES, 50) if full_numbers else (FRAMES, 3)
    with contextlib.ExitStack() as ends:
        broker = Broker(tmp_path, name="broker-beside")
        ends.callback(broker.stop)
        send_numbers(broker, "beside", range(ROUND_MESSAGES))
        crew = Crew(tmp_path, broker, "numbers_handler:slow_plain_number", "beside", load=False, group="beside")
        ends.callback(crew.begin().stop, WAIT_S)
        wait_until(lambda: len(crew.workers()) == 2, what="its workers")

        def send(number: int) -> None:
            begin = number * ROUND_MESSAGES
            send_numbers(broker, "beside", range(begin, begin + ROUND_MESSAGES))

        found, peak = asyncio.run(hostile_rounds(broker, SEED, most, rounds, send))
        wait_until(lambda: crew.lag() == 0, what="the commit of all messages of the pair")
        assert crew.counter("invariant_violations") == 0
        assert runs(psutil.Process(broker.child.pid)), broker.child.tail()
        crew.stop()
    # A set: whatever is sent or handed out again on a busy machine is no fault.
    assert set(crew.staged_rows().column("number").to_pylist()) == set(range((rounds + 1) * ROUND_MESSAGES))
    log = (tmp_path / "broker-1.log").read_text(errors="replace")
    assert "handler.failed" not in log, log[-4000:]
    assert "Traceback" not in log, log[-4000:]
    assert found.frames >= most
    assert found.answered == found.bursts
    assert peak < MEMORY_MAX_MIB, f"{peak} MiB"
    say(f"{found.frames} hostile frames, {found.answered} of {found.bursts} bursts answered to the end; "
        f"the broker had {peak} MiB at most")  # fmt: skip
