"""Pages with terminals, from their first line to their last, as somebody types them: what they show is what is said.

A page is gone through from top to bottom: a block with a file's name is saved. In terminals, commands that stay (`run`,
`broker`, `tail`) run on, all others are run to their end; they exit with 0, or with what the page's `echo $?` shows next.
"""

from __future__ import annotations

import codecs
import fnmatch
import os
import pty
import re
import select
import shlex
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import trustme

sys.path.insert(0, str(Path(__file__).parent))

from documented import shell_lines, swapped
from s3_server import S3Server
from terminal import LIMIT_S, PATIENT, PAUSE_S, asked, command, ends_with_us, environment, run

from rocketcrew.conf.exit_codes import EXIT_FINE, EXIT_FORCED, EXIT_INTERRUPTED
from rocketcrew.testing import LocalBroker

ROOT = Path(__file__).parents[2]
BUCKET, ENDPOINT, HOST = "s3://warehouse", "http://minio:9000", "10.0.0.5"
"""What pages have in place of this test's own."""
FREE_PORTS = ["--set", "broker.name_server_port=0", "--set", "broker.port=0"]
STAY = {"run", "broker", "tail"}
LATER = "query", "reconcile", "dlq", "why-lag", "find", "lag"
"""What these say is true some seconds later: they are asked again until they answer as the page shows. But for what changes
something, which is run once."""
ONCE = {"replay", "--rerun"}
ENDS = {EXIT_FINE, EXIT_INTERRUPTED, EXIT_FORCED}
"""How what stays ends: `tail` by Ctrl-C with the second, `run` by `stop --quick` with the third."""
_BLOCK = re.compile(r'^```\w+ title="([^"]+)"\n(.*?)^```', re.DOTALL | re.MULTILINE)


def typed(block: str) -> tuple[list[str], list[tuple[list[str], list[str]]]]:
    """What the page shows of the command that runs there already; the words of each line that is typed, and the lines that
    the page shows below it."""
    more, *parts = re.split(r"^\$ ", block, flags=re.MULTILINE)
    return more.splitlines(), [(shlex.split(line), shown) for line, *shown in map(str.splitlines, parts)]


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
            preexec_fn=ends_with_us(),  # noqa: PLW1509  three system calls
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
            found = re.search(r"(?:embedded broker:|^name server) (127\.0\.0\.1:\d+)", said, re.MULTILINE)
            own |= {f"{HOST if HOST in own else '127.0.0.1'}:9876": found[1]} if found else {}
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


class Reader:
    """Who goes through one page, in a folder. Each terminal has its own environment."""

    def __init__(self, folder: Path, own: dict[str, str], env: dict[str, str]) -> None:
        self.folder, self.own = folder, own
        self.screens: list[Screen] = []
        self.commands = 0
        self._common = env
        self._envs: dict[str, dict[str, str]] = {}
        self._runs_at: dict[str, Screen] = {}

    def follow(self, page: str) -> None:
        for title, block in _BLOCK.findall(page):
            if title.endswith("terminal"):
                more, lines_typed = typed(block)
                if more:
                    self._runs_at[title].until(more, self.own)
                self._at(title, lines_typed)
            else:
                (self.folder / title.partition(",")[0]).write_text(swapped(block, self.own))

    def _at(self, terminal: str, lines_typed: list[tuple[list[str], list[str]]]) -> None:
        env = self._envs.setdefault(terminal, dict(self._common))
        for number, (words, lines) in enumerate(lines_typed):
            program, *rest = [swapped(word, self.own) for word in words]
            following = lines_typed[number + 1 : number + 2]
            code = int(following[0][1][0]) if following and following[0][0] == ["echo", "$?"] else 0
            if program == "export":
                env |= dict(word.split("=", 1) for word in rest)
            elif program == "chmod":
                (self.folder / rest[1]).chmod(int(rest[0], 8))
            elif program == "rocketcrew" and rest[0] in STAY:
                self.screens.append(Screen(self.folder, [*rest, *([] if rest[0] == "tail" else FREE_PORTS)], env))
                self.screens[-1].until(lines, self.own)
                self._runs_at[terminal] = self.screens[-1]
            elif program == "rocketcrew":
                self._type(rest, lines, env, code)
            else:
                assert words == ["echo", "$?"]

    def _type(self, words: list[str], lines: list[str], env: dict[str, str], expected: int) -> None:
        self.commands += 1
        asks = words[0] in LATER and not ONCE & set(words)

        def answer() -> tuple[int, str]:
            done = run(self.folder, *words, **env)
            return done.returncode, swapped(done.stdout + done.stderr, self.own, back=True)

        code, said = asked(answer, lambda each: shows(each[1], lines) or not asks, f"{words} with {lines}")
        assert shows(said, lines), f"{words} with {lines} said\n{said}"
        assert code == expected, said

    def leave(self) -> None:
        """What still runs gets a Ctrl-C, the newest first."""
        assert self.screens
        for screen in reversed(self.screens):
            if screen.process.poll() is None:
                screen.process.send_signal(signal.SIGINT)
            assert screen.to_its_end() in ENDS, screen.said

    def close(self) -> None:
        for screen in reversed(self.screens):
            screen.close()


@pytest.mark.timeout(1800)  # up to two dozen commands, each with a limit of its own
@pytest.mark.parametrize(("page", "commands", "tracebacks"), [
    ("docs/tutorial.md", 7, 0), ("README.md", 3, 0), ("docs/how-to/dead-letters.md", 12, 1), ("docs/how-to/s3.md", 4, 0),
    ("docs/how-to/iceberg.md", 4, 0), ("docs/how-to/operate.md", 19, 1), ("docs/how-to/table.md", 10, 0),
    ("docs/how-to/cluster.md", 5, 0),
])  # fmt: skip
def test_what_a_page_shows_is_what_the_terminals_say(tmp_path: Path, page: str, commands: int, tracebacks: int) -> None:
    server = S3Server() if page.endswith("s3.md") else None
    own = {BUCKET: f"s3://{server.bucket}", ENDPOINT: server.options["endpoint"]} if server else {}
    reader = Reader(tmp_path, own, {**PATIENT, **(server.keys if server else {})})
    if page.endswith("cluster.md"):
        own[HOST] = "127.0.0.1"
        certify(tmp_path)
        (tmp_path / "shop.py").write_text(shop())
    try:
        reader.follow((ROOT / page).read_text())
        reader.leave()
    finally:
        reader.close()
        if server is not None:
            server.close()
    assert reader.commands == commands
    said = "".join(screen.said for screen in reader.screens)
    assert said.count("Traceback") == tracebacks, said


def shop() -> str:
    """The first handler that somebody meets."""
    blocks = dict(_BLOCK.findall((ROOT / "docs/tutorial.md").read_text()))
    return str(blocks["shop.py"])


def certify(folder: Path) -> None:
    """The files of a certificate for 127.0.0.1, by the names that the page has for them."""
    authority = trustme.CA()
    server = authority.issue_cert("127.0.0.1")
    authority.cert_pem.write_to_path(folder / "ca.pem")
    server.private_key_pem.write_to_path(folder / "server.key")
    for part in server.cert_chain_pems:
        part.write_to_path(folder / "server.pem", append=True)


@pytest.mark.parametrize(
    ("page", "members"), [("docs/how-to/cluster.md", 2), ("docs/how-to/java.md", 1), ("README.md", 1)]
)
def test_a_member_starts_as_a_page_says(tmp_path: Path, page: str, members: int) -> None:
    (tmp_path / "shop.py").write_text(shop())
    started = 0
    with LocalBroker() as broker:
        own = dict.fromkeys(("10.0.0.5:9876;10.0.0.6:9876", "10.0.0.5:9876"), broker.name_server)
        for env, words in shell_lines(ROOT / page):
            if words[0] != "run":
                continue
            words, env = (
                [swapped(word, own) for word in words],
                {name: swapped(value, own) for name, value in env.items()},
            )
            screen = Screen(tmp_path, [*words, "--set", "spark.load=false"], {**PATIENT, **env})
            try:
                screen.until(["  topics      orders…", "…", "done 0  failed 0 …"], {})
                screen.process.send_signal(signal.SIGINT)
                assert screen.to_its_end() == 0, screen.said
            finally:
                screen.close()
            started += 1
    assert started == members
