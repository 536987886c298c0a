"""Producers that a handler makes for itself, when its worker ends: by `os._exit`, as children of multiprocessing do."""

from __future__ import annotations

import subprocess
import sys

from rocketcrew.testing import LocalBroker

DEADLINE_S = 120
WORKER = """
import os, sys
import structlog
from rocketcrew import SyncProducer
from rocketcrew.workers.api import handler
from rocketcrew.workers.boot import WorkerBoot
from rocketcrew.workers.link import Transport, WorkerLink, link_pair
from rocketcrew.workers.loading import describe
from rocketcrew.workers.main import run_worker_on
from rocketcrew.workers.packets import encode_stop

producer = SyncProducer(sys.argv[1], send_timeout_ms=60_000, background=True)

def flush():
    for number in range(200):
        producer.send_async("orders", b"%d" % number)

@handler(teardown=flush)
def handle(message):
    pass

ours, theirs = link_pair(Transport.STREAM)
boot = WorkerBoot(
    worker_id="w", index=0, handler=describe(handle), link=theirs, transport=Transport.STREAM, slab=None, group="g"
)
ours.send(encode_stop())
os._exit(run_worker_on(boot, WorkerLink(theirs, Transport.STREAM), structlog.get_logger()))
"""


def test_what_they_have_begun_to_send_is_sent_before_the_worker_ends() -> None:
    with LocalBroker() as broker:
        command = [sys.executable, "-c", WORKER, broker.name_server]
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
        assert done.returncode == 0, done.stderr
        assert len(broker.messages("orders")) == 200
