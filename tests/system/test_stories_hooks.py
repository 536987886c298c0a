"""The user's life-cycle hooks in a process of their own: what each hears of, and that nothing they do stops the consumer."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from harness import wait_until
from terminal import Terminal, run

from rocketcrew.supervisor.control import ask

SHOP = """
import json, os, sys, time

def count(message):
    if message.body == b"poor":
        raise ValueError("not this one")
    if message.body == b"deadly":
        os._exit(7)

def heard(event):
    print("printed by a hook", flush=True)
    with open("heard", "a") as file:
        file.write(json.dumps(event) + "\\n")

def moody(event):
    with open("moody", "a") as file:
        file.write(str(os.getpid()) + "\\n")
    moods = len(open("moody").readlines())
    if moods == 1:
        raise ValueError("no mood")
    if moods == 2:
        sys.exit(3)
    if moods == 3:
        time.sleep(3600)
    if moods == 4:
        os._exit(9)
    heard({"moods": moods})

async def later(event):
    pass
"""
SETTINGS = """
[consumer]
consume_from_where = "CONSUME_FROM_FIRST_OFFSET"
delay_level_when_next_consume = -1
[workers]
count = 1
max_worker_deaths = 1
"""
COMMON = ("-t", "orders", "-g", "billing", "--no-load", "-c", "crew.toml", "--log-format", "json")


def shop(folder: Path) -> None:
    (folder / "shop.py").write_text(SHOP)
    (folder / "crew.toml").write_text(SETTINGS)


def lines(path: Path) -> list[dict[str, Any]]:
    """What the hooks have noted so far; a line that is being written does not count yet."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def hooks(**named: str) -> list[str]:
    return [word for name, path in named.items() for word in ("--set", f"hooks.{name}={path}")]


def send(folder: Path, name_server: str, *bodies: str) -> None:
    for body in bodies:
        assert run(folder, "send", "-n", name_server, "-t", "orders", body).returncode == 0


def test_each_hook_hears_of_its_events(tmp_path: Path) -> None:
    shop(tmp_path)
    heard = tmp_path / "heard"
    named = hooks(
        on_start="shop:heard", on_rebalance="shop:heard", on_dead_letter="shop:heard", on_worker_death="shop:heard"
    )
    with Terminal(tmp_path, "broker", "--name-server-port", "0", "--port", "0", "--json") as broker:
        name_server = json.loads(broker.until("name_server"))["name_server"]
        send(tmp_path, name_server, "poor", "deadly")
        with Terminal(tmp_path, "run", "shop:count", *COMMON, *named, "-n", name_server) as member:
            wait_until(lambda: sum("offset" in event for event in lines(heard)) == 2, what="both dead letters")
            wait_until(lambda: any("added" in event for event in lines(heard)), what="the queues")
            wait_until(lambda: any(event.get("end") for event in lines(heard)), what="the death")
            assert member.stop() == 0
        assert broker.stop() == 0
    events = lines(heard)
    (started,) = [event for event in events if "client_id" in event]
    assert (started["group"], started["topics"]) == ("billing", ["orders"])
    assert any(["orders", "embedded", 0] in event["added"] for event in events if "added" in event)
    letters = {event.get("cause", "deaths"): event for event in events if "offset" in event}
    assert all(letter["topic"] == "orders" for letter in letters.values())
    assert any("not this one" in str(letter.get("error")) for letter in letters.values())


def test_what_hooks_do_wrong_is_counted_and_stops_nothing(tmp_path: Path) -> None:
    shop(tmp_path)
    named = hooks(on_dead_letter="shop:moody", timeout_ms="20000")
    with Terminal(tmp_path, "broker", "--name-server-port", "0", "--port", "0", "--json") as broker:
        name_server = json.loads(broker.until("name_server"))["name_server"]
        send(tmp_path, name_server, *["poor"] * 5)

        def counters() -> dict[str, int]:
            found = asyncio.run(ask(tmp_path / ".rocketcrew" / "billing" / "0", "status"))
            return dict(found["counters"])

        with Terminal(tmp_path, "run", "shop:count", *COMMON, *named, "-n", name_server) as member:
            member.until("running")
            wait_until(lambda: lines(tmp_path / "heard") == [{"moods": 5}], what="the call that succeeds")
            wait_until(lambda: counters()["hook_failures"] == 4, what="the failures")
            assert counters()["dead_letter_messages"] == 5
            assert member.stop() == 0
            assert "ValueError: no mood" in member.text
        assert broker.stop() == 0
    pids = (tmp_path / "moody").read_text().split()
    assert len(set(pids)) == 3, "a new process after the one that hung, and after the one that ended itself"


def test_a_reload_renews_the_code_of_the_hooks(tmp_path: Path) -> None:
    shop(tmp_path)
    heard = tmp_path / "heard"
    with Terminal(tmp_path, "broker", "--name-server-port", "0", "--port", "0", "--json") as broker:
        name_server = json.loads(broker.until("name_server"))["name_server"]
        named = hooks(on_dead_letter="shop:heard")
        with Terminal(tmp_path, "run", "shop:count", *COMMON, *named, "-n", name_server) as member:
            member.until('"event": "running"')
            send(tmp_path, name_server, "poor")
            wait_until(lambda: len(lines(heard)) == 1, what="the dead letter")
            (tmp_path / "shop.py").write_text(SHOP.replace("dumps(event)", 'dumps({"by": "the new code"})'))
            member.process.send_signal(signal.SIGHUP)
            member.until('"event": "reloaded"')
            send(tmp_path, name_server, "poor")
            wait_until(lambda: lines(heard)[1:] == [{"by": "the new code"}], what="the dead letter after the reload")
            assert member.stop() == 0
        assert broker.stop() == 0


def test_a_hook_that_cannot_be_had_is_said_before_the_group_is_joined(tmp_path: Path) -> None:
    shop(tmp_path)
    with Terminal(tmp_path, "broker", "--name-server-port", "0", "--port", "0", "--json") as broker:
        name_server = json.loads(broker.until("name_server"))["name_server"]
        for path, words in (("shop:nosuch", "nosuch"), ("shop:later", "plain function of one argument")):
            done = run(tmp_path, "run", "shop:count", *COMMON, *hooks(on_start=path), "-n", name_server)
            assert done.returncode == 2, done.stderr
            assert words in done.stderr
            assert "Traceback" not in done.stderr
        assert broker.stop() == 0
