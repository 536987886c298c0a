"""Whose a file or folder is and who may read it: what replaces others has the same, whoever runs the compaction.

What root does in a folder of somebody else is done as him, with none of root's rights: whoever may write there may put a link
in the place of any name at any moment, and root, who goes by the name, would write, read or give away what the link leads to.
As the folder's owner nobody gets at more than he does anyway. Root itself changes only names in folders where nobody else can
(`is_root_s`), and the group of what he has made and has open: to the table's, where he is not in that himself.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
import stat
import struct
from collections.abc import Generator
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ..remoting.errors import UsageError

_ACLS: Final = ("system.posix_acl_access", "system.posix_acl_default")
_ACL_HEAD: Final = struct.pack("<I", 2)
_ACL_ENTRY: Final = struct.Struct("<HHI")
"""Tag, rights, and id, as Linux has them (posix_acl_xattr.h)."""
_NO_ID: Final = 0xFFFFFFFF
_OWNER: Final = (1, _NO_ID)
_USER: Final = 2
_OWN_GROUP: Final = (4, _NO_ID)
_GROUP: Final = 8
_MASK: Final = (16, _NO_ID)
_OTHERS: Final = (32, _NO_ID)
_READ_WRITE: Final = 0o666
_OTHERS_WRITE: Final = 0o022
"""With an ACL the group's bits are its mask."""
_lent: ContextVar[int] = ContextVar("lent", default=0)
"""The group that root gives to what an owner makes; 0 = none."""


@dataclass(frozen=True, slots=True)
class Rights:
    """The owner, the group, st_mode, and the ACLs of one file or folder."""

    user: int
    group: int
    mode: int
    acls: tuple[bytes | None, ...]


@contextlib.contextmanager
def as_owner_of(folder: Path, owner: os.stat_result) -> Generator[None]:
    """Where we are root and the folder is its `owner`'s, all threads of this process are him meanwhile. What is imported is
    to be there before: he may have no way to it. Raises UsageError."""
    if os.geteuid() != 0 or owner.st_uid == 0:
        yield
        return
    groups, group = os.getgroups(), os.getegid()
    lent = _lent.set(owner.st_gid)
    try:
        _become(folder, owner)
        yield
    finally:
        _lent.reset(lent)
        os.seteuid(0)
        os.setegid(group)
        with contextlib.suppress(OSError):  # in a namespace where nobody may, and so has not
            os.setgroups(groups)


@contextlib.contextmanager
def as_root() -> Generator[None]:
    """Within `as_owner_of` root again."""
    user = os.geteuid()
    os.seteuid(0)
    try:
        yield
    finally:
        os.seteuid(user)


def is_root_s(folder: Path) -> bool:
    """Whether this is root in another user's place, and root alone changes the names in the folder, which has no links in its
    path: all above it are root's, too, and where others write there, its own name is root's (the sticky bit). Raises OSError.
    """
    own, *above = (one.lstat() for one in (folder, *folder.parents))
    return (
        os.getuid() == 0 != os.geteuid()
        and not any(found.st_uid for found in (own, *above))
        and not own.st_mode & _OTHERS_WRITE
        and all(not found.st_mode & _OTHERS_WRITE or found.st_mode & stat.S_ISVTX for found in above)
    )


def _become(folder: Path, owner: os.stat_result) -> None:
    main, *others = _groups_of(owner.st_uid, owner.st_gid)
    try:
        os.setgroups([main, *others])
        os.setegid(main)
        os.seteuid(owner.st_uid)
    except OSError as error:
        raise UsageError(
            f"{folder} belongs to user {owner.st_uid}, whom this process can't become ({error.strerror}): run it as him"
        ) from None
    if not os.access(folder, os.R_OK | os.X_OK, effective_ids=True):
        raise UsageError(
            f"{folder} belongs to user {owner.st_uid}, as whom root works in it, and he can't read it there"
        )


def _groups_of(user: int, group: int) -> list[int]:
    """Those that the user is in, the given one first where it is among them; a user without a name, as in a container, is in
    that one alone, but never in root's."""
    with contextlib.suppress(KeyError):
        known = pwd.getpwuid(user)
        his = os.getgrouplist(known.pw_name, known.pw_gid)
        return sorted(his, key=lambda one: (one != group, one != known.pw_gid))
    return [group or user]


def rights_of(path: Path) -> Rights:
    """Raises OSError."""
    found = path.stat()
    try:
        names = os.listxattr(path)
    except OSError:  # its file system has none
        names = []
    acls = tuple(_acl(path, name) if name in names else None for name in _ACLS)
    return Rights(found.st_uid, found.st_gid, found.st_mode, acls)


def _acl(of: Path | int, name: str) -> bytes | None:
    try:
        return os.getxattr(of, name)
    except OSError:  # it has none, or its file system
        return None


def _set_acl(of: Path | int, name: str, acl: bytes | None) -> None:
    if acl is not None:
        os.setxattr(of, name, acl)
    elif _acl(of, name) is not None:
        os.removexattr(of, name)


def give(made: Path, rights: Rights) -> None:
    """Give what we have made to its group. To another user nothing is given: who has it may put a link to what is root's in
    its place while we work in it. Raises OSError."""
    found = made.stat()
    if rights.user != found.st_uid:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(made))
    if rights.group != found.st_gid and not _by_root(made, rights):
        os.lchown(made, -1, rights.group)


def _by_root(made: Path, rights: Rights) -> bool:
    """Whether root has given what this owner has made the table's group, and a folder its set-group-ID bit. A file gets no
    such bit: it would be a program of that group's."""
    if not rights.group or rights.group != _lent.get():
        return False
    descriptor = os.open(made, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        is_folder = stat.S_ISDIR(found.st_mode)
        if found.st_uid != os.geteuid() or not (is_folder or stat.S_ISREG(found.st_mode)):
            return False
        with as_root():
            if found.st_gid != rights.group:
                os.fchown(descriptor, -1, rights.group)
            if is_folder and found.st_mode != rights.mode:
                os.fchmod(descriptor, stat.S_IMODE(rights.mode))
    finally:
        os.close(descriptor)
    return True


def set_rights(made: Path, rights: Rights) -> None:
    """Give it to its group, with the mode and the ACLs; those that it has from its folder go. Raises OSError."""
    give(made, rights)
    for name, acl in zip(_ACLS, rights.acls, strict=True):
        _set_acl(made, name, acl)
    if made.stat().st_mode != rights.mode:
        made.chmod(stat.S_IMODE(rights.mode))  # behind the others, which take bits away
    # Set-group-ID, where we are not of the group: no error was raised.
    if made.stat().st_mode != rights.mode and not _by_root(made, rights):
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(made))


def make_alike(file: int, model: Path) -> None:
    """Give an open file of ours, as far as this user may, to whom the model belongs, with its rights: who reads the one reads
    the other, whatever our umask and its folder's ACL are. A model that is gone gives nothing."""
    try:
        rights = rights_of(model)
    except FileNotFoundError:
        return
    with contextlib.suppress(OSError):  # of a group's members each may
        os.fchown(file, -1, rights.group)
    with contextlib.suppress(OSError):
        os.fchown(file, rights.user, -1)
    found = os.fstat(file)
    mode, acl = rights.mode & _READ_WRITE, rights.acls[0]
    if (found.st_uid, found.st_gid) != (rights.user, rights.group):
        with contextlib.suppress(OSError):
            os.setxattr(file, _ACLS[0], _by_name(rights, found.st_uid, found.st_gid))
            return  # it has set the mode, too, whose group bits are the ACL's mask now
        if found.st_gid != rights.group:
            mode = _of_another_group(mode)
    with contextlib.suppress(OSError):
        _set_acl(file, _ACLS[0], acl)
    with contextlib.suppress(OSError):
        os.fchmod(file, mode)


def mode_beside(model: Path) -> int:
    """The mode that a new file beside the model may have: what the model gives its group only where that is the new file's,
    too. Raises OSError."""
    rights, folder = rights_of(model), model.parent.stat()
    mode = stat.S_IMODE(rights.mode)
    group = folder.st_gid if folder.st_mode & stat.S_ISGID else os.getegid()
    alike = rights.group == group and rights.acls[0] is None  # with an ACL the mode's bits are its mask
    return mode if alike else _of_another_group(mode)


def _of_another_group(mode: int) -> int:
    """For a file whose group's members are others to the model."""
    return mode & ~0o070 | (mode & 0o007) << 3


def _by_name(rights: Rights, user: int, group: int) -> bytes:
    """The ACL by which a file of `user` and `group` lets in whom one with `rights` lets in: its owner and its group by their
    names. Pure."""
    entries: dict[tuple[int, int], int] = {_OWNER: rights.mode >> 6, _OWN_GROUP: rights.mode >> 3, _OTHERS: rights.mode}
    if known := rights.acls[0]:
        entries = {(tag, of): bits for tag, bits, of in _ACL_ENTRY.iter_unpack(known[len(_ACL_HEAD) :])}
    mask = entries.pop(_MASK, 0o7)
    for one in entries:  # what counts of it, as the new mask is another one
        entries[one] &= 0o6 & (0o7 if one in (_OWNER, _OTHERS) else mask)
    if user != rights.user:
        entries[_USER, rights.user] = entries[_OWNER]
    if group != rights.group:
        named = (_GROUP, rights.group)
        entries[named] = entries.get(named, 0) | entries[_OWN_GROUP]
        entries[_OWN_GROUP] = entries[_OTHERS]  # so they were to the model; but some may be of a group that reads less
        for tag, of in entries:
            if tag == _GROUP:
                entries[_OWN_GROUP] &= entries[tag, of]
    entries[_MASK] = 0
    for one in entries.keys() - {_OWNER, _OTHERS}:
        entries[_MASK] |= entries[one]
    return _ACL_HEAD + b"".join(_ACL_ENTRY.pack(tag, bits, of) for (tag, of), bits in sorted(entries.items()))
