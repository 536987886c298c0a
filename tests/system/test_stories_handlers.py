"""Handlers as people write them: several in one module, each with its topic, and bodies decoded by type."""

from __future__ import annotations

import json
import re
import signal
import socket
from pathlib import Path

import pytest
from terminal import Terminal, run, why_failed

from rocketcrew import Access, Send, SendError
from rocketcrew.workers.outbox import Outbox

SHOP = """
from rocketcrew import handler, logger

@handler(topic="orders", tags="paid")
def paid(message):
    logger(message).info("paid_taken", says=message.body.decode())

@handler(topic="{second}")
def refund(message):
    logger(message).info("refund_taken", says=message.body.decode())
"""
TYPED = """
from dataclasses import dataclass
from rocketcrew import Message, handler, logger

@dataclass
class Order:
    order_id: str
    total: float

@handler(topic="orders", body_errors="dead_letter")
def count(message: Message, order: Order):
    logger(message).info("order_taken", says=order.order_id)
"""
BILLING = """
import os, signal
from pathlib import Path
from rocketcrew import Send, handler, logger

class KilledOnce:
    def hook_name(self):
        return "killed-once"
    def consume_message_before(self, context):
        pass
    def consume_message_after(self, context):
        marker = Path("killed")
        if not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)

@handler(topic="orders", sends=True, hooks=[KilledOnce()])
def bill(message):
    return [Send("invoices", message.body, keys=message.keys), Send("audit", "billed")]

@handler(topic="invoices", hooks=bill.hooks)
def book(message):
    logger(message).info("booked", says=message.body.decode())
"""
RUN = ("--group", "billing", "--no-load", "--set", "workers.count=1", "--log-format", "json", "--embedded",
       "--set", "broker.name_server_port=0", "--set", "broker.port=0",
       "--set", "consumer.consume_from_where=CONSUME_FROM_FIRST_OFFSET")  # fmt: skip


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(SHOP.format(second="refunds"))
    return tmp_path


def test_all_handlers_of_a_module_run_in_one_group(shop: Path) -> None:
    with Terminal(shop, "run", "shop", *RUN) as ours:
        name_server = re.search(r"127\.0\.0\.1:\d+", ours.until("embedded broker: "))
        assert name_server is not None
        ours.until('"event": "running"')
        for topic, tags, body in (
            ("orders", "open", "nobody's"),
            ("orders", "paid", "first"),
            ("refunds", "x", "second"),
        ):
            done = run(shop, "send", "-n", name_server[0], "-t", topic, "--tag", tags, body)
            assert done.returncode == 0, done.stderr
        found = [ours.until('_taken"'), ours.until('_taken"')]
        assert sorted(re.findall(r'"event": "(\w+)"|"says": "(\w+)"', "".join(found))) == [
            ("", "first"), ("", "second"), ("paid_taken", ""), ("refund_taken", ""),
        ]  # fmt: skip
        other = run(shop, "subscribe", "-g", "billing", "other")
        assert other.returncode != 0
        assert "and no other topic: all of its messages would fail" in other.stderr
        # Code that takes other topics does not start, and what ran before goes on.
        (shop / "shop.py").write_text(SHOP.format(second="returns"))
        ours.process.send_signal(signal.SIGHUP)
        ours.until("and the member started with")
        ours.until('"event": "reload_rolled_back"')
        assert run(shop, "send", "-n", name_server[0], "-t", "refunds", "third").returncode == 0
        assert '"says": "third"' in ours.until("refund_taken")
        assert ours.stop() == 0
    assert "nobody's" not in ours.text


def test_topics_that_contradict_the_handlers_start_nothing(shop: Path) -> None:
    done = run(shop, "run", "shop", *RUN, "-t", "orders")
    assert done.returncode == 2
    assert (
        'handler shop:paid,refund takes "orders:paid", "refunds", but the topics given (consumer.topics) are "orders":'
        " leave them out, or give the same"
    ) in " ".join(why_failed(done.stderr).split())
    assert "Traceback" not in done.stderr


def test_a_body_that_does_not_fit_is_a_dead_letter_with_field_and_reason(tmp_path: Path) -> None:
    pytest.importorskip("msgspec")
    (tmp_path / "shop.py").write_text(TYPED)
    with Terminal(tmp_path, "run", "shop", *RUN) as ours:
        name_server = re.search(r"127\.0\.0\.1:\d+", ours.until("embedded broker: "))
        assert name_server is not None
        ours.until('"event": "running"')
        for body in ('{"order_id": "o-1", "total": "3"}', '{"order_id": "o-2", "total": 3}'):
            done = run(tmp_path, "send", "-n", name_server[0], "-t", "orders", body)
            assert done.returncode == 0, done.stderr
        assert '"says": "o-2"' in ours.until("order_taken")
        dead = ours.text if "message_dead_lettered" in ours.text else ours.until("message_dead_lettered")
        assert "the body is no Order: Expected `float`, got `str` - at `$.total`" in dead
        assert ours.stop() == 0
    assert "Traceback" not in ours.text


def test_a_worker_killed_between_send_and_report_sends_again_under_the_same_key(tmp_path: Path) -> None:
    """The hook runs when the messages are sent and nothing is reported yet: there is no race."""
    (tmp_path / "shop.py").write_text(BILLING)
    with Terminal(tmp_path, "run", "shop", *RUN) as ours:
        name_server = re.search(r"127\.0\.0\.1:\d+", ours.until("embedded broker: "))
        assert name_server is not None
        ours.until('"event": "running"')
        done = run(tmp_path, "send", "-n", name_server[0], "-t", "orders", "--key", "o-1", "3 apples")
        assert done.returncode == 0, done.stderr
        ours.until('"event": "worker_died"')
        # Workers write their own lines, a thread those of the supervisor: the first booking may stand before the death.
        while ours.text.count('"event": "booked"') < 2:
            ours.until('"event": "booked"')
        assert ours.text.count('"says": "3 apples"') == 2
        for topic in ("invoices", "audit"):
            shown = run(tmp_path, "peek", "-n", name_server[0], "-t", topic, "--json")
            assert shown.returncode == 0, shown.stderr
            found = [json.loads(line) for line in shown.stdout.splitlines()]
            assert len(found) == 2
            assert len({each["message_id"] for each in found}) == 1
        assert ours.stop() == 0


def test_a_message_that_no_broker_takes_is_an_error_of_its_message() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens there
        outbox = Outbox(Access(f"127.0.0.1:{taken.getsockname()[1]}"))
        try:
            with pytest.raises(SendError, match="a message for topic invoices was not sent: "):
                outbox.send([Send("invoices", b"3 apples")])
        finally:
            outbox.close()
            outbox.close()
