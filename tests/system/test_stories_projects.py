"""A project from nothing: made by init, tested, tried out by dev, checked by config check."""

from __future__ import annotations

import json
import re
import urllib.request
from pathlib import Path

import pytest
from documented import run_pytest
from harness import wait_until
from terminal import LIMIT_S, Terminal, run

FREE_PORTS = ("--set", "broker.name_server_port=0", "--set", "broker.port=0")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("projects")
    done = run(folder, "init", "shop")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0] == "wrote shop/app.py"
    now = "now: cd shop && rocketcrew dev app    and, to test the handler: pip install pytest && pytest"
    assert done.stdout.splitlines()[-1] == now
    return folder / "shop"


def test_its_own_tests_pass(project: Path) -> None:
    done = run_pytest(project)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


def test_its_configuration_and_handler_are_right(project: Path) -> None:
    done = run(project, "config", "check", "--handler", "app")
    assert (done.returncode, done.stderr) == (0, "")
    assert "the handler app can be run; its columns: order_id string, total double, items int" in done.stdout
    done = run(project, "config", "check", "--handler", "app:handel")
    assert done.returncode == 4
    assert 'has no function "handel"; did you mean "handle"?' in done.stderr
    assert "Traceback" not in done.stderr
    done = run(project, "config", "check", "--handler", "ap:handle", "--json")
    assert done.returncode == 4
    told = json.loads(done.stdout)
    assert told["ok"] is False
    assert 'did you mean "app"?' in told["problems"][0]["wrong"]


def test_dev_has_a_broker_a_reloading_crew_and_a_page(project: Path) -> None:
    with Terminal(project, "dev", "app", "-w", "1", *FREE_PORTS, NAMESRV_ADDR="10.0.0.5:9876") as dev:
        dev.until("dev has a broker of its own: 10.0.0.5:9876 is not used")
        name_server = re.search(r"127\.0\.0\.1:\d+", dev.until("embedded broker: "))
        page = re.search(r"http://\S+", dev.until("status page: "))
        assert name_server is not None and page is not None
        body = '{"items": [{"price": 9.5}]}'
        words = ("send", "-n", name_server[0], "-t", "orders", "--key", "o-1", body)
        assert run(project, *words).returncode == 0
        wait_until(lambda: done_messages(page[0]) == 1, what="the message is handled")
        with urllib.request.urlopen(page[0], timeout=LIMIT_S) as answer:
            assert "<html" in answer.read().decode()
        handler = (project / "app.py").read_text()
        (project / "app.py").write_text(handler + "\nprint('the new code', flush=True)\n")
        dev.until("the new code")
        assert dev.stop() == 0
    assert (project / ".rocketcrew/broker").is_dir()


def done_messages(page: str) -> int:
    with urllib.request.urlopen(f"{page}status", timeout=LIMIT_S) as answer:
        return int(json.loads(answer.read())["counters"]["done_messages"])
