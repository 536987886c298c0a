"""Which folders are on a disk of this host, by the kernel's table of mounts. Pure but for `mount_table`.

Locks, mapped cells and the journal need one: of a file system that several hosts share, flock may be kept by each host for
itself, a mapped page be older than the file, and a rename that was answered be undone. What is not known to be shared counts
as local.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from ..remoting.errors import UsageError

MOUNTS: Final = Path("/proc/self/mountinfo")
SHARED: Final = {
    "nfs": "NFS", "nfs4": "NFS", "cifs": "SMB", "smb3": "SMB", "smbfs": "SMB", "afs": "AFS", "coda": "Coda",
    "ceph": "CephFS", "glusterfs": "GlusterFS", "lustre": "Lustre", "gpfs": "GPFS", "beegfs": "BeeGFS", "wekafs": "WekaFS",
    "orangefs": "OrangeFS", "pvfs2": "OrangeFS", "ocfs2": "OCFS2", "gfs2": "GFS2", "9p": "9P, a folder of another machine",
}  # fmt: skip
"""File systems that other hosts write too, by the kernel's names."""
LOCAL_BY_FUSE: Final = frozenset(
    {
        "bindfs",
        "ecryptfs",
        "encfs",
        "fuse-overlayfs",
        "gocryptfs",
        "lxcfs",
        "mergerfs",
        "ntfs",
        "ntfs-3g",
        "overlayfs",
        "zfs",
    }
)
"""What FUSE programs make of local disks. Others, such as HDFS, S3 and sshfs, have their files elsewhere."""
HDFS_BY_FUSE: Final = frozenset({"fuse_dfs", "hdfs"})
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")


class Mount(NamedTuple):
    """One line of the table."""

    folder: str
    kind: str
    source: str


def mount_table(path: Path = MOUNTS) -> list[Mount]:
    """All mounts of this process; none where the kernel does not say."""
    try:
        return parse_mounts(path.read_text(encoding="utf-8", errors="surrogateescape"))
    except OSError:
        return []


def parse_mounts(text: str) -> list[Mount]:
    """What /proc/self/mountinfo says, in its order (proc_pid_mountinfo(5)); lines of another form are passed over."""
    found: list[Mount] = []
    for line in text.splitlines():
        before, separated, after = line.partition(" - ")
        words, facts = before.split(" "), after.split(" ")
        if separated and len(words) > 4 and len(facts) > 1:
            found.append(Mount(_plain(words[4]), facts[0], _plain(facts[1])))
    return found


def _plain(word: str) -> str:
    return _ESCAPED.sub(lambda match: chr(int(match[1], 8)), word)


def mount_of(path: str, mounts: Iterable[Mount]) -> Mount | None:
    """The mount that an absolute path without links is on: the longest one above it, of equal ones the last."""
    found: Mount | None = None
    for mount in mounts:
        above = path == mount.folder or path.startswith(mount.folder.rstrip("/") + "/")
        if above and (found is None or len(mount.folder) >= len(found.folder)):
            found = mount
    return found


def why_not_local(mount: Mount) -> str:
    """What a mount is, where it is no disk of this host; else empty."""
    kind, _, program = mount.kind.partition(".")
    if kind in SHARED:
        return SHARED[kind]
    if kind != "fuse" or program in LOCAL_BY_FUSE:
        return ""
    if program in HDFS_BY_FUSE:
        return "HDFS by FUSE"
    return f"{program} by FUSE" if program else "FUSE"


def check_local(setting: str, folder: str | Path, mounts: Iterable[Mount], holds: str) -> None:
    """Raise UsageError naming `setting` when its folder, there or to be made, is not on a local disk.

    `holds`: what needs one.
    """
    path = os.path.realpath(folder)
    mount = mount_of(path, mounts)
    wrong = why_not_local(mount) if mount is not None else ""
    if mount is not None and wrong:
        raise UsageError(
            f"{setting} = {str(folder)!r} is on {wrong} ({mount.source}, mounted at {mount.folder}): {holds}. Name a folder"
            " on a disk of this host"
        )
