"""The unit tests on every other Python from 3.11 on that this machine has: in PATH, or among pyenv's versions.

    pythons.py [VERSION ...]     such as 3.13; without one, each minor version once
    pythons.py lowest            this Python, with the lowest version that pyproject.toml allows of each dependency

Each has an environment of its own, .venv-3.13, made by tools/bootstrap.sh with the locked versions and kept. Locked versions
are new ones: what a lower bound promises, `lowest` alone tries. It takes from the index what goes with them, without a lock.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
UV = Path(sys.executable).parent / "uv"
OLDEST = (3, 11)
LOWEST = "lowest"
NOT_TOGETHER = {"dev", "delta-spark", "iceberg-spark"}
"""Extras that want another pyspark than the others, and the one that no user installs."""
TEST_TOOLS = ("hypothesis", "pip", "pydantic", "pytest", "pytest-timeout", "pytest-xdist", "trustme")
"""With their own newest versions: what they want is not what users have."""
SAME_VERSION = "opentelemetry-sdk"
"""A tool that wants what users have in its own version."""
LOWEST_TESTS = ("client", "conf", "crew", "durable", "remoting", "source", "spark", "testing", "workers")
"""Rooms below tests/unit; the others test what is no part of the package, too."""
ASK_MAX_S = 30


def candidates() -> Iterable[Path]:
    """Programs that may be a Python."""
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        if Path(folder).is_dir():
            yield from (one for one in Path(folder).iterdir() if re.fullmatch(r"python3\.\d+", one.name))
    yield from (Path.home() / ".pyenv/versions").glob("3.*/bin/python3.*")


def version_of(program: Path) -> tuple[int, int] | None:
    """None for what does not run; a shim of pyenv whose version is not chosen is there and fails."""
    look = "import sys; print(*sys.version_info[:2])"
    try:
        asked = subprocess.run(
            [program, "-Ic", look],
            capture_output=True,
            text=True,
            timeout=ASK_MAX_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = asked.stdout.split()
    return (int(found[0]), int(found[1])) if asked.returncode == 0 and len(found) == 2 else None


def found() -> dict[str, Path]:
    """Version -> program, without the version that runs this."""
    pythons: dict[tuple[int, int], Path] = {}
    for program in candidates():
        if re.fullmatch(r"python3\.\d+", program.name) and (version := version_of(program)) and version >= OLDEST:
            pythons.setdefault(version, program)
    return {".".join(map(str, one)): pythons[one] for one in sorted(pythons) if one != sys.version_info[:2]}


def ran(*command: str | Path, python: Path | None = None) -> bool:
    """Whether it ended well; what fails has printed why."""
    env = {**os.environ, "PYTHON": str(python)} if python else None
    return subprocess.run(command, cwd=ROOT, env=env, check=False, stdin=subprocess.DEVNULL).returncode == 0


def made_of_lowest(environment: Path) -> bool:
    """Anew each time: uv keeps what is there and fits. The tools come last, so that they lift nothing."""
    python = environment / "bin/python"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    of_extras = project["optional-dependencies"]
    extras = [f"--extra={extra}" for extra in of_extras if extra not in NOT_TOGETHER]
    same = [line for line in of_extras["dev"] if line.startswith(SAME_VERSION)]
    install = (UV, "pip", "install", "--quiet", "--python", python)
    return (
        ran(UV, "venv", "--quiet", "--clear", "--python", sys.executable, environment)
        and ran(*install, "--resolution", "lowest-direct", "-r", "pyproject.toml", *extras, *same)
        and ran(*install, *TEST_TOOLS)
        and ran(*install, "--no-deps", "-e", ".")
    )


def passes(version: str, program: Path) -> bool:
    """Whether the unit tests pass on it; pytest has printed why not."""
    environment = ROOT / f".venv-{version}"
    print(f"--- Python {version}: {program}", flush=True)
    if version == LOWEST:
        made, tests = made_of_lowest(environment), [f"tests/unit/{part}" for part in LOWEST_TESTS]
    else:
        made, tests = ran("sh", "tools/bootstrap.sh", environment, "spark,dev", python=program), ["tests/unit"]
    spread = ["-n", str(max(1, min(8, len(os.sched_getaffinity(0)))))]
    return made and ran(environment / "bin/python", "-Im", "pytest", "-q", *tests, *spread, "-p", "no:cacheprovider")


def main() -> int:
    """0 when the tests pass on all that were asked for."""
    there = found()
    wanted = sys.argv[1:] or list(there)
    there[LOWEST] = Path(sys.executable)  # only when asked for: another's release must not fail an unchanged commit
    if missing := [version for version in wanted if version not in there]:
        print(f"not on this machine: {', '.join(missing)}; there are: {', '.join(there)}")
        return 2
    failed = [version for version in wanted if not passes(version, there[version])]
    tried = f"Python {', '.join(wanted)}" if wanted else f"no other Python here ({shutil.which('python3')} is this one)"
    print(f"--- unit tests on {tried}" + (f"; failed on {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
