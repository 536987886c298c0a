"""Wrong names, wrong ports, wrong folders: one sentence each, with what to do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from terminal import Terminal, run

from rocketcrew.durable.facts import facts_from_bytes
from rocketcrew.durable.outcomes import SKIPPED


@dataclass
class Cluster:
    folder: Path
    name_server: str
    broker: str

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        done = run(self.folder, *arguments, NAMESRV_ADDR=self.name_server)
        assert "Traceback" not in done.stderr
        return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """With a topic, and a group that has run once."""
    folder = tmp_path_factory.mktemp("cluster")
    (folder / "shop.py").write_text("def count(message): print('counted', flush=True)\n")
    with Terminal(folder, "broker", "--name-server-port", "0", "--port", "0", "--json") as broker:
        ready = json.loads(broker.until("name_server"))
        made = Cluster(folder, ready["name_server"], ready["broker"])
        code, _, err = made("send", "-t", "orders", "--count", "8", "x")
        assert code == 0
        assert "topic orders is new" in err
        with member(made) as running:
            while running.text.count("counted") < 8:  # a worker's own line may come before those of the log
                running.until("counted")
            assert running.stop() == 0
        yield made
        assert broker.stop() == 0


def member(cluster: Cluster) -> Terminal:
    """A member of the group that has the topic's messages committed when it stops."""
    words = ("run", "shop:count", "-t", "orders", "-g", "billing", "--no-load", "--log-format", "json")
    first = ("--set", "consumer.consume_from_where=CONSUME_FROM_FIRST_OFFSET", "--set", "workers.count=1")
    running = Terminal(cluster.folder, *words, *first, NAMESRV_ADDR=cluster.name_server)
    running.until('"event": "running"')
    return running


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("stauts",), 2, "did you mean status"),
        (("lag", "-g", "biling"), 1, "(a group is known once it has consumed): did you mean billing?"),
        (("lag", "-g", "billing", "-t", "ordes"), 1, "does not know the topic ordes: did you mean orders?"),
        (("reset", "-g", "biling", "-t", "orders", "--to", "earliest"), 1, "did you mean billing?"),
        (("reset", "-g", "billing", "-t", "oders", "--to", "earliest"), 1, "did you mean orders?"),
        (("send", "-t", "ordes", "x", "--no-create"), 1, "did you mean orders?"),
        (("lag", "-g", "billing", "--namesrv", "127.0.0.1:1"), 3, "answers at 127.0.0.1:1 (Connection refused)"),
        (("status", "--name-servers", "127.0.0.1:1"), 2, "No such option"),
    ],
)  # fmt: skip
def test_wrong_names(cluster: Cluster, arguments: tuple[str, ...], code: int, says: str) -> None:
    found, _, err = cluster(*arguments)
    assert found == code
    assert says in err
    assert "event" not in err  # no log lines before the one that counts


def test_the_brokers_port_for_the_name_servers(cluster: Cluster) -> None:
    for command in (
        ("lag", "-g", "billing"),
        ("send", "-t", "orders", "x"),
        ("reset", "-g", "b", "-t", "o", "--to", "2h"),
    ):
        code, _, err = cluster(*command, "-n", cluster.broker)
        assert code == 1
        assert err.startswith(f"rocketcrew: {cluster.broker} is a broker and no name server: ")


def test_a_reset_is_shown_first_and_read_back(cluster: Cluster) -> None:
    reset = ("reset", "-g", "billing", "-t", "orders", "--to", "earliest", "--json")
    code, out, err = cluster(*reset, "--dry-run")
    assert code == 0, err
    planned = json.loads(out)
    assert planned["done"] is False
    assert sum(queue["repeated"] for queue in planned["queues"]) == 8
    assert json.loads(cluster(*reset)[1])["done"] is True
    assert json.loads(cluster("lag", "-g", "billing", "-t", "orders", "--json")[1])["total"] == 8
    code, out, err = cluster(*reset[:-2], "latest")
    assert code == 0
    assert "8 messages skipped, 0 repeated" in out
    (note,) = cluster.folder.rglob("outcomes/*-reset.facts")
    assert facts_from_bytes(note.read_bytes()).of_kind(SKIPPED).count() == 8
    assert json.loads(cluster("lag", "-g", "billing", "-t", "orders", "--json")[1])["total"] == 0


def test_a_reset_while_members_run_reaches_them(cluster: Cluster) -> None:
    with member(cluster) as running:
        code, out, err = cluster("reset", "-g", "billing", "-t", "orders", "--to", "earliest", "--yes")
        assert code == 0, err
        assert "1 member runs: the brokers tell them" in out
        code, out, err = cluster("stop", "--wait", "--json", "-g", "billing")
        assert code == 0, err
        assert json.loads(out)["stopped"] is True
        assert running.to_its_end() == 0


def test_what_a_cluster_has_and_who_is_in_a_group(cluster: Cluster) -> None:
    assert [each["name"] for each in json.loads(cluster("topics", "--json")[1])["topics"]] == ["orders"]
    (group,) = json.loads(cluster("groups", "--json")[1])["groups"]
    assert (group["name"], group["members"]) == ("billing", 0)
    assert "has no members that run" in cluster("members", "-g", "billing")[1]
    assert "did you mean billing?" in cluster("members", "-g", "biling")[2]
    with member(cluster) as running:
        running.until('"event": "queue_opened"')
        told = json.loads(cluster("members", "-g", "billing", "--json")[1])
        (client,) = told["members"]
        assert told["subscriptions"] == {"%RETRY%billing": "*", "orders": "*"}
        assert json.loads(cluster("groups", "--json")[1])["groups"][0]["members"] == 1
        words = ("lag", "-g", "billing", "--watch", "--interval", "0.1", "--count", "2")
        first, second = (json.loads(line) for line in cluster(*words, "--json")[1].splitlines())
        assert {queue["owner"] for queue in second["queues"]} <= {client["client_id"], None}
        assert all(queue["in_hand"] is not None for queue in first["queues"] if queue["owner"])
        assert [queue["per_second"] for queue in first["queues"]] == [None] * len(first["queues"])
        for command in (words, ("topics", "--all"), ("groups",), ("members", "-g", "billing")):
            code, out, err = cluster(*command)
            assert (code, err) == (0, "")
            assert "billing" in out or "orders" in out
        assert running.stop() == 0


def test_a_supervisor_elsewhere_is_named(cluster: Cluster, tmp_path: Path) -> None:
    with member(cluster) as running:
        done = run(tmp_path, "status")
        assert done.returncode == 2
        assert f"no supervisor runs under {tmp_path}/.rocketcrew" in done.stderr
        assert f"pid {running.process.pid}: --set supervisor.data_dir={cluster.folder}/.rocketcrew" in done.stderr
        assert cluster("status", "--set", f"supervisor.data_dir={cluster.folder}/.rocketcrew")[0] == 0
        assert running.stop() == 0
