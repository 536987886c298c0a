"""The embedded broker as a child of a command: its own, and certainly so.

The child says that it is ready and who it is, by its process id, over a pipe that nobody else has. That somebody listens on
the port proves nothing: it may be another program, and its messages would be consumed. A port that is taken means another
free pair of ports, said in one line. The child is watched for as long as the command lives: without it there is nothing to
consume from, so its death is an error and the end of the command.
"""

from __future__ import annotations

import dataclasses
import os
import select
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, cast

import click
import structlog

from ..conf.settings import BrokerSettings, Settings, way_to_own_broker, with_values
from ..conf.sources import without_settings
from .children import Child, ChildError

START_S: Final = 30.0
STOP_S: Final = 10.0

log = structlog.get_logger("rocketcrew.embedded")


class EmbeddedBroker:
    """A broker that runs. Its clients get its address as settings, by `reached_by`: what else is set of the way into a
    cluster (TLS, an account, the VIP port) does not lead to this broker."""

    def __init__(self, child: Child, settings: BrokerSettings, name_server: str) -> None:
        self.child = child
        self._settings = settings
        self.shown = name_server
        """Its name server, for messages."""
        self.folder = str(Path(settings.dir).absolute())
        """By which it is known again at other ports."""
        self._pidfd = os.pidfd_open(child.pid)
        self._lost = False

    def fileno(self) -> int:
        """A descriptor that becomes readable when the broker ends."""
        return self._pidfd

    def reached_by(self, settings: Settings) -> Settings:
        """`settings` for its clients."""
        return on_own_broker(settings, (self.shown,), self._settings)

    def died(self) -> None:
        """It has ended, and nobody has asked it to: logged now, raised by `close`."""
        self._lost = True
        log.error("embedded_broker_died", how=self.child.how_it_ended(), pid=self.child.pid, log=str(self.child.log))

    def watch_by_thread(self, on_death: Callable[[], None]) -> None:
        """Call `died` and `on_death` in a thread when the broker ends: for commands without an event loop."""

        def wait() -> None:
            poll = select.poll()
            poll.register(self._pidfd, select.POLLIN)
            poll.poll()
            if not self.child.stopping:
                self.died()
                on_death()

        threading.Thread(target=wait, name="embedded-broker", daemon=True).start()

    def close(self) -> None:
        """Stop it. Raises ChildError when it had died before."""
        self.child.stop(STOP_S)
        os.close(self._pidfd)
        if self._lost:
            raise ChildError(
                f"the embedded broker {self.child.how_it_ended()} while messages were consumed from it; what it had"
                f" acknowledged is kept, and consumed after the next start. Its log, {self.child.log}, ends so:\n"
                f"{self.child.tail()}"
            )


def on_own_broker(settings: Settings, name_servers: tuple[str, ...], broker: BrokerSettings | None) -> Settings:
    """The settings for clients of a broker of ours, without what they say of the way into a cluster. TLS and an account stay
    where `broker`, None = one as it comes, wants them. Pure."""
    tls, account = (broker.tls_cert_path, broker.acl_file) if broker is not None else ("", "")
    way = way_to_own_broker(tls=bool(tls), account=bool(account))
    return with_values(settings, {**way, "cluster.name_servers": name_servers})


def start_broker(settings: BrokerSettings, log_file: Path, check: Callable[[], None] = lambda: None) -> EmbeddedBroker:
    """Start a broker on the configured ports, or on free ones where one is taken; returns when it is ready.

    Raises ChildError when it does not start: with the end of its log; and what `check` raises, which is called while it
    waits: then no broker is left.
    """
    ports, taken = choose_ports(settings)
    try:
        found = _start(settings, ports, log_file, check)
    except ChildError:
        ports, taken = choose_ports(settings)
        if taken is None:
            raise
        found = _start(
            settings, ports, log_file, check
        )  # somebody took it between the look and the broker's own binding
    if taken is not None:
        click.echo(
            f"port {taken} is taken by another program: the embedded broker listens on free ones (-n {found.shown})",
            err=True,
        )
    return found


def choose_ports(settings: BrokerSettings) -> tuple[tuple[int, int], int | None]:
    """The ports of name server and broker, and the configured one that is taken: then both are 0, any free ones."""
    wanted = (settings.name_server_port, settings.port)
    taken = next((port for port in wanted if port and is_taken(settings.host, port)), None)
    return (wanted, None) if taken is None else ((0, 0), taken)


def is_taken(host: str, port: int) -> bool:
    """Whether somebody else listens there, found out as the broker will: by binding."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen()
        except OSError:
            return True
    return False


def as_flags(settings: BrokerSettings) -> list[str]:
    """The settings as words of a command line."""
    words: list[str] = []
    for field in dataclasses.fields(settings):
        value: object = getattr(settings, field.name)
        text = ";".join(map(str, cast("tuple[object, ...]", value))) if isinstance(value, tuple) else str(value)
        words += ["--set", f"broker.{field.name}={text}"]
    return words


def _start(
    settings: BrokerSettings, ports: tuple[int, int], log_file: Path, check: Callable[[], None]
) -> EmbeddedBroker:
    on_ports = dataclasses.replace(settings, name_server_port=ports[0], port=ports[1])
    words = ["broker", "--json", "--set", "log.file=", *as_flags(on_ports)]
    env = without_settings(
        os.environ
    )  # an access key in our file, its secret in the environment: it would have the half
    child = Child("embedded broker", words, log=log_file, announces=True, own_log=True, env=env)
    try:
        ready = child.announcement(START_S, check)
    except BaseException:
        child.stop(STOP_S)
        raise
    return EmbeddedBroker(child, settings, ready["name_server"])
