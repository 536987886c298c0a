"""Rows as lines of text: a head, and columns as wide as they need to be. And numbers of things in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence


def lines(rows: Sequence[Mapping[str, object]]) -> Iterator[str]:
    """A line of names, then one a row; numbers to the right. Nothing for no rows."""
    if not rows:
        return
    names = list(rows[0])
    widths = [max(len(name), *(len(str(row[name])) for row in rows)) for name in names]
    yield "  ".join(name.ljust(width) for name, width in zip(names, widths, strict=True))
    for row in rows:
        cells = ((row[name], width) for name, width in zip(names, widths, strict=True))
        yield "  ".join(
            str(value).rjust(width) if isinstance(value, (int, float)) else str(value).ljust(width)
            for value, width in cells
        )


def counted(number: int, what: str) -> str:
    """`1 row`, `2 rows`."""
    return f"{number} {what}{'' if number == 1 else 's'}"
