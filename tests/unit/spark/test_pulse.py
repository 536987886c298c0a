"""A JVM that does not answer is killed once; one that answers, is dead or is not wanted any more is left alone."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from rocketcrew.spark.errors import SparkStartError
from rocketcrew.spark.java import Java
from rocketcrew.spark.pulse import Deadline, Pulse
from rocketcrew.spark.session import Session, SessionSettings, kill_starting
from rocketcrew.spark.spark_writer import SparkWriter

LONG_S = 60.0


def test_an_answer_is_an_answer_also_a_dead_one() -> None:
    def dead() -> None:
        raise ConnectionRefusedError

    assert Pulse(lambda: 1, LONG_S, lambda: None).beat()
    assert Pulse(dead, LONG_S, lambda: None).beat()


def test_silence_kills_once() -> None:
    never, killed = threading.Event(), threading.Event()
    pulse = Pulse(never.wait, 0.001, killed.set)
    pulse.start()
    assert killed.wait(LONG_S)
    pulse._thread.join(LONG_S)
    assert pulse.hung
    never.set()


def test_silence_at_the_end_is_no_hanging() -> None:
    never = threading.Event()
    pulse = Pulse(never.wait, 0.001, lambda: None)
    pulse.stop()
    assert pulse.beat()
    never.set()


def test_a_deadline_that_is_kept_does_nothing_and_one_that_is_not_makes_the_block_end() -> None:
    with Deadline(LONG_S, lambda: None) as kept:
        pass
    freed = threading.Event()
    with Deadline(0.001, freed.set) as missed:
        assert freed.wait(LONG_S)
    with Deadline(0, freed.clear) as unlimited:
        pass
    assert (kept.passed, missed.passed, unlimited.passed) == (False, True, False)
    assert freed.is_set()


def test_what_is_started_after_the_deadline_is_ended_too() -> None:
    """An import of pyspark may take longer than the deadline: then no JVM is there yet when it passes."""
    started, late, freed = threading.Event(), threading.Event(), threading.Event()

    def kill_what_is_there() -> None:
        late.set()
        if not started.is_set():
            raise OSError("Too many open files")
        freed.set()

    with Deadline(0.001, kill_what_is_there, again_s=0.001):
        assert late.wait(LONG_S)
        started.set()
        assert freed.wait(LONG_S)


class Hanging:
    """Stands for a Spark, its context and its gateway: what is asked of the JVM comes back when that is killed."""

    pid = 1
    stdin = None

    def __init__(self) -> None:
        self.killed = threading.Event()
        self.sparkContext = self._gateway = self.proc = self

    def stop(self) -> None:
        assert self.killed.wait(LONG_S)
        raise ConnectionResetError

    kill = property(lambda self: self.killed.set)

    def wait(self, timeout_s: float | None = None) -> int:
        del timeout_s
        return -9

    def poll(self) -> int | None:
        return -9 if self.killed.is_set() else None


def test_a_jvm_that_does_not_stop_is_killed() -> None:
    jvm: Any = Hanging()
    Session(jvm, Java(Path("java"), 17, True, "here")).close(stop_timeout_s=0.001)
    assert jvm.killed.is_set()


def test_a_jvm_that_hangs_while_it_starts_is_killed(tmp_path: Path) -> None:
    killed = threading.Event()
    folders: list[Path] = []

    def hang(_: SessionSettings) -> Session:
        assert killed.wait(LONG_S)
        raise SparkStartError("Java gateway process exited before sending its port number")

    def kill(folder: Path) -> None:
        folders.append(folder)
        killed.set()

    # As if there were a Java: none is started.
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").touch()
    (tmp_path / "release").write_text('JAVA_VERSION="17.0.9"\nMODULES="java.base"\n')
    settings = SessionSettings(tmp_path / "spark", java_home=str(tmp_path))
    writer = SparkWriter(settings, jvm_timeout_ms=1, opening=hang, kill_starting=kill)
    with pytest.raises(SparkStartError, match=r"did not start within 0\.02 s"):
        writer.start()
    assert folders == [tmp_path / "spark"]
    writer.close()


STARTS_OTHERS = "i=0; while [ $i -lt 100 ]; do sleep 600 & echo; i=$((i + 1)); done; wait"


def test_only_what_names_the_folder_is_killed_with_all_that_it_starts(tmp_path: Path) -> None:
    """The kill meets a process that starts others all the time: all that hold its standard output are gone afterwards."""
    words = ["sh", "-c", STARTS_OTHERS, str(tmp_path / "spark")]
    with (
        subprocess.Popen(words, stdout=subprocess.PIPE, start_new_session=True) as starting,
        subprocess.Popen(["sleep", "600"]) as other,
    ):
        assert starting.stdout is not None
        try:
            starting.stdout.readline()
            kill_starting(tmp_path)
            assert starting.wait(LONG_S) == -signal.SIGKILL
            reader = threading.Thread(target=starting.stdout.read, daemon=True)
            reader.start()
            reader.join(LONG_S)
            assert not reader.is_alive(), "something that it started is left"
            assert other.poll() is None
        finally:
            other.kill()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(starting.pid, signal.SIGKILL)
