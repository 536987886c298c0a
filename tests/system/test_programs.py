"""Programs that handlers start: Ctrl-C does not reach them, and they end with a worker that is killed or crashes."""

from __future__ import annotations

import os
import signal
import sys
from itertools import chain
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from harness import WAIT_S, Broker, Crew, patient_producer, processes, runs, wait_for_end, wait_until

from rocketcrew.client.outgoing import OutgoingMessage

TOPIC = "programs"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PROGRAMS", str(tmp_path))
    return tmp_path


def send(broker: Broker, *bodies: str) -> None:
    with patient_producer(broker) as producer:
        producer.send_many(OutgoingMessage(TOPIC, body.encode()) for body in bodies)


def started(folder: Path, name: str) -> list[int]:
    """The process ids of all such programs, once there is one."""
    wait_until(lambda: any(folder.glob(f"{name}.*")), what=f"the program {name}")
    return [int(note.suffix[1:]) for note in folder.glob(f"{name}.*")]


def test_ctrl_c_lets_the_programs_of_handlers_finish(folder: Path, broker: Broker) -> None:
    crew = Crew(folder, broker, "program_handlers:waits", TOPIC, load=False)
    crew.start()
    send(broker, "a")
    wait_until((folder / "begun").exists, what="the program")
    os.killpg(crew.child.pid, signal.SIGINT)  # as a terminal does, for the group in its foreground
    wait_until(lambda: bool(crew.logged("stopping")), what="the stop")
    (folder / "run").touch()
    crew.child.wait(WAIT_S)
    assert crew.logged("stopped")[-1]["clean"] is True
    assert crew.staged_rows().column("said").to_pylist() == ["a 0 ok"]


def test_programs_end_with_a_worker_that_is_killed_or_crashes(folder: Path, broker: Broker) -> None:
    """Not with one that leaves as it is asked to."""
    crew = Crew(folder, broker, "program_handlers:in_time", TOPIC, load=False)
    crew.start()
    send(broker, "leaves")
    [on_purpose] = processes(started(folder, "leaves"))
    wait_until(lambda: crew.counter("done_messages") == 1, what="the message that leaves a program running")
    try:
        os.kill(crew.child.pid, signal.SIGHUP)
        wait_until(lambda: crew.staff()["counts"].get("reloaded") == 1, what="the reload")
        send(broker, "exits", "hangs")
        wait_until(lambda: crew.counter("done_messages") == 2, what="the second attempt of what hangs")
        wait_until(lambda: crew.dead_letters() == 1, what="the last attempt of what exits")
        left = [started(folder, name) for name in ("exits", "ignores_term", "hangs")]
        assert list(map(len, left)) == [3, 3, 1]
        wait_for_end(chain(*left), "the programs' end")
        assert crew.stop() == 0
        assert runs(on_purpose)
    finally:
        on_purpose.kill()


def test_programs_end_when_the_supervisor_is_killed(folder: Path, broker: Broker) -> None:
    crew = Crew(folder, broker, "program_handlers:in_time", TOPIC, load=False)
    crew.start()
    send(broker, "hangs")
    program = processes(started(folder, "hangs"))
    crew.kill()
    wait_for_end(program, "the program's end")


def test_programs_end_with_a_stop_by_force(folder: Path, broker: Broker) -> None:
    crew = Crew(folder, broker, "program_handlers:in_time", TOPIC, load=False)
    crew.start()
    send(broker, "hangs")
    program = processes(started(folder, "hangs"))
    os.kill(crew.child.pid, signal.SIGQUIT)
    wait_until(lambda: crew.child.poll() is not None, what="the stop")
    assert crew.child.poll() == 5, crew.child.tail()
    assert not any(map(runs, program))
