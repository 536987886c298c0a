"""Subscription expressions: `tagA || tagB`, `*` (PR/filter/FilterAPI.java, buildSubscriptionData)."""

from __future__ import annotations

from typing import NamedTuple

from .errors import UsageError
from .hashing import java_hash

SUB_ALL = "*"
EXPRESSION_TAG = "TAG"
EXPRESSION_SQL92 = "SQL92"


class Subscription(NamedTuple):
    """A parsed tag expression. Everything is subscribed when `tags` is empty."""

    sub_string: str
    tags: tuple[str, ...]
    codes: tuple[int, ...]


def parse_subscription(expression: str) -> Subscription:
    """Split at `||`, trim, drop empties; tags without repeats in the order given, codes are their Java hash codes.

    An empty expression is `*`: everything. Raises UsageError when only separators are given, as that means nothing.
    """
    if not expression.strip() or expression == SUB_ALL:
        return Subscription(SUB_ALL, (), ())
    tags = tuple(dict.fromkeys(tag for tag in (part.strip() for part in expression.split("||")) if tag))
    if not tags:
        raise UsageError(f"subscription {expression!r} names no tag: use '*' for everything, or 'tagA || tagB'")
    return Subscription(expression, tags, tuple(dict.fromkeys(java_hash(tag) for tag in tags)))
