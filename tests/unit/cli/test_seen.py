"""What producers and brokers chose does nothing to a terminal that it is shown in."""

from __future__ import annotations

import io
import json
import string
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from rocketcrew import OutgoingMessage, SyncProducer
from rocketcrew.cli.exit_codes import guarded, tell
from rocketcrew.cli.main import run
from rocketcrew.cli.tables import lines, seen
from rocketcrew.testing import LocalBroker

TITLE = "\x1b]N;owned\x07"
HARMFUL = f"K{TITLE}\x1b[2J\x9b31m\x7f"
SHOWN = r"K\x1b]N;owned\x07\x1b[2J\x9b31m\x7f"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_controls_are_shown_to_a_terminal_and_stay_as_they_are_elsewhere() -> None:
    with redirect_stdout(Terminal()), redirect_stderr(io.StringIO()):
        assert seen(f"{HARMFUL}\tä\n€\r") == f"{SHOWN}\tä\n€\\x0d"
        assert seen("GET / HTTP/1.1\r\n\r\n") == "GET / HTTP/1.1\r\n\r\n"
        assert seen(HARMFUL, err=True) == HARMFUL
    with redirect_stdout(None):
        assert seen(HARMFUL) == HARMFUL


def test_what_turns_the_direction_of_a_line_is_shown() -> None:
    turns = [0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)]
    with redirect_stdout(Terminal()):
        assert seen("".join(map(chr, turns))) == "".join(f"\\u{one:04x}" for one in turns)
        assert seen("שלום\u200b سلام\n") == "שלום\u200b سلام\n"


def test_a_table_is_as_wide_as_what_a_terminal_shows() -> None:
    rows = [{"KEY": "a\x1b", "N": 1}, {"KEY": "bb", "N": 22}]
    with redirect_stdout(Terminal()):
        assert list(lines(rows)) == ["KEY    N ", r"a\x1b   1", "bb     22"]
        assert list(lines([{"KEY": "a\x1b\x1b"}], 4)) == ["KEY ", r"a\x…"]
    with redirect_stdout(io.StringIO()):
        assert list(lines(rows)) == ["KEY  N ", "a\x1b    1", "bb   22"]


@pytest.fixture
def sent(rocketmq: LocalBroker, producer: SyncProducer) -> tuple[str, str]:
    """A topic and a group, with a harmful message and a harmful dead letter."""
    topic, group = rocketmq.topic(), rocketmq.group()
    for name in (topic, f"%DLQ%{group}"):
        body, properties = f"body {TITLE}".encode(), {"colour": TITLE, "ROCKETCREW_ERROR": f"ValueError: {TITLE}"}
        producer.send(OutgoingMessage(name, body, keys=HARMFUL, tags=f"T{TITLE}", properties=properties))
    return topic, group


@pytest.mark.parametrize(
    "words",
    [
        "peek -t TOPIC", "peek -t TOPIC --body text", "find KEY -t TOPIC", "dlq ls -g GROUP", "dlq show -g GROUP --key KEY",
        "dlq group -g GROUP", "dlq replay -g GROUP --dry-run",
    ],
)  # fmt: skip
def test_no_command_gives_a_terminal_controls_of_a_message(
    words: str, sent: tuple[str, str], rocketmq: LocalBroker, tmp_path: Path
) -> None:
    meant = {"TOPIC": sent[0], "GROUP": sent[1], "KEY": HARMFUL}
    command = [meant.get(word, word) for word in words.split()]

    def said(more: Sequence[str], out: io.StringIO) -> str:
        with redirect_stdout(out):
            assert run([*command, *more, "-n", rocketmq.name_server], {}, tmp_path) == 0
        return out.getvalue()

    on_terminal = said([], Terminal())
    assert r"\x1b]N;owned\x07" in on_terminal
    assert not set(on_terminal) & set(HARMFUL) - set(string.printable)
    as_json = said(["--json"], Terminal())
    assert as_json == said(["--json"], io.StringIO())
    assert all(json.loads(line) is not None for line in as_json.splitlines())


def test_an_error_gives_a_terminal_no_controls_of_its_words() -> None:
    def faulty() -> None:
        raise ValueError(HARMFUL)

    with redirect_stderr(Terminal()) as out:
        tell(f"broker b answered 1: {HARMFUL}", f"Traceback: {HARMFUL}\n")
        guarded(faulty)
    assert out.getvalue().count(SHOWN) == 3
    assert "\x1b" not in out.getvalue()


def test_a_row_may_lack_a_column_that_another_has() -> None:
    assert list(lines([{"a": 1, "b": "x"}, {"a": 2}, {"a": 3, "c": "y"}])) == [
        "a  b  c",
        "1  x   ",
        "2      ",
        "3     y",
    ]
