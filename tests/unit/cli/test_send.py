from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from rocketcrew.cli.commands.send import _bodies, _line, _numbered, _pair, _read, _repeated  # pyright: ignore[reportPrivateUsage]
from rocketcrew.client.outgoing import BODY_MAX_BYTES
from rocketcrew.client.producer import SendResult, SendStatus
from rocketcrew.remoting.errors import UsageError
from rocketcrew.remoting.queues import MessageQueue


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


def test_count_numbers_bodies_and_keys() -> None:
    assert list(_repeated([b"m{n}", b"x"], 2)) == [(b"m0", 0), (b"m1", 1), (b"x", 0), (b"x", 1)]
    assert list(_repeated([b"m{n}"], None)) == [(b"m{n}", None)]
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
