"""The tutorial, from its first line to its last, as somebody types it: what it shows is what the terminals say."""

from __future__ import annotations

import contextlib
import fnmatch
import os
import pty
import re
import shlex
import subprocess
import threading
import time
from pathlib import Path

from terminal import LIMIT_S, command, environment, run

PAGE = Path(__file__).parents[2] / "docs/tutorial.md"
ADDRESS = "127.0.0.1:9876"
FREE_PORTS = ["--set", "broker.name_server_port=0", "--set", "broker.port=0"]
LATER = "query", "reconcile"
"""Of these the page says that they are asked some seconds later: they are asked again until they answer as it shows."""


def sessions(terminal: str) -> list[tuple[list[str], list[str]]]:
    """The words of each command typed in that terminal, and the lines that the page shows below it."""
    found: list[tuple[list[str], list[str]]] = []
    for block in re.findall(rf'^```console title="{terminal}"\n(.*?)^```', PAGE.read_text(), re.DOTALL | re.MULTILINE):
        for line in block.splitlines():
            if line.startswith("$ rocketcrew "):
                found.append((shlex.split(line)[2:], []))
            else:
                found[-1][1].append(line)
    return found


def shows(said: str, lines: list[str]) -> bool:
    """The lines follow each other somewhere in what was said; `…` is anything, as a line of its own any number of lines."""
    there = [line.rstrip() for line in said.splitlines()]
    return any(follow(there[first:], lines) for first in range(len(there)))


def follow(there: list[str], lines: list[str]) -> bool:
    """The lines are there from the first one on."""
    for number, line in enumerate(lines):
        if line.strip() == "…":
            return any(follow(there[later:], lines[number + 1 :]) for later in range(number, len(there) + 1))
        if number == len(there) or not fnmatch.fnmatchcase(there[number], line.replace("[", "[[]").replace("…", "*")):
            return False
    return True


class Screen:
    """A terminal in which one command runs; what it has said so far is in `said`."""

    def __init__(self, folder: Path, words: list[str]) -> None:
        self._ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            command(*words), cwd=folder, env=environment(), stdin=theirs, stdout=theirs, stderr=theirs
        )
        os.close(theirs)
        self.said = ""

    def until(self, lines: list[str], address: str) -> str:
        """Read until the lines are shown, with the embedded broker's address as the page has it; gives that address."""
        killer = threading.Timer(LIMIT_S, self.process.kill)
        killer.start()
        try:
            while not shows(self.said.replace(address, ADDRESS), lines):
                self._read()
                found = re.search(r"embedded broker: (127\.0\.0\.1:\d+)", self.said)
                address = found[1] if found else address
        except OSError:
            raise AssertionError(f"it ended and showed\n{self.said}") from None
        finally:
            killer.cancel()
        return address

    def to_its_end(self) -> int:
        with contextlib.suppress(OSError):  # the terminal is gone with its last process
            while True:
                self._read()
        return self.process.wait(LIMIT_S)

    def _read(self) -> None:
        self.said += (
            os.read(self._ours, 4096)
            .decode(errors="replace")
            .replace("\r\n", "\n")
            .replace("\r", "\n")
            .replace("\x1b[2K", "")
        )

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._ours)


def test_what_the_tutorial_shows_is_what_the_terminals_say(tmp_path: Path) -> None:
    [(title, code)] = re.findall(r'^```python title="([\w.]+)"\n(.*?)^```', PAGE.read_text(), re.DOTALL | re.MULTILINE)
    (tmp_path / title).write_text(code)
    [(words, lines)] = sessions("first terminal")
    screen = Screen(tmp_path, [*words, *FREE_PORTS])
    try:
        address = screen.until(lines, ADDRESS)
        asked = sessions("second terminal")
        assert len(asked) == 7
        for words, lines in asked:
            here = [word.replace(ADDRESS, address) for word in words]
            deadline = time.monotonic() + LIMIT_S
            done = run(tmp_path, *here)
            while not shows(done.stdout + done.stderr, lines) and words[0] in LATER and time.monotonic() < deadline:
                done = run(tmp_path, *here)
            assert shows(done.stdout + done.stderr, lines), (words, done.stdout, done.stderr)
            assert done.returncode == 0
        assert screen.to_its_end() == 0
    finally:
        screen.close()
    assert "Traceback" not in screen.said
