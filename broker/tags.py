"""The tags code of messages, by which a consume queue's entry lets pulls pass over what they do not want."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from ..remoting.hashing import java_hash
from ..remoting.properties import PROPERTY_TAGS
from ..remoting.stored import StoredMessage

TAGS_KEPT_MAX: Final = 128
"""Characters; the tags that people give are shorter, and clients may send them at any length."""
_short_tags_hash = lru_cache(maxsize=4096)(java_hash)


def tags_hash(tags: str) -> int:
    """Java's hash of tags that are not empty."""
    return _short_tags_hash(tags) if len(tags) <= TAGS_KEPT_MAX else java_hash(tags)


def message_tags_code(message: StoredMessage) -> int:
    """The tags code of an ordinary message: the Java hash of its tag, 0 without one."""
    tags = message.properties.get(PROPERTY_TAGS)
    return tags_hash(tags) if tags else 0
