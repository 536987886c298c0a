"""Somebody who wants to see a message: by what is known of it, the newest of a topic, or as they come."""

from __future__ import annotations

import json
from pathlib import Path

from terminal import Terminal, run


def test_messages_are_found_peeked_at_and_followed(tmp_path: Path) -> None:
    with Terminal(tmp_path, "broker", "--name-server-port", "0", "--port", "0", "--json") as broker:
        where = ("-n", json.loads(broker.until("name_server"))["name_server"])
        sent = run(
            tmp_path, "send", *where, "-t", "orders", "--key", "o-1", "--tag", "paid", '{"city": "Bonn"}', "--json"
        )
        first = json.loads(sent.stdout)
        place = f"{first['broker']}/{first['queue_id']}/{first['queue_offset']}"
        found = run(tmp_path, "find", *where, "o-1", first["message_id"], first["offset_message_id"], place, "--json")
        assert found.returncode == 0, found.stderr
        listed = [json.loads(line) for line in found.stdout.splitlines()]
        assert [one["found_by"] for one in listed] == ["key", "unique key", "message id", "offset"]
        assert {one["message_id"] for one in listed} == {first["message_id"]}
        assert listed[0]["body"] == {"city": "Bonn"}
        missing = run(tmp_path, "find", *where, "o-2", "-t", "orders")
        assert (missing.returncode, missing.stderr) == (1, "rocketcrew: nothing is named o-2 in orders\n")
        mistyped = run(tmp_path, "peek", *where, "-t", "order")
        assert (mistyped.returncode, "did you mean orders?" in mistyped.stderr) == (1, True)
        peeked = run(tmp_path, "peek", *where, "-t", "orders", "--tag", "paid")
        assert peeked.stdout.split()[1:] == [place, "tag=paid", "key=o-1", '{"city":', '"Bonn"}']
        assert run(tmp_path, "peek", *where, "-t", "orders", "--from", "earliest", "--grep", "cologne").stdout == ""
        words = ("tail", *where, "-t", "orders", "--count", "1", "--interval", "0.1", "--body", "hex", "--json")
        with Terminal(tmp_path, *words) as tail:
            tail.until("waiting for messages")
            assert run(tmp_path, "send", *where, "-t", "orders", "ab").returncode == 0
            assert json.loads(tail.until("message_id"))["body"] == "6162"
            assert tail.to_its_end() == 0
