"""The code blocks of a page of docs/, as files: what a reader would copy is what runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"
_BLOCK = re.compile(r'^```python title="([\w.]+)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)
RUN_S = 240


def blocks_of(page: str) -> dict[str, str]:
    """File name -> text."""
    return dict(_BLOCK.findall((DOCS / page).read_text(encoding="utf-8")))


def run_pytest(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """pytest in that folder, with our plug-in and no other: whether it is installed as an entry point does not matter."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "pytest_rocketcrew", "-p", "no:cacheprovider", *words]
    env = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=RUN_S, check=False)
