"""What pyproject.toml cannot say: the README as a package index shows it, away from the files that it links to.

A relative link leads nowhere there. With `Source` in [project.urls] each becomes a link into that repository; without it, the
name of the file, which the sdist has too. tools/docs_pages.py does the same to links that leave the site.
"""

from __future__ import annotations

import platform
import posixpath
import re
from pathlib import Path

from setuptools import setup

try:
    import tomllib
except ModuleNotFoundError:  # pip runs this file before it reads requires-python
    raise SystemExit(f"rocketcrew needs Python 3.11 or newer; this is {platform.python_version()}") from None

ROOT = Path(__file__).resolve().parent
_FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?![a-z]+:|#)([^)\s]+)\)")


def source() -> str:
    """The address of the repository, without a slash at its end; empty where none is given."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return str(project.get("urls", {}).get("Source", "")).rstrip("/")


def published(text: str, address: str, folder: str = "", *, site: str = "\0") -> str:
    """The Markdown of a file in `folder` (relative to the checkout) for readers without one. Links to files below
    `site` stay as they are; blocks of code do too."""

    def link(found: re.Match[str]) -> str:
        image, words, target = found.groups()
        path = posixpath.normpath(posixpath.join(folder, target))
        if path.startswith(f"{site}/"):
            return found[0]
        if address:
            return f"{image}[{words}]({address}/{'raw' if image else 'blob'}/HEAD/{path})"
        file = path.partition("#")[0]
        named = words.replace("`", "").rstrip("/") == file
        return words if image else f"`{file}`" if named else f"{words} (`{file}`)"

    parts = _FENCED.split(text)
    return "".join(part if part.startswith("```") else _LINK.sub(link, part) for part in parts)


if __name__ == "__main__":
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    setup(long_description=published(readme, source()), long_description_content_type="text/markdown")
