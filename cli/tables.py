"""What is printed for people: rows as lines of text under a head, and text that others chose."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence

from ..conf.visible import visible


def lines(rows: Sequence[Mapping[str, object]], widest: int = 0) -> Iterator[str]:
    """A line of names, then one a row; numbers to the right. Nothing for no rows, and in a column that a row does not have. A
    text of several lines stands in one, and of one that is longer than `widest` characters (0 = any) the begin."""
    if not rows:
        return
    names = list(dict.fromkeys(name for row in rows for name in row))
    values = [[row.get(name, "") for name in names] for row in rows]
    table = [[(in_one_line(value, widest), isinstance(value, (int, float))) for value in row] for row in values]
    heads = [seen(name) for name in names]
    widths = [max(len(head), *(len(cells[at][0]) for cells in table)) for at, head in enumerate(heads)]
    yield "  ".join(head.ljust(width) for head, width in zip(heads, widths, strict=True))
    for cells in table:
        yield "  ".join(
            text.rjust(width) if is_number else text.ljust(width)
            for (text, is_number), width in zip(cells, widths, strict=True)
        )


def in_one_line(value: object, widest: int = 0) -> str:
    """As text, of at most `widest` characters (0 = any) as they are shown."""
    text = seen("\\n".join(str(value).splitlines()))
    return f"{text[: widest - 1]}…" if 0 < widest < len(text) else text


def seen(text: str, *, err: bool = False) -> str:
    """What stdout (stderr with `err`) is given of a text that others chose: what a terminal would obey is shown instead."""
    stream = sys.stderr if err else sys.stdout
    return visible(text) if stream is not None and stream.isatty() else text
