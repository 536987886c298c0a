"""What is checked before the forkserver is started, and what it imports."""

from __future__ import annotations

import json
import subprocess
import sys

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


def test_nothing_is_collected_while_the_forkserver_imports_what_workers_need() -> None:
    """But once afterwards, and once at the end, before what is left is kept from the collector."""
    look = (
        "import gc, json, os, sys, tempfile\n"
        "from rocketcrew.workers.preload import prepare_forkserver\n"
        "seen = []\n"
        "gc.callbacks.append(lambda phase, _: seen.append(phase))\n"
        "with tempfile.NamedTemporaryFile() as stacks:\n"
        "    setup = {'supervisor_pid': os.getppid(), 'sys_path': sys.path, 'modules': [], 'stacks': stacks.name}\n"
        "    prepare_forkserver(setup)\n"
        "print(json.dumps([seen.count('start'), gc.isenabled(), 'pyarrow' in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-Ic", look], capture_output=True, text=True, timeout=240, check=True)
    collections, enabled, imported = json.loads(done.stdout)
    assert enabled
    assert imported
    assert collections <= 2
