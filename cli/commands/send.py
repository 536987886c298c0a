"""`rocketcrew send`: messages from the command line."""

from __future__ import annotations

import io
import select
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Final

import click

from ...client.access import Access
from ...client.cluster import Cluster
from ...client.outgoing import BODY_MAX_BYTES, OutgoingMessage
from ...client.producer import SendResult
from ...client.sync import SyncProducer
from ...client.validation import check_topic_to_send
from ...conf.printed import counted
from ...conf.settings import Settings, require
from ...remoting.errors import BrokerError, UsageError
from ...remoting.names import DELAY_LEVEL_MAX
from ...supervisor.member.access import access_of
from ..asking import ask_cluster
from ..changing import changes, so_far, would
from ..json_text import json_text
from ..options import with_settings
from ..tables import seen
from ..wording import unknown_topic

SLICE_MESSAGES: Final = 5_000
"""Messages whose results are held at a time: a count of millions takes no more memory than this many."""
LINES_SHOWN_MAX: Final = 20
READ_BYTES: Final = 64 * 1024
NUMBER: Final = "{n}"


@click.command()
@click.argument("bodies", metavar="[BODY]...", nargs=-1)
@click.option(
    "-t", "--topic", required=True, metavar="TOPIC", help="The topic. Made on first use where brokers allow it."
)
@click.option("--tag", default="", metavar="TAG", help="The tag that consumers filter by.")
@click.option(
    "--key", "keys", multiple=True, metavar="KEY", help="A key by which tools find the message. May be repeated."
)
@click.option("-p", "--property", "properties", multiple=True, metavar="K=V", help="A property. May be repeated.")
@click.option("--delay-level", type=click.IntRange(0, DELAY_LEVEL_MAX), default=0, metavar="LEVEL",
              help="0 = at once; 1 to 127 = after the time of that level of the broker (18 by default: 1s 5s 10s 30s 1m"
                   " ... 2h), or of its highest where that is lower.")  # fmt: skip
@click.option("-f", "--file", "files", multiple=True, metavar="FILE", type=click.Path(path_type=Path, allow_dash=True),
              help="A file whose bytes are one body; - is stdin. May be repeated.")  # fmt: skip
@click.option("--lines", is_flag=True, help="Each line of the files or of stdin is a body.")
@click.option("--count", type=click.IntRange(min=1), default=None, metavar="N",
              help="Send each body N times; {n} in body and keys becomes 0 to N-1.")  # fmt: skip
@click.option("--no-create", is_flag=True, help="Fail where the topic does not exist; otherwise brokers may make it.")
@changes(asks=False)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each message, on a line of its own.")
@with_settings()
def send(
    settings: Settings, bodies: tuple[str, ...], topic: str, tag: str, keys: tuple[str, ...],
    properties: tuple[str, ...], delay_level: int, files: tuple[Path, ...], lines: bool, count: int | None,
    no_create: bool, dry_run: bool, as_json: bool,
) -> None:  # fmt: skip
    """Send messages to a topic and print where each one is stored.

    Bodies come from the arguments, from --file, or from stdin when neither is given. A message is printed only when its
    broker has acknowledged it. Exits with 3 when no name server or broker can be reached.

    \b
    Examples:
      rocketcrew send -t orders 'hello' --tag paid --key order-17
      rocketcrew send -t logs --lines -f app.log
      rocketcrew send -t numbers --count 10000 'message {n}' --key '{n}'
      date | rocketcrew send -t clock -n 10.0.0.5:9876 --json
    """
    require(settings, ["cluster.name_servers"], flag_names={"cluster.name_servers": "-n HOST:PORT"})
    if lines and bodies and not files:
        raise UsageError("--lines goes with --file or stdin, and a BODY is one body: leave one of the two out")
    pairs = dict(_pair(text) for text in properties)
    messages = (
        None if body is None else
        OutgoingMessage(topic, body, tag, [_numbered(key, number) for key in keys], delay_level, pairs)
        for body, number in _repeated(_bodies(bodies, files, lines), count)
    )  # fmt: skip
    access = access_of(settings)
    new = _is_new(access, topic, no_create=no_create)
    if dry_run:
        found = _checked(messages)
        what = f"send {counted(found, 'message')} to topic {topic}" + (", which is new" if new else "")
        would(what, as_json=as_json, topic=topic, messages=found, new=new)
        return
    started = time.monotonic()
    sent = under_way = 0
    producing = SyncProducer(access, send_timeout_ms=settings.cluster.request_timeout_ms)
    with so_far(lambda: _done(sent, under_way)), producing as producer:
        for chunk in _slices(messages):
            under_way = len(chunk)
            results = producer.send_many(chunk)
            before, sent, under_way = sent, sent + len(results), 0
            for result in results if as_json else results[: max(0, LINES_SHOWN_MAX - before)]:
                click.echo(_line(result, as_json))
    if sent > LINES_SHOWN_MAX and not as_json:
        seconds = time.monotonic() - started
        click.echo(f"... {counted(sent, 'message')} in {seconds:.1f} s")
    if new and sent:
        click.echo(f"topic {topic} is new: the first message has made it (--no-create would have refused)", err=True)


def _done(sent: int, under_way: int) -> str:
    """What is to be said of a `send` that ends early; nothing of a single message."""
    if not sent and under_way < 2:
        return ""
    return f"{counted(sent, 'message')} {'was' if sent == 1 else 'were'} acknowledged" + (
        f", up to {under_way} more may be" if under_way else ""
    )


def _slices(messages: Iterable[OutgoingMessage | None]) -> Iterator[list[OutgoingMessage]]:
    """SLICE_MESSAGES at a time, and what there is before each None: the next one may be long in coming."""
    found: list[OutgoingMessage] = []
    for message in messages:
        if message is not None:
            found.append(message)
        if found and (message is None or len(found) == SLICE_MESSAGES):
            yield found
            found = []
    if found:
        yield found


def _checked(messages: Iterable[OutgoingMessage | None]) -> int:
    """How many there are. Raises UsageError for one that cannot be sent."""
    found = 0
    for message in filter(None, messages):
        message.check()
        found += 1
    return found


def _is_new(access: Access, topic: str, *, no_create: bool) -> bool:
    """Whether the topic does not exist yet. With `no_create` that is an UnknownNameError."""

    check_topic_to_send(topic)

    async def look(cluster: Cluster) -> bool:
        try:
            await cluster.route(access.wrap(topic), refresh=True)
        except BrokerError as error:
            if no_create or unknown_topic(error) is None:
                raise
            return True
        return False

    return ask_cluster(access, look)


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(f"--property {text!r} is not K=V")
    return name, value


def _bodies(bodies: tuple[str, ...], files: tuple[Path, ...], lines: bool) -> Iterator[bytes | None]:
    """Every body there is, one at a time: a file of lines may be larger than memory. None where the next is not there yet."""
    for body in bodies:
        yield body.encode("utf-8", "surrogateescape")
    if not bodies and not files and sys.stdin.isatty():
        raise UsageError("nothing to send: give a BODY, --file FILE, or pipe it in")
    for file in files or (() if bodies else (Path("-"),)):
        if str(file) == "-":
            yield from _read(sys.stdin.buffer, "stdin", lines)
        else:
            with file.open("rb") as stream:
                yield from _read(stream, str(file), lines)


def _read(stream: BinaryIO, name: str, lines: bool) -> Iterator[bytes | None]:
    if not lines:
        yield stream.read(BODY_MAX_BYTES + 1)  # one byte too many is refused when the message is checked
        return
    number = 0
    for line in _lines(stream):
        if line is None:
            yield None
            continue
        number += 1
        body = line.rstrip(b"\r")
        if len(body) > BODY_MAX_BYTES:
            raise UsageError(f"{name}, line {number}: longer than the {BODY_MAX_BYTES} bytes that a body may have")
        if body:  # RocketMQ refuses empty bodies; an empty line is none
            yield body


def _lines(stream: BinaryIO) -> Iterator[bytes | None]:
    """Its lines without their ends, of one that is too long for a body the begin; None before a wait for more, as in
    `tail -f | rocketcrew send --lines`. Python's own buffer would not say that it is empty."""
    raw: io.RawIOBase | BinaryIO = getattr(stream, "raw", stream)
    rest = b""
    while True:
        if not _is_readable(raw, 0):
            yield None
            _is_readable(raw, None)
        block = raw.read(READ_BYTES)
        if block is None:  # another reader of a pipe that does not block was faster
            continue
        *whole, rest = (rest + block).split(b"\n")
        yield from whole
        if rest and (not block or len(rest) > BODY_MAX_BYTES + 1):
            yield rest
            rest = b""
        if not block:
            return


def _is_readable(stream: io.RawIOBase | BinaryIO, wait_ms: int | None) -> bool:
    ready = select.poll()
    try:
        ready.register(stream, select.POLLIN)
    except io.UnsupportedOperation:  # it is no file of the system's
        return True
    return bool(ready.poll(wait_ms))


def _repeated(bodies: Iterable[bytes | None], count: int | None) -> Iterator[tuple[bytes | None, int | None]]:
    for body in bodies:
        if count is None or body is None:
            yield body, None
        else:
            for number in range(count):
                yield body.replace(NUMBER.encode(), str(number).encode()), number


def _numbered(text: str, number: int | None) -> str:
    return text if number is None else text.replace(NUMBER, str(number))


def _line(result: SendResult, as_json: bool) -> str:
    if not as_json:
        mq = result.mq
        return seen(f"{result.message_id} {mq.topic} {mq.broker_name} queue {mq.queue_id} offset {result.queue_offset}")
    found = {
        "message_id": result.message_id,
        "offset_message_id": result.offset_message_id,
        "topic": result.mq.topic,
        "broker": result.mq.broker_name,
        "queue_id": result.mq.queue_id,
        "queue_offset": result.queue_offset,
        "status": result.status.name,
    }
    return json_text(found)
