"""SQL92 filters over the properties of messages, in the genuine broker's grammar (filter/.../SelectorParser.jj and
filter/.../expression/*.java).

From loose to tight: OR, AND, then `= <> IS [NOT] NULL`, then `> >= < <= [NOT] BETWEEN .. AND .., [NOT] IN ('a', ..),
[NOT] CONTAINS/STARTSWITH/ENDSWITH 'x'`, then unary `+ - NOT`. No LIKE, no arithmetic. Key words in any case, `--` and
`/* */` are comments. Literals: 'text' ('' is a quote in it), whole numbers (perhaps with an L), floating ones, TRUE, FALSE,
NULL.

Logic has three values: a property that is missing is null, and a result that is null is not delivered. Properties are
texts: beside a number they are read as a number of that literal's kind, and one that does not read so is an error, which
is not delivered either. Two properties are ordered as numbers.

A parsed filter is a function from properties to a value, made of small functions like it.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from ..remoting.errors import UsageError

Value = bool | str | int | float | None
Evaluate = Callable[[Mapping[str, str]], Value]
EXPRESSION_CHARACTERS_MAX = 16_384
DEPTH_MAX = 64  # of parentheses and unary operators, while it is read
NESTED_MAX = 100  # of calls, while it is evaluated: a chain of OR or AND is one, however long
_INT_MAX = 2**31 - 1
_LONG_MAX = 2**63 - 1
_LONG_DIGITS_MAX = len(str(_LONG_MAX))

_TOKEN = re.compile(
    r"""\s+|--[^\r\n]*(?:\r\n|\r|\n|$)|/\*.*?\*/
    |(?P<text>'(?:''|[^'])*')
    |(?P<float>\d+\.\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)
    |(?P<int>(?:0|[1-9]\d*)[lL]?)
    |(?P<name>[A-Za-z_$][A-Za-z0-9_$]*)
    |(?P<sign><>|>=|<=|[=<>()+,-])""",
    re.VERBOSE | re.DOTALL,
)
_WORDS = frozenset(
    ["NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS", "CONTAINS", "STARTSWITH", "ENDSWITH"]
)
_ORDER: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le,
}  # fmt: skip
_TEXT_TESTS: dict[str, Callable[[str, str], bool]] = {
    "CONTAINS": operator.contains, "STARTSWITH": str.startswith, "ENDSWITH": str.endswith,
}  # fmt: skip
_JAVA_FLOAT = re.compile(r"\s*[+-]?(?:NaN|Infinity|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?[fFdD]?)\s*")


class EvaluationError(Exception):
    """A value that cannot be compared: the message is not delivered."""


class Token(NamedTuple):
    kind: str
    text: str
    at: int


class Node(NamedTuple):
    """A parsed part. `kind`: "constant", "property", "boolean" (gives true, false or null), "number"."""

    kind: str
    evaluate: Evaluate
    value: Value = None
    depth: int = 0


def compile_sql(expression: str) -> Callable[[Mapping[str, str]], bool]:
    """Whether a message with these properties is wanted. Raises UsageError saying where the expression is wrong."""
    if len(expression) > EXPRESSION_CHARACTERS_MAX:
        raise UsageError(f"the SQL92 expression has more than {EXPRESSION_CHARACTERS_MAX} characters")
    evaluate = _Parser(_tokens(expression)).whole().evaluate

    def wanted(properties: Mapping[str, str]) -> bool:
        try:
            return evaluate(properties) is True
        except EvaluationError:
            return False

    return wanted


def _tokens(expression: str) -> list[Token]:
    found: list[Token] = []
    at = 0
    while at < len(expression):
        match = _TOKEN.match(expression, at)
        if match is None:
            raise UsageError(f"SQL92: nothing begins with {expression[at]!r}, at character {at + 1}")
        kind, text = match.lastgroup, match[0]
        if kind == "name" and text.upper() in _WORDS:
            found.append(Token(text.upper(), text, at))
        elif kind == "sign":
            found.append(Token(text, text, at))
        elif kind is not None:
            found.append(Token(kind, text, at))
        at = match.end()
    return [*found, Token("end", "the end", len(expression))]


class _Parser:
    """Recursive descent, one method a line of the grammar."""

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._at = 0
        self._depth = 0

    @property
    def _next(self) -> str:
        return self._tokens[self._at].kind

    def _take(self, kind: str) -> Token:
        token = self._tokens[self._at]
        if token.kind != kind:
            raise self._wrong(f"{kind} is expected")
        self._at += 1
        return token

    def _skip(self, kind: str) -> bool:
        if self._next == kind:
            self._at += 1
            return True
        return False

    def _wrong(self, what: str) -> UsageError:
        token = self._tokens[self._at]
        return UsageError(f"SQL92: {what} at character {token.at + 1}, where {token.text!r} stands")

    def whole(self) -> Node:
        node = self._boolean(self._or())
        if self._next != "end":
            raise self._wrong("an operator is expected")
        return node

    def _boolean(self, node: Node) -> Node:
        if node.kind == "property":
            return Node("boolean", _cast(node.evaluate), depth=node.depth + 1)
        if node.kind == "boolean" or (node.kind == "constant" and (node.value is None or isinstance(node.value, bool))):
            return node
        raise self._wrong("what stands before will not result in a boolean value")

    def _or(self) -> Node:
        terms = [self._and()]
        while self._skip("OR"):
            terms[-1] = self._boolean(terms[-1])
            terms.append(self._boolean(self._and()))
        return terms[0] if len(terms) == 1 else self._nested(_either(*(term.evaluate for term in terms)), *terms)

    def _and(self) -> Node:
        terms = [self._equality()]
        while self._skip("AND"):
            terms[-1] = self._boolean(terms[-1])
            terms.append(self._boolean(self._equality()))
        return terms[0] if len(terms) == 1 else self._nested(_both(*(term.evaluate for term in terms)), *terms)

    def _nested(self, evaluate: Evaluate, *parts: Node) -> Node:
        """A part that gives true, false or null, made of others."""
        depth = 1 + max(part.depth for part in parts)
        if depth > NESTED_MAX:
            raise self._wrong(f"the expression is nested deeper than {NESTED_MAX} levels")
        return Node("boolean", evaluate, depth=depth)

    def _equality(self) -> Node:
        left = self._comparison()
        while self._next in ("=", "<>", "IS"):
            parts: tuple[Node, ...]
            if self._skip("IS"):
                negated = self._skip("NOT")
                self._take("NULL")
                test, parts = _is_null(left.evaluate), (left,)
            else:
                negated = self._next == "<>"
                self._at += 1
                right = self._comparison()
                for node in (left, right):
                    if node.kind == "constant" and node.value is None:
                        raise self._wrong("NULL cannot be compared: use IS NULL")
                test, parts = _equal(left.evaluate, right.evaluate), (left, right)
            left = self._nested(_negated(test) if negated else test, *parts)
        return left

    def _comparison(self) -> Node:
        left = self._unary()
        while True:
            negated = self._next == "NOT" and self._tokens[self._at + 1].kind in ("BETWEEN", "IN", *_TEXT_TESTS)
            if self._tokens[self._at + negated].kind not in (*_ORDER, "BETWEEN", "IN", *_TEXT_TESTS):
                return left
            self._at += negated
            left = self._nested(self._test(left, self._tokens[self._at].kind, negated), left)

    def _test(self, left: Node, kind: str, negated: bool) -> Evaluate:
        self._at += 1
        if kind in _ORDER:
            return _ordered(kind, self._orderable(left), self._orderable(self._unary()))
        if kind == "BETWEEN":
            return self._between(left, negated)
        if kind == "IN":
            return self._in(left, negated)
        return _text_test(left.evaluate, _TEXT_TESTS[kind], self._text(), negated)

    def _orderable(self, node: Node) -> Evaluate:
        if node.kind == "boolean" or (node.kind == "constant" and type(node.value) not in (int, float)):
            raise self._wrong("what stands before cannot be compared: only numbers and properties have an order")
        return node.evaluate

    def _between(self, value: Node, negated: bool) -> Evaluate:
        low = self._unary()
        self._take("AND")
        high = self._unary()
        subject, first, last = (self._orderable(node) for node in (value, low, high))
        if low.kind == high.kind == "constant" and not negated and _number(low.value) > _number(high.value):
            raise self._wrong("the left value of BETWEEN must be less than or equal to the right one")
        if negated:
            return _either(_ordered("<", subject, first), _ordered(">", subject, last))
        return _both(_ordered(">=", subject, first), _ordered("<=", subject, last))

    def _in(self, left: Node, negated: bool) -> Evaluate:
        if left.kind != "property":
            raise self._wrong("a property is expected before IN")
        self._take("(")
        texts = {self._text()}
        while self._skip(","):
            texts.add(self._text())
        self._take(")")
        return _in_texts(left.evaluate, frozenset(texts), negated)

    def _unary(self) -> Node:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise self._wrong(f"the expression is nested deeper than {DEPTH_MAX} levels")
        try:
            if self._skip("+"):
                return self._unary()
            if self._skip("-"):
                inner = self._unary()
                return Node("number", _negative(inner.evaluate), depth=inner.depth + 1)
            if self._skip("NOT"):
                inner = self._boolean(self._unary())
                return self._nested(_negated(inner.evaluate), inner)
            return self._primary()
        finally:
            self._depth -= 1

    def _primary(self) -> Node:
        if self._skip("("):
            node = self._or()
            self._take(")")
            return node
        token = self._tokens[self._at]
        if token.kind == "name":
            self._at += 1
            return Node("property", operator.methodcaller("get", token.text))
        return self._literal()

    def _literal(self) -> Node:
        value: Value
        if self._next == "text":
            value = self._text()
        elif self._next == "int":
            digits = self._take("int").text.rstrip("lL")  # of too many Python makes no number
            value = int(digits) if len(digits) <= _LONG_DIGITS_MAX else _LONG_MAX + 1
            if value > _LONG_MAX:
                raise self._wrong(f"{digits:.100} is too large")
        elif self._next == "float":
            value = float(self._take("float").text)
        elif self._next in ("TRUE", "FALSE", "NULL"):
            value = {"TRUE": True, "FALSE": False, "NULL": None}[self._next]
            self._at += 1
        else:
            raise self._wrong("a property, a literal or ( is expected")
        return Node("constant", _constant(value), value)

    def _text(self) -> str:
        return self._take("text").text[1:-1].replace("''", "'")


def _constant(value: Value) -> Evaluate:
    def constant(properties: Mapping[str, str]) -> Value:
        del properties
        return value

    return constant


def _cast(inner: Evaluate) -> Evaluate:
    # The property of a message is a text and never a boolean: present is false, and missing is null.
    return lambda properties: None if (value := inner(properties)) is None else value is True


def _either(*terms: Evaluate) -> Evaluate:
    def either(properties: Mapping[str, str]) -> Value:
        value: Value = False
        for term in terms:
            one = term(properties)
            if one:
                return True
            if one is None:
                value = None
        return value

    return either


def _both(*terms: Evaluate) -> Evaluate:
    def both(properties: Mapping[str, str]) -> Value:
        value: Value = True
        for term in terms:
            one = term(properties)
            if one is False:
                return False
            if one is None:
                value = None
        return value

    return both


def _negated(inner: Evaluate) -> Evaluate:
    return lambda properties: None if (value := inner(properties)) is None else not value


def _negative(inner: Evaluate) -> Evaluate:
    def negative(properties: Mapping[str, str]) -> Value:
        value = inner(properties)
        return -value if type(value) in (int, float) else None  # type: ignore[operator]

    return negative


def _is_null(inner: Evaluate) -> Evaluate:
    return lambda properties: inner(properties) is None


def _equal(left: Evaluate, right: Evaluate) -> Evaluate:
    def equal(properties: Mapping[str, str]) -> Value:
        one, other = left(properties), right(properties)
        if one is None or other is None:
            return None if one is None else False
        one, other = _alike(one, other)
        return type(one) is type(other) and one == other

    return equal


def _ordered(sign: str, left: Evaluate, right: Evaluate) -> Evaluate:
    order = _ORDER[sign]

    def ordered(properties: Mapping[str, str]) -> Value:
        one, other = left(properties), right(properties)
        if one is None or other is None:
            return None
        if isinstance(one, str) and isinstance(other, str):
            return order(_as_float(one), _as_float(other))
        one, other = _alike(one, other)
        return order(_number(one), _number(other))

    return ordered


def _text_test(inner: Evaluate, test: Callable[[str, str], bool], search: str, negated: bool) -> Evaluate:
    def tested(properties: Mapping[str, str]) -> Value:
        value = inner(properties)
        # Also with NOT: what has no such property, and a search for nothing, is false.
        return bool(search) and isinstance(value, str) and test(value, search) is not negated

    return tested


def _in_texts(inner: Evaluate, texts: frozenset[str], negated: bool) -> Evaluate:
    return lambda properties: None if (value := inner(properties)) is None else (value in texts) is not negated


def _alike(one: Value, other: Value) -> tuple[Value, Value]:
    """A text beside something else is read as that kind of thing. Raises EvaluationError."""
    if isinstance(one, str) and not isinstance(other, str):
        return _read_as(other, one), other
    if isinstance(other, str) and not isinstance(one, str):
        return one, _read_as(one, other)
    if type(one) is not type(other) and not isinstance(one, bool) and not isinstance(other, bool):
        return _number(one), _number(other)
    return one, other


def _read_as(like: Value, text: str) -> Value:
    if isinstance(like, bool):
        return text.lower() == "true"
    if isinstance(like, float):
        return _as_float(text)
    limit = _INT_MAX if abs(_number(like)) <= _INT_MAX else _LONG_MAX
    if not re.fullmatch(r"[+-]?[0-9]{1,19}", text) or not -limit - 1 <= int(text) <= limit:
        raise EvaluationError(text)
    return int(text)


def _as_float(text: str) -> float:
    if not _JAVA_FLOAT.fullmatch(text):
        raise EvaluationError(text)
    return float(text.strip().rstrip("fFdD") if not text.strip().endswith(("NaN", "Infinity")) else text)


def _number(value: Value) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value
    raise EvaluationError(repr(value))
