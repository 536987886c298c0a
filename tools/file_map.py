"""Print the file map: each file of each room with the first line it says of itself, from the top floor down."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROOMS = (
    "testing",
    "crew",
    "cli",
    "engine",
    "supervisor",
    "workers",
    "broker",
    "spark",
    "source",
    "client",
    "durable",
    "conf",
    "remoting",
)
BESIDE = ("bench", "tools")


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


def main() -> int:
    for room in (*ROOMS, *BESIDE):
        for folder in sorted({file.parent for file in (ROOT / room).rglob("*.*") if "__pycache__" not in file.parts}):
            print(f"\n{folder.relative_to(ROOT)}/\n")
            for file in sorted(folder.iterdir()):
                if file.is_file() and file.name != "__init__.py":
                    print(f"  {file.name}: {about(file)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
