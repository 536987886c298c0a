"""Dead letters: errors, groups, what is meant, and notes of what was done."""

from __future__ import annotations

from errno import ENOSPC
from pathlib import Path

import pytest

from rocketcrew.cli.letters import UNKNOWN, Letter, Notes, Wanted, groups, kind_of, whole
from rocketcrew.cli.messages import body_of, shown
from rocketcrew.remoting.errors import RocketcrewError, UsageError
from rocketcrew.remoting.properties import encode_properties
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.remoting.stored import StoredMessage

MQ = MessageQueue("%DLQ%billing", "broker-a", 0)


def letter(offset: int, *, done: str = "", body: bytes = b"x", **properties: str) -> Letter:
    given = {"UNIQ_KEY": f"id-{offset}", "RETRY_TOPIC": "orders", **properties}
    raw = encode_properties(given).encode()
    message = StoredMessage(
        MQ.topic, body, raw, queue_offset=offset, physical_offset=100 * offset, store_timestamp_ms=1_000 * offset
    )
    return Letter(MQ, message, done)


def test_an_error_and_its_line_are_read_from_what_the_member_recorded() -> None:
    one = letter(1, ROCKETCREW_ERROR="KeyError: 'price' (shop.py:7)")
    assert (one.error, one.line, one.topic) == ("KeyError: 'price' (shop.py:7)", "shop.py:7", "orders")
    crashed = letter(2, ROCKETCREW_DEATHS="3", ROCKETCREW_CAUSE="SIGSEGV")
    assert (crashed.error, crashed.line) == ("crashed 3 workers: SIGSEGV", "")
    assert letter(3).error == UNKNOWN


def test_the_origin_of_a_letter_that_a_5x_broker_made() -> None:
    message = StoredMessage(MQ.topic, b"x", encode_properties({"DLQ_ORIGIN_TOPIC": "refunds"}).encode())
    assert Letter(MQ, message).topic == "refunds"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ("KeyError: 'price' (shop.py:7)", "KeyError: '…'"),
        ("ValueError: order 17 has 0xfe items", "ValueError: order N has N items"),
        ('Refused: "a" is not "b" (x.py:1)', "Refused: '…' is not '…'"),
        ("TypeError", "TypeError"),
    ],
)
def test_errors_that_differ_in_values_are_of_one_kind(error: str, kind: str) -> None:
    assert kind_of(error) == kind


def test_groups_are_counted_with_their_times_and_an_example() -> None:
    found = [
        letter(1, ROCKETCREW_ERROR="KeyError: 'a' (shop.py:7)"),
        letter(2, ROCKETCREW_ERROR="ValueError: 2 (shop.py:9)"),
        letter(3, ROCKETCREW_ERROR="KeyError: 'b' (shop.py:7)"),
    ]
    by_error = groups(found, "error")
    assert [(row["COUNT"], row["ERROR"], row["EXAMPLE"]) for row in by_error] == [
        (2, "KeyError: '…'", "broker-a/0/1"), (1, "ValueError: N", "broker-a/0/2"),
    ]  # fmt: skip
    assert (by_error[0]["FIRST"], by_error[0]["LAST"]) == ("1970-01-01T00:00:01.000Z", "1970-01-01T00:00:03.000Z")
    assert [row["LINE"] for row in groups(found, "line")] == ["shop.py:7", "shop.py:9"]
    assert [row["COUNT"] for row in groups(found, "topic")] == [3]
    assert groups([], "error") == []


def test_every_condition_must_hold() -> None:
    one = letter(5, KEYS="o-1 o-2", ROCKETCREW_ERROR="KeyError: 'price' (shop.py:7)")
    assert Wanted().takes(one)
    for good in (
        Wanted(error="keyerror"), Wanted(line="shop.py:7"), Wanted(topic="orders"), Wanted(key="o-2"),
        Wanted(from_ms=5_000, to_ms=5_001), Wanted(names=("broker-a/0/5",)), Wanted(names=("id-5",)),
        Wanted(names=(one.message.offset_message_id,)),
    ):  # fmt: skip
        assert good.takes(one), good
    for bad in (
        Wanted(error="ValueError"), Wanted(line="shop.py:8"), Wanted(topic="order"), Wanted(key="o-"),
        Wanted(from_ms=5_001), Wanted(to_ms=5_000), Wanted(names=("id-6",)), Wanted(error="keyerror", key="o-3"),
    ):  # fmt: skip
        assert not bad.takes(one), bad


def test_what_was_done_is_left_out_unless_asked_for() -> None:
    assert not Wanted().takes(letter(1, done="replayed"))
    assert Wanted(done_too=True).takes(letter(1, done="replayed"))


def test_names_that_no_letter_has_are_listed() -> None:
    assert Wanted(names=("id-1", "id-9")).missing([letter(1)]) == ["id-9"]


def test_notes_are_found_again_and_are_not_those_of_another_message_there(tmp_path: Path) -> None:
    file = tmp_path / "dead-letters.jsonl"
    notes = Notes.read(file)
    notes.add(letter(1), "replayed")
    notes.add(letter(2), "purged")
    again = Notes.read(file)
    assert [again.of(MQ, letter(n).message) for n in (1, 2, 3)] == ["replayed", "purged", ""]
    assert again.of(MQ, letter(1, UNIQ_KEY="another").message) == ""


def test_half_a_last_line_counts_as_not_written_and_is_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "dead-letters.jsonl"
    Notes.read(file).add(letter(1), "replayed")
    with file.open("ab") as stream:
        stream.write(b'{"broker": "brok')
    notes = Notes.read(file)
    assert len(notes.done) == 1
    notes.add(letter(2), "replayed")
    assert len(Notes.read(file).done) == 2


def test_a_file_of_something_else_is_named(tmp_path: Path) -> None:
    file = tmp_path / "dead-letters.jsonl"
    for content in (b"hello\n", b'{"done": "\xff"}\n', b"\xff\xfe\n"):
        file.write_bytes(content)
        with pytest.raises(UsageError, match=r"dead-letters\.jsonl, line 1: not a note about a dead letter"):
            Notes.read(file)


def test_half_a_character_at_the_end_counts_as_not_written(tmp_path: Path) -> None:
    file = tmp_path / "dead-letters.jsonl"
    Notes.read(file).add(letter(1), "replayed")
    with file.open("ab") as stream:
        stream.write(b"\xc3")
    assert len(Notes.read(file).done) == 1


def test_a_file_that_cannot_grow_is_named_with_the_letter_and_nothing_counts_as_noted() -> None:
    notes = Notes(Path("/dev/full"))
    with pytest.raises(
        RocketcrewError, match=r"/dev/full cannot be written: No space left on device; letter broker-a/0/1 is not noted"
    ):
        notes.add(letter(1), "replayed")
    assert notes.done == {}


@pytest.mark.parametrize(
    ("body", "how", "seen"),
    [
        (b'{"a": 1}', "auto", {"a": 1}),
        (b'{"a": 1}', "text", '{"a": 1}'),
        (b"hello", "auto", "hello"),
        (b"\xff\xfe", "auto", "base64://4="),
        (b"\xff", "text", "\ufffd"),
        (b"\x01\xff", "hex", "01ff"),
        (b"ab", "base64", "YWI="),
        (b"ab", "none", None),
    ],
)
def test_bodies_in_each_format(body: bytes, how: str, seen: object) -> None:
    assert body_of(letter(1, body=body).message, how) == seen


def test_a_body_that_cannot_be_opened_is_shown_as_it_is_stored() -> None:
    message = StoredMessage("t", b"junk", sysflag=1)
    assert body_of(message, "auto") == "base64:anVuaw=="


def test_a_body_in_a_row_is_one_short_line() -> None:
    assert shown("a\n  b") == "a b"
    assert shown("x" * 300) == "x" * 199 + "…"
    assert shown({"a": 1}, None) == '{\n  "a": 1\n}'
    assert shown(None) == ""


def test_a_file_is_whole_or_not_there(tmp_path: Path) -> None:
    file, cut = tmp_path / "letters.jsonl", tmp_path / ".letters.jsonl.part"
    cut.write_text("of one that was killed")
    with pytest.raises(RocketcrewError, match=r"letters\.jsonl cannot be written: No space left"), whole(file) as half:
        half.write_text("{")
        raise OSError(ENOSPC, "No space left on device")
    assert list(tmp_path.iterdir()) == []
    with whole(file) as half:
        half.write_text("{}\n")
    assert [(path, path.read_text()) for path in tmp_path.iterdir()] == [(file, "{}\n")]


def test_a_file_that_somebody_makes_meanwhile_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "letters.jsonl"
    with pytest.raises(UsageError, match="exists already"), whole(file) as half:
        half.write_text("ours")
        file.write_text("theirs")
    assert [(path, path.read_text()) for path in tmp_path.iterdir()] == [(file, "theirs")]
