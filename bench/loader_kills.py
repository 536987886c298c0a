"""kill -9 of the loader and its JVM, again and again, on every kind of table: what is missing or stands there twice.

    python bench/loader_kills.py [--kills 40] [--minutes 60] [--seed 1] [--target parquet ...]

Half of the kills are at the named points of the loader's steps, half at random moments; between them come new records,
records that come a second time, and retries. Tables of parquet, pyarrow, delta, deltalake and foreach must be exact. `json`
stands for the formats of `df.write`: nothing missing, and a row that came again came with the number of its batch. `naive`
is the control, which appends and remembers nothing: there rows must stand twice, or the test does not bite. One verdict
line each.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
for folder in ("tests/interop", "tests/unit/spark", "tests/system"):
    sys.path.insert(0, str(ROOT / folder))

from delta_jars import delta_jars  # noqa: E402
from kill_story import TARGETS, KillStory, kills_in_turn  # noqa: E402
from light_jvm import light_environment  # noqa: E402
from servers import ServerError  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=40, help="of each target")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="of each target; then fewer kills do")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--target", action="append", choices=TARGETS, help="may be repeated; all, if none is named")
    options = parser.parse_args()
    targets = options.target or TARGETS
    if set(targets) - {"pyarrow", "deltalake", "naive"}:
        os.environ |= light_environment()
    bad = False
    for target in targets:
        jars = ""
        if target == "delta":
            try:
                jars = delta_jars()
            except (ServerError, OSError) as error:
                print(f"VERDICT left out: loader, delta: no jars: {error}", flush=True)
                continue
        begin = time.monotonic()
        folder = Path(tempfile.mkdtemp(prefix=f"rocketcrew-kills-{target}-"))
        story = KillStory(folder, target, options.seed, jars)
        try:
            verdict = story.run(kills_in_turn(options.kills, options.seed), 60 * options.minutes)
        finally:
            story.loaders.end()
        bad |= not verdict.good
        where = "" if verdict.good else f"; see {folder}"
        print(
            f"{verdict.line}; {time.monotonic() - begin:.0f} s, load average {os.getloadavg()[0]:.1f}{where}",
            flush=True,
        )
        if verdict.good:
            shutil.rmtree(folder, ignore_errors=True)
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
