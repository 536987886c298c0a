from collections.abc import Sequence
from threading import Lock

class ForkServer:
    _forkserver_pid: int | None
    _forkserver_alive_fd: int | None
    _forkserver_address: str | None
    _lock: Lock
    def set_forkserver_preload(self, modules_names: list[str]) -> None: ...
    def connect_to_new_process(self, fds: Sequence[int]) -> tuple[int, int]: ...
    def ensure_running(self) -> None: ...

_forkserver: ForkServer

def read_signed(fd: int) -> int: ...
