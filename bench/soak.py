"""The full numbers for kills, messages, seeds and steps; CI runs each fault once and small.

    python bench/soak.py [--rounds 10] [--seeds 2000] [--steps 5000]

Each round runs every system fault test anew; then the simulation runs with many seeds. Ends with pytest's closing line.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def pytest(*arguments: str) -> int:
    """One run, its output ours."""
    return subprocess.run([sys.executable, "-Im", "pytest", "-q", *arguments], cwd=ROOT, check=False).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=2000)
    parser.add_argument("--steps", type=int, default=5000)
    options = parser.parse_args()
    faults = ("tests/system/test_faults.py", "tests/system/test_stop.py", "tests/system/test_loader.py")
    for number in range(options.rounds):
        print(f"== faults, round {number + 1} of {options.rounds}", flush=True)
        if code := pytest(*faults):
            return code
    print(f"== simulation, {options.seeds} seeds of {options.steps} steps", flush=True)
    return pytest(
        "tests/simulation", f"--sim-seeds={options.seeds}", f"--sim-steps={options.steps}", "-n", "2", "--timeout=0"
    )


if __name__ == "__main__":
    sys.exit(main())
