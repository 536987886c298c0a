"""The lock of a compact is its table's owner's: root may be killed with it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rocketcrew.spark.table_lock import lock_compact


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")
def test_a_lock_that_root_has_made_is_the_table_s_owner_s(tmp_path: Path) -> None:
    """Whosever the folder of the lock is; a file of root's elsewhere, which a link leads to, stays root's."""
    table, beside = tmp_path / "table", tmp_path / "of root"
    table.mkdir()
    os.chown(table, 1234, 1235)
    beside.mkdir()
    elsewhere = beside / "empty"
    elsewhere.touch()
    (tmp_path / "link").symlink_to(elsewhere)
    (tmp_path / "hard").hardlink_to(elsewhere)
    with pytest.raises(OSError, match="symbolic link"):
        lock_compact(tmp_path / "link", table)
    for name, owner in (("lock", 1234), ("hard", 0)):
        lock = lock_compact(tmp_path / name, table)
        assert lock is not None
        assert os.fstat(lock).st_uid == owner
        os.close(lock)
