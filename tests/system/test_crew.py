"""`Crew`, `read` and `consume` as scripts and notebooks use them, against an embedded broker."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from documented import blocks_of
from harness import patient, patient_producer, wait_until
from ports import free_ports

from rocketcrew import Crew, CrewError, CrewTimeoutError, Retry, read
from rocketcrew.remoting.errors import RocketcrewError, UsageError
from rocketcrew.testing import LocalBroker

WAIT_S = 240
FACTOR = 3
QUICK = {
    "consumer.consume_from_where": "CONSUME_FROM_FIRST_OFFSET",
    "consumer.rebalance_interval_ms": 1000,
    "results.seal_idle_ms": 100,
}


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalBroker]:
    with LocalBroker(delay_levels="100ms 100ms 200ms 200ms 300ms 300ms") as found:
        yield found


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, as that of a script: state goes below it."""
    monkeypatch.chdir(tmp_path)
    patient(monkeypatch)
    return tmp_path


def send(broker: LocalBroker, topic: str, count: int, start: int = 0) -> None:
    with patient_producer(broker) as producer:
        for number in range(start, start + count):
            producer.send(topic, str(number))


def crew_of(broker: LocalBroker, handler: Any, topic: str, **arguments: Any) -> Crew:
    settings = {**QUICK, **arguments.pop("settings", {})}
    named = {"group": broker.group(), "workers": 1, "name_servers": broker.name_server, **arguments}
    return Crew(handler, topics=topic, settings=settings, **named)


def times_factor(message: Any) -> dict[str, int]:
    return {"n": int(message.body) * FACTOR}


def test_a_lambda_in_two_workers_and_rows_that_stay_after_the_end(broker: LocalBroker, here: Path) -> None:
    topic = broker.topic()
    send(broker, topic, 40)
    with crew_of(broker, lambda message: {"n": int(message.body)}, topic, workers=2) as crew:
        counters = crew.wait(timeout_s=WAIT_S)
        assert counters["done_messages"] == 40
        assert sorted(row["n"] for row in crew.results()) == list(range(40))
        wait_until(lambda: crew.status["ready_workers"] == 2, what="the second worker")
        send(broker, topic, 10, start=40)
        crew.wait(max_messages=50, until_empty=False, timeout_s=WAIT_S)
        assert sorted(row["n"] for row in crew.results()) == list(range(50))
    assert crew.status["counters"]["done_messages"] == 50
    assert crew.table().column("_topic").to_pylist() == [topic] * 50
    with pytest.raises(UsageError, match="closed"):
        crew.wait()


def test_a_second_crew_of_the_group_has_its_own_rows_only(broker: LocalBroker, here: Path) -> None:
    topic, group = broker.topic(), broker.group()
    for start in (0, 5):
        send(broker, topic, 5, start)
        with crew_of(broker, times_factor, topic, group=group) as crew:
            crew.wait(timeout_s=WAIT_S)
            assert sorted(row["n"] for row in crew.results()) == [n * FACTOR for n in range(start, start + 5)]


def test_a_cell_that_is_run_again_ends_the_crew_before_it(broker: LocalBroker, here: Path) -> None:
    topic, group = broker.topic(), broker.group()
    crew = crew_of(broker, lambda _: {"version": 1}, topic, group=group).start()
    first = psutil.Process(crew.status["pid"])
    with pytest.warns(UserWarning, match=f'a crew of the group "{group}" that was started here before still runs'):
        crew = crew_of(broker, lambda _: {"version": 2}, topic, group=group).start()
    gone, _ = psutil.wait_procs([first], timeout=WAIT_S)
    try:
        assert gone
        send(broker, topic, 5)
        crew.wait(timeout_s=WAIT_S)
        assert list(crew.results()) == [{"version": 2}] * 5
    finally:
        crew.close()


def is_refused_here(crew: Crew) -> int:
    """0 where it is, with the reason, and closing it does nothing."""
    try:
        return 1 if crew.status else 2
    except UsageError as error:
        crew.close()
        return 0 if "this crew was made in process" in str(error) else 3


def test_a_fork_leaves_the_crew_to_its_parent(broker: LocalBroker, here: Path) -> None:
    topic = broker.topic()
    send(broker, topic, 5)
    with crew_of(broker, times_factor, topic) as crew:
        child = os.fork()
        if not child:
            try:
                os._exit(is_refused_here(crew))
            finally:
                os._exit(9)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        crew.wait(timeout_s=WAIT_S)
        assert sorted(row["n"] for row in crew.results()) == [n * FACTOR for n in range(5)]


def test_inside_a_running_loop_as_in_a_notebook(broker: LocalBroker, here: Path) -> None:
    topic = broker.topic()
    send(broker, topic, 5)

    async def cell() -> int:
        with crew_of(broker, times_factor, topic) as crew:
            crew.wait(timeout_s=WAIT_S)
            return sum(row["n"] for row in crew.results())

    assert asyncio.run(cell()) == FACTOR * 10


def test_what_comes_back_later_is_waited_for_and_dead_letters_are_no_rest(broker: LocalBroker, here: Path) -> None:
    def stubborn(message: Any) -> dict[str, int]:
        if message.body == b"3" or message.reconsume_times < 2:
            raise Retry
        return {"n": int(message.body)}

    topic, group = broker.topic(), broker.group()
    send(broker, topic, 5)
    with crew_of(broker, stubborn, topic, group=group, settings={"consumer.max_reconsume_times": 2}) as crew:
        crew.wait(timeout_s=WAIT_S)
        assert sorted(row["n"] for row in crew.results()) == [0, 1, 2, 4]
    assert [message.body for message in broker.dead_letters(group)] == [b"3"]


def test_what_others_bring_back_does_not_end_the_wait(tmp_path: Path, here: Path) -> None:
    """As many messages come into the retry topic as this crew has sent back, and they are not its own: another member's."""

    def once_more(message: Any) -> dict[str, Any] | None:
        if message.body == b"ours" and message.reconsume_times == 0:
            raise Retry(delay_level=2)
        return {"body": message.body.decode(), "times": message.reconsume_times}

    with LocalBroker(delay_levels="100ms 4s") as slow:
        topic, group = slow.topic(), slow.group()
        with patient_producer(slow) as producer:
            producer.send(topic, "ours")
        with crew_of(slow, once_more, topic, group=group) as crew:
            with patient_producer(slow) as producer:
                producer.send(f"%RETRY%{group}", "theirs")
            crew.wait(timeout_s=WAIT_S)
            assert sorted(row["body"] for row in crew.results()) == ["ours", "theirs"]
            assert {row["times"] for row in crew.results() if row["body"] == "ours"} == {1}


def test_a_strangers_message_of_two_hours_is_not_waited_for(tmp_path: Path, here: Path) -> None:
    def once_more(message: Any) -> dict[str, int]:
        if message.body == b"dead":
            raise Retry(delay_level=-1)
        if message.reconsume_times == 0:
            raise Retry(delay_level=1)
        return {"times": message.reconsume_times}

    with LocalBroker(delay_levels="100ms 2h") as slow:
        topic, group = slow.topic(), slow.group()
        with patient_producer(slow) as producer:
            producer.send(slow.topic(), "in two hours", delay_level=2)
            producer.send(topic, "once more")
            producer.send(topic, "dead")
        with crew_of(slow, once_more, topic, group=group) as crew:
            crew.wait(timeout_s=WAIT_S)
            assert list(crew.results()) == [{"times": 1}]
        assert [message.body for message in slow.dead_letters(group)] == [b"dead"]


def test_rows_of_a_worker_that_crashed_are_there_once(broker: LocalBroker, here: Path) -> None:
    def crash(message: Any) -> dict[str, int]:
        if message.body == b"crash" and message.reconsume_times == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return {"reconsumed": message.reconsume_times}

    topic = broker.topic(queues=1)
    send(broker, topic, 30)
    with patient_producer(broker) as producer:
        producer.send(topic, "crash")
    send(broker, topic, 30)
    with crew_of(
        broker, crash, topic, settings={"workers.max_worker_deaths": 1, "consumer.max_reconsume_times": 1}
    ) as crew:
        crew.wait(timeout_s=WAIT_S)
        table = crew.table()
    records = list(
        zip(table["_topic"].to_pylist(), table["_queue_id"].to_pylist(), table["_offset"].to_pylist(), strict=True)
    )
    assert len(records) == len(set(records))
    assert len([record for record in records if record[0] == topic]) == 60


def test_an_embedded_broker_of_its_own_whatever_way_leads_into_the_cluster(here: Path) -> None:
    """Also where its ports are others at the next start."""
    into_a_cluster = {
        "cluster.namesrv_domain": "ns.invalid", "cluster.vip_channel_enabled": True, "security.tls_enable": True,
        "security.access_key": "a", "security.secret_key": "b",
    }  # fmt: skip
    for number in (14, 15):
        name_server_port, port = free_ports(2)
        settings = {**QUICK, **into_a_cluster, "broker.name_server_port": name_server_port, "broker.port": port}
        with Crew(times_factor, topics="numbers", group="g", embedded=True, workers=1, settings=settings) as crew:
            with patient_producer(crew) as producer:
                producer.send("numbers", str(number))
            crew.wait(max_messages=1, until_empty=False, timeout_s=WAIT_S)
            assert list(crew.results()) == [{"n": 3 * number}]


def test_rows_of_a_target_are_read_from_the_table(broker: LocalBroker, here: Path) -> None:
    topic, table = broker.topic(), here / "table"
    send(broker, topic, 20)
    settings = {"spark.format": "pyarrow", "spark.max_wait_ms": 500}
    with crew_of(broker, times_factor, topic, target=table, settings=settings) as crew:
        crew.wait(timeout_s=WAIT_S)
        assert sorted(read(table)["n"].to_pylist()) == [n * FACTOR for n in range(20)]
        with pytest.raises(UsageError, match=r"rocketcrew\.read"):
            crew.results()
    assert sorted(read(table, form="pandas", latest=True)["n"]) == [n * FACTOR for n in range(20)]


# What goes wrong is raised in the caller, with the sentence that the commands print.


def command(*words: str) -> str:
    done = subprocess.run([sys.executable, "-m", "rocketcrew", *words], capture_output=True, text=True, check=False)
    assert done.returncode
    return done.stderr.strip().removeprefix("rocketcrew: ")


def test_a_handler_that_cannot_be_used_and_no_server_say_what_run_says(here: Path) -> None:
    (here / "shop.py").write_text("def handle(message, other): ...\ndef fine(message): ...\n")
    with socket.socket() as held:  # bound and not listening: refused, and nobody else gets the port
        held.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{held.getsockname()[1]}"
        asked = {"topics": "t", "group": "g", "name_servers": nobody}
        words = ("-t", "t", "-g", "g", "-n", nobody)
        for handler in ("shop:handle", "shop:handel", "shoop:handle", "shop.py"):
            with pytest.raises(RocketcrewError) as raised:
                Crew(handler, **asked)
            assert str(raised.value) == command("run", handler, *words, "--log-level", "error")
        with pytest.raises(CrewError) as unreachable, Crew("shop:fine", **asked):
            pass
        what, argument = str(unreachable.value).split("Name another by ")
        assert "no name server answers" in what
        assert argument.startswith("name_servers=")
        assert f"{what}Name another by -n HOST:PORT" in command("run", "shop:fine", *words, "--log-level", "error")


def test_a_handler_that_no_worker_can_load_is_an_error_of_the_start(broker: LocalBroker, here: Path) -> None:
    (here / "broken.py").write_text("from rocketcrew import handler\n\ndef prepare():\n    raise ValueError('no model')\n\n"
                                    "@handler(setup=prepare)\ndef handle(message): ...\n")  # fmt: skip
    crew = crew_of(broker, "broken:handle", broker.topic())
    with pytest.raises(RocketcrewError, match="no model"):
        crew.start()


def test_a_wait_that_is_too_short_says_how_far_it_came(broker: LocalBroker, here: Path) -> None:
    def never(message: Any) -> None:
        raise ValueError("never")

    topic = broker.topic()
    send(broker, topic, 1)
    # Its attempts are not used up, however late we ask.
    with crew_of(broker, never, topic, settings={"consumer.max_reconsume_times": 1_000_000}) as crew:
        wait_until(lambda: crew.status["counters"]["failed_messages"] > 0, WAIT_S, "a failed attempt")
        with pytest.raises(CrewTimeoutError, match=r"not done after 0\.1 s: finished 0 messages, [1-9]") as late:
            crew.wait(timeout_s=0.1)
        assert isinstance(late.value, TimeoutError)
        assert f"Errors are in {crew.log}; the last was: ValueError: never" in str(late.value)
        assert "never" in crew.log.read_text()


def test_a_topic_that_does_not_exist_is_not_taken_for_consumed(broker: LocalBroker, here: Path) -> None:
    with (
        crew_of(broker, times_factor, "misspelt") as crew,
        pytest.raises(CrewTimeoutError, match="topic misspelt does not"),
    ):
        crew.wait(timeout_s=1)


def test_a_broker_that_is_away_is_waited_for(broker: LocalBroker, here: Path) -> None:
    topic = broker.topic()
    with crew_of(broker, times_factor, topic) as crew:
        broker.kill()
        try:
            with pytest.raises(CrewTimeoutError, match="how many are left is not known"):
                crew.wait(timeout_s=0.1)
        finally:
            broker.start()
        assert crew.wait(timeout_s=WAIT_S)["done_messages"] == 0


def test_a_crew_whose_process_is_killed_says_so_and_the_next_one_goes_on(broker: LocalBroker, here: Path) -> None:
    topic, group = broker.topic(), broker.group()
    crew = crew_of(broker, times_factor, topic, group=group).start()
    os.kill(crew.status["pid"], signal.SIGKILL)
    for _again in range(2):
        with pytest.raises(CrewError, match="killed by signal 9"):
            crew.wait(timeout_s=WAIT_S)
    crew.close()
    send(broker, topic, 3)
    with crew_of(broker, times_factor, topic, group=group) as crew:
        crew.wait(timeout_s=WAIT_S)
        assert sorted(row["n"] for row in crew.results()) == [0, 3, 6]


def test_nothing_of_a_crew_outlives_its_caller(broker: LocalBroker, here: Path) -> None:
    script = (
        "import sys\nfrom rocketcrew import Crew\n"
        f"crew = Crew(lambda m: None, topics={broker.topic()!r}, group='g', workers=1, name_servers={broker.name_server!r})\n"
        "crew.start()\nprint(*[w['pid'] for w in crew.status['workers']], crew.status['pid'], flush=True)\nsys.stdin.read()\n"
    )
    caller = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with caller:
        assert caller.stdout is not None
        pids = [int(word) for word in caller.stdout.readline().split()]
        processes = [psutil.Process(pid) for pid in pids]
        caller.kill()
    assert len(processes) == 2
    assert not psutil.wait_procs(processes, timeout=WAIT_S)[1]


def test_it_starts_whatever_lies_in_the_folder_and_however_the_package_was_found(
    broker: LocalBroker, here: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The script has the package by a path of its own, and its processes do not begin with `random.py` of the folder."""
    (here / "random.py").write_text("print('the file random.py')\n")
    topic = broker.topic()
    send(broker, topic, 5)
    script = tmp_path_factory.mktemp("elsewhere") / "script.py"
    script.write_text(
        f"import sys\nsys.path[1:1] = {sys.path[1:]!r}\nfrom rocketcrew import Crew\n"
        f"crew = Crew(lambda m: {{'n': int(m.body)}}, topics={topic!r}, group='found', workers=1,"
        f" name_servers={broker.name_server!r}, settings={QUICK!r})\n"
        f"with crew:\n    crew.wait(timeout_s={WAIT_S})\n    print(sum(row['n'] for row in crew.results()))\n"
    )
    bare = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ran = subprocess.run([sys.executable, script], env=bare, capture_output=True, text=True, check=False)
    assert ran.stdout == "10\n", ran.stderr


def test_its_paths_are_below_the_folder_where_it_was_made(
    broker: LocalBroker, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = broker.topic()
    send(broker, topic, 1)
    crew = crew_of(broker, times_factor, topic)
    (here / "other").mkdir()
    monkeypatch.chdir(here / "other")
    with crew:
        crew.wait(timeout_s=WAIT_S)
        assert list(crew.results()) == [{"n": 0}]
    assert crew.log.parent == here / ".rocketcrew"
    assert not list((here / "other").iterdir())


# The configuration.


def test_the_file_of_the_folder_is_read_and_arguments_come_first(broker: LocalBroker, here: Path) -> None:
    topic = broker.topic()
    (here / "rocketcrew.toml").write_text(
        f'[consumer]\ngroup = "of-the-file"\ntopics = ["{topic}"]\n[cluster]\nname_servers = ["{broker.name_server}"]\n'
        "[workers]\ncount = 7\n"
    )
    crew = Crew(times_factor, workers=1)
    assert (crew.settings.consumer.group, crew.settings.workers.count) == ("of-the-file", 1)
    send(broker, topic, 2)
    with crew:
        crew.wait(max_messages=2, timeout_s=WAIT_S)
    with pytest.raises(UsageError, match="started before"):
        crew.start()


def test_consume_is_blocking_reads_the_file_too_and_leaves_the_process_as_it_was(
    broker: LocalBroker, here: Path
) -> None:
    topic = broker.topic()
    send(broker, topic, 1)
    (here / "rocketcrew.toml").write_text(
        f'[consumer]\ngroup = "g"\n[cluster]\nname_servers = ["{broker.name_server}"]\n'
    )
    (here / "script.py").write_text(
        "import logging, os, signal, structlog\nfrom rocketcrew import consume\n\n"
        "def handle(message):\n    os.kill(SUPERVISOR, signal.SIGTERM)\n    return {'n': 1}\n\n"
        "def state():\n    handlers = [signal.getsignal(number) for number in signal.valid_signals()]\n"
        "    return handlers, logging.root.handlers[:], logging.root.level, structlog.is_configured()\n\n"
        "if __name__ == '__main__':\n    SUPERVISOR = os.getpid()\n"
        "    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):\n        signal.signal(number, print)\n"
        "    logging.basicConfig(level=logging.ERROR)\n    before = state()\n"
        f"    summary = consume(handle, topics={topic!r}, workers=1, schema='n int', settings={{'spark.load': False}})\n"
        "    print(summary.counters['done_messages'], summary.exit_code, state() == before)\n"
    )
    done = subprocess.run([sys.executable, "script.py"], capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.stdout.split() == ["1", "0", "True"], done.stderr


SCRIPT = """
import pickle
import sqlite3
import xml.dom.minidom
from dataclasses import dataclass

from rocketcrew import Crew, handler

db, calls = None, 0

@dataclass
class Order:
    n: int

def connect():
    global db
    db = sqlite3.connect(":memory:")

def count():
    global calls
    calls += 1

@handler(setup=connect)
def handle(message):
    from .prices import double
    count()
    order = pickle.loads(pickle.dumps(Order(int(message.body))))
    text = xml.dom.minidom.parseString("<a/>").documentElement.tagName
    return {"db": db.execute("select 1").fetchone()[0], "calls": calls, "doubled": double(order.n), "text": text}

if __name__ == "__main__":
    with Crew(handle, topics=TOPIC, group="scripts", name_servers=SERVERS, workers=1, settings=SETTINGS) as crew:
        crew.wait(timeout_s=WAIT_S)
        print(sorted((row["calls"], row["db"], row["text"]) for row in crew.results()))
        print(sorted(row["doubled"] for row in crew.results()))
"""


def test_the_handler_of_a_script_sees_what_its_set_up_and_helpers_bind(broker: LocalBroker, here: Path) -> None:
    """What `python -m package.script` has in its main module means in a worker what it means here."""
    topic = broker.topic()
    send(broker, topic, 3)
    (here / "shop").mkdir()
    (here / "shop" / "prices.py").write_text("def double(n): return 2 * n\n")
    settings = {"consumer.consume_from_where": "CONSUME_FROM_FIRST_OFFSET"}
    given = {"TOPIC": topic, "SERVERS": broker.name_server, "SETTINGS": settings, "WAIT_S": WAIT_S / 2}
    (here / "shop" / "script.py").write_text("\n".join(f"{name} = {value!r}" for name, value in given.items()) + SCRIPT)
    words = [sys.executable, "-m", "shop.script"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.stdout.splitlines() == [str([(n, 1, "a") for n in (1, 2, 3)]), "[0, 2, 4]"], done.stderr
    assert not done.stderr


def test_the_page_about_notebooks_runs_as_it_is_written(broker: LocalBroker, here: Path) -> None:
    for name, text in blocks_of("how-to/notebook.md").items():
        (here / name).write_text(text)
    name_server_port, port = free_ports(2)
    (here / "rocketcrew.toml").write_text(f"[broker]\nname_server_port = {name_server_port}\nport = {port}\n")
    done = subprocess.run([sys.executable, "orders.py"], capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.stdout.split() == [str(sum(range(100)) + 100)], done.stderr
    topic = broker.topic()
    send(broker, topic, 12)
    code = f"from table import run; print(*sorted(run({broker.name_server!r}, {topic!r})['length']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.stdout.split() == ["1"] * 10 + ["2"] * 2, done.stderr
