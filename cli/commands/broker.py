"""`rocketcrew broker`: the embedded name server and broker as a process."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import click
from click.core import ParameterSource

from ...client.access import Access
from ...client.clock import wall_ms
from ...conf.importing import uncollected, without_looks
from ...conf.printed import counted
from ...conf.settings import Settings
from ...remoting.errors import UsageError
from ..changing import changes, would
from ..json_text import json_text
from ..options import with_settings


@click.group(invoke_without_command=True)
@click.option("--dir", "folder", metavar="FOLDER", help="Where messages and offsets live. Made when it is not there.")
@click.option("--host", metavar="IP", help="IP address to listen on.")
@click.option(
    "--announce", metavar="IP", help="IP address to announce to clients, where it is not the one listened on."
)
@click.option("--name-server-port", type=int, metavar="PORT", help="Port of the name server; 0 = any free one.")
@click.option("--port", type=int, metavar="PORT", help="Port of the broker; 0 = any free one.")
@click.option("--delay-levels", metavar="LEVELS", help="Delays of the retry levels, as in '1s 5s 10s 30s 1m'.")
@click.option("--acl-file", metavar="FILE", help="Accounts and permissions (TOML); see above.")
@click.option("--tls-cert", metavar="FILE", help="Certificate (PEM): both ports speak TLS, and nothing else.")
@click.option("--tls-key", metavar="FILE", help="Its key (PEM), where it is not in the same file.")
@click.option("--json", "as_json", is_flag=True, help="When ready, print one JSON object with both addresses.")
@with_settings(
    asks_cluster=False,
    folder="broker.dir",
    host="broker.host",
    announce="broker.announce",
    name_server_port="broker.name_server_port",
    port="broker.port",
    delay_levels="broker.message_delay_level",
    acl_file="broker.acl_file",
    tls_cert="broker.tls_cert_path",
    tls_key="broker.tls_key_path",
)
def broker(settings: Settings, as_json: bool) -> None:
    """Run RocketMQ's name server and broker in one process, without Java.

    It speaks RocketMQ's protocol on RocketMQ's ports (name server 127.0.0.1:9876, broker :10911), so clients in any
    language work with it. What it acknowledged survives its own kill -9. It is for one machine: there is no replication.
    One line is printed when it is ready; TERM or INT (Ctrl-C) stops it cleanly.

    \b
    The ACL file has RocketMQ's own names; administrators may do everything.
    Any account may ask about topics, groups, offsets and members, which shows
    no message:
      [[accounts]]
      accessKey = "crew-key"
      secretKey = "crew-secret"
      admin = false
      defaultTopicPerm = "PUB|SUB"
      defaultGroupPerm = "SUB"
      topicPerms = ["orders=SUB"]
      groupPerms = ["audit=DENY"]

    \b
    Examples:
      rocketcrew broker
      rocketcrew broker --dir /tmp/b --name-server-port 0 --port 0 --json
      rocketcrew broker check --dir /tmp/b
      rocketcrew broker convert --dir /tmp/b
    """
    if click.get_current_context().invoked_subcommand is not None:
        return _refuse_options(click.get_current_context())
    with uncollected(), without_looks():
        from ...broker.config import BrokerConfig
        from ...broker.server import run

    config = BrokerConfig(**dataclasses.asdict(settings.broker))

    def ready(name_server: str, address: str) -> None:
        if as_json:
            found = {"name_server": name_server, "broker": address, "dir": config.dir, "pid": os.getpid()}
            click.echo(json_text(found))
        else:
            click.echo(f"name server {name_server}, broker {address}, data in {config.dir}; Ctrl-C stops it")

    raise click.exceptions.Exit(run(config, ready, _access(settings)))


def _refuse_options(context: click.Context) -> None:
    """A subcommand reads its own options only: what is written before it would be ignored, and another store be taken."""
    for parameter in context.command.params:
        if context.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE:
            option, sub = max(parameter.opts, key=len), context.invoked_subcommand
            raise UsageError(
                f"{option} before {sub} is of a broker that runs: write it behind, as `rocketcrew broker {sub} {option} ...`"
            )


def _access(settings: Settings) -> Access | None:
    """How name servers of others are reached, when there are any."""
    if not settings.broker.register_with:
        return None
    from ...supervisor.member.access import access_of

    found = access_of(settings)
    return Access(credentials=found.credentials, tls=found.tls, connect_timeout_ms=found.connect_timeout_ms)


@broker.command("check")
@click.option("--dir", "folder", metavar="FOLDER", help="The data folder of a broker that does not run.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
@with_settings(asks_cluster=False, folder="broker.dir")
def check_store(settings: Settings, as_json: bool) -> None:
    """Read the whole store of a broker and compare its parts; nothing is changed.

    Every record is read with its CRC, every entry of a queue is compared with its record, the tables are parsed. Exits with
    0 when everything agrees, else with 1.

    \b
    Examples:
      rocketcrew broker check --dir /data/broker
    """
    from ...broker.checking import check
    from ...broker.disk import DiskStorage
    from ...broker.message_store import LOG

    folder = Path(settings.broker.dir)
    if not (folder / LOG).is_dir():
        raise UsageError(f"broker data folder {folder} has no {LOG}: no broker has ever stored anything there")
    storage = DiskStorage(folder)
    try:
        report = check(storage)
    finally:
        storage.abandon()
    if as_json:
        click.echo(json_text({"fine": report.is_fine, **dataclasses.asdict(report)}))
    else:
        click.echo("\n".join(report.lines()))
    raise click.exceptions.Exit(0 if report.is_fine else 1)


@broker.command("convert")
@click.option("--dir", "folder", metavar="FOLDER", help="The data folder of a broker that does not run.")
@changes(asks=False)
@click.option("--json", "as_json", is_flag=True, help="Print what was done as one JSON object.")
@with_settings(asks_cluster=False, folder="broker.dir")
def convert_store(settings: Settings, dry_run: bool, as_json: bool) -> None:
    """Give a store whose log files have another size, as that of a genuine broker, those that this one writes.

    Such stores are served as they are; after the conversion a genuine broker can open them too, when its
    mappedFileSizeCommitLog is broker.mapped_file_size_commit_log. The new store is made beside the old one and compared with
    it; the old one stays as FOLDER.before-conversion until you remove it. A store with damage is not converted.

    \b
    Examples:
      rocketcrew broker convert --dir /data/broker --dry-run
      rocketcrew broker convert --dir /data/broker
    """
    from ...broker.config import BrokerConfig
    from ...broker.converting import convert, to_convert

    folder = Path(settings.broker.dir).absolute()
    config = BrokerConfig(**dataclasses.asdict(settings.broker))
    if dry_run:
        records = to_convert(folder, config)
        what = f"copy {counted(records or 0, 'record')} of {folder}" + (
            "" if records is not None else ": it has its shape"
        )
        would(what, as_json=as_json, records=records or 0)
        return
    done = convert(folder, config, wall_ms())
    if as_json:
        click.echo(
            json_text({"records": done.records, "segments": done.segments, "before": done.before and str(done.before)})
        )
        return
    if done.before is None:
        click.echo(
            f"{folder} has its shape already: {counted(done.segments, 'file')} of the commit log, nothing was changed"
        )
        return
    click.echo(f"{done.records} records are in {done.segments} files of the commit log in {folder}")
    click.echo(f"the store as it was is in {done.before}: remove it when you need it no more")
