"""Each extra installed from the built wheel into an empty environment, without the constraints file, and used once.

    extras.py [--light] [EXTRA ...]     without a name each, and whether all go together; "plain" is the package alone

What is chosen is what `pip install "rocketcrew[EXTRA]"` would choose on this day: that is the point, and why it is no part of
`make test`: somebody else's release must not fail an unchanged commit. The release workflow runs it. `--light` leaves out
what brings pyspark (450 MB). uv installs, since it keeps what it has unpacked: a second run downloads nothing. UV_FIND_LINKS
may name a folder with wheels that are not to be downloaded.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Generator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
UV = Path(sys.executable).parent / "uv"
INSTALL_MAX_S = 1500
SMOKE_MAX_S = 2400
ALONE = "iceberg-spark"
"""Its pyspark is another one than that of other extras."""
NO_USE = {"dev"}
"""Extras that only this project's own checkout uses."""
PLAIN = "plain"


def extras() -> list[str]:
    """All that users may install, PLAIN first."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [PLAIN, *sorted(set(project["optional-dependencies"]) - NO_USE)]


def is_light(extra: str) -> bool:
    """Whether it comes without pyspark."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return not any(line.startswith("pyspark") for line in project["optional-dependencies"].get(extra, ()))


def run(command: Sequence[str | Path], limit_s: int, env: dict[str, str] | None = None) -> int:
    """The exit code; at the limit the process and all that it has started are killed."""
    process = subprocess.Popen(
        [str(word) for word in command], env=env, stdin=subprocess.DEVNULL, start_new_session=True
    )
    try:
        return process.wait(limit_s)
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise


@contextlib.contextmanager
def surroundings(extra: str) -> Generator[dict[str, str]]:
    """What the smoke test needs and its environment does not have: an S3 server, jars."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "AWS_"))}
    sys.path.insert(0, str(ROOT / "tests/system"))
    if extra == "s3":
        from s3_server import S3Server

        server = S3Server()
        try:
            yield {**env, **server.keys, "S3_ENDPOINT": server.options["endpoint"], "S3_URL": server.url()}
        finally:
            server.close()
    elif extra == "delta-spark":
        from delta_jars import delta_jars

        yield {**env, "DELTA_JARS": delta_jars()}
    elif extra == "iceberg-spark":
        sys.path.insert(0, str(ROOT / "tests/interop"))
        from spark_for_iceberg import iceberg_jars

        yield {**env, "ICEBERG_JARS": iceberg_jars()}
    else:
        yield env


def check(extra: str, wheel: Path) -> bool:
    """Install it and use it once; what fails has printed why."""
    with tempfile.TemporaryDirectory(prefix=f"rocketcrew-{extra}-") as folder:
        python = Path(folder, "venv/bin/python")
        asked = f"rocketcrew[{extra}]" if extra != PLAIN else "rocketcrew"
        if run([UV, "venv", "--quiet", "--python", sys.executable, Path(folder, "venv")], INSTALL_MAX_S):
            return False
        if run([UV, "pip", "install", "--quiet", "--python", python, f"{asked} @ {wheel.as_uri()}"], INSTALL_MAX_S):
            return False
        state = Path(folder, "state")
        state.mkdir()
        # Beside the copy nothing of the checkout can be imported.
        smoke = shutil.copy2(ROOT / "tools/extras_smoke.py", folder)
        with surroundings(extra) as env:
            return run([python, "-I", smoke, "" if extra == PLAIN else extra, state], SMOKE_MAX_S, env) == 0


def fit(wheel: Path) -> bool:
    """Whether one environment may have all extras but ALONE; uv has printed which two do not go together."""
    asked = f"rocketcrew[{','.join(one for one in extras() if one not in (PLAIN, ALONE))}] @ {wheel.as_uri()}"
    with tempfile.TemporaryDirectory(prefix="rocketcrew-all-") as folder:
        wanted = Path(folder, "requirements.in")
        wanted.write_text(asked, encoding="utf-8")
        chosen = ["--output-file", Path(folder, "requirements.txt"), "--python", sys.executable]
        return run([UV, "pip", "compile", "--quiet", "--no-header", *chosen, wanted], INSTALL_MAX_S) == 0


def main() -> int:
    """0 when all that was asked for works."""
    words = sys.argv[1:]
    light = "--light" in words
    wanted = [word for word in words if word != "--light"] or [
        extra for extra in extras() if not light or is_light(extra)
    ]
    unknown = set(wanted) - set(extras())
    wheels = list((ROOT / "dist").glob("*.whl"))
    if unknown or len(wheels) != 1:
        print(__doc__)
        print(f"unknown: {', '.join(sorted(unknown))}" if unknown else "no wheel in dist/: run tools/wheel.py first")
        return 2
    failed = [extra for extra in wanted if not check(extra, wheels[0])]
    if not words and not fit(wheels[0]):
        failed.append("all of them together")
    print(
        f"--- extras: {len(set(wanted) - set(failed))} of {len(wanted)} work"
        + (f", these do not: {', '.join(failed)}" if failed else "")
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
