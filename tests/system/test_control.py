"""A running supervisor under orders: reload, scale, pause, stacks, by signal and by the control socket, under load."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rocketcrew.cli.children import ChildError
from rocketcrew.cli.watch import Watch
from rocketcrew.supervisor.control import ask

sys.path.insert(0, str(Path(__file__).parent))

from harness import WAIT_S, Broker, Crew, duplicate_keys, send_numbers, wait_until

TOPIC = "numbers"
MESSAGES = 3_000
HANDLER = """
import os, time
from rocketcrew import handler

@handler(schema="number bigint, version int, pid bigint")
def handle(message):
    time.sleep(0.0005)
    return {"number": int(message.body), "version": VERSION, "pid": os.getpid()}
"""


class Reloadable(Crew):
    """A crew whose handler lies in a folder of its own, to be rewritten."""

    def __init__(self, folder: Path, broker: Broker, **settings: object) -> None:
        super().__init__(folder, broker, "changing:handle", TOPIC, load=False, **settings)
        self.code = folder / "code"
        self.code.mkdir()
        self.cwd = self.code
        self.write("VERSION = 1\n" + HANDLER)

    def write(self, text: str) -> None:
        """At once: whoever watches the folder never finds the half of it."""
        new = self.code / ".changing"
        new.write_text(text)
        new.replace(self.code / "changing.py")

    def signal(self, number: int) -> None:
        os.kill(self.child.pid, number)

    def ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        return asyncio.run(ask(self.slot, command, **arguments))

    def generations(self) -> set[int]:
        status = self.status()
        assert status is not None
        return {worker["generation"] for worker in status["workers"] if worker["state"] == "ready"}

    def finish(self, messages: int = MESSAGES) -> Any:
        """Wait for everything, stop; the rows, each number once."""
        wait_until(lambda: self.lag() == 0 and self.counter("done_messages") >= messages, 2 * WAIT_S, "all messages")
        status = self.status()
        assert status is not None
        assert status["counters"]["invariant_violations"] == 0
        assert self.stop() == 0
        rows = self.staged_rows()
        assert sorted(rows.column("number").to_pylist()) == list(range(messages))
        assert duplicate_keys(rows) == 0
        return rows


def test_hup_under_load_changes_the_code_and_loses_nothing(tmp_path: Path, broker: Broker) -> None:
    crew = Reloadable(tmp_path, broker)
    crew.start()
    send_numbers(broker, TOPIC, range(MESSAGES))
    wait_until(lambda: crew.counter("done_messages") > MESSAGES // 10, what="the first tenth")

    def queues(status: dict[str, Any]) -> list[tuple[str, int]]:
        return [(queue["topic"], queue["queue_id"]) for queue in status["queues"]]

    def opened() -> list[tuple[str, int]]:
        return sorted((line["topic"], line["queue_id"]) for line in crew.logged("queue_opened"))

    # Topics are looked up one by one: the retry topic's queue may be opened when many messages are done.
    wait_until(lambda: f"%RETRY%{crew.group}" in dict(opened()), what="the queue of the retry topic")
    before = crew.status()
    assert before is not None
    wait_until(lambda: len(opened()) >= len(before["queues"]), what="the last line of a queue")
    crew.write("VERSION = 22\n" + HANDLER)
    crew.signal(signal.SIGHUP)
    wait_until(lambda: crew.staff()["counts"].get("reloaded") == 1, what="the reload")
    assert crew.generations() == {1}
    after = crew.status()
    assert after is not None
    # Nobody left and joined again: the same member, with the queues that it opened at its start.
    assert after["client_id"] == before["client_id"]
    assert queues(after) == queues(before)
    assert opened() == sorted(queues(after))
    for line in crew.logged("queue_opened"):
        retry = line["topic"].startswith("%RETRY%")
        assert line["reason"].startswith("a retry topic: its beginning" if retry else "a young queue"), line
    assert after["counters"]["worker_deaths"] == 0
    send_numbers(broker, TOPIC, range(MESSAGES, MESSAGES + 100))  # all the others may be done before the new code boots
    rows = crew.finish(MESSAGES + 100)
    assert set(rows.column("version").to_pylist()) == {1, 22}
    assert "reloading" in crew.child.log.read_text()


def test_code_that_does_not_boot_is_not_taken(tmp_path: Path, broker: Broker) -> None:
    crew = Reloadable(tmp_path, broker)
    crew.start()
    send_numbers(broker, TOPIC, range(MESSAGES))
    workers = set(crew.workers())
    crew.write("VERSION = 22\nthis is no Python\n")
    assert crew.ask("reload")["reloading"]
    wait_until(lambda: crew.staff()["last_reload"].startswith("rolled back"), what="the way back")
    assert "SyntaxError" in crew.staff()["last_reload"]
    assert set(crew.workers()) == workers
    rows = crew.finish()
    assert set(rows.column("version").to_pylist()) == {1}


def test_columns_that_do_not_fit_are_refused_before_a_message_is_taken(tmp_path: Path, broker: Broker) -> None:
    """At a reload the old code goes on, and a start ends: nothing is committed whose rows the table would not take."""
    crew = Reloadable(tmp_path, broker)
    crew.start()
    send_numbers(broker, TOPIC, range(20))
    wait_until(lambda: crew.lag() == 0, what="the first messages")
    other = "VERSION = 'two'\n" + HANDLER.replace("version int", "version string")
    misfit = "'version' is string here and int there"

    def refused_by_a_reload() -> None:
        workers = set(crew.workers())
        crew.write(other)
        assert crew.ask("reload")["reloading"]
        wait_until(lambda: crew.staff()["last_reload"].startswith("rolled back"), what="the way back")
        assert misfit in crew.staff()["last_reload"]
        assert set(crew.workers()) == workers
        crew.write("VERSION = 1\n" + HANDLER)

    def refused_at_the_start() -> None:
        crew.write(other)
        with pytest.raises(ChildError, match=r"ended with exit code 4") as ended:
            crew.start()
        assert misfit in str(ended.value)
        assert "Traceback" not in str(ended.value)
        crew.write("VERSION = 1\n" + HANDLER)

    refused_by_a_reload()  # by what waits for the loader: there is no table yet
    assert crew.stop() == 0
    refused_at_the_start()
    assert crew.load().num_rows == 20
    send_numbers(broker, TOPIC, range(20, 40))
    refused_at_the_start()  # by the table
    assert crew.lag() == 20
    crew.start()
    wait_until(lambda: crew.lag() == 0, what="the rest")
    assert crew.stop() == 0
    assert sorted(crew.load().column("number").to_pylist()) == list(range(40))


def test_another_order_is_refused_and_the_old_code_goes_on(tmp_path: Path, broker: Broker) -> None:
    crew = Reloadable(tmp_path, broker)
    crew.flags = ["-c", str(tmp_path / "crew.toml")]
    (tmp_path / "crew.toml").write_text("")
    crew.start()
    send_numbers(broker, TOPIC, range(MESSAGES))
    workers = set(crew.workers())
    (tmp_path / "crew.toml").write_text('[consumer]\norder = "queue"\n')
    assert "cannot change" in crew.ask("reload")["error"]
    crew.signal(signal.SIGHUP)
    wait_until(lambda: "reload_refused" in crew.child.log.read_text(), what="the refusal")
    (tmp_path / "crew.toml").write_text("")
    crew.write("VERSION = 22\n" + HANDLER.replace('bigint")', 'bigint", order="key")'))
    assert crew.ask("reload")["reloading"]
    wait_until(lambda: crew.staff()["last_reload"].startswith("rolled back"), what="the way back")
    assert 'would make that order = "key"' in crew.staff()["last_reload"]
    assert set(crew.workers()) == workers
    rows = crew.finish()
    assert set(rows.column("version").to_pylist()) == {1}


def test_a_canary_that_fails_is_taken_back(tmp_path: Path, broker: Broker) -> None:
    crew = Reloadable(tmp_path, broker, **{"workers.reload_canary_messages": 5, "consumer.max_reconsume_times": 16})
    crew.start()
    send_numbers(broker, TOPIC, range(MESSAGES))
    crew.write("VERSION = 22\n" + HANDLER.replace("    time.sleep", "    raise ValueError\n    time.sleep"))
    crew.ask("reload")
    sent = MESSAGES

    def is_back() -> bool:
        """As long as it is not, there is work for the canary, however long it boots."""
        nonlocal sent
        if crew.staff()["last_reload"].startswith("rolled back"):
            return True
        if crew.lag() == 0:
            send_numbers(broker, TOPIC, range(sent, sent + 100))
            sent += 100
        return False

    wait_until(is_back, what="the way back")
    assert "messages failed" in crew.staff()["last_reload"]
    wait_until(lambda: crew.generations() == {0}, what="the old code alone")
    crew.finish(sent)


def test_scale_pause_and_stop_by_socket_and_by_signal(tmp_path: Path, broker: Broker) -> None:
    crew = Reloadable(tmp_path, broker)
    crew.start()
    send_numbers(broker, TOPIC, range(MESSAGES))
    crew.signal(signal.SIGTTIN)
    wait_until(lambda: len(crew.workers()) == 3, what="a third worker")
    crew.signal(signal.SIGTTOU)
    wait_until(lambda: len(crew.workers()) == 2, what="two workers")  # the kernel does not count equal signals
    crew.signal(signal.SIGTTOU)
    wait_until(lambda: len(crew.workers()) == 1, what="one worker")
    assert crew.ask("scale", workers=2) == {"workers": 2, "before": 1}
    assert "error" in crew.ask("scale", workers=0)
    assert crew.ask("pause") == {"paused": True}
    wait_until(lambda: (s := crew.status()) is not None and s["waiting_messages"] == 0, what="what was pulled")
    crew.signal(signal.SIGTSTP)
    crew.signal(signal.SIGCONT)
    wait_until(lambda: (s := crew.status()) is not None and not s["paused"], what="the end of the pause")
    crew.signal(signal.SIGTSTP)
    wait_until(lambda: (s := crew.status()) is not None and bool(s["paused"]), what="a pause by signal alone")
    crew.signal(signal.SIGCONT)
    crew.signal(signal.SIGUSR1)
    wait_until(lambda: crew.child.log.read_text().count('"event": "stack"') >= 3, what="the stacks")
    crew.finish()


def test_a_storm_of_recycling_loses_and_repeats_nothing(tmp_path: Path, broker: Broker) -> None:
    """By messages while there are some, by age when there are none."""
    messages = 1_600  # a worker that is to leave finishes the chunks that it has, of some dozens
    crew = Reloadable(
        tmp_path, broker,
        # So few messages that a slow worker has them within its age.
        **{"workers.recycle_messages": 20, "workers.recycle_share_percent": 100, "workers.recycle_jitter_percent": 50,
           "workers.recycle_age_s": 3},
    )  # fmt: skip
    crew.begin().wait_for(lambda: crew.status() is not None, WAIT_S, "start")  # its workers may be young one by one
    send_numbers(broker, TOPIC, range(messages))
    wait_until(lambda: crew.staff()["counts"].get("left: messages", 0) >= 5, what="five that left")
    wait_until(lambda: crew.staff()["counts"].get("left: age", 0) >= 2, what="two that were old")
    assert crew.counter("worker_deaths") == 0
    rows = crew.finish(messages)
    assert len(set(rows.column("pid").to_pylist())) >= 7


def test_a_worker_that_grows_is_replaced_at_its_memory_limit(tmp_path: Path, broker: Broker) -> None:
    crew = Reloadable(tmp_path, broker, **{"workers.recycle_memory_mib": 300})
    crew.write(
        "VERSION = 1\nkept = []\n"
        + HANDLER.replace("    time.sleep(0.0005)\n", "    kept.append(bytearray(1 << 20))\n")
    )
    crew.start()
    send_numbers(broker, TOPIC, range(1000))
    wait_until(lambda: crew.staff()["counts"].get("left: memory", 0) >= 1, what="one that left")
    sent = 1000

    def three_had_some() -> bool:
        """As long as no successor had any, there is work for it: a slow one boots while the first two do all."""
        nonlocal sent
        if crew.lag() != 0:
            return False  # what is committed has its rows sealed
        if len(set(crew.staged_rows().column("pid").to_pylist())) >= 3:
            return True
        send_numbers(broker, TOPIC, range(sent, sent + 100))
        sent += 100
        return False

    wait_until(three_had_some, what="rows of a successor")
    crew.finish(sent)


def test_quit_stops_at_once(tmp_path: Path, broker: Broker) -> None:
    longer_than_this_test = {"supervisor.stop_deadline_ms": 3_600_000}
    crew = Crew(tmp_path, broker, "numbers_handler:endless_c_loop", TOPIC, load=False, **longer_than_this_test)
    crew.start()
    send_numbers(broker, TOPIC, range(16))
    wait_until(lambda: (s := crew.status()) is not None and any(w["messages"] for w in s["workers"]), what="work")
    os.kill(crew.child.pid, signal.SIGQUIT)
    wait_until(lambda: crew.child.poll() is not None, what="the end")
    assert crew.child.stop(WAIT_S) == 5


@pytest.fixture
def in_memory() -> Iterator[Path]:
    """A folder on a disk that is never busy, where the system has one: a stop by force gives seals and commits a second."""
    shared = "/dev/shm"
    with tempfile.TemporaryDirectory(dir=shared if os.access(shared, os.W_OK) else None) as folder:
        yield Path(folder)


def test_quit_commits_what_is_finished(in_memory: Path, broker: Broker) -> None:
    """Who goes on elsewhere knows only what the broker knows. Before the stop no offset is sent for ten minutes."""
    crew = Reloadable(in_memory, broker, **{"consumer.persist_consumer_offset_interval_ms": 600_000})
    crew.write("VERSION = 1\n" + HANDLER.replace("0.0005", "3600 if message.body == b'0' else 0"))
    crew.start()
    send_numbers(broker, TOPIC, range(16))
    wait_until(lambda: crew.counter("done_messages") == 15, what="all but one")
    crew.signal(signal.SIGQUIT)
    wait_until(lambda: crew.child.poll() is not None, what="the end")
    assert crew.child.stop(WAIT_S) == 5
    with Watch(broker.name_server) as watch:
        assert len([row for row in watch.lag("crew", [TOPIC]) if row.lag]) == 1


def test_a_member_whose_workers_cannot_boot_any_more_commits_what_is_finished(in_memory: Path, broker: Broker) -> None:
    """It leaves the group, and who goes on knows only what the broker knows."""
    crew = Reloadable(
        in_memory, broker,
        **{"consumer.persist_consumer_offset_interval_ms": 600_000, "workers.boot_timeout_ms": 20_000},
    )  # fmt: skip
    boots = "def boots():\n    assert not os.path.exists('broken')\n"
    crew.write("VERSION = 1\n" + HANDLER.replace("@handler(", f"{boots}\n@handler(setup=boots, "))
    crew.start()
    send_numbers(broker, TOPIC, range(16))
    wait_until(lambda: crew.counter("done_messages") == 16, what="all")
    (crew.code / "broken").touch()
    for pid in crew.workers():
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: crew.child.poll() is not None, what="the end")
    assert crew.child.stop(WAIT_S) == 4
    with Watch(broker.name_server) as watch:
        assert not [row for row in watch.lag("crew", [TOPIC]) if row.lag]


def test_the_service_says_why_when_nobody_can_boot(tmp_path: Path, broker: Broker) -> None:
    crew = Reloadable(tmp_path, broker)
    crew.write("import no_such_module_here\n")
    with pytest.raises(Exception, match="no_such_module_here"):
        crew.start()
    assert crew.child.stop(WAIT_S) == 4


def test_reload_on_change_while_developing(tmp_path: Path, broker: Broker) -> None:
    crew = Reloadable(tmp_path, broker)
    crew.flags = ["--reload"]
    crew.start()
    crew.write("VERSION = 22\n" + HANDLER)
    wait_until(lambda: crew.generations() == {1}, what="the new code")
    crew.write("VERSION = \n" + HANDLER)
    wait_until(lambda: "SyntaxError" in crew.staff()["last_reload"], what="the way back")
    crew.write("VERSION = 333\n" + HANDLER)
    wait_until(lambda: crew.generations() == {3}, what="the mended code")
    send_numbers(broker, TOPIC, range(50))
    assert set(crew.finish(50).column("version").to_pylist()) == {333}


def test_a_stopped_worker_and_a_stopped_supervisor_lose_nothing(tmp_path: Path, broker: Broker) -> None:
    """The supervisor is stopped for longer than the broker waits for a heartbeat (here: its connection is closed)."""
    crew = Reloadable(tmp_path, broker)
    crew.start()
    send_numbers(broker, TOPIC, range(MESSAGES // 2))
    wait_until(lambda: crew.counter("done_messages") > MESSAGES // 10, what="the first tenth")
    victim = crew.workers()[0]
    os.kill(victim, signal.SIGSTOP)
    done = crew.counter("done_messages")
    send_numbers(broker, TOPIC, range(MESSAGES // 2, MESSAGES))  # only now: the first half may all be done by then
    wait_until(lambda: crew.counter("done_messages") > done + 100, what="the other worker's work")
    os.kill(victim, signal.SIGCONT)
    crew.signal(signal.SIGSTOP)
    broker.kill()  # it forgets the member and its connections, as after an expiry
    broker.start()
    crew.signal(signal.SIGCONT)
    wait_until(lambda: crew.lag() == 0, 2 * WAIT_S, "all messages")
    assert crew.stop() == 0
    rows = crew.staged_rows()
    assert set(rows.column("number").to_pylist()) == set(range(MESSAGES))
    assert duplicate_keys(rows) == 0


def test_topics_come_and_go_by_command(tmp_path: Path, broker: Broker) -> None:
    """What is subscribed is consumed, brokers know of it at once, and what is unsubscribed is consumed no more."""
    crew = Reloadable(tmp_path, broker, **{"cluster.heartbeat_interval_ms": 60_000})
    crew.start()
    send_numbers(broker, TOPIC, range(10))
    send_numbers(broker, "later", range(10, 20))
    code, said = command(crew, "subscribe", "later")
    assert (code, "subscribed later" in said) == (0, True), said
    wait_until(lambda: crew.counter("done_messages") == 20, what="both topics")
    assert command(crew, "subscribe", "later", "--json") == (0, '{"changed": false}\n')
    code, said = command(crew, "subscribe", "no such!")
    assert (code, "no such!" in said) == (2, True), said
    code, said = command(crew, "subscribe", "later:SQL92:price >")
    assert (code, "refuses the SQL92 filter of topic later" in said) == (1, True), said
    code, said = command(crew, "status")
    assert f"subscribed later, {TOPIC}" in said
    # A reload keeps it; then it goes.
    code, said = command(crew, "reload")
    assert code == 0, said
    send_numbers(broker, "later", range(20, 30))
    wait_until(lambda: crew.counter("done_messages") == 30, what="the topic after the reload")
    assert command(crew, "unsubscribe", "later", "--json") == (0, '{"changed": true}\n')
    wait_until(lambda: all(q["topic"] != "later" for q in (crew.status() or {"queues": []})["queues"]), what="its end")
    send_numbers(broker, "later", range(100, 110))
    send_numbers(broker, TOPIC, range(30, 40))
    code, said = command(crew, "unsubscribe", TOPIC)
    assert (code, "the only topic" in said) == (1, True), said
    crew.finish(40)


def command(crew: Crew, *words: str) -> tuple[int, str]:
    """Run a command against the crew's supervisor; exit code and output."""
    done = subprocess.run(
        [sys.executable, "-m", "rocketcrew", *words, "--set", f"supervisor.data_dir={crew.settings['supervisor.data_dir']}"],
        capture_output=True, text=True, timeout=WAIT_S, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def test_every_command_for_people_and_for_programs(tmp_path: Path, broker: Broker) -> None:
    crew = Reloadable(tmp_path, broker)
    code, said = command(crew, "status")
    assert (code, "no supervisor runs" in said) == (2, True)
    crew.start()
    for words, wanted in (
        (["status"], "group crew"), (["top", "--count", "2", "--interval", "0.1"], "done 0.0/s"),
        (["stacks"], "=== supervisor"), (["pause"], "paused"), (["resume"], "resumed"),
        (["scale", "3"], "3 workers (before: 2)"), (["reload"], "generation 1 serves"),
    ):  # fmt: skip
        code, said = command(crew, *words)
        assert code == 0, said
        assert wanted in said
        code, said = command(crew, *words, "--json")
        assert code == 0, said
        assert all(isinstance(json.loads(line), dict) for line in said.splitlines())
    crew.write("no Python")
    code, said = command(crew, "reload")
    assert code == 1
    assert "rolled back" in said
    code, said = command(crew, "stop", "--json")
    assert (code, json.loads(said)) == (0, {"stopping": True, "pid": crew.child.pid, "stopped": False})
    wait_until(lambda: crew.child.poll() == 0, what="the end")
    assert not (crew.slot / "control.sock").exists()
