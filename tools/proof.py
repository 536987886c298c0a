"""Measures what stands behind the promises; `make proof` runs it. Writes docs/proof.json and docs/proof.md.

    proof.py [--only SECTION ...] [--minutes 15] [--render]     and sizes: --seeds, --steps, --kills, --messages, ...

Each section is one or more commands that anybody can run by themselves. Its results are kept in docs/proof.json with the
date, the commit and the machine that they are from, so a section that is not run this time keeps the stamp of its last run.
The page is made of that file and of nothing else; `--render` writes it without a measurement. A section is kept only when
all of its commands have ended by themselves; a failure is kept, is on the page, and ends this program with 1. What needs
java and mvn is left out where they are missing. No more than `--minutes` in all: what has no time left is named, and keeps
its last result.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FIGURES = ROOT / "docs/proof.json"
PAGE = ROOT / "docs/proof.md"
PYTEST = "python -Im pytest -q"
CALIBRATION_NUMBERS = 1_000_000
CALIBRATION_RUNS = 5


@dataclass(frozen=True)
class Run:
    """One command. `command`: a template over the sizes; `rows`: what it writes to bench/results/, by name, and"
    " how a row is said."""

    what: str
    command: str
    rows: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Section:
    """What is shown, by which commands. `needs`: programs on the PATH. `quiet`: needs cores to spare."""

    title: str
    about: str
    runs: Sequence[Run]
    needs: Sequence[str] = ()
    quiet: bool = False


SIZES = {
    "seeds": (50, "of the simulation"),
    "steps": (2_000, "events of each seed while faults happen"),
    "kills": (40, "of random workers under load"),
    "loader-kills": (8, "of the loader, for each kind of table"),
    "messages": (500, "of each fault on genuine servers"),
    "pairs": (1, "alternating runs of each ratio"),
    "backlog": (1_200_000, "messages of each run beside Java's consumer, so that Java has compiled what it runs"),
    "stall-limit-s": (30, "longest time without progress after a kill; the time that was seen is in the line"),
}
"""Small by default, so that a quarter of an hour does for the whole page on two idle cores."""

SECTIONS = {
    "simulation": Section(
        "Simulation",
        "Supervisors and a broker run in one thread from a seed, without clock or sockets, while faults happen at"
        " random. After every step the invariants are checked: no offset passes what is unfinished, no row is lost,"
        " nothing is twice.",
        [Run("Seeds, steps and faults",
             PYTEST + " tests/simulation/test_simulation.py --sim-seeds={seeds} --sim-steps={steps} -n 2 --timeout=0")],
    ),
    "planted": Section(
        "Planted bugs",
        "A simulation that finds nothing proves nothing. So known bugs are put into the code, one at a time, and an"
        " invariant must find each of them; the same world without the bug must be sound.",
        [Run("Each planted bug is found", PYTEST + " tests/simulation/test_planted.py -n 2 --timeout=0")],
    ),
    "kills": Section(
        "Kills of workers",
        "Real processes, `kill -9` of random workers at random instants under load. Every message has to be in the"
        " results once, and a death is charged to the message in hand or to nobody.",
        [Run("kill -9 of workers", "python bench/kills.py --kills={kills} --stall-limit-s={stall-limit-s}")],
    ),
    "loader": Section(
        "Kills of the loader",
        "`kill -9` of the loader at named points of its steps and at random moments. The table has to be exact"
        " afterwards. `naive` is the control: it remembers nothing, so rows must be there twice, or the test would"
        " not bite.",
        [Run("kill -9 of the loader", "python bench/loader_kills.py --kills={loader-kills}"
             " --target=pyarrow --target=deltalake --target=naive")],
    ),
    "faults": Section(
        "Faults of processes and disks",
        "Members, brokers and loaders are killed and started again, and the embedded broker's files are cut as a"
        " power loss cuts them ([what each fault costs](delivery.md#what-each-fault-costs)).",
        [Run("Kills of members, brokers and loaders", PYTEST + " -s tests/system/test_faults.py"),
         Run("`rocketcrew chaos` in each order mode", PYTEST + " -s tests/system/test_chaos.py"),
         Run("Power cuts of the embedded broker", PYTEST + " tests/unit/broker/test_power_loss.py -n 2")],
    ),
    "differential": Section(
        "The same script by Java's consumer and by this one",
        "Sends, failures, stops and kills on genuine brokers. Every attempt, committed offset, retry record and"
        " dead letter has to be the same as that of Java's `DefaultMQPushConsumer`.",
        [Run("Both ends are compared", PYTEST + " tests/interop/test_differential.py")],
        ("java", "javac", "mvn"),
    ),
    "interop": Section(
        "Stories on genuine RocketMQ 4.9.7 and 5.5.0",
        "Genuine servers and clients: shared groups with Java members, killed brokers, cut connections, name"
        " servers that are away. `make interop` runs every story.",
        [Run("Beside Java members, and Java clients on the embedded broker", PYTEST + " tests/interop/test_java.py"),
         Run("Faults of genuine servers",
             PYTEST + " tests/interop/test_faults.py --fault-messages={messages} --timeout=3600")],
        ("java", "javac", "mvn"),
    ),
    "java": Section(
        "Ratio to Java's consumer",
        "Both consume the same backlog from one genuine 5.5.0 broker, in alternating runs; handlers do nothing, or on our"
        " side return a row of five columns for each message.",
        [Run("Messages a second", "python bench/java.py --runs={pairs} --messages={backlog} --seconds=5", {
            "java-rate": "{case}: {ours_per_s:,.0f}/s, Java {java_per_s:,.0f}/s, ratio {ratio:.2f};"
            " CPU {ours_cpu_us:.1f} µs a message, Java {java_cpu_us:.1f} µs, the broker beside it {ours_broker_us:.1f} µs",
            "java-latency": "{consumer}: from the store to the handler {p50_ms:.1f} ms (p50), {p99_ms:.1f} ms (p99)"
            " at {rate} messages a second",
        })],
        ("java", "javac", "mvn"),
        quiet=True,
    ),
    "cores": Section(
        "How much of the cores handlers get",
        "Bare processes that do the same calls, over what was measured: 1 would be no overhead at all. Beside it"
        " the pools of the standard library, fed by the same client.",
        [Run("Share of the cores", "python bench/efficiency.py --runs={pairs} --seconds=2", {
            "efficiency": "{handler}: {efficiency:.2f}, process pool {process_pool:.2f}, thread pool {thread_pool:.2f};"
            " {overhead_cpu_us:.0f} µs of CPU beside the handler's",
        })],
        quiet=True,
    ),
}  # fmt: skip


def commands(sizes: Mapping[str, int]) -> list[str]:
    """All commands in these sizes."""
    return [run.command.format_map(sizes) for section in SECTIONS.values() for run in section.runs]


def default_sizes() -> dict[str, int]:
    return {name: size for name, (size, _) in SIZES.items()}


# What the figures are from.


def calibration_ms() -> float:
    """How long this machine needs for a loop of plain Python; the best of a few."""
    times: list[float] = []
    for _ in range(CALIBRATION_RUNS):
        begin = time.perf_counter()
        sum(number * number for number in range(CALIBRATION_NUMBERS))
        times.append(1000 * (time.perf_counter() - begin))
    return round(min(times), 1)


def machine() -> dict[str, Any]:
    cpu = [line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    memory = [int(line.split()[1]) for line in _lines("/proc/meminfo") if line.startswith("MemTotal:")]
    return {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": cpu[0] if cpu else platform.machine(),
        "memory_gib": round(memory[0] / (1 << 20)) if memory else 0,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "calibration_ms": calibration_ms(),
    }


def _lines(path: str) -> list[str]:
    return Path(path).read_text(encoding="utf-8").splitlines()


def commit() -> str:
    """The short hash; with "+" when the files are not as in that commit."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    try:
        ours = [f":!{path.relative_to(ROOT)}" for path in (FIGURES, PAGE)]
        return git("rev-parse", "--short=10", "HEAD") + ("+" if git("status", "--porcelain", "--", ".", *ours) else "")
    except (OSError, subprocess.CalledProcessError):
        return "not in git"


# Measuring.


def measured(section: Section, sizes: Mapping[str, int], deadline: float) -> dict[str, Any] | None:
    """The section's entry of proof.json; None when a command had to be stopped because no time was left."""
    from soak import run_stage

    facts: dict[str, Any] = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"), "commit": commit(), "machine": machine(),
        "load": [round(os.getloadavg()[0], 1)],
    }  # fmt: skip
    entries: list[dict[str, Any]] = []
    for run in section.runs:
        left_s = deadline - time.monotonic()
        command = run.command.format_map(sizes)
        for name in run.rows or ():
            (ROOT / f"bench/results/{name}.json").unlink(
                missing_ok=True
            )  # nothing of an earlier run is taken for this one's
        ended = run_stage(run.what, [sys.executable, *shlex.split(command)[1:]], left_s) if left_s > 0 else None
        if ended is None or time.monotonic() >= deadline:
            return None
        results = [line.removeprefix("VERDICT ").removeprefix("good: ") for line in ended.lines]
        if command.startswith(PYTEST):
            results.append(ended.summary)
        results += [line for name, form in (run.rows or {}).items() for line in rows_said(name, form)]
        entries.append({"what": run.what, "command": command, "good": ended.good and shows(command, results),
                        "results": results, "seconds": round(ended.seconds)})  # fmt: skip
    facts["load"].append(round(os.getloadavg()[0], 1))
    return {**facts, "runs": entries}


def shows(command: str, results: Sequence[str]) -> bool:
    """Whether a command that ended well shows anything: tests that were all skipped show nothing."""
    ran = not command.startswith(PYTEST) or any(re.search(r"\b[1-9]\d* passed", line) for line in results)
    return bool(results) and ran and not any(line.startswith("BAD") for line in results)


def blamed(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The entry of a section that has left processes behind: which of its commands did is not known."""
    said = "BAD: processes were left behind"
    return {**entry, "runs": [{**run, "good": False, "results": [*run["results"], said]} for run in entry["runs"]]}


def rows_said(name: str, form: str) -> list[str]:
    """The rows of bench/results/NAME.json in words; none where the benchmark wrote none."""
    file = ROOT / f"bench/results/{name}.json"
    return [form.format_map(row) for row in json.loads(file.read_text())["rows"]] if file.exists() else []


# The page.

INTRODUCTION = f"""# Proof

What the promises ([what is promised](delivery.md)) rest on, as it was last measured. `make proof` measures anew and writes
this page; `make proof ARGS='--only kills'` renews one section, and the others keep their last result with its date, commit
and machine. No figure here is written by hand.

Each command runs from a checkout in which `make test` or `make proof` has made the environment; `python` is
`.venv/bin/python`. Sizes are small so that the page is made in minutes: give larger ones, or let `make soak` run for hours.

The calibration loop is a sum of {CALIBRATION_NUMBERS:,} squares in plain Python, the best of {CALIBRATION_RUNS}: it says how
fast the machine was. Times depend on the load; what must never be lost, and never be there twice, does not. Ratios are
measured only while the load average is not above the number of cores."""


def render(figures: Mapping[str, Any]) -> str:
    """The page; `figures`: what docs/proof.json holds."""
    lines = [INTRODUCTION, "", "| section | verdict | measured | commit |", "|---|---|---|---|"]
    lines += [_index_row(key, figures["sections"].get(key)) for key in SECTIONS]
    for key, section in SECTIONS.items():
        entry = figures["sections"].get(key)
        lines += ["", f"## {section.title} {{ #{key} }}", "", section.about, ""]
        lines += _results(entry) if entry else ["Not measured yet."]
    return "\n".join(lines) + "\n"


def _index_row(key: str, entry: Mapping[str, Any] | None) -> str:
    link = f"[{SECTIONS[key].title}](#{key})"
    if entry is None:
        return f"| {link} | not measured yet | | |"
    good = all(run["good"] for run in entry["runs"])
    verdict = "measured" if SECTIONS[key].quiet else "holds"  # a ratio is neither right nor wrong
    return f"| {link} | {verdict if good else '**FAILED**'} | {entry['date']} | `{entry['commit']}` |"


def _results(entry: Mapping[str, Any]) -> list[str]:
    at, load = entry["machine"], entry["load"]
    changed = " with changes" if entry["commit"].endswith("+") else ""
    stamp = (
        f"Measured {entry['date']} at commit `{entry['commit']}`{changed} on {at['cores']} cores ({at['cpu']}),"
        f" {at['memory_gib']} GiB, Python {at['python']}, {at['system']}; calibration loop {at['calibration_ms']} ms;"
        f" load average {load[0]} before, {load[1]} after."
    )
    lines = [stamp, "", "| what | result | command |", "|---|---|---|"]
    for run in entry["runs"]:
        said = "<br>".join(line.replace("|", "\\|") for line in run["results"]) or "nothing was printed"
        lines.append(
            f"| {run['what']} | {'' if run['good'] else '**FAILED**: '}{said} ({run['seconds']} s) |"
            f" `{run['command']}` |"
        )
    return lines


def read_figures() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(FIGURES.read_text(encoding="utf-8")) if FIGURES.exists() else {"sections": {}}
    return found


def write(figures: Mapping[str, Any]) -> None:
    ordered = {"sections": {key: figures["sections"][key] for key in SECTIONS if key in figures["sections"]}}
    for path, text in ((FIGURES, json.dumps(ordered, indent=1, ensure_ascii=False) + "\n"), (PAGE, render(ordered))):
        fresh = path.with_suffix(".new")
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(path)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(SECTIONS), metavar="SECTION", help=", ".join(SECTIONS))
    parser.add_argument("--minutes", type=float, default=15.0, help="for all sections together (default %(default)s)")
    parser.add_argument("--render", action="store_true", help="write the page from docs/proof.json and measure nothing")
    for name, (size, what) in SIZES.items():
        parser.add_argument(f"--{name}", type=int, default=size, help=f"{what} (default {size})")
    return parser.parse_args()


def run_sections(keys: Sequence[str], sizes: Mapping[str, int], deadline: float, clear: Callable[[], bool]) -> int:
    """Measure one after the other and write after each, so that an interrupted run keeps what it has."""
    figures, said, code = read_figures(), list[str](), 0
    for key in keys:
        missing = [program for program in SECTIONS[key].needs if shutil.which(program) is None]
        if missing:
            said.append(f"{key}: left out, {' and '.join(missing)} missing on the PATH")
            continue
        if SECTIONS[key].quiet and os.getloadavg()[0] > len(os.sched_getaffinity(0)):
            said.append(f"{key}: left out, the load average is above the number of cores: its ratios would say nothing")
            continue
        entry = measured(SECTIONS[key], sizes, deadline)
        left_behind = clear()
        if left_behind and entry is not None:
            entry = blamed(entry)
        if entry is None:
            said.append(f"{key}: no time left, its last result is kept: give --minutes more, or --only {key}")
            code = 1
            continue
        good = all(run["good"] for run in entry["runs"])
        figures["sections"][key] = entry
        write(figures)
        said.append(f"{key}: {'holds' if good else 'FAILED'}")
        code |= not good
    print("\n== proof", *said, f"{PAGE.relative_to(ROOT)} is written", sep="\n")
    return code


def main() -> int:
    options = parsed()
    if options.render:
        write(read_figures())
        return 0
    sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "tools")]
    from check import Runner, adopt_orphans

    adopt_orphans()
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # started in the background it is ignored, and children inherit that
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sizes = {name: getattr(options, name.replace("-", "_")) for name in SIZES}
    runner = Runner()
    try:
        return run_sections(
            options.only or list(SECTIONS), sizes, time.monotonic() + 60 * options.minutes, runner.clear
        )
    except KeyboardInterrupt:
        print("stopped: sections that were finished are written")
        return 130
    finally:
        runner.clear()


if __name__ == "__main__":
    sys.exit(main())
