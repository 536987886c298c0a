"""What a command was called with beside its arguments. Passed down, so that a test can pass another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import click


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The environment, read once at the start, and the folder in which a settings file is looked for."""

    env: Mapping[str, str]
    folder: Path


def surroundings(context: click.Context) -> Surroundings:
    """Those of the running command."""
    found = context.find_object(Surroundings)
    assert found is not None, "commands are run by cli.main.run"
    return found
