"""What the kernel says of this host: which folders are on a disk of it, by the table of mounts, and which of its starts this
is. Pure but for `mount_table`, `opened_mount` and `boot_id`.

Locks, mapped cells and the journal need one: of a file system that several hosts share, flock may be kept by each host for
itself, a mapped page be older than the file, and a rename that was answered be undone. What is known to be shared is refused;
FUSE programs that are not known, and folders that a virtual machine has of its host, which may be sound, get a warning.
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
    "orangefs": "OrangeFS", "pvfs2": "OrangeFS", "ocfs2": "OCFS2", "gfs2": "GFS2",
}  # fmt: skip
"""File systems that other hosts write too, by the kernel's names."""
OF_ANOTHER_MACHINE: Final = frozenset({"9p", "virtiofs", "vboxsf", "prl_fs", "fakeowner"})
"""How a virtual machine or container sees a folder of its host: it may be this one's alone, or not."""
SHARED_BY_FUSE: Final = {
    "fuse_dfs": "HDFS", "hdfs": "HDFS",
    **{
        name: name
        for name in (
            "sshfs", "s3fs", "goofys", "mountpoint-s3", "gcsfuse", "blobfuse", "blobfuse2", "rclone", "rclonefs", "juicefs",
            "seaweedfs", "glusterfs", "ceph", "ceph-fuse", "mfs", "moosefs", "lizardfs", "saunafs", "alluxio-fuse", "dfuse",
            "curlftpfs", "davfs", "davfs2", "smbnetfs", "gvfsd-fuse", "cvmfs2", "afpfs", "onedriver",
        )
    },
}  # fmt: skip
"""FUSE programs whose files are elsewhere."""
LOCAL_BY_FUSE: Final = frozenset(
    {
        "bindfs", "cryfs", "ecryptfs", "encfs", "exfat", "exfat-fuse", "fuse-overlayfs", "gocryptfs", "lxcfs", "mergerfs",
        "mhddfs", "ntfs", "ntfs-3g", "overlayfs", "securefs", "shfs", "unionfs", "unionfs-fuse", "veracrypt", "zfs",
    }
)  # fmt: skip
"""What FUSE programs make of local disks."""
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")
_NUMBER: Final = re.compile(r"^mnt_id:\s*(\d+)$", re.MULTILINE)


class Mount(NamedTuple):
    """One line of the table."""

    folder: str
    kind: str
    source: str
    number: int = -1
    """The kernel's own; a folder that is opened tells which it is on."""


def mount_table(path: Path = MOUNTS) -> list[Mount]:
    """All mounts of this process; none where the kernel does not say."""
    try:
        return parse_mounts(path.read_text(encoding="utf-8", errors="surrogateescape"))
    except OSError:
        return []


def parse_mounts(text: str) -> list[Mount]:
    """What /proc/self/mountinfo says, in its order (proc_pid_mountinfo(5)); lines of another form are passed over."""
    found: list[Mount] = []
    for line in text.split("\n"):  # a folder may be named with another separator of lines
        before, separated, after = line.partition(" - ")
        words, facts = before.split(" "), after.split(" ")
        if separated and len(words) > 4 and len(facts) > 1:
            number = int(words[0]) if words[0].isdigit() else -1
            found.append(Mount(_plain(words[4]), facts[0], _plain(facts[1]), number))
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


def opened_mount(folder: str) -> int:
    """The number of the mount that a folder, or the nearest one above it, is on; -1 where the kernel does not say.

    It is opened, as only then an automount is there.
    """
    while True:
        try:
            fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            if folder == "/":
                return -1
            folder = os.path.dirname(folder)
            continue
        except OSError:
            return -1
        try:
            said = Path(f"/proc/self/fdinfo/{fd}").read_text(encoding="ascii")
        except OSError:
            return -1
        finally:
            os.close(fd)
        match = _NUMBER.search(said)
        return int(match[1]) if match else -1


def why_not_local(mount: Mount) -> str:
    """What a mount is, where it is known to be shared; else empty."""
    kind, _, _ = mount.kind.partition(".")
    if kind in SHARED:
        return SHARED[kind]
    program = _fuse_program(mount)
    return f"{SHARED_BY_FUSE[program]} by FUSE" if program in SHARED_BY_FUSE else ""


def why_in_doubt(mount: Mount) -> str:
    """What a mount is, where it may be shared; else empty."""
    if mount.kind in OF_ANOTHER_MACHINE:
        return f"{mount.kind}, a folder of another machine"
    program = _fuse_program(mount)
    known = program is None or program in LOCAL_BY_FUSE or program in SHARED_BY_FUSE
    return "" if known else f"{program} by FUSE"


def _fuse_program(mount: Mount) -> str | None:
    """The program of a FUSE mount, which names itself as the kind or as the source."""
    kind, _, program = mount.kind.partition(".")
    return program or mount.source if kind == "fuse" else None


def check_local(setting: str, folder: str | Path, holds: str, mounts: Iterable[Mount] | None = None) -> str:
    """What to warn of when a folder, there or to be made, may be shared with other hosts; empty when it is local.

    Raises UsageError naming `setting` when it is shared. `holds`: what needs a local one. `mounts`: None for those of this
    process.
    """
    path = os.path.realpath(folder)
    number = opened_mount(path)
    table = mount_table() if mounts is None else list(mounts)  # only now, with what was mounted by opening the folder
    by_number = [mount for mount in table if mount.number == number >= 0]
    mount = by_number[-1] if by_number else mount_of(path, table)
    if mount is None:
        return ""
    if wrong := why_not_local(mount):
        raise UsageError(
            f"{setting} = {str(folder)!r} is on {wrong} ({mount.source}, mounted at {mount.folder}): {holds}. Name a folder"
            " on a disk of this host"
        )
    if doubt := why_in_doubt(mount):
        return (
            f"{setting} = {str(folder)!r} is on {doubt} ({mount.source}, mounted at {mount.folder}), which other hosts may"
            f" write too: {holds}. Name a folder on a disk of this host, unless this one is"
        )
    return ""


def boot_id() -> str:
    """What tells this run of the machine from the one before; empty where nothing does."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
