"""The loader's tests get their helpers as a fixture."""

from __future__ import annotations

import stat
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from loader_world import World
from segment_helpers import Helpers


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A module's TABLES: its tests with a `world` run on each of these kinds of tables."""
    tables = getattr(metafunc.module, "TABLES", None)
    if tables and "world" in metafunc.fixturenames:
        metafunc.parametrize("world", tables, indirect=True)


@pytest.fixture
def segments() -> Helpers:
    """Ways to write segments and to read the table."""
    return Helpers()


@pytest.fixture(scope="module")
def threads() -> Iterator[Executor]:
    """What the loader converts with."""
    with ThreadPoolExecutor(2) as pool:
        yield pool


@pytest.fixture
def world(request: pytest.FixtureRequest, tmp_path: Path, segments: Helpers, threads: Executor) -> World:
    """A loader and its table; a Parquet folder unless the test or its module's TABLES says otherwise."""
    return World(tmp_path, segments, threads, getattr(request, "param", "parquet"))


@pytest.fixture
def reachable() -> Iterator[Path]:
    """A folder that other users have a way to, unlike those of pytest's."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        if not all(above.stat().st_mode & stat.S_IXOTH for above in folder.parents):
            pytest.skip("TMPDIR is not for others")
        yield folder
