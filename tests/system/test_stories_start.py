"""The first minutes of somebody new: a handler in an empty folder, and `rocketcrew run`."""

from __future__ import annotations

import collections
import contextlib
import json
import os
import pty
import re
import signal
import subprocess
from pathlib import Path
from typing import Self

import pytest
from terminal import LIMIT_S, Terminal, command, ends_with_us, environment, run, why_failed

SHOP = """
from rocketcrew import handler

@handler(schema="key string")
def count(message):
    return {"key": message.keys}
"""
FREE_PORTS = ("--set", "broker.name_server_port=0", "--set", "broker.port=0")
RUN = ("--topic", "orders", "--group", "billing", "--no-load", "--set", "workers.count=1", "--log-format", "json")


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    folder = tmp_path / "shop"
    folder.mkdir()
    (folder / "shop.py").write_text(SHOP)
    return folder


@pytest.mark.parametrize(
    ("handler", "code", "says"),
    [
        ("bad:none", 4, "its signature is none() "),
        ("bad:two", 4, "its signature is two(a, b) "),
        ("bad:Order", 4, "Order is a class"),
        ("bad:LIMIT", 4, "not callable"),
        ("bda:none", 4, 'did you mean "bad"?'),
        ("bad:nnoe", 4, 'did you mean "none"?'),
        ("bad.none", 4, 'did you mean "bad:none"?'),
        ("bad", 4, 'module "bad" has several handlers; say which: bad:first, bad:second'),
        ("crash:first", 4, "the process that imports handler crash:first ended by signal SIGSEGV"),
        ("bad.py:first", 2, 'did you mean "bad:first"?'),
    ],
)
def test_a_handler_that_cannot_run_starts_nothing(shop: Path, handler: str, code: int, says: str) -> None:
    (shop / "bad.py").write_text(
        "from rocketcrew import handler\n"
        "def none(): pass\ndef two(a, b): pass\nclass Order: pass\nLIMIT = 3\n"
        "@handler\ndef first(message): pass\n@handler\ndef second(message): pass\n"
    )
    (shop / "crash.py").write_text("import os\nos.kill(os.getpid(), 11)\n")
    done = run(shop, "run", handler, *RUN, "--embedded")
    assert done.returncode == code
    assert says in why_failed(done.stderr)
    assert "Traceback" not in done.stderr
    assert not (shop / ".rocketcrew").exists()


def test_a_set_up_that_fails_does_not_join_the_group(shop: Path) -> None:
    (shop / "late.py").write_text(
        "from rocketcrew import handler\ndef setup(): raise RuntimeError('no database')\n"
        "@handler(setup=setup)\ndef count(message): pass\n"
    )
    done = run(shop, "run", "late:count", *RUN, "--embedded", *FREE_PORTS)
    assert done.returncode == 4
    assert "no database" in done.stderr
    assert "topic_not_found" not in done.stderr  # the first thing that is looked for in the cluster
    assert '"event": "running"' not in done.stderr


def test_the_embedded_broker_has_its_settings_from_us_alone(shop: Path) -> None:
    """Of an access key in our file and its secret in the environment it would have the half, and refuse to start."""
    (shop / "late.py").write_text(
        "from rocketcrew import handler\ndef setup(): raise RuntimeError('no database')\n"
        "@handler(setup=setup)\ndef count(message): pass\n"
    )
    (shop / "crew.toml").write_text('[security]\naccess_key = "crew"\n')
    words = ("-c", "crew.toml", "--embedded", *FREE_PORTS)
    done = run(shop, "run", "late:count", *RUN, *words, ROCKETCREW_SECURITY_SECRET_KEY="12345678")
    assert done.returncode == 4
    assert "no database" in done.stderr


def test_a_broker_of_somebody_else_is_never_consumed_from(shop: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with Terminal(elsewhere, "broker", "--name-server-port", "0", "--port", "0", "--json") as foreign:
        ready = json.loads(foreign.until("name_server"))
        port = ready["name_server"].rpartition(":")[2]
        sent = run(shop, "send", "-n", ready["name_server"], "-t", "orders", "not for us")
        assert sent.returncode == 0, sent.stderr
        with Terminal(shop, "run", "shop", *RUN, "--embedded", "--set", f"broker.name_server_port={port}") as ours:
            assert f"port {port} is taken by another program" in ours.until("taken")
            own = re.search(r"127\.0\.0\.1:\d+", ours.until("embedded broker: "))
            assert own is not None
            assert own[0] != ready["name_server"]
            ours.until('"event": "running"')
            assert run(shop, "send", "-n", own[0], "-t", "orders", "for us").returncode == 0
            assert ours.stop() == 0
        with Terminal(shop, "run", "shop", *RUN, "--embedded", "--set", f"broker.name_server_port={port}") as ours:
            ours.until('"event": "running"')  # it is the same broker, though it has other ports
            assert ours.stop() == 0
        done = run(shop, "run", "shop", *RUN, "-n", ready["name_server"])
        assert (done.returncode, "is of another cluster: the last run was at" in why_failed(done.stderr)) == (
            2,
            True,
        ), done.stderr
        lag = run(shop, "lag", "-n", ready["name_server"], "-g", "billing", "-t", "orders", "--json")
        assert json.loads(lag.stdout)["total"] == 1


def test_a_run_ends_when_the_broker_of_another_cluster_registers(shop: Path) -> None:
    """What was finished on the first one counts for nothing there, and nothing is consumed."""
    broker = ("broker", "--name-server-port", "0", "--port", "0", "--json")
    with Terminal(shop, "run", "shop", *RUN, "--embedded", *FREE_PORTS) as ours:
        own = re.search(r"127\.0\.0\.1:\d+", ours.until("embedded broker: "))
        assert own is not None
        ours.until('"event": "running"')
        assert run(shop, "send", "-n", own[0], "-t", "orders", "for us").returncode == 0
        ours.until('"event": "queue_opened"')
        assert ours.stop() == 0
    with Terminal(shop, *broker, "--dir", "names", "--set", "broker.name=names") as names:
        name_server = json.loads(names.until("name_server"))["name_server"]
        with Terminal(shop, "run", "shop", *RUN, "-n", name_server) as ours:
            ours.until('"event": "running"')
            register = ("--set", f"broker.register_with={name_server}")
            with Terminal(shop, *broker, "--dir", "another", *register) as another:
                ready = json.loads(another.until("name_server"))
                assert run(shop, "send", "-n", ready["name_server"], "-t", "orders", "not for us").returncode == 0
                assert "is of another cluster" in ours.until('"event": "another_cluster"')
                assert ours.to_its_end() == 2
                lag = run(shop, "lag", "-n", ready["name_server"], "-g", "billing", "-t", "orders", "--json")
                assert json.loads(lag.stdout)["total"] == 1


def test_the_death_of_the_embedded_broker_is_shown_and_ends_the_run(shop: Path) -> None:
    with Terminal(shop, "run", "shop:count", *RUN, "--embedded", *FREE_PORTS) as ours:
        pid = re.search(r"pid (\d+)", ours.until("embedded broker: "))
        assert pid is not None
        ours.until('"event": "running"')
        os.kill(int(pid[1]), signal.SIGKILL)
        ours.until('"event": "embedded_broker_died"')
        assert ours.to_its_end() == 1
    assert why_failed(ours.text).startswith(
        "the embedded broker was killed by SIGKILL while messages were consumed from it"
    )


def test_a_second_embedded_broker_in_one_folder_says_who_has_it(shop: Path) -> None:
    with Terminal(shop, "run", "shop:count", *RUN, "--embedded", *FREE_PORTS) as first:
        first.until('"event": "running"')
        done = run(shop, "run", "shop:count", *RUN, "--group", "other", "--embedded", *FREE_PORTS)
        assert done.returncode == 1
        assert "is in use by another broker" in done.stderr
        assert first.stop() == 0


class Screen:
    """`run HANDLER --embedded` on a terminal of its own, and what that shows; a context manager, at whose end it is dead."""

    def __init__(self, folder: Path, handler: str, *more: str) -> None:
        self.said = ""
        self._ours, theirs = pty.openpty()
        words = command("run", handler, *RUN[:-2], "--embedded", *FREE_PORTS, *more)
        self._process = subprocess.Popen(
            words, cwd=folder, env=environment(), stdin=theirs, stdout=theirs, stderr=theirs,
            preexec_fn=ends_with_us(),  # noqa: PLW1509  two system calls
        )  # fmt: skip
        os.close(theirs)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._ours)

    def until(self, text: str) -> str:
        """All that was shown until `text` is in it."""
        while text not in self.said:
            self.said += os.read(self._ours, 4096).decode()
        return self.said

    def ended(self) -> int:
        """Its exit code; nobody looks at the terminal meanwhile."""
        return self._process.wait(LIMIT_S)

    def stop(self) -> str:
        """All that was shown, after a Ctrl-C, which ends it well."""
        self._process.send_signal(signal.SIGINT)
        with contextlib.suppress(OSError):  # the terminal is gone with its last process
            while part := os.read(self._ours, 4096):
                self.said += part.decode()
        assert self._process.wait() == 0
        return self.said


def test_a_terminal_shows_one_block_and_one_line(shop: Path) -> None:
    with Screen(shop, "shop") as screen:
        screen.until("done 0  failed 0")
        said = screen.stop()
    block = [line.split()[0] for line in said.replace("\r", "").splitlines() if line.startswith("  ")]
    assert block == ["group", "topics", "from", "workers", "state", "stop"]
    assert "event" not in said
    assert "Traceback" not in said


def test_a_reload_says_in_one_line_what_came_of_it(shop: Path) -> None:
    code = (shop / "shop.py").read_text()
    with Screen(shop, "shop", "--reload") as screen:
        screen.until("done 0  failed 0")
        (shop / "shop.py").write_text(code + "def (\n")  # in the moment of the start: it is not overlooked
        screen.until("reload failed, the old code goes on: ")
        screen.until('module "shop": SyntaxError: invalid syntax (shop.py, line 7)')
        (shop / "shop.py").write_text(code + "LIMIT = 3\n")
        screen.until("reloaded: the new code runs")
        screen.stop()


NOISY = """
import logging
from rocketcrew import Message

def count(message: Message):
    print("printed", message.keys)
    logging.getLogger("shop").info("info")
    logging.getLogger("shop").warning("warned " + message.keys)
"""


def test_what_workers_write_stands_above_the_live_line(shop: Path) -> None:
    (shop / "noisy.py").write_text(NOISY)
    with Screen(shop, "noisy") as screen:
        name_server = re.search(r"127\.0\.0\.1:\d+", screen.until("done 0  failed 0"))
        assert name_server is not None
        for number in range(3):
            words = ["send", "-n", name_server[0], "-t", "orders", "--key", f"o-{number}", "x"]
            assert run(shop, *words).returncode == 0
        screen.until("done 3  failed 0")
        said = screen.stop()
    lines = said.split("\r\n")
    for number in range(3):
        (printed,) = [line for line in lines if f"printed o-{number}" in line]
        assert printed.rpartition("\x1b[2K")[2] == f"printed o-{number}"  # nothing before it in its line, nothing after
        (warned,) = [line for line in lines if f"warned o-{number}" in line]
        assert "done" not in warned.rpartition("\x1b[2K")[2]
    assert "columns_inferred" not in said
    assert '"level": "info"' not in said
    assert "[info" not in said


LOUD = """
from rocketcrew import Message

def count(message: Message):
    print("x" * 4000)
"""


def test_a_terminal_that_takes_no_output_holds_up_nothing(shop: Path) -> None:
    (shop / "loud.py").write_text(LOUD)

    def consume(done: int) -> None:
        words = ["send", "-n", name_server, "-t", "orders", "--count", "400", "x"]
        assert run(shop, *words).returncode == 0
        found = {"counters": {"done_messages": 0}}
        while found["counters"]["done_messages"] < done:  # every one is answered
            asked = run(shop, "status", "--json")
            assert asked.returncode == 0, asked.stderr
            found = json.loads(asked.stdout)

    with Screen(shop, "loud") as screen:
        address = re.search(r"127\.0\.0\.1:\d+", screen.until("done 0  failed 0"))
        assert address is not None
        name_server = address[0]
        consume(400)  # much more than terminal and queue hold
        screen.until(" lines were not shown")
        consume(800)
        stopped = run(shop, "stop", "--wait", "--timeout", str(LIMIT_S))
        assert stopped.returncode == 0, stopped.stderr
        assert screen.ended() == 0


def test_one_that_runs_and_does_not_answer_is_named(shop: Path) -> None:
    with Terminal(shop, "run", "shop", *RUN, "--embedded", *FREE_PORTS) as ours:
        ours.until('"event": "running"')
        ours.process.send_signal(signal.SIGSTOP)
        try:
            os.waitid(os.P_PID, ours.process.pid, os.WSTOPPED | os.WNOWAIT)
            done = run(shop, "stop", "-g", "billing", "--wait")
        finally:
            ours.process.send_signal(signal.SIGCONT)
        assert done.returncode == 1
        assert f"pid {ours.process.pid} runs and does not answer (group billing, slot 0)" in done.stderr
        assert ours.stop() == 0


@pytest.mark.parametrize("begun", ["embedded broker: ", "topic_not_found"])
def test_ctrl_c_while_it_starts_is_no_fault(shop: Path, begun: str) -> None:
    with Terminal(shop, "run", "shop", *RUN, "--embedded", *FREE_PORTS) as ours:
        ours.until(begun)
        assert ours.stop(signal.SIGINT) in (0, 130)
    assert "Traceback" not in ours.text


def test_a_stop_in_an_outage_does_not_wait_for_the_broker(shop: Path) -> None:
    with Terminal(shop, "broker", "--name-server-port", "0", "--port", "0", "--json") as broker:
        name_server = json.loads(broker.until("name_server"))["name_server"]
        words = ["send", "-n", name_server, "-t", "orders", "x", "--count", "20"]
        assert run(shop, *words).returncode == 0
        late = ("--set", f"supervisor.stop_deadline_ms={2 * LIMIT_S * 1000}")
        with Terminal(shop, "run", "shop", *RUN, "-n", name_server, *late) as ours:
            ours.until('"event": "queue_opened"')
            broker.stop(signal.SIGKILL)
            ours.until('_failed"')  # whatever fails first because of it
            done = run(shop, "stop", "--wait", "-g", "billing", "--timeout", str(LIMIT_S))  # half of the deadline
            assert done.returncode == 0, done.stderr
            assert ours.to_its_end() == 0
    counts = collections.Counter(json.loads(line)["event"] for line in ours.said if line.startswith("{"))
    assert max(counts.values()) < 10


def test_the_first_row_is_asked_for(shop: Path) -> None:
    """The README's first run: a message is sent, `lag` shows the group before it has committed, `query` the row."""
    words = [*RUN[:4], *RUN[5:], "--embedded", *FREE_PORTS, "--set", "spark.format=pyarrow", "--json"]
    slow = ("--set", "consumer.persist_consumer_offset_interval_ms=60000")
    with Terminal(shop, "run", "shop", *words, *slow) as ours:
        found = re.search(r"127\.0\.0\.1:\d+", ours.until("embedded broker: "))
        assert found is not None
        ours.until('"event": "running"')
        assert run(shop, "send", "-n", found[0], "-t", "orders", "--key", "o-1", "{}").returncode == 0
        ours.until('"event": "queue_opened"')
        lag = run(shop, "lag", "-n", found[0], "-g", "billing", "--json")
        assert lag.returncode == 0, lag.stderr
        assert {queue["topic"] for queue in json.loads(lag.stdout)["queues"]} >= {"orders"}
        ours.until('"event": "batch_loaded"')
        asked = run(
            shop, "query", "--target", ".rocketcrew/billing/table", "--engine", "duckdb", "SELECT key FROM latest"
        )
        assert asked.stdout.split() == ["key", "o-1"], asked.stderr
        assert ours.stop() == 0
    objects = [json.loads(line) for line in ours.said if line.startswith('{"event"')]
    assert [one["event"] for one in objects] == ["running", "ended"]
    assert (objects[0]["group"], objects[0]["name_servers"]) == ("billing", found[0])
    assert (objects[1]["exit_code"], objects[1]["counters"]["done_messages"]) == (0, 1)
