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
from harness import patient, patient_producer, wait_until
from pyiceberg.catalog import load_catalog

from rocketcrew import Crew, OutgoingMessage, by_key, read
from rocketcrew.examples import enrich, pages, reviews
from rocketcrew.testing import LocalBroker, message, run

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
        running.wait(timeout_s=WAIT_S)
        rows = {row["image"]: row for row in running.results()}
    assert rows.keys() == {*bodies, "again"}
    assert {(row["width"], row["height"]) for row in rows.values()} == {(20, 12)}
    assert {**rows["again"], "image": "i-7"} == rows["i-7"]
    assert len({row["fingerprint"] for row in rows.values()}) > 30
    assert rows["i-39"]["brightness"] > rows["i-0"]["brightness"]
    assert all(abs(sum(row["red"]) - 1) < 1e-9 for row in rows.values())
    assert sorted(str(each.keys) for each in broker.dead_letters(group)) == ["cut", "text"]


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
        running.wait(timeout_s=WAIT_S)
    found = read(table)
    good = [number for number in range(30) if number not in (3, 4)]
    expected = {(f"o-{n}", line, Decimal(f"{n}.{line:02}") * line) for n in good for line in (1, 2)}
    columns = (found.column(name).to_pylist() for name in ("order_id", "line", "total"))
    assert sorted(zip(*columns, strict=True)) == sorted(expected)
    assert {path.name for path in table.glob("country=*")} == {"country=de", "country=fr"}
    assert sorted(str(each.keys) for each in broker.dead_letters(group)) == ["o-3", "o-4"]


def test_orders_of_json_become_lines_of_an_iceberg_table(broker: LocalBroker, crew: Any, tmp_path: Path) -> None:
    topic, group, table = broker.topic("orders"), broker.group(), tmp_path / "order_lines"
    with patient_producer(broker) as producer:
        for number in range(20):
            lines = [{"article": f"a{each}", "quantity": each, "price": f"{number}.{each:02}"} for each in (1, 2)]
            order: dict[str, Any] = {"id": f"o-{number}", "country": ("de", "fr")[number % 2], "lines": lines,
                                     "state": "paid", "ordered_at": "2026-01-31T12:00:00+01:00"}  # fmt: skip
            producer.send(OutgoingMessage(topic, json.dumps(order).encode(), keys=order["id"]))
    settings = {"spark__format": "iceberg", "spark__options": {"table": "shop.order_lines"}, "spark__max_wait_ms": 500}
    with crew("orders:lines", topic, group, target=table, **settings) as running:
        running.wait(timeout_s=WAIT_S)
    found = read(table)
    columns = (found.column(name).to_pylist() for name in ("order_id", "line", "total"))
    assert sorted(zip(*columns, strict=True)) == sorted(
        (f"o-{n}", line, Decimal(f"{n}.{line:02}") * line) for n in range(20) for line in (1, 2)
    )
    catalog = load_catalog("rocketcrew", type="sql", uri=f"sqlite:///{tmp_path / 'catalog.db'}")
    assert len(catalog.load_table("shop.order_lines").scan().to_arrow()) == 40


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
            sent = OutgoingMessage(topic, json.dumps(posting).encode(), properties={"ACCOUNT": account})
            producer.send(sent, selector=by_key(account))
    assert any(not row[4] for row in expected)
    with crew("accounts:book", topic, broker.group()) as running:
        running.wait(timeout_s=WAIT_S)
        rows = [tuple(row.values()) for row in running.results()]
    assert len(rows) == len(expected)
    assert set(rows) == expected


PAGE = """<!doctype html><html><head><title>Shop &amp;
  more</title><style>p { color: red }</style><script>if (1 < 2) { "<p>" }</script></head>
<body><h1>Prices</h1><p>A <b>red</b> pen<br>costs 2&nbsp;&euro;.</p><svg><title>logo</title></svg>
<ul><li><a href="/pens?a=1&amp;b=2">Pens</a></li><li><a name="x">Ink</a></li></ul><p>The end"""
TEXT = "Prices\nA red pen\ncosts 2 €.\nPens\nInk\nThe end"


def test_a_page_is_what_its_reader_sees_and_what_is_no_text_is_given_up_at_once() -> None:
    latin = message("<p>Caf\u00e9</p>".encode("latin-1"), keys="latin", properties={"CHARSET": "latin-1"})
    undecodable = [message(latin.body, keys="no UTF-8"), message("x", keys="unknown", properties={"CHARSET": "x-y"})]
    found = run(pages.text, [message(PAGE, keys="shop"), latin, message("<p>", keys="empty"), *undecodable])
    rows = {row["page"]: row for row in found.rows}
    assert rows["shop"] == {
        "page": "shop", "title": "Shop & more", "text": TEXT, "words": 11, "links": ["/pens?a=1&b=2"]
    }  # fmt: skip
    assert rows["latin"]["text"] == "Café"
    assert (rows["empty"]["text"], rows["empty"]["words"], rows["empty"]["links"]) == ("", 0, [])
    assert {dead.message.keys for dead in found.dead_letters} == {"no UTF-8", "unknown"}
    assert not found.retries


def test_pages_become_text(broker: LocalBroker, crew: Any) -> None:
    topic, group = broker.topic("pages"), broker.group()
    with patient_producer(broker) as producer:
        for number in range(30):
            producer.send(OutgoingMessage(topic, f"{PAGE}: {number}".encode(), keys=f"p-{number}"))
        producer.send(OutgoingMessage(topic, b"\xff\xfe", keys="bytes"))
    with crew("pages:text", topic, group) as running:
        running.wait(timeout_s=WAIT_S)
        rows = {row["page"]: row["text"] for row in running.results()}
    assert rows == {f"p-{number}": f"{TEXT}: {number}" for number in range(30)}
    assert [each.keys for each in broker.dead_letters(group)] == ["bytes"]


def test_reviews_are_scored_by_a_model_that_each_worker_loads_once(
    broker: LocalBroker, crew: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "reviews.npz"
    reviews.train(str(file))
    monkeypatch.setenv("REVIEWS_MODEL", str(file))
    expected = {"I love the quality": True, "Fast, and easy to use!": True, "awful and broken": False, "poor": False}
    reviews.model.cache_clear()
    found = run(reviews.score, [message(text, keys=text) for text in expected] + [message(b"\xff", keys="bytes")],
                settings={"consumer.consume_message_batch_max_size": 32})  # fmt: skip
    assert {row["review"]: row["good"] for row in found.rows} == expected
    assert [dead.message.keys for dead in found.dead_letters] == ["bytes"]
    topic, group = broker.topic("reviews"), broker.group()
    settings = {"consumer__consume_message_batch_max_size": 32}
    with patient_producer(broker) as producer, crew("reviews:score", topic, group, **settings) as running:
        for number, text in enumerate(expected):
            producer.send(OutgoingMessage(topic, text.encode(), keys=f"{number}"))
        running.wait(timeout_s=WAIT_S)
        wait_until(lambda: [each["state"] for each in running.status["workers"]] == ["ready"] * 2, what="two workers")
        file.unlink()  # both workers have the model: they need its file no more
        for number in range(300):
            producer.send(
                OutgoingMessage(topic, f"{number} excellent reasons, I love it".encode(), keys=f"more-{number}")
            )
        running.wait(timeout_s=WAIT_S)
        rows = {row["review"]: row["good"] for row in running.results()}
    assert rows == {f"{number}": good for number, good in enumerate(expected.values())} | {
        f"more-{number}": True for number in range(300)
    }


def test_orders_go_out_again_with_their_customers(
    broker: LocalBroker, crew: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "customers.csv"
    file.write_text('customer,name,country\nc-1,"Miller, Ann",de\nc-2,Zoë,fr\n', encoding="utf-8")
    monkeypatch.setenv("CUSTOMERS", str(file))
    enrich.customers.cache_clear()
    given = {f"o-{number}": {"order": f"o-{number}", "customer": f"c-{number % 3}"} for number in range(30)}
    found = run(enrich.complete, [message(json.dumps(order), keys=key) for key, order in given.items()])
    by_name = {"c-1": {"name": "Miller, Ann", "country": "de"}, "c-2": {"name": "Zoë", "country": "fr"}}
    enriched = {key: order | by_name[order["customer"]] for key, order in given.items() if order["customer"] in by_name}
    unknown = given.keys() - enriched.keys()
    assert {sent.keys: sent.topic for sent in found.sent if sent.keys in unknown} == dict.fromkeys(
        unknown, enrich.UNKNOWN
    )
    assert len({sent.message_id for sent in found.sent}) == len(found.sent) == len(given)
    topic = broker.topic("orders")
    with patient_producer(broker) as producer:
        for key, order in given.items():
            producer.send(OutgoingMessage(topic, json.dumps(order).encode(), keys=key))
    with crew("enrich:complete", topic, broker.group()) as running:
        running.wait(timeout_s=WAIT_S)
    out = {each.message_id: each for each in broker.messages(enrich.ENRICHED)}.values()
    assert {each.keys: json.loads(each.body) for each in out} == enriched
    assert {each.tags for each in out} == {"de", "fr"}
    assert {each.keys for each in broker.messages(enrich.UNKNOWN)} == unknown
