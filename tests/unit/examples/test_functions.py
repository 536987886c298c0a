"""The example handler, as a user would test his own: with a message made by hand."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

import rocketcrew
from rocketcrew.workers.message import make_message

PATH = Path(rocketcrew.__file__).parent / "examples" / "functions.py"

SOURCE = b'''
class Shop:
    def price(self, item, *, tax=0.2):
        """Price with tax."""
        if item and item.price:
            for part in item.parts:
                if part.free:
                    return 0
                elif part.old:
                    return 1
        return item.price * (1 + tax)

def outer():
    def inner(*args, **kwargs):
        while True:
            pass
    return inner
'''


def rows(body: bytes) -> list[dict[str, Any]]:
    spec = importlib.util.spec_from_file_location("functions", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return list(module.measure(make_message(body, topic="sources", tags="shop", keys="shop.main")))


def test_every_function_is_one_row() -> None:
    found = {row["function"]: row for row in rows(SOURCE)}
    assert list(found) == ["Shop.price", "outer", "outer.inner"]
    price = found["Shop.price"]
    assert price["module"] == "shop.main"
    assert price["package"] == "shop"
    assert (price["line"], price["length"]) == (3, 9)
    assert price["arguments"] == 3
    assert price["complexity"] == 1 + 1 + 1 + 1 + 1 + 1, "if, and, for, if, elif"
    assert price["nesting"] == 3, "if, for, if; elif stands beside its if"
    assert price["has_docstring"] is True
    assert found["outer"]["complexity"] == 1, "a loop of an inner function is the inner function's"
    assert found["outer.inner"]["arguments"] == 2


def test_what_does_not_parse_raises() -> None:
    with pytest.raises(SyntaxError):
        rows(b"def broken(:")
