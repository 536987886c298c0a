"""Handlers as people write them: several in one module, each with its topic, and bodies decoded by type."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest
from terminal import Terminal, run

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
        assert "and the member started with" in ours.until('"error": "')
        ours.until('"event": "reload_')
        assert run(shop, "send", "-n", name_server[0], "-t", "refunds", "third").returncode == 0
        assert '"says": "third"' in ours.until("refund_taken")
        assert ours.stop() == 0
    assert "nobody's" not in ours.text


def test_topics_that_contradict_the_handlers_start_nothing(shop: Path) -> None:
    done = run(shop, "run", "shop", *RUN, "-t", "orders")
    assert done.returncode == 2
    assert (
        'handler shop:paid,refund takes "orders:paid", "refunds", but the topics given (-t, or consumer.topics) are "orders":'
        " leave them out, or give the same"
    ) in " ".join(done.stderr.split())
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
