"""`rocketcrew broker`: the embedded name server and broker as a process of its own."""

from __future__ import annotations

from dataclasses import asdict

import click

from ..broker.config import BrokerConfig
from ..broker.server import run
from ..conf.settings import Settings
from .options import with_settings


@click.command()
@click.option("--host", metavar="IP", help="Address to listen on.")
@click.option("--port", type=int, metavar="PORT", help="Port of the broker.")
@click.option("--name-server-port", type=int, metavar="PORT", help="Port of the name server.")
@click.option("--dir", "folder", metavar="PATH", help="Folder of its data; made where it is missing.")
@with_settings(
    host="broker.host", port="broker.port", name_server_port="broker.name_server_port", folder="broker.dir"
)
def broker(settings: Settings) -> int:
    """Run a name server and a broker, enough for development, tests and one machine.

    It speaks RocketMQ's own protocol, so Java clients and mqadmin can use it too. Acknowledged messages survive a kill.
    TERM or INT stop it cleanly.
    """
    return run(BrokerConfig(**asdict(settings.broker)), _tell)


def _tell(name_server: str, address: str) -> None:
    click.echo(f"name server {name_server}, broker {address}", err=True)
