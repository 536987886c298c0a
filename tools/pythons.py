"""The unit tests on every other Python from 3.11 on that this machine has: in PATH, or among pyenv's versions.

    pythons.py [VERSION ...]     such as 3.13; without one, each minor version once

Each has an environment of its own, .venv-3.13, made by tools/bootstrap.sh with the locked versions and kept.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OLDEST = (3, 11)
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


def passes(version: str, program: Path) -> bool:
    """Whether the unit tests pass on it; pytest has printed why not."""
    environment = ROOT / f".venv-{version}"
    print(f"--- Python {version}: {program}", flush=True)
    made = subprocess.run(
        ["sh", "tools/bootstrap.sh", environment, "spark,dev"],
        cwd=ROOT, env={**os.environ, "PYTHON": str(program)}, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    if made.returncode:
        return False
    spread = ["-n", str(max(1, min(8, len(os.sched_getaffinity(0)))))]
    command = [environment / "bin/python", "-Im", "pytest", "-q", "tests/unit", *spread, "-p", "no:cacheprovider"]
    return subprocess.run(command, cwd=ROOT, check=False, stdin=subprocess.DEVNULL).returncode == 0


def main() -> int:
    """0 when the tests pass on all that were asked for."""
    there = found()
    wanted = sys.argv[1:] or list(there)
    if missing := [version for version in wanted if version not in there]:
        print(f"not on this machine: {', '.join(missing)}; there are: {', '.join(there) or 'no others'}")
        return 2
    failed = [version for version in wanted if not passes(version, there[version])]
    ran = f"Python {', '.join(wanted)}" if wanted else f"no other Python here ({shutil.which('python3')} is this one)"
    print(f"--- unit tests on {ran}" + (f"; failed on {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
