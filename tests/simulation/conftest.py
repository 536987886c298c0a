"""Options of the simulation: `pytest tests/simulation --sim-seeds 2000 --sim-steps 5000`, `--sim-seed 17` replays one."""

from __future__ import annotations

from collections import Counter

import pytest

SEEDS = 200
STEPS = 2_000
LARGE_SHARE = 50
"""Seeds for one of each world of large chunks."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("simulation")
    group.addoption("--sim-seeds", type=int, default=SEEDS, help=f"how many seeds are played (default {SEEDS})")
    group.addoption("--sim-steps", type=int, default=STEPS, help=f"events a seed plays with faults (default {STEPS})")
    group.addoption("--sim-first", type=int, default=0, help="the first seed (default 0)")
    group.addoption("--sim-seed", type=int, default=None, help="play this seed only")


def _option(config: pytest.Config, name: str, default: int) -> int:
    # Without `tests/simulation` on the command line, this file is read after the options were.
    value = config.getoption(name, default)
    return default if value is None else int(value)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "sim_seed" in metafunc.fixturenames:
        config = metafunc.config
        one = config.getoption("--sim-seed", None)
        first = _option(config, "--sim-first", 0)
        seeds = [one] if one is not None else range(first, first + _option(config, "--sim-seeds", SEEDS))
        metafunc.parametrize("sim_seed", seeds, ids=lambda seed: f"seed-{seed}")


@pytest.fixture
def sim_steps(pytestconfig: pytest.Config) -> int:
    return _option(pytestconfig, "--sim-steps", STEPS)


@pytest.fixture
def sim_seeds(pytestconfig: pytest.Config) -> int:
    """How many seeds this session plays, 0 when only one of them is replayed."""
    if pytestconfig.getoption("--sim-seed", None) is not None:
        return 0
    return _option(pytestconfig, "--sim-seeds", SEEDS)


@pytest.fixture
def large_seeds(pytestconfig: pytest.Config) -> range:
    """Those of each world of large chunks: a few, as each is a whole backlog."""
    one = pytestconfig.getoption("--sim-seed", None)
    if one is not None:
        return range(one, one + 1)
    first = _option(pytestconfig, "--sim-first", 0)
    return range(first, first + max(1, _option(pytestconfig, "--sim-seeds", SEEDS) // LARGE_SHARE))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line: what all seeds of this session together have played. With xdist the properties come with the reports."""
    properties = [
        dict(report.user_properties)
        for report in terminalreporter.stats.get("passed", [])
        if report.when == "call" and "sim_steps" in dict(report.user_properties)
    ]
    if not properties:
        return
    faults: Counter[str] = Counter()
    for one in properties:
        faults.update(one["sim_faults"])
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(faults.items()))
    terminalreporter.write_line(
        f"VERDICT good: {len(properties)} seeds, {sum(one['sim_steps'] for one in properties):,} steps,"
        f" {faults.total():,} faults of {len(faults)} kinds, every invariant held: {kinds}"
    )
