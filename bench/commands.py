"""(k) What a command costs before it does anything: CPU and wall ms of `--help` of each, children of a run taken in turn.

Beside them "python" is the interpreter alone. CPU is user and system time of the process as the kernel counts it; commands
take turns in each run, the first of which only fills the caches, and medians are printed. To reach: 300 ms of CPU at most.

    python bench/commands.py [--runs 5] [lag send ...]
"""

from __future__ import annotations

import argparse
import os
import sys
import time

from measure import interruptible, median, report

from rocketcrew.cli.main import COMMANDS

CPU_MAX_MS = 300.0


def cost(words: list[str]) -> tuple[float, float]:
    """(CPU, wall) in ms of one process, which has to end well. Its output is thrown away."""
    begin = time.perf_counter()
    silent = (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)
    pid = os.posix_spawn(sys.executable, [sys.executable, *words], os.environ, file_actions=[silent])
    _, status, used = os.wait4(pid, 0)
    wall = time.perf_counter() - begin
    assert os.waitstatus_to_exitcode(status) == 0, f"{words} ended with {status}"
    return 1000 * (used.ru_utime + used.ru_stime), 1000 * wall


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commands", nargs="*", help="some of the commands; all by default")
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    interruptible()
    names: list[str] = options.commands or list(COMMANDS)
    cases = {"python": ["-c", "pass"], "rocketcrew": ["-m", "rocketcrew", "--help"]}
    cases |= {name: ["-m", "rocketcrew", name, "--help"] for name in names}
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in cases}
    for run in range(options.runs + 1):
        for name, words in cases.items():
            costs = cost(words)
            if run:
                found[name].append(costs)
    cpu_ms = {name: median(cpu for cpu, _ in costs) for name, costs in found.items()}
    report("commands", [
        {"command": name, "runs": options.runs, "cpu_ms": cpu_ms[name], "wall_ms": median(wall for _, wall in found[name])}
        for name in sorted(found, key=cpu_ms.__getitem__)
    ])  # fmt: skip
    over = [name for name, cpu in cpu_ms.items() if cpu > CPU_MAX_MS]
    print(f"over {CPU_MAX_MS:.0f} ms of CPU: {', '.join(over) or 'none'}; load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
