"""Write build/sbom.json: what an installation of the package with all of its extras consists of, as CycloneDX.

Versions and hashes are those of requirements.lock; what belongs to the package, and what only to its tests, is found by
following the installed metadata from the package on, and so are licences and what needs what. CycloneDX's own tool writes the
components, and its validator reads the whole; two runs give the same bytes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from email.message import Message
from importlib.metadata import metadata, requires
from pathlib import Path
from typing import Any, cast

from cyclonedx.schema import SchemaVersion
from cyclonedx.spdx import fixup_id, is_expression
from cyclonedx.validation.json import JsonStrictValidator
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from rocketcrew import __version__

ROOT = Path(__file__).resolve().parent.parent
NO_USE = {"dev"}
PACKAGE = "rocketcrew"
NAME_MAX = 80
"""Longer is the whole text of a licence, which some put where its name belongs."""
OUTPUT = ROOT / "build/sbom.json"


def locked() -> dict[str, str]:
    """Name -> the lines of its entry in the lock file."""
    entries, name = dict[str, str](), ""
    for line in (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith(("#", " ")):
            name = canonicalize_name(line.partition("==")[0])
        if not line.startswith("#"):
            entries[name] = entries.get(name, "") + line + "\n"
    return entries


def needs() -> dict[str, set[str]]:
    """Name -> the names that it needs on this Python, from PACKAGE with every extra but those of its own checkout on."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    own = [*project["dependencies"], *(line for extra in extras.keys() - NO_USE for line in extras[extra])]
    graph: dict[str, set[str]] = {PACKAGE: set()}
    waiting, seen = [(PACKAGE, line) for line in own], set[tuple[str, str]]()
    while waiting:
        by, line = waiting.pop()
        needed = Requirement(line)
        name = canonicalize_name(needed.name)
        graph[by].add(name)
        graph.setdefault(name, set())
        for extra in ("", *needed.extras):
            if (name, extra) not in seen:
                seen.add((name, extra))
                # Of lines with a condition those that hold here, for this extra.
                waiting += [(name, each) for each in requires(name) or [] if _holds(Requirement(each), extra)]
    return graph


def _holds(needed: Requirement, extra: str) -> bool:
    return needed.marker is None or needed.marker.evaluate({"extra": extra})


def licences(found: Message) -> list[dict[str, Any]]:
    """What a distribution's metadata say, as CycloneDX has it: an expression of SPDX, which stands alone, or ids and names.

    The old field License and the classifiers both count: of two licences either may name one.
    """
    field = (found.get("License-Expression") or found.get("License") or "").strip()
    if field and is_expression(field) and not fixup_id(field):
        return [{"expression": field}]
    named = [field] if field.upper() not in {"", "UNKNOWN"} and len(field) <= NAME_MAX and "\n" not in field else []
    if "License-Expression" not in found:
        classifiers = found.get_all("Classifier") or []
        named += [line.rpartition(" :: ")[2] for line in classifiers if line.startswith("License :: ")]
    return [{"license": {"id": one} if (one := fixup_id(name)) else {"name": name}} for name in dict.fromkeys(named)]


def completed(made: dict[str, Any], graph: Mapping[str, set[str]]) -> dict[str, Any]:
    """What CycloneDX's tool made of lines of requirements, with licences and with what needs what."""
    root = made["metadata"]["component"]
    root["version"] = __version__  # which the tool does not find: it is read from the code
    refs = {PACKAGE: root["bom-ref"]}
    for component in made["components"]:
        about = cast("Message", metadata(component["name"]))
        refs[canonicalize_name(component["name"])] = component["bom-ref"]
        component["description"] = about.get("Summary") or component["name"]  # in place of the line with its hashes
        if terms := licences(about):
            component["licenses"] = terms
    made["dependencies"] = [
        {"ref": refs[name], "dependsOn": sorted(refs[each] for each in graph[name])} for name in sorted(graph)
    ]
    return made


def without_licence(made: dict[str, Any]) -> list[str]:
    """The names of the components that nobody could tell the terms of."""
    return [component["name"] for component in made["components"] if not component.get("licenses")]


def main(output: Path = OUTPUT) -> int:
    """0 when it was written. Fails for what is used and not locked, and for what CycloneDX does not allow."""
    entries, graph = locked(), needs()
    names = sorted(graph.keys() - {PACKAGE})
    if missing := [name for name in names if name not in entries]:
        print(f"not in requirements.lock: {', '.join(missing)}: add them to constraints.txt and run `make lock`")
        return 1
    output.parent.mkdir(exist_ok=True)
    # Not validated by the tool: it warns of the graph, which is not its to know.
    # As a module: an environment that sees the tool's package need not have its script.
    command = [sys.executable, "-m", "cyclonedx_py", "requirements", "--pyproject", "pyproject.toml"]
    command += ["--mc-type", "library", "--output-reproducible", "--no-validate", "--sv", "1.6", "--of", "JSON"]
    text = "".join(entries[name] for name in names)
    done = subprocess.run([*command, "-o", "-", "-"], cwd=ROOT, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stderr, file=sys.stderr)
        return done.returncode
    made = completed(json.loads(done.stdout), graph)
    if bare := without_licence(made):
        print(f"no licence in the metadata of: {', '.join(bare)}: look into their files")
    written = json.dumps(made, indent=2) + "\n"
    if fault := JsonStrictValidator(SchemaVersion.V1_6).validate_str(written):
        print(f"CycloneDX does not allow it: {fault}")
        return 1
    output.write_text(written, encoding="utf-8")
    print(f"{output}: {len(names)} components")
    return 0


if __name__ == "__main__":
    sys.exit(main())
