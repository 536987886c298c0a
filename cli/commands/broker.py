"""`rocketcrew broker`: the embedded name server and broker as a process."""

from __future__ import annotations

import dataclasses
import json
import os

import click

from ...broker.config import BrokerConfig
from ...broker.server import run
from ...conf.settings import Settings
from ..options import with_settings


@click.command()
@click.option("--dir", "folder", metavar="FOLDER", help="Where messages and offsets live. Made when it is not there.")
@click.option("--host", metavar="IP", help="IP address to listen on.")
@click.option("--announce", metavar="IP", help="IP address that clients are told, where it is not the one listened on.")
@click.option("--name-server-port", type=int, metavar="PORT", help="Port of the name server; 0 = any free one.")
@click.option("--port", type=int, metavar="PORT", help="Port of the broker; 0 = any free one.")
@click.option("--delay-levels", metavar="LEVELS", help="Delays of the retry levels, as in '1s 5s 10s 30s 1m'.")
@click.option("--json", "as_json", is_flag=True, help="When ready, print one JSON object with both addresses.")
@with_settings(
    folder="broker.dir",
    host="broker.host",
    announce="broker.announce",
    name_server_port="broker.name_server_port",
    port="broker.port",
    delay_levels="broker.message_delay_level",
)
def broker(settings: Settings, as_json: bool) -> None:
    """Run RocketMQ's name server and broker in one process, without Java.

    It speaks RocketMQ's protocol on RocketMQ's ports (name server 127.0.0.1:9876, broker :10911), so clients in any
    language work with it. What it acknowledged survives its own kill -9. It is for one machine: no replication, no
    access control, no transactions. One line is printed when it is ready; TERM or INT (Ctrl-C) stops it cleanly.

    \b
    Examples:
      rocketcrew broker
      rocketcrew broker --dir /tmp/b --name-server-port 0 --port 0 --json
    """
    config = BrokerConfig(**dataclasses.asdict(settings.broker))

    def ready(name_server: str, address: str) -> None:
        if as_json:
            found = {"name_server": name_server, "broker": address, "dir": config.dir, "pid": os.getpid()}
            click.echo(json.dumps(found))
        else:
            click.echo(f"name server {name_server}, broker {address}, data in {config.dir}; Ctrl-C stops it")

    raise click.exceptions.Exit(run(config, ready))
