"""Files that say who we are: key files, and the rule that holds for certificates and accounts too, regular files only."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from ..remoting.errors import UsageError
from .access import Credentials

KEY_FILE_BYTES_MAX = 64 * 1024
_NAMES = {"AccessKey": "access_key", "SecretKey": "secret_key", "SecurityToken": "security_token"}
"""Lines of a key file (acl/common/SessionCredentials.java)."""


def is_open_to_all(path: str) -> bool:
    """Whether everybody on this machine can read the file, as far as it goes by the file's own rights."""
    try:
        return bool(os.stat(path).st_mode & stat.S_IROTH)
    except OSError:
        return False  # said by who reads it


def warn_if_open(setting: str, path: str) -> None:
    """Log that everybody can read this file of secrets, which `setting` names or stands in."""
    if is_open_to_all(path):
        from .logs import get_logger  # help says nothing, and logs bring the event loop

        reason = "everybody on this machine can read its secrets: chmod 600"
        get_logger("rocketcrew.client").warning("secret_file_open_to_all", setting=setting, file=path, reason=reason)


def is_regular(path: str) -> bool:
    """Whether it is a regular file: to read a FIFO would wait, for ever perhaps, and deaf to signals. Raises OSError."""
    return stat.S_ISREG(os.stat(path).st_mode)


def check_regular(*paths: str) -> None:
    """Raises OSError, with its path, for the first that is no regular file. An empty path is none."""
    for path in filter(None, paths):
        if not is_regular(path):
            raise OSError(errno.EINVAL, f"{path} is no regular file")


def read_key_file(path: str, where: str) -> Credentials:
    """The keys of a file with the lines `AccessKey=...`, `SecretKey=...` and perhaps `SecurityToken=...`.

    Raises UsageError, which begins with `where`, for a file that cannot be read or lacks a key.
    """
    try:
        if not is_regular(path):
            raise UsageError(f"{where} is no regular file")
        with Path(path).open(encoding="utf-8-sig") as file:  # Windows' editors begin files by a mark
            text = file.read(KEY_FILE_BYTES_MAX)
    except OSError as error:
        raise UsageError(f"{where} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{where} is not UTF-8") from None
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, equals, value = line.strip().partition("=")
        if equals and name.strip() in _NAMES:
            found[_NAMES[name.strip()]] = value.strip()
    if not (found.get("access_key") and found.get("secret_key")):
        raise UsageError(f"{where} needs the lines AccessKey=... and SecretKey=...")
    return Credentials(**found)
