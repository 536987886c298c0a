"""What is checked before the forkserver is started."""

from __future__ import annotations

import pytest

from rocketcrew.remoting.errors import UsageError
from rocketcrew.workers.spawn import SOCKET_FOLDER_MAX_BYTES, check_socket_folder

UNIX_PATH_MAX_BYTES = 107
"""sun_path in unix(7) without the byte that ends it."""


def test_a_folder_without_room_for_the_forkservers_socket_is_named() -> None:
    fits = "/" + "x" * (SOCKET_FOLDER_MAX_BYTES - 1)
    assert len(f"{fits}/pymp-12345678/listener-12345678") == UNIX_PATH_MAX_BYTES
    check_socket_folder(fits)
    with pytest.raises(UsageError, match=r"/xx+y, has .* set TMPDIR to one of at most 75 bytes"):
        check_socket_folder(fits + "y")
    with pytest.raises(UsageError):  # bytes are counted, not characters
        check_socket_folder("/" + "é" * 40)
