"""Write requirements.lock: each version of constraints.txt with the hashes of all its files at the index.

constraints.txt is what people change, requirements.lock is what `make` installs the environment of tests from: a file with
another hash than that recorded here is refused by pip (tools/bootstrap.sh has the exception). A unit test holds
the two together.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEADER = "# Written by `make lock` from constraints.txt: the same versions, with the hashes of their files.\n"
PYTHON = "3.11.0"
"""The oldest that all of them support; versions are the same for newer ones."""


def main() -> int:
    """0 when the file was written; else uv has printed why not."""
    command = [
        Path(sys.executable).parent / "uv",
        "pip",
        "compile",
        "--quiet",
        "--no-header",
        "--no-annotate",
        "--no-deps",
    ]
    command += ["--universal", "--generate-hashes", "--python-version", PYTHON, "constraints.txt"]
    found = subprocess.run([str(word) for word in command], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if found.returncode == 0:
        (ROOT / "requirements.lock").write_text(HEADER + found.stdout, encoding="utf-8")
    return found.returncode


if __name__ == "__main__":
    sys.exit(main())
