"""Whose a file or folder is and who may read it: what replaces others has the same, whoever runs the compaction."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_ACLS: Final = ("system.posix_acl_access", "system.posix_acl_default")


@dataclass(frozen=True, slots=True)
class Rights:
    """The owner, the group, st_mode, and the ACLs of one file or folder."""

    user: int
    group: int
    mode: int
    acls: tuple[bytes | None, ...]


def rights_of(path: Path) -> Rights:
    """Raises OSError."""
    found = path.stat()
    return Rights(found.st_uid, found.st_gid, found.st_mode, tuple(_acl(path, name) for name in _ACLS))


def _acl(path: Path, name: str) -> bytes | None:
    try:
        return os.getxattr(path, name)
    except OSError:  # it has none, or its file system
        return None


def give(made: Path, rights: Rights) -> None:
    """Give what we have made to its owner and group. Raises OSError."""
    found = made.stat()
    if (rights.user, rights.group) != (found.st_uid, found.st_gid):
        os.lchown(made, rights.user, rights.group)


def set_rights(made: Path, rights: Rights) -> None:
    """Give it to its owner and group, with the mode and the ACLs; those that it has from its folder go. Raises OSError."""
    give(made, rights)
    for name, acl in zip(_ACLS, rights.acls, strict=True):
        if acl is not None:
            os.setxattr(made, name, acl)
        elif _acl(made, name) is not None:
            os.removexattr(made, name)
    if made.stat().st_mode != rights.mode:
        made.chmod(stat.S_IMODE(rights.mode))  # behind the others, which take bits away
    if made.stat().st_mode != rights.mode:  # set-group-ID, where we are not of the group: no error is raised
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(made))


def make_alike(file: int, models: Sequence[Path]) -> None:
    """Give an open file of ours, as far as this user may, to whom the last model belongs, with the rights that all models
    give: others go on to read it, whatever our umask is. Models that are gone give nothing."""
    with contextlib.suppress(FileNotFoundError):
        found = [model.stat() for model in models]
        mode = 0o666
        for one in found:
            mode &= one.st_mode
        with contextlib.suppress(OSError):  # of a group's members each may
            os.fchown(file, -1, found[-1].st_gid)
        if os.fstat(file).st_gid != found[-1].st_gid:
            mode &= ~0o070  # what is for that group is not for ours
        with contextlib.suppress(OSError):
            os.fchown(file, found[-1].st_uid, -1)
        with contextlib.suppress(OSError):
            os.fchmod(file, mode)
