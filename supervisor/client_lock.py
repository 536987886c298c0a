"""One client id is in a group once: the second is refused at its start (MQClientInstance.registerConsumer).

Java knows the consumers of its own process. Here a client is a process, so the lock is a file beside the group's slots,
which goes with the process however it ends. Two members with one id would both take the queues that fall to that id; two
broadcasting ones would write one file of offsets.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from ..durable.files import try_lock
from ..remoting.errors import UsageError

CLIENTS_FOLDER = "clients"
NAME_CHARACTERS_MAX = 200


def lock_client(data_dir: Path, group: str, client_id: str) -> int:
    """Lock the client id for this process; the descriptor that holds the lock. Raises UsageError when it is held."""
    path = _lock_file(data_dir, group, client_id)
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        fd = try_lock(path)
        if fd is None:
            raise UsageError(
                f"The consumer group[{group}] has been created before, specify another name please: a supervisor with the"
                f" client id {client_id} already runs in it on this host. Give each its own cluster.instance_name"
            )
        if _is_still(path, fd):
            return fd
        os.close(fd)  # the one who held it has removed the file in between


def unlock_client(data_dir: Path, group: str, client_id: str, fd: int) -> None:
    """Give the id back and remove its file: client ids of clustering members are new at each start."""
    _lock_file(data_dir, group, client_id).unlink(missing_ok=True)
    os.close(fd)


def _lock_file(data_dir: Path, group: str, client_id: str) -> Path:
    name = re.sub(r"[^A-Za-z0-9._#@-]", "_", client_id)[:NAME_CHARACTERS_MAX]
    return data_dir / group / CLIENTS_FOLDER / f"{name}.lock"


def _is_still(path: Path, fd: int) -> bool:
    try:
        return os.fstat(fd).st_ino == path.stat().st_ino
    except FileNotFoundError:
        return False
