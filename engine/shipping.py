"""The handler's code on its way to executors.

A handler that is named by its import path is imported there. What its module and everything it had imported by then have
in the same folder (that of the `sys.path` entry it was found in) is zipped and sent along by `addPyFile`; what is installed
(site-packages) is expected to be installed on every node, as rocketcrew itself is. Modules that are imported later, inside
of a function, and data files do not travel: name them by engine.py_files, or install them.
"""

from __future__ import annotations

import hashlib
import sys
import sysconfig
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from ..remoting.errors import UsageError


def root_of(module: ModuleType) -> Path | None:
    """The folder from which `module` is imported, None when it is installed, built in or has no file."""
    name, file = module.__name__, getattr(module, "__file__", None)
    if not file:
        return None
    path = Path(file).absolute()
    above = name.count(".") + (2 if path.name == "__init__.py" else 1)
    root = path.parents[above - 1]
    return None if is_installed(root) else root


def is_installed(folder: Path) -> bool:
    """Whether modules of this folder are found on every node where the same things are installed."""
    paths = sysconfig.get_paths()
    installed = {Path(paths[name]).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    resolved = folder.resolve()
    return resolved.name == "site-packages" or any(resolved == one or one in resolved.parents for one in installed)


def files_below(root: Path, modules: Iterable[ModuleType]) -> dict[str, Path]:
    """The source files of those modules that lie below `root`, by their place in it; packages' `__init__.py` included."""
    found: dict[str, Path] = {}
    for module in modules:
        file = getattr(module, "__file__", None)
        path = Path(file).absolute() if file else None
        if path is None or path.suffix != ".py" or root not in path.parents or is_installed(path.parent):
            continue
        if module.__name__ == "__main__" or module.__name__.partition(".")[0] == __name__.partition(".")[0]:
            continue
        found[str(path.relative_to(root))] = path
        for package in path.relative_to(root).parents:
            init = root / package / "__init__.py"
            if str(package) != "." and init.exists():
                found[str(init.relative_to(root))] = init
    return found


def make_zip(files: Mapping[str, Path], folder: Path) -> Path | None:
    """A zip of these files, named by what is in it; None when there are none."""
    if not files:
        return None
    digest = hashlib.sha256()
    for name, path in sorted(files.items()):
        digest.update(name.encode() + b"\0" + path.read_bytes() + b"\0")
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"handler-{digest.hexdigest()[:16]}.zip"
    draft = target.with_suffix(".new")
    draft.unlink(missing_ok=True)
    # Made anew at each start: what has the name already may have been put there by somebody else.
    with zipfile.ZipFile(draft, "x", zipfile.ZIP_DEFLATED) as archive:
        for name, path in sorted(files.items()):
            archive.write(path, name)
    draft.replace(target)
    return target


def ship(context: Any, module_name: str | None, py_files: Iterable[str], folder: Path) -> list[str]:
    """Send the code of an imported handler, and `py_files`, to all executors; what was sent. Raises UsageError."""
    sent = [str(file) for file in py_files]
    for file in sent:
        if "://" not in file and not Path(file).exists():
            raise UsageError(f"engine.py_files: {file} does not exist")
    module = sys.modules.get(module_name or "")
    root = root_of(module) if module is not None else None
    if root is not None:
        made = make_zip(files_below(root, list(sys.modules.values())), folder)
        sent += [str(made)] if made is not None else []
    for file in sent:
        context.addPyFile(file)
    return sent
