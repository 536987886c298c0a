"""What `reset`, `skip` and `clone-offsets` say and do where something comes between the question and the last offset."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from rocketcrew import OutgoingMessage, SyncProducer
from rocketcrew.broker.effects import SILENCE
from rocketcrew.broker.server import EmbeddedBroker
from rocketcrew.cli import main
from rocketcrew.cli.moving import ONCE_MORE, Move, check_unchanged, made_in_words
from rocketcrew.client.admin import Admin
from rocketcrew.client.cluster import Cluster
from rocketcrew.client.loop_thread import LoopThread
from rocketcrew.client.operations import Operations
from rocketcrew.client.sync import run_with_cluster
from rocketcrew.conf.exit_codes import EXIT_INTERRUPTED
from rocketcrew.durable.outcomes import SKIPPED
from rocketcrew.remoting.admin_bodies import SubscriptionGroupConfig, TopicConfig
from rocketcrew.remoting.codes import RequestCode, ResponseCode
from rocketcrew.remoting.command import Command
from rocketcrew.remoting.errors import RocketcrewError
from rocketcrew.remoting.queues import MessageQueue
from rocketcrew.spark.staging import Staging

TOPIC, GROUP, OTHER = "orders", "billing", "billing-2"
QUEUES = 3
RESET = ("reset", "-g", GROUP, "-t", TOPIC, "--to", "latest", "--yes")


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    """GROUP has committed 0 in each of three queues, of which each has one message."""
    thread, broker = LoopThread("broker"), EmbeddedBroker()
    thread.run(broker.start())

    async def fill(cluster: Cluster) -> None:
        admin, operations = Admin(cluster), Operations(cluster)
        await admin.create_topic(broker.address, TopicConfig(TOPIC, QUEUES, QUEUES))
        for group in (GROUP, OTHER):
            await admin.create_group(broker.address, SubscriptionGroupConfig(group))
            await admin.create_topic(broker.address, TopicConfig(f"%RETRY%{group}", 1, 1))
        for number in range(QUEUES):
            await operations.update_consumer_offset(GROUP, MessageQueue(TOPIC, "embedded", number), 0)

    run_with_cluster(broker.name_server, fill)
    with SyncProducer(broker.name_server) as producer:
        for _ in range(QUEUES):  # goes round the queues
            producer.send(OutgoingMessage(TOPIC, b"x"))
    yield broker
    thread.run(broker.stop())
    thread.close()


def committed(broker: EmbeddedBroker, group: str = GROUP) -> list[int | None]:
    async def look(cluster: Cluster) -> list[int | None]:
        queues = [MessageQueue(TOPIC, "embedded", number) for number in range(QUEUES)]
        ask = Operations(cluster).query_consumer_offset
        return [await ask(group, mq, set_zero_if_not_found=False) for mq in queues]

    return run_with_cluster(broker.name_server, look)


def said(broker: EmbeddedBroker, folder: Path, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main.run([*words, "-n", broker.name_server], {}, folder)
    out, err = capsys.readouterr()
    return code, out, err


def refuse_queue(command: Command) -> Command | None:
    """Nobody may set the offset of queue 2."""
    if command.code == RequestCode.UPDATE_CONSUMER_OFFSET and command.fields["queueId"] == "2":
        return command.response(ResponseCode.NO_PERMISSION, remark="not you")
    return None


class MovedMeanwhile:
    """An intercept: the second and later looks at queue 1 find another offset than the first."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._looks = Counter[str]()

    def __call__(self, command: Command) -> Command | None:
        if command.code != RequestCode.QUERY_CONSUMER_OFFSET or command.fields["consumerGroup"] != self._group:
            return None
        queue = command.fields["queueId"]
        self._looks[queue] += 1
        if queue == "1" and self._looks[queue] > 1:
            return command.response(ResponseCode.SUCCESS, {"offset": "7"})
        return None


def test_a_reset_that_fails_midway_names_what_it_has_set_and_notes_what_that_skips(
    broker: EmbeddedBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    segments = tmp_path / "segments"
    segments.mkdir()
    broker.intercepts.append(refuse_queue)
    code, _, err = said(broker, tmp_path, capsys, *RESET, "--staging", str(segments))
    assert (code, committed(broker)) == (1, [1, 1, 0])
    assert f"2 of 3 queues were set ({TOPIC} embedded 0, {TOPIC} embedded 1): " in err
    assert "not you" in err
    skipped = Staging(segments).noted()[1].of_kind(SKIPPED)
    assert sorted(key.queue_id for key in skipped.queues) == [0, 1]


def test_a_reset_that_ctrl_c_ends_midway_names_what_it_has_set(
    broker: EmbeddedBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def hang(command: Command) -> Command | None:
        if command.code != RequestCode.UPDATE_CONSUMER_OFFSET or command.fields["queueId"] != "1":
            return None
        os.kill(os.getpid(), signal.SIGINT)
        return SILENCE

    broker.intercepts.append(hang)
    code, _, err = said(broker, tmp_path, capsys, *RESET)
    assert (code, committed(broker)) == (EXIT_INTERRUPTED, [1, 0, 0])
    assert f"1 of 3 queues were set ({TOPIC} embedded 0)\n" in err


def test_a_clone_that_fails_midway_names_what_it_has_set(
    broker: EmbeddedBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broker.intercepts.append(refuse_queue)
    code, _, err = said(broker, tmp_path, capsys, "clone-offsets", GROUP, OTHER, "--yes")
    assert (code, committed(broker, OTHER)) == (1, [0, 0, None])
    assert "2 of 3 queues were set (" in err


def test_a_reset_that_fails_at_once_has_set_nothing(
    broker: EmbeddedBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = RequestCode.UPDATE_CONSUMER_OFFSET
    broker.intercepts.append(lambda one: one.response(ResponseCode.NO_PERMISSION) if one.code == code else None)
    rc, _, err = said(broker, tmp_path, capsys, *RESET)
    assert (rc, "were set" in err) == (1, False)


@pytest.mark.parametrize(
    ("words", "moved"),
    [
        (RESET, GROUP),
        (("clone-offsets", GROUP, OTHER, "--yes"), OTHER),
        (("skip", "-g", GROUP, "-t", TOPIC, "--queue", "1", "--yes"), GROUP),
    ],
    ids=["reset", "clone-offsets", "skip"],
)
def test_offsets_that_others_have_moved_meanwhile_are_left_alone(
    broker: EmbeddedBroker, tmp_path: Path, words: tuple[str, ...], moved: str
) -> None:
    before = committed(broker, moved)
    intercept = MovedMeanwhile(moved)
    broker.intercepts.append(intercept)
    ours, theirs = os.openpty()
    try:
        os.write(ours, b"y\n")  # to the question
        program = [sys.executable, "-Im", "rocketcrew", *words[:-1], "-n", broker.name_server]
        done = subprocess.run(
            program, stdin=theirs, stderr=theirs, stdout=subprocess.DEVNULL, cwd=tmp_path, timeout=60, check=False
        )
        err = os.read(ours, 1 << 16).decode().replace("\r\n", "\n")
    finally:
        os.close(ours)
        os.close(theirs)
    broker.intercepts.remove(intercept)
    assert (done.returncode != 0, committed(broker, moved)) == (True, before)
    assert ONCE_MORE in err or "nothing that the group has not finished" in err


@pytest.mark.parametrize(
    ("words", "moved", "again"),
    [
        (RESET, GROUP, 3),
        (("clone-offsets", GROUP, OTHER, "--yes"), OTHER, 3),
        (("skip", "-g", GROUP, "-t", TOPIC, "--queue", "1", "--yes"), GROUP, 1),
    ],
    ids=["reset", "clone-offsets", "skip"],
)
def test_what_nobody_was_asked_about_is_planned_once(
    broker: EmbeddedBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], moved: str,
    again: int,
) -> None:  # fmt: skip
    looks: list[str] = []

    def note(command: Command) -> None:
        if command.code == RequestCode.QUERY_CONSUMER_OFFSET and command.fields["consumerGroup"] == moved:
            looks.append(command.fields["queueId"])

    broker.intercepts.append(note)
    assert said(broker, tmp_path, capsys, *words)[0] == 0
    assert len(looks) == QUEUES + again, "each queue once, and once more where it was set"


MOVE = Move(TOPIC, "embedded", 0, 4, 9)
ON = Move(TOPIC, "embedded", 0, 5, 9)


def test_what_changed_since_it_was_shown_is_refused() -> None:
    check_unchanged(([], [MOVE]), ([], [MOVE]))
    check_unchanged((["a"], [MOVE]), (["a"], [ON]))  # members that run go on
    with pytest.raises(RocketcrewError, match=f"in {TOPIC} embedded 0: {ONCE_MORE}"):
        check_unchanged(([], [MOVE]), ([], [ON]))
    with pytest.raises(RocketcrewError, match="in orders embedded 0"):
        check_unchanged(([], [Move(TOPIC, "embedded", 0, None, 9)]), ([], []))
    for before, now in (([], ["a"]), (["a"], []), (["a"], ["b"])):
        with pytest.raises(RocketcrewError, match=r"other members than were shown \((none|a|b)\)"):
            check_unchanged((before, [MOVE]), (now, [MOVE]))


def test_a_topic_that_is_named_twice_is_moved_once(
    broker: EmbeddedBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in ((*RESET, "--dry-run"), ("clone-offsets", GROUP, OTHER, "-t", TOPIC, "--dry-run")):
        _, out, _ = said(broker, tmp_path, capsys, *words, "-t", TOPIC, "--json")
        assert [one["queue_id"] for one in json.loads(out)["queues"]] == [0, 1, 2]


def test_what_is_skipped_where_nothing_was_committed_is_not_known(
    broker: EmbeddedBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("reset", "-g", OTHER, "-t", TOPIC, "--to", "latest", "--dry-run")
    _, out, _ = said(broker, tmp_path, capsys, *words)
    assert out.splitlines()[1].split()[-4:] == ["-", "1", "-", "-"]
    assert "0 messages skipped, 0 repeated; 3 queues without an offset.\n" in out
    _, out, _ = said(broker, tmp_path, capsys, *words, "--json")
    assert {(one["skipped"], one["repeated"]) for one in json.loads(out)["queues"]} == {(None, None)}


def test_of_many_queues_the_first_are_named() -> None:
    moves = [Move("t", "b", number, 0, 1) for number in range(12)]
    assert made_in_words(moves, moves).endswith("t b 7 and 4 more)")
    assert made_in_words([], moves) == ""


def test_queues_whose_offset_is_the_same_are_not_said_to_be_set() -> None:
    same, moved, to_do = Move("t", "b", 0, 7, 7), Move("t", "b", 1, 7, 9), Move("t", "b", 2, None, 0)
    assert made_in_words([same, moved], [same, moved, to_do]) == "1 of 2 queues were set (t b 1)"
    assert made_in_words([same], [same, moved]) == ""
