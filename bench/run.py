"""All benchmarks one after the other, as `make bench` does; arguments are passed to none: see each file's own options."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ALL = (
    "throughput", "efficiency", "coroutines", "pool", "uneven", "latency", "loader", "source", "table", "commits", "scale",
    "commands", "java", "broker",
)  # fmt: skip


def main() -> int:
    chosen = sys.argv[1:] or list(ALL)
    for name in chosen:
        if name not in ALL:
            print(f"{name} is not a benchmark: choose of {', '.join(ALL)}", file=sys.stderr)
            return 2
    for name in chosen:
        print(f"\n== {name}", flush=True)
        code = subprocess.run([sys.executable, str(HERE / f"{name}.py")], cwd=HERE, check=False).returncode
        if code:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
