"""Frames: bytes in, commands out, and back. No I/O.

    int32 total length (of what follows it) | int8 serialization, int24 header length | header | body

Rules (RM/netty/{NettyDecoder,NettyEncoder}.java, PR/{RemotingCommand,RocketMQSerializable}.java):
- Each frame says how its own header is written; a server uses its own choice, so nothing is assumed from the request.
- A frame, length field included, has at most `FRAME_MAX` bytes. The length is judged as soon as it is read, so a lying
  peer cannot make us wait for, or reserve, more than that.
- A JSON header may carry unknown keys (ignored) and lack `extFields`. Every value of `extFields` is a string; numbers and
  booleans, as some clients write them, are taken as their text.
- A binary header has an int16 code, so codes above 32767 (the POP family) cannot be written in it: refused, not cut.
- What cannot be right raises one `ProtocolError`. The connection that sent it is to be closed: there is no way to find
  the start of the next frame.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from json.encoder import encode_basestring as _quoted
from json.scanner import make_scanner
from typing import Any, NamedTuple, cast

from .codes import Language
from .command import Command, PreparedHeader, Serialization
from .errors import ProtocolError, UsageError

FRAME_MAX = 16_777_216
HEAD_BYTES = 8
HEADER_MAX = 1 << 20  # real ones are below 40 KiB (properties end at 32,767 bytes); Java would read up to 16 MiB
HTTP2_SETTINGS = 4  # the type of a server's first frame there, in the fourth byte; then flags and stream, both 0
# A reader never holds more than one frame plus one read; twice a frame is a caller that feeds without taking.
BUFFER_MAX_BYTES = 2 * FRAME_MAX

Buffer = bytes | bytearray | memoryview

_HEAD = struct.Struct(">iI")
_BINARY_FIXED = struct.Struct(">hbhiii")
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT32_MIN, _INT32_MAX = -(1 << 31), (1 << 31) - 1
_INT16_MAX = (1 << 15) - 1
_LANGUAGES: dict[str, Language] = {language.name: language for language in Language}
_LANGUAGE_NAMES: dict[int, str] = {int(language): language.name for language in Language}
_DECODER = json.JSONDecoder()
_scan_json: Callable[[str, int], tuple[Any, int]] = make_scanner(cast("Any", _DECODER))
"""The C part of it alone, which takes no blanks around a value: half the time for a header."""
_OTHER = Language.OTHER
_JSON, _BINARY = Serialization.JSON, Serialization.ROCKETMQ


class FrameHead(NamedTuple):
    """The first eight bytes of a frame. `total_len` is the number on the wire: what follows the length field."""

    total_len: int
    serialization: Serialization
    header_len: int
    body_len: int


def parse_head(data: Buffer, at: int = 0) -> FrameHead:
    """Read the first `HEAD_BYTES` of the frame at `at`. Raises ProtocolError when no frame can begin like this."""
    if len(data) - at < HEAD_BYTES:
        raise ProtocolError(f"{len(data) - at} of {HEAD_BYTES} bytes", "frame head")
    total_len, word = _HEAD.unpack_from(data, at)
    kind, header_len = word >> 24, word & 0xFFFFFF
    if word == 0 and total_len > 0xFF and total_len & 0xFF == HTTP2_SETTINGS:
        raise ProtocolError(
            "the peer speaks HTTP/2: a gRPC port, as a RocketMQ 5 proxy in local mode names in its routes; reach that broker "
            "by its own name server, or a proxy in cluster mode by its remotingListenPort",
            "frame head",
        )
    if not 4 < total_len <= FRAME_MAX - 4:
        raise ProtocolError(f"length {total_len} is outside 5..{FRAME_MAX - 4}", "frame head")
    if kind > 1:
        raise ProtocolError(f"serialization {kind} is neither 0 (JSON) nor 1 (ROCKETMQ)", "frame head")
    if HEADER_MAX < header_len <= total_len - 4:
        raise ProtocolError(f"a header of {header_len} bytes (limit {HEADER_MAX})", "frame head")
    if not 0 < header_len <= total_len - 4:
        raise ProtocolError(f"header length {header_len} is outside 1..{total_len - 4}", "frame head")
    return FrameHead(total_len, _BINARY if kind else _JSON, header_len, total_len - 4 - header_len)


def decode_header(serialization: Serialization, header: Buffer) -> Command:
    """The command of a header, without its body. Raises ProtocolError naming what is wrong and where."""
    return _decode_binary(bytes(header)) if serialization else _decode_json(header)


def decode(frame: Buffer) -> Command:
    """The command of exactly one whole frame; its body is copied. Raises ProtocolError."""
    head = parse_head(frame)
    if head.total_len + 4 != len(frame):
        raise ProtocolError(f"{len(frame)} bytes, but the head says {head.total_len + 4}", "frame")
    view = memoryview(frame)
    command = decode_header(head.serialization, view[HEAD_BYTES : HEAD_BYTES + head.header_len])
    command.body = bytes(view[HEAD_BYTES + head.header_len :])
    return command


def encode_head(command: Command, body_len: int) -> bytes:
    """Everything of a frame but its body, which the caller sends after it (sendmsg, no copy).

    Raises UsageError when the command does not fit into a frame: too long, or numbers too large for the header.
    """
    if command.serialization:
        header = _encode_binary(command)
    else:
        header = _encode_json(command)
    header_len = len(header)
    total_len = 4 + header_len + body_len
    if total_len > FRAME_MAX - 4 or header_len > 0xFFFFFF:
        raise UsageError(f"a frame has at most {FRAME_MAX} bytes; this one has {total_len + 4} (header {header_len})")
    return _HEAD.pack(total_len, command.serialization << 24 | header_len) + header


def encode(command: Command) -> bytes:
    """One whole frame. Raises UsageError as `encode_head`."""
    head = encode_head(command, len(command.body))
    return b"".join((head, command.body)) if command.body else head


class FrameReader:
    """Bytes in by `feed`, commands out by `next`, in any split. Call `next` until it gives None after each feed."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._error: ProtocolError | None = None

    @property
    def buffered_bytes(self) -> int:
        return len(self._buffer)

    def feed(self, data: Buffer) -> None:
        """Add received bytes. Raises UsageError when fed on and on without `next` (more than BUFFER_MAX_BYTES)."""
        if len(self._buffer) + len(data) > BUFFER_MAX_BYTES:
            raise UsageError(f"a frame reader holds at most {BUFFER_MAX_BYTES} bytes; take frames with next() first")
        self._buffer += data

    def next(self) -> Command | None:
        """The next command, or None when more bytes are needed. After a ProtocolError it raises the same for ever."""
        if self._error is not None:
            raise self._error
        if len(self._buffer) < HEAD_BYTES:
            return None
        try:
            head = parse_head(self._buffer)
            end = head.total_len + 4
            if len(self._buffer) < end:
                return None
            with memoryview(self._buffer) as view:
                frame = bytes(view[HEAD_BYTES:end])
            command = decode_header(head.serialization, frame[: head.header_len])
        except ProtocolError as error:
            self._error = error
            self._buffer.clear()
            raise
        command.body = frame[head.header_len :]
        del self._buffer[:end]
        return command

    def finish(self) -> None:
        """The peer closed: raises ProtocolError when it did so inside a frame."""
        if self._error is None and self._buffer:
            self._error = ProtocolError(f"the stream ended after {len(self._buffer)} bytes of a frame", "frame")
            self._buffer.clear()
        if self._error is not None:
            raise self._error


def _decode_json(header: Buffer) -> Command:
    try:
        text = str(header, "utf-8")
        raw: Any = _parse_json(text)
    except RecursionError:
        raise ProtocolError("nested too deeply", "JSON header") from None
    except ValueError as error:  # JSONDecodeError, UnicodeDecodeError, and numbers of thousands of digits
        raise ProtocolError(f"not JSON: {error}", "JSON header") from None
    if raw.__class__ is not dict:
        raise ProtocolError(f"is a {type(raw).__name__}, not an object", "JSON header")
    values: dict[str, Any] = raw
    get = values.get
    code: Any = get("code")
    opaque: Any = get("opaque")
    flag: Any = get("flag", 0)
    version: Any = get("version", 0)
    if not code.__class__ is flag.__class__ is opaque.__class__ is version.__class__ is int or (
        (code | flag | opaque | version) >> 31 and not all(map(_is_int32, (code, flag, opaque, version)))
    ):
        raise _bad_numbers(values)
    fields: Any = get("extFields")
    if fields is None:
        fields = {}
    elif fields.__class__ is not dict:
        raise ProtocolError(f"extFields is a {type(fields).__name__}, not an object", "JSON header")
    else:
        for value in fields.values():
            if value.__class__ is not str:
                fields = _texts(fields)
                break
    remark = get("remark")
    if remark is not None and type(remark) is not str:
        raise ProtocolError(f"remark is a {type(remark).__name__}, not a string", "JSON header")
    language = get("language")
    language = _LANGUAGES.get(language, _OTHER) if type(language) is str else _OTHER
    if "\\u" in text and ("\\ud" in text or "\\uD" in text):  # the separators of properties are escapes too
        _refuse_lone_surrogates(remark, fields)
    return Command(code, fields, b"", opaque, flag, language, version, remark, _JSON)


def _parse_json(text: str) -> Any:
    """The value that the text is. Raises what `json` raises."""
    try:
        raw, end = _scan_json(text, 0)
        if end == len(text):
            return raw
    except StopIteration:
        pass  # blanks before it, or no JSON
    return _DECODER.decode(text)


def json_fields(items: Iterable[tuple[str, str]]) -> str:
    """Fields as they stand in a JSON header."""
    return ",".join([f"{_quoted(name)}:{_quoted(value)}" for name, value in items])


def prepare(code: int, fields: Mapping[str, str]) -> PreparedHeader:
    """For requests of that code whose first fields these are; each has at least one more."""
    plain = Command(code)
    first = json_fields(fields.items()) + "," if fields else ""
    return PreparedHeader(
        len(fields), _json_begin(code) + first, _json_middle(plain.flag, plain.language), "," + _json_end(plain.version)
    )


def _is_int32(value: int) -> bool:
    return _INT32_MIN <= value <= _INT32_MAX


def _bad_numbers(values: dict[str, Any]) -> ProtocolError:
    for name in ("code", "opaque", "flag", "version"):
        value = values.get(name)
        if value is None and name in ("flag", "version"):
            continue
        if type(value) is not int or not _is_int32(value):
            return ProtocolError(f"{name} is {value!r:.40}, not an int32", "JSON header")
    return ProtocolError("flag or version is null", "JSON header")


def _texts(fields: dict[str, Any]) -> dict[str, str]:
    """extFields as strings: fastjson reads numbers and booleans into a map of strings too; nulls are as if absent."""
    result: dict[str, str] = {}
    for name, value in fields.items():
        if isinstance(value, str):
            result[name] = value
        elif isinstance(value, bool):
            result[name] = "true" if value else "false"
        elif isinstance(value, int | float):
            result[name] = str(value)
        elif value is not None:
            raise ProtocolError(f"extFields[{name!r:.40}] is a {type(value).__name__}, not a string", "JSON header")
    return result


def _refuse_lone_surrogates(remark: str | None, fields: dict[str, str]) -> None:
    """Half a surrogate pair, written as an escape, is no character: it would fail far from here when encoded."""
    try:
        (remark or "").encode()
        "".join(fields).encode()
        "".join(fields.values()).encode()
    except UnicodeEncodeError:
        raise ProtocolError("holds half of a surrogate pair", "JSON header") from None


def _encode_json(command: Command) -> bytes:
    """Keys in Java's (alphabetical) order; `extFields` always there, as some readers dereference it unasked.

    Written out here: one is made for each pull, and `json` takes twice as long for the same text.
    """
    prepared = command.prepared
    try:
        if prepared is None or command.flag or command.remark is not None:
            return _json_text(command).encode()
        length, before, between, after = prepared
        own = json_fields(islice(command.fields.items(), length, None))
        return f"{before}{own}{between}{command.opaque:d}{after}".encode()
    except (TypeError, ValueError) as error:
        raise UsageError(f"command {command.code} cannot be written as a JSON header: {error}") from None


def _json_text(command: Command) -> str:
    remark = "" if command.remark is None else f'"remark":{_quoted(command.remark)},'
    return (
        f"{_json_begin(command.code)}{json_fields(command.fields.items())}{_json_middle(command.flag, command.language)}"
        f"{command.opaque:d},{remark}{_json_end(command.version)}"
    )


def _json_begin(code: int) -> str:
    return f'{{"code":{code:d},"extFields":{{'


def _json_middle(flag: int, language: int) -> str:
    return f'}},"flag":{flag:d},"language":"{_LANGUAGE_NAMES.get(language, "OTHER")}","opaque":'


def _json_end(version: int) -> str:
    return f'"serializeTypeCurrentRPC":"JSON","version":{version:d}}}'


def _decode_binary(header: bytes) -> Command:
    size = len(header)
    if size < 21:
        raise ProtocolError(f"{size} bytes, but the fixed part has 21", "binary header")
    code, language, version, opaque, flag, remark_len = _BINARY_FIXED.unpack_from(header)
    position = 17 + remark_len + 4
    if remark_len < 0 or position > size:
        raise ProtocolError(f"remark length {remark_len} does not fit into {size} bytes", "binary header, byte 13")
    try:
        remark = str(header[17 : position - 4], "utf-8") if remark_len else None
        (fields_len,) = _INT32.unpack_from(header, position - 4)
        if position + fields_len != size:
            raise ProtocolError(
                f"extFields length {fields_len}, but {size - position} bytes follow",
                f"binary header, byte {position - 4}",
            )
        fields = _decode_fields(header, position, size)
    except UnicodeDecodeError as error:
        raise ProtocolError(f"not UTF-8: {error}", "binary header") from None
    return Command(code, fields, b"", opaque, flag, language, version, remark, _BINARY)


def _decode_fields(header: bytes, position: int, size: int) -> dict[str, str]:
    fields: dict[str, str] = {}
    while position < size:
        if position + 2 > size:
            raise ProtocolError("a field name's length is cut off", f"binary header, byte {position}")
        start = position + 2
        end = start + int.from_bytes(header[position:start], "big", signed=True)
        if end < start or end + 4 > size:
            raise ProtocolError(f"field name length {end - start} does not fit", f"binary header, byte {position}")
        name = str(header[start:end], "utf-8")
        start = end + 4
        position = start + int.from_bytes(header[end:start], "big", signed=True)
        if position < start or position > size:
            raise ProtocolError(
                f"value length {position - start} of {name!r:.40} does not fit", f"binary header, byte {end}"
            )
        fields[name] = str(header[start:position], "utf-8")
    return fields


def _encode_binary(command: Command) -> bytes:
    if not -_INT16_MAX - 1 <= command.code <= _INT16_MAX:
        raise UsageError(f"code {command.code} does not fit into a binary header (int16): send this command with JSON")
    try:
        parts: list[bytes] = []
        for name, value in command.fields.items():
            key, text = name.encode(), value.encode()
            parts += (_INT16.pack(len(key)), key, _INT32.pack(len(text)), text)
        fields = b"".join(parts)
        remark = (command.remark or "").encode()
        return b"".join(
            (
                _BINARY_FIXED.pack(
                    command.code, command.language, command.version, command.opaque, command.flag, len(remark)
                ),
                remark,
                _INT32.pack(len(fields)),
                fields,
            )
        )
    except (ValueError, struct.error) as error:
        raise UsageError(f"command {command.code} cannot be written as a binary header: {error}") from None
