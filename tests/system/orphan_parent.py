"""A supervisor in small: starts workers, sets every one into an endless loop in C, says who is there, and waits.

Run by test_orphans.py, which kills it. Prints one line of JSON: the process ids of everything it started.
"""

from __future__ import annotations

import collections
import itertools
import json
import select
import sys
import time
from pathlib import Path

import psutil

from rocketcrew.workers import packets
from rocketcrew.workers.boot import WorkerBoot
from rocketcrew.workers.cells import CellFile
from rocketcrew.workers.link import Transport, choose_transport, link_pair
from rocketcrew.workers.loading import describe
from rocketcrew.workers.message import Message, make_message
from rocketcrew.workers.slab_memory import SlabMemory
from rocketcrew.workers.spawn import Forkserver

WORKERS = 2


def endless(_message: Message) -> None:
    """Never returns to the interpreter: no signal handler runs, no other thread gets the lock, no socket is read."""
    collections.deque(itertools.repeat(None), maxlen=0)


def main(folder: Path) -> None:
    transport = choose_transport("auto")
    slab = SlabMemory(1 << 16)
    data, _, queue = make_message(b"x").__reduce__()[1]
    slab.view[: len(data)] = data
    cells = CellFile(folder / "cells", WORKERS)
    server = Forkserver()
    links = []
    for number in range(WORKERS):
        link, sock = link_pair(transport)
        links.append(link)
        server.start_worker(
            WorkerBoot(
                worker_id=f"w{number}",
                index=number,
                handler=describe(endless),
                link=sock,
                transport=transport,
                slab=slab.handle() if transport is Transport.SLAB else None,
                group="group",
                cells_path=folder / "cells",
                cell_slot=number,
            )
        )
        link.send(packets.encode_queue(1, queue))
        payload = None if transport is Transport.SLAB else data
        link.send(packets.encode_chunk(1, 1, 0, len(data), 1), payload)
    deadline = time.monotonic() + 150
    while any(cells.read(number) is None for number in range(WORKERS)):
        assert time.monotonic() < deadline, "the workers do not run"
        select.select([], [], [], 0.01)
    found = psutil.Process().children(recursive=True)
    sys.stdout.write(json.dumps([process.pid for process in found]) + "\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
