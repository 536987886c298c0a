"""A group's segments are looked for where its supervisors put them, also in a namespace."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketcrew.cli.stagings import check_staging, group_in_keys, staging_folders
from rocketcrew.conf.settings import load
from rocketcrew.remoting.errors import UsageError


@pytest.mark.parametrize(("namespace", "group"), [("", "billing"), ("shop", "shop%billing")])
def test_folders_and_keys_have_the_name_that_brokers_know(tmp_path: Path, namespace: str, group: str) -> None:
    flags = {"consumer.group": "billing", "cluster.namespace": namespace, "supervisor.data_dir": str(tmp_path)}
    settings = load(flags, {}, None)
    assert group_in_keys(settings) == group
    (tmp_path / group / "0" / "segments").mkdir(parents=True)
    (tmp_path / group / "clients").mkdir()
    (tmp_path / "other" / "0" / "segments").mkdir(parents=True)
    assert staging_folders(settings) == [tmp_path / group / "0" / "segments"]


def test_a_folder_of_segments_may_have_any_name(tmp_path: Path) -> None:
    staging = tmp_path / "plan"
    (staging / "ready").mkdir(parents=True)
    (tmp_path / "ready").mkdir()
    check_staging(staging)
    (staging / "0" / "segments" / "ready").mkdir(parents=True)
    check_staging(staging)
    for wrong, meant in ((staging / "ready", staging), (staging / "0", staging / "0" / "segments")):
        with pytest.raises(UsageError, match=f"did you mean {meant}\\?"):
            check_staging(wrong)
