"""Write the section `## File map` of ARCHITECTURE.md anew: each file of each room with the first line it says of itself.

The page is for readers who do not know yet where to look; tests/test_tidy.py fails when a file is missing in it.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "ARCHITECTURE.md"
ROOMS = ("cli", "engine", "supervisor", "workers", "broker", "spark", "source", "client", "conf", "remoting")
BESIDE = ("bench", "tools")
HEADING = "## File map"
INTRODUCTION = "Written by `tools/file_map.py` from the first sentence of each file; from the top floor down."


def about(file: Path) -> str:
    """The first sentence of a module's docstring, or of the leading comment of another file."""
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".py":
        said = (ast.get_docstring(ast.parse(text)) or "").partition("\n\n")[0]
    else:
        comment = re.match(r"((?:#.*\n)+)", text.removeprefix(text[: text.find("#")] if "#" in text else ""))
        lines = re.sub(r"^(?:#!.*|# ?)", "", comment[1], flags=re.MULTILINE) if comment else ""
        said = lines.strip().partition("\n\n")[0]
    sentence = re.split(r"(?<=[.!?])\s", " ".join(said.split()), maxsplit=1)[0]
    return re.sub(r"\s*\([^()]*(?:\.java|[A-Z]{2}/)[^()]*\)", "", sentence).rstrip(".")


def section() -> str:
    lines = [HEADING, "", INTRODUCTION]
    for room in (*ROOMS, *BESIDE):
        lines += ["", f"### {room}/", ""]
        for file in sorted((ROOT / room).iterdir()):
            if file.is_file() and file.name != "__init__.py":
                lines.append(f"- `{room}/{file.name}`: {about(file)}")
    return "\n".join(lines) + "\n"


def main() -> int:
    page = PAGE.read_text(encoding="utf-8")
    before, heading, after = page.partition(f"\n{HEADING}\n")
    rest = after.partition("\n## ")
    following = f"\n## {rest[2]}" if heading and rest[1] else ""
    PAGE.write_text(f"{before.rstrip()}\n\n{section()}{following}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
