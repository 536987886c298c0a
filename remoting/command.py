"""One remoting command: what a frame says, whichever way its header was written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from .codes import FLAG_ONEWAY, FLAG_RESPONSE, VERSION, Language


class Serialization(IntEnum):
    """How a header is written (PR/SerializeType.java). 4.9 answers as it was asked, 5.x in its own way, whatever it was
    asked in; what a broker sends of its own accord is in its own way with both."""

    JSON = 0
    ROCKETMQ = 1


class PreparedHeader(NamedTuple):
    """The JSON header of requests that begin with the same `length` fields and have others after them, in three pieces of
    text: before those others, between them and the opaque, and after it. Of pulls of one queue most never changes."""

    length: int
    before: str
    between: str
    after: str


@dataclass(slots=True)
class Command:
    """A request or response (PR/RemotingCommand.java).

    `code` is a `RequestCode` of a request and a `ResponseCode` of a response. `fields` are the extFields: all strings.
    `opaque` matches a response to its request; each side counts its own, so a table of pending ones is keyed by direction.
    `dropped` says that the receiver had no room for the body: it was read and thrown away, and `body` is empty.
    """

    code: int
    fields: dict[str, str] = field(default_factory=dict[str, str])
    body: bytes | bytearray | memoryview = b""
    opaque: int = 0
    flag: int = 0
    language: int = Language.PYTHON
    version: int = VERSION
    remark: str | None = None
    serialization: Serialization = Serialization.JSON
    dropped: bool = False
    prepared: PreparedHeader | None = None
    """Set by who knows that the request has this code, our language and version, and fields that begin with these; a binary
    header, and one with a flag or a remark, is written of the rest of the command alone."""

    @property
    def is_response(self) -> bool:
        return self.flag & FLAG_RESPONSE != 0

    @property
    def is_oneway(self) -> bool:
        """Nothing may be sent back."""
        return self.flag & FLAG_ONEWAY != 0

    def response(
        self,
        code: int,
        fields: Mapping[str, str] | None = None,
        body: bytes | bytearray | memoryview = b"",
        remark: str | None = None,
    ) -> Command:
        """The answer to this request: same opaque and serialization, the response flag, our language and version."""
        return Command(
            code=code,
            fields=dict(fields) if fields else {},
            body=body,
            opaque=self.opaque,
            flag=FLAG_RESPONSE,
            remark=remark,
            serialization=self.serialization,
        )
