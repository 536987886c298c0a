"""Subscription expressions: `tagA || tagB`, `*` (PR/filter/FilterAPI.java, buildSubscriptionData).

Users write a subscription as one text: `topic`, `topic:tagA || tagB`, or `topic:SQL92:a > 3 AND b = 'x'`. The type stands in
front of an expression as RocketMQ names it (ExpressionType.java), so a tag may not begin with `SQL92:`.
"""

from __future__ import annotations

from typing import NamedTuple

from .errors import UsageError
from .hashing import java_hash

SUB_ALL = "*"
EXPRESSION_TAG = "TAG"
EXPRESSION_SQL92 = "SQL92"


SQL_PREFIX = EXPRESSION_SQL92 + ":"


class FilterExpression(NamedTuple):
    """What of a topic is wanted: an expression and its type, TAG or SQL92 (MessageSelector.java)."""

    expression: str = SUB_ALL
    type: str = EXPRESSION_TAG

    def __str__(self) -> str:
        return SQL_PREFIX + self.expression if self.type == EXPRESSION_SQL92 else self.expression


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


def split_subscription(text: str) -> tuple[str, FilterExpression]:
    """(topic, filter) of `topic`, `topic:tags` or `topic:SQL92:expression`. Raises UsageError for a filter that is none."""
    topic, _, rest = text.partition(":")
    return topic.strip(), parse_filter(rest)


def parse_filter(text: str) -> FilterExpression:
    """`tagA || tagB`, `*`, nothing (everything), or `SQL92:expression`. Raises UsageError."""
    expression = text.strip()
    if expression[: len(SQL_PREFIX)].upper() != SQL_PREFIX:
        parse_subscription(expression)
        return FilterExpression(expression or SUB_ALL)
    sql = expression[len(SQL_PREFIX) :].strip()
    if not sql:
        raise UsageError(f"subscription {text!r} has no expression behind {SQL_PREFIX}")
    return FilterExpression(sql, EXPRESSION_SQL92)
