"""Files that a later version of this program has made: they are refused, and stay as they are. Pure.

An earlier version of a format, or no number at all, is a ValueError, as for bytes that nobody has written: what is done with
these is for the reader to say.
"""

from __future__ import annotations

from ..remoting.errors import UsageError


class LaterVersionError(UsageError):
    """A file of a version that is not known yet. No ValueError: as such it would be set aside like a damaged one."""


def later_version(where: object, found: object, known: int) -> LaterVersionError:
    """The error of the file `where`; `found` says what is not known in it."""
    return LaterVersionError(
        f"{where} was made by a later version of rocketcrew (it has {found}, this one knows {known}): run that version or a"
        " newer one; nothing was changed"
    )


def check_version(found: object, known: int, where: object) -> None:
    """Raise LaterVersionError for a higher number than is known, ValueError for anything else that is not it."""
    if type(found) is int and found > known:
        raise later_version(where, f"version {found}", known)
    if found != known:
        raise ValueError(f"version {found!r}, this program knows {known}")
