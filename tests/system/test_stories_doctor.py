"""Before a start: what doctor finds, and a run that refuses on a fault."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from harness import wait_until
from terminal import Shell, Terminal, why_failed

from rocketcrew.client.admin import Admin
from rocketcrew.client.sync import run_with_cluster
from rocketcrew.remoting.admin_bodies import TopicConfig
from rocketcrew.remoting.codes import PERM_WRITE

SHOP = """
from rocketcrew import handler

@handler(schema="key string")
def count(message):
    print("counted", flush=True)
    return {"key": message.keys}
"""

NO_TABLE = ("--set", "spark.load=false")
"""Whether there is a Java is this machine's affair."""


class Cluster(Shell):
    def doctor(self, *arguments: str) -> tuple[int, dict[str, tuple[str, str]]]:
        """The exit code, and of each check its level and what was found."""
        code, out, err = self("doctor", *arguments, *NO_TABLE, "--json")
        assert not err
        told = json.loads(out)
        assert told["ok"] is (code == 0)
        return code, {one["check"]: (one["level"], f"{one['found']}: {one['todo']}") for one in told["checks"]}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """With the topics orders and closed, which nobody may read."""
    folder = tmp_path_factory.mktemp("cluster")
    (folder / "shop.py").write_text(SHOP)
    with Terminal(folder, "broker", "--name-server-port", "0", "--port", "0", "--json") as broker:
        made = Cluster(folder, json.loads(broker.until("name_server"))["name_server"])
        assert made("send", "-t", "orders", "x")[0] == 0
        config = TopicConfig("closed", perm=PERM_WRITE)
        run_with_cluster(made.name_server, lambda cluster: Admin(cluster).create_topic_everywhere(config))
        wait_until(lambda: "closed" in made("topics")[1], what="the topic closed is known")
        yield made
        assert broker.stop() == 0


def test_a_new_group_with_a_sound_handler_has_no_fault(cluster: Cluster) -> None:
    code, found = cluster.doctor("shop:count", "-t", "orders", "-g", "new")
    assert code == 0
    assert not [check for check, (level, _) in found.items() if level == "fault"]
    assert found["topic"][0] == found["clock"][0] == found["broker"][0] == found["columns"][0] == "fine"
    assert "V5_5_0" in found["broker"][1]
    assert "new is new" in found["group"][1]
    assert "new" not in cluster("groups")[1]  # looking has made none


def test_faults_are_lines_with_what_to_do(cluster: Cluster) -> None:
    code, out, err = cluster("doctor", "shop:cuont", "-t", "ordes", "-t", "closed", "-g", "new", *NO_TABLE)
    assert (code, err) == (1, "")
    assert "warning  topic              ordes does not exist: did you mean orders?" in out
    assert "fault    topic              closed has no queue that may be read: let it be read: `mqadmin" in out
    assert 'fault    handler            module "shop" ' in out
    assert 'did you mean "count"?' in out
    assert " checks: 2 faults, " in out.splitlines()[-1]


def test_a_cluster_that_does_not_answer_is_a_fault(cluster: Cluster) -> None:
    code, out, _ = cluster("doctor", "-g", "new", "-n", "127.0.0.1:1")
    assert code == 1
    assert "fault    name server        127.0.0.1:1 answers no question (Connection refused)" in out


def test_run_with_check_refuses_on_a_fault_and_starts_otherwise(cluster: Cluster) -> None:
    words = ("run", "shop:count", "-g", "checked", "--check", "--no-load", "--log-format", "json")
    code, _, err = cluster(*words, "-t", "closed")
    assert code == 2
    (fault,) = [
        line
        for line in map(json.loads, err.splitlines())
        if line["event"] == "check_found" and line["level"] == "error"
    ]
    assert (fault["check"], fault["error"].startswith("closed has no queue")) == ("topic", True)
    assert why_failed(err).startswith("nothing was started, because of the faults above")
    assert "checked" not in cluster("groups")[1]
    first = ("--set", "consumer.consume_from_where=CONSUME_FROM_FIRST_OFFSET", "--set", "workers.count=1")
    with Terminal(cluster.folder, *words, "-t", "orders", *first, NAMESRV_ADDR=cluster.name_server) as running:
        running.until(" checks")
        running.until("counted")
        compare(cluster)
        assert running.stop() == 0


def compare(cluster: Cluster) -> None:
    """While a member runs: its subscriptions against ours."""
    code, found = cluster.doctor("-t", "orders:paid", "-g", "checked")
    assert code == 1
    assert "checked has 1 member" in found["group"][1]
    assert found["subscriptions"][0] == "fault"
    assert "topic orders is filtered there by '*', by us by 'paid'" in found["subscriptions"][1]
    code, found = cluster.doctor("-t", "orders", "-g", "checked")
    assert code == 0
    assert found["subscriptions"][0] == "fine"
