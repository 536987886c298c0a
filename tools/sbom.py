"""Write build/sbom.json: what an installation of the package with all of its extras consists of, as CycloneDX.

Versions and hashes are those of requirements.lock; what belongs to the package, and what only to its tests, is found by
following the installed metadata from the package on. CycloneDX's own tool writes the file; two runs give the same bytes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from importlib.metadata import requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from rocketcrew import __version__

ROOT = Path(__file__).resolve().parent.parent
NO_USE = {"dev"}
OUTPUT = ROOT / "build/sbom.json"


def locked() -> dict[str, str]:
    """Name -> the lines of its entry in the lock file."""
    entries: dict[str, str] = {}
    for line in (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith(("#", " ")):
            name = canonicalize_name(line.partition("==")[0])
        if not line.startswith("#"):
            entries[name] = entries.get(name, "") + line + "\n"
    return entries


def used() -> set[str]:
    """The names of all that the package needs on this Python, with every extra but those of its own checkout."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    waiting = [*project["dependencies"], *(line for extra in extras.keys() - NO_USE for line in extras[extra])]
    found: set[tuple[str, str]] = set()
    while waiting:
        needed = Requirement(waiting.pop())
        for extra in ("", *needed.extras):
            one = (canonicalize_name(needed.name), extra)
            if one not in found:
                found.add(one)
                # Of lines with a condition those that hold here, for this extra.
                lines = [line for line in requires(needed.name) or [] if _holds(Requirement(line), extra)]
                waiting += lines
    return {name for name, _ in found}


def _holds(needed: Requirement, extra: str) -> bool:
    return needed.marker is None or needed.marker.evaluate({"extra": extra})


def main() -> int:
    """0 when it was written. Fails for what is used and not locked."""
    entries, names = locked(), used()
    if missing := sorted(names - entries.keys()):
        print(f"not in requirements.lock: {', '.join(missing)}: add them to constraints.txt and run `make lock`")
        return 1
    OUTPUT.parent.mkdir(exist_ok=True)
    command = [Path(sys.executable).parent / "cyclonedx-py", "requirements", "--pyproject", "pyproject.toml"]
    command += ["--mc-type", "library", "--output-reproducible", "--validate", "--of", "JSON", "-o", OUTPUT, "-"]
    text = "".join(entries[name] for name in sorted(names))
    code = subprocess.run([str(word) for word in command], cwd=ROOT, input=text, text=True, check=False).returncode
    if code == 0:
        made = json.loads(OUTPUT.read_text(encoding="utf-8"))
        made["metadata"]["component"]["version"] = __version__  # which the tool does not find: it is read from the code
        OUTPUT.write_text(json.dumps(made, indent=2) + "\n", encoding="utf-8")
        print(f"{OUTPUT.relative_to(ROOT)}: {len(names)} components")
    return code


if __name__ == "__main__":
    sys.exit(main())
