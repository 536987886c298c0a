"""A disk that is full, and a data folder that cannot be used."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Generator
from pathlib import Path
from typing import Final

from ..remoting.errors import RocketcrewError, UsageError

NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)
"""What a disk says that is full, or of which this user may have no more."""


def unusable(data_dir: str | Path, error: OSError, where: str = "on a local disk") -> RocketcrewError:
    """The error for a data folder in which nothing can be made; `where` another one is to be. A disk that is full is nothing
    that the caller has done wrong (UsageError): whoever starts supervisors again may do so."""
    place = f" ({error.filename})" if error.filename else ""  # what writes into an open file does not say which
    said = f"supervisor.data_dir = {str(data_dir)!r} cannot be used: {error.strerror or error}{place}"
    if error.errno in NO_ROOM:
        return RocketcrewError(f"{said}. Make room on that disk, and start again: what is there is kept")
    return UsageError(f"{said}. Name a folder that this user may write, {where}")


@contextlib.contextmanager
def needs_room(data_dir: str | Path) -> Generator[None]:
    """Within this, that the disk of the data folder is full is told as such."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_ROOM:
            raise unusable(data_dir, error) from error
        raise
