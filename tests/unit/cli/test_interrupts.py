"""What Ctrl-C and TERM do before a command's own loop has taken them over; each in a process of its own."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

BEGIN = """
import os, signal, sys, threading
from rocketcrew.cli.interrupts import Interrupts
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # who started the tests may have had it ignored
interrupts = Interrupts()
interrupts.install()
def press(number=signal.SIGINT):
    os.kill(os.getpid(), number)
"""
DROPPED = """
class Collected:
    def __del__(self):
        press()
        for _ in range(1000): pass
"""


def script(text: str, *, ignored: bool = False) -> subprocess.CompletedProcess[str]:
    # Said in both cases: whoever started the tests in the background had it ignored.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN if ignored else signal.default_int_handler)
    try:
        return subprocess.run(
            [sys.executable, "-c", BEGIN + text], capture_output=True, text=True, timeout=60, check=False
        )
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("ignored", [False, True])
@pytest.mark.parametrize("where", ["press()", DROPPED + "Collected()"])
def test_before_a_command_ctrl_c_ends_the_process_wherever_it_comes(where: str, ignored: bool) -> None:
    done = script(where + "\nprint('went on')", ignored=ignored)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "rocketcrew: interrupted\n")


@pytest.mark.parametrize("number", ["SIGTERM", "SIGQUIT"])
@pytest.mark.parametrize("when", ["", "interrupts.note()\ninterrupts.raise_again()\n"])
def test_what_the_kernel_drops_of_pid_1_has_a_handler_there_that_ends_it(when: str, number: str) -> None:
    press = f"{when}press(signal.{number})\nprint('went on')"
    assert script(press).returncode == -getattr(signal, number), "other processes: the kernel does it, also in C code"
    done = script(f"interrupts.install(first=True)\n{press}")
    assert (done.returncode, done.stdout, done.stderr) == (128 + getattr(signal, number), "", "")


def test_a_keyboard_interrupt_that_python_drops_is_sent_again() -> None:
    done = script(
        "interrupts.raise_again()" + DROPPED + "try:\n    Collected()\n    threading.Event().wait(60)\n"
        "except KeyboardInterrupt:\n    print('came')\n"
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "came\n", "")


@pytest.mark.parametrize("number", ["SIGHUP", "SIGUSR1"])
def test_while_run_starts_what_a_running_one_obeys_does_not_end_it(number: str) -> None:
    held = f"press(signal.{number})\ninterrupts.note()\npress(signal.{number})\nprint('goes on', flush=True)\n"
    assert script(held).stdout == "goes on\n"
    done = script(held + f"interrupts.raise_again()\npress(signal.{number})\nprint('went on')")
    assert (done.returncode, done.stdout) == (-getattr(signal, number), "goes on\n")
    ignored = f"signal.signal(signal.{number}, signal.SIG_IGN)\ninterrupts.install()\n{held}interrupts.raise_again()\n"
    assert script(f"{ignored}press(signal.{number})").returncode == 0, "nohup"


def test_another_dropped_exception_is_printed_as_ever() -> None:
    done = script("interrupts.raise_again()\nclass Bad:\n    def __del__(self): 1 / 0\nBad()\n")
    assert "ZeroDivisionError" in done.stderr


def test_a_command_of_a_script_s_background_goes_on_ignoring_ctrl_c() -> None:
    assert script("interrupts.raise_again()\npress()\nprint('went on')", ignored=True).stdout == "went on\n"


@pytest.mark.parametrize("ignored", [False, True])
@pytest.mark.parametrize(("number", "code"), [("SIGINT", 130), ("SIGTERM", 0)])
def test_a_noted_signal_is_seen_by_the_next_check(number: str, code: int, ignored: bool) -> None:
    done = script(
        f"interrupts.note()\ninterrupts.check()\npress(signal.{number})\nassert interrupts.noted\nprint('went on')\n"
        "try:\n    interrupts.check()\nexcept KeyboardInterrupt:\n    sys.exit(130)\n",
        ignored=ignored,
    )
    assert (done.returncode, done.stdout, done.stderr) == (code, "went on\n", "")


def test_what_was_noted_is_raised_when_signals_raise_again() -> None:
    done = script(
        "interrupts.note()\npress()\ntry:\n    interrupts.raise_again()\nexcept KeyboardInterrupt:\n    print('came')\n"
    )
    assert done.stdout == "came\n"


def test_interrupts_that_are_not_this_process_s_change_nothing() -> None:
    done = script(
        "before = signal.getsignal(signal.SIGINT)\nfrom rocketcrew.cli.interrupts import Interrupts\n"
        "other = Interrupts()\nother.note()\nother.raise_again()\nassert signal.getsignal(signal.SIGINT) is before\n"
    )
    assert (done.returncode, done.stderr) == (0, "")


CLOSES = """
import fcntl, termios
ours, theirs = os.openpty()
os.close(os.open(os.ttyname(theirs), os.O_RDWR))  # we lead a session: it becomes its own
os.close(theirs)
def close_terminal():
    os.close(ours)
    press(signal.SIGHUP)  # again, as a shell does
"""


def at_a_terminal(text: str) -> subprocess.CompletedProcess[str]:
    begin, install, rest = BEGIN.partition("interrupts = ")
    words = [sys.executable, "-c", begin + CLOSES + install + rest + text]
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False, start_new_session=True)


def test_a_terminal_that_is_closed_before_anything_has_begun_ends_the_process() -> None:
    assert at_a_terminal("close_terminal()\nprint('went on', flush=True)").returncode == -signal.SIGTERM


def test_one_that_is_closed_while_run_starts_is_term() -> None:
    done = at_a_terminal(
        "interrupts.note()\npress(signal.SIGHUP)\nassert not interrupts.noted\nclose_terminal()\n"
        "print(interrupts.noted)\ninterrupts.check()\n"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")


def test_one_that_is_closed_beside_a_command_that_holds_is_the_term_of_that() -> None:
    """`run --engine spark`."""
    done = at_a_terminal(
        "interrupts.raise_again()\ninterrupts.hold()\nsignal.signal(signal.SIGTERM, lambda *_: print('TERM'))\n"
        "press(signal.SIGHUP)\npress(signal.SIGUSR1)\nprint('there')\nclose_terminal()\n"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "there\nTERM\n", "")


AT_A_QUESTION = """
ours, theirs = os.openpty()
for number in (0, 2):
    os.dup2(theirs, number)
from click import Abort
from rocketcrew.cli.changing import agrees
interrupts.raise_again()
def somebody(does):
    threading.Thread(target=lambda: (os.read(ours, 1000), does()), daemon=True).start()
def ask():
    try:
        print(agrees("sure?", yes=False))
    except Abort:
        print("Abort")
"""


def test_ctrl_c_that_ends_no_system_call_of_a_question_ends_the_question() -> None:
    """As one does not that comes just before the call: here another thread gets it."""
    done = script(
        f"{AT_A_QUESTION}\nsomebody(press)\nsignal.pthread_sigmask(signal.SIG_BLOCK, {{signal.SIGINT}})\nask()\n"
    )
    assert (done.returncode, done.stdout) == (0, "Abort\n")


@pytest.mark.parametrize(
    ("typed", "found"),
    [(r"y\n", "True"), (r"\n", "False"), (r"maybe\nNO\n", "False"), (r"\x04", "Abort"), (r"what\n\x04", "Abort")],
)
def test_a_question_has_an_answer_or_ends(typed: str, found: str) -> None:
    """A signal that raises nothing does not end it."""
    done = script(
        f"{AT_A_QUESTION}\nsignal.signal(signal.SIGWINCH, lambda *_: os.write(ours, b'{typed}'))\n"
        "somebody(lambda: press(signal.SIGWINCH))\nask()\n"
    )
    assert (done.returncode, done.stdout) == (0, f"{found}\n")


LOOP = """
import asyncio, uvloop
HEARD = [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGUSR1, signal.SIGTTIN, signal.SIGTTOU,
         signal.SIGTSTP, signal.SIGCONT]
async def hear():
    for number in HEARD:
        asyncio.get_running_loop().add_signal_handler(number, print)
with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
    runner.run(hear())
interrupts.take_back()
"""


def test_after_the_loop_only_what_can_end_the_process_is_heard() -> None:
    done = script(
        LOOP + "for number in HEARD[3:7]:\n    assert signal.getsignal(number) is signal.SIG_IGN\n"
        "press()\nprint('goes on', flush=True)\npress(signal.SIGQUIT)\n"
    )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGQUIT, "goes on\n", "")


def test_after_the_loop_quit_ends_pid_1_as_well() -> None:
    assert (
        script("interrupts.install(first=True)" + LOOP + "press(signal.SIGQUIT)\n").returncode == 128 + signal.SIGQUIT
    )


def test_what_is_written_after_the_loop_comes_out_in_the_background_of_a_terminal_that_wants_nothing() -> None:
    """`stty tostop`."""
    done = at_a_terminal(
        LOOP
        + """
modes = termios.tcgetattr(ours)
modes[3] |= termios.TOSTOP
termios.tcsetattr(ours, termios.TCSANOW, modes)
tty = os.open("/dev/tty", os.O_WRONLY)
child = os.fork()
if child == 0:
    os.setpgid(0, 0)
    os._exit(os.write(tty, b"said") == 4)
print(os.WEXITSTATUS(os.waitpid(child, 0)[1]), os.read(ours, 9))
"""
    )
    assert (done.returncode, done.stdout) == (0, "1 b'said'\n")
