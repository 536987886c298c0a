"""Which folders are on a disk of this host: the table of mounts decides, and the message names the setting."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from rocketcrew.durable.mounts import (
    Mount,
    check_local,
    mount_of,
    mount_table,
    opened_mount,
    parse_mounts,
    why_in_doubt,
    why_not_local,
)
from rocketcrew.remoting.errors import UsageError
from rocketcrew.supervisor.slot import take_slot

TABLE = (
    r"""
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:25 / /home rw - nfs4 filer:/home rw,vers=4.2
31 30 8:2 / /home/me/disk rw - xfs /dev/sdb1 rw
32 22 0:40 / /mnt/with\040space rw - fuse.sshfs me@there:/data rw
33 22 0:41 / /hdfs rw - fuse.fuse_dfs fuse_dfs rw
34 22 0:42 / /usb rw - fuseblk /dev/sdc1 rw
35 22 0:43 / /rootless rw - fuse.fuse-overlayfs fuse-overlayfs rw
36 22 0:44 / /smb rw - cifs //server/share rw
37 22 8:3 / /over rw - nfs filer:/over rw
38 22 8:4 / /over rw - tmpfs none rw
39 22 0:45 / /bucket rw - fuse s3fs rw
half a line
"""
    "40 22 0:46 / /mnt/of\u2028two rw - nfs4 filer:/x rw\n"
)
MOUNTS = parse_mounts(TABLE)


@pytest.mark.parametrize(
    ("path", "wrong"),
    [
        ("/var/lib/crew", ""),
        ("/home/me/.rocketcrew", "NFS"),
        ("/home", "NFS"),
        ("/homes/me", ""),
        ("/home/me/disk/crew", ""),
        ("/mnt/with space/crew", "sshfs by FUSE"),
        ("/hdfs/crew", "HDFS by FUSE"),
        ("/usb/crew", ""),
        ("/rootless/crew", ""),
        ("/smb/crew", "SMB"),
        ("/over/crew", ""),
        ("/bucket/crew", "s3fs by FUSE"),
        ("/mnt/of\u2028two/crew", "NFS"),
    ],
)
def test_the_nearest_mount_decides(path: str, wrong: str) -> None:
    mount = mount_of(path, MOUNTS)
    assert mount is not None
    assert why_not_local(mount) == wrong


def test_without_a_table_every_folder_counts_as_local(tmp_path: Path) -> None:
    assert mount_table(tmp_path / "missing") == []
    assert check_local("supervisor.data_dir", tmp_path, "", []) == ""


def test_the_kernel_s_own_table_is_understood() -> None:
    mount = mount_of("/proc/self", mount_table())
    assert mount is not None
    assert (mount.folder, mount.kind) == ("/proc", "proc")


def test_a_slot_on_a_shared_file_system_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir()
    (tmp_path / "link").symlink_to(real)
    mounts = parse_mounts(f"1 0 8:1 / / rw - ext4 /dev/sda1 rw\n2 1 0:9 / {real} rw - nfs4 filer:/x rw")
    with pytest.raises(UsageError) as caught:
        take_slot(tmp_path / "link" / "state", "g", mounts=mounts)
    said = str(caught.value)
    assert "supervisor.data_dir = " in said
    assert f"is on NFS (filer:/x, mounted at {real})" in said
    assert "Name a folder on a disk of this host" in said
    assert list(real.iterdir()) == []
    take_slot(tmp_path / "state", "g", mounts=mounts).release()


@pytest.mark.parametrize(
    ("kind", "source", "refused", "in_doubt"),
    [
        ("fuse.shfs", "shfs", False, False),
        ("fuse.cryfs", "cryfs@/x", False, False),
        ("fuse.exfat", "/dev/sdb1", False, False),
        ("fuse.mine", "mine", False, True),
        ("fuse", "", False, True),
        ("fuse", "s3fs", True, False),
        ("fuse.juicefs", "JuiceFS:x", True, False),
        ("9p", "none", False, True),
        ("virtiofs", "share", False, True),
        ("vboxsf", "share", False, True),
        ("nfs", "filer:/x", True, False),
        ("fuseblk", "/dev/sdc1", False, False),
    ],
)
def test_what_is_known_is_refused_or_taken_and_the_rest_is_warned_of(
    kind: str, source: str, refused: bool, in_doubt: bool
) -> None:
    mount = Mount("/data", kind, source)
    assert (bool(why_not_local(mount)), bool(why_in_doubt(mount))) == (refused, in_doubt)


def test_the_opened_folder_says_which_of_hidden_mounts_it_is_on(tmp_path: Path) -> None:
    number = opened_mount(str(tmp_path / "to" / "be" / "made"))
    assert number == opened_mount(str(tmp_path)) >= 0
    hidden = parse_mounts(
        f"7 1 8:1 / {tmp_path} rw - nfs4 filer:/x rw\n{number} 1 8:2 / {tmp_path.parent} rw - xfs /dev/b rw"
    )
    assert check_local("supervisor.data_dir", tmp_path, "", hidden) == ""
    hiding = parse_mounts(
        f"7 1 8:1 / {tmp_path} rw - xfs /dev/b rw\n{number} 1 8:2 / {tmp_path.parent} rw - nfs4 filer:/x rw"
    )
    with pytest.raises(UsageError, match="is on NFS"):
        check_local("supervisor.data_dir", tmp_path, "", hiding)


def test_a_folder_that_may_be_shared_is_taken_with_a_warning(tmp_path: Path) -> None:
    mounts = parse_mounts(f"1 0 8:1 / {tmp_path} rw - fuse.mine mine rw")
    with capture_logs() as logs:
        take_slot(tmp_path, "g", mounts=mounts).release()
    assert [one["event"] for one in logs] == ["folder_may_be_shared"]
    assert "is on mine by FUSE" in logs[0]["reason"]
