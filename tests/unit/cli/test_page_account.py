"""The account of docs/how-to/cluster.md does what the table below it says, at a broker with that file."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from rocketcrew.broker.config import BrokerConfig
from rocketcrew.broker.server import EmbeddedBroker
from rocketcrew.cli.asking import ask_cluster
from rocketcrew.cli.checkup_facts import gather
from rocketcrew.cli.checkups import Finding, Level, findings
from rocketcrew.cli.commands.dlq import Desk
from rocketcrew.cli.letters import Wanted
from rocketcrew.cli.messages import Filter, newest
from rocketcrew.client.access import Access, Credentials
from rocketcrew.client.admin import Admin
from rocketcrew.client.cluster import Cluster
from rocketcrew.client.operations import Operations
from rocketcrew.client.sync import SyncProducer
from rocketcrew.conf.settings import Settings, load
from rocketcrew.remoting.admin_bodies import TopicConfig
from rocketcrew.remoting.bodies import ConsumerData, HeartbeatData
from rocketcrew.remoting.errors import BrokerError

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "cluster.md"
TOOLS = ', "TOOLS_CONSUMER=SUB"'
DEAD = "%DLQ%billing"


def page_file() -> str:
    found = re.search(r'```text title="acl.toml[^\n]*\n(.*?)```', PAGE.read_text(), re.DOTALL)
    assert found is not None
    return found[1]


def with_the_page(tmp_path: Path, text: str, work: Callable[[Settings], None], *, known: bool = False) -> None:
    """`work` beside a broker with the file, an order and a dead letter of group billing, which is `known` there or not."""
    (tmp_path / "acl.toml").write_text(text)
    (tmp_path / "acl.toml").chmod(0o600)

    async def made(cluster: Cluster) -> None:
        admin = Admin(cluster)
        for topic in ("orders", DEAD):
            await admin.create_topic_everywhere(TopicConfig(topic))
        if known:
            for address in await admin.master_addresses():
                member = HeartbeatData("a-member", consumer_data_set=(ConsumerData("billing"),))
                await Operations(cluster).heartbeat(address, member)

    def visit(name_server: str) -> None:
        access = Access(name_server, credentials=Credentials("operator", "a long secret"))
        ask_cluster(access, made)
        with SyncProducer(access) as producer:
            for topic in ("orders", DEAD):
                producer.send(topic, b"body")
        flags = {
            "cluster.name_servers": name_server, "consumer.group": "billing", "consumer.topics": "orders",
            "security.access_key": "billing", "security.secret_key": "another long secret",
            "supervisor.data_dir": str(tmp_path / "state"),
        }  # fmt: skip
        work(load(flags, {}, None))

    async def scenario() -> None:
        async with EmbeddedBroker(config=BrokerConfig(acl_file=str(tmp_path / "acl.toml"))) as broker:
            await asyncio.to_thread(visit, broker.name_server)

    asyncio.run(scenario())


def topic_findings(settings: Settings) -> list[Finding]:
    facts = gather(settings, None, {})
    return [each for each in findings(replace(facts, machine=None)) if each.check == "topic"]


def test_letters_are_read_and_sent_again_in_the_name_of_their_group(tmp_path: Path) -> None:
    def work(settings: Settings) -> None:
        desk = Desk(settings)
        (letter,) = desk.letters(Wanted())
        with desk.alone():
            ask_cluster(desk.access, lambda cluster: desk.replay(cluster, [letter], 100))
        assert desk.replayed == 1

    with_the_page(tmp_path, page_file().replace(TOOLS, ""), work, known=True)


def test_the_commands_without_a_group_read_as_the_tools_group(tmp_path: Path) -> None:
    def work(settings: Settings) -> None:
        found = ask_cluster(Desk(settings).access, lambda cluster: newest(cluster, "orders", 9, Filter(), {}))
        assert [message.body for _, message in found] == [b"body"]
        assert [each.level for each in topic_findings(settings)] == [Level.FINE]

    with_the_page(tmp_path, page_file(), work)


def test_what_the_tools_group_may_not_see_is_no_fault_of_a_group_that_is_new(tmp_path: Path) -> None:
    def work(settings: Settings) -> None:
        (found,) = topic_findings(settings)
        assert (found.level, "not looked" in found.found) == (Level.WARNING, True)
        hidden = ask_cluster(Desk(settings).access, lambda cluster: newest(cluster, "orders", 9, Filter(), {}))
        assert not hidden, "it is refused"

    with pytest.raises(BrokerError, match="TOOLS_CONSUMER"):
        with_the_page(tmp_path, page_file().replace(TOOLS, ""), work)


def test_a_topic_that_the_account_may_not_read_is_a_fault(tmp_path: Path) -> None:
    def work(settings: Settings) -> None:
        (found,) = topic_findings(settings)
        assert (found.level, "permission for orders" in found.found) == (Level.FAULT, True)

    with_the_page(tmp_path, page_file().replace('"orders=SUB", ', ""), work)
