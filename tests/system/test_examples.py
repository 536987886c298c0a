"""The examples, run as their users run them: real workers, an embedded broker, and the rows that must come out."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import patient, patient_producer

from rocketcrew import Crew, OutgoingMessage, by_key, read
from rocketcrew.testing import LocalBroker

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
WAIT_S = 200


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalBroker]:
    with LocalBroker(delay_levels="100ms 100ms 200ms 200ms 300ms 300ms") as found:
        yield found


@pytest.fixture
def crew(broker: LocalBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes a crew as `rocketcrew run` in the folder of the examples would."""
    monkeypatch.chdir(EXAMPLES)
    patient(monkeypatch)

    def make(handler: str, topic: str, group: str, *, target: Path | None = None, **settings: object) -> Crew:
        state = {
            "supervisor.data_dir": str(tmp_path / "state"),
            "consumer.consume_from_where": "CONSUME_FROM_FIRST_OFFSET",
            "consumer.rebalance_interval_ms": 1000,
            "consumer.max_reconsume_times": 2,
        }
        chosen = {**state, **{name.replace("__", "."): value for name, value in settings.items()}}
        return Crew(
            handler,
            topics=topic,
            group=group,
            name_servers=broker.name_server,
            workers=2,
            target=target,
            settings=chosen,
        )

    return make


def test_images_become_features_and_what_is_no_picture_a_dead_letter(broker: LocalBroker, crew: Any) -> None:
    def picture(seed: int, brightness: int) -> bytes:
        values = np.random.default_rng(seed).integers(0, brightness, (12, 20, 3), dtype=np.uint8)
        return b"P6\n# made by a test\n20 12\n255\n" + values.tobytes()

    topic, group = broker.topic("images"), broker.group()
    bodies = {f"i-{seed}": picture(seed, 60 + 3 * seed) for seed in range(40)}
    with patient_producer(broker) as producer:
        for key, body in {**bodies, "again": bodies["i-7"], "cut": bodies["i-1"][:-5], "text": b"no picture"}.items():
            producer.send(OutgoingMessage(topic, body, keys=key))
    with crew("images:features", topic, group) as running:
        running.wait(timeout=WAIT_S)
        rows = {row["image"]: row for row in running.results()}
    assert rows.keys() == {*bodies, "again"}
    assert {(row["width"], row["height"]) for row in rows.values()} == {(20, 12)}
    assert {**rows["again"], "image": "i-7"} == rows["i-7"]
    assert len({row["fingerprint"] for row in rows.values()}) > 30
    assert rows["i-39"]["brightness"] > rows["i-0"]["brightness"]
    assert all(abs(sum(row["red"]) - 1) < 1e-9 for row in rows.values())
    assert sorted(message.keys for message in broker.dead_letters(group)) == ["cut", "text"]


def test_orders_become_lines_of_a_delta_table(broker: LocalBroker, crew: Any, tmp_path: Path) -> None:
    topic, group, table = broker.topic("orders"), broker.group(), tmp_path / "order_lines"
    with patient_producer(broker) as producer:
        for number in range(30):
            lines = [{"article": f"a{each}", "quantity": each, "price": f"{number}.{each:02}"} for each in (1, 2)]
            order: dict[str, Any] = {"id": f"o-{number}", "country": ("de", "fr")[number % 2], "lines": lines,
                                     "state": "unpaid" if number == 3 else "paid",
                                     "ordered_at": "2026-01-31T12:00:00" + ("" if number == 4 else "+01:00")}  # fmt: skip
            producer.send(OutgoingMessage(topic, json.dumps(order).encode(), keys=order["id"]))
    settings = {"spark__format": "deltalake", "spark__partition_by": ["country"], "spark__max_wait_ms": 500}
    with crew("orders:lines", topic, group, target=table, **settings) as running:
        running.wait(timeout=WAIT_S)
    found = read(table)
    good = [number for number in range(30) if number not in (3, 4)]
    expected = {(f"o-{n}", line, Decimal(f"{n}.{line:02}") * line) for n in good for line in (1, 2)}
    columns = (found.column(name).to_pylist() for name in ("order_id", "line", "total"))
    assert sorted(zip(*columns, strict=True)) == sorted(expected)
    assert {path.name for path in table.glob("country=*")} == {"country=de", "country=fr"}
    assert sorted(message.keys for message in broker.dead_letters(group)) == ["o-3", "o-4"]


def test_postings_of_an_account_are_booked_in_order(
    broker: LocalBroker, crew: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCOUNTS_DB", str(tmp_path / "accounts.db"))
    topic, dice = broker.topic("postings"), random.Random(18)
    balances: dict[str, int] = defaultdict(int)
    numbers: dict[str, int] = defaultdict(int)
    expected: set[tuple[object, ...]] = set()
    with patient_producer(broker) as producer:
        for _ in range(200):
            account, amount = f"account-{dice.randrange(9)}", dice.randrange(-60, 100)
            numbers[account] += 1
            booked = balances[account] + amount >= 0
            balances[account] += amount * booked
            expected.add((account, numbers[account], amount, balances[account], booked))
            posting = {"account": account, "number": numbers[account], "amount": amount}
            message = OutgoingMessage(topic, json.dumps(posting).encode(), properties={"ACCOUNT": account})
            producer.send(message, selector=by_key(account))
    assert any(not row[4] for row in expected)
    with crew("accounts:book", topic, broker.group()) as running:
        running.wait(timeout=WAIT_S)
        rows = [tuple(row.values()) for row in running.results()]
    assert len(rows) == len(expected)
    assert set(rows) == expected
