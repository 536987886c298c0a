"""Output that nobody takes: what is kept, what is dropped, and that no write waits."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading

import pytest

from rocketcrew.cli.live_line import LiveLine
from rocketcrew.cli.patient_output import CLEAR, FLUSHES_MAX, LOOKS, PIECE_BYTES, Patience, PatientOutput, Unwritten


def test_lines_keep_their_order_and_are_taken_once() -> None:
    unwritten = Unwritten()
    unwritten.put("one\n")
    unwritten.put("two\nthree\n")
    assert unwritten
    assert unwritten.take() == "one\ntwo\nthree\n"
    assert not unwritten
    assert unwritten.take() == ""


def test_of_too_many_lines_the_oldest_go_and_are_counted() -> None:
    unwritten = Unwritten(characters_max=20)
    for number in range(8):
        unwritten.put(f"{number}a\n{number}b\n")
    assert unwritten.take() == "10 lines were not shown\n5a\n5b\n6a\n6b\n7a\n7b\n"
    unwritten.put("next\n")
    assert unwritten.take() == "next\n"


def test_a_text_that_is_too_long_alone_is_kept() -> None:
    unwritten = Unwritten(characters_max=4)
    unwritten.put("first\n")
    unwritten.put("x" * 100 + "\n")
    assert unwritten.take() == "1 lines were not shown\n" + "x" * 100 + "\n"


def test_of_live_lines_the_newest_is_enough() -> None:
    unwritten = Unwritten()
    unwritten.put(f"{CLEAR}done 1")
    unwritten.put(f"{CLEAR}done 2")
    unwritten.put(f"{CLEAR}a warning\ndone 2")
    unwritten.put(f"{CLEAR}done 3")
    unwritten.put(f"{CLEAR}done 4")
    assert unwritten.take() == f"{CLEAR}a warning\ndone 2{CLEAR}done 4"


def test_the_count_does_not_stand_in_the_live_line_that_was_shown() -> None:
    unwritten = Unwritten(characters_max=10)
    unwritten.put(f"{CLEAR}a warning\ndone 2")
    unwritten.put("b\n")
    assert unwritten.take() == f"{CLEAR}1 lines were not shown\nb\n"


def looks(taken_every: int, waited_s: float = 1.0) -> int:
    """Until it is given up, when the output takes a byte in each look of so many, each after that wait."""
    patience, count = Patience(LOOKS, 0), 1
    while not patience.is_over(count // taken_every, waited_s):
        count += 1
    return count


def test_only_an_output_that_takes_nothing_is_given_up_soon() -> None:
    assert looks(LOOKS * FLUSHES_MAX) == LOOKS
    assert looks(LOOKS) == LOOKS * FLUSHES_MAX, "a slow one in the end, too: a stop has an end"
    assert looks(LOOKS * FLUSHES_MAX, 60.0) == LOOKS, "a machine that stands still for a minute uses up one look"
    assert looks(1000, 0.5) == 2 * LOOKS, "who is woken early has not waited"


def test_an_output_that_takes_a_little_at_a_time_is_seen_to_take_it() -> None:
    """The text is longer than what the pipe holds: not before the last of it is taken would one write come back."""
    ours, theirs = os.pipe()
    output = PatientOutput(theirs)
    with output:
        output.write(("x" * 99 + "\n") * 2500 + "the end\n")
        said = os.read(ours, PIECE_BYTES)
        while output.written < (1 << 16):
            said += os.read(ours, 1)
        while not said.endswith(b"the end\n"):
            said += os.read(ours, 1 << 16)
    assert not output.stalled
    os.close(ours)
    os.close(theirs)


def test_no_write_waits_for_a_pipe_that_nobody_reads() -> None:
    ours, theirs = os.pipe()
    output = PatientOutput(theirs)
    line = LiveLine(output)
    line.write("before\n")  # direct
    with output:
        for number in range(30_000):  # several times what the pipe and the queue hold
            line.write(f"{number:030}\n")
    assert output.stalled
    line.write("after\n")  # dropped: would wait
    said = b""
    while b"not shown" not in said or not said.endswith(b"29999\n"):
        said += os.read(ours, 1 << 16)
    first, *lines = said.decode().splitlines()
    assert first == "before"
    # The thread takes what is there whenever it gets its turn: each time it says what has been dropped since the last one.
    notices = [line.removesuffix(" lines were not shown") for line in lines if line.endswith(" lines were not shown")]
    shown = [line for line in lines if not line.endswith(" lines were not shown")]
    assert len(shown) + sum(map(int, notices)) == 30_000
    assert shown == sorted(shown)
    os.close(ours)
    os.close(theirs)


def test_what_is_left_at_the_end_is_written_when_the_output_takes_it() -> None:
    ours, theirs = os.pipe()
    output = PatientOutput(theirs)
    with output:
        output.write("one\n")
        output.write("two\n")
    output.write("three\n")
    assert not output.stalled
    assert os.read(ours, 100) == b"one\ntwo\nthree\n"
    os.close(ours)
    output.write("nobody reads\n")  # no error
    os.close(theirs)


def test_a_line_after_the_end_of_the_loop_does_not_wait_for_ever_either() -> None:
    ours, theirs = os.pipe()
    output = PatientOutput(theirs)
    with output:
        output.write("one\n")
    assert not output.stalled
    for _ in range(100):  # more than the pipe holds
        output.write("x" * 4096 + "\n")
    assert output.stalled
    assert os.read(ours, 4) == b"one\n"
    output.write("dropped\n")
    os.close(ours)  # ends the write that hangs


@pytest.mark.parametrize("length", [10, 330, PIECE_BYTES - 1, PIECE_BYTES, 3 * PIECE_BYTES])
def test_no_line_is_written_in_two_pieces(length: int) -> None:
    """Of several that are written at once: other processes write to the same file."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # keeps writes apart
    output = PatientOutput(theirs.fileno())
    text = ("x" * length + "\n") * 20
    reader = threading.Thread(target=output.write, args=(text,))
    reader.start()
    pieces: list[bytes] = []
    while sum(map(len, pieces)) < len(text):
        pieces.append(ours.recv(1 << 20))
    reader.join()
    assert all(piece.endswith(b"\n") for piece in pieces)
    assert len(pieces) == 20 if length >= PIECE_BYTES / 2 else len(pieces) < 20
    ours.close()
    theirs.close()


BACKGROUND = """
import os, signal, sys, termios
from rocketcrew.cli.patient_output import PatientOutput

terminal = os.open(sys.argv[1], os.O_RDWR)  # we lead a session: it becomes its own
flags = termios.tcgetattr(terminal)
flags[3] |= termios.TOSTOP
termios.tcsetattr(terminal, termios.TCSANOW, flags)
os.tcsetpgrp(terminal, os.getpgid(0))
child = os.fork()
if not child:
    os.setpgid(0, 0)
    asked = []
    signal.signal(signal.SIGTTOU, lambda *_: asked.append(1) or (len(asked) > 50 and os._exit(99)))
    PatientOutput(terminal).write("shown\\n")
    os._exit(len(asked))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_job_in_the_background_writes_also_where_its_terminal_wants_none_of_it() -> None:
    ours, theirs = os.openpty()
    try:
        program = [sys.executable, "-c", BACKGROUND, os.ttyname(theirs)]
        done = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False, start_new_session=True)
        assert (done.stdout, done.stderr) == ("0\n", "")
        assert os.read(ours, 100) == b"shown\r\n"
    finally:
        os.close(ours)
        os.close(theirs)
