"""The code blocks of a page of docs/, as files, and its commands: what a reader would copy is what runs."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"
_BLOCK = re.compile(r'^```(?:python|sql) title="([\w.]+)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)
RUN_S = 240


def blocks_of(page: str) -> dict[str, str]:
    """File name -> text."""
    return dict(_BLOCK.findall((DOCS / page).read_text(encoding="utf-8")))


def swapped(text: str, own: Mapping[str, str], *, back: bool = False) -> str:
    """A page's text with this test's own names for what it names, longer ones first; or `back`."""
    pairs = [(tests, pages) if back else (pages, tests) for pages, tests in own.items()]
    for there, wanted in sorted(pairs, key=lambda pair: -len(pair[0])):
        text = text.replace(there, wanted)
    return text


def shell_lines(page: Path) -> Iterator[tuple[dict[str, str], list[str]]]:
    """Of each `rocketcrew …` in the page's shell blocks the settings before it, and the words after it."""
    for block in re.findall(r"^```sh\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if "rocketcrew" in words:
                at = words.index("rocketcrew")
                yield dict(word.split("=", 1) for word in words[:at]), words[at + 1 :]


def run_pytest(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """pytest in that folder, with our plug-in and no other: whether it is installed as an entry point does not matter."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "pytest_rocketcrew", "-p", "no:cacheprovider", *words]
    env = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=RUN_S, check=False)
