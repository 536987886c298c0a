"""Sends a second of the embedded broker at 1, 8 and 64 in flight, with `flush` sync and async, and the disk's own ceiling.

    python bench/flush.py [FOLDER]

The folder decides which disk it is. One connection, 1 KiB bodies, four queues; the sender and the broker share the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import tempfile
import time
from pathlib import Path

from rocketcrew.broker.config import BrokerConfig
from rocketcrew.broker.server import EmbeddedBroker
from rocketcrew.remoting.codes import RequestCode
from rocketcrew.remoting.command import Command
from rocketcrew.remoting.frame import FrameReader, encode
from rocketcrew.remoting.headers import SendRequest

IN_FLIGHT = (1, 8, 64)
SECONDS = 3.0
BODY = b"x" * 1024


async def sends_a_second(port: int, in_flight: int) -> float:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    frames = FrameReader()
    sent = done = 0

    def send() -> None:
        nonlocal sent
        header = SendRequest("pg", "T", "TBW102", 4, sent % 4, 0, 1, 0, None)
        writer.write(encode(Command(RequestCode.SEND_MESSAGE, header.to_fields(), BODY, sent)))
        sent += 1

    begin = time.monotonic()
    for _ in range(in_flight):
        send()
    while done < sent:
        frames.feed(await reader.read(1 << 16))
        while (answer := frames.next()) is not None:
            assert answer.code == 0, answer
            done += 1
            if time.monotonic() - begin < SECONDS:
                send()
    writer.close()
    return done / (time.monotonic() - begin)


def syncs_a_second(folder: Path) -> float:
    """One writer, 1 KiB and an fdatasync each."""
    fd = os.open(folder / "ceiling", os.O_RDWR | os.O_CREAT)
    os.ftruncate(fd, 64 << 20)
    os.fsync(fd)
    begin, count = time.monotonic(), 0
    while time.monotonic() - begin < SECONDS:
        os.pwrite(fd, BODY, count * len(BODY))
        os.fdatasync(fd)
        count += 1
    os.close(fd)
    return count / (time.monotonic() - begin)


async def main(parent: Path) -> None:
    folder = Path(tempfile.mkdtemp(dir=parent))
    try:
        print(f"the disk alone: {syncs_a_second(folder):.0f} fdatasync/s")
        for flush in ("sync", "async"):
            found: list[str] = []
            async with EmbeddedBroker(folder / flush, config=BrokerConfig(flush=flush)) as broker:
                for in_flight in IN_FLIGHT:
                    rate = await sends_a_second(broker.config.port, in_flight)
                    found.append(f"{rate:.0f} with {in_flight}")
            print(f"flush = {flush}: sends/s in flight: {', '.join(found)}")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=Path(), metavar="FOLDER")
    asyncio.run(main(parser.parse_args().folder))
