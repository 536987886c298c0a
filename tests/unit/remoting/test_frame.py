from __future__ import annotations

import json
import pickle
from contextlib import suppress
from struct import pack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketcrew.remoting.codes import Language, RequestCode, ResponseCode
from rocketcrew.remoting.command import Command, Serialization
from rocketcrew.remoting.errors import ProtocolError, UsageError
from rocketcrew.remoting.frame import (
    BUFFER_MAX_BYTES,
    FRAME_MAX,
    FrameReader,
    decode,
    decode_header,
    encode,
    encode_head,
    parse_head,
    prepare,
)

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
int32 = st.integers(-(1 << 31), (1 << 31) - 1)
int16 = st.integers(-(1 << 15), (1 << 15) - 1)
commands = st.builds(
    Command,
    code=int16,
    fields=st.dictionaries(texts, texts, max_size=6),
    body=st.binary(max_size=50),
    opaque=int32,
    flag=int32,
    language=st.sampled_from(Language),
    version=int16,
    remark=st.none() | texts.filter(bool),
    serialization=st.sampled_from(Serialization),
)


def json_frame(header: bytes, body: bytes = b"") -> bytes:
    return pack(">ii", 4 + len(header) + len(body), len(header)) + header + body


def binary_frame(header: bytes) -> bytes:
    return pack(">iI", 4 + len(header), 1 << 24 | len(header)) + header


@settings(max_examples=150)
@given(commands)
def test_round_trip(command: Command) -> None:
    assert decode(encode(command)) == command


@settings(max_examples=100)
@given(st.lists(commands, max_size=5), st.data())
def test_any_split_gives_the_same_commands(wanted: list[Command], data: st.DataObject) -> None:
    stream = b"".join(encode(command) for command in wanted)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    reader, got = FrameReader(), list[Command]()
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        reader.feed(stream[start:end])
        while (command := reader.next()) is not None:
            got.append(command)
    reader.finish()
    assert got == wanted


@settings(max_examples=200)
@given(commands, st.data())
def test_a_changed_frame_is_a_command_or_one_typed_error(command: Command, data: st.DataObject) -> None:
    frame = bytearray(encode(command))
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(frame) - 1))
        frame[position] = data.draw(st.integers(0, 255))
    reader = FrameReader()
    reader.feed(frame)
    with suppress(ProtocolError):
        reader.next()
        reader.finish()
    assert reader.buffered_bytes == 0


@settings(max_examples=100)
@given(st.sampled_from(Serialization), st.binary(max_size=80))
def test_junk_headers(serialization: Serialization, header: bytes) -> None:
    with suppress(ProtocolError):
        decode_header(serialization, header)


@given(commands, st.integers(0, 6))
def test_prepared_fields_are_written_as_any_others(command: Command, count: int) -> None:
    command.fields |= {"the last": "one"}
    command.language, command.version = Command(0).language, Command(0).version
    first = dict(list(command.fields.items())[: min(count, len(command.fields) - 1)])
    for flag, remark in ((command.flag, command.remark), (0, None)):
        command.flag, command.remark, command.prepared = flag, remark, None
        plain = encode(command)
        command.prepared = prepare(command.code, first)
        assert encode(command) == plain


def test_views_are_as_good_as_bytes() -> None:
    command = Command(RequestCode.PULL_MESSAGE, {"topic": "t"}, memoryview(bytearray(b"body")), opaque=3)
    frame = encode(command)
    assert decode(memoryview(bytearray(frame))) == decode(frame)
    assert decode(frame).body == b"body"


def test_head_lengths_are_judged_before_anything_is_awaited() -> None:
    for total in (-1, 0, 4, FRAME_MAX - 3, 0x7FFFFFFF):
        with pytest.raises(ProtocolError, match="length"):
            parse_head(pack(">iI", total, 1))
    assert parse_head(pack(">iI", FRAME_MAX - 4, 1)).body_len == FRAME_MAX - 9
    with pytest.raises(ProtocolError, match="serialization 2"):
        parse_head(pack(">iI", 100, 2 << 24 | 10))
    for header_len in (0, 97, 0xFFFFFF):
        with pytest.raises(ProtocolError, match="header length"):
            parse_head(pack(">iI", 100, header_len))
    with pytest.raises(ProtocolError, match="a gRPC port"):
        parse_head(b"\0\0\x12\4\0\0\0\0\0")
    with pytest.raises(ProtocolError, match="7 of 8"):
        parse_head(b"1234567")
    with pytest.raises(ProtocolError, match="the head says"):
        decode(encode(Command(1)) + b"x")


def test_tls_or_http_on_the_port_is_a_typed_error() -> None:
    for junk in (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"GET / HTTP/1.1\r\n\r\n"):
        reader = FrameReader()
        reader.feed(junk)
        with pytest.raises(ProtocolError):
            reader.next()


def test_a_broken_reader_stays_broken() -> None:
    reader = FrameReader()
    reader.feed(json_frame(b"nonsense"))
    for _ in range(2):
        with pytest.raises(ProtocolError, match="not JSON"):
            reader.next()
    reader.feed(encode(Command(1)))
    with pytest.raises(ProtocolError, match="not JSON"):
        reader.next()
    with pytest.raises(ProtocolError, match="not JSON"):
        reader.finish()


def test_an_end_inside_a_frame_is_no_silent_end() -> None:
    reader = FrameReader()
    reader.feed(encode(Command(1))[:-1])
    assert reader.next() is None
    with pytest.raises(ProtocolError, match="ended after"):
        reader.finish()


def test_a_reader_that_is_only_fed_is_bounded() -> None:
    reader, piece = FrameReader(), bytes(BUFFER_MAX_BYTES // 4)
    for _ in range(4):
        reader.feed(piece)
    with pytest.raises(UsageError, match="at most"):
        reader.feed(b"x")


@pytest.mark.parametrize(
    ("header", "wrong"),
    [
        (b"", "length 4 "),
        (b"[]", "is a list"),
        (b"{}", "code is None"),
        (b'{"code":1}', "opaque is None"),
        (b'{"code":"1","opaque":1}', "code is '1'"),
        (b'{"code":true,"opaque":1}', "code is True"),
        (b'{"code":1,"opaque":2147483648}', "opaque is 2147483648"),
        (b'{"code":1,"opaque":1,"flag":1.5}', "flag is 1.5"),
        (b'{"code":1,"opaque":1,"version":null}', "null"),
        (b'{"code":1,"opaque":' + b"9" * 5000 + b"}", "not JSON"),
        (b'{"code":1,"opaque":1,"extFields":[]}', "extFields is a list"),
        (b'{"code":1,"opaque":1,"extFields":{"a":{}}}', r"extFields\['a'\] is a dict"),
        (b'{"code":1,"opaque":1,"remark":5}', "remark is a int"),
        (b'{"code":1,"opaque":1,"remark":"\xff"}', "not JSON"),
        (b'{"code":1,"opaque":1,"remark":"\xed\xa0\x80"}', "not JSON"),
        (b'{"code":1,"opaque":1,"remark":"\\ud800"}', "surrogate"),
        (b'{"code":1,"opaque":1,"extFields":{"\\ud800":"x"}}', "surrogate"),
        (b'{"code":1,"opaque":1} x', "not JSON"),
        (b"[" * 200_000, "nested too deeply"),
        (b"\xfe\xff\x00{\x00}", "not JSON"),
    ],
)
def test_bad_json_headers(header: bytes, wrong: str) -> None:
    with pytest.raises(ProtocolError, match=wrong):
        decode(json_frame(header))


def test_a_json_header_may_be_sparse_or_have_more() -> None:
    command = decode(json_frame(b' {"code":9,"opaque":-1,"language":"KLINGON","x":{"y":[1]}} ', b"b"))
    assert command == Command(9, {}, b"b", -1, 0, Language.OTHER, 0)
    command = decode(json_frame(b'{"code":9,"opaque":1,"extFields":{"a":1,"b":true,"c":null,"d":"x","e":1.5}}'))
    assert command.fields == {"a": "1", "b": "true", "d": "x", "e": "1.5"}
    command = decode(json_frame(b'{"code":9,"opaque":1,"remark":"\\ud83d\\ude80","language":"GO","extFields":null}'))
    assert (command.remark, command.language, command.fields) == ("🚀", Language.GO, {})


def test_json_header_as_java_writes_it() -> None:
    frame = encode(Command(105, {"topic": "t"}, opaque=7, remark="é\n"))
    header = frame[8:].decode()
    assert header == (
        '{"code":105,"extFields":{"topic":"t"},"flag":0,"language":"PYTHON","opaque":7,'
        '"remark":"é\\n","serializeTypeCurrentRPC":"JSON","version":513}'
    )
    assert list(json.loads(header)) == sorted(json.loads(header))


FIXED = pack(">hbhiii", 11, 3, 475, 1, 0, 0)


@pytest.mark.parametrize(
    ("header", "wrong"),
    [
        (FIXED, "17 bytes"),
        (pack(">hbhiiii", 11, 3, 475, 1, 0, -1, 0), "remark length -1"),
        (pack(">hbhiiii", 11, 3, 475, 1, 0, 5, 0), "remark length 5"),
        (pack(">hbhiiii", 11, 3, 475, 1, 0, 0x7FFFFFFF, 0), "remark length"),
        (FIXED + pack(">i", 1), "extFields length 1"),
        (FIXED + pack(">i", -1), "extFields length -1"),
        (FIXED + pack(">i", 0) + b"x", "extFields length 0"),
        (FIXED + pack(">i", 1) + b"x", "cut off"),
        (FIXED + pack(">ih", 2, 0), "name length 0"),
        (FIXED + pack(">ihi", 6, -1, 0), "name length -1"),
        (FIXED + pack(">ih1si", 7, 1, b"a", 1), "value length 1 of 'a'"),
        (FIXED + pack(">ih1si", 7, 1, b"a", -1), "value length -1 of 'a'"),
        (FIXED + pack(">ih1si", 7, 1, b"\xff", 0), "UTF-8"),
        (pack(">hbhiii1si", 11, 3, 475, 1, 0, 1, b"\xff", 0), "UTF-8"),
    ],
)
def test_bad_binary_headers(header: bytes, wrong: str) -> None:
    with pytest.raises(ProtocolError, match=wrong) as caught:
        decode(binary_frame(header))
    assert "binary header" in caught.value.where


def test_what_cannot_be_written_is_refused() -> None:
    with pytest.raises(UsageError, match="send this command with JSON"):
        encode(Command(RequestCode.POP_MESSAGE, serialization=Serialization.ROCKETMQ))
    assert decode(encode(Command(RequestCode.POP_MESSAGE))).code == 200050
    with pytest.raises(UsageError, match="at most 16777216 bytes"):
        encode_head(Command(1), FRAME_MAX)
    with pytest.raises(UsageError, match="at most 16777216 bytes"):
        encode(Command(1, {"a": "x" * FRAME_MAX}))
    for serialization in Serialization:
        with pytest.raises(UsageError, match="cannot be written"):
            encode(Command(1, {"a": "\ud800"}, serialization=serialization))
    with pytest.raises(UsageError, match="cannot be written"):
        encode(Command(1, {"a" * 40_000: ""}, serialization=Serialization.ROCKETMQ))


def test_the_largest_frame_passes() -> None:
    head = encode_head(Command(1), 0)
    body = bytes(FRAME_MAX - len(head))
    frame = encode(Command(1, body=body))
    assert len(frame) == FRAME_MAX
    assert decode(frame).body == body


def test_answers() -> None:
    request = Command(11, {"a": "b"}, opaque=9, language=Language.JAVA, serialization=Serialization.ROCKETMQ)
    answer = request.response(ResponseCode.PULL_NOT_FOUND, {"c": "d"}, b"x", "no")
    assert answer.is_response
    assert not answer.is_oneway
    assert (answer.code, answer.opaque, answer.fields, answer.body, answer.remark) == (19, 9, {"c": "d"}, b"x", "no")
    assert (answer.serialization, answer.language) == (Serialization.ROCKETMQ, Language.PYTHON)
    assert Command(15, flag=2).is_oneway
    assert pickle.loads(pickle.dumps(answer)) == answer
