"""A file beside a script that is imported in place of a module that is needed, such as a `queue.py`. It is looked for
in what is loaded, after an import or a call has failed. This imports nothing that is not there from Python's start."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from types import ModuleType

from .needed_modules import in_the_way, is_elsewhere


def imported(module: str, package: str) -> ModuleType:
    """As `import_module`; raises ImportError that names the user's file, where one is why it cannot be imported."""
    try:
        return import_module(module, package)
    except Exception as error:
        hidden = hidden_module()
        if not hidden:
            raise
        raise ImportError(f"{hidden} ({type(error).__name__}: {error})") from error


def hidden_module() -> str:
    """The sentence for the first module that the program needs, that was loaded from the script's folder, and that another
    place of the path has too; empty where there is none. Whether that is why something failed is a guess: tell the error
    too."""
    folder = os.path.realpath(sys.path[0] if sys.path else "")
    others = [entry for entry in sys.path if entry and os.path.realpath(entry) != folder]
    for name in in_the_way(sys.modules):
        file = getattr(sys.modules[name], "__file__", None)
        if not isinstance(file, str):
            continue
        place = os.path.dirname(file) if os.path.basename(file) == "__init__.py" else file
        if os.path.realpath(os.path.dirname(place)) == folder and is_elsewhere(name, others):
            return (
                f"{place} hides the module {name}: with its folder first on the path, every import of {name} gets it."
                " Rename it, or move the script to another folder"
            )
    return ""
