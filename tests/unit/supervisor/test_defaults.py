"""Classes that are made from settings have the defaults of these, or say why not: so what a test makes is what runs."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from rocketcrew.broker.config import BrokerConfig
from rocketcrew.conf.settings import Settings, load
from rocketcrew.spark.config import LoaderConfig, loader_config
from rocketcrew.supervisor.core.allocation import average
from rocketcrew.supervisor.core.staffing import Policy
from rocketcrew.supervisor.core.state import CoreConfig
from rocketcrew.supervisor.wiring import core_config, staff_policy
from rocketcrew.workers.boot import WorkerBounds, worker_bounds

STAGING, TABLE = Path("staging"), Path("table")
OTHERS: dict[type, dict[str, str]] = {
    CoreConfig: {"strategy": "made anew of its name: no two are equal, and each core must be given one"},
    LoaderConfig: {"high_water_bytes": "of the supervisor that seals the segments; a loader by itself has none"},
    Policy: {
        "count": "as many as there are cores",
        "leave_max_s": "longer by the slack of the supervisor, which the staffing does not know",
    },
}
"""Fields whose default is another one, each with its reason."""


def made_of(kind: type, s: Settings) -> tuple[Any, Any]:
    """One with the class's own defaults, and one that was made from settings."""
    found: dict[type, tuple[Any, Any]] = {
        CoreConfig: (CoreConfig("c", "g", ("t", "%RETRY%g"), average), core_config(s, "c", ("t",))),
        WorkerBounds: (WorkerBounds(), worker_bounds(s)),
        LoaderConfig: (
            LoaderConfig(STAGING, TABLE),
            loader_config(s.spark, STAGING, TABLE, {}, s.results.high_water_mib),
        ),
        Policy: (Policy(0), staff_policy(s)),
        BrokerConfig: (BrokerConfig(), s.broker),
    }
    return found[kind]


@pytest.mark.parametrize("kind", [CoreConfig, WorkerBounds, LoaderConfig, Policy, BrokerConfig])
def test_defaults_are_those_of_the_settings(kind: type) -> None:
    own, made = made_of(kind, load({"consumer.group": "g", "consumer.topics": ["t"]}, {}, None))
    both = {field.name for field in fields(own)} & {field.name for field in fields(made)}
    other = {name for name in both if getattr(own, name) != getattr(made, name)}
    assert other == set(OTHERS.get(kind, ()))
