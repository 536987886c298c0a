from __future__ import annotations

import io
import json
import os
from pathlib import Path

import pytest

from rocketcrew.cli.commands.send import (  # pyright: ignore[reportPrivateUsage]  # fmt: skip
    SLICE_MESSAGES,
    _bodies,
    _done,
    _line,
    _numbered,
    _pair,
    _read,
    _repeated,
    _slices,
)
from rocketcrew.cli.main import run
from rocketcrew.client.outgoing import BODY_MAX_BYTES, OutgoingMessage
from rocketcrew.client.producer import SendResult, SendStatus
from rocketcrew.remoting.errors import UsageError
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.testing import LocalBroker


def test_bodies_come_from_arguments_then_files(tmp_path: Path) -> None:
    file = tmp_path / "body.bin"
    file.write_bytes(b"\x00one\ntwo\n")
    assert list(_bodies(("a", "ü", "\udcff"), (file,), False)) == [b"a", "ü".encode(), b"\xff", b"\x00one\ntwo\n"]
    assert list(_bodies((), (file,), True)) == [b"\x00one", b"two"]


def test_lines_have_no_line_ends_and_no_empty_ones() -> None:
    assert list(_read(io.BytesIO(b"a\r\n\n\r\nb"), "x", True)) == [b"a", b"b"]


def test_a_line_of_the_longest_body_is_taken_and_one_more_byte_refused() -> None:
    longest = b"x" * BODY_MAX_BYTES
    assert list(_read(io.BytesIO(longest + b"\r\nb\n"), "x", True)) == [longest, b"b"]
    with pytest.raises(UsageError, match="x, line 2: longer than"):
        list(_read(io.BytesIO(b"a\n" + longest + b"y\n"), "x", True))


def test_what_a_pipe_has_is_sent_before_more_is_waited_for() -> None:
    reader, writer = os.pipe()
    with open(reader, "rb") as stream:
        os.write(writer, b"a\nb\nhalf")
        lines = _read(stream, "x", True)
        assert [next(lines), next(lines), next(lines)] == [b"a", b"b", None]
        os.write(writer, b" a line\n")
        assert [next(lines), next(lines)] == [b"half a line", None]
        os.write(writer, b"the last")
        os.close(writer)
        assert list(lines) == [b"the last"]


def test_a_slice_ends_where_the_next_message_is_not_there_yet() -> None:
    one = OutgoingMessage("t", b"x")
    full = [one] * SLICE_MESSAGES
    assert list(_slices(iter([None, one, one, None, None, *full, one]))) == [[one, one], full, [one]]


def test_count_numbers_bodies_and_keys() -> None:
    assert list(_repeated([b"m{n}", b"x"], 2)) == [(b"m0", 0), (b"m1", 1), (b"x", 0), (b"x", 1)]
    assert list(_repeated([b"m{n}", None], None)) == [(b"m{n}", None), (None, None)]
    assert (_numbered("k{n}", 7), _numbered("k{n}", None)) == ("k7", "k{n}")


def test_properties_are_pairs() -> None:
    assert _pair("a=b=c") == ("a", "b=c")
    for wrong in ("a", "=b"):
        with pytest.raises(UsageError, match="not K=V"):
            _pair(wrong)


def test_results_as_text_and_json() -> None:
    result = SendResult(SendStatus.SEND_OK, "id", "offset-id", MessageQueue("t", "b", 3), 7, 1)
    assert _line(result, False) == "id t b queue 3 offset 7"
    assert json.loads(_line(result, True)) == {
        "message_id": "id",
        "offset_message_id": "offset-id",
        "topic": "t",
        "broker": "b",
        "queue_id": 3,
        "queue_offset": 7,
        "status": "SEND_OK",
    }


@pytest.mark.parametrize(
    ("sent", "under_way", "said"),
    [
        (0, 0, ""), (0, 1, ""), (0, 2, "0 messages were acknowledged, up to 2 more may be"),
        (1, 0, "1 message was acknowledged"), (5000, 17, "5000 messages were acknowledged, up to 17 more may be"),
    ],
)  # fmt: skip
def test_one_that_ends_early_says_how_many_were_sent(sent: int, under_way: int, said: str) -> None:
    assert _done(sent, under_way) == said


def test_a_bad_line_after_many_is_answered_with_how_many_were_sent(
    rocketmq: LocalBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "lines").write_bytes(b"a\n" * SLICE_MESSAGES + b"b\n" + b"x" * (BODY_MAX_BYTES + 1))
    words = ["send", "-t", rocketmq.topic(), "--lines", "-f", str(tmp_path / "lines"), "-n", rocketmq.name_server]
    assert run(words, {}, tmp_path) == 2
    said = f"{SLICE_MESSAGES} messages were acknowledged: {tmp_path / 'lines'}, line {SLICE_MESSAGES + 2}: longer than"
    assert f"rocketcrew: {said}" in capsys.readouterr().err


def test_a_refusal_in_between_is_answered_with_how_many_may_have_been_sent(
    rocketmq: LocalBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["send", "-t", rocketmq.topic(), "a", "b", "c", "-n", rocketmq.name_server]
    with rocketmq.faults.refuse("SEND_MESSAGE_V2", response="NO_PERMISSION", times=None):
        assert run(words, {}, tmp_path) == 1
    said = capsys.readouterr().err
    assert "rocketcrew: 0 messages were acknowledged, up to 3 more may be: refused: planted by a test" in said


def test_lines_of_an_argument_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It would be one body with all of its lines."""
    assert run(["send", "-t", "orders", "--lines", "a\nb", "-n", "127.0.0.1:1"], {}, tmp_path) == 2
    assert "--lines goes with --file or stdin" in capsys.readouterr().err
