"""The supervisor's page in a real browser: it shows what the status says, on a desktop and on a phone."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import urllib.request
from pathlib import Path

import pytest
from terminal import LIMIT_S, Terminal, asked, environment, run

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
SHOP = """
from rocketcrew import Retry, handler

@handler(schema="key string")
def count(message):
    if message.body == b"bad":
        raise Retry(reason="not yet")
    return {"key": message.keys}
"""
PAGE_MS = 5_000
"""Of the browser's own clock: it asks for the status twice in that."""


def browse(url: str, folder: Path, *arguments: str) -> str:
    """What the browser says when it has shown the page for a while."""
    assert CHROMIUM is not None
    done = subprocess.run(
        [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
         f"--user-data-dir={folder}/browser", f"--virtual-time-budget={PAGE_MS}", *arguments, url],
        env=environment(HOME=str(folder)), capture_output=True, text=True, check=True, timeout=LIMIT_S,
    )  # fmt: skip
    return done.stdout


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_the_page_in_a_browser(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    words = [
        "run",
        "shop",
        "-t",
        "orders",
        "-g",
        "billing",
        "-w",
        "2",
        "--no-load",
        "--log-format",
        "json",
        "--embedded",
    ]
    for setting in ("broker.name_server_port=0", "broker.port=0", f"metrics.port={port}", "metrics.port_count=50",
                    "metrics.page=true", "metrics.token=s3cret"):  # fmt: skip
        words += ["--set", setting]
    with Terminal(tmp_path, *words) as ours:
        found = re.search(r"127\.0\.0\.1:\d+", ours.until("embedded broker: "))
        assert found is not None
        ours.until('"event": "running"')
        assert run(tmp_path, "send", "-n", found[0], "-t", "orders", "x", "--count", "50").returncode == 0
        assert run(tmp_path, "send", "-n", found[0], "-t", "orders", "bad", "--count", "3").returncode == 0
        for _ in range(3):
            ours.until('"event": "message_retry"')
        status = asked(
            lambda: json.loads(run(tmp_path, "status", "-g", "billing", "--json").stdout),
            lambda found: (
                found["counters"]["sent_back_messages"] == 3
                and [worker["state"] for worker in found["workers"]] == ["ready"] * 2
            ),
            "three retries and two workers",
        )
        url = f"http://127.0.0.1:{status['http_port']}"
        timed = [bucket[1] for topic in status["stats"].values() for bucket in topic["end_to_end_latency"]["buckets"]]
        counters = status["counters"]
        assert sum(timed) == counters["done_messages"] + counters["failed_messages"]

        page = browse(url, tmp_path, "--dump-dom", "--window-size=1280,1400")
        text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page.partition("<main>")[2].partition("<script>")[0]))
        assert re.search(r'id="group"[^>]*>billing<', page)
        assert re.search(r'id="state"[^>]*>running<', page)
        assert " 2 of 2 workers ready " in text
        assert " sent back for a retry 3 " in text
        assert text.count("orders broker-a") == 4
        for worker in status["workers"]:
            assert worker["worker_id"] in text
        for name, size in (("desktop", "1280,1400"), ("phone", "390,844")):
            browse(url, tmp_path, f"--screenshot={tmp_path}/{name}.png", f"--window-size={size}")
            assert (tmp_path / f"{name}.png").stat().st_size > 10_000

        request = urllib.request.Request(
            f"{url}/scale?workers=1", method="POST", headers={"X-Rocketcrew-Token": "s3cret"}
        )
        with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
            assert json.load(answer)["workers"] == 1
        assert ours.stop() == 0
