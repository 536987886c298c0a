"""Pages with terminals, from their first line to their last, as somebody types them: what they show is what is said.

A page is gone through from top to bottom: a block with a file's name is saved, the first terminal runs on, and what is typed
in the second one is run to its end.
"""

from __future__ import annotations

import codecs
import fnmatch
import os
import pty
import re
import select
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from s3_server import S3Server
from terminal import LIMIT_S, PAUSE_S, asked, command, ends_with_us, environment, run

ROOT = Path(__file__).parents[2]
ADDRESS, BUCKET, ENDPOINT = "127.0.0.1:9876", "s3://warehouse", "http://minio:9000"
"""What pages have in place of this test's own."""
FREE_PORTS = ["--set", "broker.name_server_port=0", "--set", "broker.port=0"]
LATER = "query", "reconcile", "dlq"
"""What these say is true some seconds later: they are asked again until they answer as the page shows. But for what changes
something, which is run once."""
ONCE = {"replay", "--rerun"}
_BLOCK = re.compile(r'^```\w+ title="([^"]+)"\n(.*?)^```', re.DOTALL | re.MULTILINE)


def typed(block: str) -> Iterator[tuple[list[str], list[str]]]:
    """The words of each line that is typed, and the lines that the page shows below it."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        line, *shown = part.splitlines()
        yield shlex.split(line), shown


def shows(said: str, lines: list[str]) -> bool:
    """The lines follow each other somewhere in what was said, empty ones left out; `…` is anything, as a line of its own any
    number of lines."""
    there, lines = ([line.rstrip() for line in each if line.strip()] for each in (said.splitlines(), lines))
    return not lines or any(follow(there[first:], lines) for first in range(len(there)))


def follow(there: list[str], lines: list[str]) -> bool:
    """The lines are there from the first one on."""
    for number, line in enumerate(lines):
        if line.strip() == "…":
            return any(follow(there[later:], lines[number + 1 :]) for later in range(number, len(there) + 1))
        if number == len(there) or not fnmatch.fnmatchcase(there[number], line.replace("[", "[[]").replace("…", "*")):
            return False
    return True


class Screen:
    """A terminal in which one command runs; a thread reads it until nobody has it any more, or until `close`."""

    def __init__(self, folder: Path, words: list[str], env: dict[str, str]) -> None:
        self._ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            command(*words), cwd=folder, env=environment(**env), stdin=theirs, stdout=theirs, stderr=theirs,
            preexec_fn=ends_with_us(),  # noqa: PLW1509  two system calls
        )  # fmt: skip
        os.close(theirs)
        self._text = ""
        self._closed = threading.Event()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    @property
    def said(self) -> str:
        """So far."""
        return self._text.replace("\r\n", "\n").replace("\r", "\n").replace("\x1b[2K", "")

    def until(self, lines: list[str], own: dict[str, str]) -> None:
        """Wait until the lines are shown, with what is this test's `own` as the page has it; the embedded broker's address
        becomes one of these."""
        deadline = time.monotonic() + LIMIT_S
        while True:
            over, said = not self._reader.is_alive(), self.said  # in this order: once it is over, this is all
            found = re.search(r"embedded broker: (127\.0\.0\.1:\d+) ", said)
            own |= {ADDRESS: found[1]} if found else {}
            if shows(swapped(said, own, back=True), lines):
                return
            assert not over, f"it ended and showed\n{said}"
            assert time.monotonic() < deadline, f"within {LIMIT_S} s it showed\n{said}"
            time.sleep(PAUSE_S)

    def to_its_end(self) -> int:
        """The exit code; what was said on the way is in `said`. Fails when it does not end."""
        try:
            code = self.process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it did not end within {LIMIT_S} s and showed\n{self.said}") from None
        self._reader.join(LIMIT_S)  # the terminal is gone with its last process
        assert not self._reader.is_alive(), f"a process of it did not end within {LIMIT_S} s:\n{self.said}"
        return code

    def _read(self) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        while not self._closed.is_set():
            if select.select([self._ours], [], [], PAUSE_S)[0]:
                try:
                    self._text += decoder.decode(os.read(self._ours, 4096))
                except OSError:  # nobody has it
                    return

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._closed.set()
        self._reader.join()
        os.close(self._ours)


def swapped(text: str, own: dict[str, str], *, back: bool = False) -> str:
    """A page's text with this test's own addresses; or `back`."""
    for pages, tests in own.items():
        text = text.replace(tests, pages) if back else text.replace(pages, tests)
    return text


class Reader:
    """Who goes through one page, in a folder."""

    def __init__(self, folder: Path, own: dict[str, str], env: dict[str, str]) -> None:
        self.folder, self.own, self.env = folder, own, env
        self.screen: Screen | None = None
        self.commands = 0

    def follow(self, page: str) -> None:
        for title, block in _BLOCK.findall(page):
            if title == "first terminal":
                [(words, lines)] = typed(block)
                assert words.pop(0) == "rocketcrew"
                self.screen = Screen(self.folder, [*words, *FREE_PORTS], self.env)
                self.screen.until(lines, self.own)
            elif title == "second terminal":
                for words, lines in typed(block):
                    self._type([swapped(word, self.own) for word in words], lines)
            else:
                (self.folder / title).write_text(swapped(block, self.own))

    def _type(self, words: list[str], lines: list[str]) -> None:
        program, *rest = words
        if program == "export":
            self.env |= dict(word.split("=", 1) for word in rest)
            return
        assert program == "rocketcrew"
        self.commands += 1
        asks = rest[0] in LATER and not ONCE & set(rest)

        def answer() -> tuple[int, str]:
            done = run(self.folder, *rest, **self.env)
            return done.returncode, swapped(done.stdout + done.stderr, self.own, back=True)

        code, said = asked(answer, lambda each: shows(each[1], lines) or not asks, f"{words} with {lines}")
        assert shows(said, lines), (words, lines, said)
        assert code == 0, said

    def leave(self) -> None:
        """The member has ended, or is stopped."""
        assert self.screen is not None
        if self.screen.process.poll() is None:
            done = run(self.folder, "stop", "--wait", **self.env)
            assert done.returncode == 0, done.stderr
        assert self.screen.to_its_end() == 0


@pytest.mark.timeout(1800)  # up to twelve commands, each with a limit of its own
@pytest.mark.parametrize(("page", "commands", "tracebacks"), [
    ("docs/tutorial.md", 7, 0), ("README.md", 3, 0), ("docs/how-to/dead-letters.md", 12, 1), ("docs/how-to/s3.md", 4, 0),
    ("docs/how-to/iceberg.md", 4, 0),
])  # fmt: skip
def test_what_a_page_shows_is_what_the_terminals_say(tmp_path: Path, page: str, commands: int, tracebacks: int) -> None:
    server = S3Server() if page.endswith("s3.md") else None
    own = {BUCKET: f"s3://{server.bucket}", ENDPOINT: server.options["endpoint"]} if server else {}
    reader = Reader(tmp_path, own, dict(server.keys) if server else {})
    try:
        reader.follow((ROOT / page).read_text())
        reader.leave()
    finally:
        if reader.screen is not None:
            reader.screen.close()
        if server is not None:
            server.close()
    assert reader.commands == commands
    assert reader.screen is not None
    assert reader.screen.said.count("Traceback") == tracebacks, reader.screen.said
