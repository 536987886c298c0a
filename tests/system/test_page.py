"""The supervisor's page in a real browser: what it shows on a desktop and on a phone, by day and by night, what the keyboard
does, and what another site cannot do.

Screenshots are kept in build/screenshots, to be looked at.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import CHROMIUM, Browser, Screen
from ports import free_ports
from terminal import LIMIT_S, Terminal, asked, run

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")

SHOTS = Path(__file__).parents[2] / "build" / "screenshots"
SHOP = """
import os
from rocketcrew import Retry, handler

@handler(schema="key string")
def count(message):
    if message.body == b"bad":
        raise Retry(reason="the stock is not known yet")
    if message.body == b"poor":
        raise Retry(-1, reason="no such customer")
    if message.body == b"deadly":
        os._exit(7)
    return {"key": message.keys}
"""
CREW = """
[consumer]
consume_from_where = "CONSUME_FROM_FIRST_OFFSET"
[workers]
count = 2
max_worker_deaths = 1
[spark]
format = "pyarrow"
[broker]
name_server_port = 0
port = 0
[metrics]
port = {port}
page = true
token = "s3cret"
[log]
file = "crew.log"
"""
DESKTOP, PHONE = Screen(1280, 900, mobile=False), Screen(390, 844, mobile=True)
FOCUS = "document.activeElement"


def text(name: str) -> str:
    """What stands in one part of the page; nothing as long as that is not there."""
    return f"(document.getElementById('{name}')?.innerText ?? '')"


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    SHOTS.mkdir(parents=True, exist_ok=True)
    with Browser(tmp_path) as found:
        yield found


def status_of(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{url}status", timeout=LIMIT_S) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


def tab_to(browser: Browser, name: str) -> None:
    """By the keyboard alone, to what has this id or says this."""
    for _ in range(40):
        browser.press("Tab")
        if browser.value(f"{FOCUS}.id || {FOCUS}.innerText") == name:
            assert browser.value(f"getComputedStyle({FOCUS}).outlineStyle") == "solid", (
                "it can be seen where the focus is"
            )
            return
    pytest.fail(f"the tabulator does not lead to {name}")


def shows_what_happens(browser: Browser, folder: Path, name_server: str, url: str) -> None:
    browser.until(text("failed") + " === 'Nothing has failed.'")
    assert browser.value(text("errors")) == ""
    assert browser.value(text("queues")) == "No queue is assigned to this member."
    browser.screenshot(SHOTS / "empty.png")
    for body, count in (("x", "50"), ("bad", "3"), ("poor", "2"), ("deadly", "1")):
        sent = run(folder, "send", "-n", name_server, "-t", "orders", body, "--count", count)
        assert sent.returncode == 0, sent.stderr
    found = asked(
        lambda: status_of(url),
        lambda found: (
            found["counters"]["dead_letter_messages"] == 3
            and found["counters"]["sent_back_messages"] >= 6
            and found["loader"].get("rows_total") == 50
            and [worker["state"] for worker in found["workers"]] == ["ready"] * 2
        ),
        "retries, three dead letters, rows in the table and two workers",
    )
    counters = found["counters"]
    timed = [bucket[1] for topic in found["stats"].values() for bucket in topic["end_to_end_latency"]["buckets"]]
    assert sum(timed) == counters["done_messages"] + counters["failed_messages"] - 1, "a death is no report"
    for worker in found["workers"]:
        browser.until(text("workers") + f".includes('{worker['worker_id']}')")
    browser.until(text("deaths") + ".startsWith('Deaths: crashed 1. ')")
    for part, words in {
        "tiles": ("2 of 2",), "queues": ("orders", "embedded"), "loader": ("50", "commit"),
        "errors": ("the stock is not known yet", "a retry", "no such customer", "crashed 1 workers", "a dead letter"),
        "failed": ("dead letters",), "faults": ("message_dead_lettered", "no such customer"),
    }.items():  # fmt: skip
        for word in words:
            browser.until(text(part) + f".includes({json.dumps(word)})")


def fits_every_screen(browser: Browser) -> None:
    grounds: set[str] = set()
    for device, size in (("desktop", DESKTOP), ("phone", PHONE)):
        for dark in (False, True):
            browser.look(size, dark=dark)
            browser.screenshot(SHOTS / f"{device}-{'dark' if dark else 'light'}.png")
            assert browser.value("document.documentElement.scrollWidth <= innerWidth"), "tables scroll, not the page"
            for part in ("errors", "faults", "loader"):
                box = f"document.getElementById('{part}').querySelector('td.w').getBoundingClientRect()"
                assert browser.value(f"{box}.right <= innerWidth"), f"{part}: its text is seen without scrolling"
            grounds.add(browser.value("getComputedStyle(document.body).backgroundColor"))
    assert len(grounds) == 2, "the dark one is another one"


def obeys_the_keyboard(browser: Browser, url: str) -> None:
    browser.look(DESKTOP)
    tab_to(browser, "Pause")
    browser.press("Enter")
    browser.until(text("answer") + ".startsWith('the token is wrong')")
    browser.screenshot(SHOTS / "wrong-token.png")
    tab_to(browser, "token")
    browser.type("s3cret")
    tab_to(browser, "Pause")
    browser.press("Enter")
    browser.until(text("state") + ".startsWith('paused by ')")
    assert status_of(url)["paused"]
    browser.screenshot(SHOTS / "paused.png")
    tab_to(browser, "Resume")
    browser.press(" ")
    browser.until(text("state") + " === 'running'")
    tab_to(browser, "count")
    browser.type("1")
    tab_to(browser, "Scale")
    browser.press("Enter")
    browser.until(text("tiles") + ".includes('1 of 1')")
    tab_to(browser, "Stacks")
    browser.press("Enter")
    browser.until(text("answer") + ".includes('supervisor ') && " + text("answer") + ".includes('worker ')")
    browser.screenshot(SHOTS / "stacks.png")


def obeys_no_other_site(browser: Browser, url: str) -> None:
    """That knows the token even: its header makes the browser ask first, and nobody agrees."""
    browser.open("data:text/html,<title>another site</title>")
    for options in ("headers: {'X-Rocketcrew-Token': 's3cret'}", "mode: 'no-cors'"):
        browser.value(f"fetch('{url}pause', {{method: 'POST', {options}}}).then(() => 1, () => 2)")
    read = browser.value(f"fetch('{url}status').then(answer => answer.text(), () => 'not to be read')")
    assert read == "not to be read"
    assert status_of(url)["paused"] == []


def test_the_page(tmp_path: Path, browser: Browser) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "crew.toml").write_text(CREW.format(port=free_ports(1)[0]))
    with Terminal(tmp_path, "run", "shop", "-t", "orders", "-g", "billing", "-c", "crew.toml", "--embedded") as ours:
        name_server = ours.until("embedded broker: ").split()[2]
        url = ours.until("status page: ").split()[2]
        browser.look(DESKTOP)
        browser.open(url)
        browser.until(text("state") + " === 'running'")
        shows_what_happens(browser, tmp_path, name_server, url)
        fits_every_screen(browser)
        obeys_the_keyboard(browser, url)
        obeys_no_other_site(browser, url)
        browser.open(url)
        browser.until(text("state") + " === 'running'")
        assert ours.stop() == 0
        browser.look(PHONE)
        browser.until(text("away") + ".startsWith('No answer from the supervisor')")
        assert browser.value(text("state")) == "no answer"
        browser.screenshot(SHOTS / "away.png")
        assert browser.value(text("group")) == "billing", "what was there stays"
