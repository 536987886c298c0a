"""The embedded name server and broker: as a fixture in a process, and as the front of a process of its own.

    async with EmbeddedBroker() as broker:                 # in memory, on free ports
        ... broker.name_server, broker.address

    run(BrokerConfig(dir="data"))                          # `rocketcrew broker`: until TERM or INT

Start: lock the folder, bind both ports, recover, then listen; so a second broker on the same folder or port ends with a
message before it changed anything. Stop: no new connections, close the old ones (clients see it and retry elsewhere), save
and sync, release the folder. Nothing that was acknowledged depends on the stop having happened.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import os
import resource
import signal
import socket
import ssl
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random, SystemRandom
from typing import Any, Self, cast

from ..client.access import Access
from ..client.key_files import is_regular, warn_if_open
from ..client.logs import get_logger
from ..client.remoting_client import Remoting
from ..client.tls import server_context
from ..durable.mounts import check_local
from ..durable.room import NO_ROOM
from ..remoting.errors import RocketcrewError, UsageError
from ..remoting.names import host_and_port
from .acl import Acl, parse_acl
from .config import BrokerConfig
from .core import BrokerCore
from .disk import AHEAD_BYTES, DiskStorage
from .edge import Clock, Edge, WallClock, connections_max
from .effects import SILENCE, Intercept
from .kernel_sync import KernelSync
from .name_server import KV_TABLE, NameServerCore
from .registering import Registering
from .storage import DiskFailed, MemoryStorage, Storage, StorageError

BACKLOG = 1_024
ANYWHERE = "192.0.2.1"  # of no machine (RFC 5737)
WILDCARDS = ("0.0.0.0", "::")

_log = get_logger("rocketcrew.broker")


class EmbeddedBroker:
    """A name server and a broker in the running event loop; an async context manager."""

    def __init__(
        self,
        dir: Path | str | None = None,
        *,
        name_server_port: int = 0,
        port: int = 0,
        delay_levels: str | None = None,
        config: BrokerConfig | None = None,
        storage: Storage | None = None,
        random: Random | None = None,
        clock_ms: Clock | None = None,
        access: Access | None = None,
    ) -> None:
        """`dir` None keeps everything in memory; port 0 takes a free one. Other settings come from `config`.

        `access` is how the name servers of `config.register_with` are reached: its credentials and its TLS are used.
        Give `storage` to start on what another one left (a MemoryStorage after a crash). Raises UsageError.
        """
        base = config or BrokerConfig()
        self.config = replace(
            base,
            name_server_port=name_server_port,
            port=port,
            dir=str(dir or ""),
            message_delay_level=delay_levels or base.message_delay_level,
        )
        self.intercepts: list[Intercept] = []
        self.name_server_intercepts: list[Intercept] = []
        self._storage = storage
        self._random = random or Random(SystemRandom().getrandbits(64))
        self._clock_ms = clock_ms or WallClock()
        self._access = access
        self._core: BrokerCore | None = None
        self._edge: Edge | None = None
        self._servers: list[asyncio.Server] = []
        self._registering: Registering | None = None
        self._waker: Waker | None = None

    @property
    def is_running(self) -> bool:
        return self._core is not None

    @property
    def core(self) -> BrokerCore:
        assert self._core is not None, "the broker is not running"
        return self._core

    @property
    def storage(self) -> Storage:
        assert self._storage is not None, "the broker was never started"
        return self._storage

    @property
    def name_server(self) -> str:
        """Address of the name server, "host:port"; known once started."""
        return host_and_port(self.config.announce or self.config.host, self.config.name_server_port)

    @property
    def address(self) -> str:
        """Address of the broker, "host:port"; known once started."""
        return self.config.address

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start, or start again after `stop` or `crash` on the same ports and data.

        Raises RocketcrewError when the folder is in use, a port is taken or the address is not up, which may pass; UsageError
        when the data cannot be read, or a port is only root's.
        """
        config = self.config
        tls = server_context(config.tls_cert_path, config.tls_key_path) if config.tls_cert_path else None
        acl = _read_acl(config.acl_file) if config.acl_file else None
        if tls is not None:
            warn_if_open("broker.tls_key_path", config.tls_key_path or config.tls_cert_path)
        remoting = Remoting(access=self._access) if config.register_with else None
        if self._storage is None:
            self._storage = self._own_storage()
        sockets: list[socket.socket] = []
        try:
            for name in ("name_server_port", "port"):
                sockets.append(_bind(self.config.host, getattr(self.config, name), name))
                self.config = replace(self.config, **{name: sockets[-1].getsockname()[1]})
            await self._serve(self._storage, sockets, tls, acl)
            if remoting is not None:
                self._registering = Registering(self.core.state, config.register_with, remoting)
        except BaseException:
            await self._close_connections(says_goodbye=False)
            self._core = None
            for bound in sockets:
                bound.close()
            self._give_up()
            raise

    def _own_storage(self) -> Storage:
        config = self.config
        if not config.dir:
            return MemoryStorage()
        if doubt := check_local("broker.dir", config.dir, "one broker alone may write there, by a lock of this host"):
            _log.warning("folder_may_be_shared", reason=doubt)
        ahead_bytes = AHEAD_BYTES if config.flush == "sync" else 0
        return DiskStorage(Path(config.dir), ahead_bytes=ahead_bytes, name=config.name)

    async def _serve(
        self, storage: Storage, sockets: list[socket.socket], tls: ssl.SSLContext | None, acl: Acl | None
    ) -> None:
        name_server = NameServerCore(storage, self._name_server_config())
        try:
            core = BrokerCore(self.config, storage, self._random, name_server, self._clock_ms())
        except StorageError as error:
            cause = error.__cause__
            if isinstance(cause, OSError) and cause.errno in NO_ROOM:
                raise StorageError(
                    f"{error}. The broker does not start without it: make room there, then start again"
                ) from error
            raise
        for event, fields in [*core.state.store.found.events(), *core.state.events]:
            _log.warning(event, dir=self.config.dir or None, **fields)
        core.acl = name_server.acl = acl
        core.intercepts = self.intercepts
        name_server.intercepts = self.name_server_intercepts
        files_max, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        edge = self._edge = Edge(core, name_server, self._clock_ms, connections_max(files_max))
        loop = asyncio.get_running_loop()
        for made, bound in zip((edge.name_server_connection, edge.broker_connection), sockets, strict=True):
            factory = made if tls is None else edge.over_tls(made, tls)
            self._servers.append(await loop.create_server(factory, sock=bound, backlog=BACKLOG))
        if isinstance(storage, DiskStorage):
            self._waker = Waker(loop, edge.flushed)
            storage.syncer.on_flush = self._waker.wake
            with contextlib.suppress(OSError):  # the thread does it
                storage.syncer.kernel = KernelSync(self._waker.fd)
        edge.start()
        self._core = core
        _log.info(
            "broker.ready",
            name_server=self.name_server,
            broker=self.address,
            dir=self.config.dir or None,
            records_read=core.recovered_records,
        )

    def _name_server_config(self) -> dict[str, str]:
        config = self.config
        return {
            "listenPort": str(config.name_server_port),
            "bindAddress": config.host,
            "kvConfigPath": f"{config.dir}/{KV_TABLE}" if config.dir else "",
        }

    async def stopped_or_failed(self, stop: asyncio.Event) -> None:
        """Wait for `stop`. Raises StorageError as soon as the disk did not keep what it had taken."""
        assert self._edge is not None, "the broker is not running"
        waits = [asyncio.ensure_future(stop.wait()), asyncio.ensure_future(self._edge.failed.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        if self.core.failed is not None:
            raise DiskFailed(
                f"{self.core.failed}. The broker stops, since what is on the disk now is unknown: look at the disk (dmesg), "
                "then start again; what the disk kept is read then"
            )

    def loop_failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """For whoever owns the loop: its exception handler (see Edge)."""
        assert self._edge is not None, "the broker is not running"
        self._edge.loop_failed(loop, context)

    async def stop(self) -> None:
        """Stop cleanly; does nothing when it does not run."""
        if self._core is None:
            return
        await self._close_connections()
        core, self._core = self._core, None
        try:
            core.stop()
        except BaseException:
            self._give_up()
            raise
        if core.failed is None:
            self._release()
        else:
            self._give_up()
        _log.info("broker.stopped", broker=self.address)

    async def crash(self) -> None:
        """For tests: end as a killed process does. Nothing is saved; a MemoryStorage loses what was not durable.

        `start` again, or a new EmbeddedBroker on the same folder or `storage`, finds what is left.
        """
        await self._close_connections(says_goodbye=False)
        self._core = None
        if isinstance(self._storage, MemoryStorage):
            self._storage.crash()
        elif isinstance(self._storage, DiskStorage):
            self._storage.abandon()
            self._storage = None
            self._close_waker()

    async def _close_connections(self, *, says_goodbye: bool = True) -> None:
        if self._registering is not None:
            await self._registering.stop(says_goodbye=says_goodbye)
            self._registering = None
        for server in self._servers:
            server.close()
        if self._edge is not None:
            self._edge.stop()
        self._servers.clear()
        await asyncio.sleep(0)  # one turn of the loop, in which the transports close their sockets

    def _release(self) -> None:
        try:
            if self._storage is not None:
                self._storage.close()
        finally:
            if isinstance(self._storage, DiskStorage):
                self._storage = None
            self._close_waker()

    def _give_up(self) -> None:
        """Release the folder after something failed. That says what to do: what fails of this too is not raised."""
        with contextlib.suppress(StorageError):
            self._release()

    def _close_waker(self) -> None:
        if self._waker is not None:
            self._waker.close()
            self._waker = None


def _read_acl(path: str) -> Acl:
    """The accounts of a file. Raises UsageError."""
    try:
        if not is_regular(path):
            raise UsageError(f"broker.acl_file {path} is no regular file")
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8"
        raise UsageError(f"broker.acl_file {path} cannot be read: {reason}") from None
    acl = parse_acl(text, path)
    warn_if_open("broker.acl_file", path)
    return acl


class Waker:
    """Wakes the loop from the thread that waits for the disk, or from the kernel that does.

    Not `call_soon_threadsafe`: that makes a handle in the thread, and costs the loop two reads and a turn more, with the
    interpreter's lock changing hands in between.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, woken: Callable[[], None]) -> None:
        self._loop = loop
        self._woken = woken
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.wake = partial(os.eventfd_write, self.fd, 1)
        loop.add_reader(self.fd, self._read)

    def _read(self) -> None:
        os.eventfd_read(self.fd)
        self._woken()

    def close(self) -> None:
        """When the thread has ended: it writes to the descriptor, which may be another file's afterwards."""
        if not self._loop.is_closed():
            self._loop.remove_reader(self.fd)
        os.close(self.fd)


def run(config: BrokerConfig, on_ready: Callable[[str, str], None] | None = None, access: Access | None = None) -> int:
    """Serve until TERM or INT; returns the exit code 0. `on_ready` gets the addresses of name server and broker; `access` is
    for those of others (see EmbeddedBroker).

    Raises before anything is served as EmbeddedBroker.start does; DiskFailed later.
    """
    return asyncio.run(_run(config, on_ready, access))


async def _run(config: BrokerConfig, on_ready: Callable[[str, str], None] | None, access: Access | None) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if is_open_to_all(config):
        _log.warning(
            "broker.open_to_all",
            host=config.host,
            reason="no broker.acl_file: whoever reaches these ports may read, send and delete",
        )
    announce = config.announce or (_own_address() if config.host in WILDCARDS else "")
    broker = EmbeddedBroker(
        config.dir,
        name_server_port=config.name_server_port,
        port=config.port,
        config=replace(config, announce=announce),
        access=access,
    )
    async with broker:
        loop.set_exception_handler(broker.loop_failed)
        if on_ready is not None:
            on_ready(broker.name_server, broker.address)
        await broker.stopped_or_failed(stop)
    return 0


def is_open_to_all(config: BrokerConfig) -> bool:
    """Whether others than this machine reach the ports, and nothing says who may do what."""
    return not config.acl_file and not ipaddress.ip_address(config.host).is_loopback


def _own_address() -> str:
    """The address from which this machine would send, else that of its name; clients elsewhere cannot use a wildcard."""
    found: list[str] = []
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((ANYWHERE, 9))  # sends nothing
        found.append(cast("tuple[str, int]", probe.getsockname())[0])
    with contextlib.suppress(OSError):
        found.append(socket.gethostbyname(socket.gethostname()))
    address = usable_address(found)
    if address is None:
        raise UsageError(
            "broker host is a wildcard and this machine has no address to the outside: set the address to announce"
        )
    return address


def usable_address(found: list[str]) -> str | None:
    """The first one that means this machine to others too."""
    for address in found:
        parsed = ipaddress.ip_address(address)
        if not (parsed.is_loopback or parsed.is_unspecified):
            return address
    return None


def _bind(host: str, port: int, name: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
        bound.listen(BACKLOG)  # now, since bind alone does not keep a second one from binding; who connects early waits
        bound.setblocking(False)
    except OSError as error:
        bound.close()
        if error.errno == errno.EADDRINUSE:
            reason = "is in use (another broker?): stop that one, or choose another"
        else:
            reason = f"cannot be bound: {error.strerror}"
        kind = UsageError if error.errno == errno.EACCES else RocketcrewError  # all else may pass by itself
        raise kind(f"broker {name} {port} on {host} {reason}") from error
    return bound


__all__ = ["SILENCE", "EmbeddedBroker", "Intercept", "run"]
