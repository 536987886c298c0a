"""Build the sdist, the wheel from that sdist, and an environment that has the package from the wheel alone.

The environment `.venv-wheel` sees the installed dependencies of this Python's environment through one path line, and
nothing of its own but the wheel: path lines of that other site-packages (the editable install's) are not followed, since
only real site folders have theirs read. `pytest --expect-package-in` verifies it once more from inside.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = ROOT / ".venv-wheel"
DIST = ROOT / "dist"
ROOMS = (
    "remoting",
    "conf",
    "client",
    "broker",
    "workers",
    "spark",
    "source",
    "supervisor",
    "engine",
    "cli",
    "crew",
    "testing",
)
NOT_SHIPPED = {"__pycache__"}


def run(*command: str | Path) -> None:
    subprocess.run([str(part) for part in command], cwd=ROOT, check=True, stdin=subprocess.DEVNULL)


def expected() -> set[str]:
    """Every file of every room, and of the packages' own folders, as the wheel names them."""
    own = ("rocketcrew", "pyspark_rocketmq", "pytest_rocketcrew")
    files = {f"{name}/{path.name}" for name in own for path in (ROOT / "src" / name).iterdir() if path.is_file()}
    for link in (ROOT / "src/rocketcrew").iterdir():
        if link.is_dir() and link.name not in NOT_SHIPPED:
            files |= {
                f"rocketcrew/{link.name}/{path.relative_to(link)}"
                for path in link.rglob("*")
                if path.is_file() and path.suffix in (".py", ".toml", ".properties", ".sh", ".typed")
            }
    return files


def build() -> Path:
    """The wheel's path, after both archives were looked into."""
    with tempfile.TemporaryDirectory() as folder:
        # Without isolation: setuptools is that of the constraints, and nothing is downloaded.
        run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ".")
        (sdist,) = Path(folder).glob("*.tar.gz")
        (wheel,) = Path(folder).glob("*.whl")
        with tarfile.open(sdist) as archive:
            links = [member.name for member in archive if member.issym() or member.islnk()]
        if links:
            sys.exit(f"the sdist holds links, which do not unpack everywhere: {links}")
        missing = expected() - set(zipfile.ZipFile(wheel).namelist())
        if missing:
            sys.exit(f"the wheel lacks files of the rooms: {sorted(missing)}")
        shutil.rmtree(DIST, ignore_errors=True)
        DIST.mkdir()
        shutil.copy2(sdist, DIST)
        return Path(shutil.copy2(wheel, DIST))


def install(wheel: Path) -> None:
    """Make `.venv-wheel` anew with nothing but the wheel in it."""
    shutil.rmtree(ENVIRONMENT, ignore_errors=True)
    run(sys.executable, "-m", "venv", "--without-pip", ENVIRONMENT)
    python = ENVIRONMENT / "bin/python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index", wheel)
    (site,) = (ENVIRONMENT / "lib").glob("python3*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    look = "import rocketcrew, rocketcrew.conf.sources as s; s.defaults_text(); print(rocketcrew.__file__)"
    found = subprocess.run([python, "-Ic", look], capture_output=True, text=True, check=True).stdout.strip()
    if not Path(found).is_relative_to(ENVIRONMENT):
        sys.exit(f"the package comes from {found}, not from the wheel in {ENVIRONMENT}")


if __name__ == "__main__":
    os.environ.pop("PYTHONPATH", None)
    install(build())
