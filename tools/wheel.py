"""Build the sdist, the wheel from that sdist, and an environment that has the package from the wheel alone.

Whoever builds the same commit gets the same bytes: times are those of SOURCE_DATE_EPOCH (the commit's, where it is not set),
owners are nobody, the umask is 022. It is proven at each build: a second one, of files with other times and
modes in another folder, must give both files again. Both are of copies: setuptools takes what an old egg-info names.

The environment `.venv-wheel` sees the installed dependencies of this Python's environment through one path line, and
nothing of its own but the wheel: path lines of that other site-packages (the editable install's) are not followed, since
only real site folders have theirs read. `pytest --expect-package-in` verifies it once more from inside.
"""

from __future__ import annotations

import gzip
import io
import os
import re
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
LINK = re.compile(r"\]\((?![a-z]+:|#)([^)\s]+)\)")
"""To a file of the checkout."""
NOT_SHIPPED = {"__pycache__"}
NOT_COPIED = shutil.ignore_patterns(
    ".git",
    ".venv*",
    ".*cache",
    ".cache",
    ".hypothesis",
    "*.egg-info",
    "__pycache__",
    "build",
    "dist",
    "demo-data",
    "results",
)


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


def source_date() -> int:
    """Seconds since 1970: SOURCE_DATE_EPOCH, else when HEAD was committed, else the first moment that a zip file can say."""
    if given := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(given)
    asked = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True, check=False)
    return int(asked.stdout) if asked.returncode == 0 and asked.stdout.strip() else 315532800


def normalised(sdist: Path, date: int) -> bytes:
    """The same sdist with its members in order, and without what tells of the machine that made it."""
    unpacked = io.BytesIO()
    with tarfile.open(sdist) as old, tarfile.open(fileobj=unpacked, mode="w", format=tarfile.PAX_FORMAT) as new:
        for member in sorted(old.getmembers(), key=lambda member: member.name):
            if member.issym() or member.islnk():
                sys.exit(f"the sdist holds a link, which does not unpack everywhere: {member.name}")
            runs = member.isdir() or bool(member.mode & 0o100)
            member.mode, member.mtime, member.pax_headers = 0o755 if runs else 0o644, date, {}
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            new.addfile(member, old.extractfile(member) if member.isfile() else None)
    return gzip.compress(unpacked.getvalue(), mtime=date)


def copied(folder: Path) -> Path:
    """A copy of the checkout below `folder`, without what builds and tests leave."""
    return Path(shutil.copytree(ROOT, folder / "source", symlinks=True, ignore=NOT_COPIED))


def made(source: Path, folder: Path, date: int) -> tuple[Path, Path]:
    """An sdist of that tree in `folder`, and the wheel from it."""
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(date)}
    # Without isolation: setuptools is that of the lock file, and nothing is downloaded.
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder)]
    subprocess.run([*command, "--sdist", str(source)], env=environment, check=True, stdin=subprocess.DEVNULL)
    (sdist,) = folder.glob("*.tar.gz")
    sdist.write_bytes(normalised(sdist, date))
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    tree = folder / sdist.name.removesuffix(".tar.gz")
    subprocess.run([*command, "--wheel", str(tree)], env=environment, check=True, stdin=subprocess.DEVNULL)
    (wheel,) = folder.glob("*.whl")
    return sdist, wheel


def build() -> Path:
    """The wheel's path, after both archives were looked into and made a second time."""
    date = source_date()
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        sdist, wheel = made(copied(Path(first)), Path(first), date)
        missing = expected() - set(zipfile.ZipFile(wheel).namelist())
        if missing:
            sys.exit(f"the wheel lacks files of the rooms: {sorted(missing)}")
        lost = dead_links(sdist, wheel)
        if lost:
            sys.exit(
                f"links of README.md lead nowhere on the package's page, or their files are not in the sdist: {lost}"
            )
        source = copied(Path(second))
        for path in source.rglob("*"):
            if not path.is_symlink():
                path.chmod(path.stat().st_mode & 0o700)
                os.utime(path, (date + 12345, date + 12345))
        again = made(source, Path(second), date)
        for one, other in zip((sdist, wheel), again, strict=True):
            if one.read_bytes() != other.read_bytes():
                sys.exit(f"a second build gives another {one.name}: {differences(one, other)}")
        shutil.rmtree(DIST, ignore_errors=True)
        DIST.mkdir()
        shutil.copy2(sdist, DIST)
        return Path(shutil.copy2(wheel, DIST))


def dead_links(sdist: Path, wheel: Path) -> list[str]:
    """Relative links of the description that a package index shows, and files that README.md links to and the sdist lacks."""
    with zipfile.ZipFile(wheel) as file:
        (metadata,) = (name for name in file.namelist() if name.endswith(".dist-info/METADATA"))
        shown = file.read(metadata).decode("utf-8")
    tree = sdist.name.removesuffix(".tar.gz")
    there = {name.removeprefix(f"{tree}/") for name in members(sdist)}
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    linked = {one.partition("#")[0] for one in LINK.findall(readme)}
    return sorted({*LINK.findall(shown), *(linked - there)})


def differences(one: Path, other: Path) -> str:
    """The members that are not the same, of two sdists or two wheels."""
    left, right = members(one), members(other)
    names = sorted(name for name in left.keys() | right.keys() if left.get(name) != right.get(name))
    return ", ".join(names[:10]) if names else "its frame"


def members(archive: Path) -> dict[str, object]:
    """Name -> what is kept of it."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as file:
            return {one.filename: (one.CRC, one.date_time, one.external_attr) for one in file.infolist()}
    with tarfile.open(archive) as sdist:
        return {
            one.name: (one.mode, one.mtime, found.read() if (found := sdist.extractfile(one)) else None)
            for one in sdist.getmembers()
        }


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
    os.umask(0o022)  # files in a wheel have the modes that the builder's umask leaves
    install(build())
