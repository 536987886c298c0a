"""Which genuine servers the tests of this folder run against, and when they cannot."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "system"))

from fault_servers import Site, run_site
from load import VERDICTS
from needs import cannot_run, need_jars
from servers import Kind, Servers, missing_programs, programs, run_servers

PAIRS_MAX: Final = 4
"""Most files have tests of two kinds, some of three or four. A pair takes 400 MB; its start takes 1 to 3 s of CPU. Those that
the test at hand has not asked for rest, and take none."""
PAIRS: Final = pytest.StashKey["ServersInUse"]()
SITE: Final = pytest.StashKey[Site]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fault-messages", type=int, default=None, help="numbered messages of each fault test (1000)")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line for each thing that was proven, with its figures."""
    for line in VERDICTS:
        terminalreporter.write_line(line)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without the programs, all tests of this folder become one skipped one, whose line says why. What is marked `soak` runs
    with `--fault-messages` only."""
    missing = missing_programs("java", "mvn")
    if not config.getoption("--fault-messages", None):
        for_soak = [item for item in items if item.get_closest_marker("soak")]
        config.hook.pytest_deselected(items=for_soak)
        items[:] = [item for item in items if item not in for_soak]
    ours = [item for item in items if item.path.parent == Path(__file__).parent]
    if not (missing and ours):
        return
    reason = f"no tests against genuine RocketMQ: {' and '.join(missing)} missing on the PATH"
    ours[0].add_marker(pytest.mark.skip(reason=reason))
    config.hook.pytest_deselected(items=ours[1:])
    items[:] = [item for item in items if item not in ours[1:]]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before the fixtures: one of a module may use the servers at once."""
    asked: dict[str, object] = getattr(getattr(item, "callspec", None), "params", {})
    if (pairs := item.config.stash.get(PAIRS, None)) is not None:
        pairs.rest_but(asked.get("servers"))
    if (site := item.config.stash.get(SITE, None)) is not None:
        (site.wake if "site" in asked else site.rest)()


class ServersInUse:
    """Pairs of servers that run until the session ends, or until PAIRS_MAX others were asked for since."""

    def __init__(self, folder_for: Callable[[str], Path]) -> None:
        self._folder_for = folder_for
        self._pairs: dict[Kind, tuple[ExitStack, Servers]] = {}
        """The one that was asked for last is the last."""

    def pair(self, kind: Kind) -> Servers:
        """Running servers of that kind."""
        running = self._pairs.pop(kind, None)
        if running is None:
            self._close(PAIRS_MAX - 1)
            with ExitStack() as started:
                found = started.enter_context(run_servers(kind, self._folder_for(str(kind))))
                running = started.pop_all(), found
        self._pairs[kind] = running
        return running[1]

    def rest_but(self, kind: object) -> None:
        """All but the one of that kind."""
        for each, (_, servers) in self._pairs.items():
            (servers.wake if each == kind else servers.rest)()

    def close(self) -> None:
        """All of them, also when the end of one raises."""
        with ExitStack() as ends:
            while self._pairs:
                ends.push(self._pairs.popitem()[1][0])

    def _close(self, left: int) -> None:
        while len(self._pairs) > left:
            self._pairs.pop(next(iter(self._pairs)))[0].close()


@pytest.fixture(scope="session")
def servers_in_use(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServersInUse]:
    found = pytestconfig.stash[PAIRS] = ServersInUse(tmp_path_factory.mktemp)
    yield found
    del pytestconfig.stash[PAIRS]
    found.close()


@pytest.fixture(scope="session")
def servers(request: pytest.FixtureRequest, servers_in_use: ServersInUse) -> Servers:
    """One pair of servers for all tests of one kind, in whatever file they are."""
    kind: Kind = request.param
    need_jars(kind.version)
    return servers_in_use.pair(kind)


@pytest.fixture(scope="session")
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Servers of one version that can be killed and started again, for all tests of faults."""
    need_jars(request.param)
    with run_site(request.param, tmp_path_factory.mktemp(f"site-{request.param}")) as found:
        request.config.stash[SITE] = found
        yield found
        del request.config.stash[SITE]


@pytest.fixture(scope="session")
def java_classes() -> Callable[[str], str]:
    """The class path of a version, our Java programs among it."""
    if missing_programs("javac"):
        cannot_run("no tests with genuine clients: javac missing on the PATH")

    def classes(version: str) -> str:
        need_jars(version)
        return programs(version)

    return classes
