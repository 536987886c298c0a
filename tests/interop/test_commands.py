"""What an operator asks and changes by our commands, against genuine servers: the answers are read as they are printed."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "system"))

from servers import VERSIONS, Servers
from terminal import Shell, Terminal, asked

ON_BOTH = pytest.mark.parametrize("servers", VERSIONS, ids=str, indirect=True, scope="session")
SHOP = """
import time
from pathlib import Path
from rocketcrew import handler

@handler(schema="key string")
def count(message):
    if message.body == b"slow":
        time.sleep(600)
    if message.body == b"bad" and not Path("mended").exists():
        raise KeyError("price")
    return {"key": message.keys}
"""
RUN = ("run", "shop", "-t", "shop-orders", "-g", "shop-billing", "-w", "1", "--no-load", "--log-format", "json",
       "--set", "consumer.consume_from_where=CONSUME_FROM_FIRST_OFFSET",
       "--set", "consumer.delay_level_when_next_consume=-1")  # fmt: skip
GROUP = ("-g", "shop-billing")


@pytest.mark.timeout(1800)  # some forty commands, each with a limit of its own
@ON_BOTH
def test_an_operator_works_with_a_group_of_a_genuine_broker(servers: Servers, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    servers.create_topic("shop-orders", 2)
    shell = Shell(tmp_path, servers.name_server)
    for key in ("o-1", "o-2", "bad"):
        assert shell("send", "-t", "shop-orders", "--key", key, key)[0] == 0

    env = {"NAMESRV_ADDR": servers.name_server}
    with Terminal(tmp_path, *RUN, **env) as member:
        member.until('"event": "running"')
        letters = asked(lambda: listed(shell("dlq", "ls", *GROUP, "--json")), bool, "a dead letter")
        assert [(one["keys"], one["line"]) for one in letters] == [("bad", "shop.py:11")]
        [lag] = asked(
            lambda: listed(shell("lag", *GROUP, "--json")),
            lambda found: bool(found) and not found[0]["total"],
            "that nothing is left",
        )
        assert sum(queue["max"] for queue in lag["queues"] if queue["topic"] == "shop-orders") == 3

        look_around(shell, servers)
        what_is_in_hand(shell)
        assert member.stop() in (0, 5)  # its deadline may come before the handler's end
    work_with_letters(shell, tmp_path)
    move(shell)
    with Terminal(tmp_path, "tail", "-t", "shop-orders", **env) as tail:
        tail.until("waiting for messages")
        assert shell("send", "-t", "shop-orders", "--key", "late", "tailed")[0] == 0
        assert re.search(r"broker-a/\d/\d+  key=late  tailed", tail.until("tailed"))


def listed(answer: tuple[int, str, str]) -> list[dict[str, Any]]:
    """The JSON lines of an answer, none when the group or its dead letters are not there yet, or no broker answers now."""
    return [json.loads(line) for line in answer[1].splitlines()] if answer[0] == 0 else []


def look_around(shell: Shell, servers: Servers) -> None:
    """Everything is fine, and what is not is a fault with a remedy."""
    code, out, err = shell("doctor", "shop", "-t", "shop-orders", *GROUP, "--json")
    checks = {one["check"]: one for one in json.loads(out)["checks"]}
    assert {one["level"] for name, one in checks.items() if name not in ("disk", "open files", "table format")} == {
        "fine"
    }, err
    assert (code, checks["topic"]["found"]) == (0, "shop-orders: 2 queues on 1 broker")
    assert checks["group"]["found"] == "shop-billing has 1 member"
    version = servers.kind.version.replace(".", "_")
    assert f"is V{version}" in checks["broker"]["found"]
    assert ("knows no POP" in checks["broker"]["found"]) == version.startswith("4")
    code, out, _ = shell("doctor", "shop", "-t", "shop-orders:late", *GROUP)
    assert code == 1
    assert "fault    subscriptions      topic shop-orders is filtered there by '*', by us by 'late'" in out
    # The broker puts a message into its index some time after it has stored it.
    found = asked(lambda: shell("find", "o-2")[1], lambda out: "found by           key" in out, "o-2 in the index")
    assert "topic              shop-orders" in found
    asked(
        lambda: re.findall("^message id ", shell("find", "bad")[1], re.MULTILINE),
        lambda ids: len(ids) == 2,
        "the message and its dead letter in the index",
    )
    assert len(shell("peek", "-t", "shop-orders")[1].splitlines()) == 3
    assert shell("find", "o-22")[0] == 1


def what_is_in_hand(shell: Shell) -> None:
    """Which message holds the offset, in which worker, at which line."""
    assert shell("send", "-t", "shop-orders", "--key", "slow", "slow")[0] == 0
    asleep = re.compile(r"offset \d runs in worker \S+ \(pid \d+\) for [\d.]+ s, in count at shop\.py:9")
    said = asked(lambda: shell("why-lag", *GROUP)[1], lambda out: bool(asleep.search(out)), "a message in a worker")
    assert re.search(r"^shop-orders broker-a \d: lag 1, committed \d, 1 unfinished here$", said, re.MULTILINE)


def work_with_letters(shell: Shell, folder: Path) -> None:
    """The handler fails here as there; mended, the letter goes to the group."""
    assert "1  KeyError: '…'" in shell("dlq", "group", *GROUP)[1]
    code, out, _ = shell("dlq", "replay", *GROUP, "--handler", "shop")
    assert (code, "failed: KeyError: 'price' (shop.py:11)" in out) == (1, True)
    (folder / "mended").touch()
    code, out, _ = shell("dlq", "replay", *GROUP, "--handler", "shop")
    assert out.splitlines()[0].endswith('fine, 1 row: [{"key": "bad"}]')
    assert "and was sent to group shop-billing again; group shop-billing has no member now" in out
    # The broker puts it into its queue some time after it has answered.
    asked(
        lambda: shell("peek", "-t", "%RETRY%shop-billing")[1],
        lambda out: out.rstrip().endswith("key=bad  bad"),
        "the letter in the retry topic",
    )
    assert (
        shell("dlq", "export", *GROUP, "--all", "--format", "parquet", "-o", "letters")[1]
        == "1 letter written to letters\n"
    )
    assert shell("dlq", "purge", *GROUP, "--all", "--yes")[1] == "1 letter purged\n"


def move(shell: Shell) -> None:
    """What is at rest is moved, and read back."""
    dry = json.loads(shell("skip", *GROUP, "-t", "shop-orders", "--dry-run", "--json")[1])
    assert shell("skip", *GROUP, "-t", "shop-orders", "--yes")[0] == 0
    lag = json.loads(shell("lag", *GROUP, "-t", "shop-orders", "--json")[1])
    assert (lag["total"], bool(dry)) == (0, True)
    unknown = shell("clone-offsets", "shop-billing", "shop-copy", "--yes")
    assert (unknown[0], "--new-group" in unknown[2]) == (1, True)
    assert shell("clone-offsets", "shop-billing", "shop-copy", "--new-group", "--yes")[0] == 0
    copied = json.loads(shell("lag", "-g", "shop-copy", "-t", "shop-orders", "--json")[1])
    assert [queue["committed"] for queue in copied["queues"]] == [queue["committed"] for queue in lag["queues"]]
