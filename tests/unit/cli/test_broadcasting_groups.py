"""Commands about a group whose members keep their own offsets: those that a broker has of it move nobody and say nothing."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from rocketcrew.broker.server import EmbeddedBroker
from rocketcrew.cli import main
from rocketcrew.cli.asking import OWN_OFFSETS
from rocketcrew.cli.moving import ONE_MEMBER
from rocketcrew.client.admin import Admin
from rocketcrew.client.cluster import Cluster
from rocketcrew.client.loop_thread import LoopThread
from rocketcrew.client.opening import open_cluster
from rocketcrew.client.operations import Operations
from rocketcrew.client.sync import run_with_cluster
from rocketcrew.remoting.admin_bodies import TopicConfig
from rocketcrew.remoting.bodies import (
    BROADCASTING,
    CLUSTERING,
    CONSUME_PASSIVELY,
    ConsumerData,
    HeartbeatData,
    SubscriptionData,
)
from rocketcrew.remoting.queues import MessageQueue

TOPIC, GROUP, SHARED = "news", "notices", "billing"
MQ = MessageQueue(TOPIC, "embedded", 0)
REFUSED = "BROADCASTING: each member keeps its own offsets in a file"


async def say_hello(cluster: Cluster, address: str, group: str, model: str) -> None:
    subscribed = (SubscriptionData.of(TOPIC, "*", 1), SubscriptionData.of(f"%RETRY%{group}", "*", 1))
    data = ConsumerData(group, CONSUME_PASSIVELY, model, subscription_data_set=subscribed)
    await Operations(cluster).heartbeat(address, HeartbeatData(cluster.client_id, (), (data,)))


@pytest.fixture
def name_server() -> Iterator[str]:
    """A cluster with a member of GROUP, which broadcasts, and one of SHARED, which does not."""
    thread, broker, stack = LoopThread("broker"), EmbeddedBroker(), contextlib.AsyncExitStack()

    async def begin() -> None:
        await broker.start()
        for group, model in ((GROUP, BROADCASTING), (SHARED, CLUSTERING)):
            member = await stack.enter_async_context(open_cluster(broker.name_server))
            await Admin(member).create_topic_everywhere(TopicConfig(TOPIC, read_queue_nums=1, write_queue_nums=1))
            await say_hello(member, broker.address, group, model)
        await Operations(member).update_consumer_offset(SHARED, MQ, 0)

    thread.run(begin())
    yield broker.name_server
    thread.run(stack.aclose())
    thread.run(broker.stop())
    thread.close()


def committed(name_server: str, group: str) -> int | None:
    return run_with_cluster(
        name_server,
        lambda cluster: Operations(cluster).query_consumer_offset(group, MQ, set_zero_if_not_found=False),
    )


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["skip", "-g", GROUP, "-t", TOPIC, "--yes"], f"group {GROUP} is {REFUSED}"),
        (["clone-offsets", SHARED, GROUP, "-t", TOPIC, "--yes"], f"group {GROUP} is {REFUSED}"),
        (
            ["clone-offsets", GROUP, SHARED, "--dry-run"],
            f"group {GROUP} is BROADCASTING: each member has its own offsets",
        ),
    ],
    ids=["skip", "clone to", "clone from"],
)
def test_its_offsets_are_not_moved(
    name_server: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, words: list[str], says: str
) -> None:
    assert main.run([*words, "-n", name_server], {}, tmp_path) == 2
    assert says in capsys.readouterr().err
    assert not committed(name_server, GROUP)


@pytest.mark.parametrize("way", ["--dry-run", "--yes"])
def test_members_that_run_are_moved_with_a_warning(
    name_server: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, way: str
) -> None:
    asked = ["reset", "-g", GROUP, "-t", TOPIC, "--to", "earliest", "-n", name_server]
    assert main.run([*asked, way], {}, tmp_path) == 0
    assert f"warning: group {GROUP} {ONE_MEMBER}" in capsys.readouterr().err
    asked[2] = SHARED
    assert main.run([*asked, "--dry-run"], {}, tmp_path) == 0
    assert "warning" not in capsys.readouterr().err


def test_a_file_says_so_of_the_group_that_it_names(
    name_server: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Nobody runs."""
    (tmp_path / "rocketcrew.toml").write_text(f'[consumer]\ngroup="cachers"\nmessage_model="{BROADCASTING}"\n')
    others, reset = {"ROCKETCREW_CONSUMER_GROUP": "others"}, ["reset", "--to", "latest", "--new-group", "--yes"]

    def said(*words: str, env: dict[str, str] | None = None) -> str:
        main.run([*words, "-t", TOPIC, "-n", name_server], env or {}, tmp_path)
        return capsys.readouterr().err

    for words in (reset, ["skip", "--dry-run"], ["clone-offsets", SHARED, "cachers", "--new-group", "--dry-run"]):
        assert f"group cachers is {REFUSED}" in said(*words)
    assert OWN_OFFSETS in said("lag")
    for words in (["lag"], reset, ["skip", "--dry-run"]):
        assert not any(one in said(*words, "-g", "others") for one in (REFUSED, OWN_OFFSETS))
        assert not any(one in said(*words, env=others) for one in (REFUSED, OWN_OFFSETS))


@pytest.mark.parametrize(
    ("file", "env", "words", "said"),
    [
        ('group="cachers"', {}, ["-g", "cachers"], True),
        ('group="cachers"', {"GROUP": "cachers"}, [], True),
        ('group="cachers"', {"GROUP": "others"}, [], False),
        ('group=""', {}, ["-g", "cachers"], True),
        ('group=""', {"GROUP": "cachers"}, [], True),
        ("", {}, ["-g", "cachers"], True),
        ("", {"GROUP": "cachers"}, [], True),
        (None, {"GROUP": "cachers", "MESSAGE_MODEL": BROADCASTING}, ["-g", "cachers"], True),
        (None, {"GROUP": "cachers", "MESSAGE_MODEL": BROADCASTING}, ["-g", "others"], False),
        (None, {"MESSAGE_MODEL": BROADCASTING}, ["-g", "cachers"], True),
        (None, {"GROUP": "", "MESSAGE_MODEL": BROADCASTING}, ["-g", "cachers"], True),
    ],
)
def test_only_a_source_that_names_another_group_says_nothing_of_this_one(
    name_server: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, file: str | None,
    env: dict[str, str], words: list[str], said: bool,
) -> None:  # fmt: skip
    """Nobody runs."""
    if file is not None:
        (tmp_path / "rocketcrew.toml").write_text(f'[consumer]\n{file}\nmessage_model="{BROADCASTING}"\n')
    variables = {f"ROCKETCREW_CONSUMER_{name}": value for name, value in env.items()}
    asked = ["reset", "--to", "latest", "--new-group", "--dry-run", "-t", TOPIC, "-n", name_server, *words]
    main.run(asked, variables, tmp_path)
    assert (REFUSED in capsys.readouterr().err) == said


@pytest.mark.parametrize(
    ("group", "code"), [("nobody", 2), (SHARED, 0)], ids=["nobody runs", "members run that share the queues"]
)
def test_the_setting_tells_while_nobody_runs(
    name_server: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, group: str, code: int
) -> None:
    words = ["reset", "-g", group, "-t", TOPIC, "--to", "latest", "--new-group", "--dry-run", "-n", name_server]
    assert main.run([*words, "--set", f"consumer.message_model={BROADCASTING}"], {}, tmp_path) == code
    assert (REFUSED in capsys.readouterr().err) == (code == 2)
    assert main.run(words, {}, tmp_path) == 0


def test_nobody_says_how_far_its_members_are(
    name_server: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def said(*words: str) -> tuple[str, str]:
        assert main.run([*words, "-n", name_server], {}, tmp_path) == 0
        found = capsys.readouterr()
        return found.out, found.err

    told, _ = said("groups", "--json")
    lags = {each["name"]: (each["lag"], each["broadcasting"]) for each in json.loads(told)["groups"]}
    assert lags == {GROUP: (None, True), SHARED: (0, False)}
    told, _ = said("groups")
    assert [line.split() for line in told.splitlines()[1:3]] == [[SHARED, "1", "0", "0"], [GROUP, "1", "-", "0"]]
    assert told.splitlines()[3] == f"{GROUP}: {OWN_OFFSETS}"
    told, note = said("lag", "-g", GROUP)
    assert {tuple(line.split()[-2:]) for line in told.splitlines()[1:-1]} == {("-", "-")}
    assert (told.splitlines()[-1].split(), OWN_OFFSETS in note) == (["total", "-"], True)
    for words in (("-t", TOPIC), ("--watch", "--count", "1")):
        answer = json.loads(said("lag", "-g", GROUP, "--json", *words)[0])
        assert answer.get("total") is None
        assert {(each["committed"], each["lag"]) for each in answer["queues"]} == {(None, None)}
    assert OWN_OFFSETS in said("lag", "-g", GROUP, "--watch", "--count", "1")[0]
    assert json.loads(said("lag", "-g", SHARED, "-t", TOPIC, "--json")[0])["total"] == 0
