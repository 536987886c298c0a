"""Which messages of a queue a pull is for: by the hash of their tag, or by an SQL92 filter over their properties.

Tags are compared by hash alone, as the genuine broker does (PROTOCOL §5.8): clients compare the tags themselves once more.
The genuine broker has SQL92 switched off (enablePropertyFilter); this one always has it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from typing import NamedTuple

from ..remoting.errors import UsageError
from ..remoting.properties import decode_properties
from ..remoting.stored import record_info
from ..remoting.subscription import EXPRESSION_SQL92, EXPRESSION_TAG, parse_subscription
from .sql92 import EXPRESSION_CHARACTERS_MAX, compile_sql

COMPILED_MAX = 1024
compiled = lru_cache(maxsize=COMPILED_MAX)(compile_sql)


class Wanted(NamedTuple):
    """`codes` are tag hashes, None = all; `sql` looks at the properties, None = no look."""

    codes: frozenset[int] | None = None
    sql: Callable[[Mapping[str, str]], bool] | None = None

    def takes(self, tags_code: int, properties: Mapping[str, str]) -> bool:
        """Whether a message that was just stored is one of them."""
        if self.codes is not None and tags_code not in self.codes:
            return False
        return self.sql is None or self.sql(properties)

    def takes_record(self, record: bytes) -> bool:
        """The part of the answer that needs the record itself."""
        if self.sql is None:
            return True
        info = record_info(record)
        start = info.properties_start
        return self.sql(decode_properties(record[start : start + info.properties_len], strict=False))


EVERYTHING = Wanted()


def by_text(expression_type: str | None, text: str) -> Wanted:
    """What a request wants that brings an expression of its own. Raises UsageError as `by_expression`."""
    if expression_type not in (None, "", EXPRESSION_TAG):
        return by_expression(expression_type, text, ())
    _refuse_long(len(text))
    parsed = parse_subscription(text)
    return by_expression(EXPRESSION_TAG, parsed.sub_string, parsed.codes)


def by_expression(expression_type: str | None, sub_string: str, codes: Collection[int]) -> Wanted:
    """What a subscription wants. Raises UsageError for an expression that is wrong, too long or of an unknown kind."""
    if expression_type in (None, "", EXPRESSION_TAG):
        _refuse_long(max(len(sub_string), len(codes)))
        return EVERYTHING if sub_string == "*" else Wanted(frozenset(codes))
    if expression_type == EXPRESSION_SQL92:
        return Wanted(sql=compiled(sub_string))
    raise UsageError(f"The broker does not support consumer to filter message by {expression_type}")


def _refuse_long(length: int) -> None:
    """Each pull brings its expression along, or refers to it, and is looked at for each message: as with SQL92."""
    if length > EXPRESSION_CHARACTERS_MAX:
        raise UsageError(
            f"the tag expression has {length} characters; {EXPRESSION_CHARACTERS_MAX} are possible: subscribe to '*', or use "
            "fewer tags"
        )
