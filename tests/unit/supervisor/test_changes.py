"""Which settings a reload takes, and which it names as waiting for a restart."""

from __future__ import annotations

import dataclasses

from rocketcrew.conf.settings import load
from rocketcrew.supervisor.core.changes import CHANGEABLE, merge


def test_changeable_settings_exist() -> None:
    settings = load({}, {}, None)
    for section, names in CHANGEABLE.items():
        assert names <= {field.name for field in dataclasses.fields(getattr(settings, section))}, section


def test_changes_are_taken_or_named() -> None:
    old = load({"consumer.group": "g", "workers.count": 2}, {}, None)
    new = load(
        {"consumer.group": "other", "workers.count": 3, "results.seal_rows": 10, "supervisor.data_dir": "elsewhere"},
        {},
        None,
    )
    merged = merge(old, new)
    assert merged.changed == ("workers.count", "results.seal_rows")
    assert merged.kept == ("consumer.group", "supervisor.data_dir")
    assert merged.settings.workers.count == 3
    assert merged.settings.consumer.group == "g"
    assert merge(old, old).changed == merge(old, old).kept == ()
