"""Which modules a worker can import, and where it looks for them.

The current directory counts as importable, as with gunicorn.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import cast


def search_path() -> list[str]:
    """`sys.path` as a worker needs it: the current directory in front unless it is there, no relative entries, and none that
    is no text, which Python passes over."""
    here, path = os.getcwd(), cast("list[object]", sys.path)
    entries = [entry or here for entry in path if isinstance(entry, str)]
    return entries if here in entries else [here, *entries]


def is_importable(module: ModuleType) -> bool:
    """Whether a worker that imports the module by its name, with our search path, gets this file. Nothing is imported."""
    if module.__name__ == "__main__" or not getattr(module, "__file__", None):
        return False
    parts = module.__name__.split(".")
    where: list[str] = search_path()
    found: ModuleSpec | None = None
    for count in range(1, len(parts) + 1):
        name = ".".join(parts[:count])
        finders = [finder for finder in sys.meta_path if hasattr(finder, "find_spec")]
        found = next((spec for finder in finders if (spec := finder.find_spec(name, where)) is not None), None)
        if found is None:
            return False
        where = list(found.submodule_search_locations or ())
    if found is None or not found.has_location:
        return found is not None  # of the interpreter's own
    return os.path.realpath(found.origin or "") == os.path.realpath(module.__file__ or "")
