"""Where a group's segments lie on this host."""

from __future__ import annotations

from pathlib import Path

from ..conf.settings import Settings


def staging_folders(settings: Settings) -> list[Path]:
    """The folders of segments of all slots of the group in supervisor.data_dir."""
    home = Path(settings.supervisor.data_dir) / settings.consumer.group
    return sorted(path for path in home.glob("*/segments") if path.is_dir())
