"""A group at rest is moved past a message, and another is put where it is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from terminal import Shell, Terminal

from rocketcrew.client.admin import Admin
from rocketcrew.client.sync import run_with_cluster
from rocketcrew.durable.facts import facts_from_bytes
from rocketcrew.durable.outcomes import SKIPPED
from rocketcrew.remoting.admin_bodies import TopicConfig

FIRST = ("--set", "consumer.consume_from_where=CONSUME_FROM_FIRST_OFFSET", "--set", "workers.count=1")


class Cluster(Shell):
    def told(self, *arguments: str) -> dict[str, Any]:
        code, out, err = self(*arguments, "--json")
        assert code == 0, err
        answer: dict[str, Any] = json.loads(out)
        return answer

    def committed(self, group: str) -> list[int | None]:
        return [queue["committed"] for queue in self.told("lag", "-g", group, "-t", "orders")["queues"]]

    def member(self, group: str) -> Terminal:
        words = ("run", "shop:count", "-t", "orders", "-g", group, "--no-load", "--log-format", "json", *FIRST)
        return Terminal(self.folder, *words, NAMESRV_ADDR=self.name_server)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A topic of one queue, and a group that has finished its four messages; four more have come since."""
    folder = tmp_path_factory.mktemp("cluster")
    (folder / "shop.py").write_text("def count(message): print('counted', message.queue_offset, flush=True)\n")
    with Terminal(folder, "broker", "--name-server-port", "0", "--port", "0", "--json") as broker:
        made = Cluster(folder, json.loads(broker.until("name_server"))["name_server"])
        config = TopicConfig("orders", read_queue_nums=1, write_queue_nums=1)
        run_with_cluster(made.name_server, lambda cluster: Admin(cluster).create_topic_everywhere(config))
        assert made("send", "-t", "orders", "--count", "4", "x")[0] == 0
        with made.member("billing") as running:
            for _ in range(4):
                running.until("counted")
            assert running.stop() == 0
        assert made("send", "-t", "orders", "--count", "4", "x")[0] == 0
        yield made
        assert broker.stop() == 0


def test_one_message_is_skipped_and_a_member_goes_on_after_it(cluster: Cluster) -> None:
    skip = ("skip", "-g", "billing", "-t", "orders")
    (planned,) = cluster.told(*skip, "--dry-run")["queues"]
    assert (planned["old"], planned["new"], planned["skipped"]) == (4, 5, 1)
    assert cluster.committed("billing") == [4]
    code, out, err = cluster(*skip, "--to", "6")
    assert code == 0
    assert "group billing: 2 messages skipped, 0 repeated." in out
    assert "the offsets are set" in err
    assert cluster.committed("billing") == [6]
    (note,) = cluster.folder.rglob("outcomes/*-skip.facts")
    assert facts_from_bytes(note.read_bytes()).of_kind(SKIPPED).count() == 2
    with cluster.member("billing") as running:
        assert running.until("counted") == "counted 6\n"
        code, _, err = cluster(*skip)
        assert code == 2
        assert "has members that run (" in err
        assert "stop them first" in err
        assert running.until("counted") == "counted 7\n"
        assert running.stop() == 0


def test_a_group_is_put_where_another_is(cluster: Cluster) -> None:
    clone = ("clone-offsets", "billing", "copy", "-t", "orders")
    code, _, err = cluster(*clone)
    assert code == 1
    assert "add --new-group" in err
    at = cluster.committed("billing")
    told = cluster.told(*clone, "--new-group", "--dry-run")
    assert (told["group"], told["done"], [queue["new"] for queue in told["queues"]]) == ("copy", False, at)
    assert cluster.told(*clone, "--new-group")["done"] is True
    assert cluster.committed("copy") == at
    told = cluster.told(
        "clone-offsets", "billing", "copy", "--new-group"
    )  # the topics are found, nothing is left to do
    assert (told["done"], [queue["topic"] for queue in told["queues"]]) == (False, ["orders"])


def test_what_is_misspelt_is_one_sentence(cluster: Cluster) -> None:
    assert cluster("send", "-t", "wide", "--count", "8", "x")[0] == 0
    for words, code, says in (
        (("skip", "-g", "biling", "-t", "wide"), 1, "did you mean billing?"),
        (("lag", "-g", "copy"), 1, "with -t TOPIC"),
        (("skip", "-g", "biling", "-t", "orders"), 1, "did you mean billing?"),
        (("skip", "-g", "billing", "-t", "ordes"), 1, "did you mean orders?"),
        (
            ("skip", "-g", "billing", "-t", "orders", "--queue", "7"),
            2,
            "no such queue; it has --broker embedded --queue 0",
        ),
        (("clone-offsets", "biling", "copy"), 1, "did you mean billing?"),
        (("clone-offsets", "copy", "copy"), 2, "copy is both groups"),
    ):
        found, _, err = cluster(*words)
        assert (found, len(err.splitlines())) == (code, 1), err
        assert says in err
