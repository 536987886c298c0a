"""The compressed body of REGISTER_BROKER 103 (PR/body/RegisterBrokerBody.java, CO/TopicConfig.java).

Deflated; inside, each part with its length before it (int32): the data version as JSON, the number of topics and each one as
words ("name read write perm filterType attributes-as-JSON"), the filter servers as JSON, and from 5.0 on the number of static
topics' mappings and each one as JSON. The words carry neither sysFlag nor order.
"""

from __future__ import annotations

import zlib

from .admin_bodies import DataVersion, RegisterBrokerBody, TopicConfig, TopicConfigTable
from .errors import ProtocolError
from .fastjson import is_object, loads

INFLATED_MAX_BYTES = 8 << 20  # of TOPICS_MAX: some 2 MB, more with attributes
TOPICS_MAX = 25_000
"""Of one registration, however it is written: taking them in is some 0.6 s, with nobody else served. An embedded broker has
20,000 when it is full, and more where what was stored before had to go somewhere (`BrokerState.make_topic`)."""
DEFLATED = b"\x78"
"""Its first byte; a plain body is a JSON object."""
_WHAT = "compressed registration"


class _Parts:
    """Reads parts one after the other."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self) -> int:
        return int.from_bytes(self._take(4), "big", signed=True)

    def part(self) -> bytes:
        return self._take(self.number())

    def _take(self, length_bytes: int) -> bytes:
        taken = self._data[self._at : self._at + max(length_bytes, 0)]
        if length_bytes < 0 or len(taken) < length_bytes:
            raise ProtocolError(f"a part of {length_bytes} bytes at {self._at} of {len(self._data)}", _WHAT)
        self._at += length_bytes
        return taken


def decode_compressed_registration(body: bytes) -> RegisterBrokerBody:
    """The topics and their version; mappings of static topics are passed over. Raises ProtocolError."""
    inflater = zlib.decompressobj()
    try:
        data = inflater.decompress(body, INFLATED_MAX_BYTES)
    except zlib.error as error:
        raise ProtocolError(f"cannot be inflated: {error}", _WHAT) from None
    if inflater.unconsumed_tail:
        raise ProtocolError(f"has more than {INFLATED_MAX_BYTES} bytes", _WHAT)
    parts = _Parts(data)
    version = DataVersion.decode(parts.part())
    count = parts.number()
    if not 0 <= count <= TOPICS_MAX:
        raise ProtocolError(f"{count} topics, of 0 to {TOPICS_MAX} that are possible", _WHAT)
    topics = [_topic(parts.part()) for _ in range(count)]
    return RegisterBrokerBody(TopicConfigTable({topic.topic_name: topic for topic in topics}, version))


def _topic(text: bytes) -> TopicConfig:
    words = text.decode(errors="replace").split(" ", 5)
    try:
        name, read, write, perm, filter_type = words[:5]
        numbers = int(read), int(write), int(perm)
    except ValueError:
        raise ProtocolError(f"{text!r:.200} is no topic", _WHAT) from None
    found: object = loads(words[5].encode(), _WHAT) if len(words) > 5 and words[5] else None
    attributes = {str(key): str(value) for key, value in found.items()} if is_object(found) else {}
    return TopicConfig(name, *numbers, topic_filter_type=filter_type, attributes=attributes)
